//! One round of one side: a resolver, a publisher and a reader, each in a process of its own.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::figures::Figures;
use super::longshore;
#[cfg(feature = "netidx")]
use super::netidx;
use super::work::{CLIENTS, Work};
use crate::machine::{busy_s, cores};
use crate::part::{Part, say, wait_for_end, wait_for_go};
use crate::side::Side;

/// A process that has done its work gets this long to give back what it no longer needs.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

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
    Reader { resolver: SocketAddr },
}

/// What one kind of work has taken, with the processor time of both processes.
struct Taken {
    seconds: f64,
    cpu_s: f64,
    /// Processor time that others had meanwhile.
    others_cpu_s: f64,
}

/// Does all of the work once.
pub(super) fn round(side: Side, work: &Work) -> anyhow::Result<Figures> {
    let start = |name: &str, role| {
        let task = Task { side, work: work.clone(), role };
        Part::start(&format!("{side}'s {name}"), "resolver", &task)
    };
    let mut server = start("resolver", Role::Resolver)?;
    let resolver: SocketAddr = server.answer()?;

    let mut publisher = start("publisher", Role::Publisher { resolver })?;
    publisher.answer::<()>()?;
    let empty = server.resident_bytes()?;
    let register = work_of(&mut publisher, &server)?;
    thread::sleep(SETTLES_WITHIN);
    let filled = server.resident_bytes()?;

    let mut reader = start("reader", Role::Reader { resolver })?;
    reader.answer::<()>()?;
    let resolve = fastest_of(&mut reader, &server)?;
    let list = fastest_of(&mut reader, &server)?;
    thread::sleep(SETTLES_WITHIN);
    let after_reads = server.resident_bytes()?;

    let all = [&register, &resolve, &list];
    let others_cpu_s: f64 = all.iter().map(|taken| taken.others_cpu_s).sum();
    let available_s: f64 = all.iter().map(|taken| taken.seconds).sum::<f64>() * cores() as f64;
    let paths = work.paths as f64;
    let per_path = |bytes: u64| bytes.saturating_sub(empty) as f64 / paths;
    Ok(Figures {
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

/// Has a client do what it has prepared.
fn work_of(client: &mut Part, server: &Part) -> anyhow::Result<Taken> {
    let (before, busy_before) = (client.cpu_s()? + server.cpu_s()?, busy_s()?);
    client.go()?;
    let seconds = client.answer()?;
    let cpu_s = client.cpu_s()? + server.cpu_s()? - before;
    let others_cpu_s = (busy_s()? - busy_before - cpu_s).max(0.0);
    Ok(Taken { seconds, cpu_s, others_cpu_s })
}

/// Has a reader do the same with so many clients, then with so many; the faster counts.
fn fastest_of(reader: &mut Part, server: &Part) -> anyhow::Result<Taken> {
    let mut fastest = work_of(reader, server)?;
    for _ in &CLIENTS[1..] {
        let taken = work_of(reader, server)?;
        if taken.seconds < fastest.seconds {
            fastest = taken;
        }
    }
    Ok(fastest)
}

/// What a process of a round does.
pub(crate) fn part(task: &str) -> anyhow::Result<()> {
    let Task { side, work, role } = serde_json::from_str(task)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    match (role, side) {
        #[cfg(not(feature = "netidx"))]
        (_, Side::Netidx) => anyhow::bail!("built without its feature netidx"),
        #[cfg(feature = "netidx")]
        (Role::Resolver, Side::Netidx) => {
            let (address, _server) = runtime.block_on(netidx::serve())?;
            say(&address)?;
            wait_for_end()
        }
        (Role::Resolver, Side::Longshore) => {
            say(&runtime.block_on(longshore::serve())?)?;
            wait_for_end()
        }
        #[cfg(feature = "netidx")]
        (Role::Publisher { resolver }, Side::Netidx) => {
            let mut publisher = netidx::Publisher::prepare(&work, resolver)?;
            registered(&runtime, async || publisher.register().await)
        }
        (Role::Publisher { resolver }, Side::Longshore) => {
            let mut publisher = longshore::Publisher::prepare(&work, resolver)?;
            registered(&runtime, async || publisher.register().await)
        }
        #[cfg(feature = "netidx")]
        (Role::Reader { resolver }, Side::Netidx) => {
            let reader = netidx::Reader::prepare(&work, resolver)?;
            let resolve = async |clients| reader.resolve(clients).await;
            read(&runtime, &work, resolve, async |clients| reader.list(clients).await)
        }
        (Role::Reader { resolver }, Side::Longshore) => {
            let reader = longshore::Reader::prepare(&work, resolver)?;
            let resolve = async |clients| reader.resolve(clients).await;
            read(&runtime, &work, resolve, async |clients| reader.list(clients).await)
        }
    }
}

/// Registers when it is told to, and stays while the reader reads.
fn registered(
    runtime: &Runtime,
    register: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    say(&())?;
    measured(runtime, register)?;
    wait_for_end()
}

/// Resolves everything when it is told to, then lists everything when it is told to.
fn read(
    runtime: &Runtime,
    work: &Work,
    resolve: impl AsyncFn(usize) -> anyhow::Result<u64>,
    list: impl AsyncFn(usize) -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    say(&())?;
    for clients in CLIENTS {
        let found = measured(runtime, async || resolve(clients).await)?;
        ensure!(found == work.paths, "{found} of {} paths were resolved", work.paths);
    }
    for clients in CLIENTS {
        let listed = measured(runtime, async || list(clients).await)?;
        ensure!(listed == work.paths, "{listed} of {} paths were listed", work.paths);
    }
    wait_for_end()
}

/// Does it when it is told to, and says how long it took.
fn measured<T>(
    runtime: &Runtime,
    work: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    wait_for_go()?;
    let began = Instant::now();
    let done = runtime.block_on(work())?;
    say(&began.elapsed().as_secs_f64())?;
    Ok(done)
}
