//! `longshore publisher status`: every publisher, and whether it takes jobs.

use std::time::Duration;

use longshore::protocol::messages::work::{PublisherStatus, Room};
use longshore::{Durability, PublisherAnswer};
use serde_json::{Value, json};

use super::{Context, missing_json, warn_of_missing};
use crate::failure::AlreadyReported;
use crate::output::{Table, grouped};
use crate::time::show_duration;

pub(crate) async fn run(mut context: Context) -> anyhow::Result<()> {
    let status = context.queues().status().await?;
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "publishers": status.answers.iter().map(publisher_json).collect::<Vec<_>>(),
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
            "takes",
        ]);
        status.answers.iter().for_each(|answered| table.row(row(answered)));
        context.output.table(&table)?;
    } else if status.is_whole() {
        context.output.line("no publisher is registered; longshore publisher run starts one")?;
    }
    let missing = warn_of_missing(&status.missing, status.complete, &status.unanswered);
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
        takes(answer).to_owned(),
    ]
}

/// What it accepts, in a few words.
fn takes(status: &PublisherStatus) -> &'static str {
    match status.room {
        Room::NoDeliveries => "results only: its disk is full",
        Room::NoEnqueues => "no new jobs: its disk is short of room",
        Room::Open if status.draining => "no new jobs: it is drained",
        Room::Open => "all",
    }
}

/// A publisher's status by the names of its own metrics.
pub(super) fn publisher_json(
    PublisherAnswer { publisher, answer }: &PublisherAnswer<PublisherStatus>,
) -> Value {
    let addresses: Vec<String> = publisher.addresses.iter().map(ToString::to_string).collect();
    json!({
        "publisher": publisher.id.to_string(), "name": publisher.name, "epoch": publisher.epoch.0,
        "addresses": addresses, "uptime_ms": answer.uptime_ms, "links": answer.links,
        "queues": answer.queues, "jobs": answer.jobs, "room": room_word(answer.room),
        "durability": match answer.durability {
            Durability::Fsync => "fsync",
            Durability::None => "none",
        },
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
