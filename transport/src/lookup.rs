//! Lookups of host names.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The most IP addresses of a name that are tried, one after the other.
const ADDRESSES_TRIED_MAX: usize = 8;

/// Lookups in progress in this process. `getaddrinfo` cannot be cancelled, and blocks for up to
/// half a minute a thread of the pool that handlers and disk reads also use.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// Why a lookup failed. Both cases may be transient.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The lookup failed: mostly, nobody knows the name.
    #[error("cannot resolve the address {host}: {source}")]
    Unknown {
        /// The name and the port.
        host: String,
        /// The system's error.
        source: io::Error,
    },
    /// The system did not answer in time.
    #[error("cannot resolve the address {host}: no answer within {after:?}")]
    Timeout {
        /// The name and the port.
        host: String,
        /// The limit.
        after: Duration,
    },
}

/// The IP addresses of `host`, a name or an IP address with a port: at least one, at most eight,
/// best first.
pub async fn lookup(host: &str, limit: Duration) -> Result<Vec<SocketAddr>, LookupError> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let unknown = |source| LookupError::Unknown { host: host.to_owned(), source };
    let name = host.to_owned();
    let found = timeout(limit, async {
        let permit = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        let lookup = move || {
            let _held = permit;
            name.to_socket_addrs().map(|found| found.take(ADDRESSES_TRIED_MAX).collect())
        };
        spawn_blocking(lookup).await.map_err(io::Error::other)?
    });
    let found: Result<io::Result<Vec<SocketAddr>>, _> = found.await;
    let found = found.map_err(|_| LookupError::Timeout { host: host.to_owned(), after: limit })?;
    let addresses = found.map_err(unknown)?;
    match addresses.is_empty() {
        true => Err(unknown(io::ErrorKind::NotFound.into())),
        false => Ok(addresses),
    }
}
