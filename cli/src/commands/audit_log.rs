//! `longshore access audit`: whether the lines of an audit log follow each other.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path as FilePath, PathBuf};

use longshore_access::{AUDIT_LINE_BYTES_MAX, AuditVerifier};
use serde_json::json;

use super::Context;
use crate::failure::{Failure, FailureKind};

pub(super) fn verify(files: &[PathBuf], context: &mut Context) -> anyhow::Result<()> {
    let mut verifier = AuditVerifier::default();
    let mut lines = 0;
    for file in files {
        lines += verify_file(file, &mut verifier)
            .map_err(|why| Failure::new(FailureKind::Failed, why))?;
    }
    // The lines follow each other, so their number gives the first one's.
    let Some(last) = verifier.position() else {
        let why = "the files have no line: a log begins with one";
        return Err(Failure::new(FailureKind::Failed, why.to_owned()).into());
    };
    let first = (last.seq + 1).saturating_sub(lines);
    if first > 1 {
        report_note!("the log begins before line {first}, in older files");
    }
    if context.output.is_json() {
        let (seq, chain) = (last.seq, last.hash_text());
        let all = json!({ "lines": lines, "first": first, "last": seq, "chain": chain });
        context.output.json_pretty(&all)?;
        return Ok(());
    }
    context.output.line(format!("{lines} lines follow each other; the last: {last}"))?;
    Ok(())
}

/// Returns the number of lines; an error names the first that does not follow.
fn verify_file(file: &FilePath, verifier: &mut AuditVerifier) -> Result<u64, String> {
    let name = file.display();
    let mut reader = BufReader::new(File::open(file).map_err(|error| format!("{name}: {error}"))?);
    let (mut number, mut line) = (0, Vec::new());
    loop {
        line.clear();
        // One more byte: a line that is too long has no end within the limit.
        let read =
            reader.by_ref().take(AUDIT_LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
        if read.map_err(|error| format!("{name}: {error}"))? == 0 {
            return Ok(number);
        }
        let at = number + 1;
        let Some(text) = line.strip_suffix(b"\n") else {
            if line.len() > AUDIT_LINE_BYTES_MAX {
                return Err(format!("{name}:{at}: a line of an audit log is shorter"));
            }
            report_note!("{name}:{at}: the last line has no end; it is being written, or was torn");
            return Ok(number);
        };
        let text = std::str::from_utf8(text).map_err(|error| format!("{name}:{at}: {error}"))?;
        verifier.line(text).map_err(|fault| format!("{name}:{at}: {fault}"))?;
        number = at;
    }
}
