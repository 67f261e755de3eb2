//! `longshore queue`: defaults for a queue's jobs, and whether the queue accepts new ones.

use std::time::Duration;

use longshore::protocol::{Backoff, JobOptions, QueueSettings};
use longshore::{Glob, Path, PublisherAnswer, PublisherAnswers, QueueStat, Refusal};
use serde_json::{Map, Value, json};

use super::known_publishers::note_if_none;
use super::{Context, missing_json, require_confirmed, warn_of_missing};
use crate::arguments::{DryRun, Queue, QueueAction};
use crate::backoff::show_backoff;
use crate::failure::{AlreadyReported, UsageError};
use crate::output::{Table, grouped};
use crate::time::show_duration;

pub(crate) async fn run(arguments: Queue, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        QueueAction::Ls { pattern } => list(pattern, context).await,
        QueueAction::Show { path } => show(path, context).await,
        QueueAction::Set { path, settings, act } => {
            let changes = settings.changes().map_err(UsageError)?;
            configure(path, changes, false, act, context).await
        }
        QueueAction::Reset { path, act } => {
            configure(path, QueueSettings::default(), true, act, context).await
        }
        QueueAction::Close { pattern, act } => super::pause::close(pattern, act, context).await,
        QueueAction::Open { pattern, act } => super::pause::open(pattern, act, context).await,
    }
}

async fn list(pattern: Option<Glob>, mut context: Context) -> anyhow::Result<()> {
    let stats = context.queues().stats(pattern.unwrap_or_else(Glob::everything)).await?;
    let queues = stats.merged();
    if context.output.is_json() {
        let queues: Vec<Value> = queues.iter().map(queue_json).collect();
        context.output.json_pretty(&json!({
            "queues": queues, "complete": stats.complete, "missing": missing_json(&stats.missing),
        }))?;
    } else if !queues.is_empty() {
        let mut table = Table::new(&["queue", "waiting", "running", "takes", "defaults"]);
        for queue in &queues {
            table.row([
                queue.path.to_string(),
                grouped(waiting(queue)),
                grouped(queue.counts.running),
                takes(queue).to_owned(),
                summary(&queue.settings),
            ]);
        }
        context.output.table(&table)?;
    }
    if stats.answers.is_empty() {
        note_if_none(&context).await;
    }
    let missing = warn_of_missing(&stats.missing, stats.complete, &stats.silent_replicas);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// Jobs that have yet to run.
fn waiting(queue: &QueueStat) -> u64 {
    let counts = &queue.counts;
    counts.prepared + counts.scheduled + counts.retrying + counts.blocked + counts.ready
}

fn takes(queue: &QueueStat) -> &'static str {
    match (queue.paused_by.is_empty(), queue.closed_by.is_empty()) {
        (true, true) => "jobs",
        (false, true) => "jobs; paused",
        (true, false) => "no jobs; closed",
        (false, false) => "no jobs; closed and paused",
    }
}

fn queue_json(queue: &QueueStat) -> Value {
    let patterns = |globs: &[Glob]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "path": queue.path.as_str(), "waiting": waiting(queue), "running": queue.counts.running,
        "paused_by": patterns(&queue.paused_by), "closed_by": patterns(&queue.closed_by),
        "settings": settings_json(&queue.settings),
        "limited_by": queue.limited_by.as_ref().map(|by| &by.limit),
    })
}

async fn show(path: Path, mut context: Context) -> anyhow::Result<()> {
    let stats = context.queues().stats(Glob::new(path.as_str())?).await?;
    let Some(queue) = stats.merged().into_iter().next() else {
        warn_of_missing(&stats.missing, stats.complete, &stats.silent_replicas);
        if !stats.is_whole() {
            return Err(AlreadyReported.into());
        }
        note_if_none(&context).await;
        anyhow::bail!("there is no queue {path}");
    };
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "path": path.as_str(), "settings": settings_json(&queue.settings),
            "complete": stats.complete, "missing": missing_json(&stats.missing),
        }))?;
    } else {
        context.output.table(&table(&queue.settings))?;
    }
    for differing in stats.differing_settings() {
        report_warning!("the publishers of {differing} have different settings; set them again");
    }
    let missing = warn_of_missing(&stats.missing, stats.complete, &stats.silent_replicas);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

async fn configure(
    path: Path,
    changes: QueueSettings,
    reset: bool,
    DryRun { dry_run }: DryRun,
    mut context: Context,
) -> anyhow::Result<()> {
    let gathered = match dry_run {
        true => expected_settings(&path, &changes, reset, &context).await?,
        false => context.queues().configure(path.clone(), changes, reset).await?,
    };
    let refused = gathered.answers.iter().any(|answered| answered.answer.is_err());
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "path": path.as_str(), "dry_run": dry_run, "confirmed": confirmed_json(&gathered),
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        for answered in &gathered.answers {
            let name = &answered.publisher.name;
            match &answered.answer {
                Ok(settings) => {
                    let would = if dry_run { "would have " } else { "" };
                    let summary = summary(settings);
                    context.output.line(format!("{path}  {would}{summary} at {name}"))?;
                }
                Err(refusal) => report_error!("{name} refused: {refusal}"),
            }
        }
    }
    require_confirmed(&gathered, dry_run)?;
    if refused { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// What each publisher's settings would be. A publisher without the queue would create it, if one
/// of its defaults covers the path.
async fn expected_settings(
    path: &Path,
    changes: &QueueSettings,
    reset: bool,
    context: &Context,
) -> anyhow::Result<PublisherAnswers<Result<QueueSettings, Refusal>>> {
    let stats = context.queues().stats(Glob::new(path.as_str())?).await?;
    let expected = |answered: PublisherAnswer<Vec<QueueStat>>| {
        let current = answered.answer.into_iter().next().map(|queue| queue.settings);
        let mut settings = current.filter(|_| !reset).unwrap_or_default();
        settings.change(changes);
        PublisherAnswer { publisher: answered.publisher, answer: Ok(settings) }
    };
    Ok(PublisherAnswers {
        complete: stats.complete,
        answers: stats.answers.into_iter().map(expected).collect(),
        missing: stats.missing,
        silent_replicas: stats.silent_replicas,
    })
}

fn confirmed_json(gathered: &PublisherAnswers<Result<QueueSettings, Refusal>>) -> Vec<Value> {
    let one = gathered.answers.iter().map(|answered| {
        let (settings, refused) = match &answered.answer {
            Ok(settings) => (Some(settings_json(settings)), None),
            Err(refusal) => (None, Some(refusal.to_string())),
        };
        json!({
            "publisher": answered.publisher.id.to_string(), "name": answered.publisher.name,
            "settings": settings, "refused": refused,
        })
    });
    one.collect()
}

/// Settings by their names on the command line; unset ones are left out.
pub(crate) fn settings_json(settings: &QueueSettings) -> Value {
    let mut value = Map::new();
    let mut put = |key: &str, field: Option<Value>| {
        if let Some(field) = field {
            value.insert(key.to_owned(), field);
        }
    };
    put("max_attempts", settings.max_attempts.map(Value::from));
    put("lease_ms", settings.lease_ms.map(Value::from));
    put("run_timeout_ms", settings.run_timeout_ms.map(Value::from));
    put("backoff", settings.backoff.as_ref().map(|backoff| show_backoff(backoff).into()));
    put("keep_ms", settings.keep_ms.map(Value::from));
    put("keep_jobs", settings.keep_jobs.map(Value::from));
    put("keep_dead_ms", settings.keep_dead_ms.map(Value::from));
    put("dead_blocks_order", settings.dead_blocks_order.map(Value::from));
    Value::Object(value)
}

/// Each setting: its name, its value, and whether the queue sets it.
fn rows(settings: &QueueSettings) -> [(&'static str, String, bool); 8] {
    let duration = |ms: u64| show_duration(Duration::from_millis(ms));
    let run = |ms: u64| if ms == 0 { "no limit".to_owned() } else { duration(ms) };
    let QueueSettings {
        max_attempts,
        lease_ms,
        run_timeout_ms,
        backoff,
        keep_ms,
        keep_jobs,
        keep_dead_ms,
        dead_blocks_order,
    } = settings;
    let lease = u64::from(lease_ms.unwrap_or(JobOptions::LEASE_MS));
    let policy = backoff.clone().unwrap_or_else(Backoff::default);
    [
        (
            "max-attempts",
            max_attempts.unwrap_or(JobOptions::MAX_ATTEMPTS).to_string(),
            max_attempts.is_some(),
        ),
        ("lease", duration(lease), lease_ms.is_some()),
        (
            "run-timeout",
            run(run_timeout_ms.unwrap_or(JobOptions::RUN_TIMEOUT_MS)),
            run_timeout_ms.is_some(),
        ),
        ("backoff", show_backoff(&policy), backoff.is_some()),
        ("keep", duration(keep_ms.unwrap_or(JobOptions::KEEP_MS)), keep_ms.is_some()),
        ("keep-jobs", grouped(keep_jobs.unwrap_or(QueueSettings::KEEP_JOBS)), keep_jobs.is_some()),
        (
            "keep-dead",
            duration(keep_dead_ms.unwrap_or(QueueSettings::KEEP_DEAD_MS)),
            keep_dead_ms.is_some(),
        ),
        (
            "dead-blocks-order",
            dead_blocks_order.unwrap_or(false).to_string(),
            dead_blocks_order.is_some(),
        ),
    ]
}

fn table(settings: &QueueSettings) -> Table {
    let mut table = Table::new(&["setting", "value", "set by"]);
    for (name, value, is_set) in rows(settings) {
        let by = if is_set { "the queue" } else { "default" };
        table.row([name.to_owned(), value, by.to_owned()]);
    }
    table
}

/// The queue's settings on one line.
fn summary(settings: &QueueSettings) -> String {
    let set: Vec<String> = rows(settings)
        .into_iter()
        .filter(|(.., is_set)| *is_set)
        .map(|(name, value, _)| format!("{name} {value}"))
        .collect();
    if set.is_empty() { "nothing is set".to_owned() } else { set.join(", ") }
}
