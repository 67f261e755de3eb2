//! The limits of a publisher of values: a name, a unit, a value.

use std::time::Duration;

/// Most values of one publisher.
pub const VALUES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes in one value link's send queue; beyond it the policies of its subscriptions decide.
/// The kernel's buffer is extra.
pub const VALUE_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The kernel's send buffer of one value link, in bytes.
pub const VALUE_KERNEL_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of superseded updates, and of removed values, that wait for one link: encoded, and
/// about those of their bookkeeping.
pub const VALUE_BACKLOG_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most updates of one value that wait for one link under `DropOldest`.
pub const VALUE_BACKLOG_UPDATES_MAX: usize = 1_024;
/// Most writes to one value that wait for its program.
pub const VALUE_WRITES_WAITING_MAX: usize = 1_024;
/// Most bytes of them, per value. An empty queue accepts any write.
pub const VALUE_WRITES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most calls of one procedure that run at a time; more wait, as writes do.
pub const PROCEDURE_CALLS_MAX: usize = 256;
/// Most defaults of one publisher of values.
pub const VALUE_DEFAULTS_MAX: usize = 1_024;
/// Most unanswered requests of paths, over all defaults.
pub const VALUE_REQUESTS_MAX: usize = 4_096;
/// How long a program may take to create or decline a requested value.
pub const VALUE_REQUEST_WAIT: Duration = Duration::from_secs(10);

/// A frame ends once it has about this many bytes: large enough for few system calls, small enough
/// to stay in the cache.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;
/// Subscriptions handled while holding the lock once; other tasks run in between.
pub(crate) const SUBSCRIBES_PER_LOCK: usize = 1_024;
