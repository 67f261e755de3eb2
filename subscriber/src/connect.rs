//! Why a worker could not be set up, and the longest wait of workers and subscribers.

use std::time::Duration;

use longshore_protocol::NameError;

/// Stands for "without end": adding a longer duration to an `Instant` could overflow.
pub(crate) const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// Why a worker does not run. The configuration is wrong: a retry fails again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// No replica was named.
    #[error("no resolver replica was named; name them as HOST:PORT,…")]
    NoReplica,
    /// The name is empty, or has more than 128 bytes.
    #[error(transparent)]
    Name(#[from] NameError),
}
