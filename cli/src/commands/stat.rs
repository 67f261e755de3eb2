//! `longshore stat`: jobs per state of each queue.

use std::time::Duration;

use longshore::protocol::messages::work::{PublisherStatus, QueueStat};
use longshore::{Answered, Glob};
use serde_json::{Value, json};

use super::check::short_of;
use super::queue::settings_json;
use super::{Context, missing_json, warn_of_missing};
use crate::arguments::Stat;
use crate::failure::Reported;
use crate::output::{Table, grouped};
use crate::time::show_length;

pub(crate) async fn run(arguments: Stat, mut context: Context) -> anyhow::Result<()> {
    let pattern = arguments.pattern.unwrap_or_else(Glob::everything);
    let stats = context.queues().stats(pattern.clone()).await?;
    let queues = stats.merged();
    let status = context.queues().status().await?.answers;
    let paused = stopped(&pattern, &status, |status| &status.paused);
    let closed = stopped(&pattern, &status, |status| &status.closed);
    if context.output.is_json() {
        let queues: Vec<Value> = queues.iter().map(queue_json).collect();
        let paused: Vec<&str> = paused.iter().map(Glob::as_str).collect();
        let closed: Vec<&str> = closed.iter().map(Glob::as_str).collect();
        context.output.json_pretty(&json!({
            "complete": stats.is_whole(), "queues": queues, "paused": paused, "closed": closed,
            "missing": missing_json(&stats.missing),
            "publishers": status.iter().map(publisher_json).collect::<Vec<_>>(),
        }))?;
        return if stats.missing.is_empty() { Ok(()) } else { Err(Reported.into()) };
    }
    if !queues.is_empty() {
        context.output.table(&table(&queues))?;
    }
    // A pause of queues that are not there yet would be seen nowhere else.
    for pause in paused.iter().filter(|pause| queues.iter().all(|q| !q.paused_by.contains(pause))) {
        context.output.line(format!("paused: '{pause}', which no queue here matches yet"))?;
    }
    for by in closed.iter().filter(|by| queues.iter().all(|q| !q.closed_by.contains(by))) {
        context.output.line(format!("closed: '{by}', which no queue here matches yet"))?;
    }
    for Answered { publisher, answer } in &status {
        if let Some(short) = short_of(answer.room) {
            context.output.line(format!("publisher {}: {short}", publisher.name))?;
        }
    }
    let missing = warn_of_missing(&stats.missing, stats.complete);
    if let (Some(path), true) = (pattern.literal(), queues.is_empty()) {
        if stats.is_whole() {
            eprintln!("error: there is no queue {path}");
        }
        return Err(Reported.into());
    }
    if missing { Err(Reported.into()) } else { Ok(()) }
}

/// The patterns that stop something anywhere; of a path, those that match it.
fn stopped(
    pattern: &Glob,
    status: &[Answered<PublisherStatus>],
    of: fn(&PublisherStatus) -> &[Glob],
) -> Vec<Glob> {
    let answers = status.iter().flat_map(|answered| of(&answered.answer).iter().cloned());
    let path = pattern.literal();
    let mut patterns: Vec<Glob> =
        answers.filter(|by| path.as_ref().is_none_or(|path| by.matches(path))).collect();
    patterns.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    patterns.dedup();
    patterns
}

fn publisher_json(Answered { publisher, answer }: &Answered<PublisherStatus>) -> Value {
    json!({
        "name": publisher.name, "room": format!("{:?}", answer.room),
        "journal_bytes": answer.journal_bytes, "reserve_bytes": answer.reserve_bytes,
        "oldest_uncommitted_ms": answer.oldest_uncommitted_ms,
    })
}

/// A row for each queue. States that few have stand there only if some queue has such jobs.
fn table(queues: &[QueueStat]) -> Table {
    let any = |count: fn(&QueueStat) -> u64| queues.iter().any(|queue| count(queue) > 0);
    let (prepared, expired) = (any(|q| q.counts.prepared), any(|q| q.counts.expired));
    let paused = queues.iter().any(|queue| !queue.paused_by.is_empty());
    let closed = queues.iter().any(|queue| !queue.closed_by.is_empty());
    let mut columns: Vec<Column> = vec![
        ("ready", |q| grouped(q.counts.ready)),
        ("running", |q| grouped(q.counts.running)),
        ("retrying", |q| grouped(q.counts.retrying)),
        ("scheduled", |q| grouped(q.counts.scheduled)),
        ("completed", |q| grouped(q.counts.completed)),
        ("dead", |q| grouped(q.counts.dead)),
        ("cancelled", |q| grouped(q.counts.cancelled)),
    ];
    if expired {
        columns.push(("expired", |q| grouped(q.counts.expired)));
    }
    if prepared {
        columns.insert(0, ("prepared", |q| grouped(q.counts.prepared)));
    }
    columns.push(("oldest", |q| {
        let oldest = q.oldest_ready_ms.map(|ms| show_length(Duration::from_millis(ms)));
        oldest.unwrap_or_else(|| "-".to_owned())
    }));
    columns.push(("workers", |q| grouped(q.subscriptions)));
    if paused {
        columns.push(("paused by", |q| listed(&q.paused_by)));
    }
    if closed {
        columns.push(("closed by", |q| listed(&q.closed_by)));
    }
    let headings: Vec<&'static str> =
        std::iter::once("queue").chain(columns.iter().map(|(heading, _)| *heading)).collect();
    let mut table = Table::new(&headings);
    for queue in queues {
        let cells = columns.iter().map(|(_, cell)| cell(queue));
        table.row(std::iter::once(queue.path.to_string()).chain(cells));
    }
    table
}

fn listed(patterns: &[Glob]) -> String {
    patterns.iter().map(Glob::to_string).collect::<Vec<_>>().join(" ")
}

/// A heading, and what stands under it for a queue.
type Column = (&'static str, fn(&QueueStat) -> String);

fn queue_json(queue: &QueueStat) -> Value {
    let counts = queue.counts;
    json!({
        "path": queue.path.as_str(),
        "ready": counts.ready, "running": counts.running, "retrying": counts.retrying,
        "scheduled": counts.scheduled, "completed": counts.completed, "dead": counts.dead,
        "cancelled": counts.cancelled, "prepared": counts.prepared, "expired": counts.expired,
        "oldest_ready_ms": queue.oldest_ready_ms,
        "enqueued_ever": queue.enqueued, "completed_ever": queue.completed,
        "failed_ever": queue.failed, "redelivered_ever": queue.redelivered,
        "died_ever": queue.died, "stale_refused_ever": queue.stale_refused,
        "subscriptions": queue.subscriptions, "credits": queue.credits,
        "paused_by": queue.paused_by.iter().map(Glob::to_string).collect::<Vec<_>>(),
        "closed_by": queue.closed_by.iter().map(Glob::to_string).collect::<Vec<_>>(),
        "settings": settings_json(&queue.settings),
    })
}
