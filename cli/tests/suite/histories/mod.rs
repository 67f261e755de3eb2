//! What workers did with jobs that have keys, over crashes of workers and publishers: recorded by
//! the workers themselves, and judged afterwards by the record alone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

mod checker;

use std::time::{Duration, Instant};

use longshore::{Backoff, Path, new_job};

use crate::common::eventually;
use crate::common::harness::{Harness, jobs_of};
use crate::common::long;
use crate::common::worker::{QUEUE, WorkerProcess, recorded_lines};
use checker::{Run, check_concurrency, check_order, check_rate, check_shares, runs_of};

/// The tenants' weights; each tenant has a tenth of the keys.
const WEIGHTS: [u64; 10] = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
const WORKERS: usize = 3;
const CONCURRENCY: usize = 16;
const PREFETCH: usize = 4;

/// How many jobs of a limit key may run at once.
const MOST: usize = 2;

struct Sizes {
    jobs: u64,
    keys: u64,
    worker_kills: u64,
    publisher_kills: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn order_limits_and_shares_hold_over_crashes() {
    let sizes = match long() {
        true => Sizes { jobs: 100_000, keys: 1_000, worker_kills: 40, publisher_kills: 10 },
        false => Sizes { jobs: 6_000, keys: 1_000, worker_kills: 2, publisher_kills: 2 },
    };
    let mut harness = Harness::start().await;
    let most = MOST.to_string();
    let limit = ["limit", "set", "two", QUEUE, "--scope", "key", "--concurrency", &most];
    harness.run(&limit).code(0);
    let tenant_of = |job: u64| (job % WEIGHTS.len() as u64) as usize;
    // Half of the jobs have an order key; the others have a limit key, of which two may run, so
    // that each tenant has a job that could run: crashes block keys for up to 30 s.
    let has_order = |job: u64| (job / sizes.keys).is_multiple_of(2);
    // Eight jobs of a tenant in turn: without a limit they would run at once.
    let limit_of = |job: u64| job % 10 + 10 * (job / 80 % 100);
    let jobs = (0..sizes.jobs).map(|n| {
        let tenant = tenant_of(n);
        let mut job = new_job(Path::new(QUEUE).unwrap(), n.to_string());
        job.options.backoff = Some(Backoff::Fixed(10));
        let job = job.fair_key(format!("tenant-{tenant}"), WEIGHTS[tenant] as u16);
        match has_order(n) {
            true => job.order_key(format!("key-{}", n % sizes.keys)),
            false => job.limit_key(format!("key-{}", limit_of(n))),
        }
    });
    harness.enqueue(jobs.collect()).await;

    let mut started = 0;
    let mut start = |harness: &Harness| {
        started += 1;
        WorkerProcess::start_recording(harness, &format!("worker-{started}"), CONCURRENCY, PREFETCH)
    };
    let mut workers: Vec<WorkerProcess> = (0..WORKERS).map(|_| start(&harness)).collect();
    let kills = sizes.worker_kills + sizes.publisher_kills;
    for kill in 0..kills {
        let enough = sizes.jobs * (kill + 1) / (kills + 2);
        let has_enough = || async { harness.stat(QUEUE).await.completed >= enough };
        eventually("jobs have completed since the last crash", has_enough).await;
        if kill % kills.div_ceil(sizes.publisher_kills) == 0 {
            harness.kill_publisher();
            harness.restart_publisher();
        } else {
            let worker = kill as usize % WORKERS;
            workers[worker].kill();
            workers[worker] = start(&harness);
        }
    }
    let all = || async { harness.stat(QUEUE).await.completed == sizes.jobs };
    eventually("all jobs have completed", all).await;
    for worker in &mut workers {
        worker.stop().await;
    }

    let runs: Vec<Run> = recorded_lines(&harness).iter().flat_map(|lines| runs_of(lines)).collect();
    check_concurrency(&runs, MOST, |job| (!has_order(job)).then(|| limit_of(job))).unwrap();
    // A job without a key has an order of its own.
    let key_of = |job| if has_order(job) { job % sizes.keys } else { sizes.keys + job };
    check_order(&runs, sizes.jobs, key_of).unwrap();
    // So many of its jobs have no order key that it had work until then.
    let some = sizes.jobs / WEIGHTS.len() as u64 * 2 / 5;
    check_shares(&runs, (some, 0.1), &WEIGHTS, tenant_of).unwrap();
}

/// What may start in a second, and at once.
const RATE: u64 = 100;
const BURST: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_over_crashes() {
    let (seconds, kills) = if long() { (600, 3) } else { (4, 1) };
    let jobs = RATE * seconds;
    let mut harness = Harness::start().await;
    let (rate, burst) = (format!("{RATE}/s"), BURST.to_string());
    harness.run(&["limit", "set", "api", QUEUE, "--rate", &rate, "--burst", &burst]).code(0);
    let numbered = (0..jobs).map(|n| new_job(Path::new(QUEUE).unwrap(), n.to_string()));
    harness.enqueue(numbered.collect()).await;
    let began = Instant::now();
    let mut worker = WorkerProcess::start_recording(&harness, "worker", CONCURRENCY, PREFETCH);
    for kill in 0..kills {
        let enough = jobs * (kill + 1) / (kills + 1);
        while harness.stat(QUEUE).await.completed < enough {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        harness.kill_publisher();
        harness.restart_publisher();
    }
    while harness.stat(QUEUE).await.completed < jobs {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = began.elapsed();
    worker.stop().await;

    // Handlers begin after their deliveries, by the speed of the machine: the publisher's times
    // count.
    let mut starts = Vec::new();
    for job in jobs_of(&harness.direct_queues(0), QUEUE).await {
        starts.extend(job.attempts.iter().map(|attempt| attempt.delivered_at));
    }
    assert!(starts.len() as u64 >= jobs, "{} deliveries of {jobs} jobs", starts.len());
    // Its wall clock and its monotonic one, in whole milliseconds each.
    check_rate(&starts, RATE, BURST, 5).unwrap();
    println!("{jobs} jobs at {RATE}/s in {took:?}, with {kills} kills");
    if long() {
        let least = Duration::from_millis(seconds * 1_000 * 100 / 97);
        assert!(took < least, "{took:?}: less than 0.97 of the rate");
    }
}
