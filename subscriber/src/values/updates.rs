//! The bounded way from links to whoever reads updates: many subscriptions into one, read in
//! batches.
//!
//! A link hands over what a frame held under one lock, and the reader takes everything there is
//! under one lock: per update there is neither an allocation nor a wake. A slow reader delays no
//! link: a subscription that conflates leaves a mark and keeps its newest value where it is, one
//! that drops the oldest leaves a mark and keeps the newest 1,024 updates, and one that leaves out
//! nothing ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::event::KeyedEvent;
use super::subscription_core::SubscriptionCore;

/// Updates that wait for the reader of one subscription alone, unless told otherwise.
pub(crate) const UPDATES_OF_ONE_MAX: usize = 1_024;
/// Most updates that may wait for one reader, whatever is asked for.
pub const UPDATES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes of frames that updates which wait for one reader may hold on to. A frame more may
/// come, and each subscription may add its last value and its end.
pub const UPDATES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Reads the updates of one or of many subscriptions, in batches.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # mod longshore {
/// #     pub use longshore_protocol::Path;
/// #     pub mod values { pub use longshore_subscriber::*; }
/// # }
/// use longshore::Path;
/// use longshore::values::{Event, SubscribeOptions, Subscriber, Updates};
///
/// let subscriber = Subscriber::connect("localhost").await?;
/// let mut updates = Updates::new(65_536);
/// let into = SubscribeOptions { into: Some(updates.sink()), ..SubscribeOptions::default() };
/// let paths = (0..1_000).map(|n| Path::new(&format!("/sensors/{n}")));
/// let sensors = subscriber.durable_subscribe_all(paths.collect::<Result<_, _>>()?, &into);
/// loop {
///     for (key, event) in updates.next().await {
///         if let Event::Update(value) = event {
///             println!("{key:?}: {value}");
///         }
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Updates {
    channel: Arc<UpdateChannel>,
    batch: Vec<KeyedEvent>,
    lagging: Vec<Arc<SubscriptionCore>>,
}

/// Where subscriptions put their updates: the other end of [`Updates`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UpdatesSink(pub(crate) Arc<UpdateChannel>);

impl Updates {
    /// A reader for whom `capacity` updates may wait (what is under 1 counts as 1, what is over
    /// 16,777,216 as that), in frames of at most 64 MiB in all. Memory is taken as it is needed.
    pub fn new(capacity: usize) -> Updates {
        let channel = Arc::new(UpdateChannel::new(capacity.clamp(1, UPDATES_MAX)));
        Updates { channel, batch: Vec::new(), lagging: Vec::new() }
    }

    /// What subscriptions are given to put their updates here.
    pub fn sink(&self) -> UpdatesSink {
        UpdatesSink(self.channel.clone())
    }

    /// Waits until there is something, and gives all of it, in order; for ever if no subscription
    /// puts anything here. What was not looked at is gone with the next call. Cancel safe.
    pub async fn next(&mut self) -> &[KeyedEvent] {
        self.fill().await;
        &self.batch
    }

    /// The same, to be taken out of it.
    pub(crate) async fn fill(&mut self) -> &mut Vec<KeyedEvent> {
        self.batch.clear();
        loop {
            if self.try_fill() {
                return &mut self.batch;
            }
            self.channel.ready.notified().await;
        }
    }

    /// What there is without waiting; false if nothing.
    fn try_fill(&mut self) -> bool {
        {
            let mut queue = self.channel.queue.lock();
            std::mem::swap(&mut queue.items, &mut self.batch);
            std::mem::swap(&mut queue.lagging, &mut self.lagging);
            queue.bytes = 0;
        }
        for lagging in self.lagging.drain(..) {
            lagging.take_missed(&mut self.batch);
        }
        !self.batch.is_empty()
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        let mut queue = self.channel.queue.lock();
        queue.closed = true;
        let dropped = (std::mem::take(&mut queue.items), std::mem::take(&mut queue.lagging));
        drop(queue);
        drop(dropped);
    }
}

/// What links and a reader share.
#[derive(Debug)]
pub(crate) struct UpdateChannel {
    pub(crate) id: u64,
    updates_max: usize,
    queue: Mutex<UpdateQueue>,
    ready: Notify,
}

/// What waits for the reader.
#[derive(Debug, Default)]
pub(crate) struct UpdateQueue {
    items: Vec<KeyedEvent>,
    /// Of the frames that items hold on to.
    bytes: usize,
    /// Subscriptions whose newest value the reader is to fetch.
    lagging: Vec<Arc<SubscriptionCore>>,
    /// The reader has gone: nothing is put here any more.
    closed: bool,
}

impl UpdateChannel {
    pub(crate) fn new(updates_max: usize) -> UpdateChannel {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        UpdateChannel {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            updates_max,
            queue: Mutex::default(),
            ready: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, UpdateQueue> {
        self.queue.lock()
    }

    /// Something was put into the queue.
    pub(crate) fn notify_reader(&self) {
        self.ready.notify_one();
    }

    /// True while there is no room for what may not be left out.
    pub(crate) fn is_full(&self) -> bool {
        let queue = self.queue.lock();
        !queue.closed && !queue.has_room(self.updates_max)
    }

    /// Updates and marks that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.items.len(), queue.lagging.len())
    }

    /// The first half of what a reader does: marks come after.
    #[cfg(test)]
    pub(crate) fn take_items(&self) -> Vec<KeyedEvent> {
        std::mem::take(&mut self.queue.lock().items)
    }

    pub(crate) fn updates_max(&self) -> usize {
        self.updates_max
    }
}

impl UpdateQueue {
    /// True while an update fits that could be conflated instead.
    #[inline]
    pub(crate) fn has_room(&self, updates_max: usize) -> bool {
        self.items.len() < updates_max && self.bytes < UPDATES_BYTES_MAX
    }

    /// How many more updates fit.
    pub(crate) fn room(&self, updates_max: usize) -> usize {
        if self.has_room(updates_max) { updates_max - self.items.len() } else { 0 }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Puts all of `staged` here, and leaves it empty. `bytes`: what they hold on to.
    pub(crate) fn append(&mut self, staged: &mut Vec<KeyedEvent>, bytes: usize) {
        self.bytes += bytes;
        if self.items.is_empty() {
            std::mem::swap(&mut self.items, staged);
        } else {
            self.items.append(staged);
        }
    }

    pub(crate) fn push(&mut self, item: KeyedEvent) {
        self.items.push(item);
    }

    /// Puts these here, room or not.
    pub(crate) fn extend(&mut self, items: impl IntoIterator<Item = KeyedEvent>) {
        if !self.closed {
            self.items.extend(items);
        }
    }

    pub(crate) fn charge(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Its reader is to look for what it has missed.
    pub(crate) fn add_lagging(&mut self, sub: &Arc<SubscriptionCore>) {
        if !self.closed && sub.set_lagging() {
            self.lagging.push(sub.clone());
        }
    }
}
