//! What a long queue costs. Two throwaway publishers: one keeps few jobs waiting, the other many,
//! and what can be compared is measured at both in turns, so that a machine that is slow for a
//! while is slow for both.
//!
//! 1. commits of single jobs at a steady rate, few jobs waiting, nothing else going on;
//! 2. the long queue is filled: what its publisher's memory grows by;
//! 3. processor time of the publisher for each job that is enqueued, and for each that is taken and
//!    completed, at both, while no cycle of cleaning and snapshots runs;
//! 4. churn through the long queue: what its disk holds over what lives, at the worst; what is
//!    written; what cycles take of the processor for each job that passes;
//! 5. commits again, beside a paced load: while a cycle of cleaning and snapshots runs, and while
//!    none does;
//! 6. the publisher is killed and started again.

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use longshore::QueueSettings;
use serde_json::{Value, json};

use super::disk::{Cycles, Watch, drop_from_memory, taken_bytes};
use super::process::{CpuClock, disk_write_bytes, resident_bytes, thread_cpu_ns};
use super::system::{Figures, System};
use super::{head, rounded};
use crate::arguments::BenchBacklog;
use crate::child::Child;
use crate::commands::Context;
use crate::config::Origin;
use crate::failure::WrongUsage;
use crate::output::grouped;

/// What a long queue is compared with.
const FEW: u64 = 10_000;
const CONCURRENCY: u64 = 8;
/// As in `bench e2e`: what a round trip and an fdatasync take is bridged by the jobs that are held
/// already.
const PREFETCH: u64 = 16 * 1024;
const HELD: u64 = CONCURRENCY + PREFETCH;

/// Jobs that go in before as many come out, while costs are measured.
const BURST: u64 = 10_000;
const ROUNDS: usize = 5;

/// Single jobs a second, whose commits are timed.
const PROBE_RATE: u64 = 500;
/// Jobs a second that pass through beside them.
const SIDE_RATE: u64 = 20_000;
/// Commits to be timed while a cycle runs and while none does, if there are that many; or half of
/// those of one probing.
const PROBES_ENOUGH: usize = 2_000;
/// Times that commits are measured at most, to have enough of both.
const PROBINGS_MAX: usize = 8;
/// The beginning of a probing: the side load has yet to get into step.
const PROBE_AFTER_NS: u64 = 500_000_000;
/// A cycle begins before its first file is there, and ends after its last one is finished.
const CYCLE_BEFORE_NS: u64 = 1_000_000_000;
const CYCLE_AFTER_NS: u64 = 500_000_000;
/// How long a cycle may take until commits without one can be measured.
const CYCLE_WITHIN: Duration = Duration::from_secs(120);

/// The publisher's thread that runs cycles.
const CLEANER: &str = "journal-cleaner";
/// How often the disk is looked at during churn.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// How long the publisher has to come to rest before its memory is looked at.
const REST: Duration = Duration::from_millis(500);
const RECOVERED_WITHIN: Duration = Duration::from_secs(600);

/// What lives of a waiting job beside its payload: the entry's head in the log, and its row.
const ENTRY_BYTES: u64 = 24;
const ROW_BYTES: u64 = 96;

pub(crate) async fn measure(asked: BenchBacklog, context: &Context) -> anyhow::Result<Value> {
    if matches!(context.config.resolvers.origin, Origin::Flag(_)) {
        let what = "this measurement fills a disk and kills a publisher: it starts a system of its own, without --resolver";
        return Err(WrongUsage(what.to_owned()).into());
    }
    let jobs = asked.jobs;
    let mut few = Side::start(&asked, context).await?;
    let mut many = Side::start(&asked, context).await?;
    let mut figures = head("backlog", &many.figures().await?.durability, many.system.sync_us);
    let mut tell = |more: Value| {
        if let (Value::Object(all), Value::Object(more)) = (&mut figures, more) {
            all.extend(more);
        }
    };

    let quiet = times(&few.probe(asked.seconds).await?);
    say(format!("commits on a quiet machine: p99 {:.0} µs", quantile_us(&quiet, 0.99)));
    let probed = quiet.len() as u64;
    few.word(&format!("enqueue {}", (FEW + HELD).saturating_sub(probed))).await?;
    tell(json!({
        "waiting": jobs, "size": asked.size, "segment_bytes": asked.segment_bytes,
        "commit_p50_us_quiet": rounded(quantile_us(&quiet, 0.5)),
        "commit_p99_us_quiet": rounded(quantile_us(&quiet, 0.99)),
    }));

    tell(many.fill(&asked).await?);
    let watch = Watch::start(many.journal.clone());
    tell(compare_costs(&mut few, &mut many, jobs, &watch).await?);
    few.end().await?;
    tell(many.churn(&asked, &watch).await?);
    tell(many.commits_beside_cycles(&asked, &watch, &quiet).await?);
    drop(watch);
    tell(many.recover().await?);
    Ok(figures)
}

/// Progress; what is measured goes to standard output.
fn say(text: impl AsRef<str>) {
    eprintln!("{}", text.as_ref());
}

/// A system with one queue, and what loads it.
struct Side {
    system: System,
    load: Child,
    prober: Child,
    cpu: CpuClock,
    journal: PathBuf,
}

impl Side {
    async fn start(asked: &BenchBacklog, context: &Context) -> anyhow::Result<Side> {
        let [segment, cache] = [asked.segment_bytes, asked.cache_bytes].map(|n| n.to_string());
        let options = ["--segment-bytes", &segment, "--cache-bytes", &cache];
        let system = System::start_with(asked.system.clone(), &options, context).await?;
        let nothing = Some(0);
        let changes =
            QueueSettings { keep_ms: nothing, keep_jobs: nothing, ..QueueSettings::default() };
        system.queues().configure(system.path.clone(), changes, false).await?;

        let (path, size) = (system.path.to_string(), asked.size.to_string());
        let [concurrency, prefetch, ahead] =
            [CONCURRENCY, PREFETCH, (asked.jobs / 10).clamp(2_000, 50_000)].map(|n| n.to_string());
        let arguments = [
            "bench-load",
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
        let load = system.part("the load", &arguments).await?;
        let prober = system.part("the prober", &arguments).await?;
        let cpu = CpuClock::of(system.publisher_id()?);
        let journal = system.journal()?;
        Ok(Side { system, load, prober, cpu, journal })
    }

    /// Has the load do something, and waits until it is done.
    async fn word(&mut self, word: &str) -> anyhow::Result<Value> {
        command(&mut self.load, word).await
    }

    async fn figures(&self) -> anyhow::Result<Figures> {
        self.system.figures().await
    }

    /// When jobs were to go out one by one, and how long each took to be committed, in nanoseconds.
    async fn probe(&mut self, seconds: u64) -> anyhow::Result<Vec<(u64, u64)>> {
        samples(&command(&mut self.prober, &probe_word(seconds)).await?)
    }

    /// Has all jobs waiting, and says what a waiting job takes in memory.
    async fn fill(&mut self, asked: &BenchBacklog) -> anyhow::Result<Value> {
        let publisher = self.system.publisher_id()?;
        let empty = resident_bytes(publisher)?;
        let report = self.word(&format!("enqueue {}", asked.jobs)).await?;
        tokio::time::sleep(REST).await;
        let full = resident_bytes(publisher)?;
        let per_job = full.saturating_sub(empty) as f64 / asked.jobs as f64;
        let per_s = asked.jobs as f64 / seconds(&report)?;
        say(format!(
            "{} jobs wait, {} enqueued a second; {per_job:.1} bytes of memory each",
            grouped(asked.jobs),
            grouped(per_s as u64),
        ));
        // So many more as a worker holds: those wait no longer.
        self.word(&format!("enqueue {HELD}")).await?;
        Ok(json!({
            "bytes_per_job": rounded(per_job), "rss_bytes": full, "rss_bytes_empty": empty,
            "cache_bytes": asked.cache_bytes, "fill_jobs_per_s": per_s.round(),
        }))
    }

    /// One round: bursts of jobs go in, as many come out.
    async fn round(&mut self, bursts: u64) -> anyhow::Result<Cost> {
        let mut cost = Cost::default();
        for _ in 0..bursts {
            self.timed(&format!("enqueue {BURST}"), &mut cost.enqueue).await?;
            self.timed(&format!("take {BURST}"), &mut cost.take).await?;
        }
        let jobs = (bursts * BURST) as f64;
        Ok(Cost { enqueue: cost.enqueue.over(jobs), take: cost.take.over(jobs) })
    }

    async fn timed(&mut self, word: &str, spent: &mut Spent) -> anyhow::Result<()> {
        let before = self.cpu.now_ns()?;
        let report = self.word(word).await?;
        spent.cpu_us += (self.cpu.now_ns()? - before) as f64 / 1e3;
        spent.wall_us += seconds(&report)? * 1e6;
        Ok(())
    }

    /// Jobs pass through while as many as before wait.
    async fn churn(&mut self, asked: &BenchBacklog, watch: &Watch) -> anyhow::Result<Value> {
        let jobs = asked.churn * asked.jobs;
        let publisher = self.system.publisher_id()?;
        let (before, device_before) = (self.figures().await?, disk_write_bytes(publisher)?);
        let cycles_before = watch.cycles();
        let cleaner_before = thread_cpu_ns(publisher, CLEANER)?;
        let mut disk = DiskUse { worst: Taken::default(), budget: 0.0 };
        let report = {
            let Side { system, load, journal, .. } = self;
            let word = format!("pass {jobs}");
            let mut passing = pin!(command(load, &word));
            let mut ticks = tokio::time::interval(SAMPLE_EVERY);
            loop {
                tokio::select! {
                    report = &mut passing => break report?,
                    _ = ticks.tick() => {
                        // Under load a question may go unanswered for longer than it is worth; the
                        // next one is soon.
                        if let Ok(figures) = system.figures().await {
                            disk.sample(taken_bytes(journal)?, figures.jobs, asked);
                        }
                    }
                }
            }
        };
        let after = self.figures().await?;
        disk.sample(taken_bytes(&self.journal)?, after.jobs, asked);
        let device = disk_write_bytes(publisher)?.saturating_sub(device_before);
        let written = after.written_bytes.saturating_sub(before.written_bytes);
        let payload = after.payload_bytes.saturating_sub(before.payload_bytes);
        let cycles = watch.cycles();
        let (cycles, snapshot_bytes) = (
            cycles.count() - cycles_before.count(),
            cycles.snapshot_bytes() - cycles_before.snapshot_bytes(),
        );
        let cleaner_ns = thread_cpu_ns(publisher, CLEANER)?.saturating_sub(cleaner_before);
        let per_s = jobs as f64 / seconds(&report)?;
        let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { rounded(a as f64 / b as f64) };
        let worst = disk.worst;
        say(format!(
            "{} jobs passed, {} a second; the disk held {:.2} times what lives, at worst; {} cycles",
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
            "cycle_us": rounded(cleaner_ns as f64 / 1e3 / jobs as f64),
        }))
    }

    /// Times commits beside a paced load: while cycles run, and while none does.
    async fn commits_beside_cycles(
        &mut self,
        asked: &BenchBacklog,
        watch: &Watch,
        quiet: &[u64],
    ) -> anyhow::Result<Value> {
        // About what the log has to grow by until the next cycle, and more.
        let segments = 5 * asked.segment_bytes / 2 / (u64::from(asked.size) + 64);
        let provoking = (asked.jobs * 3 / 2).max(segments);
        let enough = PROBES_ENOUGH.min((PROBE_RATE * asked.seconds / 2) as usize);
        let mut cycles_come = true;
        let mut found = Probed::default();
        for _ in 0..PROBINGS_MAX {
            if found.beside_cycle.len() < enough && cycles_come {
                cycles_come = self.provoke_cycle(provoking, watch).await?;
            } else if found.without.len() < enough {
                until_no_cycle(watch).await?;
            } else {
                break;
            }
            let samples = self.probe_beside_load(asked.seconds).await?;
            // What is in the middle of a probing's end is known only now.
            found.sort_in(&samples, &watch.cycles());
            say(format!(
                "commits beside a load: {} during cycles, {} without",
                found.beside_cycle.len(),
                found.without.len()
            ));
        }
        let [with, without] = [&found.beside_cycle, &found.without]
            .map(|times| if times.is_empty() { 0.0 } else { quantile_us(times, 0.99) });
        let ratio = if found.beside_cycle.is_empty() {
            // There is nothing that commits could be slower beside.
            1.0
        } else if found.without.is_empty() {
            // One cycle after another: what is left to compare with is the quiet machine.
            with / quantile_us(quiet, 0.99)
        } else {
            with / without
        };
        Ok(json!({
            "commit_p99_ratio": rounded(ratio), "commit_p99_us_beside_cycles": rounded(with),
            "commit_p99_us_without": rounded(without),
            "commits_beside_cycles": found.beside_cycle.len(),
            "commits_without": found.without.len(), "cycles": watch.cycles().count(),
        }))
    }

    /// Lets jobs pass until a cycle runs. False if none began.
    async fn provoke_cycle(&mut self, jobs_max: u64, watch: &Watch) -> anyhow::Result<bool> {
        let before = watch.cycles().count();
        let mut passed = 0;
        while passed < jobs_max {
            let cycles = watch.cycles();
            if cycles.count() > before || cycles.runs_since.is_some() {
                return Ok(true);
            }
            self.word(&format!("pass {BURST}")).await?;
            passed += BURST;
        }
        Ok(watch.cycles().count() > before)
    }

    async fn probe_beside_load(&mut self, seconds: u64) -> anyhow::Result<Vec<(u64, u64)>> {
        let word = format!("pass {} {SIDE_RATE}", SIDE_RATE * seconds);
        let probe = probe_word(seconds);
        let (_, probed) =
            tokio::try_join!(command(&mut self.load, &word), command(&mut self.prober, &probe))?;
        let samples = samples(&probed)?;
        // Those that were probed with wait beside the others.
        self.word(&format!("take {}", samples.len())).await?;
        let from = samples.iter().map(|(at, _)| *at).min().unwrap_or(0) + PROBE_AFTER_NS;
        Ok(samples.into_iter().filter(|(at, _)| *at >= from).collect())
    }

    /// Kills the publisher, and sees that it comes back with all that it had.
    async fn recover(self) -> anyhow::Result<Value> {
        let Side { mut system, load, prober, .. } = self;
        load.end().await?;
        prober.end().await?;
        let before = system.figures().await?;
        let restart = system.kill_and_restart(RECOVERED_WITHIN).await?;
        let [ready_s, took_s] = [restart.ready, restart.registered].map(|took| took.as_secs_f64());
        let after = system.figures().await?;
        ensure!(
            after.jobs == before.jobs,
            "there were {} jobs before the publisher was killed, and {} after it",
            before.jobs,
            after.jobs
        );
        say(format!("recovered {} jobs in {took_s:.2} s", grouped(after.jobs)));
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

async fn command(part: &mut Child, word: &str) -> anyhow::Result<Value> {
    part.tell(word).await?;
    part.next().await
}

fn probe_word(seconds: u64) -> String {
    format!("probe {} {PROBE_RATE}", PROBE_RATE * seconds)
}

/// How long what a report is about took.
fn seconds(report: &Value) -> anyhow::Result<f64> {
    let ns = |key: &str| report[key].as_u64().with_context(|| format!("a report without {key}"));
    Ok(ns("ended_ns")?.saturating_sub(ns("began_ns")?).max(1) as f64 / 1e9)
}

fn samples(report: &Value) -> anyhow::Result<Vec<(u64, u64)>> {
    let samples = report["samples"].as_array().context("a report without samples")?;
    let pair = |sample: &Value| Some((sample[0].as_u64()?, sample[1].as_u64()?));
    samples.iter().map(|sample| pair(sample).context("a sample that is no pair")).collect()
}

fn times(samples: &[(u64, u64)]) -> Vec<u64> {
    samples.iter().map(|(_, took)| *took).collect()
}

async fn until_no_cycle(watch: &Watch) -> anyhow::Result<()> {
    let began = Instant::now();
    while watch.cycles().runs_since.is_some() {
        if began.elapsed() > CYCLE_WITHIN {
            bail!("a cycle of cleaning and snapshots has not ended within {CYCLE_WITHIN:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_nanos(CYCLE_AFTER_NS)).await;
    Ok(())
}

/// What one job took, or many.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Processor time of the publisher's process.
    cpu_us: f64,
    wall_us: f64,
}

impl Spent {
    fn over(self, jobs: f64) -> Spent {
        Spent { cpu_us: self.cpu_us / jobs, wall_us: self.wall_us / jobs }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    enqueue: Spent,
    take: Spent,
}

/// The same rounds at both, in turns.
async fn compare_costs(
    few: &mut Side,
    many: &mut Side,
    jobs: u64,
    watch: &Watch,
) -> anyhow::Result<Value> {
    let bursts = (jobs / 50).clamp(20_000, 200_000) / BURST;
    // What cycles take is told by itself: one has yet to end that began while the queue was filled.
    tokio::time::sleep(SAMPLE_EVERY).await;
    until_no_cycle(watch).await?;
    drop_from_memory(&many.journal).context("cannot drop the journal from memory")?;
    few.word("work").await?;
    many.word("work").await?;
    let (mut at_few, mut at_many) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        at_few.push(few.round(bursts).await?);
        at_many.push(many.round(bursts).await?);
    }
    let of = |rounds: &[Cost], part: fn(&Cost) -> f64| median(rounds.iter().map(part).collect());
    let figure = |part: fn(&Cost) -> f64| (of(&at_few, part), of(&at_many, part));
    let (enqueue, take) = (figure(|c| c.enqueue.cpu_us), figure(|c| c.take.cpu_us));
    let (enqueue_wall, take_wall) = (figure(|c| c.enqueue.wall_us), figure(|c| c.take.wall_us));
    let ratio = |(few, many): (f64, f64)| if few == 0.0 { 0.0 } else { many / few };
    let cost_ratio = ratio(enqueue).max(ratio(take));
    say(format!(
        "processor time of a job: enqueue {:.2} µs, take and complete {:.2} µs; with {FEW} waiting {:.2} and {:.2}",
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

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// The time in microseconds that such a part of them does not exceed.
fn quantile_us(times: &[u64], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).map_or(0.0, |ns| *ns as f64 / 1e3)
}

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    disk: u64,
    live: u64,
}

impl Taken {
    fn ratio(self) -> f64 {
        if self.live == 0 { 0.0 } else { self.disk as f64 / self.live as f64 }
    }
}

/// What a journal's disk held, at the worst moment.
#[derive(Debug)]
struct DiskUse {
    worst: Taken,
    /// The most that it held over its budget: twice what lives, and two segments.
    budget: f64,
}

impl DiskUse {
    fn sample(&mut self, disk: u64, jobs: u64, asked: &BenchBacklog) {
        let live = jobs * (u64::from(asked.size) + ENTRY_BYTES + ROW_BYTES);
        let taken = Taken { disk, live };
        if taken.ratio() >= self.worst.ratio() {
            self.worst = taken;
        }
        let budget = 2 * live + 2 * asked.segment_bytes;
        self.budget = self.budget.max(disk as f64 / budget as f64);
    }
}

/// How long commits took, in nanoseconds.
#[derive(Debug, Default)]
struct Probed {
    beside_cycle: Vec<u64>,
    without: Vec<u64>,
}

impl Probed {
    fn sort_in(&mut self, samples: &[(u64, u64)], cycles: &Cycles) {
        for &(at, took) in samples {
            // From its beginning or its end on, it was one with a cycle.
            let touched = [at, at + took]
                .iter()
                .any(|moment| cycles.touch(*moment, CYCLE_BEFORE_NS, CYCLE_AFTER_NS));
            if touched { self.beside_cycle.push(took) } else { self.without.push(took) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles_are_figures_that_were_seen() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
        let times: Vec<u64> = (1..=1_000).rev().map(|n| n * 1_000).collect();
        assert_eq!((quantile_us(&times, 0.5), quantile_us(&times, 0.99)), (500.0, 990.0));
        assert_eq!((quantile_us(&times[..1], 0.99), quantile_us(&[], 0.99)), (1_000.0, 0.0));
    }

    #[test]
    fn a_commit_belongs_to_a_cycle_from_before_its_first_file_until_after_its_last() {
        let second = 1_000_000_000;
        let mut cycles = Cycles::default();
        cycles.ended.push((10 * second, 11 * second));
        let mut probed = Probed::default();
        let at = [8_900, 9_100, 10_500, 11_400, 11_600].map(|ms| (ms * 1_000_000, 1));
        probed.sort_in(&at, &cycles);
        assert_eq!((probed.beside_cycle.len(), probed.without.len()), (3, 2));
        // One that begins long before and lasts into it.
        probed.sort_in(&[(5 * second, 5 * second)], &cycles);
        assert_eq!(probed.beside_cycle.len(), 4);
    }

    #[test]
    fn the_worst_moment_of_the_disk_is_kept() {
        let asked = BenchBacklog {
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
        let mut disk = DiskUse { worst: Taken::default(), budget: 0.0 };
        for (bytes, jobs) in [(256_000, 1_000), (1_024_000, 1_000), (1_024_000, 2_000)] {
            disk.sample(bytes, jobs, &asked);
        }
        assert_eq!((disk.worst.disk, disk.worst.live), (1_024_000, 256_000));
        assert_eq!(disk.worst.ratio(), 4.0);
        assert!((disk.budget - 1_024_000.0 / (512_000.0 + 2_097_152.0)).abs() < 1e-9);
    }
}
