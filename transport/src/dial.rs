//! Opening a link to somebody who listens.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use longshore_protocol::handshake::{VERSION_MAX, VERSION_MIN};
use longshore_protocol::{
    Address, Handshake, HandshakeAnswer, HandshakeRefusal, HostAddress, NameError, PublisherId,
    Welcome, check_name,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::handshake::{self, HandshakeError};
use crate::link::{Link, Peer, Terms};
use crate::lookup::LookupError;
use crate::negotiation::workable;
use crate::oldest::OldestCommand;
use crate::options::LinkOptions;
use crate::socket::{Connection, open_options};

/// Why there is no link. All but [`Name`](DialError::Name), [`Refused`](DialError::Refused) with
/// `WrongRole`, [`Version`](DialError::Version) and [`Tls`](DialError::Tls) may go away by
/// themselves: try again, or try another server.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The handshake's name is empty, or has more than 128 bytes. Nobody was dialled.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The host name leads to no IP address. Nobody was dialled.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// There is a link to none of the publisher's addresses.
    #[error("{}", each(.0))]
    Each(Vec<(Address, DialError)>),
    /// Another publisher answers there.
    #[error("{address} is publisher {}, not {}", found.prefix(), wanted.prefix())]
    OtherPublisher {
        /// Where to.
        address: SocketAddr,
        /// Who answers.
        found: PublisherId,
        /// Who was dialled.
        wanted: PublisherId,
    },
    /// Nobody listens there, or there is no way there.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Connecting took too long.
    #[error("cannot connect to {address}: no answer within {after:?}")]
    ConnectTimeout {
        /// Where to.
        address: SocketAddr,
        /// The connect timeout.
        after: Duration,
    },
    /// Connected, but the handshake, TLS included, took too long: the process there hangs, or it is
    /// something else.
    #[error("{address} accepted the connection but did not finish the handshake within {after:?}")]
    HandshakeTimeout {
        /// Where to.
        address: SocketAddr,
        /// The handshake timeout.
        after: Duration,
    },
    /// What listens there does not speak Longshore's protocol.
    #[error("{address} does not speak Longshore's protocol: {detail}")]
    NotLongshore {
        /// Where to.
        address: SocketAddr,
        /// What came instead.
        detail: String,
    },
    /// It answered, and refused.
    #[error("{address} refused the link: {reason}")]
    Refused {
        /// Where to.
        address: SocketAddr,
        /// For programs; never `Version`.
        code: HandshakeRefusal,
        /// For people.
        reason: String,
    },
    /// No common protocol version. One of the two sides has to be upgraded.
    #[error("{address} speaks no common protocol version: {reason}")]
    Version {
        /// Where to.
        address: SocketAddr,
        /// Both ranges.
        reason: String,
    },
    /// The TLS handshake failed: certificates, names, or the other side wants none.
    #[error("TLS with {address} failed: {source}")]
    Tls {
        /// Where to.
        address: SocketAddr,
        /// What rustls says.
        source: io::Error,
    },
    /// The connection broke during the handshake.
    #[error("the connection to {address} broke during the handshake: {source}")]
    Io {
        /// Where to.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// The reason of each address; a host name is in no reason of its IP addresses.
fn each(failures: &[(Address, DialError)]) -> String {
    let line = |(address, error): &(Address, DialError)| match (address, error) {
        (Address::Ip(_), _) | (_, DialError::Lookup(_)) => error.to_string(),
        (Address::Host(host), _) => format!("{host}: {error}"),
    };
    failures.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Connects to `address` and makes the handshake. The timing sent is the shorter of the handshake's
/// and the options'.
///
/// Takes at most `connect_timeout` and then `handshake_timeout`. Dropped, it leaves nothing behind.
pub async fn dial(
    address: SocketAddr,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    check_name(&handshake.name)?;
    dial_ip(address, None, handshake, options).await
}

pub(crate) async fn dial_ip(
    address: SocketAddr,
    host: Option<&HostAddress>,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    let stream = connect(address, options.connect_timeout).await?;
    match timeout(options.handshake_timeout, shake_hands(stream, address, host, handshake, options))
        .await
    {
        Ok(link) => link,
        Err(_) => Err(DialError::HandshakeTimeout { address, after: options.handshake_timeout }),
    }
}

async fn connect(address: SocketAddr, limit: Duration) -> Result<TcpStream, DialError> {
    let failed = |source| DialError::Connect { address, source };
    let stream = match timeout(limit, TcpStream::connect(address)).await {
        Ok(stream) => stream.map_err(failed)?,
        Err(_) => return Err(DialError::ConnectTimeout { address, after: limit }),
    };
    // Where nobody listens on a local port, TCP may by chance choose that very port to dial from
    // and connect to itself, which would also keep the listener from coming back.
    if stream.local_addr().map_err(failed)? == address {
        return Err(failed(io::ErrorKind::ConnectionRefused.into()));
    }
    open_options(&stream).map_err(failed)?;
    Ok(stream)
}

async fn shake_hands(
    stream: TcpStream,
    address: SocketAddr,
    host: Option<&HostAddress>,
    handshake: &Handshake,
    options: &LinkOptions,
) -> Result<Link, DialError> {
    let mut connection = Connection::plain(stream);
    if let Some(tls) = &options.tls {
        let secured = connection.tls(|stream| tls.connect(address, host, stream)).await;
        connection = secured.map_err(|source| DialError::Tls { address, source })?;
    }
    let handshake =
        Handshake { timing: handshake.timing.agreed(options.timing), ..handshake.clone() };
    // A server that is busy may have answered and closed before it read this: its answer says more
    // than the failure.
    let said = handshake::write_handshake(&mut connection, &handshake).await;
    let welcome = match handshake::read_answer(&mut connection).await {
        Ok(HandshakeAnswer::Welcome(welcome)) => check(welcome, &handshake, address)?,
        Ok(HandshakeAnswer::Refused { code: HandshakeRefusal::Version, reason }) => {
            return Err(DialError::Version { address, reason });
        }
        Ok(HandshakeAnswer::Refused { code, reason }) => {
            return Err(DialError::Refused { address, code, reason });
        }
        Err(error) => return Err(unanswered(address, said.err(), error, options.tls.is_some())),
    };
    let terms = Terms {
        peer_address: address,
        version: welcome.version,
        timing: welcome.timing,
        beat: None,
        own_frame_bytes_max: handshake.frame_bytes_max as usize,
        peer_frame_bytes_max: welcome.frame_bytes_max as usize,
        send_queue_bytes_max: options.send_queue_bytes_max,
        features: welcome.features,
        // Only who is dialled keeps anything.
        oldest: OldestCommand::default(),
        budget: None,
        peer: Peer::Server(welcome),
    };
    Ok(Link::start(connection, terms, None))
}

fn check(
    mut welcome: Welcome,
    handshake: &Handshake,
    address: SocketAddr,
) -> Result<Welcome, DialError> {
    let (min, max) =
        (handshake.version_min.max(VERSION_MIN), handshake.version_max.min(VERSION_MAX));
    if !(min..=max).contains(&welcome.version) {
        let reason = format!("it chose {}; {min} to {max} were offered", welcome.version);
        return Err(DialError::Version { address, reason });
    }
    // What was asked for is an upper bound, whatever the answer says.
    welcome.timing = workable(welcome.timing.agreed(handshake.timing));
    welcome.features &= handshake.features;
    Ok(welcome)
}

fn unanswered(
    address: SocketAddr,
    said: Option<io::Error>,
    error: HandshakeError,
    tls: bool,
) -> DialError {
    match (error, said) {
        (HandshakeError::Io(source), _) if tls && source.get_ref().is_some() => {
            DialError::Tls { address, source }
        }
        (HandshakeError::Closed, Some(source)) | (HandshakeError::Io(source), _) => {
            DialError::Io { address, source }
        }
        (HandshakeError::Closed, None) => {
            DialError::Io { address, source: io::ErrorKind::UnexpectedEof.into() }
        }
        // A TLS record: alert (0x15) or handshake (0x16), version 3.x.
        (HandshakeError::Magic([0x15 | 0x16, 3, ..]), _) => DialError::NotLongshore {
            address,
            detail: "it speaks TLS; dial it with a certificate authority".into(),
        },
        (error, _) => DialError::NotLongshore { address, detail: error.to_string() },
    }
}
