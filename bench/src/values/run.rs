//! One round of one side: a resolver, a publisher and a subscriber, each in a process of its own.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::figures::Figures;
use super::longshore;
#[cfg(feature = "netidx")]
use super::netidx;
use super::work::{Published, Received, Singles, Work, now_ns};
use crate::machine::{busy_s, cores};
use crate::part::{Part, say, wait_for_end, wait_for_go};
use crate::resolver::longshore as longshore_resolver;
#[cfg(feature = "netidx")]
use crate::resolver::netidx as netidx_resolver;
use crate::side::Side;

/// What a process is to do.
#[derive(Serialize, Deserialize)]
struct Task {
    side: Side,
    work: Work,
    role: Role,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Role {
    Resolver,
    Publisher { resolver: SocketAddr },
    Subscriber { resolver: SocketAddr },
}

/// Does all of the work once.
pub(super) fn round(side: Side, work: &Work) -> anyhow::Result<Figures> {
    let start = |name: &str, role| {
        let task = Task { side, work: work.clone(), role };
        Part::start(&format!("{side}'s {name}"), "values", &task)
    };
    let mut server = start("resolver", Role::Resolver)?;
    let resolver: SocketAddr = server.answer()?;
    let mut publisher = start("publisher", Role::Publisher { resolver })?;
    publisher.answer::<()>()?;
    let mut subscriber = start("subscriber", Role::Subscriber { resolver })?;
    subscriber.answer::<()>()?;

    let (sending, reading) = (publisher.cpu_s()?, subscriber.cpu_s()?);
    let busy_before = busy_s()?;
    subscriber.go()?;
    publisher.go()?;
    let published: Published = publisher.answer()?;
    let received: Received = subscriber.answer()?;
    let (sending, reading) = (publisher.cpu_s()? - sending, subscriber.cpu_s()? - reading);
    let others_s = (busy_s()? - busy_before - sending - reading).max(0.0);
    let seconds = received.ended_ns.saturating_sub(published.began_ns) as f64 / 1e9;

    subscriber.go()?;
    publisher.go()?;
    publisher.answer::<()>()?;
    let singles: Singles = subscriber.answer()?;
    let updates = work.updates as f64;
    Ok(Figures {
        updates_per_s: updates / seconds,
        publisher_cpu_ns: sending * 1e9 / updates,
        subscriber_cpu_ns: reading * 1e9 / updates,
        latency_p50_us: singles.p50_us,
        latency_p99_us: singles.p99_us,
        others_percent: 100.0 * others_s / (seconds * cores() as f64),
    })
}

/// What a process of a round does.
pub(crate) fn part(task: &str) -> anyhow::Result<()> {
    let Task { side, work, role } = serde_json::from_str(task)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    // netidx's publisher ends with a task.
    let _inside = runtime.enter();
    match (role, side) {
        #[cfg(not(feature = "netidx"))]
        (_, Side::Netidx) => anyhow::bail!("built without its feature netidx"),
        #[cfg(feature = "netidx")]
        (Role::Resolver, Side::Netidx) => {
            let (address, _server) = runtime.block_on(netidx_resolver::serve())?;
            say(&address)?;
            wait_for_end()
        }
        (Role::Resolver, Side::Longshore) => {
            say(&runtime.block_on(longshore_resolver::serve())?)?;
            wait_for_end()
        }
        #[cfg(feature = "netidx")]
        (Role::Publisher { resolver }, Side::Netidx) => {
            let mut publisher = runtime.block_on(netidx::Publisher::prepare(&work, resolver))?;
            all_published(&runtime, async || publisher.all().await)?;
            singles_published(&runtime, async || publisher.singles().await)
        }
        (Role::Publisher { resolver }, Side::Longshore) => {
            let mut publisher = runtime.block_on(longshore::Publisher::prepare(&work, resolver))?;
            all_published(&runtime, async || publisher.all().await)?;
            singles_published(&runtime, async || publisher.singles().await)
        }
        #[cfg(feature = "netidx")]
        (Role::Subscriber { resolver }, Side::Netidx) => {
            let mut subscriber = runtime.block_on(netidx::Subscriber::prepare(&work, resolver))?;
            all_received(&runtime, async || subscriber.all().await)?;
            singles_received(&runtime, async || subscriber.singles().await)
        }
        (Role::Subscriber { resolver }, Side::Longshore) => {
            let prepared = longshore::Subscriber::prepare(&work, resolver);
            let mut subscriber = runtime.block_on(prepared)?;
            all_received(&runtime, async || subscriber.all().await)?;
            singles_received(&runtime, async || subscriber.singles().await)
        }
    }
}

fn all_published(
    runtime: &Runtime,
    all: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    say(&())?;
    wait_for_go()?;
    let began_ns = now_ns();
    runtime.block_on(all())?;
    say(&Published { began_ns })
}

fn singles_published(
    runtime: &Runtime,
    singles: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    wait_for_go()?;
    runtime.block_on(singles())?;
    say(&())?;
    wait_for_end()
}

fn all_received(
    runtime: &Runtime,
    all: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    say(&())?;
    wait_for_go()?;
    runtime.block_on(all())?;
    say(&Received { ended_ns: now_ns() })
}

fn singles_received(
    runtime: &Runtime,
    singles: impl AsyncFnOnce() -> anyhow::Result<Vec<u64>>,
) -> anyhow::Result<()> {
    wait_for_go()?;
    say(&Singles::of(runtime.block_on(singles())?)?)?;
    wait_for_end()
}
