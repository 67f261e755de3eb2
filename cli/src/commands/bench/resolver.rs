//! Measures a replica: paths registered, resolved and listed per second, memory per path, and the
//! latency of another client's requests in the meantime. Replica and publisher are separate
//! processes; this process reads.
//!
//! 1. single requests, with no other load;
//! 2. the publisher registers all paths, during the same requests;
//! 3. all paths are resolved, listed per parent, and listed by one glob;
//! 4. the publisher is killed and its paths expire, during the same requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use longshore::{Cluster, Glob, Path, PathAnswer, ReadClient, ResolverTiming};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::process::{CpuClock, resident_bytes};
use super::producer::send_times;
use super::registrar::{PARENT_PATHS, parent, path};
use super::system::child_spec;
use super::{monotonic_ns, rounded};
use crate::arguments::BenchResolver;
use crate::child::Child;
use crate::commands::Context;
use crate::config::Origin;
use crate::failure::UsageError;
use crate::output::grouped;

/// Paths per request.
const BATCH_PATHS: u64 = 10_000;
/// Concurrent resolve requests.
const BATCHES_AT_ONCE: usize = 8;
/// Concurrent list requests.
const LISTINGS_AT_ONCE: usize = 8;
/// The prober's requests per second.
const PROBE_RATE: u64 = 200;
/// The interval between two polls for the expiry.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The duration of the probe without other load.
const QUIET_PROBE: Duration = Duration::from_secs(3);
/// The pause before the replica's memory is read.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// The throwaway replica hides a publisher after this much silence.
const WRITER_TTL: Duration = Duration::from_secs(4);
/// The longest wait for the expiry of the killed publisher's paths.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn measure(arguments: BenchResolver, context: &Context) -> anyhow::Result<Value> {
    if matches!(context.config.resolvers.origin, Origin::Flag(_)) {
        let what =
            "this measurement fills a replica: it starts its own and runs without --resolver";
        return Err(UsageError(what.to_owned()).into());
    }
    let paths = arguments.paths;
    let replica = Replica::start().await?;
    let client = replica.client("the reader");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results =
        json!({ "measure": "resolver", "version": env!("LONGSHORE_VERSION"), "cores": cores });
    let mut add = |more: Value| {
        if let (Value::Object(all), Value::Object(more)) = (&mut results, more) {
            all.extend(more);
        }
    };
    let quiet = Prober::start(&replica).await?;
    sleep(QUIET_PROBE).await;
    add(json!({ "paths": paths }));
    add(quiet.end("quiet", 0).await?);

    let empty = resident_bytes(replica.process()?)?;
    let count = paths.to_string();
    let arguments = ["bench", "registrar", "--paths", &count];
    let mut registrar =
        Child::start(&child_spec("the registrar", &replica.address, &arguments, None)).await?;
    let prober = Prober::start(&replica).await?;
    let mut cpu = CpuClock::of(replica.process()?);
    let before = cpu.now_ns()?;
    registrar.send_line("register").await?;
    let seconds = registrar.next().await?["seconds"].as_f64().context("no seconds")?;
    let register_us = (cpu.now_ns()? - before) as f64 / 1e3 / paths as f64;
    let probed = prober.end("registering", 0).await?;
    sleep(SETTLE_TIME).await;
    let full = resident_bytes(replica.process()?)?;
    let per_path = full.saturating_sub(empty) as f64 / paths as f64;
    report(format!(
        "{} paths registered a second; {per_path:.1} bytes each",
        per_second(paths, seconds)
    ));
    add(json!({
        "register_per_s": (paths as f64 / seconds).round(), "register_cpu_us": rounded(register_us),
        "bytes_per_path": rounded(per_path), "rss_bytes": full, "rss_bytes_empty": empty,
    }));
    add(probed);

    let before = cpu.now_ns()?;
    let seconds = resolve_all(&client, paths).await?;
    let resolve_us = (cpu.now_ns()? - before) as f64 / 1e3 / paths as f64;
    report(format!("{} paths resolved a second", per_second(paths, seconds)));
    let listed = list_all(&client, paths).await?;
    let matched = match_all(&client, paths).await?;
    add(json!({
        "resolve_per_s": (paths as f64 / seconds).round(), "resolve_cpu_us": rounded(resolve_us),
        "list_per_s": (paths as f64 / listed).round(),
        "match_per_s": (paths as f64 / matched).round(),
    }));

    let prober = Prober::start(&replica).await?;
    registrar.kill().await?;
    let began = Instant::now();
    let found_ns = expired(&client, EXPIRY_TIMEOUT).await?;
    let took = began.elapsed().as_secs_f64();
    // The replica still frees entries after the last path has disappeared.
    sleep(SETTLE_TIME).await;
    add(json!({ "expired_s": rounded(took) }));
    // The replica is idle before the expiry: those seconds would hide a stall.
    add(prober.end("expiring", found_ns).await?);
    replica.child.end().await?;
    Ok(results)
}

/// Prints progress on stderr; the results go to standard output.
fn report(text: impl AsRef<str>) {
    report!("{}", text.as_ref());
}

fn per_second(count: u64, seconds: f64) -> String {
    grouped((count as f64 / seconds) as u64)
}

/// A throwaway replica in a separate process.
struct Replica {
    child: Child,
    address: String,
    /// The folder of its configuration file.
    _folder: tempfile::TempDir,
}

impl Replica {
    async fn start() -> anyhow::Result<Replica> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let file = folder.path().join("replica.toml");
        let ttl = WRITER_TTL.as_secs();
        std::fs::write(&file, format!("[timing]\nwriter_ttl = \"{ttl}s\"\n"))?;
        let mut spec = child_spec(
            "the replica",
            "127.0.0.1:1",
            &["resolver", "run", "--end-with-stdin", "--listen", "127.0.0.1:0", "--fresh"],
            None,
        );
        spec.environment.push(("LONGSHORE_CONFIG", file.into_os_string()));
        let child = Child::start(&spec).await?;
        let address = child.ready_text("address")?.to_owned();
        Ok(Replica { child, address, _folder: folder })
    }

    fn process(&self) -> anyhow::Result<u32> {
        self.child.id().context("the replica has ended")
    }

    fn client(&self, name: &str) -> ReadClient {
        let timing = ResolverTiming { writer_ttl: WRITER_TTL, ..ResolverTiming::default() };
        let cluster = Cluster { timing, ..Cluster::from(self.address.as_str()) };
        ReadClient::builder().name(name).connect(cluster)
    }
}

/// A request's scheduled time, and the time from then to its answer, in nanoseconds.
type Probe = (u64, u64);

/// Another client, which resolves a path every 5 ms over its own connection.
struct Prober {
    /// Requests scheduled later are not sent.
    until_ns: Arc<AtomicU64>,
    task: JoinHandle<anyhow::Result<Vec<Probe>>>,
}

impl Prober {
    /// Connects, then probes in the background. Makes at least one request before it stops.
    async fn start(replica: &Replica) -> anyhow::Result<Prober> {
        let until_ns = Arc::new(AtomicU64::new(u64::MAX));
        let (client, probed) = (replica.client("the prober"), path(0)?);
        client.resolve(vec![probed.clone()]).await?;
        let mut schedule = send_times(u64::MAX, PROBE_RATE);
        // The schedule begins 0.1 s after its creation: the load must not begin before it.
        schedule.recv().await;
        let request = move || {
            let (client, probed) = (client.clone(), probed.clone());
            async move { client.resolve(vec![probed]).await.map(|_| ()).map_err(Into::into) }
        };
        let task = tokio::spawn(probe(schedule, until_ns.clone(), request));
        Ok(Prober { until_ns, task })
    }

    /// Stops once the requests scheduled so far are answered. Returns the latency of those
    /// scheduled since `from_ns`.
    async fn end(self, when: &str, from_ns: u64) -> anyhow::Result<Value> {
        self.until_ns.store(monotonic_ns(), Ordering::Relaxed);
        let [p99_ms, max_ms] =
            p99_and_max_ms(&self.task.await??, from_ns).context("no request was timed")?;
        Ok(json!({
            (format!("probe_p99_ms_{when}")): p99_ms, (format!("probe_max_ms_{when}")): max_ms,
        }))
    }
}

/// Makes one request at a time. Each is timed from its schedule, so that a stall counts for all
/// requests that were due in it, not only for the one that was sent.
async fn probe<F>(
    mut schedule: mpsc::Receiver<u64>,
    until_ns: Arc<AtomicU64>,
    mut request: impl FnMut() -> F,
) -> anyhow::Result<Vec<Probe>>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut probes = Vec::new();
    while let Some(at) = schedule.recv().await {
        if at > until_ns.load(Ordering::Relaxed) && !probes.is_empty() {
            break;
        }
        request().await?;
        probes.push((at, monotonic_ns().saturating_sub(at)));
    }
    Ok(probes)
}

/// The 99th percentile and the maximum of the probes scheduled since `from_ns`; none without any.
fn p99_and_max_ms(probes: &[Probe], from_ns: u64) -> Option<[f64; 2]> {
    let timed = probes.iter().filter(|(at, _)| *at >= from_ns);
    let mut times: Vec<u64> = timed.map(|(_, took)| *took).collect();
    times.sort_unstable();
    let p99 = times.get((times.len() * 99).div_ceil(100).checked_sub(1)?)?;
    Some([*p99, *times.last()?].map(|ns| rounded(ns as f64 / 1e6)))
}

/// Resolves all paths with concurrent requests; returns the seconds taken.
async fn resolve_all(client: &ReadClient, paths: u64) -> anyhow::Result<f64> {
    let batches: Vec<Vec<Path>> = (0..paths)
        .step_by(BATCH_PATHS as usize)
        .map(|first| (first..(first + BATCH_PATHS).min(paths)).map(path).collect())
        .collect::<anyhow::Result<_>>()?;
    let began = Instant::now();
    let mut in_flight = JoinSet::new();
    for batch in batches {
        if in_flight.len() >= BATCHES_AT_ONCE {
            in_flight.join_next().await.context("no request is in flight")???;
        }
        let client = client.clone();
        in_flight.spawn(async move {
            let resolution = client.resolve(batch).await?;
            let found = |answer: &PathAnswer| matches!(answer, PathAnswer::Publishers { .. });
            ensure!(resolution.answers.iter().all(found), "a registered path was not found");
            Ok(())
        });
    }
    while let Some(done) = in_flight.join_next().await {
        done??;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Lists the children of each parent; returns the seconds taken.
async fn list_all(client: &ReadClient, paths: u64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut in_flight: JoinSet<anyhow::Result<u64>> = JoinSet::new();
    let mut listed = 0;
    for number in 0..paths.div_ceil(PARENT_PATHS) {
        if in_flight.len() >= LISTINGS_AT_ONCE {
            listed += in_flight.join_next().await.context("no request is in flight")???;
        }
        let (client, parent) = (client.clone(), parent(number)?);
        in_flight.spawn(async move { Ok(client.list(parent).await?.paths.len() as u64) });
    }
    while let Some(done) = in_flight.join_next().await {
        listed += done??;
    }
    ensure!(listed == paths, "{listed} paths were listed, and {paths} registered");
    Ok(began.elapsed().as_secs_f64())
}

/// Lists all paths by one glob; returns the seconds taken.
async fn match_all(client: &ReadClient, paths: u64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let listing = client.list_matching(vec![Glob::new("/bench/*/*")?]).await?;
    let found = listing.paths.iter().filter(|listed| listed.published()).count() as u64;
    ensure!(found == paths, "{found} paths matched, and {paths} are registered");
    Ok(began.elapsed().as_secs_f64())
}

/// Waits until the publisher's paths have expired. Returns the monotonic time of the last request
/// that found them.
async fn expired(client: &ReadClient, within: Duration) -> anyhow::Result<u64> {
    let expired = async {
        let mut found_ns = monotonic_ns();
        loop {
            let asked_ns = monotonic_ns();
            let resolution = client.resolve(vec![path(0)?]).await?;
            if let [PathAnswer::NotFound] = &resolution.answers[..] {
                return anyhow::Ok(found_ns);
            }
            found_ns = asked_ns;
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(within, expired).await.context("a publisher that was killed has not expired")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_due_in_a_stall_are_timed_from_their_schedule() {
        // All twenty are due within 95 ms.
        let schedule = send_times(20, PROBE_RATE);
        let mut stall = Some(Duration::from_millis(200));
        let request = move || {
            let stall = stall.take().unwrap_or_default();
            async move {
                sleep(stall).await;
                Ok(())
            }
        };
        let until_ns = Arc::new(AtomicU64::new(u64::MAX));
        let probes = probe(schedule, until_ns, request).await.unwrap();
        assert_eq!(probes.len(), 20);
        assert!(probes.iter().all(|(_, took)| *took >= 100_000_000), "{probes:?}");
    }

    #[test]
    fn latency_is_of_the_requests_since_a_time() {
        let probes: Vec<Probe> = (1..=300).map(|n| (n, n * 1_000_000)).collect();
        assert_eq!(p99_and_max_ms(&probes, 0), Some([297.0, 300.0]));
        assert_eq!(p99_and_max_ms(&probes, 201), Some([299.0, 300.0]));
        assert_eq!(p99_and_max_ms(&probes[..200], 200), Some([200.0, 200.0]));
        assert_eq!(p99_and_max_ms(&probes, 301), None);
    }
}
