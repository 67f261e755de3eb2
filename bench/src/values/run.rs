//! One round of one system: a resolver, a publisher and a subscriber, each in its own process.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::longshore;
#[cfg(feature = "netidx")]
use super::netidx;
use super::stats::Stats;
use super::work::{Latencies, Published, Received, Work, now_ns};
use crate::child_process::{ChildProcess, report, wait_for_end, wait_for_start};
use crate::machine::{busy_s, cores};
use crate::resolver::longshore as longshore_resolver;
#[cfg(feature = "netidx")]
use crate::resolver::netidx as netidx_resolver;
use crate::system::System;

/// The task of a child process.
#[derive(Serialize, Deserialize)]
struct Task {
    system: System,
    work: Work,
    role: Role,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Role {
    Resolver,
    Publisher { resolver: SocketAddr },
    Subscriber { resolver: SocketAddr },
}

/// Does all the work once.
pub(super) fn round(system: System, work: &Work) -> anyhow::Result<Stats> {
    let start = |name: &str, role| {
        let task = Task { system, work: work.clone(), role };
        ChildProcess::start(&format!("{system}'s {name}"), "values", &task)
    };
    let mut server = start("resolver", Role::Resolver)?;
    let resolver: SocketAddr = server.wait_for_report()?;
    let mut publisher = start("publisher", Role::Publisher { resolver })?;
    publisher.wait_for_report::<()>()?;
    let mut subscriber = start("subscriber", Role::Subscriber { resolver })?;
    subscriber.wait_for_report::<()>()?;

    let (publisher_before, subscriber_before) = (publisher.cpu_s()?, subscriber.cpu_s()?);
    let busy_before = busy_s()?;
    subscriber.start_work()?;
    publisher.start_work()?;
    let published: Published = publisher.wait_for_report()?;
    let received: Received = subscriber.wait_for_report()?;
    let publisher_cpu_s = publisher.cpu_s()? - publisher_before;
    let subscriber_cpu_s = subscriber.cpu_s()? - subscriber_before;
    let others_s = (busy_s()? - busy_before - publisher_cpu_s - subscriber_cpu_s).max(0.0);
    let seconds = received.finished_ns.saturating_sub(published.started_ns) as f64 / 1e9;

    subscriber.start_work()?;
    publisher.start_work()?;
    publisher.wait_for_report::<()>()?;
    let latencies: Latencies = subscriber.wait_for_report()?;
    let updates = work.updates as f64;
    Ok(Stats {
        updates_per_s: updates / seconds,
        publisher_cpu_ns: publisher_cpu_s * 1e9 / updates,
        subscriber_cpu_ns: subscriber_cpu_s * 1e9 / updates,
        latency_p50_us: latencies.p50_us,
        latency_p99_us: latencies.p99_us,
        others_percent: 100.0 * others_s / (seconds * cores() as f64),
    })
}

/// Runs a child process of a round.
pub(crate) fn run_child(task: &str) -> anyhow::Result<()> {
    let Task { system, work, role } = serde_json::from_str(task)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    // Dropping netidx's publisher spawns a task, which needs a runtime.
    let _guard = runtime.enter();
    match (role, system) {
        #[cfg(not(feature = "netidx"))]
        (_, System::Netidx) => anyhow::bail!("built without its feature netidx"),
        #[cfg(feature = "netidx")]
        (Role::Resolver, System::Netidx) => {
            let (address, _server) = runtime.block_on(netidx_resolver::serve())?;
            report(&address)?;
            wait_for_end()
        }
        (Role::Resolver, System::Longshore) => {
            report(&runtime.block_on(longshore_resolver::serve())?)?;
            wait_for_end()
        }
        #[cfg(feature = "netidx")]
        (Role::Publisher { resolver }, System::Netidx) => {
            let mut publisher = runtime.block_on(netidx::Publisher::prepare(&work, resolver))?;
            measure_publish_all(&runtime, async || publisher.publish_all().await)?;
            measure_publish_singles(&runtime, async || publisher.publish_singles().await)
        }
        (Role::Publisher { resolver }, System::Longshore) => {
            let mut publisher = runtime.block_on(longshore::Publisher::prepare(&work, resolver))?;
            measure_publish_all(&runtime, async || publisher.publish_all().await)?;
            measure_publish_singles(&runtime, async || publisher.publish_singles().await)
        }
        #[cfg(feature = "netidx")]
        (Role::Subscriber { resolver }, System::Netidx) => {
            let mut subscriber = runtime.block_on(netidx::Subscriber::prepare(&work, resolver))?;
            measure_receive_all(&runtime, async || subscriber.receive_all().await)?;
            measure_receive_singles(&runtime, async || subscriber.receive_singles().await)
        }
        (Role::Subscriber { resolver }, System::Longshore) => {
            let prepared = longshore::Subscriber::prepare(&work, resolver);
            let mut subscriber = runtime.block_on(prepared)?;
            measure_receive_all(&runtime, async || subscriber.receive_all().await)?;
            measure_receive_singles(&runtime, async || subscriber.receive_singles().await)
        }
    }
}

fn measure_publish_all(
    runtime: &Runtime,
    all: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    report(&())?;
    wait_for_start()?;
    let started_ns = now_ns();
    runtime.block_on(all())?;
    report(&Published { started_ns })
}

fn measure_publish_singles(
    runtime: &Runtime,
    singles: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    wait_for_start()?;
    runtime.block_on(singles())?;
    report(&())?;
    wait_for_end()
}

fn measure_receive_all(
    runtime: &Runtime,
    all: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    report(&())?;
    wait_for_start()?;
    runtime.block_on(all())?;
    report(&Received { finished_ns: now_ns() })
}

fn measure_receive_singles(
    runtime: &Runtime,
    singles: impl AsyncFnOnce() -> anyhow::Result<Vec<u64>>,
) -> anyhow::Result<()> {
    wait_for_start()?;
    report(&Latencies::of(runtime.block_on(singles())?)?)?;
    wait_for_end()
}
