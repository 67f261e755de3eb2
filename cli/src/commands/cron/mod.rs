//! `longshore cron ls`, `add`, `rm`, `pause`, `resume`, `run` and `next`: schedules.

mod declared;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use longshore::{
    JobRef, NewSchedule, PublisherAnswer, PublisherAnswers, Schedule, ScheduleInfo,
    ScheduleOutcome, Timing,
};
use serde_json::{Value, json};

use super::known_publishers::note_if_none;
use super::{Context, missing_json, require_confirmed, require_whole, warn_of_missing};
use crate::arguments::{AddSchedule, Cron, CronAction, DryRun, OfSchedule};
use crate::failure::{AlreadyReported, UsageError};
use crate::output::{Table, grouped, shell_word};
use crate::time::{show_duration, show_timestamp};

/// Occurrences that a preview shows.
const PREVIEW: u32 = 10;

pub(super) async fn run(arguments: Cron, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        CronAction::Ls => list(context).await,
        CronAction::Add(arguments) => add(*arguments, context).await,
        CronAction::Rm(of) => change(of, Change::Remove, context).await,
        CronAction::Pause(of) => change(of, Change::Pause, context).await,
        CronAction::Resume(of) => change(of, Change::Resume, context).await,
        CronAction::Run(of) => run_now(of, context).await,
        CronAction::Next { name, count } => next(&name, count, context).await,
    }
}

async fn list(mut context: Context) -> anyhow::Result<()> {
    let gathered = context.queues().schedules().await?;
    let all = gathered.answers.iter().flat_map(|answered| {
        let publisher = &answered.publisher.name;
        answered.answer.iter().map(move |known| (known, publisher.as_str()))
    });
    if context.output.is_json() {
        let schedules: Vec<Value> = all
            .map(|(known, publisher)| {
                let mut value = schedule_json(known);
                value["publisher"] = publisher.into();
                value
            })
            .collect();
        context.output.json_pretty(&json!({
            "schedules": schedules, "complete": gathered.complete,
            "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        let columns = ["name", "queue", "when", "next", "last", "jobs", "none", "publisher"];
        let mut table = Table::new(&columns);
        let mut is_empty = true;
        for (known, publisher) in all {
            is_empty = false;
            let or_dash = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), show_timestamp);
            let next = match known.paused {
                true => "paused".to_owned(),
                false => or_dash(known.next.map(|next| next.fires_at)),
            };
            table.row([
                known.schedule.name.clone(),
                known.schedule.path.to_string(),
                show_timing(&known.schedule.timing),
                next,
                or_dash(known.last_at),
                grouped(known.made),
                grouped(known.missed + known.overlapped + known.refused),
                publisher.to_owned(),
            ]);
        }
        if !is_empty {
            context.output.table(&table)?;
        }
    }
    report_missing(&gathered)
}

async fn add(arguments: AddSchedule, mut context: Context) -> anyhow::Result<()> {
    let DryRun { dry_run } = arguments.act;
    let schedules = match &arguments.file {
        Some(file) => declared::of_file(file, arguments.prune.is_some()),
        None => declared::of_arguments(&arguments).map(|one| (arguments.version, vec![one])),
    };
    let (version, schedules) = schedules.map_err(UsageError)?;
    let client = context.queues();
    let mut set = Vec::new();
    for schedule in &schedules {
        // First: an invalid one changes nothing.
        let next = client.preview_schedule(schedule, PREVIEW).await;
        let next = next.map_err(|why| anyhow::anyhow!("{}: {why}", schedule.name()))?;
        set.push((schedule, next));
    }
    let before = client.schedules().await?;
    if arguments.prune.is_some() {
        // First, too: what is there cannot be compared.
        require_whole(&before)?;
    }
    let known_of = |name: &str| {
        let all = before.answers.iter().flat_map(|answered| {
            answered.answer.iter().map(|known| (known, &answered.publisher.name))
        });
        all.into_iter().find(|(known, _)| known.schedule.name == name)
    };
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let mut is_older = false;
    // What was done before it is printed first.
    let mut failed = None;
    for (schedule, next) in set {
        let known = known_of(schedule.name());
        let paused = known.is_some_and(|(known, _)| known.paused);
        let (outcome, publisher) = match dry_run {
            true => {
                (expected(schedule, known.map(|(known, _)| known)), known.map(|(_, at)| at.clone()))
            }
            false => match client.put_schedule(schedule).await {
                Ok(answered) => (answered.answer, Some(answered.publisher.name)),
                Err(why) => {
                    failed = Some(anyhow::anyhow!("{}: {why}", schedule.name()));
                    break;
                }
            },
        };
        let name = schedule.name();
        let at = publisher.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
        let first = match next.first() {
            _ if paused => format!("it is paused: longshore cron resume {}", shell_word(name)),
            Some(&at) => format!("next at {}", show_timestamp(at)),
            None => "it has no more occurrences".to_owned(),
        };
        let done = done(&outcome, dry_run);
        lines.push(match &outcome {
            ScheduleOutcome::Older(version) => {
                format!("{name}  {done}: version {version} is there{at}")
            }
            ScheduleOutcome::Unchanged if !paused => format!("{name}  {done}{at}"),
            _ => format!("{name}  {done}{at}; {first}"),
        });
        is_older |= matches!(outcome, ScheduleOutcome::Older(_));
        rows.push(json!({
            "name": name, "path": schedule.path().map(ToString::to_string),
            "outcome": outcome_name(&outcome), "publisher": publisher, "paused": paused,
            "next": next.into_iter().map(show_timestamp).collect::<Vec<_>>(),
        }));
    }
    let names: BTreeSet<&str> = schedules.iter().map(NewSchedule::name).collect();
    let mut removed = Vec::new();
    if let Some(prefix) = arguments.prune.as_ref().filter(|_| failed.is_none()) {
        let known = before.answers.iter().flat_map(|answered| &answered.answer);
        let of_prefix = known.filter(|known| known.schedule.name.starts_with(prefix.as_str()));
        let is_newer =
            |known: &ScheduleInfo| version.is_some_and(|own| known.schedule.version > Some(own));
        is_older |= of_prefix.clone().any(is_newer);
        let old: BTreeSet<&str> = of_prefix
            .map(|known| known.schedule.name.as_str())
            .filter(|name| !is_older && !names.contains(name))
            .collect();
        if is_older {
            lines.push(format!("nothing with {prefix} was pruned: a newer deploy was here"));
        }
        for name in old {
            if !dry_run {
                let removed = client.remove_schedule(name).await;
                failed = match removed {
                    Ok(removed) => require_confirmed(&removed, false).err(),
                    Err(why) => Some(anyhow::anyhow!("{name}: {why}")),
                };
                if failed.is_some() {
                    break;
                }
            }
            lines.push(format!("{name}  {}removed", if dry_run { "would be " } else { "" }));
            removed.push(name.to_owned());
        }
    }
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "dry_run": dry_run, "schedules": rows, "removed": removed,
        }))?;
    } else {
        for line in lines {
            context.output.line(line)?;
        }
    }
    failed.map_or(Ok(()), Err)
}

/// What putting a schedule would do: a change is not compared with what is there.
fn expected(schedule: &NewSchedule, known: Option<&ScheduleInfo>) -> ScheduleOutcome {
    let before = known.and_then(|known| known.schedule.version);
    match (known, before, schedule.declared_version()) {
        (None, ..) => ScheduleOutcome::Added,
        (_, Some(before), Some(version)) if version < before => ScheduleOutcome::Older(before),
        _ => ScheduleOutcome::Changed,
    }
}

/// A change of a schedule by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Remove,
    Pause,
    Resume,
}

async fn change(of: OfSchedule, change: Change, mut context: Context) -> anyhow::Result<()> {
    let OfSchedule { name, act: DryRun { dry_run } } = of;
    let client = context.queues();
    let gathered = match (dry_run, change) {
        (true, _) => would_change(&name, change, &context).await?,
        (false, Change::Remove) => client.remove_schedule(&name).await?,
        (false, _) => client.pause_schedule(&name, change == Change::Pause).await?,
    };
    let mut known = Vec::new();
    let mut refused = Vec::new();
    for answered in &gathered.answers {
        match &answered.answer {
            ScheduleOutcome::Unknown => {}
            ScheduleOutcome::Invalid(why) => refused.push((&answered.publisher.name, why)),
            _ => known.push(answered),
        }
    }
    if context.output.is_json() {
        let confirmed: Vec<Value> = known
            .iter()
            .map(|answered| {
                json!({
                    "publisher": answered.publisher.id.to_string(),
                    "name": answered.publisher.name,
                    "changed": answered.answer == ScheduleOutcome::Changed,
                })
            })
            .collect();
        context.output.json_pretty(&json!({
            "name": name, "dry_run": dry_run, "confirmed": confirmed,
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        let would = if dry_run { "would be " } else { "" };
        let done = match change {
            Change::Remove => "removed",
            Change::Pause => "paused",
            Change::Resume => "resumed",
        };
        for answered in &known {
            let publisher = &answered.publisher.name;
            context.output.line(match (&answered.answer, change) {
                (ScheduleOutcome::Unchanged, Change::Resume) => {
                    format!("{name}  is not paused at {publisher}")
                }
                (ScheduleOutcome::Unchanged, _) => {
                    format!("{name}  is {done} already at {publisher}")
                }
                _ => format!("{name}  {would}{done} at {publisher}"),
            })?;
        }
    }
    if let Some((publisher, why)) = refused.first() {
        bail!("{name} stays paused at {publisher}: {why}");
    }
    if known.is_empty() {
        require_whole(&gathered)?;
        note_if_none(&context).await;
        bail!(unknown(&name));
    }
    require_confirmed(&gathered, dry_run)
}

async fn would_change(
    name: &str,
    change: Change,
    context: &Context,
) -> anyhow::Result<PublisherAnswers<ScheduleOutcome>> {
    let PublisherAnswers { complete, answers, missing, silent_replicas } =
        context.queues().schedule(name).await?;
    let answers = answers.into_iter().map(|PublisherAnswer { publisher, answer }| {
        let changes = match change {
            Change::Remove => true,
            Change::Pause => !answer.paused,
            Change::Resume => answer.paused,
        };
        let answer = if changes { ScheduleOutcome::Changed } else { ScheduleOutcome::Unchanged };
        PublisherAnswer { publisher, answer }
    });
    Ok(PublisherAnswers { complete, answers: answers.collect(), missing, silent_replicas })
}

async fn run_now(of: OfSchedule, mut context: Context) -> anyhow::Result<()> {
    let OfSchedule { name, act: DryRun { dry_run } } = of;
    let known = one(&name, &context).await?;
    let job: Option<JobRef> = match dry_run {
        true => None,
        false => Some(context.queues().run_schedule(&known).await?),
    };
    let path = &known.answer.schedule.path;
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "name": name, "path": path.as_str(), "publisher": known.publisher.name,
            "dry_run": dry_run, "job": job.map(|job| job.to_string()),
        }))?;
    } else {
        context.output.line(match job {
            Some(job) => job.to_string(),
            None => format!("would enqueue a job in {path} at {}", known.publisher.name),
        })?;
    }
    Ok(())
}

async fn next(name: &str, count: u32, mut context: Context) -> anyhow::Result<()> {
    let known = one(name, &context).await?;
    let next = match known.answer.next {
        Some(_) => context.queues().next_occurrences(&known, count).await?,
        None => Vec::new(),
    };
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "name": name, "path": known.answer.schedule.path.as_str(),
            "publisher": known.publisher.name, "paused": known.answer.paused,
            "next": next.into_iter().map(show_timestamp).collect::<Vec<_>>(),
        }))?;
        return Ok(());
    }
    for at in &next {
        context.output.line(show_timestamp(*at))?;
    }
    if known.answer.paused {
        report_note!("'{name}' is paused: longshore cron resume {name}");
    } else if next.is_empty() {
        report_note!("'{name}' has ended");
    }
    Ok(())
}

/// The schedule of that name, and its publisher.
async fn one(name: &str, context: &Context) -> anyhow::Result<PublisherAnswer<ScheduleInfo>> {
    let mut gathered = context.queues().schedule(name).await?;
    if gathered.answers.len() > 1 {
        let publishers: Vec<&str> =
            gathered.answers.iter().map(|known| known.publisher.name.as_str()).collect();
        bail!("several publishers have a schedule '{name}': {}", publishers.join(", "));
    }
    match gathered.answers.pop() {
        Some(known) => Ok(known),
        None => {
            require_whole(&gathered)?;
            bail!(unknown(name))
        }
    }
}

fn unknown(name: &str) -> String {
    format!("there is no schedule '{name}': longshore cron ls lists them")
}

fn report_missing<T>(gathered: &PublisherAnswers<T>) -> anyhow::Result<()> {
    let missing = warn_of_missing(&gathered.missing, gathered.complete, &gathered.silent_replicas);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

fn done(outcome: &ScheduleOutcome, dry_run: bool) -> &'static str {
    match (outcome, dry_run) {
        (ScheduleOutcome::Added, false) => "added",
        (ScheduleOutcome::Added, true) => "would be added",
        (ScheduleOutcome::Unchanged, _) => "is so already",
        (ScheduleOutcome::Older(_), false) => "stays",
        (ScheduleOutcome::Older(_), true) => "would stay",
        (_, false) => "changed",
        (_, true) => "would be changed",
    }
}

fn outcome_name(outcome: &ScheduleOutcome) -> &'static str {
    match outcome {
        ScheduleOutcome::Added => "added",
        ScheduleOutcome::Unchanged => "unchanged",
        ScheduleOutcome::Older(_) => "older",
        _ => "changed",
    }
}

fn show_timing(timing: &Timing) -> String {
    match timing {
        Timing::Cron { expression, zone } => format!("{expression} {zone}"),
        Timing::Every { ms } => format!("every {}", show_duration(Duration::from_millis(*ms))),
    }
}

/// A schedule as JSON, without what became of it.
pub(super) fn declared_json(schedule: &Schedule) -> Value {
    let Schedule { name, path, timing, starts_at, ends_at, jitter_ms, missed, overlap, version } =
        schedule;
    let (cron, zone, every_ms) = match timing {
        Timing::Cron { expression, zone } => (Some(expression), Some(zone), None),
        Timing::Every { ms } => (None, None, Some(ms)),
    };
    json!({
        "name": name, "path": path.as_str(), "cron": cron, "zone": zone, "every_ms": every_ms,
        "starts_at": starts_at.map(show_timestamp), "ends_at": ends_at.map(show_timestamp),
        "jitter_ms": jitter_ms, "missed": missed.to_string(), "overlap": overlap.to_string(),
        "version": version,
    })
}

fn schedule_json(known: &ScheduleInfo) -> Value {
    let mut value = declared_json(&known.schedule);
    value["paused"] = known.paused.into();
    value["created_at"] = show_timestamp(known.created_at).into();
    value["next_at"] = json!(known.next.map(|next| show_timestamp(next.due_at)));
    value["fires_at"] = json!(known.next.map(|next| show_timestamp(next.fires_at)));
    value["last_at"] = json!(known.last_at.map(show_timestamp));
    value["last_job"] = json!(known.last_job.map(|job| job.to_string()));
    value["jobs"] = known.made.into();
    value["missed_ever"] = known.missed.into();
    value["overlapped_ever"] = known.overlapped.into();
    value["refused_ever"] = known.refused.into();
    value["last_refusal"] = json!(known.last_refusal.map(|refusal| refusal.to_string()));
    value["payload_bytes"] = known.payload_len.into();
    value
}
