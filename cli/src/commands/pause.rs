//! `longshore pause` and `longshore resume`: queues that take and deliver nothing for a while, and clocks that are right after all.

use longshore::protocol::messages::work::PauseReport;
use longshore::{Gathered, Glob};
use serde_json::{Value, json};

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::{Pause, Resume};
use crate::failure::Reported;
use crate::output::grouped;

pub(crate) async fn pause(arguments: Pause, mut context: Context) -> anyhow::Result<()> {
    let report = context.queues().pause(arguments.pattern.clone()).await?;
    say("paused", &arguments.pattern, &report, &mut context)
}

pub(crate) async fn resume(arguments: Resume, mut context: Context) -> anyhow::Result<()> {
    let Some(pattern) = arguments.pattern else { return confirm_clock(context).await };
    let report = context.queues().resume(pattern.clone()).await?;
    say("resumed", &pattern, &report, &mut context)?;
    let unchanged = report.answers.iter().all(|answered| !answered.answer.changed);
    if unchanged && !context.output.is_json() {
        eprintln!(
            "note: '{pattern}' was not paused, and nothing has changed; longshore stat shows which patterns pause queues"
        );
    }
    Ok(())
}

fn say(
    what: &str,
    pattern: &Glob,
    gathered: &Gathered<PauseReport>,
    context: &mut Context,
) -> anyhow::Result<()> {
    if context.output.is_json() {
        let confirmed: Vec<Value> = gathered
            .answers
            .iter()
            .map(|answered| {
                let still: Vec<String> =
                    answered.answer.still_paused_by.iter().map(Glob::to_string).collect();
                json!({
                    "publisher": answered.publisher.id.to_string(), "name": answered.publisher.name,
                    "queues": answered.answer.queues, "changed": answered.answer.changed,
                    "still_paused_by": still,
                })
            })
            .collect();
        context.output.json_pretty(&json!({
            "pattern": pattern.as_str(), "confirmed": confirmed, "complete": gathered.complete,
            "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        for answered in &gathered.answers {
            let PauseReport { queues, still_paused_by, .. } = &answered.answer;
            let queues = match queues {
                1 => "1 queue".to_owned(),
                queues => format!("{} queues", grouped(*queues)),
            };
            if what == "paused" || answered.answer.changed {
                let name = &answered.publisher.name;
                context.output.line(format!("{what} '{pattern}': {queues} at {name}"))?;
            }
            for other in still_paused_by {
                eprintln!("note: some of them are paused by '{other}', too");
            }
        }
    }
    let missing = warn_of_missing(&gathered.missing, gathered.complete);
    if missing { Err(Reported.into()) } else { Ok(()) }
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
            context.output.line(format!("the clock of {} counts", answered.publisher.name))?;
        }
    }
    let missing = warn_of_missing(&gathered.missing, gathered.complete);
    if missing { Err(Reported.into()) } else { Ok(()) }
}
