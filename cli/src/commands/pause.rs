//! `longshore pause` and `resume`, `longshore queue close` and `open`: stop and restart deliveries
//! or new jobs of queues. `resume --clock` confirms a wall clock that has jumped.

use longshore::protocol::messages::work::{PauseReport, PublisherStatus};
use longshore::{Glob, PublisherAnswer, PublisherAnswers, QueueStat};
use serde_json::{Value, json};

use super::known_publishers::note_if_none;
use super::{Context, missing_json, require_confirmed};
use crate::arguments::{DryRun, Pause, Resume};
use crate::failure::AlreadyReported;
use crate::output::{grouped, shell_word};

/// The words that report an operation, and what it changes.
struct Wording {
    /// The operation's past participle.
    done: &'static str,
    /// The state that other patterns may still impose.
    still: &'static str,
    /// The command that ends it.
    command: &'static str,
    /// It stops something, so it is reported even if it changes nothing.
    stops: bool,
    /// The patterns of that state at a publisher.
    active: fn(&PublisherStatus) -> &[Glob],
    /// Those that match a queue.
    by: fn(&QueueStat) -> &[Glob],
}

const PAUSED: Wording = Wording {
    done: "paused",
    still: "paused",
    command: "resume",
    stops: true,
    active: |status| &status.paused,
    by: |queue| &queue.paused_by,
};
const RESUMED: Wording = Wording { done: "resumed", stops: false, ..PAUSED };
const CLOSED: Wording = Wording {
    done: "closed",
    still: "closed",
    command: "queue open",
    stops: true,
    active: |status| &status.closed,
    by: |queue| &queue.closed_by,
};
const OPENED: Wording = Wording { done: "opened", stops: false, ..CLOSED };

pub(crate) async fn pause(arguments: Pause, mut context: Context) -> anyhow::Result<()> {
    let Pause { pattern, act: DryRun { dry_run } } = arguments;
    let report = match dry_run {
        true => expected(&PAUSED, &pattern, &context).await?,
        false => context.queues().pause(pattern.clone()).await?,
    };
    show(&PAUSED, &pattern, &report, dry_run, &mut context).await
}

pub(crate) async fn close(
    pattern: Glob,
    DryRun { dry_run }: DryRun,
    mut context: Context,
) -> anyhow::Result<()> {
    let report = match dry_run {
        true => expected(&CLOSED, &pattern, &context).await?,
        false => context.queues().close(pattern.clone()).await?,
    };
    show(&CLOSED, &pattern, &report, dry_run, &mut context).await
}

pub(crate) async fn open(
    pattern: Glob,
    DryRun { dry_run }: DryRun,
    mut context: Context,
) -> anyhow::Result<()> {
    let report = match dry_run {
        true => expected(&OPENED, &pattern, &context).await?,
        false => context.queues().open(pattern.clone()).await?,
    };
    show(&OPENED, &pattern, &report, dry_run, &mut context).await
}

pub(crate) async fn resume(arguments: Resume, mut context: Context) -> anyhow::Result<()> {
    let DryRun { dry_run } = arguments.act;
    let Some(pattern) = arguments.pattern else { return confirm_clock(dry_run, context).await };
    let report = match dry_run {
        true => expected(&RESUMED, &pattern, &context).await?,
        false => context.queues().resume(pattern.clone()).await?,
    };
    show(&RESUMED, &pattern, &report, dry_run, &mut context).await
}

/// What each publisher would report, from its queues and its patterns.
async fn expected(
    wording: &Wording,
    pattern: &Glob,
    context: &Context,
) -> anyhow::Result<PublisherAnswers<PauseReport>> {
    let client = context.queues();
    let (status, stats) = tokio::join!(client.status(), client.stats(pattern.clone()));
    let (status, stats) = (status?, stats?);
    let answers = stats.answers.into_iter().filter_map(|answered| {
        let id = answered.publisher.id;
        let status = status.answers.iter().find(|one| one.publisher.id == id)?;
        let active = (wording.active)(&status.answer);
        let answer = report_of(wording, pattern, active, &answered.answer);
        Some(PublisherAnswer { publisher: answered.publisher, answer })
    });
    Ok(PublisherAnswers {
        complete: stats.complete,
        answers: answers.collect(),
        missing: stats.missing,
        silent_replicas: stats.silent_replicas,
    })
}

/// A publisher's report, from its active patterns and the queues that match `pattern`.
fn report_of(
    wording: &Wording,
    pattern: &Glob,
    active: &[Glob],
    queues: &[QueueStat],
) -> PauseReport {
    let by = queues.iter().flat_map(|queue| (wording.by)(queue)).filter(|other| *other != pattern);
    let mut still_by: Vec<Glob> = if wording.stops { Vec::new() } else { by.cloned().collect() };
    still_by.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    still_by.dedup();
    PauseReport {
        queues: queues.len() as u64,
        changed: active.contains(pattern) != wording.stops,
        still_by,
    }
}

async fn show(
    wording: &Wording,
    pattern: &Glob,
    gathered: &PublisherAnswers<PauseReport>,
    dry_run: bool,
    context: &mut Context,
) -> anyhow::Result<()> {
    if context.output.is_json() {
        let confirmed: Vec<Value> = gathered
            .answers
            .iter()
            .map(|answered| {
                let still: Vec<String> =
                    answered.answer.still_by.iter().map(Glob::to_string).collect();
                let mut confirmed = json!({
                    "publisher": answered.publisher.id.to_string(), "name": answered.publisher.name,
                    "queues": answered.answer.queues, "changed": answered.answer.changed,
                });
                confirmed[format!("still_{}_by", wording.still)] = still.into();
                confirmed
            })
            .collect();
        context.output.json_pretty(&json!({
            "pattern": pattern.as_str(), "dry_run": dry_run, "confirmed": confirmed,
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        let (would, stay) = if dry_run { ("would be ", "would stay") } else { ("", "stay") };
        for answered in &gathered.answers {
            let PauseReport { queues, still_by, .. } = &answered.answer;
            let queues = match queues {
                1 => "1 queue".to_owned(),
                queues => format!("{} queues", grouped(*queues)),
            };
            if wording.stops || answered.answer.changed {
                let name = &answered.publisher.name;
                let done = wording.done;
                context.output.line(format!("{would}{done} '{pattern}': {queues} at {name}"))?;
            }
            for other in still_by {
                let remedy =
                    format!("longshore {} {}", wording.command, shell_word(other.as_str()));
                let still = wording.still;
                if wording.stops {
                    report_note!("some of them are {still} by '{other}', too");
                } else if covers(other, pattern) {
                    let stays = if dry_run { "would stay" } else { "stays" };
                    report_error!("'{pattern}' {stays} {still} by '{other}': {remedy}");
                } else {
                    report_note!("some of them {stay} {still} by '{other}': {remedy}");
                }
            }
        }
        if !wording.stops && gathered.answers.iter().all(|answered| !answered.answer.changed) {
            report_note!(
                "'{pattern}' was not {0}, and nothing has changed; longshore stat shows \
                 by which patterns queues are {0}",
                wording.still
            );
        }
    }
    if gathered.answers.is_empty() {
        note_if_none(context).await;
    }
    require_confirmed(gathered, dry_run)?;
    let mut still = gathered.answers.iter().flat_map(|answered| &answered.answer.still_by);
    let is_in_vain = !wording.stops && still.any(|other| covers(other, pattern));
    if is_in_vain { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// Whether all queues of `pattern` are among those of `other`, or most: a pattern's own text counts
/// as a queue.
fn covers(other: &Glob, pattern: &Glob) -> bool {
    other.matches_str(pattern.as_str())
}

/// Confirms the clock of every publisher; with `dry_run`, shows those that wait for it.
async fn confirm_clock(dry_run: bool, context: Context) -> anyhow::Result<()> {
    let queues = context.queues();
    if dry_run {
        let mut status = queues.status().await?;
        status.answers.retain(|answered| answered.answer.clock_held);
        return show_clocks(&status, dry_run, context);
    }
    show_clocks(&queues.confirm_clock().await?, dry_run, context)
}

/// Prints the publishers whose clock is confirmed, or would be.
fn show_clocks<T>(
    gathered: &PublisherAnswers<T>,
    dry_run: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let publishers = gathered.answers.iter().map(|answered| &answered.publisher);
    if context.output.is_json() {
        let confirmed = publishers.map(
            |publisher| json!({ "publisher": publisher.id.to_string(), "name": publisher.name }),
        );
        context.output.json_pretty(&json!({
            "dry_run": dry_run, "confirmed": confirmed.collect::<Vec<_>>(),
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else if dry_run && gathered.answers.is_empty() {
        context.output.line("no publisher waits for the confirmation of its clock")?;
    } else {
        let is = if dry_run { "would be" } else { "is" };
        for publisher in publishers {
            context.output.line(format!("the clock of {} {is} confirmed", publisher.name))?;
        }
    }
    require_confirmed(gathered, dry_run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_reports_what_a_pattern_would_change() {
        let glob = |text: &str| Glob::new(text).unwrap();
        let queue = QueueStat {
            paused_by: vec![glob("/jobs/*"), glob("/jobs/a")],
            closed_by: vec![glob("/jobs/**")],
            ..QueueStat::empty(longshore::Path::new("/jobs/a").unwrap())
        };
        let active = [glob("/jobs/*"), glob("/jobs/a")];
        let report = |wording: &Wording, pattern: &str| {
            report_of(wording, &glob(pattern), &active, std::slice::from_ref(&queue))
        };
        let resumed = report(&RESUMED, "/jobs/a");
        assert_eq!((resumed.queues, resumed.changed), (1, true));
        assert_eq!(resumed.still_by, [glob("/jobs/*")]);
        assert_eq!(report(&OPENED, "/jobs/a").still_by, [glob("/jobs/**")]);
        assert!(!report(&RESUMED, "/**").changed);
        assert!(!report(&PAUSED, "/jobs/a").changed);
        assert!(report(&PAUSED, "/**").changed && report(&PAUSED, "/**").still_by.is_empty());
    }
}
