//! What a host name leads to.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

/// Most IP addresses of a name that are tried, one after the other.
const ADDRESSES_TRIED_MAX: usize = 8;

/// Why a host name leads to no address. Both may go away by themselves.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The system does not know it.
    #[error("cannot resolve the address {host}: {source}")]
    Unknown {
        /// The name and the port.
        host: String,
        /// What the system says.
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

/// The IP addresses behind `host`, a name or an IP address with a port: at least one, at most eight, best first.
pub async fn lookup(host: &str, limit: Duration) -> Result<Vec<SocketAddr>, LookupError> {
    let unknown = |source| LookupError::Unknown { host: host.to_owned(), source };
    let found = timeout(limit, lookup_host(host)).await;
    let found = found.map_err(|_| LookupError::Timeout { host: host.to_owned(), after: limit })?;
    let addresses: Vec<_> = found.map_err(unknown)?.take(ADDRESSES_TRIED_MAX).collect();
    match addresses.is_empty() {
        true => Err(unknown(io::ErrorKind::NotFound.into())),
        false => Ok(addresses),
    }
}
