//! Live values: values that a program publishes, and whose changes subscribers receive.
//!
//! ```text
//!   program ──commit──▶ core (one lock) ──frames, written once──▶ every link's queue ──▶ sockets
//!                         ▲  └─ no room ─▶ the link's backlog ─┐
//!      link tasks ────────┘                   pump, once there is room
//! ```
//!
//! [`core`] decides; the tasks here move bytes and time. A commit holds the lock until its frames
//! are in the queues of all links, so every subscriber sees the order of commits. It never waits
//! for a subscriber: what a link has no room for becomes entries in that link's backlog.

mod batch;
mod core;
mod defaults;

mod error;
mod flush;
pub mod limits;
mod link;
mod link_handle;
mod procedure;
mod published;
mod registry;
mod server;
mod value_publisher;
mod writes;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use longshore_protocol::{Path, Value};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::batch::Batch;
pub use self::defaults::{ValueDefault, ValueRequest};
pub use self::error::{PublishError, UpdateError};
pub use self::flush::FlushReport;
pub use self::procedure::Procedure;
pub use self::published::Published;
pub use self::value_publisher::{ValuePublisher, ValuePublisherBuilder, ValuePublisherError};
pub use self::writes::{Write, Writes};

use self::core::{Core, SlotKey, SlotRefusal};
use self::link_handle::LinkHandle;
pub(crate) use self::registry::{PathKinds, ValueRegistry};
pub(crate) use self::server::serve;

/// The live values of a publisher. Cheap to clone.
///
/// Values are published at this publisher's address, under its id. They live as long as their
/// [`Published`] handle, and no longer than this process. Once their publisher has stopped, they
/// can still be set, but no subscriber receives it.
#[derive(Clone)]
pub struct Values {
    shared: Arc<Shared>,
}

/// The terms on which a value is published.
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

/// State shared by all handles and links of one publisher of values.
pub(crate) struct Shared {
    core: Mutex<Core<LinkHandle>>,
    directory: ValueRegistry,
    /// Notified when a deadline becomes earlier.
    earlier_deadline: Arc<Notify>,
    /// Ends the timer task with the last handle.
    _timekeeper: DropGuard,
}

impl Shared {
    /// Runs `what`, which may set an earlier deadline.
    fn with<T>(&self, what: impl FnOnce(&mut Core<LinkHandle>) -> T) -> T {
        let mut core = self.core.lock();
        let before = core.next_deadline();
        let outcome = what(&mut core);
        let after = core.next_deadline();
        drop(core);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.earlier_deadline.notify_one();
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
    /// Starts without values. Needs a runtime, for the timer task.
    pub(crate) fn new(directory: ValueRegistry) -> Values {
        let (earlier_deadline, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new()),
            directory,
            earlier_deadline: earlier_deadline.clone(),
            _timekeeper: stop.clone().drop_guard(),
        });
        tokio::spawn(run_timers(Arc::downgrade(&shared), earlier_deadline, stop));
        Values { shared }
    }

    /// Publishes a value, with the publisher's own priority and weight. Subscribers find it by its
    /// path until the handle is dropped. Returns at once; replicas learn of it shortly after
    /// ([`ValuePublisher::ready`] waits until one has).
    pub fn publish(&self, path: Path, value: impl Into<Value>) -> Result<Published, PublishError> {
        self.publish_with(path, value, self.shared.directory.default_options())
    }

    /// Publishes a value on its own terms.
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
        self.publish_any(path, value.into(), self.shared.directory.default_options())
    }

    /// Declares a default for Longshore's own metrics, below `/sys`.
    #[doc(hidden)]
    pub fn publish_reserved_default(&self, path: Path) -> Result<ValueDefault, PublishError> {
        ValueDefault::declare(self.shared.clone(), path)
    }

    /// Publishes many values, all of them or none: if one is refused, those before it are
    /// withdrawn. A subscriber may have seen them meanwhile.
    pub fn publish_all(
        &self,
        values: impl IntoIterator<Item = (Path, Value)>,
    ) -> Result<Vec<Published>, PublishError> {
        // If a later one is refused, dropping the list withdraws the earlier ones.
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

    /// Declares that values at and below `path` are created on request: [`ValueDefault::next`]
    /// returns each request. At most 1,024.
    pub fn publish_default(&self, path: Path) -> Result<ValueDefault, PublishError> {
        if path.is_reserved() {
            return Err(PublishError::Reserved(path));
        }
        ValueDefault::declare(self.shared.clone(), path)
    }

    /// Begins a batch of updates. Nothing changes before [`Batch::commit`].
    pub fn batch(&self) -> Batch {
        Batch::new(self.shared.clone())
    }

    /// The number of links.
    pub(crate) fn links(&self) -> usize {
        self.shared.core.lock().links_len()
    }

    /// The number of published values.
    pub fn len(&self) -> usize {
        self.shared.core.lock().len()
    }

    /// True if no value is published.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until everything committed before this call is in the kernel's buffer of every
    /// subscriber, which is not yet the subscriber's program. No subscriber waits for another. A
    /// subscriber that does not accept its outstanding part within `timeout` is disconnected. The
    /// time runs from the first byte of that part that the kernel refuses, at this call at the
    /// earliest. So a subscriber that was behind once and keeps up again stays connected; one that
    /// is too slow does not. With `None`, flush waits without limit and disconnects nobody;
    /// heartbeats end the link of a subscriber that hangs. Cancel safe: once dropped, it
    /// disconnects nobody.
    pub async fn flush(&self, timeout: Option<Duration>) -> FlushReport {
        flush::flush(&self.shared, timeout).await
    }

    /// Sends every link a goodbye, also those that attach later.
    pub(crate) fn close(&self, reason: &str) {
        self.shared.core.lock().end_all(reason);
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values").field("values", &self.len()).finish()
    }
}

/// Runs the core's deadlines.
async fn run_timers(shared: Weak<Shared>, earlier_deadline: Arc<Notify>, stop: CancellationToken) {
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
            () = earlier_deadline.notified() => {}
            () = due => {}
        }
    }
}

/// The runtime's clock, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
