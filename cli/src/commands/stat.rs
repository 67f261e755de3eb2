//! `longshore stat`: jobs per state for each queue.

use std::time::Duration;

use longshore::protocol::messages::work::{PublisherStatus, QueueStat};
use longshore::{Glob, PublisherAnswer, PublisherAnswers};
use serde_json::{Value, json};

use super::job_view::CELL_CHARS;
use super::known_publishers::note_if_none;
use super::publisher_status::{publisher_json, restrictions};
use super::queue::settings_json;
use super::workers::{self, NO_METRICS, WorkerCounter};
use super::{Context, missing_json, warn_of_missing};
use crate::arguments::Stat;
use crate::failure::{AlreadyReported, Failure, FailureKind};
use crate::output::{Table, grouped, shown};
use crate::time::show_duration;

pub(crate) async fn run(arguments: Stat, mut context: Context) -> anyhow::Result<()> {
    let pattern = arguments.pattern.unwrap_or_else(Glob::everything);
    let client = context.queues();
    let (stats, status, listed) =
        tokio::join!(client.stats(pattern.clone()), client.status(), workers::read_all(&context));
    let (stats, status) = (stats?, status?.answers);
    let queues = stats.merged();
    let listed = listed.unwrap_or_default();
    let counter = listed.counter();
    let rows: Vec<Row<'_>> =
        queues.iter().map(|queue| Row::of(queue, &stats, counter.as_ref())).collect();
    let paused = stopping_patterns(&pattern, &status, |status| &status.paused);
    let closed = stopping_patterns(&pattern, &status, |status| &status.closed);
    if queues.is_empty() {
        note_if_none(&context).await;
    }
    if context.output.is_json() {
        let queues: Vec<Value> = rows.iter().map(queue_json).collect();
        let paused: Vec<&str> = paused.iter().map(Glob::as_str).collect();
        let closed: Vec<&str> = closed.iter().map(Glob::as_str).collect();
        context.output.json_pretty(&json!({
            "complete": stats.is_whole(), "queues": queues, "paused": paused, "closed": closed,
            "missing": missing_json(&stats.missing), "without_metrics": listed.without_metrics,
            "publishers": status.iter().map(publisher_json).collect::<Vec<_>>(),
        }))?;
        return end(&pattern, &stats, queues.is_empty());
    }
    if !queues.is_empty() {
        context.output.table(&table(&rows))?;
    }
    // No queue's row shows a pattern that matches no existing queue.
    for pause in paused.iter().filter(|pause| queues.iter().all(|q| !q.paused_by.contains(pause))) {
        context.output.line(format!("paused: '{pause}', which no queue here matches yet"))?;
    }
    for by in closed.iter().filter(|by| queues.iter().all(|q| !q.closed_by.contains(by))) {
        context.output.line(format!("closed: '{by}', which no queue here matches yet"))?;
    }
    restrictions(&status, |_| None).iter().try_for_each(|line| context.output.line(line))?;
    for name in &listed.without_metrics {
        report!("publisher {name} {NO_METRICS}: there may be more workers");
    }
    warn_of_missing(&stats.missing, stats.complete, &stats.silent_replicas);
    end(&pattern, &stats, queues.is_empty())
}

/// An error if publishers are missing, or if there is no queue at a path.
fn end(pattern: &Glob, stats: &PublisherAnswers<Vec<QueueStat>>, none: bool) -> anyhow::Result<()> {
    match pattern.literal().filter(|_| none) {
        Some(path) if stats.is_whole() => {
            Err(Failure::new(FailureKind::NotFound, format!("there is no queue {path}")).into())
        }
        None if stats.missing.is_empty() => Ok(()),
        _ => Err(AlreadyReported.into()),
    }
}

/// The patterns that pause or close queues at any publisher; for a single path, those that match
/// it.
fn stopping_patterns(
    pattern: &Glob,
    status: &[PublisherAnswer<PublisherStatus>],
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

/// A queue and the number of its workers. A worker counts once, however many publishers it is
/// linked to.
struct Row<'a> {
    queue: &'a QueueStat,
    workers: u64,
}

impl Row<'_> {
    fn of<'a>(
        queue: &'a QueueStat,
        stats: &PublisherAnswers<Vec<QueueStat>>,
        counter: Option<&WorkerCounter>,
    ) -> Row<'a> {
        let each = stats.answers.iter().flat_map(|answered| &answered.answer);
        let at_one = each.filter(|stat| stat.path == queue.path).map(|stat| stat.subscriptions);
        // If the list of workers is incomplete, use the largest number at one publisher.
        let counted = counter.map(|counter| counter.taking_from(&queue.path));
        let workers = counted.or_else(|| at_one.max());
        Row { queue, workers: workers.unwrap_or_default() }
    }
}

/// A row per queue. Rare states have a column only if some queue has such jobs.
fn table(rows: &[Row<'_>]) -> Table {
    let any = |count: fn(&QueueStat) -> u64| rows.iter().any(|row| count(row.queue) > 0);
    let (prepared, expired) = (any(|q| q.counts.prepared), any(|q| q.counts.expired));
    let blocked = any(|q| q.counts.blocked);
    let paused = rows.iter().any(|row| !row.queue.paused_by.is_empty());
    let closed = rows.iter().any(|row| !row.queue.closed_by.is_empty());
    let limited = rows.iter().any(|row| row.queue.limited_by.is_some());
    let mut columns: Vec<Column> = vec![
        ("ready", |r| grouped(r.queue.counts.ready)),
        ("running", |r| grouped(r.queue.counts.running)),
        ("retrying", |r| grouped(r.queue.counts.retrying)),
        ("scheduled", |r| grouped(r.queue.counts.scheduled)),
        ("completed", |r| grouped(r.queue.counts.completed)),
        ("dead", |r| grouped(r.queue.counts.dead)),
        ("cancelled", |r| grouped(r.queue.counts.cancelled)),
    ];
    if expired {
        columns.push(("expired", |r| grouped(r.queue.counts.expired)));
    }
    if blocked {
        columns.push(("blocked", |r| grouped(r.queue.counts.blocked)));
    }
    if prepared {
        columns.insert(0, ("prepared", |r| grouped(r.queue.counts.prepared)));
    }
    columns.push(("oldest", |r| {
        let oldest = r.queue.oldest_ready_ms.map(|ms| show_duration(Duration::from_millis(ms)));
        oldest.unwrap_or_else(|| "-".to_owned())
    }));
    columns.push(("workers", |r| grouped(r.workers)));
    if paused {
        columns.push(("paused by", |r| patterns(&r.queue.paused_by)));
    }
    if closed {
        columns.push(("closed by", |r| patterns(&r.queue.closed_by)));
    }
    if limited {
        columns.push(("limited by", |r| {
            let limit =
                r.queue.limited_by.as_ref().map(|by| shown(by.limit.as_bytes(), CELL_CHARS));
            limit.unwrap_or_default()
        }));
    }
    let headings: Vec<&'static str> =
        std::iter::once("queue").chain(columns.iter().map(|(heading, _)| *heading)).collect();
    let mut table = Table::new(&headings);
    for row in rows {
        let cells = columns.iter().map(|(_, cell)| cell(row));
        table.row(std::iter::once(row.queue.path.to_string()).chain(cells));
    }
    table
}

fn patterns(patterns: &[Glob]) -> String {
    patterns.iter().map(Glob::to_string).collect::<Vec<_>>().join(" ")
}

/// A heading, and the function for a row's cell.
type Column = (&'static str, fn(&Row<'_>) -> String);

fn queue_json(&Row { queue, workers }: &Row<'_>) -> Value {
    let counts = queue.counts;
    json!({
        "path": queue.path.as_str(),
        "ready": counts.ready, "running": counts.running, "retrying": counts.retrying,
        "scheduled": counts.scheduled, "completed": counts.completed, "dead": counts.dead,
        "cancelled": counts.cancelled, "prepared": counts.prepared, "expired": counts.expired,
        "blocked": counts.blocked,
        "oldest_ready_ms": queue.oldest_ready_ms,
        "enqueued_ever": queue.enqueued, "completed_ever": queue.completed,
        "failed_ever": queue.failed, "redelivered_ever": queue.redelivered,
        "died_ever": queue.died, "stale_refused_ever": queue.stale_refused,
        "workers": workers, "subscriptions": queue.subscriptions, "credits": queue.credits,
        "paused_by": queue.paused_by.iter().map(Glob::to_string).collect::<Vec<_>>(),
        "closed_by": queue.closed_by.iter().map(Glob::to_string).collect::<Vec<_>>(),
        "settings": settings_json(&queue.settings),
        "limited_by": queue.limited_by.as_ref().map(|by| &by.limit),
    })
}
