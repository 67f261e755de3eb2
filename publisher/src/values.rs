//! Live values: what a program publishes, and whoever follows it sees change.
//!
//! ```text
//!   program ──commit──▶ core (one lock) ──frames, written once──▶ every link's queue ──▶ sockets
//!                         ▲  └─ no room ─▶ the link's line ─┐
//!      link tasks ────────┘                pump, once there is room
//! ```
//!
//! [`core`] decides; the tasks here move bytes and time. A commit holds the lock until its frames
//! are in the queues of all links, so the order of commits is the order at every subscriber. It
//! never waits for one: what a link has no room for becomes marks.

mod batch;
mod core;
mod defaults;
mod directory;
mod error;
mod flush;
pub mod limits;
mod link;
mod open;
mod published;
mod server;
mod wire;
mod writes;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use longshore_protocol::{Path, Value};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::batch::Batch;
pub use self::defaults::{Requested, ValueDefault};
pub use self::error::{PublishError, UpdateError};
pub use self::flush::FlushReport;
pub use self::open::{ValuePublisher, ValuePublisherError, ValuePublisherOptions};
pub use self::published::Published;
pub use self::writes::{Write, Writes};

use self::core::{Core, SlotKey, SlotRefusal};
pub(crate) use self::directory::{Directory, Names};
pub(crate) use self::server::serve;
use self::wire::Wire;

/// The live values of a publisher. Cheap to clone.
///
/// Values are published here, at this publisher's address, under its id. They live as long as their
/// [`Published`], and no longer than this process. Once their publisher has stopped, they can still
/// be set, and nobody hears of it.
#[derive(Clone)]
pub struct Values {
    shared: Arc<Shared>,
}

/// On which terms a value is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueOptions {
    /// Subscribers try the publishers with the lowest number first. Default 0.
    pub priority: u16,
    /// Among those of one priority, how often this one is chosen, in proportion to the others; 0:
    /// only if there is no other. Default 100.
    pub weight: u16,
}

impl Default for ValueOptions {
    fn default() -> ValueOptions {
        let terms = longshore_protocol::Terms::default();
        ValueOptions { priority: terms.priority, weight: terms.weight }
    }
}

/// What all handles and links of one publisher of values share.
pub(crate) struct Shared {
    core: Mutex<Core<Wire>>,
    directory: Directory,
    /// Rung when something is due earlier than before.
    sooner: Arc<Notify>,
    /// Ends the task that watches time, with the last handle.
    _timekeeper: DropGuard,
}

impl Shared {
    /// Does something that may set a time at which something is due.
    fn with<T>(&self, what: impl FnOnce(&mut Core<Wire>) -> T) -> T {
        let mut core = self.core.lock();
        let before = core.next_deadline();
        let outcome = what(&mut core);
        let after = core.next_deadline();
        drop(core);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.sooner.notify_one();
        }
        outcome
    }

    fn unpublish(&self, key: SlotKey) {
        let mut core = self.core.lock();
        if let Some(path) = core.unpublish(key) {
            self.directory.unpublish(&path);
        }
    }
}

impl Values {
    /// Begins with none. Needs a runtime, for the task that watches time.
    pub(crate) fn new(directory: Directory) -> Values {
        let (sooner, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new()),
            directory,
            sooner: sooner.clone(),
            _timekeeper: stop.clone().drop_guard(),
        });
        tokio::spawn(keep_time(Arc::downgrade(&shared), sooner, stop));
        Values { shared }
    }

    /// Publishes a value, with the publisher's own priority and weight. Subscribers find it by its
    /// path until the handle is dropped. Returns at once: replicas hear of it in a moment
    /// (`write_client().flushed(1)` waits until one has).
    pub fn publish(&self, path: Path, value: impl Into<Value>) -> Result<Published, PublishError> {
        self.publish_with(path, value, self.shared.directory.usual())
    }

    /// Publishes a value on terms of its own.
    pub fn publish_with(
        &self,
        path: Path,
        value: impl Into<Value>,
        options: ValueOptions,
    ) -> Result<Published, PublishError> {
        if path.is_reserved() {
            return Err(PublishError::Reserved(path));
        }
        self.publish_any(path, value.into(), options)
    }

    /// Publishes Longshore's own metrics too, at and below `/sys`.
    #[doc(hidden)]
    pub fn publish_reserved(
        &self,
        path: Path,
        value: impl Into<Value>,
    ) -> Result<Published, PublishError> {
        self.publish_any(path, value.into(), self.shared.directory.usual())
    }

    /// Declares a default for Longshore's own metrics, below `/sys`.
    #[doc(hidden)]
    pub fn publish_reserved_default(&self, path: Path) -> Result<ValueDefault, PublishError> {
        ValueDefault::declare(self.shared.clone(), path)
    }

    /// Publishes many values, all of them or none: at the first that is refused, those before it
    /// are taken back. A subscriber may have seen them meanwhile.
    pub fn publish_all(
        &self,
        values: impl IntoIterator<Item = (Path, Value)>,
    ) -> Result<Vec<Published>, PublishError> {
        // Those that were published go with the list if a later one is refused.
        values.into_iter().map(|(path, value)| self.publish(path, value)).collect()
    }

    fn publish_any(
        &self,
        path: Path,
        value: Value,
        options: ValueOptions,
    ) -> Result<Published, PublishError> {
        if path.is_root() {
            return Err(PublishError::Root);
        }
        value.encoded_len()?;
        let mut core = self.shared.core.lock();
        let refused = |refusal| match refusal {
            SlotRefusal::Taken => PublishError::Taken(path.clone()),
            SlotRefusal::Full => PublishError::TooMany,
        };
        core.check(&path).map_err(refused)?;
        if !self.shared.directory.publish(&path, options) {
            return Err(PublishError::IsQueue(path));
        }
        let key = core.publish(&path, value).map_err(refused)?;
        drop(core);
        Ok(Published::new(self.shared.clone(), key))
    }

    /// Declares that values at and below `path` are made when somebody asks for them:
    /// [`ValueDefault::next`] tells of each. At most 1,024.
    pub fn publish_default(&self, path: Path) -> Result<ValueDefault, PublishError> {
        if path.is_reserved() {
            return Err(PublishError::Reserved(path));
        }
        ValueDefault::declare(self.shared.clone(), path)
    }

    /// Begins a batch of updates. Nothing is changed before [`Batch::commit`].
    pub fn batch(&self) -> Batch {
        Batch::new(self.shared.clone())
    }

    /// How many links stand.
    pub(crate) fn links(&self) -> usize {
        self.shared.core.lock().links_len()
    }

    /// How many values are published.
    pub fn len(&self) -> usize {
        self.shared.core.lock().len()
    }

    /// True if none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until all that was committed before this call is in the kernel's buffer of every
    /// subscriber, which is not yet the subscriber's program; none is waited for because of
    /// another. One that cannot take its part, what was committed before and has not been taken
    /// yet, within `timeout` is disconnected. The time runs from the first byte of that part which
    /// the kernel refuses, at this call at the earliest: who was behind once and takes what comes
    /// is not disconnected for it; who takes too slowly is. With `None` it waits for as long as
    /// that takes, and disconnects nobody; a subscriber that hangs is given up by its heartbeats.
    /// Cancel safe: dropped, it disconnects nobody any more.
    pub async fn flush(&self, timeout: Option<Duration>) -> FlushReport {
        flush::flush(&self.shared, timeout).await
    }

    /// Tells every link that the publisher stops.
    pub(crate) fn close(&self, reason: &str) {
        self.shared.core.lock().end_all(reason);
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values").field("values", &self.len()).finish()
    }
}

/// Tells the core when something is due.
async fn keep_time(shared: Weak<Shared>, sooner: Arc<Notify>, stop: CancellationToken) {
    loop {
        let next = match shared.upgrade() {
            Some(shared) => {
                let mut core = shared.core.lock();
                core.expire(tokio::time::Instant::now().into_std());
                core.next_deadline()
            }
            None => return,
        };
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sooner.notified() => {}
            () = due => {}
        }
    }
}

/// The runtime's clock: tests may have turned it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
