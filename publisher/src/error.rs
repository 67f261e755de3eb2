//! Why a publisher does not start, or has stopped.

use longshore_protocol::{NameError, PublisherInfoError};
use longshore_queue::{JournalOpenError, Poisoned};
use longshore_transport::{BindError, TlsError};

/// Why a publisher does not start. No job has changed, unless the variant says so.
/// [`Store`](OpenError::Store) and [`Bind`](OpenError::Bind) name the obstacle; the others are
/// wrong options, so a retry is no use.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be used. If another process uses it, one of the two has to end. If
    /// it is damaged, the message names the first lost command, and `longshore journal verify`
    /// shows more; restore a copy, or start with
    /// [`accept_loss`](crate::PublisherOptions::accept_loss). If it has another version, is
    /// read-only, or the disk fails, the message says what to do.
    #[error(transparent)]
    Store(#[from] JournalOpenError),
    /// The address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It listens on all addresses, and none of them can be dialled by others.
    #[error(
        "a publisher that listens on all addresses ({0}) needs --advertise HOST:PORT, the \
         address that workers and producers dial"
    )]
    NeedsAdvertise(std::net::SocketAddr),
    /// A path below `/sys`, or the root as a path.
    #[error("{0} cannot be published: {1}")]
    BadPath(longshore_protocol::Path, &'static str),
    /// More than 100,000 paths, or more than 100,000 defaults.
    #[error(
        "{0} paths or defaults are more than the {max} that a publisher may be started with",
        max = longshore_queue::START_PATHS_MAX
    )]
    TooManyPaths(usize),
    /// The name is empty, or has more than 128 bytes.
    #[error("the publisher: {0}")]
    BadName(#[from] NameError),
    /// It advertises more than replicas accept.
    #[error("--advertise: {0}")]
    BadInfo(#[from] PublisherInfoError),
    /// Its certificate does not have [`tls_name`](crate::PublisherOptions::tls_name), or there is
    /// no certificate.
    #[error("tls_name: {0}")]
    BadTlsName(#[source] TlsError),
    /// Replicas would not accept its terms.
    #[error("its terms: {0}")]
    BadTerms(#[from] longshore_resolver::TermsTooLong),
    /// It has keys of paths whose declared home is another publisher, where a repeated key would be
    /// new. Keys do not move. [`homes`](crate::PublisherOptions::homes) may change
    /// once they have ended.
    #[error(
        "{home} is declared as the home of {path}, and this publisher, {name}, has {keys} \
         keys with an end, {jobs} open jobs with other keys and {schedules} \
         schedules{elsewhere}{until}: declare {name} until the keys and jobs have ended and the \
         schedules are removed"
    )]
    KeysOfAnotherHome {
        /// The declared home of `path`.
        home: Box<str>,
        /// One of the paths.
        path: longshore_protocol::Path,
        /// The publisher's own name.
        name: Box<str>,
        /// The number of idempotency keys, and of unique keys for a period, of all such paths.
        keys: u64,
        /// Jobs with unique, order or fair keys that have not ended.
        jobs: u64,
        /// Schedules.
        schedules: u64,
        /// How many other such paths there are, for people.
        elsewhere: Box<str>,
        /// When the last of the keys ends, for people; empty without such keys.
        until: Box<str>,
    },
    /// [`hang_after`](crate::PublisherOptions::hang_after) is under 1 s: a disk that is merely busy
    /// would count as hanging.
    #[error(
        "hang_after of {0:?} is under its minimum of {min:?}: \
         a busy disk would count as hanging",
        min = crate::PublisherOptions::HANG_AFTER_MIN
    )]
    HangsTooSoon(std::time::Duration),
    /// [`clock_skew_max`](crate::PublisherOptions::clock_skew_max) is under 1 s: ordinary clock
    /// corrections would count as jumps.
    #[error(
        "clock_skew_max of {0:?} is under its minimum of {min:?}: \
         clock corrections would count as jumps",
        min = crate::PublisherOptions::CLOCK_SKEW_MAX_MIN
    )]
    ClockSkewTooSmall(std::time::Duration),
    /// [`leases.reconnect_grace_ms`](crate::PublisherOptions::leases) is under two heartbeats of
    /// [`timing`](crate::PublisherOptions::timing). A worker starts no job once it has received
    /// nothing for that long, and an idle link receives a byte per heartbeat.
    #[error(
        "leases.reconnect_grace_ms is {grace_ms}: workers would begin no job between two \
         heartbeats of {heartbeat:?}; give it {} at least, or shorten timing.heartbeat",
        grace_ms_min(*heartbeat)
    )]
    GraceTooShort {
        /// The configured grace.
        grace_ms: u64,
        /// The heartbeat of work links.
        heartbeat: std::time::Duration,
    },
    /// [`memory_max`](crate::PublisherOptions::memory_max) is under 16 MiB, which queues and
    /// sessions alone may take.
    #[error(
        "{0} bytes of memory are too few for jobs; give them {min} at least",
        min = crate::PublisherOptions::MEMORY_MAX_MIN
    )]
    MemoryTooSmall(u64),
    /// The payload cache leaves too little of [`budget`](crate::PublisherOptions::budget) for
    /// frames in progress.
    #[error(
        "a budget of {bytes} bytes for received frames is too small beside the payload cache: \
         give it {least} at least, or lower cache_bytes"
    )]
    BudgetTooSmall {
        /// The budget.
        bytes: usize,
        /// The least budget for this cache.
        least: usize,
    },
    /// The test clock serves, or served, another publisher.
    #[error("a test's clock serves one publisher, once; give each its own")]
    ClockInUse,
    /// The thread that opened the data directory ended early, as when the runtime shuts down.
    #[error("opening the data directory was interrupted")]
    Interrupted,
}

/// The smallest grace for workers that receive a byte each `heartbeat`: two heartbeats.
pub(crate) fn grace_ms_min(heartbeat: std::time::Duration) -> u64 {
    u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX).saturating_mul(2)
}

/// Why a publisher stopped by itself. Everything acknowledged is on disk. Start it again, best in a
/// new process: it recovers from the disk.
#[derive(Debug, thiserror::Error)]
pub enum PublisherFailed {
    /// The journal failed. Nothing was acknowledged after the failure.
    #[error("the journal failed, and nothing is acknowledged after a failure: {0}")]
    Journal(#[from] Poisoned),
}
