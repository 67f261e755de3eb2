//! `longshore journal verify`.

use std::path::PathBuf;

use longshore::journal::{self, Effect, Finding, Verified};
use serde_json::{Value, json};

use super::super::Context;
use super::{bytes, with_progress};
use crate::failure::AlreadyReported;
use crate::output::grouped;

pub(super) async fn run(dir: PathBuf, mut context: Context) -> anyhow::Result<()> {
    let verified = with_progress("verifying", &context.output, move |progress| {
        journal::verify(&dir, progress)
    })
    .await??;
    if context.output.is_json() {
        context.output.json_pretty(&verified_json(&verified))?;
    } else {
        for finding in &verified.findings {
            context.output.line(line(finding))?;
        }
        if verified.more_findings > 0 {
            let more = grouped(verified.more_findings);
            context.output.line(format!("and {more} more findings"))?;
        }
        context.output.lines(summary(&verified))?;
    }
    if verified.is_damaged() { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// The keyword for a start's reaction to a finding.
fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::Refuses => "damage",
        Effect::Buries => "payload",
        Effect::IgnoresFile => "unneeded",
        Effect::Repairs => "header",
        Effect::ErasesTail => "torn",
    }
}

fn line(finding: &Finding) -> String {
    let Finding { effect, file, offset, index, what } = finding;
    let index = index.map(|index| format!(", command {index}")).unwrap_or_default();
    let consequence = match effect {
        Effect::Refuses => "a start refuses",
        Effect::Buries => "a job whose payload lies there is buried when it is read",
        Effect::IgnoresFile => "a start does not need it",
        Effect::Repairs => "a start rewrites it; nothing is lost",
        Effect::ErasesTail => "a start cuts it off; nothing acknowledged is lost",
    };
    format!(
        "{:<8} {} at byte {offset}{index}: {what}; {consequence}",
        word(*effect),
        file.display()
    )
}

fn summary(verified: &Verified) -> String {
    let read = format!("{} records, {} read", grouped(verified.records), bytes(verified.bytes));
    let watermark = verified.commit_watermark.map_or_else(
        || "no commit watermark".to_owned(),
        |index| format!("commit watermark {index}"),
    );
    let snapshot = verified
        .snapshot
        .map_or_else(|| "no snapshot".to_owned(), |index| format!("snapshot {index}"));
    let verdict = if verified.is_refused {
        "DAMAGED: a publisher refuses to start on it; restore a copy, or start with --accept-loss"
    } else if verified.is_damaged() {
        "a publisher starts on it; some payloads are damaged"
    } else {
        "good"
    };
    format!("{verdict}\n{read}; last command {}, {watermark}, {snapshot}", verified.last_index)
}

fn verified_json(verified: &Verified) -> Value {
    let findings = verified.findings.iter().map(|finding| {
        json!({
            "effect": word(finding.effect), "file": finding.file.display().to_string(),
            "offset": finding.offset, "index": finding.index, "what": finding.what,
        })
    });
    json!({
        "damaged": verified.is_damaged(), "start_refuses": verified.is_refused,
        "last_index": verified.last_index, "commit_watermark": verified.commit_watermark,
        "snapshot": verified.snapshot,
        "records": verified.records, "bytes": verified.bytes,
        "findings": findings.collect::<Vec<_>>(), "more_findings": verified.more_findings,
    })
}
