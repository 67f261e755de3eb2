//! Presentation of a job, as text and as JSON.

use std::io;
use std::time::Duration;

use longshore::protocol::JobError;
use longshore::protocol::messages::work::{
    AttemptInfo, BatchInfo, BlockedBy, CheckpointInfo, JobInfo, LimitedBy, ProgressInfo,
};
use longshore::{JobEnd, JobRef, JobState, Parent};
use serde_json::{Map, Value, json};

use super::waiting_reasons::Reason;
use crate::backoff::show_backoff;
use crate::output::{Output, Table, bytes_json, counted, grouped, shown};
use crate::time::{show_duration, show_timestamp, wall_ms};

/// The most characters of a payload, result or error in a table.
pub(super) const CELL_CHARS: usize = 60;

/// A job as JSON. Unknown and inapplicable fields are left out.
pub(crate) fn json(at: &JobRef, job: &JobInfo) -> Value {
    let mut value = Map::new();
    let mut put = |key: &str, field: Value| {
        if !field.is_null() {
            value.insert(key.to_owned(), field);
        }
    };
    put("job", json!(at.to_string()));
    put("id", json!(job.id.to_string()));
    put("publisher", json!(at.publisher.to_string()));
    put("path", json!(job.path.as_str()));
    put("state", json!(job.state.to_string()));
    put("retrying", if job.retrying { json!(true) } else { Value::Null });
    put("priority", json!(job.priority));
    put("attempt", json!(job.attempt));
    put("max_attempts", json!(job.max_attempts));
    put("deliveries", json!(job.deliveries));
    put("lease_ms", json!(job.lease_ms));
    put("run_timeout_ms", json!(job.run_timeout_ms));
    put("enqueued_at", json!(show_timestamp(job.enqueued_at)));
    put("due_at", json!(job.due_at.map(show_timestamp)));
    put("expires_at", json!(job.expires_at.map(show_timestamp)));
    put("delivered_at", json!(job.delivered_at.map(show_timestamp)));
    put("ended_at", json!(job.ended_at.map(show_timestamp)));
    put("token", json!(job.token.map(|token| token.0)));
    put("worker", json!(job.worker));
    put("blocked", job.blocked.as_ref().map(blocked_json).into());
    put("death", json!(job.death.map(|death| death.to_string())));
    if let Some(error) = last_error(job) {
        put("error", json!({ "kind": error.kind, "message": error.message }));
    }
    put("members", job.batch.as_ref().map_or(Value::Null, members_json));
    put("batch", json!(job.member_of.map(|id| id.to_string())));
    if !job.after.is_empty() {
        put("after", parents_json(&job.after));
    }
    put("schedule", json!(job.schedule));
    put("replaces", json!(job.replaces.map(|id| id.to_string())));
    put("progress", job.progress.as_ref().map_or(Value::Null, progress_json));
    if !job.attempts.is_empty() {
        put("attempts", job.attempts.iter().map(attempt_json).collect());
    }
    if !job.checkpoints.is_empty() {
        put("checkpoints", job.checkpoints.iter().map(checkpoint_json).collect());
    }
    put("stderr", stderr_of(job).last().map_or(Value::Null, |(_, text)| text.into()));
    put("payload_bytes", json!(job.payload_len));
    put("payload", job.payload.as_ref().map_or(Value::Null, |bytes| bytes_json(bytes)));
    if let Some(headers) = job.headers.as_ref().filter(|headers| !headers.0.is_empty()) {
        // Of a header that occurs twice, the first counts.
        let mut first = Map::new();
        for (key, value) in &headers.0 {
            first.entry(key.as_str()).or_insert_with(|| json!(value));
        }
        put("headers", Value::Object(first));
    }
    if let Some(options) = &job.options {
        put("keep_result", json!(options.keep_result));
        put("backoff", json!(options.backoff.as_ref().map(show_backoff)));
        put("keep_ms", json!(options.keep_ms));
    }
    put("result", job.result.as_ref().map_or(Value::Null, |bytes| bytes_json(bytes)));
    Value::Object(value)
}

fn progress_json(progress: &ProgressInfo) -> Value {
    json!({
        "percent": progress.percent, "message": progress.message, "at": show_timestamp(progress.at),
    })
}

fn attempt_json(attempt: &AttemptInfo) -> Value {
    json!({
        "number": attempt.number, "worker": attempt.worker,
        "delivered_at": show_timestamp(attempt.delivered_at),
        "ended_at": show_timestamp(attempt.ended_at), "outcome": attempt.outcome.to_string(),
        "error": attempt.error.as_ref().map(|e| json!({ "kind": e.kind, "message": e.message })),
        "fingerprint": attempt.fingerprint.map(|fingerprint| fingerprint.to_string()),
    })
}

/// The checkpoint in which `longshore work` stores the end of a successful command's standard
/// error.
pub(crate) fn stderr_checkpoint(text: &str) -> Vec<u8> {
    json!({ "stderr": text }).to_string().into_bytes()
}

fn stderr_in(checkpoint: &CheckpointInfo) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Content {
        stderr: String,
    }
    let content: Content = serde_json::from_slice(checkpoint.bytes.as_ref()?).ok()?;
    Some(content.stderr)
}

/// The attempt number and standard error of each successful attempt.
fn stderr_of(job: &JobInfo) -> impl Iterator<Item = (u16, String)> {
    let stderr = |checkpoint: &CheckpointInfo| Some((checkpoint.attempt, stderr_in(checkpoint)?));
    job.checkpoints.iter().filter_map(stderr)
}

fn checkpoint_json(checkpoint: &CheckpointInfo) -> Value {
    json!({
        "attempt": checkpoint.attempt, "number": checkpoint.sequence,
        "at": show_timestamp(checkpoint.at), "bytes": checkpoint.length,
        "data": checkpoint.bytes.as_ref().map(|bytes| bytes_json(bytes)),
    })
}

/// The headings of a table of jobs.
pub(crate) const HEADINGS: [&str; 7] =
    ["job", "path", "state", "attempt", "age", "payload", "outcome"];

/// A job as a row under [`HEADINGS`].
pub(crate) fn row(at: &JobRef, job: &JobInfo) -> [String; 7] {
    let state = shown_state(job.state, job.retrying);
    let payload = job.payload.as_ref().map(|payload| shown(payload, CELL_CHARS));
    [
        at.to_string(),
        job.path.to_string(),
        state,
        format!("{}/{}", job.attempt, job.max_attempts),
        age(job.enqueued_at),
        payload.unwrap_or_default(),
        outcome(job),
    ]
}

/// A state as `stat` shows it, with `retrying` for jobs that wait for a retry.
pub(crate) fn shown_state(state: JobState, retrying: bool) -> String {
    if retrying { "retrying".to_owned() } else { state.to_string() }
}

fn age(since: u64) -> String {
    let ms = wall_ms().saturating_sub(since);
    match ms / 1_000 {
        0 => "0s".to_owned(),
        seconds => show_duration(Duration::from_secs(seconds)),
    }
}

/// The error of its last failed attempt; none once it has completed: publishers retain it with the
/// attempts.
fn last_error(job: &JobInfo) -> Option<&JobError> {
    job.error.as_ref().filter(|_| job.state != JobState::Completed)
}

/// Whether dead letters had it: a new life begins with its first attempt again.
fn was_revived(job: &JobInfo) -> bool {
    job.attempt == 0 && job.error.is_some()
}

fn outcome(job: &JobInfo) -> String {
    let error = last_error(job)
        .map(|error| shown(format!("{}: {}", error.kind, error.message).as_bytes(), CELL_CHARS));
    match job.state {
        JobState::Completed => {
            job.result.as_ref().map(|result| shown(result, CELL_CHARS)).unwrap_or_default()
        }
        JobState::Dead => {
            let death = job.death.map(|death| death.to_string()).unwrap_or_default();
            [Some(death), error].into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
        JobState::Running => {
            job.worker.as_ref().map(|worker| format!("at {worker}")).unwrap_or_default()
        }
        JobState::Scheduled => {
            let due = job.due_at.map(|at| format!("due {}", show_timestamp(at)));
            [due, error].into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
        JobState::Prepared => "waits for longshore confirm".to_owned(),
        JobState::Blocked => job.blocked.as_ref().map(shown_blocked).unwrap_or_default(),
        JobState::Ready if was_revived(job) => {
            error.map(|error| format!("revived after {error}")).unwrap_or_default()
        }
        JobState::Ready | JobState::Cancelled | JobState::Expired => error.unwrap_or_default(),
    }
}

fn blocked_json(by: &BlockedBy) -> Value {
    match by {
        BlockedBy::Order { key, job, state } => json!({
            "order_key": key, "job": job.to_string(), "state": state.to_string(),
        }),
        BlockedBy::Limit { by, key } => json!({
            "limit": by.limit, "limit_key": key,
            "until": by.until.map(show_timestamp),
        }),
        BlockedBy::Parent { job, state } => {
            json!({ "parent": job.to_string(), "state": state.to_string() })
        }
        BlockedBy::Members(members) => json!({ "members": members_json(members) }),
        BlockedBy::Throttled { key, until } => {
            json!({ "limit_key": key, "until": show_timestamp(*until) })
        }
    }
}

/// The jobs that a job was enqueued after.
pub(super) fn parents_json(after: &[Parent]) -> Value {
    let parent =
        |parent: &Parent| json!({ "job": parent.job.to_string(), "when": parent.when.to_string() });
    after.iter().map(parent).collect()
}

/// The members of a batch.
fn members_json(members: &BatchInfo) -> Value {
    let BatchInfo { closed, open, completed, dead, cancelled } = members;
    json!({
        "closed": closed, "open": open, "completed": completed, "dead": dead,
        "cancelled": cancelled,
    })
}

/// How many members a batch has, by what became of them.
pub(super) fn shown_members(members: &BatchInfo) -> String {
    let BatchInfo { closed, open, completed, dead, cancelled } = *members;
    let counts =
        [(open, "open"), (completed, "completed"), (dead, "dead"), (cancelled, "cancelled")];
    let counts = counts.into_iter().filter(|&(count, _)| count > 0);
    let mut parts: Vec<String> =
        counts.map(|(count, name)| format!("{} {name}", grouped(count))).collect();
    if parts.is_empty() {
        parts.push("no members".to_owned());
    }
    parts.push(if closed { "closed" } else { "not closed" }.to_owned());
    parts.join(", ")
}

/// What a blocked job waits for.
pub(super) fn shown_blocked(by: &BlockedBy) -> String {
    match by {
        BlockedBy::Order { key, job, state } => {
            let key = shown(key.as_bytes(), CELL_CHARS);
            format!("its order key {key} is at job {job}, which is {state}")
        }
        BlockedBy::Parent { job, state } => format!("it waits for job {job}, which is {state}"),
        BlockedBy::Members(members) => format!("it is a batch: {}", shown_members(members)),
        BlockedBy::Limit { by, key } => shown_limit(by, key.as_deref()),
        BlockedBy::Throttled { key, until } => {
            let key = shown(key.as_bytes(), CELL_CHARS);
            format!("its limit key {key} rests until {}", show_timestamp(*until))
        }
    }
}

/// A limit without room, of that limit key.
pub(super) fn shown_limit(by: &LimitedBy, key: Option<&str>) -> String {
    let until = by.until.map(|at| format!(" until {}", show_timestamp(at))).unwrap_or_default();
    let of = key.map(|key| format!(" for key {}", shown(key.as_bytes(), CELL_CHARS)));
    let limit = shown(by.limit.as_bytes(), CELL_CHARS);
    format!("limit {limit} has no room{}{until}", of.unwrap_or_default())
}

/// Prints all fields of a job, and why it waits.
pub(super) fn print(
    at: &JobRef,
    name: &str,
    job: &JobInfo,
    reasons: &[Reason],
    output: &mut Output,
) -> io::Result<()> {
    let mut line = |key: &str, value: String| output.line(format!("{key:<12} {value}"));
    line("job", at.to_string())?;
    line("publisher", format!("{name} ({})", at.publisher))?;
    line("path", job.path.to_string())?;
    line("state", shown_state(job.state, job.retrying))?;
    reasons.iter().try_for_each(|reason| line("waits", reason.to_string()))?;
    line("priority", job.priority.to_string())?;
    line(
        "attempt",
        format!(
            "{} of {}, {}",
            job.attempt,
            job.max_attempts,
            if job.deliveries == 1 {
                "1 delivery".to_owned()
            } else {
                format!("{} deliveries", job.deliveries)
            }
        ),
    )?;
    line("enqueued", show_timestamp(job.enqueued_at))?;
    if let Some(due) = job.due_at {
        line("due", show_timestamp(due))?;
    }
    if let Some(expires) = job.expires_at {
        line("expires", show_timestamp(expires))?;
    }
    if let Some(ended) = job.ended_at {
        line("ended", show_timestamp(ended))?;
    }
    if let Some(token) = job.token {
        line("lease", format!("token {token}, at {}", job.worker.as_deref().unwrap_or("?")))?;
    }
    if let Some(delivered) = job.delivered_at {
        let limit = match job.run_timeout_ms {
            0 => String::new(),
            ms => format!(", may run for {}", show_duration(Duration::from_millis(ms))),
        };
        line("delivered", format!("{}{limit}", show_timestamp(delivered)))?;
    }
    if let Some(progress) = &job.progress {
        line("progress", shown_progress(progress))?;
    }
    if let Some(members) = &job.batch {
        line("members", shown_members(members))?;
    }
    if let Some(batch) = job.member_of {
        line("batch", batch.to_string())?;
    }
    if let Some(schedule) = &job.schedule {
        line("schedule", schedule.clone())?;
    }
    if let Some(replaces) = job.replaces {
        line("replaces", replaces.to_string())?;
    }
    if let Some(death) = job.death {
        line("reason", death.to_string())?;
    }
    if let Some(error) = last_error(job) {
        let key = if job.state == JobState::Dead { "error" } else { "last error" };
        let revived = if was_revived(job) { "; revived since" } else { "" };
        let text = format!("{}: {}", error.kind, error.message);
        line(key, shown(text.as_bytes(), usize::MAX / 8) + revived)?;
    }
    if let Some(options) = &job.options {
        let backoff = options.backoff.as_ref().map(show_backoff);
        let keep = options.keep_ms.map(|ms| show_duration(Duration::from_millis(ms)));
        for (key, value) in [("backoff", backoff), ("keep", keep)] {
            if let Some(value) = value {
                line(key, value)?;
            }
        }
    }
    for (key, value) in job.headers.iter().flat_map(|headers| &headers.0) {
        line("header", shown(format!("{key}: {value}").as_bytes(), 1_000))?;
    }
    if let Some(payload) = &job.payload {
        line(
            "payload",
            format!("{}: {}", counted(payload.len() as u64, "byte"), shown(payload, 1_000)),
        )?;
    }
    if let Some(result) = &job.result {
        line(
            "result",
            format!("{}: {}", counted(result.len() as u64, "byte"), shown(result, 1_000)),
        )?;
    }
    for (attempt, text) in stderr_of(job) {
        line(
            "stderr",
            format!("of attempt {attempt}: {}", shown(text.as_bytes(), usize::MAX / 8)),
        )?;
    }
    if !job.attempts.is_empty() {
        output.line("")?;
        output.table(&attempts(&job.attempts))?;
    }
    let others: Vec<&CheckpointInfo> =
        job.checkpoints.iter().filter(|checkpoint| stderr_in(checkpoint).is_none()).collect();
    if !others.is_empty() {
        output.line("")?;
        output.table(&checkpoints(&others))?;
    }
    Ok(())
}

/// A job's progress as text.
pub(crate) fn shown_progress(progress: &ProgressInfo) -> String {
    let ago = show_duration(Duration::from_millis(wall_ms().saturating_sub(progress.at)));
    let message = shown(progress.message.as_bytes(), 300);
    format!(
        "{} %, {ago} ago{}{message}",
        progress.percent,
        if message.is_empty() { "" } else { ": " }
    )
}

fn attempts(attempts: &[AttemptInfo]) -> Table {
    let mut table =
        Table::new(&["attempt", "worker", "delivered", "took", "outcome", "error", "fingerprint"]);
    for attempt in attempts {
        let took = attempt.ended_at.saturating_sub(attempt.delivered_at);
        let error =
            attempt.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message));
        table.row([
            attempt.number.to_string(),
            attempt.worker.clone(),
            show_timestamp(attempt.delivered_at),
            show_duration(Duration::from_millis(took)),
            attempt.outcome.to_string(),
            error.map(|error| shown(error.as_bytes(), CELL_CHARS)).unwrap_or_default(),
            attempt.fingerprint.map(|fingerprint| fingerprint.to_string()).unwrap_or_default(),
        ]);
    }
    table
}

fn checkpoints(checkpoints: &[&CheckpointInfo]) -> Table {
    let mut table = Table::new(&["of attempt", "checkpoint", "stored", "bytes", "begins with"]);
    for checkpoint in checkpoints {
        let bytes = checkpoint.bytes.as_ref().map(|bytes| shown(bytes, CELL_CHARS));
        table.row([
            checkpoint.attempt.to_string(),
            checkpoint.sequence.to_string(),
            show_timestamp(checkpoint.at),
            grouped(checkpoint.length),
            bytes.unwrap_or_default(),
        ]);
    }
    table
}

/// Prints how an awaited job ended: its raw result, or its error.
pub(crate) fn print_end(at: &JobRef, job: &JobInfo, output: &mut Output) -> io::Result<()> {
    match job.state {
        JobState::Completed => print_result(job.result.as_deref().unwrap_or_default(), output)?,
        _ => report_error!("job {at} is {}: {}", job.state, outcome(job)),
    }
    Ok(())
}

/// Prints how a job ended that is no longer retained.
pub(crate) fn print_gone(at: &JobRef, end: &JobEnd, output: &mut Output) -> io::Result<()> {
    let (state, result) = match end {
        JobEnd::Completed { result } => ("completed", result.as_deref()),
        JobEnd::Dead { .. } => ("dead", None),
        JobEnd::Cancelled => ("cancelled", None),
        JobEnd::Expired => ("expired", None),
        JobEnd::Gone => ("gone", None),
    };
    if output.is_json() {
        let result = result.map(bytes_json);
        return output.json(&json!({ "job": at.to_string(), "state": state, "result": result }));
    }
    match (end, result) {
        (JobEnd::Completed { .. }, result) => print_result(result.unwrap_or_default(), output)?,
        (JobEnd::Gone, _) => {
            report_error!("job {at} is no longer retained: how it ended is unknown")
        }
        _ => report_error!("job {at} ended as {state} and is no longer retained"),
    }
    Ok(())
}

/// Prints a raw result, ended by a newline.
fn print_result(result: &[u8], output: &mut Output) -> io::Result<()> {
    output.raw(result)?;
    if !result.is_empty() && !result.ends_with(b"\n") {
        output.raw(b"\n")?;
    }
    Ok(())
}
