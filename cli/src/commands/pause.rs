//! `longshore pause` and `resume`, `longshore queue close` and `open`: stop and restart deliveries
//! or new jobs of queues. `resume --clock` confirms a wall clock that has jumped.

use longshore::protocol::messages::work::PauseReport;
use longshore::{Glob, PublisherAnswers};
use serde_json::{Value, json};

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::{Pause, Resume};
use crate::failure::AlreadyReported;
use crate::output::grouped;

/// The words that report an operation.
struct Wording {
    /// The operation's past participle.
    done: &'static str,
    /// The state that other patterns may still impose.
    still: &'static str,
    /// It stops something, so it is reported even if it changes nothing.
    stops: bool,
}

const PAUSED: Wording = Wording { done: "paused", still: "paused", stops: true };
const RESUMED: Wording = Wording { done: "resumed", still: "paused", stops: false };
const CLOSED: Wording = Wording { done: "closed", still: "closed", stops: true };
const OPENED: Wording = Wording { done: "opened", still: "closed", stops: false };

pub(crate) async fn pause(arguments: Pause, mut context: Context) -> anyhow::Result<()> {
    let report = context.queues().pause(arguments.pattern.clone()).await?;
    show(&PAUSED, &arguments.pattern, &report, &mut context)
}

pub(crate) async fn close(pattern: Glob, mut context: Context) -> anyhow::Result<()> {
    let report = context.queues().close(pattern.clone()).await?;
    show(&CLOSED, &pattern, &report, &mut context)
}

pub(crate) async fn open(pattern: Glob, mut context: Context) -> anyhow::Result<()> {
    let report = context.queues().open(pattern.clone()).await?;
    show(&OPENED, &pattern, &report, &mut context)
}

pub(crate) async fn resume(arguments: Resume, mut context: Context) -> anyhow::Result<()> {
    let Some(pattern) = arguments.pattern else { return confirm_clock(context).await };
    let report = context.queues().resume(pattern.clone()).await?;
    show(&RESUMED, &pattern, &report, &mut context)
}

fn show(
    wording: &Wording,
    pattern: &Glob,
    gathered: &PublisherAnswers<PauseReport>,
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
            "pattern": pattern.as_str(), "confirmed": confirmed, "complete": gathered.complete,
            "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        for answered in &gathered.answers {
            let PauseReport { queues, still_by, .. } = &answered.answer;
            let queues = match queues {
                1 => "1 queue".to_owned(),
                queues => format!("{} queues", grouped(*queues)),
            };
            if wording.stops || answered.answer.changed {
                let name = &answered.publisher.name;
                context.output.line(format!("{} '{pattern}': {queues} at {name}", wording.done))?;
            }
            for other in still_by {
                eprintln!("note: some of them are {} by '{other}', too", wording.still);
            }
        }
        if !wording.stops && gathered.answers.iter().all(|answered| !answered.answer.changed) {
            eprintln!(
                "note: '{pattern}' was not {0}, and nothing has changed; longshore stat shows \
                 by which patterns queues are {0}",
                wording.still
            );
        }
    }
    let missing = warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

async fn confirm_clock(mut context: Context) -> anyhow::Result<()> {
    let gathered = context.queues().confirm_clock().await?;
    if context.output.is_json() {
        let confirmed: Vec<&str> =
            gathered.answers.iter().map(|answered| answered.publisher.name.as_str()).collect();
        context.output.json_pretty(&json!({
            "confirmed": confirmed, "complete": gathered.complete,
            "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        for answered in &gathered.answers {
            context
                .output
                .line(format!("the clock of {} is confirmed", answered.publisher.name))?;
        }
    }
    let missing = warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}
