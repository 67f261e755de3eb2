//! One round of one side: a resolver, a publisher and a reader, each in a process of its own.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::figures::Figures;
use super::work::{Side, Work};
use super::{longshore, netidx};
use crate::part::{Part, say, wait_for_end, wait_for_go};

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

/// What a reader has measured.
#[derive(Serialize, Deserialize)]
struct Read {
    resolve_s: f64,
    list_s: f64,
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
    publisher.go()?;
    let register_s: f64 = publisher.answer()?;
    thread::sleep(SETTLES_WITHIN);
    let filled = server.resident_bytes()?;

    let mut reader = start("reader", Role::Reader { resolver })?;
    reader.answer::<()>()?;
    reader.go()?;
    let read: Read = reader.answer()?;
    thread::sleep(SETTLES_WITHIN);
    let after_reads = server.resident_bytes()?;

    let per_path = |bytes: u64| bytes.saturating_sub(empty) as f64 / work.paths as f64;
    Ok(Figures {
        register_per_s: work.paths as f64 / register_s,
        resolve_per_s: work.paths as f64 / read.resolve_s,
        list_per_s: work.lists() as f64 / read.list_s,
        bytes_per_path: per_path(filled),
        bytes_per_path_after_reads: per_path(after_reads),
    })
}

/// What a process of a round does.
pub(crate) fn part(task: &str) -> anyhow::Result<()> {
    let Task { side, work, role } = serde_json::from_str(task)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    match (role, side) {
        (Role::Resolver, Side::Netidx) => {
            let (address, _server) = runtime.block_on(netidx::serve())?;
            say(&address)?;
            wait_for_end()
        }
        (Role::Resolver, Side::Longshore) => {
            say(&runtime.block_on(longshore::serve())?)?;
            wait_for_end()
        }
        (Role::Publisher { resolver }, Side::Netidx) => {
            let mut publisher = netidx::Publisher::prepare(&work, resolver)?;
            registered(&runtime, async || publisher.register().await)
        }
        (Role::Publisher { resolver }, Side::Longshore) => {
            let mut publisher = longshore::Publisher::prepare(&work, resolver)?;
            registered(&runtime, async || publisher.register().await)
        }
        (Role::Reader { resolver }, Side::Netidx) => {
            let enter = runtime.enter();
            let reader = netidx::Reader::prepare(&work, resolver)?;
            drop(enter);
            read(&runtime, &work, async || reader.resolve().await, async || reader.list().await)
        }
        (Role::Reader { resolver }, Side::Longshore) => {
            let enter = runtime.enter();
            let reader = longshore::Reader::prepare(&work, resolver)?;
            drop(enter);
            read(&runtime, &work, async || reader.resolve().await, async || reader.list().await)
        }
    }
}

/// Registers when it is told to, and stays while the reader reads.
fn registered(
    runtime: &Runtime,
    register: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    say(&())?;
    wait_for_go()?;
    let began = Instant::now();
    runtime.block_on(register())?;
    say(&began.elapsed().as_secs_f64())?;
    wait_for_end()
}

/// Resolves and lists everything when it is told to.
fn read(
    runtime: &Runtime,
    work: &Work,
    resolve: impl AsyncFnOnce() -> anyhow::Result<u64>,
    list: impl AsyncFnOnce() -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    say(&())?;
    wait_for_go()?;
    let began = Instant::now();
    let found = runtime.block_on(resolve())?;
    let resolve_s = began.elapsed().as_secs_f64();
    ensure!(found == work.paths, "{found} of {} paths were resolved", work.paths);
    let began = Instant::now();
    let listed = runtime.block_on(list())?;
    let list_s = began.elapsed().as_secs_f64();
    ensure!(listed == work.paths, "{listed} of {} paths were listed", work.paths);
    say(&Read { resolve_s, list_s })?;
    wait_for_end()
}
