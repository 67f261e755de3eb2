//! Several kinds of one worker with any arrivals, through a publisher: caps, weights and routes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use longshore::KindOptions;
use longshore::prelude::*;
use longshore::testing::TestSystem;
use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// How long a drain may stand still before the test fails.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// All kinds have the same fields, so that a handler of another kind would read their jobs, too.
/// Each carries the name of its kind, and the number of its arrival.
#[derive(Clone, Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/slow", max_attempts = 1)]
struct Slow {
    name: String,
    number: usize,
}

#[derive(Clone, Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/fast", max_attempts = 1)]
struct Fast {
    name: String,
    number: usize,
}

/// A template that matches other paths of the same depth below.
#[derive(Clone, Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/bulk/{name}", max_attempts = 1)]
struct Bulk {
    name: String,
    number: usize,
}

/// What the handlers saw.
#[derive(Default)]
struct Seen {
    /// The kinds of the attempts, in the order of their beginnings.
    begun: Vec<&'static str>,
    slow_running: usize,
    /// Ended jobs of the other kinds.
    others_ended: usize,
    /// The first broken rule. It ends all waits, so that a failure takes no longer than a success.
    broken: Option<String>,
}

async fn enqueue(system: &TestSystem, kinds: &[u8]) -> anyhow::Result<()> {
    for (number, kind) in kinds.iter().enumerate() {
        let (producer, name) = (system.producer(), |name: &str| name.to_owned());
        match kind {
            0 => drop(producer.enqueue(Slow { name: name("slow"), number }).await?),
            1 => drop(producer.enqueue(Fast { name: name("fast"), number }).await?),
            _ => drop(producer.enqueue(Bulk { name: name("bulk"), number }).await?),
        }
    }
    Ok(())
}

/// Runs jobs of three kinds. Slow jobs end only once all others have ended.
async fn run(kinds: &[u8], cap: usize, prefetch: usize) -> anyhow::Result<Vec<&'static str>> {
    let system = TestSystem::start().await?.drain_timeout(STUCK_AFTER);
    enqueue(&system, kinds).await?;
    let others = kinds.iter().filter(|kind| **kind != 0).count();
    let seen = Arc::new(watch::Sender::new(Seen::default()));
    let begin = |kind: &'static str| {
        let seen = seen.clone();
        move |of: &str, path: &longshore::Path| {
            seen.send_modify(|seen| {
                seen.begun.push(kind);
                seen.slow_running += usize::from(kind == "slow");
                if of != kind || !path.as_str().starts_with(&format!("/jobs/{kind}")) {
                    seen.broken = Some(format!("the handler of {kind} has a job of {of}, {path}"));
                } else if seen.slow_running > cap {
                    let running = seen.slow_running;
                    seen.broken = Some(format!("{running} slow jobs run, over the cap of {cap}"));
                }
            });
        }
    };
    let (slow_begin, slow_seen) = (begin("slow"), seen.clone());
    let slow = move |Payload(Slow { name, .. }): Payload<Slow>, path: longshore::Path| {
        slow_begin(&name, &path);
        let seen = slow_seen.clone();
        async move {
            let is_over = |seen: &Seen| seen.others_ended >= others || seen.broken.is_some();
            seen.subscribe().wait_for(is_over).await?;
            seen.send_modify(|seen| seen.slow_running -= 1);
            anyhow::Ok(())
        }
    };
    let (fast_begin, fast_seen) = (begin("fast"), seen.clone());
    let fast = move |Payload(Fast { name, .. }): Payload<Fast>, path: longshore::Path| {
        fast_begin(&name, &path);
        fast_seen.send_modify(|seen| seen.others_ended += 1);
        async { anyhow::Ok(()) }
    };
    let (bulk_begin, bulk_seen) = (begin("bulk"), seen.clone());
    let bulk = move |Payload(Bulk { name, .. }): Payload<Bulk>, path: longshore::Path| {
        bulk_begin(&name, &path);
        bulk_seen.send_modify(|seen| seen.others_ended += 1);
        async { anyhow::Ok(()) }
    };
    let worker = system.worker().handle_with(slow, KindOptions::new().cap(cap)).handle(fast);
    let worker = worker.handle(bulk).concurrency(cap + 1).prefetch(prefetch);
    let drained = system.drain(worker, |worker| worker.run()).await;
    let broken = seen.borrow().broken.clone();
    anyhow::ensure!(broken.is_none(), "{}", broken.unwrap_or_default());
    let drained = drained.context("a slow kind blocks the others")?;
    anyhow::ensure!(drained.completed == kinds.len() as u64, "{drained:?}");
    system.stop().await;
    Ok(seen.send_replace(Seen::default()).begun)
}

/// The kinds of the jobs in the order in which one handler began them, by these weights.
async fn order(kinds: &[u8], weights: [u16; 2], prefetch: usize) -> anyhow::Result<Vec<u8>> {
    let system = TestSystem::start().await?.drain_timeout(STUCK_AFTER);
    enqueue(&system, kinds).await?;
    let begun = Arc::new(Mutex::new(Vec::new()));
    let (one, other) = (begun.clone(), begun.clone());
    let slow = move |_: Payload<Slow>| {
        one.lock().unwrap().push(0);
        async { anyhow::Ok(()) }
    };
    let fast = move |_: Payload<Fast>| {
        other.lock().unwrap().push(1);
        async { anyhow::Ok(()) }
    };
    let [slow_weight, fast_weight] = weights.map(|weight| KindOptions::new().weight(weight));
    let worker = system.worker().handle_with(slow, slow_weight).handle_with(fast, fast_weight);
    system.drain(worker.concurrency(1).prefetch(prefetch), |worker| worker.run()).await?;
    system.stop().await;
    let begun = std::mem::take(&mut *begun.lock().unwrap());
    Ok(begun)
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
        .unwrap()
}

fn config() -> ProptestConfig {
    // Each attempt to shrink a failure may take as long as the failure.
    let max_shrink_time = 2 * STUCK_AFTER.as_millis() as u32;
    ProptestConfig { failure_persistence: None, max_shrink_time, ..ProptestConfig::with_cases(12) }
}

proptest! {
    #![proptest_config(config())]

    /// A slow kind never blocks a fast one beyond its cap, its cap holds, and each job reaches the
    /// handler of its kind.
    #[test]
    fn a_slow_kind_blocks_no_other_beyond_its_cap(
        kinds in vec(prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => Just(2)], 1..60),
        cap in 1usize..4,
        prefetch in 0usize..6,
    ) {
        let begun = block_on(run(&kinds, cap, prefetch));
        let count = |name: &str| begun.iter().filter(|one| **one == name).count();
        let expected = [0u8, 1, 2].map(|kind| kinds.iter().filter(|one| **one == kind).count());
        prop_assert_eq!(["slow", "fast", "bulk"].map(count), expected);
    }

    /// While both kinds have jobs, each gets its share, up to one round of the weights and what was
    /// delivered before.
    #[test]
    fn kinds_run_in_proportion_to_their_weights(
        kinds in Just((0..80u8).map(|n| n % 2).collect::<Vec<u8>>()).prop_shuffle(),
        weights in [1u16..6, 1u16..6],
        prefetch in 0usize..6,
    ) {
        let begun = block_on(order(&kinds, weights, prefetch));
        prop_assert_eq!(begun.len(), kinds.len());
        let left = |n: usize, kind: u8| begun[n..].iter().filter(|one| **one == kind).count();
        // Until one kind has so few jobs left that all of them are here.
        let many = |n: &usize| [0, 1].iter().all(|kind| left(*n, *kind) > prefetch + 1);
        let both = (0..begun.len()).take_while(many).count();
        let all = f64::from(weights[0] + weights[1]);
        let expected = both as f64 * f64::from(weights[0]) / all;
        let first = begun[..both].iter().filter(|one| **one == 0).count() as f64;
        let tolerance = all + prefetch as f64 + 1.0;
        prop_assert!((first - expected).abs() <= tolerance, "{first} of {both}, not {expected}");
    }
}
