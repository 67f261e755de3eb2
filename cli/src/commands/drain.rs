//! `longshore publisher drain`: a publisher takes no new jobs, so that it can be removed once it holds none.

use std::time::Duration;

use longshore::protocol::PublisherInfo;
use longshore::{DrainReport, Glob, Queues, QueuesOptions};
use serde_json::json;

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::Drain;
use crate::failure::Reported;
use crate::output::{counted, jobs};

/// How often `--wait` asks what is left. Each question is one small command in the publisher's log.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(asked: Drain, mut context: Context) -> anyhow::Result<()> {
    let (_, publishers) = context.queues().publishers(&Glob::everything()).await?;
    let publisher = find(&asked.name, &publishers)?.clone();
    if !asked.undo && publishers.len() == 1 {
        eprintln!(
            "note: no other publisher is registered: producers wait, and give up, until one is"
        );
    }
    let queues = Queues::to_publishers(vec![publisher.clone()], QueuesOptions::default());
    let mut is_first = true;
    loop {
        let gathered = queues.drain(!asked.undo).await?;
        let Some(report) = gathered.answers.first().map(|answered| answered.answer) else {
            if context.output.is_json() {
                let missing = missing_json(&gathered.missing);
                context.output.json(&json!({ "missing": missing }))?;
            }
            warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered);
            return Err(Reported.into());
        };
        let is_last = asked.undo || !asked.wait || report.open == 0;
        if is_first || is_last {
            show(&publisher, &asked, &report, &mut context)?;
        }
        if is_last {
            return Ok(());
        }
        is_first = false;
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The one registered publisher of that name, or with that id or beginning of it.
fn find<'a>(name: &str, publishers: &'a [PublisherInfo]) -> anyhow::Result<&'a PublisherInfo> {
    let is_named = |one: &&PublisherInfo| {
        one.name == name || one.id.prefix() == name || one.id.to_string() == name
    };
    let mut found = publishers.iter().filter(is_named);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            let ids: Vec<String> =
                publishers.iter().filter(is_named).map(|one| one.id.prefix()).collect();
            anyhow::bail!(
                "{} publishers are named {name}; name one by its id: {}",
                ids.len(),
                ids.join(", ")
            )
        }
        (None, _) => anyhow::bail!(
            "no publisher {name} is registered: longshore resolver status --publishers lists them"
        ),
    }
}

fn show(
    publisher: &PublisherInfo,
    asked: &Drain,
    report: &DrainReport,
    context: &mut Context,
) -> anyhow::Result<()> {
    let DrainReport { changed, open, prepared, dead, kept } = *report;
    if context.output.is_json() {
        context.output.json(&json!({
            "publisher": publisher.id.to_string(), "name": publisher.name,
            "draining": !asked.undo, "changed": changed,
            "open": open, "prepared": prepared, "dead": dead, "kept": kept,
        }))?;
        return Ok(());
    }
    let name = &publisher.name;
    if asked.undo {
        let again = if changed { "takes new jobs again" } else { "was not being drained" };
        context.output.line(format!("publisher {name} {again}"))?;
        return Ok(());
    }
    if open > 0 {
        context.output.line(format!(
            "publisher {name} takes no new jobs; {} {} not ended yet",
            jobs(open),
            if open == 1 { "has" } else { "have" }
        ))?;
        if prepared > 0 {
            let wait = if prepared == 1 { "waits" } else { "wait" };
            eprintln!(
                "note: {prepared} of them {wait} to be confirmed: longshore jobs '/**' --state prepared"
            );
        }
        return Ok(());
    }
    context.output.line(format!(
        "publisher {name} is empty: stop it, then: longshore publisher forget {name}"
    ))?;
    if dead + kept > 0 {
        eprintln!(
            "note: its data directory still keeps {} and {}",
            counted(dead, "dead letter"),
            counted(kept, "ended job")
        );
    }
    Ok(())
}
