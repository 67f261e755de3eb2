//! Why a publisher does not start, or has stopped.

use longshore_protocol::{NameError, PublisherInfoError};
use longshore_queue::{OpenError as StoreOpenError, Poisoned};
use longshore_transport::BindError;

/// Why a publisher does not start. Nothing was changed, unless the variant says so.
/// [`Store`](OpenError::Store) and [`Bind`](OpenError::Bind) name what stands in the way; the
/// others are wrong options, and to try again is no use.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be used. In use by another process: one of the two has to end.
    /// Damaged: its message says which command is lost first, and `longshore journal verify` more;
    /// restore a copy, or start with [`accept_loss`](crate::PublisherOptions::accept_loss). Of
    /// another version, read-only, or the disk fails: its message says what to do.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// The address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It listens on every address, and none of them is one that others can dial.
    #[error(
        "a publisher that listens on all addresses ({0}) needs --advertise HOST:PORT, the address that workers and producers dial"
    )]
    NeedsAdvertise(std::net::SocketAddr),
    /// A path below `/sys`, or the root as a path.
    #[error("{0} cannot be published: {1}")]
    BadPath(longshore_protocol::Path, &'static str),
    /// More than 100,000 paths, or more than 100,000 defaults.
    #[error("{0} paths or defaults are more than the {max} that a publisher may be started with", max = longshore_queue::START_PATHS_MAX)]
    TooManyPaths(usize),
    /// The name is empty, or has more than 128 bytes.
    #[error("the publisher: {0}")]
    BadName(#[from] NameError),
    /// It advertises more than replicas take.
    #[error("--advertise: {0}")]
    BadInfo(#[from] PublisherInfoError),
    /// Its homes are too many, or one of their names is empty or too long.
    #[error("--homes: {0}")]
    BadTerms(#[from] longshore_resolver::TermsError),
    /// [`hang_after`](crate::PublisherOptions::hang_after) is under 1 s: it would call a disk
    /// hanging that is merely busy.
    #[error("a disk may be busy for {0:?}; it hangs after {min:?} at least", min = crate::PublisherOptions::HANG_AFTER_MIN)]
    HangsTooSoon(std::time::Duration),
    /// [`clock_skew_max`](crate::PublisherOptions::clock_skew_max) is under 1 s: it would
    /// disbelieve a clock that is merely being kept right.
    #[error("a wall clock is moved by {0:?} to be kept right; a jump has {min:?} at least", min = crate::PublisherOptions::CLOCK_SKEW_MAX_MIN)]
    ClockSkewTooSmall(std::time::Duration),
    /// [`leases.reconnect_grace_ms`](crate::PublisherOptions::leases) is under two heartbeats of
    /// [`timing`](crate::PublisherOptions::timing): a worker begins no job that long after the last
    /// byte, and on an idle link a byte comes with each heartbeat.
    #[error(
        "leases.reconnect_grace_ms is {grace_ms}: workers would begin no job between two \
         heartbeats of {heartbeat:?}; give it {} at least, or shorten timing.heartbeat",
        grace_ms_min(*heartbeat)
    )]
    GraceTooShort {
        /// What was given.
        grace_ms: u64,
        /// Of work links.
        heartbeat: std::time::Duration,
    },
    /// [`memory_max`](crate::PublisherOptions::memory_max) is under 16 MiB: queues and sessions
    /// alone may take that.
    #[error("{0} bytes of memory are too few for jobs; give them {min} at least", min = crate::PublisherOptions::MEMORY_MAX_MIN)]
    MemoryTooSmall(u64),
    /// The test's clock is, or was, another publisher's.
    #[error("a test's clock serves one publisher, once; give each its own")]
    ClockInUse,
    /// The thread that was to open the data directory ended early, as when the runtime ends.
    #[error("opening the data directory was interrupted")]
    Interrupted,
}

/// The least grace for workers that are sent a byte each `heartbeat`: two of them.
pub(crate) fn grace_ms_min(heartbeat: std::time::Duration) -> u64 {
    u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX).saturating_mul(2)
}

/// Why a publisher stopped by itself. Everything acknowledged is on disk; it has to be started
/// again, best in a new process. Starting recovers from the disk what is there.
#[derive(Debug, thiserror::Error)]
pub enum PublisherFailed {
    /// The journal failed. No acknowledgement was given after the failure.
    #[error("the journal failed, and nothing is acknowledged after a failure: {0}")]
    Journal(#[from] Poisoned),
}
