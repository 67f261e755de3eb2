//! A subscriber of live values, in a process of its own, driven by words on standard input. Each is
//! answered with one line:
//!
//! | Word | What is done |
//! |---|---|
//! | `time` | it counts anew, and takes values for the moments that they were meant to go out |
//! | `until N` | waits until N updates have come since it began to count, or none has come for some seconds |
//! | `now` | says what has come so far |

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use longshore::values::{
    DurableValue, Event, KeyedEvent, Policy, SubscribeOptions, Subscriber, SubscriberOptions,
    Updates,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{Instant, sleep_until, timeout};

use super::monotonic_ns;
use super::producer::next_word;
use super::value_publisher::{number_of, value_path};
use crate::arguments::BenchValuesPart;
use crate::commands::Context;

/// Updates that may wait for the one who counts them: enough that none is left out while that one
/// waits for a processor.
const WAITING_MAX: usize = 1_048_576;
/// How long its subscriptions may take to be made.
const ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// What has not come after so long without any update does not come.
const STALLED_AFTER: Duration = Duration::from_secs(3);

pub(crate) async fn run(arguments: BenchValuesPart, mut context: Context) -> anyhow::Result<()> {
    let name = SubscriberOptions::default().name;
    let subscriber = Subscriber::connect(context.cluster()).await?;
    let mut updates = Updates::new(WAITING_MAX);
    let policy = if arguments.conflate { Policy::Conflate } else { Policy::DropOldest };
    let into =
        SubscribeOptions { into: Some(updates.sink()), policy, ..SubscribeOptions::default() };
    let paths = (0..arguments.paths).map(|n| value_path(&arguments.path, n));
    let held = subscriber.durable_subscribe_all(paths.collect::<anyhow::Result<_>>()?, &into);
    let all_alive = all_have_a_value(&held, &mut updates);
    timeout(ALIVE_WITHIN, all_alive).await.context("no publisher was reached")?;

    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut counted = Counted::new()?;
    context.output.json(&json!({ "ready": "subscriber", "name": name }))?;
    loop {
        let word = tokio::select! {
            word = next_word(&mut input) => word,
            batch = updates.next() => {
                counted.count(batch);
                continue;
            }
        };
        // The end of the measurement ends this process.
        let Ok(word) = word else { return Ok(()) };
        match word.split(' ').collect::<Vec<_>>()[..] {
            ["time"] => counted = Counted { timed: true, ..Counted::new()? },
            ["now"] => {}
            ["until", wanted] => {
                let wanted = wanted.parse().with_context(|| format!("'{wanted}'"))?;
                counted.until(wanted, &mut updates).await;
            }
            _ => bail!("the word '{word}' is not known"),
        }
        context.output.json(&counted.report())?;
    }
}

/// Waits until each has told its first value.
async fn all_have_a_value(held: &[DurableValue], updates: &mut Updates) {
    let mut without: HashSet<_> = held.iter().map(DurableValue::key).collect();
    while !without.is_empty() {
        for (key, event) in updates.next().await {
            if matches!(event, Event::Update(_)) {
                without.remove(key);
            }
        }
    }
}

/// What has come.
struct Counted {
    received: u64,
    /// How often a subscription was lost.
    dead: u64,
    /// When the last updates came.
    last_ns: u64,
    timed: bool,
    latencies: Histogram<u64>,
}

impl Counted {
    fn new() -> anyhow::Result<Counted> {
        // Ten minutes are the histogram's end; what is later counts as that.
        let latencies = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        Ok(Counted { received: 0, dead: 0, last_ns: monotonic_ns(), timed: false, latencies })
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
            let stalled = Instant::now() + STALLED_AFTER;
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
