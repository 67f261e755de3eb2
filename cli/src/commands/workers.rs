//! `longshore workers`: who is linked to publishers, what they take and what they hold.

use std::time::Duration;

use longshore::{Glob, Subscriber};
use serde_json::{Value as Json, json};

use super::sys::{bases, below, name_of, number, read, text};
use super::{Context, quiet, warn_if_incomplete};
use crate::arguments::{Workers, WorkersAction};
use crate::failure::Reported;
use crate::output::{Table, grouped};
use crate::time::{show_length, wall_ms};

pub(crate) async fn run(arguments: Workers, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        WorkersAction::Ls { pattern } => ls(pattern, context).await,
        WorkersAction::Quiet(which) => quiet::run(which, true, context).await,
        WorkersAction::Resume(which) => quiet::run(which, false, context).await,
    }
}

async fn ls(pattern: Option<Glob>, mut context: Context) -> anyhow::Result<()> {
    let (bases, complete) = bases(&context.read_client(), "publishers").await?;
    let subscriber = Subscriber::connect(context.cluster()).await?;
    let paths = bases.iter().filter_map(|base| below(base, "workers")).collect();
    let mut workers: Vec<Json> = Vec::new();
    let (mut missing, mut more) = (Vec::new(), 0);
    for (path, figure) in read(&subscriber, paths).await {
        let publisher = name_of(&path).to_owned();
        match figure {
            Ok(figure) => {
                more += number(&figure, "more");
                let listed = figure["workers"].as_array().into_iter().flatten().cloned();
                workers.extend(listed.filter(|worker| takes(worker, pattern.as_ref())).map(
                    |mut worker| {
                        worker["publisher"] = Json::from(publisher.as_str());
                        worker
                    },
                ));
            }
            Err(why) => missing.push((publisher, why)),
        }
    }
    if context.output.is_json() {
        let missing: Vec<Json> =
            missing.iter().map(|(name, why)| json!({ "name": name, "error": why })).collect();
        context.output.json_pretty(&json!({
            "complete": complete, "workers": workers, "more": more, "missing": missing,
        }))?;
    } else {
        context.output.table(&table(&workers))?;
        if more > 0 {
            eprintln!("and {} more, which the publishers do not list", grouped(more));
        }
        for (name, why) in &missing {
            eprintln!("error: publisher {name} did not tell its workers: {why}");
        }
        warn_if_incomplete(complete);
    }
    if missing.is_empty() { Ok(()) } else { Err(Reported.into()) }
}

/// A row for each worker at each publisher.
pub(super) fn table(workers: &[Json]) -> Table {
    let mut table =
        Table::new(&["worker", "session", "publisher", "takes", "ready", "holds", "for", "quiet"]);
    let now = wall_ms();
    for worker in workers {
        let patterns = worker["patterns"].as_array().into_iter().flatten();
        let patterns: Vec<&str> = patterns.filter_map(Json::as_str).collect();
        let since = worker["since_ms"].as_u64().map_or_else(
            || "-".to_owned(),
            |since| show_length(Duration::from_secs(now.saturating_sub(since) / 1_000)),
        );
        table.row([
            text(worker, "name").to_owned(),
            text(worker, "session").to_owned(),
            text(worker, "publisher").to_owned(),
            if patterns.is_empty() { "-".to_owned() } else { patterns.join(" ") },
            grouped(number(worker, "credits")),
            grouped(number(worker, "held")),
            since,
            if worker["quiet"] == true { "quiet" } else { "-" }.to_owned(),
        ]);
    }
    table
}

/// Whether a worker takes from that queue, or by a pattern that the other one matches.
fn takes(worker: &Json, pattern: Option<&Glob>) -> bool {
    let Some(pattern) = pattern else { return true };
    let queue = pattern.literal();
    let patterns = worker["patterns"].as_array().into_iter().flatten();
    patterns.filter_map(Json::as_str).any(|taken| match &queue {
        Some(queue) => Glob::new(taken).is_ok_and(|taken| taken.matches(queue)),
        None => pattern.matches_str(taken),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_chosen_by_a_queue_or_by_a_pattern_over_theirs() {
        let worker = json!({ "patterns": ["/jobs/mail/**", "/other"] });
        for (pattern, takes_it) in [
            ("/jobs/mail/welcome", true),
            ("/other", true),
            ("/jobs/sha", false),
            ("/jobs/**", true),
            ("/**", true),
            ("/els*/**", false),
        ] {
            assert_eq!(takes(&worker, Some(&Glob::new(pattern).unwrap())), takes_it, "{pattern}");
        }
        assert!(takes(&worker, None));
    }
}
