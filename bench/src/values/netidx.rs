//! netidx's publisher and subscriber: anonymous, on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use futures::channel::mpsc::{Receiver, channel};
use netidx::path::Path;
use netidx::publisher::{Publisher as NetidxPublisher, PublisherBuilder, Val};
use netidx::resolver_client::DesiredAuth;
use netidx::subscriber::{Dval, Event, SubId, SubscriberBuilder, UpdatesFlags, Value};
use poolshark::global::GPooled;
use tokio::time::timeout;

use super::work::{Work, due, now_ns, timestamp, wait_until};
use crate::resolver::netidx::client_config;

/// The maximum number of batches that wait for the subscribing program.
const QUEUED_MAX: usize = 10;
/// After this time without an update, no more initial values are expected.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Publishes all values.
pub(super) struct Publisher {
    work: Work,
    publisher: NetidxPublisher,
    published: Vec<Val>,
}

impl Publisher {
    /// Publishes all values, and returns once the resolver has them.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Publisher> {
        let publisher = PublisherBuilder::new(client_config(resolver)?)
            .desired_auth(DesiredAuth::Anonymous)
            .bind_cfg(Some("local".parse()?))
            .build()
            .await?;
        let payload = work.payload();
        let publish = |path| publisher.publish(Path::from(path), work.value::<Value>(0, &payload));
        let published = Work::paths().map(publish).collect::<anyhow::Result<_>>()?;
        publisher.flushed().await;
        Ok(Publisher { work: work.clone(), publisher, published })
    }

    /// Publishes updates as fast as possible. A commit waits while three batches are queued for a
    /// subscriber.
    pub(super) async fn publish_all(&mut self) -> anyhow::Result<()> {
        let payload = self.work.payload();
        let mut done = 0;
        let mut turns = self.published.iter().cycle();
        while done < self.work.updates {
            let mut batch = self.publisher.start_batch();
            let count = (self.work.updates - done).min(self.work.commits.netidx as u64);
            for value in turns.by_ref().take(count as usize) {
                done += 1;
                value.update(&mut batch, self.work.value::<Value>(done, &payload));
            }
            batch.commit(None).await;
        }
        Ok(())
    }

    /// Publishes single updates, each when it is due.
    pub(super) async fn publish_singles(&mut self) -> anyhow::Result<()> {
        let (start, mut turns) = (now_ns(), self.published.iter().cycle());
        for n in 0..self.work.singles() {
            let (at, value) = (due(start, n), turns.next().context("there are values")?);
            wait_until(at);
            let mut batch = self.publisher.start_batch();
            value.update(&mut batch, self.work.timestamp_value::<Value>(at));
            batch.commit(None).await;
        }
        Ok(())
    }
}

/// Subscribes to all values.
pub(super) struct Subscriber {
    work: Work,
    updates: Receiver<GPooled<Vec<(SubId, Event)>>>,
    /// The values stay subscribed until these are dropped.
    _subscriptions: Vec<Dval>,
}

impl Subscriber {
    /// Subscribes to all values; returns once it has received each.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Subscriber> {
        let subscriber = SubscriberBuilder::new(client_config(resolver)?)
            .desired_auth(DesiredAuth::Anonymous)
            .build()?;
        let (sender, mut updates) = channel(QUEUED_MAX);
        // netidx documents this flag as faster.
        let flags = UpdatesFlags::STOP_COLLECTING_LAST;
        let subscribe = |path: String| {
            subscriber.subscribe_updates(Path::from(path), [(flags, sender.clone())])
        };
        let subscriptions: Vec<Dval> = Work::paths().map(subscribe).collect();
        for subscription in &subscriptions {
            subscription.wait_subscribed().await?;
        }
        // The initial values may arrive first; discard them.
        while timeout(SETTLE_TIME, updates.next()).await.is_ok() {}
        Ok(Subscriber { work: work.clone(), updates, _subscriptions: subscriptions })
    }

    /// Returns once all updates have been received.
    pub(super) async fn receive_all(&mut self) -> anyhow::Result<()> {
        let mut received = 0;
        while received < self.work.updates {
            let mut batch = self.updates.next().await.context("the subscription has ended")?;
            for (_, event) in batch.drain(..) {
                match event {
                    Event::Update(_) => received += 1,
                    Event::Unsubscribed => bail!("a subscription has ended"),
                }
            }
        }
        Ok(())
    }

    /// The latency of each single update, in nanoseconds.
    pub(super) async fn receive_singles(&mut self) -> anyhow::Result<Vec<u64>> {
        let mut all = Vec::new();
        while all.len() < self.work.singles() as usize {
            let mut batch = self.updates.next().await.context("the subscription has ended")?;
            let now = now_ns();
            for (_, event) in batch.drain(..) {
                let at = match event {
                    Event::Update(Value::U64(at)) => at,
                    Event::Update(Value::Bytes(bytes)) => timestamp(&bytes)?,
                    other => bail!("{other:?}"),
                };
                all.push(now.saturating_sub(at));
            }
        }
        Ok(all)
    }
}
