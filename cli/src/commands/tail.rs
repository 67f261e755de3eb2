//! `longshore tail`: streams the transitions of jobs at every publisher.

use std::pin::pin;
use std::time::Duration;

use longshore::protocol::messages::work::{FeedEvent, FeedEvents};
use longshore::{FeedFrom, FeedItem, FeedUpdate, Glob, JobRef, PublisherInfo};
use serde_json::json;
use tokio::time::sleep;

use super::known_publishers::note_if_none;
use super::{Context, job_view};
use crate::arguments::Tail;
use crate::signals::StopSignal;
use crate::time::show_timestamp;

/// When it checks whether a replica knows any publisher.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(arguments: Tail, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let pattern = arguments.pattern.unwrap_or_else(Glob::everything);
    let from = if arguments.snapshot { FeedFrom::Snapshot } else { FeedFrom::Now };
    let mut feed = context.queues().feed(pattern, from);
    let mut left = arguments.count.unwrap_or(u64::MAX);
    let note = note_if_none(&context);
    let mut note = pin!(async {
        sleep(SILENCE).await;
        note.await;
    });
    let mut is_noted = false;
    while left > 0 {
        let item = tokio::select! {
            item = feed.next() => item,
            () = &mut note, if !is_noted => {
                is_noted = true;
                continue;
            }
            () = stop.requested() => return stop.ended(arguments.count.is_some()),
        };
        let Some(FeedItem { publisher, update }) = item else { break };
        match update {
            FeedUpdate::Changes(changes) => {
                for event in &changes.events {
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                    print(&publisher, &changes, event, &mut context)?;
                }
            }
            FeedUpdate::Jobs(jobs) => {
                for job in &jobs {
                    let at = JobRef { publisher: publisher.id, id: job.id };
                    if context.output.is_json() {
                        context.output.json(&json!({ "snapshot": job_view::json(&at, job) }))?;
                    } else {
                        let state = job_view::shown_state(job.state, job.retrying);
                        let since = show_timestamp(job.enqueued_at);
                        context.output.line(format!("{since}  {at}  {}  {state}", job.path))?;
                    }
                }
            }
            FeedUpdate::Lost(why) => {
                report!("publisher {}: {why}; continuing from now", publisher.name)
            }
            FeedUpdate::Away { why } => report!("publisher {} is away: {why}", publisher.name),
            FeedUpdate::Follows { .. } => report!("following publisher {}", publisher.name),
            FeedUpdate::SnapshotBegins | FeedUpdate::SnapshotEnds { .. } => {}
        }
    }
    Ok(())
}

fn print(
    publisher: &PublisherInfo,
    changes: &FeedEvents,
    event: &FeedEvent,
    context: &mut Context,
) -> anyhow::Result<()> {
    let at = JobRef { publisher: publisher.id, id: event.job };
    // A feed's message names the paths of all its events.
    let path = changes.paths.get(event.path as usize).map(ToString::to_string).unwrap_or_default();
    if context.output.is_json() {
        context.output.json(&json!({
            "at": show_timestamp(event.at), "job": at.to_string(), "path": path,
            "change": event.change.to_string(),
            "state": event.state.map(|state| state.to_string()),
            "retrying": event.retrying, "attempt": event.attempt, "index": event.index,
            "publisher": publisher.id.to_string(),
        }))?;
        return Ok(());
    }
    let state = match event.state {
        Some(state) => job_view::shown_state(state, event.retrying),
        None => "gone".to_owned(),
    };
    let attempt =
        if event.attempt > 0 { format!("  attempt {}", event.attempt) } else { String::new() };
    let line =
        format!("{}  {at}  {path}  {} -> {state}{attempt}", show_timestamp(event.at), event.change);
    context.output.line(line)?;
    Ok(())
}
