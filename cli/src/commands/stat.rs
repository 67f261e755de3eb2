//! `longshore stat`: jobs per state of each queue.

use std::time::Duration;

use longshore::Glob;
use longshore::protocol::messages::work::QueueStat;
use serde_json::{Value, json};

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::Stat;
use crate::failure::Reported;
use crate::output::{Table, grouped};
use crate::time::show_length;

pub(crate) async fn run(arguments: Stat, mut context: Context) -> anyhow::Result<()> {
    let pattern = arguments.pattern.unwrap_or_else(Glob::everything);
    let stats = context.queues().stats(pattern.clone()).await?;
    let queues = stats.merged();
    if context.output.is_json() {
        let queues: Vec<Value> = queues.iter().map(queue_json).collect();
        context.output.json_pretty(&json!({
            "complete": stats.complete, "queues": queues, "missing": missing_json(&stats.missing),
        }))?;
        return if stats.missing.is_empty() { Ok(()) } else { Err(Reported.into()) };
    }
    let mut table = Table::new(&[
        "queue",
        "ready",
        "running",
        "retrying",
        "scheduled",
        "completed",
        "dead",
        "cancelled",
        "oldest",
        "workers",
    ]);
    for queue in &queues {
        let counts = queue.counts;
        let numbers = [
            counts.ready,
            counts.running,
            counts.retrying,
            counts.scheduled,
            counts.completed,
            counts.dead,
            counts.cancelled,
        ];
        let oldest = queue.oldest_ready_ms.map(|ms| show_length(Duration::from_millis(ms)));
        let row = std::iter::once(queue.path.to_string())
            .chain(numbers.map(grouped))
            .chain([oldest.unwrap_or_else(|| "-".to_owned()), grouped(queue.subscriptions)]);
        table.row(row);
    }
    if !table.is_empty() {
        context.output.table(&table)?;
    }
    let missing = warn_of_missing(&stats.missing, stats.complete);
    if let (Some(path), true) = (pattern.literal(), queues.is_empty()) {
        eprintln!("error: there is no queue {path}");
        return Err(Reported.into());
    }
    if missing { Err(Reported.into()) } else { Ok(()) }
}

fn queue_json(queue: &QueueStat) -> Value {
    let counts = queue.counts;
    json!({
        "path": queue.path.as_str(),
        "ready": counts.ready, "running": counts.running, "retrying": counts.retrying,
        "scheduled": counts.scheduled, "completed": counts.completed, "dead": counts.dead,
        "cancelled": counts.cancelled,
        "oldest_ready_ms": queue.oldest_ready_ms,
        "enqueued_ever": queue.enqueued, "completed_ever": queue.completed,
        "failed_ever": queue.failed, "redelivered_ever": queue.redelivered,
        "stale_refused_ever": queue.stale_refused,
        "subscriptions": queue.subscriptions, "credits": queue.credits,
    })
}
