//! The feed: all changes of jobs at every publisher, optionally after a snapshot.

mod cursor;
mod follower;
mod items;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use hashbrown::HashMap;
use longshore_protocol::{Glob, PublisherId, PublisherInfo};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::cursor::{FeedCursor, Start};
use self::follower::Follower;
pub use self::items::{FeedFrom, FeedItem, FeedLoss, FeedPositions, FeedUpdate};
use super::client::Queues;
use crate::directory::Directory;

/// Most unread items. Beyond that, publishers wait, and one that waits too long drops the feed's
/// tail ([`FeedLoss::TooOld`]). An item has at most 1,000 jobs or 10,000 events.
const ITEMS_MAX: usize = 16;

/// A feed of all publishers that could have matching queues ([`Queues::feed`]). Ends when it is
/// dropped.
#[derive(Debug)]
pub struct Feed {
    items: mpsc::Receiver<FeedItem>,
    seen: FeedPositions,
    /// Each publisher starts with a snapshot.
    snapshot_first: bool,
    /// Publishers with an incomplete snapshot, which have no position.
    partial: hashbrown::HashSet<PublisherId>,
    _following: JoinSet<()>,
}

impl Queues {
    /// Follows the changes of jobs in all matching queues, at every publisher that could have some,
    /// including later ones. Reconnects and resumes by itself. Needs a tokio runtime.
    ///
    /// At most 16 items wait to be read; then publishers wait, too. If a reader is so slow that a
    /// publisher drops changes, the feed reports [`FeedLoss::TooOld`]: gaps are never silent.
    ///
    /// ```no_run
    /// # mod longshore { pub use {longshore_producer::*, longshore_protocol::*}; }
    /// use longshore::{FeedFrom, FeedUpdate, Glob, Queues, QueuesBuilder};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let queues = Queues::connect("127.0.0.1");
    /// let mut feed = queues.feed(Glob::new("/jobs/**")?, FeedFrom::Now);
    /// while let Some(item) = feed.next().await {
    ///     if let FeedUpdate::Changes(changes) = item.update {
    ///         for event in &changes.events {
    ///             let path = &changes.paths[event.path as usize];
    ///             println!("{path} {} {}", event.job, event.change);
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn feed(&self, pattern: Glob, from: FeedFrom) -> Feed {
        let (sender, items) = mpsc::channel(ITEMS_MAX);
        let seen = match &from {
            FeedFrom::After(positions) => positions.clone(),
            FeedFrom::Now | FeedFrom::Snapshot => FeedPositions::default(),
        };
        let snapshot_first = from != FeedFrom::Now;
        let mut following = JoinSet::new();
        following.spawn(follow_all(self.clone(), pattern, from, sender));
        Feed { items, seen, snapshot_first, partial: Default::default(), _following: following }
    }
}

impl Feed {
    /// Waits for the next item. Returns `None` only while the runtime shuts down, or if the cluster
    /// has no replicas. Cancel safe.
    pub async fn next(&mut self) -> Option<FeedItem> {
        poll_fn(|context| self.poll_item(context)).await
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        let item = ready!(self.items.poll_recv(context));
        if let Some(item) = &item {
            self.see(item);
        }
        Poll::Ready(item)
    }

    /// Moves the positions past the item.
    fn see(&mut self, item: &FeedItem) {
        let id = item.publisher.id;
        match &item.update {
            // With a snapshot, the position counts only after its end.
            FeedUpdate::Follows { at } if !self.snapshot_first => {
                self.seen.0.entry(id).or_insert(*at);
            }
            FeedUpdate::SnapshotBegins => {
                self.partial.insert(id);
                self.seen.0.remove(&id);
            }
            FeedUpdate::SnapshotEnds { at } => {
                self.partial.remove(&id);
                self.seen.0.insert(id, *at);
            }
            FeedUpdate::Changes(changes) => {
                if !self.partial.contains(&id) {
                    self.seen.0.insert(id, changes.upto);
                }
            }
            FeedUpdate::Lost(_) => {
                self.seen.0.remove(&id);
            }
            FeedUpdate::Follows { .. } | FeedUpdate::Jobs(_) | FeedUpdate::Away { .. } => {}
        }
    }

    /// The positions after the items returned by [`Feed::next`]: another feed may resume there with
    /// [`FeedFrom::After`]. Publishers with an incomplete snapshot are not listed.
    pub fn positions(&self) -> FeedPositions {
        self.seen.clone()
    }
}

impl Stream for Feed {
    type Item = FeedItem;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        self.get_mut().poll_item(context)
    }
}

/// Follows every publisher, including later ones, each in a task of its own.
async fn follow_all(queues: Queues, pattern: Glob, from: FeedFrom, items: mpsc::Sender<FeedItem>) {
    let mut following = FollowAll {
        queues: queues.clone(),
        pattern: pattern.clone(),
        from,
        items,
        known: HashMap::new(),
        tasks: JoinSet::new(),
    };
    match &queues.requester.directory {
        Directory::Named(publishers) => {
            publishers.iter().for_each(|publisher| following.add(publisher.clone()));
        }
        Directory::Resolver(client) if !client.has_replicas() => {
            tracing::error!("a feed ends: no resolver replica is configured");
        }
        Directory::Resolver(client) => {
            let mut watch = client.watch_publishers(pattern);
            loop {
                // An unlisted publisher is still retried: publishers are unlisted while they
                // restart.
                watch.changed().await.publishers.into_iter().for_each(|p| following.add(p));
            }
        }
    }
    while following.tasks.join_next().await.is_some() {}
}

struct FollowAll {
    queues: Queues,
    pattern: Glob,
    from: FeedFrom,
    items: mpsc::Sender<FeedItem>,
    known: HashMap<PublisherId, watch::Sender<PublisherInfo>>,
    tasks: JoinSet<()>,
}

impl FollowAll {
    /// Follows a publisher, or updates the address of a known one.
    fn add(&mut self, publisher: PublisherInfo) {
        if let Some(known) = self.known.get(&publisher.id) {
            known.send_if_modified(|before| {
                let differs = *before != publisher;
                *before = publisher;
                differs
            });
            return;
        }
        let start = match &self.from {
            FeedFrom::Now => Start::Now,
            FeedFrom::Snapshot => Start::Snapshot,
            FeedFrom::After(positions) => {
                positions.0.get(&publisher.id).map_or(Start::Snapshot, |&at| Start::After(at))
            }
        };
        let id = publisher.id;
        let (where_it_is, events) = watch::channel(publisher);
        self.known.insert(id, where_it_is);
        let follower = Follower {
            requester: self.queues.requester.clone(),
            pattern: self.pattern.clone(),
            publisher: events,
            cursor: FeedCursor::new(start),
            items: self.items.clone(),
        };
        self.tasks.spawn(follower.run());
    }
}
