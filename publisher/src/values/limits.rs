//! Every limit of a publisher of values: a name, a unit, a value.

use std::time::Duration;

/// Most values of one publisher.
pub const VALUES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes that wait to be sent on one value link; then the policies of its subscriptions
/// decide. The kernel's buffer comes on top.
pub const VALUE_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes that the kernel is asked to hold for one value link.
pub const VALUE_KERNEL_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of superseded updates, and of values that are gone, that wait for one link.
pub const VALUE_BACKLOG_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most updates of one value that wait for one link under `DropOldest`.
pub const VALUE_BACKLOG_UPDATES_MAX: usize = 1_024;
/// Most writes to one value that wait for its program to take them.
pub const VALUE_WRITES_WAITING_MAX: usize = 1_024;
/// Most bytes of them, by value. An empty queue takes any write.
pub const VALUE_WRITES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most defaults of one publisher of values.
pub const VALUE_DEFAULTS_MAX: usize = 1_024;
/// Most paths that are asked of all defaults and that their programs have not answered.
pub const VALUE_REQUESTS_MAX: usize = 4_096;
/// How long a program may take to make or decline a value that its default is asked for.
pub const VALUE_REQUEST_WAIT: Duration = Duration::from_secs(10);

/// A frame is sent once it has about so many bytes: large enough for few system calls, small enough
/// to stay in the cache.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;
/// Subscriptions taken in one go: others have their turn between two.
pub(crate) const SUBSCRIBES_AT_A_TIME: usize = 1_024;
