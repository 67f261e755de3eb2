//! The bounded channel from links to a reader: many subscriptions write, one reader takes batches.
//!
//! A link appends the updates of a frame under one lock, and the reader takes all pending updates
//! under one lock: an update costs neither an allocation nor a wake-up. A slow reader delays no
//! link. When the queue is full, a conflating subscription is listed as lagging and retains its
//! latest value, a `DropOldest` one is listed as lagging and retains its newest 1,024 updates, and
//! a `Disconnect` one ends.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};

use super::event::KeyedEvent;
use super::subscription_core::{Missed, SubscriptionCore};

/// The default capacity of the queue of one subscription.
pub(crate) const UPDATES_OF_ONE_MAX: usize = 1_024;
/// The largest capacity of a reader.
pub const UPDATES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes of frames that the pending updates of one reader may reference. One more frame may
/// exceed it, and each subscription may add its last value and its end.
pub const UPDATES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Reads the updates of one or many subscriptions, in batches; as a `Stream`, one by one.
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
/// let subscriber = Subscriber::connect("localhost");
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
    /// Events taken from the channel and not yet returned one by one; the next one is last.
    unread: Vec<KeyedEvent>,
    /// Subscriptions whose reader missed updates, and what it missed before their links ended.
    lagging: Vec<(Arc<SubscriptionCore>, Missed)>,
}

/// The sending end of [`Updates`], for [`SubscribeOptions::into`](crate::SubscribeOptions::into).
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct UpdatesSink(pub(crate) Arc<UpdateChannel>);

impl Updates {
    /// Creates a reader with room for `capacity` updates (clamped to 1..=16,777,216), in frames of
    /// at most 64 MiB in all. Memory is allocated as needed.
    pub fn new(capacity: usize) -> Updates {
        let channel = Arc::new(UpdateChannel::new(capacity.clamp(1, UPDATES_MAX)));
        Updates { channel, batch: Vec::new(), unread: Vec::new(), lagging: Vec::new() }
    }

    /// The sink that subscriptions write to.
    pub fn sink(&self) -> UpdatesSink {
        UpdatesSink(self.channel.clone())
    }

    /// Waits until updates are pending, and returns all of them, in order. Waits for ever if no
    /// subscription uses this reader. The next call drops the batch. Cancel safe.
    pub async fn next(&mut self) -> &[KeyedEvent] {
        poll_fn(|context| self.poll_fill(context).map(drop)).await;
        &self.batch
    }

    /// Polls for the next batch, which the caller may drain.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<&mut Vec<KeyedEvent>> {
        self.batch.clear();
        if !self.try_fill() {
            self.channel.reader.register(context.waker());
            // An update may have arrived before the registration.
            if !self.try_fill() {
                return Poll::Pending;
            }
        }
        Poll::Ready(&mut self.batch)
    }

    /// Polls for the next event alone.
    pub(crate) fn poll_one(&mut self, context: &mut Context<'_>) -> Poll<KeyedEvent> {
        loop {
            if let Some(event) = self.unread.pop() {
                return Poll::Ready(event);
            }
            if self.poll_fill(context).is_pending() {
                return Poll::Pending;
            }
            self.unread.extend(self.batch.drain(..).rev());
        }
    }

    /// Fills the batch without waiting; false if nothing is pending.
    fn try_fill(&mut self) -> bool {
        if !self.unread.is_empty() {
            self.batch.extend(self.unread.drain(..).rev());
            return true;
        }
        self.take_queue();
        self.take_lagging();
        !self.batch.is_empty()
    }

    /// Takes all that waits, with what was missed before: from here on there is room, and what
    /// arrives comes after it.
    fn take_queue(&mut self) {
        let mut queue = self.channel.queue.lock();
        std::mem::swap(&mut queue.items, &mut self.batch);
        queue.bytes = 0;
        self.lagging.extend(queue.lagging.drain(..).map(|sub| {
            let missed = sub.take_missed();
            (sub, missed)
        }));
    }

    fn take_lagging(&mut self) {
        for (sub, missed) in self.lagging.drain(..) {
            sub.pass_missed(missed, &mut self.batch);
        }
    }

    /// The updates that are pending now; `between` happens on other threads meanwhile.
    #[cfg(test)]
    pub(crate) fn read_around(&mut self, between: impl FnOnce()) -> Vec<KeyedEvent> {
        self.batch.clear();
        self.take_queue();
        between();
        self.take_lagging();
        self.batch.clone()
    }
}

/// Never ends. Reading in batches is faster.
impl Stream for Updates {
    type Item = KeyedEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<KeyedEvent>> {
        self.poll_one(context).map(Some)
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

/// Shared by links and a reader.
#[derive(Debug)]
pub(crate) struct UpdateChannel {
    pub(crate) id: u64,
    updates_max: usize,
    queue: Mutex<UpdateQueue>,
    reader: AtomicWaker,
}

/// The pending updates of a reader.
#[derive(Debug, Default)]
pub(crate) struct UpdateQueue {
    items: Vec<KeyedEvent>,
    /// Bytes of the frames that `items` reference.
    bytes: usize,
    /// Subscriptions whose missed updates the reader fetches.
    lagging: Vec<Arc<SubscriptionCore>>,
    /// The reader was dropped: further updates are discarded.
    closed: bool,
}

impl UpdateChannel {
    pub(crate) fn new(updates_max: usize) -> UpdateChannel {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        UpdateChannel {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            updates_max,
            queue: Mutex::default(),
            reader: AtomicWaker::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, UpdateQueue> {
        self.queue.lock()
    }

    /// Wakes the reader.
    pub(crate) fn notify_reader(&self) {
        self.reader.wake();
    }

    /// True while a `Disconnect` subscription would overflow.
    pub(crate) fn is_full(&self) -> bool {
        let queue = self.queue.lock();
        !queue.closed && !queue.has_room(self.updates_max)
    }

    /// Pending updates and lagging subscriptions.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.items.len(), queue.lagging.len())
    }

    pub(crate) fn updates_max(&self) -> usize {
        self.updates_max
    }
}

impl UpdateQueue {
    /// True while another update fits.
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

    /// Appends all of `staged`, and leaves it empty. `bytes` is the size of the frame that they
    /// reference.
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

    /// Appends items beyond the limits.
    pub(crate) fn extend(&mut self, items: impl IntoIterator<Item = KeyedEvent>) {
        if !self.closed {
            self.items.extend(items);
        }
    }

    pub(crate) fn charge(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Lists a subscription whose reader missed updates.
    pub(crate) fn add_lagging(&mut self, sub: &Arc<SubscriptionCore>) {
        if !self.closed && sub.set_lagging() {
            self.lagging.push(sub.clone());
        }
    }
}
