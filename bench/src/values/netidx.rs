//! netidx's side: anonymous, on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use futures::channel::mpsc::{Receiver, channel};
use netidx::path::Path;
use netidx::publisher::{Publisher as Publishing, PublisherBuilder, Val};
use netidx::resolver_client::DesiredAuth;
use netidx::subscriber::{Dval, Event, SubId, SubscriberBuilder, UpdatesFlags, Value};
use poolshark::global::GPooled;
use tokio::time::timeout;

use super::work::{Work, due, moment, now_ns, wait_until};
use crate::resolver::netidx::client_config;

/// Batches that may wait for the one who counts them.
const WAITING_MAX: usize = 10;
/// After so long without an update there is none under way.
const SETTLES_WITHIN: Duration = Duration::from_millis(500);

/// Who publishes.
pub(super) struct Publisher {
    work: Work,
    publisher: Publishing,
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

    /// As fast as they are taken: a commit waits while three batches wait for a subscriber.
    pub(super) async fn all(&mut self) -> anyhow::Result<()> {
        let payload = self.work.payload();
        let mut done = 0;
        let mut turns = self.published.iter().cycle();
        while done < self.work.updates {
            let mut batch = self.publisher.start_batch();
            let some = (self.work.updates - done).min(self.work.commits.netidx as u64);
            for one in turns.by_ref().take(some as usize) {
                done += 1;
                one.update(&mut batch, self.work.value::<Value>(done, &payload));
            }
            batch.commit(None).await;
        }
        Ok(())
    }

    /// Each at its time.
    pub(super) async fn singles(&mut self) -> anyhow::Result<()> {
        let (start, mut turns) = (now_ns(), self.published.iter().cycle());
        for n in 0..self.work.singles() {
            let (at, one) = (due(start, n), turns.next().context("there are values")?);
            wait_until(at);
            let mut batch = self.publisher.start_batch();
            one.update(&mut batch, self.work.timed::<Value>(at));
            batch.commit(None).await;
        }
        Ok(())
    }
}

/// Who follows.
pub(super) struct Subscriber {
    work: Work,
    updates: Receiver<GPooled<Vec<(SubId, Event)>>>,
    /// Held while it follows.
    _held: Vec<Dval>,
}

impl Subscriber {
    /// Follows all values, and returns once it has each.
    pub(super) async fn prepare(work: &Work, resolver: SocketAddr) -> anyhow::Result<Subscriber> {
        let subscriber = SubscriberBuilder::new(client_config(resolver)?)
            .desired_auth(DesiredAuth::Anonymous)
            .build()?;
        let (sender, mut updates) = channel(WAITING_MAX);
        // Its documentation says of this flag that it is faster.
        let flags = UpdatesFlags::STOP_COLLECTING_LAST;
        let subscribe = |path: String| {
            subscriber.subscribe_updates(Path::from(path), [(flags, sender.clone())])
        };
        let held: Vec<Dval> = Work::paths().map(subscribe).collect();
        for one in &held {
            one.wait_subscribed().await?;
        }
        // What it had at the beginning may come first.
        while timeout(SETTLES_WITHIN, updates.next()).await.is_ok() {}
        Ok(Subscriber { work: work.clone(), updates, _held: held })
    }

    /// Until so many have come.
    pub(super) async fn all(&mut self) -> anyhow::Result<()> {
        let mut received = 0;
        while received < self.work.updates {
            let mut batch = self.updates.next().await.context("the subscription is over")?;
            for (_, event) in batch.drain(..) {
                match event {
                    Event::Update(_) => received += 1,
                    Event::Unsubscribed => bail!("a subscription is over"),
                }
            }
        }
        Ok(())
    }

    /// How long each took, in nanoseconds.
    pub(super) async fn singles(&mut self) -> anyhow::Result<Vec<u64>> {
        let mut all = Vec::new();
        while all.len() < self.work.singles() as usize {
            let mut batch = self.updates.next().await.context("the subscription is over")?;
            let now = now_ns();
            for (_, event) in batch.drain(..) {
                let at = match event {
                    Event::Update(Value::U64(at)) => at,
                    Event::Update(Value::Bytes(bytes)) => moment(&bytes)?,
                    other => bail!("{other:?}"),
                };
                all.push(now.saturating_sub(at));
            }
        }
        Ok(all)
    }
}
