//! `longshore publisher status`: every publisher, and whether it takes jobs.

use std::time::Duration;

use longshore::protocol::messages::work::{PublisherStatus, Room};
use longshore::{PublisherAnswer, PublisherId, PublisherInfo};
use serde_json::{Value, json};

use super::check::shortage;
use super::known_publishers::note_if_none;
use super::remaining_jobs::{RemainingJobs, removal};
use super::{Context, missing_json, warn_of_missing};
use crate::failure::AlreadyReported;
use crate::output::{Table, grouped};
use crate::time::show_duration;

pub(crate) async fn run(mut context: Context) -> anyhow::Result<()> {
    let queues = context.queues();
    let status = queues.status().await?;
    // Only drained publishers are asked for their jobs by state.
    let drained = status.answers.iter().filter(|answered| answered.answer.draining);
    let drained: Vec<PublisherInfo> = drained.map(|answered| answered.publisher.clone()).collect();
    let remaining = match drained.is_empty() {
        true => None,
        false => RemainingJobs::read(&context.queues_of(drained)).await.ok(),
    };
    let left = |id: PublisherId| remaining.as_ref()?.get(&id).copied();
    if status.answers.is_empty() {
        note_if_none(&context).await;
    }
    if context.output.is_json() {
        let publishers = status.answers.iter().map(|answered| {
            let mut value = publisher_json(answered);
            if let Some(left) = left(answered.publisher.id) {
                value["left"] = left.json();
            }
            value
        });
        context.output.json_pretty(&json!({
            "publishers": publishers.collect::<Vec<_>>(),
            "complete": status.complete, "missing": missing_json(&status.missing),
        }))?;
    } else if !status.answers.is_empty() {
        let mut table = Table::new(&[
            "publisher",
            "id",
            "address",
            "up",
            "links",
            "queues",
            "jobs",
            "journal MiB",
            "memory MiB",
            "new jobs",
        ]);
        status.answers.iter().for_each(|answered| table.row(row(answered)));
        context.output.table(&table)?;
        restrictions(&status.answers, left)
            .iter()
            .try_for_each(|line| context.output.line(line))?;
    } else if status.is_whole() {
        context.output.line("no publisher is registered")?;
    }
    let missing = warn_of_missing(&status.missing, status.complete, &status.silent_replicas);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

fn row(PublisherAnswer { publisher, answer }: &PublisherAnswer<PublisherStatus>) -> [String; 10] {
    let mib = |bytes: u64| grouped(bytes.div_ceil(1024 * 1024));
    [
        publisher.name.clone(),
        publisher.id.prefix().to_string(),
        publisher.addresses.first().map(ToString::to_string).unwrap_or_default(),
        show_duration(Duration::from_secs(answer.uptime_ms / 1_000)),
        grouped(answer.links),
        grouped(answer.queues),
        grouped(answer.jobs),
        mib(answer.journal_bytes),
        mib(answer.memory_bytes),
        if answer.draining || shortage(answer).is_some() { "no" } else { "yes" }.to_owned(),
    ]
}

/// Why publishers do not take new jobs, or deliver none: a line for each reason. `left` returns the
/// jobs of a drained publisher, if they are known.
pub(super) fn restrictions(
    answers: &[PublisherAnswer<PublisherStatus>],
    left: impl Fn(PublisherId) -> Option<RemainingJobs>,
) -> Vec<String> {
    let of = |PublisherAnswer { publisher, answer }: &PublisherAnswer<PublisherStatus>| {
        let drained = match (answer.draining, left(publisher.id)) {
            (false, _) => Vec::new(),
            (true, Some(jobs)) => before_removal(&jobs, &publisher.name),
            (true, None) => vec![
                "it is drained, and accepts no new jobs: longshore publisher status shows what is \
                 left"
                    .to_owned(),
            ],
        };
        let reasons = shortage(answer).into_iter().chain(drained);
        reasons.map(|why| format!("publisher {}: {why}", publisher.name)).collect::<Vec<_>>()
    };
    answers.iter().flat_map(of).collect()
}

/// What a drained publisher still has, and how to remove it.
fn before_removal(jobs: &RemainingJobs, name: &str) -> Vec<String> {
    let next = removal(name);
    match (jobs.open(), jobs.idle_schedules()) {
        (0, None) => vec![format!("it is drained, and has no job left to run: {next}")],
        (0, Some(schedules)) => vec![format!(
            "it is drained, and has no job left to run, but {schedules}; after that, {next}"
        )],
        (_, schedules) => {
            let jobs = format!(
                "it is drained, and accepts no new jobs; {}. Once the jobs have ended, {next}",
                jobs.left()
            );
            let schedules = schedules.map(|schedules| format!("it has {schedules}"));
            std::iter::once(jobs).chain(schedules).collect()
        }
    }
}

/// A publisher's status by the names of its own metrics.
pub(super) fn publisher_json(
    PublisherAnswer { publisher, answer }: &PublisherAnswer<PublisherStatus>,
) -> Value {
    let addresses: Vec<String> = publisher.addresses.iter().map(ToString::to_string).collect();
    json!({
        "publisher": publisher.id.to_string(), "name": publisher.name, "epoch": publisher.epoch.0,
        "journal": answer.journal.to_string(),
        "addresses": addresses, "uptime_ms": answer.uptime_ms, "links": answer.links,
        "queues": answer.queues, "jobs": answer.jobs, "room": room_word(answer.room),
        "durability": answer.durability.to_string(),
        "draining": answer.draining, "clock_held": answer.clock_held,
        "journal_bytes": answer.journal_bytes, "ballast_bytes": answer.ballast_bytes,
        "memory_bytes": answer.memory_bytes, "memory_max": answer.memory_max,
        "oldest_uncommitted_ms": answer.oldest_uncommitted_ms,
    })
}

/// The keyword in the publisher's own metrics.
fn room_word(room: Room) -> &'static str {
    match room {
        Room::Open => "open",
        Room::NoEnqueues => "no_enqueues",
        Room::NoDeliveries => "no_deliveries",
    }
}
