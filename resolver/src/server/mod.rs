//! A replica as a service.

use std::future::Future;
use std::net::SocketAddr;

use longshore_protocol::ResolverTiming;
use longshore_transport::{BindError, CONNECTIONS_MAX, TlsAcceptor};

/// Most watches of one replica.
pub(crate) const WATCHES_MAX: usize = 16_384;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What operators see.
    pub name: String,
    /// `reader_ttl`, `writer_ttl` and `hello_timeout`.
    pub timing: ResolverTiming,
    /// This is a new cluster: nobody can have published before, so nothing is missing at the start.
    pub fresh: bool,
    /// Most connections; an excess one is told `Busy`.
    pub connections_max: usize,
    /// Most watches, over all connections.
    pub watches_max: usize,
    /// Allows an address that other machines can reach, without TLS.
    pub insecure: bool,
    /// TLS, for every connection.
    pub tls: Option<TlsAcceptor>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            name: String::from("resolver"),
            timing: ResolverTiming::default(),
            fresh: false,
            connections_max: CONNECTIONS_MAX,
            watches_max: WATCHES_MAX,
            insecure: false,
            tls: None,
        }
    }
}

/// One replica. It knows of no other.
#[derive(Debug)]
pub struct ResolverServer {}

impl ResolverServer {
    /// Listens at `address`; port 0 takes any free one. The replica warms from now on, unless it is `fresh`.
    pub async fn bind(
        address: SocketAddr,
        options: ServerOptions,
    ) -> Result<ResolverServer, BindError> {
        let _ = (address, options);
        todo!()
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        todo!()
    }

    /// Serves until `shutdown` is ready, then closes every link.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
    }
}
