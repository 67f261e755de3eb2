//! What a replica does: paths registered and resolved a second, listed, what a path costs in
//! memory, and how long somebody else's question takes beside all that. The replica and the
//! publisher are processes of their own; the reader is this one.
//!
//! 1. one question at a time, nothing else going on;
//! 2. the publisher registers all paths, beside the same questions;
//! 3. all paths are resolved, listed below each parent, and listed by one glob;
//! 4. the publisher is killed: its paths expire, beside the same questions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use longshore::protocol::SessionId;
use longshore::{Cluster, Glob, Path, PathAnswer, ReadClient, ResolverTiming};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::process::{CpuClock, resident_bytes};
use super::registrar::{PARENT_PATHS, parent, path};
use super::rounded;
use super::system::role;
use crate::arguments::BenchResolver;
use crate::child::Child;
use crate::commands::Context;
use crate::config::Origin;
use crate::failure::WrongUsage;
use crate::output::grouped;

/// Paths in one batch of questions.
const BATCH_PATHS: u64 = 10_000;
/// Batches that are asked at once.
const BATCHES_AT_ONCE: usize = 8;
/// Parents that are listed at once.
const LISTINGS_AT_ONCE: usize = 8;
/// How often somebody else asks.
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// For how long it asks when nothing else is going on.
const QUIET: Duration = Duration::from_secs(3);
/// How long the replica has to come to rest before its memory is looked at.
const REST: Duration = Duration::from_millis(500);
/// The throwaway replica hides a publisher that is silent for as long.
const WRITER_TTL: Duration = Duration::from_secs(4);
/// Beyond, something is wrong.
const EXPIRED_WITHIN: Duration = Duration::from_secs(120);

pub(crate) async fn measure(asked: BenchResolver, context: &Context) -> anyhow::Result<Value> {
    if matches!(context.config.resolvers.origin, Origin::Flag(_)) {
        let what = "this measurement fills a replica: it starts one of its own, without --resolver";
        return Err(WrongUsage(what.to_owned()).into());
    }
    let paths = asked.paths;
    let replica = Replica::start().await?;
    let client = replica.client("the reader");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut figures =
        json!({ "measure": "resolver", "version": env!("CARGO_PKG_VERSION"), "cores": cores });
    let mut tell = |more: Value| {
        if let (Value::Object(all), Value::Object(more)) = (&mut figures, more) {
            all.extend(more);
        }
    };
    let quiet = Prober::start(&replica).await?;
    sleep(QUIET).await;
    tell(json!({ "paths": paths, "probe_p99_ms_quiet": quiet.p99_ms().await? }));

    let empty = resident_bytes(replica.process()?)?;
    let count = paths.to_string();
    let arguments = ["bench-registrar", "--paths", &count];
    let mut registrar = Child::start(&role("the registrar", &replica.address, &arguments)).await?;
    let prober = Prober::start(&replica).await?;
    let mut cpu = CpuClock::of(replica.process()?);
    let before = cpu.now_ns()?;
    registrar.tell("register").await?;
    let seconds = registrar.next().await?["seconds"].as_f64().context("no seconds")?;
    let register_us = (cpu.now_ns()? - before) as f64 / 1e3 / paths as f64;
    let beside = prober.p99_ms().await?;
    sleep(REST).await;
    let full = resident_bytes(replica.process()?)?;
    let per_path = full.saturating_sub(empty) as f64 / paths as f64;
    say(format!(
        "{} paths registered a second; {per_path:.1} bytes each",
        per_second(paths, seconds)
    ));
    tell(json!({
        "register_per_s": (paths as f64 / seconds).round(), "register_cpu_us": rounded(register_us),
        "bytes_per_path": rounded(per_path), "rss_bytes": full, "rss_bytes_empty": empty,
        "probe_p99_ms_registering": beside,
    }));

    let before = cpu.now_ns()?;
    let seconds = resolve_all(&client, paths).await?;
    let resolve_us = (cpu.now_ns()? - before) as f64 / 1e3 / paths as f64;
    say(format!("{} paths resolved a second", per_second(paths, seconds)));
    let listed = list_all(&client, paths).await?;
    let matched = match_all(&client, paths).await?;
    tell(json!({
        "resolve_per_s": (paths as f64 / seconds).round(), "resolve_cpu_us": rounded(resolve_us),
        "list_per_s": (paths as f64 / listed).round(), "match_per_s": (paths as f64 / matched).round(),
    }));

    let prober = Prober::start(&replica).await?;
    registrar.kill().await?;
    let began = Instant::now();
    expired(&client, EXPIRED_WITHIN).await?;
    let took = began.elapsed().as_secs_f64();
    // Sweeping goes on after the last path is gone from sight.
    sleep(REST).await;
    tell(json!({ "expired_s": rounded(took), "probe_p99_ms_expiring": prober.p99_ms().await? }));
    replica.child.end().await?;
    Ok(figures)
}

/// Progress; what is measured goes to standard output.
fn say(text: impl AsRef<str>) {
    eprintln!("{}", text.as_ref());
}

fn per_second(count: u64, seconds: f64) -> String {
    grouped((count as f64 / seconds) as u64)
}

/// A throwaway replica, in a process of its own.
struct Replica {
    child: Child,
    address: String,
    /// Its configuration.
    _folder: tempfile::TempDir,
}

impl Replica {
    async fn start() -> anyhow::Result<Replica> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let file = folder.path().join("replica.toml");
        let ttl = WRITER_TTL.as_secs();
        std::fs::write(&file, format!("[timing]\nwriter_ttl = \"{ttl}s\"\n"))?;
        let mut role = role(
            "the replica",
            "127.0.0.1:1",
            &["resolver", "--end-with-stdin", "--listen", "127.0.0.1:0", "--fresh"],
        );
        role.environment.push(("LONGSHORE_CONFIG", file.into_os_string()));
        let child = Child::start(&role).await?;
        let address = child.ready_text("address")?.to_owned();
        Ok(Replica { child, address, _folder: folder })
    }

    fn process(&self) -> anyhow::Result<u32> {
        self.child.id().context("the replica has ended")
    }

    fn client(&self, name: &str) -> ReadClient {
        let timing = ResolverTiming { writer_ttl: WRITER_TTL, ..ResolverTiming::default() };
        let cluster = Cluster { timing, ..Cluster::from(self.address.as_str()) };
        ReadClient::new(cluster, SessionId(rand::random()), name)
    }
}

/// Somebody else, who asks about one path at a time, over a connection of its own.
struct Prober {
    stop: Arc<AtomicBool>,
    task: JoinHandle<anyhow::Result<Vec<Duration>>>,
}

impl Prober {
    /// Connects before it comes back, and asks once at the least, however soon it is ended.
    async fn start(replica: &Replica) -> anyhow::Result<Prober> {
        let stop = Arc::new(AtomicBool::new(false));
        let (client, stopped) = (replica.client("the prober"), stop.clone());
        client.resolve(vec![path(0)?]).await?;
        let task = tokio::spawn(async move {
            let mut times = Vec::new();
            loop {
                let began = Instant::now();
                client.resolve(vec![path(0)?]).await?;
                times.push(began.elapsed());
                if stopped.load(Ordering::Relaxed) {
                    return Ok(times);
                }
                sleep(PROBE_EVERY.saturating_sub(began.elapsed())).await;
            }
        });
        Ok(Prober { stop, task })
    }

    /// Ends it. What 99 of 100 of its questions took at most.
    async fn p99_ms(self) -> anyhow::Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.task.await??;
        times.sort_unstable();
        let place = (times.len() * 99).div_ceil(100).clamp(1, times.len()) - 1;
        Ok(rounded(times[place].as_secs_f64() * 1e3))
    }
}

/// Asks for all paths, some batches at a time. The seconds that it took.
async fn resolve_all(client: &ReadClient, paths: u64) -> anyhow::Result<f64> {
    let batches: Vec<Vec<Path>> = (0..paths)
        .step_by(BATCH_PATHS as usize)
        .map(|first| (first..(first + BATCH_PATHS).min(paths)).map(path).collect())
        .collect::<anyhow::Result<_>>()?;
    let began = Instant::now();
    let mut under_way = JoinSet::new();
    for batch in batches {
        if under_way.len() >= BATCHES_AT_ONCE {
            under_way.join_next().await.context("nothing is under way")???;
        }
        let client = client.clone();
        under_way.spawn(async move {
            let resolution = client.resolve(batch).await?;
            let found = |answer: &PathAnswer| matches!(answer, PathAnswer::Publishers { .. });
            ensure!(resolution.answers.iter().all(found), "a registered path was not found");
            Ok(())
        });
    }
    while let Some(done) = under_way.join_next().await {
        done??;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Lists what lies below each parent. The seconds that it took.
async fn list_all(client: &ReadClient, paths: u64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut under_way: JoinSet<anyhow::Result<u64>> = JoinSet::new();
    let mut listed = 0;
    for number in 0..paths.div_ceil(PARENT_PATHS) {
        if under_way.len() >= LISTINGS_AT_ONCE {
            listed += under_way.join_next().await.context("nothing is under way")???;
        }
        let (client, parent) = (client.clone(), parent(number)?);
        under_way.spawn(async move { Ok(client.list(parent).await?.paths.len() as u64) });
    }
    while let Some(done) = under_way.join_next().await {
        listed += done??;
    }
    ensure!(listed == paths, "{listed} paths were listed, and {paths} registered");
    Ok(began.elapsed().as_secs_f64())
}

/// Lists all paths by one glob. The seconds that it took.
async fn match_all(client: &ReadClient, paths: u64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let listing = client.list_matching(vec![Glob::new("/bench/*/*")?]).await?;
    let found = listing.paths.iter().filter(|listed| listed.published()).count() as u64;
    ensure!(found == paths, "{found} paths matched, and {paths} are registered");
    Ok(began.elapsed().as_secs_f64())
}

/// Waits until nobody publishes anything any more.
async fn expired(client: &ReadClient, within: Duration) -> anyhow::Result<()> {
    let gone = async {
        loop {
            let resolution = client.resolve(vec![path(0)?]).await?;
            if let [PathAnswer::NotFound] = &resolution.answers[..] {
                return anyhow::Ok(());
            }
            sleep(PROBE_EVERY).await;
        }
    };
    timeout(within, gone).await.context("a publisher that was killed has not expired")?
}
