//! Longshore's publisher and subscriber.

use std::collections::HashSet;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Path, Value};
use longshore_publisher::{Batch, Published, ValuePublisher, Values};
use longshore_resolver::Cluster;
use longshore_subscriber::{
    DurableValue, Event, SubscribeOptions, Subscriber as ValueSubscriber, Updates,
};

use super::work::{PATHS, Work, due, now_ns, timestamp, wait_until};

/// Bytes of updates between two flushes. Two such parts are in flight, and a link's queue has 4
/// MiB, so it never overflows and no update is conflated.
const FLUSH_BYTES: usize = 1024 * 1024;
/// What an update counts in the queue in addition to its value.
const UPDATE_BYTES: usize = 8;
/// The maximum number of updates that wait for the subscribing program.
const QUEUED_MAX: usize = 65_536;

fn paths() -> anyhow::Result<Vec<Path>> {
    Work::paths().map(|text| Ok(Path::new(&text)?)).collect()
}

/// Publishes all values.
pub(super) struct Publisher {
    work: Work,
    values: Values,
    published: Vec<Published>,
    batch: Batch,
    /// Serves the values until it is dropped.
    _publisher: ValuePublisher,
}

impl Publisher {
    /// Publishes all values, and returns once the resolver has them.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Publisher> {
        let publisher = ValuePublisher::connect(Cluster::new([resolver.to_string()])).await?;
        let values = publisher.values();
        let first: Value = work.value(0, &work.payload());
        let all = paths()?.into_iter().map(|path| (path, first.clone()));
        let published = values.publish_all(all)?;
        publisher.ready().await;
        let (work, batch) = (work.clone(), values.batch());
        Ok(Publisher { work, values, published, batch, _publisher: publisher })
    }

    /// Publishes updates as fast as possible: commits the next part while the last is flushed.
    pub(super) async fn publish_all(&mut self) -> anyhow::Result<()> {
        let commit = self.work.commits.longshore;
        let commits = (FLUSH_BYTES / (commit * (self.work.size + UPDATE_BYTES))).max(1);
        let payload = self.work.payload();
        let (mut done, mut flushing) = (0, None);
        let mut turns = self.published.iter().cycle();
        while done < self.work.updates {
            for _ in 0..commits {
                let count = (self.work.updates - done).min(commit as u64);
                for value in turns.by_ref().take(count as usize) {
                    done += 1;
                    self.batch.update(value, self.work.value::<Value>(done, &payload))?;
                }
                self.batch.commit();
            }
            let values = self.values.clone();
            let next = tokio::spawn(async move { values.flush(None).await });
            if let Some(previous) = flushing.replace(next) {
                previous.await?;
            }
        }
        if let Some(last) = flushing {
            last.await?;
        }
        Ok(())
    }

    /// Publishes single updates, each when it is due.
    pub(super) async fn publish_singles(&mut self) -> anyhow::Result<()> {
        let (start, mut turns) = (now_ns(), self.published.iter().cycle());
        for n in 0..self.work.singles() {
            let (at, value) = (due(start, n), turns.next().context("there are values")?);
            wait_until(at);
            value.set(self.work.timestamp_value::<Value>(at))?;
        }
        Ok(())
    }
}

/// Subscribes to all values.
pub(super) struct Subscriber {
    work: Work,
    updates: Updates,
    /// The values stay subscribed until these are dropped.
    _subscriptions: Vec<DurableValue>,
}

impl Subscriber {
    /// Subscribes to all values; returns once it has received each.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Subscriber> {
        let subscriber = ValueSubscriber::connect(Cluster::new([resolver.to_string()]));
        let mut updates = Updates::new(QUEUED_MAX);
        let into = SubscribeOptions {
            into: Some(updates.sink()),
            policy: Policy::DropOldest,
            ..SubscribeOptions::default()
        };
        let subscriptions = subscriber.durable_subscribe_all(paths()?, &into);
        let mut known = HashSet::new();
        while known.len() < PATHS {
            known.extend(updates.next().await.iter().map(|(key, _)| *key));
        }
        Ok(Subscriber { work: work.clone(), updates, _subscriptions: subscriptions })
    }

    /// Returns once all updates have been received.
    pub(super) async fn receive_all(&mut self) -> anyhow::Result<()> {
        let mut received = 0;
        while received < self.work.updates {
            for (_, event) in self.updates.next().await {
                match event {
                    Event::Update(_) => received += 1,
                    Event::Dead(reason) => bail!("{reason}"),
                }
            }
        }
        Ok(())
    }

    /// The latency of each single update, in nanoseconds.
    pub(super) async fn receive_singles(&mut self) -> anyhow::Result<Vec<u64>> {
        let mut all = Vec::new();
        while all.len() < self.work.singles() as usize {
            let batch = self.updates.next().await;
            let now = now_ns();
            for (_, event) in batch {
                let at = match event {
                    Event::Update(Value::U64(at)) => *at,
                    Event::Update(Value::Bytes(bytes)) => timestamp(bytes)?,
                    other => bail!("{other:?}"),
                };
                all.push(now.saturating_sub(at));
            }
        }
        Ok(all)
    }
}
