//! Dialling: opening a link to a listener.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use longshore_protocol::handshake::{VERSION_MAX, VERSION_MIN};
use longshore_protocol::limits::CLUSTER_BYTES_MAX;
use longshore_protocol::{
    Address, Handshake, HandshakeAnswer, HandshakeRefusal, NameError, PublisherId, SocketPath,
    Welcome, check_name,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::Access;
use crate::handshake::{self, HandshakeError};
use crate::link::{Link, LinkTerms, Peer};
use crate::lookup::LookupError;
use crate::negotiation::clamped_timing;
use crate::oldest_command::OldestCommand;
use crate::options::LinkOptions;
use crate::socket::{Connection, open_options};
use crate::token::TokenError;
use crate::unix_socket::{self, LOCAL_PEER};

/// Why a dial failed. All but [`Name`](DialError::Name), [`ClusterName`](DialError::ClusterName),
/// [`Refused`](DialError::Refused) with `WrongRole` or `WrongCluster`,
/// [`Version`](DialError::Version), [`Tls`](DialError::Tls), [`NeedsTls`](DialError::NeedsTls) and
/// [`TokenWithoutTls`](DialError::TokenWithoutTls) may be transient: try again, or try another
/// server.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The handshake's name is empty, or has more than 128 bytes. Nothing was dialled.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The cluster's name is longer than a handshake may have it. Nothing was dialled.
    #[error("a cluster's name has at most {CLUSTER_BYTES_MAX} bytes, and this one {length}")]
    ClusterName {
        /// Its bytes.
        length: usize,
    },
    /// The host name resolves to no IP address. Nothing was dialled.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The client has no token to show. Nothing was dialled.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The client has a token, and no TLS: everyone on the way could read it. Nothing was dialled.
    #[error("{address} is not dialled: a token is sent over TLS only; set TLS, or take no token")]
    TokenWithoutTls {
        /// The address.
        address: Address,
    },
    /// The publisher advertises no address that this client dials.
    #[error(
        "publisher `{publisher}` advertises no address that this client dials: its Unix sockets \
         are for clients without TLS whose `resolvers` name a replica's socket in the same folder; \
         let it advertise an IP address or a host name, too"
    )]
    NoAddress {
        /// The publisher's name.
        publisher: String,
    },
    /// None of the publisher's addresses could be dialled.
    #[error("{}", describe_failures(.0))]
    AllAddressesFailed(Vec<(Address, DialError)>),
    /// Another publisher answers at the address.
    #[error("{address} is publisher {}, not {}", found.prefix(), expected.prefix())]
    UnexpectedPublisher {
        /// The dialled address.
        address: Address,
        /// The publisher that answered.
        found: PublisherId,
        /// The publisher that was dialled.
        expected: PublisherId,
    },
    /// Nothing listens at the address, or there is no route to it.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The dialled address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// Connecting took longer than the connect timeout.
    #[error("cannot connect to {address}: no answer within {after:?}")]
    ConnectTimeout {
        /// The dialled address.
        address: Address,
        /// The connect timeout.
        after: Duration,
    },
    /// The connection was accepted, but the handshake, TLS included, took too long: the process
    /// there hangs, or is not Longshore.
    #[error("{address} accepted the connection but did not finish the handshake within {after:?}")]
    HandshakeTimeout {
        /// The dialled address.
        address: Address,
        /// The handshake timeout.
        after: Duration,
    },
    /// The listener speaks TLS, and the client has no authority.
    #[error("{address} speaks TLS; dial it with a certificate authority")]
    NeedsTls {
        /// The dialled address.
        address: Address,
    },
    /// The listener does not speak Longshore's protocol.
    #[error("{address} does not speak Longshore's protocol: {detail}")]
    NotLongshore {
        /// The dialled address.
        address: Address,
        /// What was received instead.
        detail: String,
    },
    /// The server answered with a refusal.
    #[error("{address} {}: {reason}", refuses(*.code))]
    Refused {
        /// The dialled address.
        address: Address,
        /// For programs; never `Version`.
        code: HandshakeRefusal,
        /// For people.
        reason: String,
    },
    /// No common protocol version. One of the two sides has to be upgraded.
    #[error("{address} speaks no common protocol version: {reason}")]
    Version {
        /// The dialled address.
        address: Address,
        /// Both ranges.
        reason: String,
    },
    /// The TLS handshake failed: certificates or names, or the other side has no TLS.
    #[error("TLS with {address} failed: {source}")]
    Tls {
        /// The dialled address.
        address: Address,
        /// The error of rustls.
        source: io::Error,
    },
    /// The connection broke during the handshake.
    #[error("the connection to {address} broke during the handshake: {source}")]
    Io {
        /// The dialled address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
}

impl DialError {
    /// Whether the server refuses this client, or a client without TLS, at each address that was
    /// tried: another try changes nothing.
    pub fn refuses_client(&self) -> bool {
        match self {
            DialError::NeedsTls { .. } => true,
            DialError::Refused { code, .. } => is_of_client(*code),
            DialError::AllAddressesFailed(failures) => {
                failures.iter().all(|(_, error)| error.refuses_client())
            }
            _ => false,
        }
    }

    /// Whether another authority, certificate or token may be the remedy, at one address at least.
    pub fn concerns_identity(&self) -> bool {
        match self {
            DialError::Token(TokenError::Read { source, .. }) => {
                source.kind() != io::ErrorKind::TimedOut
            }
            DialError::Tls { .. } | DialError::NeedsTls { .. } | DialError::Token(_) => true,
            DialError::TokenWithoutTls { .. } => true,
            DialError::Refused { code, .. } => is_of_client(*code),
            DialError::AllAddressesFailed(failures) => {
                failures.iter().any(|(_, error)| error.concerns_identity())
            }
            _ => false,
        }
    }
}

/// Whether the server refuses a client that needs another identity, or another policy.
fn is_of_client(code: HandshakeRefusal) -> bool {
    matches!(code, HandshakeRefusal::Unauthenticated | HandshakeRefusal::Forbidden)
}

/// What the server refuses.
fn refuses(code: HandshakeRefusal) -> &'static str {
    match is_of_client(code) {
        true => "refuses this client",
        false => "refused the link",
    }
}

/// The reason for each address; the reasons of IP addresses do not name the host they belong to.
fn describe_failures(failures: &[(Address, DialError)]) -> String {
    let line = |(address, error): &(Address, DialError)| match (address, error) {
        (Address::Host(host), error) if !matches!(error, DialError::Lookup(_)) => {
            format!("{host}: {error}")
        }
        (_, error) => error.to_string(),
    };
    failures.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Connects to `address` and makes the handshake. The timing offered is the shorter of the
/// handshake's and the options'; with [`LinkOptions::access`], its cluster is named and its token
/// shown.
///
/// Takes at most `connect_timeout` to read the token's file, as long to connect, and then
/// `handshake_timeout`. Cancel safe: dropped, it closes the connection.
pub async fn dial(
    address: SocketAddr,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    check_name(&handshake.name)?;
    dial_endpoint(Endpoint::Tcp(address), None, handshake, options).await
}

/// The same over a Unix socket of this machine, without TLS: the token is shown, too.
pub async fn dial_unix(
    path: &SocketPath,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    check_name(&handshake.name)?;
    dial_endpoint(Endpoint::Unix(path), None, handshake, options).await
}

/// Where a connection is made.
#[derive(Clone, Copy)]
pub(crate) enum Endpoint<'a> {
    Tcp(SocketAddr),
    Unix(&'a SocketPath),
}

impl Endpoint<'_> {
    /// The link's peer address.
    fn peer(self) -> SocketAddr {
        match self {
            Endpoint::Tcp(address) => address,
            Endpoint::Unix(_) => LOCAL_PEER,
        }
    }
}

impl From<Endpoint<'_>> for Address {
    fn from(endpoint: Endpoint<'_>) -> Address {
        match endpoint {
            Endpoint::Tcp(address) => Address::Ip(address),
            Endpoint::Unix(path) => Address::Unix(path.clone()),
        }
    }
}

/// The same; with TLS the certificate has to contain `tls_name`, without one the address. Boxed:
/// see Build in `docs/ARCHITECTURE.md`.
pub(crate) fn dial_endpoint<'a>(
    address: Endpoint<'a>,
    tls_name: Option<&'a str>,
    handshake: &'a Handshake,
    options: &'a LinkOptions,
) -> BoxFuture<'a, Result<Link, DialError>> {
    Box::pin(connect_and_greet(address, tls_name, handshake, options))
}

async fn connect_and_greet(
    address: Endpoint<'_>,
    tls_name: Option<&str>,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    let mut handshake = handshake.clone();
    handshake.timing = handshake.timing.agreed(options.timing);
    if let Some(Access { cluster, tls, token }) = &options.access {
        if cluster.len() > CLUSTER_BYTES_MAX {
            return Err(DialError::ClusterName { length: cluster.len() });
        }
        handshake.cluster.clone_from(cluster);
        if let Some(token) = token {
            if tls.is_none() && matches!(address, Endpoint::Tcp(_)) {
                return Err(DialError::TokenWithoutTls { address: address.into() });
            }
            handshake.credential = token.credential(options.connect_timeout).await?;
        }
    }
    let stream = connect(address, options.connect_timeout).await?;
    match timeout(
        options.handshake_timeout,
        exchange_handshakes(stream, address, tls_name, &handshake, options),
    )
    .await
    {
        Ok(link) => link,
        Err(_) => Err(DialError::HandshakeTimeout {
            address: address.into(),
            after: options.handshake_timeout,
        }),
    }
}

async fn connect(address: Endpoint<'_>, limit: Duration) -> Result<TcpStream, DialError> {
    let failed = |source| DialError::Connect { address: address.into(), source };
    let connecting = async {
        match address {
            Endpoint::Tcp(address) => TcpStream::connect(address).await,
            Endpoint::Unix(path) => unix_socket::connect(path).await,
        }
    };
    let stream = match timeout(limit, connecting).await {
        Ok(stream) => stream.map_err(failed)?,
        Err(_) => return Err(DialError::ConnectTimeout { address: address.into(), after: limit }),
    };
    let Endpoint::Tcp(address) = address else { return Ok(stream) };
    // If nothing listens on a local port, TCP may by chance dial from that very port and connect to
    // itself, which would also prevent the listener from binding it again.
    if stream.local_addr().map_err(failed)? == address {
        return Err(failed(io::ErrorKind::ConnectionRefused.into()));
    }
    open_options(&stream).map_err(failed)?;
    Ok(stream)
}

async fn exchange_handshakes(
    stream: TcpStream,
    address: Endpoint<'_>,
    tls_name: Option<&str>,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    let mut connection = Connection::plain(stream);
    let tls = options.access.as_ref().and_then(|access| access.tls.as_ref());
    let tls = tls.filter(|_| matches!(address, Endpoint::Tcp(_)));
    if let Some(tls) = tls {
        let peer = address.peer();
        let secured = connection.tls(|stream| tls.connect(peer, tls_name, stream)).await;
        connection =
            secured.map_err(|source| DialError::Tls { address: address.into(), source })?;
    }
    // A busy server may have answered and closed before it read the handshake: its answer explains
    // more than the write error.
    let written = handshake::write_handshake(&mut connection, handshake).await;
    let welcome = match handshake::read_answer(&mut connection).await {
        Ok(HandshakeAnswer::Welcome(welcome)) => check(welcome, handshake, address)?,
        Ok(HandshakeAnswer::Refused { code: HandshakeRefusal::Version, reason }) => {
            return Err(DialError::Version { address: address.into(), reason });
        }
        Ok(HandshakeAnswer::Refused { code, reason }) => {
            return Err(DialError::Refused { address: address.into(), code, reason });
        }
        Err(error) => return Err(no_answer(address, written.err(), error, tls.is_some())),
    };
    let terms = LinkTerms {
        peer_address: address.peer(),
        version: welcome.version,
        timing: welcome.timing,
        schedule: None,
        own_frame_bytes_max: handshake.frame_bytes_max as usize,
        peer_frame_bytes_max: welcome.frame_bytes_max as usize,
        send_queue_bytes_max: options.send_queue_bytes_max,
        features: welcome.features,
        // Only the accepting side has commands.
        oldest: OldestCommand::default(),
        budget: None,
        client: None,
        peer: Peer::Server(welcome),
    };
    Ok(Link::start(connection, terms, None))
}

fn check(
    mut welcome: Welcome,
    handshake: &Handshake,
    address: Endpoint<'_>,
) -> Result<Welcome, DialError> {
    let (min, max) =
        (handshake.version_min.max(VERSION_MIN), handshake.version_max.min(VERSION_MAX));
    if !(min..=max).contains(&welcome.version) {
        let reason = format!("it chose {}; {min} to {max} were offered", welcome.version);
        return Err(DialError::Version { address: address.into(), reason });
    }
    // The offered timing is an upper bound, whatever the answer contains.
    welcome.timing = clamped_timing(welcome.timing.agreed(handshake.timing));
    welcome.features &= handshake.features;
    Ok(welcome)
}

fn no_answer(
    address: Endpoint<'_>,
    write_error: Option<io::Error>,
    error: HandshakeError,
    tls: bool,
) -> DialError {
    match (error, write_error) {
        (HandshakeError::Io(source), _) if tls && source.get_ref().is_some() => {
            DialError::Tls { address: address.into(), source }
        }
        (HandshakeError::Closed, Some(source)) | (HandshakeError::Io(source), _) => {
            DialError::Io { address: address.into(), source }
        }
        (HandshakeError::Closed, None) => {
            DialError::Io { address: address.into(), source: io::ErrorKind::UnexpectedEof.into() }
        }
        // A TLS record: alert (0x15) or handshake (0x16), version 3.x.
        (HandshakeError::Magic([0x15 | 0x16, 3, ..]), _) => {
            DialError::NeedsTls { address: address.into() }
        }
        (error, _) => {
            DialError::NotLongshore { address: address.into(), detail: error.to_string() }
        }
    }
}
