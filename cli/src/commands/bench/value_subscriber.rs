//! A subscriber of live values in a separate process, driven by commands on standard input. It
//! answers each command with one line:
//!
//! | Command | Effect |
//! |---|---|
//! | `time` | resets the counters, and reads values as send times |
//! | `until N` | waits for N updates since the reset, or until none arrives for some seconds |
//! | `now` | reports the counters |

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use longshore::values::{
    DurableValue, Event, KeyedEvent, Policy, SubscribeOptions, Subscriber, Updates,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{Instant, sleep_until, timeout};

use super::monotonic_ns;
use super::producer::next_command;
use super::value_publisher::{number_of, value_path};
use crate::arguments::BenchValuesProcess;
use crate::commands::Context;

/// Updates that may wait to be counted: enough that none is dropped while this process waits for a
/// CPU.
const WAITING_MAX: usize = 1_048_576;
/// The longest wait for the subscriptions.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(20);
/// After this long without an update the missing ones count as lost.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) async fn run(arguments: BenchValuesProcess, mut context: Context) -> anyhow::Result<()> {
    let name = format!("subscriber-{}", std::process::id());
    let subscriber = Subscriber::builder().name(&name).connect(context.cluster());
    let mut updates = Updates::new(WAITING_MAX);
    let policy = if arguments.conflate { Policy::Conflate } else { Policy::DropOldest };
    let into =
        SubscribeOptions { into: Some(updates.sink()), policy, ..SubscribeOptions::default() };
    let paths = (0..arguments.paths).map(|n| value_path(&arguments.path, n));
    let subscriptions =
        subscriber.durable_subscribe_all(paths.collect::<anyhow::Result<_>>()?, &into);
    let all_alive = all_have_a_value(&subscriptions, &mut updates);
    timeout(SUBSCRIBE_TIMEOUT, all_alive).await.context("no publisher was reached")?;

    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut counter = UpdateCounter::new()?;
    context.output.json(&json!({ "ready": "subscriber", "name": name }))?;
    loop {
        let command = tokio::select! {
            command = next_command(&mut input) => command,
            batch = updates.next() => {
                counter.count(batch);
                continue;
            }
        };
        // Standard input ends with the measurement.
        let Ok(command) = command else { return Ok(()) };
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["time"] => counter = UpdateCounter { timed: true, ..UpdateCounter::new()? },
            ["now"] => {}
            ["until", wanted] => {
                let wanted = wanted.parse().with_context(|| format!("'{wanted}'"))?;
                counter.until(wanted, &mut updates).await;
            }
            _ => bail!("unknown command '{command}'"),
        }
        context.output.json(&counter.report())?;
    }
}

/// Waits for the first value of each subscription.
async fn all_have_a_value(subscriptions: &[DurableValue], updates: &mut Updates) {
    let mut without: HashSet<_> = subscriptions.iter().map(DurableValue::key).collect();
    while !without.is_empty() {
        for (key, event) in updates.next().await {
            if matches!(event, Event::Update(_)) {
                without.remove(key);
            }
        }
    }
}

/// Counts received updates.
struct UpdateCounter {
    received: u64,
    /// The number of lost subscriptions.
    dead: u64,
    /// The time of the last updates.
    last_ns: u64,
    timed: bool,
    latencies: Histogram<u64>,
}

impl UpdateCounter {
    fn new() -> anyhow::Result<UpdateCounter> {
        // Latencies above ten minutes count as ten minutes.
        let latencies = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        Ok(UpdateCounter { received: 0, dead: 0, last_ns: monotonic_ns(), timed: false, latencies })
    }

    fn count(&mut self, batch: &[KeyedEvent]) {
        let now = monotonic_ns();
        for (_, event) in batch {
            let Event::Update(value) = event else {
                self.dead += 1;
                continue;
            };
            self.received += 1;
            if self.timed
                && let Some(at) = number_of(value)
            {
                self.latencies.saturating_record(now.saturating_sub(at).max(1));
            }
        }
        self.last_ns = now;
    }

    async fn until(&mut self, wanted: u64, updates: &mut Updates) {
        while self.received < wanted {
            let stalled = Instant::now() + STALL_TIMEOUT;
            tokio::select! {
                batch = updates.next() => self.count(batch),
                () = sleep_until(stalled) => return,
            }
        }
    }

    fn report(&self) -> Value {
        let us = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        json!({
            "received": self.received, "dead": self.dead, "last_ns": self.last_ns,
            "p50_us": us(0.5), "p99_us": us(0.99), "max_us": us(1.0),
        })
    }
}
