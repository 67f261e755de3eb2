//! `longshore journal copy`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use longshore::{PublisherId, journal};
use serde_json::json;

use super::super::Context;
use super::{bytes, warn, with_progress};
use crate::output::{counted, grouped};

pub(super) async fn run(dir: PathBuf, dest: PathBuf, mut context: Context) -> anyhow::Result<()> {
    // The copy syncs the parent directory, so the path needs one.
    let dest = std::path::absolute(&dest)
        .with_context(|| format!("the copy's directory '{}'", dest.display()))?;
    let began = Instant::now();
    let (from, to) = (dir, dest.clone());
    let copied = with_progress("copying", &context.output, move |progress| {
        journal::copy(&from, &to, PublisherId(rand::random()), progress)
    })
    .await??;
    let seconds = began.elapsed().as_secs_f64();
    for finding in &copied.findings {
        let (file, offset) = (finding.file.display(), finding.offset);
        let index = finding.index.map(|index| format!(", command {index}")).unwrap_or_default();
        warn(
            &context.output,
            &format!("payload  {file} at byte {offset}{index}: {}; copied unchanged", finding.what),
        );
    }
    if copied.more_findings > 0 {
        let more = grouped(copied.more_findings);
        warn(&context.output, &format!("and {more} more damaged payloads; copied unchanged"));
    }
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "copy": dest.display().to_string(), "journal": copied.journal.to_string(),
            "publisher": copied.publisher.to_string(), "last_index": copied.last_index,
            "snapshot": copied.snapshot, "files": copied.files, "bytes": copied.bytes,
            "damaged_payloads": copied.findings.len() as u64 + copied.more_findings,
            "seconds": seconds,
        }))?;
    } else {
        report_note!(
            "start a publisher on it in place of the original, never beside it: jobs that are open \
             in both run twice"
        );
        context.output.lines(format!(
            "copied up to command {}: {}, {} in {seconds:.1} s\n{} is publisher {}",
            copied.last_index,
            counted(copied.files, "file"),
            bytes(copied.bytes),
            dest.display(),
            copied.publisher,
        ))?;
    }
    Ok(())
}
