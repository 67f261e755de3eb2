//! One round of one system: a resolver, a publisher and a reader, each in its own process.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::longshore;
#[cfg(feature = "netidx")]
use super::netidx;
use super::stats::Stats;
use super::work::{CLIENTS, Work};
use crate::child_process::{ChildProcess, report, wait_for_end, wait_for_start};
use crate::machine::{busy_s, cores};
use crate::system::System;

/// How long to wait after work before measuring memory, so that unused memory is freed.
const SETTLE_TIME: Duration = Duration::from_secs(1);

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
    Reader { resolver: SocketAddr },
}

/// The cost of one kind of work, with the processor time of both processes.
struct Cost {
    seconds: f64,
    cpu_s: f64,
    /// Processor time that other processes used in the meantime.
    others_cpu_s: f64,
}

/// Does all the work once.
pub(super) fn round(system: System, work: &Work) -> anyhow::Result<Stats> {
    let start = |name: &str, role| {
        let task = Task { system, work: work.clone(), role };
        ChildProcess::start(&format!("{system}'s {name}"), "resolver", &task)
    };
    let mut server = start("resolver", Role::Resolver)?;
    let resolver: SocketAddr = server.wait_for_report()?;

    let mut publisher = start("publisher", Role::Publisher { resolver })?;
    publisher.wait_for_report::<()>()?;
    let empty = server.resident_bytes()?;
    let register = measure(&mut publisher, &server)?;
    thread::sleep(SETTLE_TIME);
    let filled = server.resident_bytes()?;

    let mut reader = start("reader", Role::Reader { resolver })?;
    reader.wait_for_report::<()>()?;
    let resolve = measure_fastest(&mut reader, &server)?;
    let list = measure_fastest(&mut reader, &server)?;
    thread::sleep(SETTLE_TIME);
    let after_reads = server.resident_bytes()?;

    let all = [&register, &resolve, &list];
    let others_cpu_s: f64 = all.iter().map(|cost| cost.others_cpu_s).sum();
    let available_s: f64 = all.iter().map(|cost| cost.seconds).sum::<f64>() * cores() as f64;
    let paths = work.paths as f64;
    let per_path = |bytes: u64| bytes.saturating_sub(empty) as f64 / paths;
    Ok(Stats {
        register_per_s: paths / register.seconds,
        register_cpu_us: register.cpu_s * 1e6 / paths,
        resolve_per_s: paths / resolve.seconds,
        resolve_cpu_us: resolve.cpu_s * 1e6 / paths,
        list_per_s: paths / list.seconds,
        list_cpu_us: list.cpu_s * 1e6 / paths,
        bytes_per_path: per_path(filled),
        bytes_per_path_after_reads: per_path(after_reads),
        others_percent: 100.0 * others_cpu_s / available_s,
    })
}

/// Starts a client's prepared work and measures its cost.
fn measure(client: &mut ChildProcess, server: &ChildProcess) -> anyhow::Result<Cost> {
    let (before, busy_before) = (client.cpu_s()? + server.cpu_s()?, busy_s()?);
    client.start_work()?;
    let seconds = client.wait_for_report()?;
    let cpu_s = client.cpu_s()? + server.cpu_s()? - before;
    let others_cpu_s = (busy_s()? - busy_before - cpu_s).max(0.0);
    Ok(Cost { seconds, cpu_s, others_cpu_s })
}

/// Measures a reader's work with each number of [`CLIENTS`], and returns the fastest.
fn measure_fastest(reader: &mut ChildProcess, server: &ChildProcess) -> anyhow::Result<Cost> {
    let mut fastest = measure(reader, server)?;
    for _ in &CLIENTS[1..] {
        let cost = measure(reader, server)?;
        if cost.seconds < fastest.seconds {
            fastest = cost;
        }
    }
    Ok(fastest)
}

/// Runs a child process of a round.
pub(crate) fn run_child(task: &str) -> anyhow::Result<()> {
    let Task { system, work, role } = serde_json::from_str(task)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    match (role, system) {
        #[cfg(not(feature = "netidx"))]
        (_, System::Netidx) => anyhow::bail!("built without its feature netidx"),
        #[cfg(feature = "netidx")]
        (Role::Resolver, System::Netidx) => {
            let (address, _server) = runtime.block_on(netidx::serve())?;
            report(&address)?;
            wait_for_end()
        }
        (Role::Resolver, System::Longshore) => {
            report(&runtime.block_on(longshore::serve())?)?;
            wait_for_end()
        }
        #[cfg(feature = "netidx")]
        (Role::Publisher { resolver }, System::Netidx) => {
            let mut publisher = netidx::Publisher::prepare(&work, resolver)?;
            run_publisher(&runtime, async || publisher.register().await)
        }
        (Role::Publisher { resolver }, System::Longshore) => {
            let mut publisher = longshore::Publisher::prepare(&work, resolver)?;
            run_publisher(&runtime, async || publisher.register().await)
        }
        #[cfg(feature = "netidx")]
        (Role::Reader { resolver }, System::Netidx) => {
            let reader = netidx::Reader::prepare(&work, resolver)?;
            let resolve = async |clients| reader.resolve(clients).await;
            run_reader(&runtime, &work, resolve, async |clients| reader.list(clients).await)
        }
        (Role::Reader { resolver }, System::Longshore) => {
            let reader = longshore::Reader::prepare(&work, resolver)?;
            let resolve = async |clients| reader.resolve(clients).await;
            run_reader(&runtime, &work, resolve, async |clients| reader.list(clients).await)
        }
    }
}

/// Registers on the parent's signal, and stays published while the reader runs.
fn run_publisher(
    runtime: &Runtime,
    register: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    report(&())?;
    run_timed(runtime, register)?;
    wait_for_end()
}

/// Resolves all paths, then lists all paths, each on the parent's signal.
fn run_reader(
    runtime: &Runtime,
    work: &Work,
    resolve: impl AsyncFn(usize) -> anyhow::Result<u64>,
    list: impl AsyncFn(usize) -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    report(&())?;
    for clients in CLIENTS {
        let found = run_timed(runtime, async || resolve(clients).await)?;
        ensure!(found == work.paths, "{found} of {} paths were resolved", work.paths);
    }
    for clients in CLIENTS {
        let listed = run_timed(runtime, async || list(clients).await)?;
        ensure!(listed == work.paths, "{listed} of {} paths were listed", work.paths);
    }
    wait_for_end()
}

/// Does the work on the parent's signal, and reports how long it took.
fn run_timed<T>(
    runtime: &Runtime,
    work: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    wait_for_start()?;
    let began = Instant::now();
    let done = runtime.block_on(work())?;
    report(&began.elapsed().as_secs_f64())?;
    Ok(done)
}
