//! Longshore's side.

use std::collections::HashSet;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Path, Value};
use longshore_publisher::{Batch, Published, ValuePublisher, ValuePublisherOptions, Values};
use longshore_resolver::Cluster;
use longshore_subscriber::{
    DurableValue, Event, SubscribeOptions, Subscriber as Subscribing, Updates,
};

use super::work::{PATHS, Work, due, moment, now_ns, wait_until};

/// Bytes of updates that are committed between two flushes. Two such parts are under way, and a
/// link's queue holds 4 MiB: so none of them is ever without room, and nothing is conflated.
const FLUSH_BYTES: usize = 1024 * 1024;
/// What an update is counted for beside its value.
const UPDATE_BYTES: usize = 8;
/// Updates that may wait for the one who counts them.
const WAITING_MAX: usize = 65_536;

fn paths() -> anyhow::Result<Vec<Path>> {
    Work::paths().map(|text| Ok(Path::new(&text)?)).collect()
}

/// Who publishes.
pub(super) struct Publisher {
    work: Work,
    values: Values,
    published: Vec<Published>,
    batch: Batch,
    /// Serves while it is held.
    _publisher: ValuePublisher,
}

impl Publisher {
    /// Publishes all values, and returns once the resolver has them.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Publisher> {
        let cluster = Some(Cluster::new([resolver.to_string()]));
        let options = ValuePublisherOptions { cluster, ..ValuePublisherOptions::default() };
        let publisher = ValuePublisher::open(options).await?;
        let values = publisher.values();
        let first: Value = work.value(0, &work.payload());
        let all = paths()?.into_iter().map(|path| (path, first.clone()));
        let published = values.publish_all(all)?;
        publisher.write_client().context("there is a resolver")?.flushed(1).await;
        let (work, batch) = (work.clone(), values.batch());
        Ok(Publisher { work, values, published, batch, _publisher: publisher })
    }

    /// As fast as they are taken: while one part goes out the next is committed.
    pub(super) async fn all(&mut self) -> anyhow::Result<()> {
        let commit = self.work.commits.longshore;
        let commits = (FLUSH_BYTES / (commit * (self.work.size + UPDATE_BYTES))).max(1);
        let payload = self.work.payload();
        let (mut done, mut flushing) = (0, None);
        let mut turns = self.published.iter().cycle();
        while done < self.work.updates {
            for _ in 0..commits {
                let some = (self.work.updates - done).min(commit as u64);
                for one in turns.by_ref().take(some as usize) {
                    done += 1;
                    self.batch.update(one, self.work.value::<Value>(done, &payload))?;
                }
                self.batch.commit();
            }
            let values = self.values.clone();
            let next = tokio::spawn(async move { values.flush(None).await });
            if let Some(before) = flushing.replace(next) {
                before.await?;
            }
        }
        if let Some(last) = flushing {
            last.await?;
        }
        Ok(())
    }

    /// Each at its time.
    pub(super) async fn singles(&mut self) -> anyhow::Result<()> {
        let (start, mut turns) = (now_ns(), self.published.iter().cycle());
        for n in 0..self.work.singles() {
            let (at, one) = (due(start, n), turns.next().context("there are values")?);
            wait_until(at);
            one.set(self.work.timed::<Value>(at))?;
        }
        Ok(())
    }
}

/// Who follows.
pub(super) struct Subscriber {
    work: Work,
    updates: Updates,
    /// Held while it follows.
    _held: Vec<DurableValue>,
}

impl Subscriber {
    /// Follows all values, and returns once it has each.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Subscriber> {
        let subscriber = Subscribing::connect(Cluster::new([resolver.to_string()])).await?;
        let mut updates = Updates::new(WAITING_MAX);
        let into = SubscribeOptions {
            into: Some(updates.sink()),
            policy: Policy::DropOldest,
            ..SubscribeOptions::default()
        };
        let held = subscriber.durable_subscribe_all(paths()?, &into);
        let mut known = HashSet::new();
        while known.len() < PATHS {
            known.extend(updates.next().await.iter().map(|(key, _)| *key));
        }
        Ok(Subscriber { work: work.clone(), updates, _held: held })
    }

    /// Until so many have come.
    pub(super) async fn all(&mut self) -> anyhow::Result<()> {
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

    /// How long each took, in nanoseconds.
    pub(super) async fn singles(&mut self) -> anyhow::Result<Vec<u64>> {
        let mut all = Vec::new();
        while all.len() < self.work.singles() as usize {
            let batch = self.updates.next().await;
            let now = now_ns();
            for (_, event) in batch {
                let at = match event {
                    Event::Update(Value::U64(at)) => *at,
                    Event::Update(Value::Bytes(bytes)) => moment(bytes)?,
                    other => bail!("{other:?}"),
                };
                all.push(now.saturating_sub(at));
            }
        }
        Ok(all)
    }
}
