//! Why a publisher does not start, or has stopped.

use longshore_queue::{OpenError as StoreOpenError, Poisoned};
use longshore_transport::BindError;

/// Why a publisher does not start. Nothing was changed, unless the variant says so.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be used: in use, damaged, read-only, of another version.
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
    /// More paths, or more defaults, than a start can name.
    #[error("{0} paths or defaults are more than the {max} that a publisher may be started with", max = longshore_queue::START_PATHS_MAX)]
    TooManyPaths(usize),
    /// The name is empty or too long.
    #[error("the publisher's name has {0} bytes; it needs 1 to {max}", max = longshore_protocol::limits::NAME_BYTES_MAX)]
    BadName(usize),
    /// Its homes are too many, or one of their names is empty or too long.
    #[error("--homes: {0}")]
    BadTerms(#[from] longshore_resolver::TermsError),
    /// It would call a disk hanging that is merely busy.
    #[error("a disk may be busy for {0:?}; it hangs after {min:?} at least", min = crate::PublisherOptions::HANG_AFTER_MIN)]
    HangsTooSoon(std::time::Duration),
    /// It would disbelieve a clock that is merely being kept right.
    #[error("a wall clock is moved by {0:?} to be kept right; a jump has {min:?} at least", min = crate::PublisherOptions::CLOCK_SKEW_MAX_MIN)]
    ClockSkewTooSmall(std::time::Duration),
    /// The test's clock is, or was, another publisher's.
    #[error("a test's clock serves one publisher, once; give each its own")]
    ClockInUse,
    /// The thread that was to open the data directory ended early.
    #[error("opening the data directory was interrupted")]
    Interrupted,
}

/// Why a publisher stopped by itself. Everything acknowledged is on disk; it has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum PublisherFailed {
    /// The journal failed. No acknowledgement was given after the failure.
    #[error("the journal failed, and nothing is acknowledged after a failure: {0}")]
    Journal(#[from] Poisoned),
}
