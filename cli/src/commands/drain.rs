//! `longshore publisher drain`: a publisher accepts no new jobs, so that it can be removed once it
//! has none.

use std::time::Duration;

use longshore::protocol::{PublisherId, PublisherInfo};
use longshore::{Glob, Queues};
use serde_json::json;

use super::forget::is_named;
use super::remaining_jobs::{RemainingJobs, removal};
use super::{Context, missing_json, warn_if_incomplete, warn_of_missing};
use crate::arguments::Drain;
use crate::failure::AlreadyReported;
use crate::output::{counted, jobs, shell_word};

/// How often `--wait` reads the remaining jobs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(arguments: Drain, mut context: Context) -> anyhow::Result<()> {
    let (complete, publishers) = context.queues().publishers(&Glob::everything()).await?;
    let PublisherInfo { id, name, .. } = find(&arguments.publisher, &publishers, complete)?.clone();
    if arguments.act.dry_run {
        return show_plan(arguments.undo, &name, id, &mut context).await;
    }
    if !arguments.undo && publishers.len() == 1 {
        if complete {
            report_note!(
                "no other publisher is registered: producers wait, and give up, until one is"
            );
        } else {
            warn_if_incomplete(false);
        }
    }
    let gathered = queues_of(publishers, id, &context).drain(!arguments.undo).await?;
    if gathered.answers.is_empty() {
        if context.output.is_json() {
            context.output.json(&json!({ "missing": missing_json(&gathered.missing) }))?;
        }
        warn_of_missing(&gathered.missing, gathered.complete, &gathered.silent_replicas);
        return Err(AlreadyReported.into());
    }
    if arguments.undo {
        match context.output.is_json() {
            true => context
                .output
                .json(&json!({ "publisher": id.to_string(), "name": name, "draining": false }))?,
            false => context.output.line(format!("publisher {name} accepts new jobs"))?,
        }
        return Ok(());
    }
    let (mut is_first, mut was_silent) = (true, false);
    loop {
        match read_remaining(&context, id).await {
            Some(remaining) if !remaining.draining => {
                anyhow::bail!(
                    "publisher {name} accepts new jobs again: its drain was undone meanwhile"
                )
            }
            Some(remaining) => {
                let is_last = !arguments.wait || remaining.jobs.open() == 0;
                if is_first || is_last {
                    remaining.show(&name, id, &mut context)?;
                }
                if is_last {
                    return Ok(());
                }
                (is_first, was_silent) = (false, false);
            }
            None if !arguments.wait => {
                anyhow::bail!("publisher {name} is being drained, but did not report its jobs")
            }
            None => {
                if !std::mem::replace(&mut was_silent, true) {
                    report!("publisher {name} does not answer; waiting for it");
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Prints what the command would do.
async fn show_plan(
    undo: bool,
    name: &str,
    id: PublisherId,
    context: &mut Context,
) -> anyhow::Result<()> {
    let Some(remaining) = read_remaining(context, id).await else {
        anyhow::bail!("publisher {name} did not report its jobs");
    };
    if context.output.is_json() {
        context.output.json(&json!({
            "publisher": id.to_string(), "name": name, "dry_run": true,
            "draining": remaining.draining, "open": remaining.jobs.open(),
            "schedules": remaining.jobs.schedules(),
        }))?;
        return Ok(());
    }
    let text = match (undo, remaining.draining) {
        (true, true) => format!("publisher {name} would accept new jobs"),
        (true, false) => format!("publisher {name} accepts new jobs already"),
        (false, true) => format!("publisher {name} is being drained already"),
        (false, false) => format!(
            "publisher {name} would accept no new jobs; {} would have to end",
            jobs(remaining.jobs.open())
        ),
    };
    context.output.line(text)?;
    let schedules = remaining.jobs.schedules();
    if !undo && schedules > 0 {
        report_note!("its {} would not fire while it drains", counted(schedules, "schedule"));
    }
    Ok(())
}

fn queues_of(publishers: Vec<PublisherInfo>, id: PublisherId, context: &Context) -> Queues {
    context.queues_of(publishers.into_iter().filter(|one| one.id == id))
}

/// The jobs and schedules that a publisher still has.
struct Remaining {
    draining: bool,
    jobs: RemainingJobs,
}

/// Reads the remaining jobs; none while the publisher does not answer. It may restart at another
/// address.
async fn read_remaining(context: &Context, id: PublisherId) -> Option<Remaining> {
    let (_, publishers) = context.queues().publishers(&Glob::everything()).await.ok()?;
    let queues = queues_of(publishers, id, context);
    let status = queues.status().await.ok()?.answers.pop()?.answer;
    let jobs = RemainingJobs::read(&queues).await.ok()?.remove(&id)?;
    Some(Remaining { draining: status.draining, jobs })
}

/// Finds the one registered publisher with this name, among those that the resolver knows.
fn find<'a>(
    name: &str,
    publishers: &'a [PublisherInfo],
    complete: bool,
) -> anyhow::Result<&'a PublisherInfo> {
    let found: Vec<_> = publishers.iter().filter(|one| is_named(one, name)).collect();
    match found[..] {
        [one] => Ok(one),
        [_, ..] => {
            let ids: Vec<String> = found.iter().map(|one| one.id.prefix()).collect();
            anyhow::bail!(
                "{} publishers are named {name}; name one by its id: {}",
                ids.len(),
                ids.join(", ")
            )
        }
        [] if !complete => anyhow::bail!(
            "no publisher {name} is known yet: the resolver is still warming up; try again"
        ),
        [] => anyhow::bail!(
            "no publisher {name} is registered: longshore resolver status --publishers lists them"
        ),
    }
}

impl Remaining {
    fn show(&self, name: &str, id: PublisherId, context: &mut Context) -> anyhow::Result<()> {
        let jobs = &self.jobs;
        if context.output.is_json() {
            context.output.json(&json!({
                "publisher": id.to_string(), "name": name, "draining": true,
                "open": jobs.open(), "jobs": jobs.json(),
            }))?;
            return Ok(());
        }
        let next = removal(name);
        if jobs.open() == 0 {
            context.output.line(match jobs.idle_schedules() {
                None => format!("publisher {name} is empty: {next}"),
                Some(schedules) => {
                    format!("publisher {name} has no open job, but {schedules}; after that, {next}")
                }
            })?;
            let ended = jobs.ended();
            if !ended.is_empty() {
                let remedy = if jobs.dead() > 0 { ": longshore dead ls" } else { "" };
                report_note!("its data directory still has {ended}{remedy}");
            }
            return Ok(());
        }
        context.output.line(format!("publisher {name} accepts no new jobs; {}", jobs.left()))?;
        if jobs.prepared() > 0 {
            let prepared = jobs.prepared();
            let wait = if prepared == 1 { "waits" } else { "wait" };
            report_note!(
                "{prepared} of them {wait} for confirmation: \
                 longshore jobs '/**' --state prepared"
            );
        }
        if let Some(schedules) = jobs.idle_schedules() {
            report_note!("it has {schedules}");
        }
        report_note!(
            "once the jobs have ended (longshore publisher drain {} --wait waits for that), {next}",
            shell_word(name)
        );
        Ok(())
    }
}
