//! Measures the cost of a long queue with two throwaway publishers: one with a short queue, one
//! with a long queue. Costs are measured at both in alternation, so that a temporarily slow machine
//! affects both.
//!
//! 1. commits of single jobs at a fixed rate, with a short queue and no other load;
//! 2. filling the long queue: the growth of its publisher's memory;
//! 3. the publisher's CPU time per enqueued job and per completed job, at both, while no compaction
//!    cycle (compaction and snapshot) runs;
//! 4. churn through the long queue: the worst ratio of disk usage to live data; bytes written; CPU
//!    time of compaction cycles per job;
//! 5. commits again under a paced load: during compaction cycles, and outside of them;
//! 6. a kill of the publisher, and its recovery.

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use longshore::QueueSettings;
use serde_json::{Value, json};

use super::disk::{CycleMonitor, Cycles, disk_usage, drop_page_cache};
use super::process::{CpuClock, disk_write_bytes, resident_bytes, thread_cpu_ns};
use super::system::{MeasuredSystem, SystemStats};
use super::{head, rounded};
use crate::arguments::BenchBacklog;
use crate::child::Child;
use crate::commands::Context;
use crate::config::Origin;
use crate::failure::UsageError;
use crate::output::grouped;

/// Jobs in the short queue.
const SHORT_QUEUE_JOBS: u64 = 10_000;
const CONCURRENCY: u64 = 8;
/// Large enough, as in `bench e2e`, to keep the worker busy during a round trip and an fdatasync.
const PREFETCH: u64 = 16 * 1024;
/// Jobs at the worker.
const WORKER_JOBS: u64 = CONCURRENCY + PREFETCH;

/// Jobs enqueued before as many are taken, while costs are measured.
const BURST: u64 = 10_000;
const ROUNDS: usize = 5;

/// Single jobs per second whose commits are timed.
const PROBE_RATE: u64 = 500;
/// Jobs per second of the load during these commits.
const LOAD_RATE: u64 = 20_000;
/// Commits to time during a cycle and outside of one, or half of those of one probe run if that is
/// less.
const PROBES_ENOUGH: usize = 2_000;
/// The largest number of probe runs.
const PROBE_RUNS_MAX: usize = 8;
/// The start of a probe run, which is ignored: the first job opens the links and creates the queue,
/// and the side load settles.
const PROBE_WARMUP_NS: u64 = 500_000_000;
/// A cycle begins before its first file exists, and ends after its last file is finished.
const CYCLE_BEFORE_NS: u64 = 1_000_000_000;
const CYCLE_AFTER_NS: u64 = 500_000_000;
/// The longest wait for the end of a cycle.
const CYCLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The publisher's thread that runs compaction cycles.
const COMPACTOR_THREAD: &str = "journal-compact";
/// The interval of disk samples during churn.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before the publisher's memory is read.
const SETTLE_TIME: Duration = Duration::from_millis(500);
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(600);

/// Live bytes of a waiting job without its payload: the entry's head in the log, and its row in the
/// snapshot.
const ENTRY_BYTES: u64 = 24;
const ROW_BYTES: u64 = 96;

pub(crate) async fn measure(arguments: BenchBacklog, context: &Context) -> anyhow::Result<Value> {
    if matches!(context.config.resolvers.origin, Origin::Flag(_)) {
        let what = "this measurement fills a disk and kills a publisher: it starts its own \
                    system and runs without --resolver";
        return Err(UsageError(what.to_owned()).into());
    }
    let jobs = arguments.jobs;
    let mut short = QueueUnderTest::start(&arguments, context).await?;
    let mut long = QueueUnderTest::start(&arguments, context).await?;
    let mut results = head("backlog", &long.stats().await?.durability, long.system.sync_us);
    let mut add = |more: Value| {
        if let (Value::Object(all), Value::Object(more)) = (&mut results, more) {
            all.extend(more);
        }
    };

    let probed = short.probe(arguments.seconds).await?;
    let quiet: Vec<u64> = probed.samples.iter().map(|(_, took)| *took).collect();
    report(format!("commits on a quiet machine: p99 {:.0} µs", quantile_us(&quiet, 0.99)));
    short
        .run(&format!("enqueue {}", (SHORT_QUEUE_JOBS + WORKER_JOBS).saturating_sub(probed.jobs)))
        .await?;
    add(json!({
        "waiting": jobs, "size": arguments.size, "segment_bytes": arguments.segment_bytes,
        "commit_p50_us_quiet": rounded(quantile_us(&quiet, 0.5)),
        "commit_p99_us_quiet": rounded(quantile_us(&quiet, 0.99)),
    }));

    add(long.fill(&arguments).await?);
    let monitor = CycleMonitor::start(long.journal.clone());
    add(compare_costs(&mut short, &mut long, jobs, &monitor).await?);
    short.end().await?;
    add(long.churn(&arguments, &monitor).await?);
    add(long.commits_during_cycles(&arguments, &monitor, &quiet).await?);
    drop(monitor);
    add(long.recover().await?);
    Ok(results)
}

/// Prints progress on stderr; the results go to standard output.
fn report(text: impl AsRef<str>) {
    report!("{}", text.as_ref());
}

/// A system with one queue, and the processes that load it.
struct QueueUnderTest {
    system: MeasuredSystem,
    load: Child,
    prober: Child,
    cpu: CpuClock,
    journal: PathBuf,
}

impl QueueUnderTest {
    async fn start(arguments: &BenchBacklog, context: &Context) -> anyhow::Result<QueueUnderTest> {
        let [segment, cache] =
            [arguments.segment_bytes, arguments.cache_bytes].map(|n| n.to_string());
        let options = ["--segment-bytes", &segment, "--cache-bytes", &cache];
        let system =
            MeasuredSystem::start_with(arguments.system.clone(), &options, context).await?;
        let nothing = Some(0);
        let changes =
            QueueSettings { keep_ms: nothing, keep_jobs: nothing, ..QueueSettings::default() };
        system.queues().configure(system.path.clone(), changes, false).await?;

        let (path, size) = (system.path.to_string(), arguments.size.to_string());
        let [concurrency, prefetch, ahead] =
            [CONCURRENCY, PREFETCH, (arguments.jobs / 10).clamp(2_000, 50_000)]
                .map(|n| n.to_string());
        let process_arguments = [
            "bench",
            "load",
            &path,
            "--size",
            &size,
            "--concurrency",
            &concurrency,
            "--prefetch",
            &prefetch,
            "--ahead",
            &ahead,
        ];
        let load = system.start_process("the load", &process_arguments).await?;
        let prober = system.start_process("the prober", &process_arguments).await?;
        let cpu = CpuClock::of(system.publisher_id()?);
        let journal = system.journal()?;
        Ok(QueueUnderTest { system, load, prober, cpu, journal })
    }

    /// Sends a command to the load process and waits for its report.
    async fn run(&mut self, command: &str) -> anyhow::Result<Value> {
        send_command(&mut self.load, command).await
    }

    async fn stats(&self) -> anyhow::Result<SystemStats> {
        self.system.stats().await
    }

    /// Enqueues single jobs, and times their commits.
    async fn probe(&mut self, seconds: u64) -> anyhow::Result<Probed> {
        Probed::of(&send_command(&mut self.prober, &probe_command(seconds)).await?)
    }

    /// Fills the queue, and measures the memory of a waiting job.
    async fn fill(&mut self, arguments: &BenchBacklog) -> anyhow::Result<Value> {
        let publisher = self.system.publisher_id()?;
        let empty = resident_bytes(publisher)?;
        let filled = self.run(&format!("enqueue {}", arguments.jobs)).await?;
        tokio::time::sleep(SETTLE_TIME).await;
        let full = resident_bytes(publisher)?;
        let per_job = full.saturating_sub(empty) as f64 / arguments.jobs as f64;
        let per_s = arguments.jobs as f64 / seconds(&filled)?;
        report(format!(
            "{} jobs wait, {} enqueued a second; {per_job:.1} bytes of memory each",
            grouped(arguments.jobs),
            grouped(per_s as u64),
        ));
        // The worker takes this many jobs out of the queue.
        self.run(&format!("enqueue {WORKER_JOBS}")).await?;
        Ok(json!({
            "bytes_per_job": rounded(per_job), "rss_bytes": full, "rss_bytes_empty": empty,
            "cache_bytes": arguments.cache_bytes, "fill_jobs_per_s": per_s.round(),
        }))
    }

    /// One round: enqueues bursts of jobs, and takes as many.
    async fn round(&mut self, bursts: u64) -> anyhow::Result<Cost> {
        let mut cost = Cost::default();
        for _ in 0..bursts {
            self.timed(&format!("enqueue {BURST}"), &mut cost.enqueue).await?;
            self.timed(&format!("take {BURST}"), &mut cost.take).await?;
        }
        let jobs = (bursts * BURST) as f64;
        Ok(Cost { enqueue: cost.enqueue.per(jobs), take: cost.take.per(jobs) })
    }

    async fn timed(&mut self, command: &str, spent: &mut Spent) -> anyhow::Result<()> {
        let before = self.cpu.now_ns()?;
        let report = self.run(command).await?;
        spent.cpu_us += (self.cpu.now_ns()? - before) as f64 / 1e3;
        spent.wall_us += seconds(&report)? * 1e6;
        Ok(())
    }

    /// Passes jobs through the queue, whose length stays about the same.
    async fn churn(
        &mut self,
        arguments: &BenchBacklog,
        monitor: &CycleMonitor,
    ) -> anyhow::Result<Value> {
        let jobs = arguments.churn * arguments.jobs;
        let publisher = self.system.publisher_id()?;
        let (before, device_before) = (self.stats().await?, disk_write_bytes(publisher)?);
        let cycles_before = monitor.cycles();
        let compactor_before = thread_cpu_ns(publisher, COMPACTOR_THREAD)?;
        let mut disk = DiskUse { worst: DiskSample::default(), budget: 0.0 };
        let passed = {
            let QueueUnderTest { system, load, journal, .. } = self;
            let command = format!("pass {jobs}");
            let mut passing = pin!(send_command(load, &command));
            let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
            loop {
                tokio::select! {
                    report = &mut passing => break report?,
                    _ = ticks.tick() => {
                        // Skip the sample if the loaded publisher does not answer.
                        if let Ok(stats) = system.stats().await {
                            disk.sample(disk_usage(journal)?, stats.jobs, arguments);
                        }
                    }
                }
            }
        };
        let after = self.stats().await?;
        disk.sample(disk_usage(&self.journal)?, after.jobs, arguments);
        let device = disk_write_bytes(publisher)?.saturating_sub(device_before);
        let written = after.written_bytes.saturating_sub(before.written_bytes);
        let payload = after.payload_bytes.saturating_sub(before.payload_bytes);
        let cycles = monitor.cycles();
        let (cycles, snapshot_bytes) = (
            cycles.count() - cycles_before.count(),
            cycles.snapshot_bytes() - cycles_before.snapshot_bytes(),
        );
        let compactor_ns =
            thread_cpu_ns(publisher, COMPACTOR_THREAD)?.saturating_sub(compactor_before);
        let per_s = jobs as f64 / seconds(&passed)?;
        let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { rounded(a as f64 / b as f64) };
        let worst = disk.worst;
        report(format!(
            "{} jobs passed, {} a second; worst disk usage {:.2} times the live data; {} cycles",
            grouped(jobs),
            grouped(per_s as u64),
            worst.ratio(),
            cycles,
        ));
        Ok(json!({
            "churn_jobs": jobs, "churn_jobs_per_s": per_s.round(),
            "disk_ratio": rounded(worst.ratio()), "disk_budget_ratio": rounded(disk.budget),
            "disk_bytes": worst.disk, "live_bytes": worst.live,
            "bytes_written_per_payload_byte": ratio(written, payload),
            "device_bytes_per_payload_byte": ratio(device, payload),
            "snapshot_share": ratio(snapshot_bytes, written),
            "churn_cycles": cycles,
            "cycle_us": rounded(compactor_ns as f64 / 1e3 / jobs as f64),
        }))
    }

    /// Times commits under a paced load, during cycles and outside of them.
    async fn commits_during_cycles(
        &mut self,
        arguments: &BenchBacklog,
        monitor: &CycleMonitor,
        quiet: &[u64],
    ) -> anyhow::Result<Value> {
        // Enough jobs for the log to grow until the next cycle.
        let segments = 5 * arguments.segment_bytes / 2 / (u64::from(arguments.size) + 64);
        let jobs_per_cycle = (arguments.jobs * 3 / 2).max(segments);
        let enough = PROBES_ENOUGH.min((PROBE_RATE * arguments.seconds / 2) as usize);
        let mut cycles_occur = true;
        let mut found = CommitTimes::default();
        for _ in 0..PROBE_RUNS_MAX {
            if found.during_cycle.len() < enough && cycles_occur {
                cycles_occur = self.provoke_cycle(jobs_per_cycle, monitor).await?;
            } else if found.without.len() < enough {
                wait_until_no_cycle(monitor).await?;
            } else {
                break;
            }
            let samples = self.probe_under_load(arguments.seconds).await?;
            found.add(&samples, &monitor.cycles());
            report(format!(
                "commits under load: {} during cycles, {} outside of them",
                found.during_cycle.len(),
                found.without.len()
            ));
        }
        let [with, without] = [&found.during_cycle, &found.without]
            .map(|times| if times.is_empty() { 0.0 } else { quantile_us(times, 0.99) });
        let ratio = if found.during_cycle.is_empty() {
            // No cycle ran, so none slowed a commit.
            1.0
        } else if found.without.is_empty() {
            // Cycles ran back to back: compare with the quiet machine.
            with / quantile_us(quiet, 0.99)
        } else {
            with / without
        };
        Ok(json!({
            "commit_p99_ratio": rounded(ratio), "commit_p99_us_beside_cycles": rounded(with),
            "commit_p99_us_without": rounded(without),
            "commits_beside_cycles": found.during_cycle.len(),
            "commits_without": found.without.len(), "cycles": monitor.cycles().count(),
        }))
    }

    /// Passes jobs through the queue until a cycle runs. False if none began.
    async fn provoke_cycle(
        &mut self,
        jobs_max: u64,
        monitor: &CycleMonitor,
    ) -> anyhow::Result<bool> {
        let before = monitor.cycles().count();
        let mut passed = 0;
        while passed < jobs_max {
            let cycles = monitor.cycles();
            if cycles.count() > before || cycles.runs_since.is_some() {
                return Ok(true);
            }
            self.run(&format!("pass {BURST}")).await?;
            passed += BURST;
        }
        Ok(monitor.cycles().count() > before)
    }

    async fn probe_under_load(&mut self, seconds: u64) -> anyhow::Result<Vec<(u64, u64)>> {
        let pass = format!("pass {} {LOAD_RATE}", LOAD_RATE * seconds);
        let probe = probe_command(seconds);
        let (_, probed) = tokio::try_join!(
            send_command(&mut self.load, &pass),
            send_command(&mut self.prober, &probe)
        )?;
        let probed = Probed::of(&probed)?;
        // The probe's jobs have lengthened the queue.
        self.run(&format!("take {}", probed.jobs)).await?;
        Ok(probed.samples)
    }

    /// Kills the publisher, restarts it, and checks that it has all its jobs.
    async fn recover(self) -> anyhow::Result<Value> {
        let QueueUnderTest { mut system, load, prober, .. } = self;
        load.end().await?;
        prober.end().await?;
        let before = system.stats().await?;
        let restart = system.kill_and_restart(RECOVERY_TIMEOUT).await?;
        let [ready_s, took_s] = [restart.ready, restart.registered].map(|took| took.as_secs_f64());
        let after = system.stats().await?;
        ensure!(
            after.jobs == before.jobs,
            "there were {} jobs before the publisher was killed, and {} after it",
            before.jobs,
            after.jobs
        );
        report(format!("recovered {} jobs in {took_s:.2} s", grouped(after.jobs)));
        system.end().await?;
        Ok(json!({
            "recovery_s": rounded(took_s), "recovery_ready_s": rounded(ready_s),
            "recovered_jobs": after.jobs,
        }))
    }

    async fn end(self) -> anyhow::Result<()> {
        self.load.end().await?;
        self.prober.end().await?;
        self.system.end().await
    }
}

async fn send_command(process: &mut Child, command: &str) -> anyhow::Result<Value> {
    process.send_line(command).await?;
    process.next().await
}

fn probe_command(seconds: u64) -> String {
    format!("probe {} {PROBE_RATE}", PROBE_RATE * seconds)
}

/// The duration of the reported operation.
fn seconds(report: &Value) -> anyhow::Result<f64> {
    let ns = |key: &str| report[key].as_u64().with_context(|| format!("a report without {key}"));
    Ok(ns("ended_ns")?.saturating_sub(ns("began_ns")?).max(1) as f64 / 1e9)
}

/// The result of a probe run.
#[derive(Debug)]
struct Probed {
    /// All jobs that it enqueued.
    jobs: u64,
    /// Each job's scheduled time and the time until its commit, in nanoseconds, without those of
    /// the start.
    samples: Vec<(u64, u64)>,
}

impl Probed {
    fn of(report: &Value) -> anyhow::Result<Probed> {
        let samples = report["samples"].as_array().context("a report without samples")?;
        let pair = |sample: &Value| Some((sample[0].as_u64()?, sample[1].as_u64()?));
        let pairs = samples.iter().map(|sample| pair(sample).context("a sample without a pair"));
        let mut samples = pairs.collect::<anyhow::Result<Vec<_>>>()?;
        let jobs = samples.len() as u64;
        let from = samples.iter().map(|(at, _)| *at).min().unwrap_or(0) + PROBE_WARMUP_NS;
        samples.retain(|(at, _)| *at >= from);
        Ok(Probed { jobs, samples })
    }
}

async fn wait_until_no_cycle(monitor: &CycleMonitor) -> anyhow::Result<()> {
    let began = Instant::now();
    while monitor.cycles().runs_since.is_some() {
        if began.elapsed() > CYCLE_TIMEOUT {
            bail!("a compaction cycle has not ended within {CYCLE_TIMEOUT:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_nanos(CYCLE_AFTER_NS)).await;
    Ok(())
}

/// The cost of one job, or of many.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// CPU time of the publisher's process.
    cpu_us: f64,
    wall_us: f64,
}

impl Spent {
    fn per(self, jobs: f64) -> Spent {
        Spent { cpu_us: self.cpu_us / jobs, wall_us: self.wall_us / jobs }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    enqueue: Spent,
    take: Spent,
}

/// Runs the same rounds at both publishers in alternation.
async fn compare_costs(
    short: &mut QueueUnderTest,
    long: &mut QueueUnderTest,
    jobs: u64,
    monitor: &CycleMonitor,
) -> anyhow::Result<Value> {
    let bursts = (jobs / 50).clamp(20_000, 200_000) / BURST;
    // Cycles are measured separately: wait for one that began while the queue was filled.
    tokio::time::sleep(SAMPLE_INTERVAL).await;
    wait_until_no_cycle(monitor).await?;
    drop_page_cache(&long.journal).context("cannot drop the journal's page cache")?;
    short.run("work").await?;
    long.run("work").await?;
    let (mut of_short, mut of_long) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_short.push(short.round(bursts).await?);
        of_long.push(long.round(bursts).await?);
    }
    let of = |rounds: &[Cost], cost: fn(&Cost) -> f64| median(rounds.iter().map(cost).collect());
    let medians = |cost: fn(&Cost) -> f64| (of(&of_short, cost), of(&of_long, cost));
    let (enqueue, take) = (medians(|c| c.enqueue.cpu_us), medians(|c| c.take.cpu_us));
    let (enqueue_wall, take_wall) = (medians(|c| c.enqueue.wall_us), medians(|c| c.take.wall_us));
    let ratio = |(short, long): (f64, f64)| if short == 0.0 { 0.0 } else { long / short };
    let cost_ratio = ratio(enqueue).max(ratio(take));
    report(format!(
        "CPU time of a job: enqueue {:.2} µs, take and complete {:.2} µs; \
         with {SHORT_QUEUE_JOBS} waiting {:.2} and {:.2}",
        enqueue.1, take.1, enqueue.0, take.0
    ));
    Ok(json!({
        "cost_ratio": rounded(cost_ratio),
        "cost_wall_ratio": rounded(ratio(enqueue_wall).max(ratio(take_wall))),
        "enqueue_us": rounded(enqueue.1), "enqueue_us_at_10000": rounded(enqueue.0),
        "take_us": rounded(take.1), "take_us_at_10000": rounded(take.0),
        "enqueue_wall_us": rounded(enqueue_wall.1),
        "enqueue_wall_us_at_10000": rounded(enqueue_wall.0),
        "take_wall_us": rounded(take_wall.1), "take_wall_us_at_10000": rounded(take_wall.0),
    }))
}

fn median(mut results: Vec<f64>) -> f64 {
    results.sort_by(f64::total_cmp);
    results.get(results.len() / 2).copied().unwrap_or(0.0)
}

/// A quantile of times in nanoseconds, in microseconds.
fn quantile_us(times: &[u64], quantile: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, |ns| *ns as f64 / 1e3)
}

#[derive(Clone, Copy, Debug, Default)]
struct DiskSample {
    disk: u64,
    live: u64,
}

impl DiskSample {
    fn ratio(self) -> f64 {
        if self.live == 0 { 0.0 } else { self.disk as f64 / self.live as f64 }
    }
}

/// The worst disk usage of a journal.
#[derive(Debug)]
struct DiskUse {
    worst: DiskSample,
    /// The highest ratio of disk usage to its budget: twice the live data plus two segments.
    budget: f64,
}

impl DiskUse {
    fn sample(&mut self, disk: u64, jobs: u64, arguments: &BenchBacklog) {
        let live = jobs * (u64::from(arguments.size) + ENTRY_BYTES + ROW_BYTES);
        let sample = DiskSample { disk, live };
        if sample.ratio() >= self.worst.ratio() {
            self.worst = sample;
        }
        let budget = 2 * live + 2 * arguments.segment_bytes;
        self.budget = self.budget.max(disk as f64 / budget as f64);
    }
}

/// Commit times in nanoseconds.
#[derive(Debug, Default)]
struct CommitTimes {
    during_cycle: Vec<u64>,
    without: Vec<u64>,
}

impl CommitTimes {
    fn add(&mut self, samples: &[(u64, u64)], cycles: &Cycles) {
        for &(at, took) in samples {
            // A commit counts with a cycle if it began or ended near one.
            let touched = [at, at + took]
                .iter()
                .any(|moment| cycles.touch(*moment, CYCLE_BEFORE_NS, CYCLE_AFTER_NS));
            if touched { self.during_cycle.push(took) } else { self.without.push(took) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles_are_measured_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
        let times: Vec<u64> = (1..=1_000).rev().map(|n| n * 1_000).collect();
        assert_eq!((quantile_us(&times, 0.5), quantile_us(&times, 0.99)), (500.0, 990.0));
        assert_eq!((quantile_us(&times[..1], 0.99), quantile_us(&[], 0.99)), (1_000.0, 0.0));
    }

    #[test]
    fn samples_of_the_first_half_second_are_ignored() {
        let at = |ms: u64| (7_000_000_000 + ms * 1_000_000, ms);
        let samples = [900, 0, 2, 499, 500].map(at);
        let probed = Probed::of(&json!({ "samples": samples })).unwrap();
        assert_eq!((probed.jobs, probed.samples), (5, vec![at(900), at(500)]));
        assert!(Probed::of(&json!({ "samples": [] })).unwrap().samples.is_empty());
        assert!(Probed::of(&json!({ "samples": [[1]] })).is_err());
    }

    #[test]
    fn commits_near_a_cycle_are_counted_with_it() {
        let second = 1_000_000_000;
        let mut cycles = Cycles::default();
        cycles.ended.push((10 * second, 11 * second));
        let mut times = CommitTimes::default();
        let at = [8_900, 9_100, 10_500, 11_400, 11_600].map(|ms| (ms * 1_000_000, 1));
        times.add(&at, &cycles);
        assert_eq!((times.during_cycle.len(), times.without.len()), (3, 2));
        // A commit that begins long before the cycle and ends in it.
        times.add(&[(5 * second, 5 * second)], &cycles);
        assert_eq!(times.during_cycle.len(), 4);
    }

    #[test]
    fn disk_use_retains_the_worst_sample() {
        let arguments = BenchBacklog {
            jobs: 10_000,
            size: 136,
            churn: 1,
            seconds: 1,
            segment_bytes: 1 << 20,
            cache_bytes: 0,
            system: crate::arguments::BenchSystem {
                durability: longshore::Durability::Fsync,
                data: None,
            },
        };
        let mut disk = DiskUse { worst: DiskSample::default(), budget: 0.0 };
        for (bytes, jobs) in [(256_000, 1_000), (1_024_000, 1_000), (1_024_000, 2_000)] {
            disk.sample(bytes, jobs, &arguments);
        }
        assert_eq!((disk.worst.disk, disk.worst.live), (1_024_000, 256_000));
        assert_eq!(disk.worst.ratio(), 4.0);
        assert!((disk.budget - 1_024_000.0 / (512_000.0 + 2_097_152.0)).abs() < 1e-9);
    }
}
