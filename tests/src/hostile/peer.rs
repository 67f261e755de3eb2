//! The attackers' side of a connection: TCP, TLS, a handshake, messages.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use longshore::LinkTiming;
use longshore::protocol::handshake::MAGIC;
use longshore::protocol::messages::HEARTBEAT;
use longshore::protocol::messages::resolver::{FromReplica, ToReplica};
use longshore::protocol::messages::work::{
    Answer, Attach, Attached, FromPublisher, Request, RequestError, ToPublisher, Tokens,
};
use longshore::protocol::{
    Credential, Decode as _, Encode as _, FrameWriter, Handshake, HandshakeAnswer,
    HandshakeRefusal, Messages, Reader, Role, SessionId,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Attacker, PATIENCE, Surprise, expect};

pub(super) type Tls = TlsStream<TcpStream>;

/// The longest frame that attackers read.
const FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A random session.
pub(super) fn session() -> SessionId {
    SessionId(rand::random())
}

pub(super) async fn tcp(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = in_time(TcpStream::connect(server)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(super) async fn tls(attacker: &Attacker, server: SocketAddr) -> io::Result<Tls> {
    let stream = tcp(server).await?;
    let connector = TlsConnector::from(attacker.tls.clone());
    in_time(connector.connect(ServerName::from(server.ip()), stream)).await
}

pub(super) async fn in_time<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("nothing within {PATIENCE:?}"));
    timeout(PATIENCE, what).await.map_err(|_| late())?
}

/// True if a server closes a connection within `wait`; what it sends before that is ignored.
pub(super) async fn closes(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    wait: Duration,
) -> bool {
    let mut ignored = vec![0; 16 * 1024];
    let reading = async { while let Ok(1..) = stream.read(&mut ignored).await {} };
    timeout(wait, reading).await.is_ok()
}

/// The bytes of a frame.
pub(super) fn framed(write: impl FnOnce(&mut FrameWriter)) -> Vec<u8> {
    let mut out = FrameWriter::new();
    write(&mut out);
    out.finish().parts().concat()
}

/// The handshake of a client with this secret, with the magic.
pub(super) fn handshake(
    attacker: &Attacker,
    role: Role,
    session: SessionId,
    secret: &[u8],
) -> Vec<u8> {
    let mut handshake = Handshake::new(role, session, "mallory", LinkTiming::VALUES);
    handshake.cluster = attacker.target.cluster.clone();
    handshake.credential = Credential(Bytes::copy_from_slice(secret));
    [MAGIC.to_vec(), framed(|out| handshake.encode(out))].concat()
}

/// A server for a role, of those that are attacked.
pub(super) fn server_of(attacker: &Attacker, role: Role) -> SocketAddr {
    match role.is_for_resolver() {
        true => attacker.target.replica,
        false => attacker.target.publisher,
    }
}

/// Why there is no link.
#[derive(Debug)]
pub(super) enum NoLink {
    Broken(io::Error),
    Refused(HandshakeRefusal, String),
}

impl From<NoLink> for Surprise {
    fn from(why: NoLink) -> Surprise {
        match why {
            NoLink::Broken(error) => error.into(),
            NoLink::Refused(code, reason) => Surprise(format!("no link: {code:?}: {reason}")),
        }
    }
}

/// Sends a handshake, and reads the answer.
pub(super) async fn shake_hands(stream: &mut Tls, handshake: &[u8]) -> Result<(), NoLink> {
    let exchange = async {
        stream.write_all(handshake).await?;
        stream.flush().await?;
        let mut head = [0; 8];
        stream.read_exact(&mut head).await?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let mut answer = vec![0; length.min(FRAME_BYTES_MAX)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    };
    let answer = in_time(exchange).await.map_err(NoLink::Broken)?;
    match HandshakeAnswer::decode(&mut Reader::new(answer.into())) {
        Ok(HandshakeAnswer::Welcome(_)) => Ok(()),
        Ok(HandshakeAnswer::Refused { code, reason }) => Err(NoLink::Refused(code, reason)),
        Err(error) => Err(NoLink::Broken(io::Error::other(error))),
    }
}

/// A link.
pub(super) struct Peer {
    pub(super) stream: Tls,
    unread: Messages,
}

impl Peer {
    /// Mallory's link.
    pub(super) async fn dial(attacker: &Attacker, role: Role) -> Result<Peer, NoLink> {
        Peer::dial_as(attacker, role, &attacker.target.mallory, session()).await
    }

    pub(super) async fn dial_as(
        attacker: &Attacker,
        role: Role,
        secret: &str,
        session: SessionId,
    ) -> Result<Peer, NoLink> {
        let dialled = tls(attacker, server_of(attacker, role)).await;
        let mut stream = dialled.map_err(NoLink::Broken)?;
        let handshake = handshake(attacker, role, session, secret.as_bytes());
        shake_hands(&mut stream, &handshake).await?;
        Ok(Peer { stream, unread: Messages::new(Bytes::new()) })
    }

    /// Mallory's link to the publisher, attached.
    pub(super) async fn attach(attacker: &Attacker, role: Role) -> Result<Peer, Surprise> {
        let mut peer = Peer::dial(attacker, role).await?;
        peer.attached(Tokens::default()).await?;
        Ok(peer)
    }

    /// Attaches, with leases to resume.
    pub(super) async fn attached(&mut self, resume: Tokens) -> Result<Attached, Surprise> {
        self.tell_publisher(&ToPublisher::Attach(Attach { resume })).await?;
        self.answer_of_publisher("Attached", |message| match message {
            FromPublisher::Attached(attached) => Some(attached),
            _ => None,
        })
        .await
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = &mut self.stream;
        let sending = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        in_time(sending).await
    }

    pub(super) async fn tell_publisher(&mut self, message: &ToPublisher) -> io::Result<()> {
        self.send(&framed(|out| message.encode(out))).await
    }

    pub(super) async fn tell_replica(&mut self, message: &ToReplica) -> io::Result<()> {
        self.send(&framed(|out| message.encode(out))).await
    }

    /// The next message that is no heartbeat.
    async fn next(&mut self) -> io::Result<(u8, Bytes)> {
        loop {
            for message in self.unread.by_ref() {
                let (tag, body) = message.map_err(io::Error::other)?;
                if tag != HEARTBEAT {
                    return Ok((tag, body));
                }
            }
            let stream = &mut self.stream;
            let reading = async {
                let length = stream.read_u32_le().await? as usize;
                let mut body = vec![0; length.min(FRAME_BYTES_MAX)];
                stream.read_exact(&mut body).await?;
                Ok(body)
            };
            self.unread = Messages::new(in_time(reading).await?.into());
        }
    }

    /// The publisher's answer that `pick` knows; others are ignored.
    pub(super) async fn answer_of_publisher<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(FromPublisher) -> Option<T>,
    ) -> Result<T, Surprise> {
        loop {
            let next = self.next().await;
            let (tag, body) = next.map_err(|error| Surprise(format!("no {what}: {error}")))?;
            let message = FromPublisher::decode(tag, body);
            let message = message.map_err(|error| Surprise(format!("{what}: {error}")))?;
            let bye = match &message {
                Some(FromPublisher::Goodbye { reason }) => Some(reason.clone()),
                _ => None,
            };
            if let Some(answer) = message.and_then(&mut pick) {
                return Ok(answer);
            }
            expect(bye.is_none(), || format!("no {what}, but a goodbye: {bye:?}"))?;
        }
    }

    /// The replica's answer that `pick` knows; others are ignored.
    pub(super) async fn answer_of_replica<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(FromReplica) -> Option<T>,
    ) -> Result<T, Surprise> {
        loop {
            let next = self.next().await;
            let (tag, body) = next.map_err(|error| Surprise(format!("no {what}: {error}")))?;
            let message = FromReplica::decode(tag, body);
            let message = message.map_err(|error| Surprise(format!("{what}: {error}")))?;
            if let Some(answer) = message.and_then(&mut pick) {
                return Ok(answer);
            }
        }
    }

    /// The answer to a request to the publisher.
    pub(super) async fn request(
        &mut self,
        number: u64,
        request: Request,
    ) -> Result<Result<Answer, RequestError>, Surprise> {
        let what = format!("answer to {request:?}");
        self.tell_publisher(&ToPublisher::Request { id: number, request }).await?;
        self.answer_of_publisher(&what, |message| match message {
            FromPublisher::Answer { id, answer } if id == number => Some(answer),
            _ => None,
        })
        .await
    }

    /// The reason with which the publisher ends the link.
    pub(super) async fn goodbye(&mut self) -> Result<String, Surprise> {
        self.answer_of_publisher("goodbye", |message| match message {
            FromPublisher::Goodbye { reason } => Some(reason),
            _ => None,
        })
        .await
    }

    /// An error unless the server ends the link.
    pub(super) async fn ends(&mut self, after: &str) -> Result<(), Surprise> {
        let closed = closes(&mut self.stream, PATIENCE).await;
        expect(closed, || format!("after {after} the link is still open"))
    }
}
