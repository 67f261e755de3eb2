//! Replicas that fail their clients, each in its own way.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use longshore_protocol::frame::FrameWriter;
use longshore_protocol::handshake::MAGIC;
use longshore_protocol::messages::resolver::{
    FromReplica, PathAnswer, Resolved, SetMember, Tracker, tag,
};
use longshore_protocol::{Encode, HandshakeAnswer, Incarnation, LinkTiming, Role, Terms, Welcome};
use longshore_resolver::ServerOptions;
use longshore_transport::{Link, Listener, ListenerOptions, ServerInfo, TlsAcceptor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, timeout};

use super::relay::Relay;
use super::{LOOPBACK, Replica, publisher};

/// The time for each byte of a slow answer: one of the shortest timeouts spans many of them, and a
/// handshake spans two timeouts.
const BYTE_INTERVAL: Duration = Duration::from_millis(50);

/// How it fails its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostileKind {
    /// It accepts, and sends nothing.
    Silent,
    /// It answers the handshake, sends its heartbeats, and answers nothing else.
    Mute,
    /// Another protocol's server.
    Garbage,
    /// After a good handshake its answers do not decode.
    Damaged,
    /// After a good handshake it announces a frame of 4 GiB.
    Endless,
    /// It speaks another version of the protocol.
    OtherVersion,
    /// It is a publisher.
    WrongRole,
    /// It has no free connection.
    Busy,
    /// It is stopped: the kernel accepts no more connections for it.
    Stopped,
    /// It answers the handshake one byte at a time.
    TricklesHandshake,
    /// After a good handshake it sends a good answer one byte at a time, without ever ending it.
    Trickles,
    /// Its certificate is of an unknown authority.
    Stranger,
    /// It requires a client certificate, and theirs is of another authority; or they have none.
    Demanding,
}

impl HostileKind {
    /// All kinds without TLS.
    pub const PLAIN: [HostileKind; 11] = [
        HostileKind::Silent,
        HostileKind::Mute,
        HostileKind::Garbage,
        HostileKind::Damaged,
        HostileKind::Endless,
        HostileKind::OtherVersion,
        HostileKind::WrongRole,
        HostileKind::Busy,
        HostileKind::Stopped,
        HostileKind::TricklesHandshake,
        HostileKind::Trickles,
    ];

    /// What the clients' errors should contain.
    pub fn expected_error(self) -> &'static str {
        match self {
            HostileKind::Silent | HostileKind::TricklesHandshake => {
                "did not finish the handshake within"
            }
            HostileKind::Mute | HostileKind::Trickles => "no answer for",
            HostileKind::Garbage => "does not speak Longshore's protocol",
            HostileKind::Damaged => "does not decode",
            HostileKind::Endless => "a frame of 4294967295 bytes was announced",
            HostileKind::OtherVersion => "no common protocol version",
            HostileKind::WrongRole => "is this really the address of a resolver?",
            HostileKind::Busy => "has no free connection for a resolver",
            HostileKind::Stopped => "cannot connect",
            HostileKind::Stranger => "TLS with",
            HostileKind::Demanding => "received fatal alert",
        }
    }
}

/// A hostile replica.
pub struct Hostile {
    pub kind: HostileKind,
    pub address: SocketAddr,
    /// Counts connections, if there are any.
    relay: Option<Relay>,
    _replica: Option<Replica>,
    task: JoinHandle<()>,
}

impl Hostile {
    pub async fn start(kind: HostileKind) -> Hostile {
        Hostile::with(kind, None).await
    }

    /// One whose certificates and those of its clients do not match.
    pub async fn secured(kind: HostileKind, tls: TlsAcceptor) -> Hostile {
        Hostile::with(kind, Some(tls)).await
    }

    async fn with(kind: HostileKind, tls: Option<TlsAcceptor>) -> Hostile {
        let (mut replica, idle) = (None, tokio::spawn(async {}));
        let (address, task) = match kind {
            HostileKind::Silent => by_hand(|stream| async move { forever(stream).await }).await,
            HostileKind::Garbage => by_hand(garbage).await,
            HostileKind::Endless => by_hand(endless).await,
            HostileKind::OtherVersion => by_hand(other_version).await,
            HostileKind::Mute => listening(|_| true, ListenerOptions::default(), false).await,
            HostileKind::Damaged => listening(|_| true, ListenerOptions::default(), true).await,
            HostileKind::WrongRole => {
                listening(|role| !role.is_for_resolver(), ListenerOptions::default(), false).await
            }
            HostileKind::TricklesHandshake => {
                by_hand(|stream| trickle(stream, Vec::new(), handshake_bytes(1))).await
            }
            HostileKind::Trickles => {
                by_hand(|stream| trickle(stream, handshake_bytes(1), long_answer())).await
            }
            HostileKind::Stranger | HostileKind::Demanding => {
                let options = ListenerOptions { tls, ..ListenerOptions::default() };
                listening(|_| true, options, false).await
            }
            HostileKind::Busy => {
                let options = ServerOptions { connections_max: 0, ..ServerOptions::default() };
                let address = replica.insert(Replica::start(options).await).address;
                (address, idle)
            }
            HostileKind::Stopped => {
                let (address, task) = stopped().await;
                return Hostile { kind, address, relay: None, _replica: None, task };
            }
        };
        let relay = Relay::to(address).await;
        Hostile { kind, address: relay.address, relay: Some(relay), _replica: replica, task }
    }

    /// The number of attempts; `None` if it is unknown.
    pub fn attempts(&self) -> Option<usize> {
        self.relay.as_ref().map(Relay::connections)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts, and calls `to_each` with each stream.
async fn by_hand<F>(
    to_each: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, JoinHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut streams = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.spawn(to_each(stream));
        }
    });
    (address, task)
}

/// Keeps the stream open until the other side has closed it.
async fn forever(mut stream: TcpStream) {
    let mut scratch = [0; 4096];
    while stream.read(&mut scratch).await.is_ok_and(|read| read > 0) {}
}

async fn garbage(mut stream: TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
    forever(stream).await;
}

async fn endless(mut stream: TcpStream) {
    let mut bytes = handshake_bytes(1);
    bytes.extend([255; 4]);
    let _ = stream.write_all(&bytes).await;
    forever(stream).await;
}

async fn other_version(mut stream: TcpStream) {
    let _ = stream.write_all(&handshake_bytes(9)).await;
    forever(stream).await;
}

/// The answer to a handshake, with that version.
fn handshake_bytes(version: u16) -> Vec<u8> {
    let hang = Duration::from_secs(60);
    let welcome = HandshakeAnswer::Welcome(Welcome {
        version,
        timing: LinkTiming { heartbeat: hang / 4, hang },
        frame_bytes_max: 1 << 20,
        instance: [3; 16],
        epoch: 0,
        name: "hostile".into(),
        features: 0,
    });
    let mut out = FrameWriter::new();
    welcome.encode(&mut out);
    [&MAGIC[..], &out.finish().parts().concat()].concat()
}

/// Sends one part at once and the other one byte at a time, and then nothing.
async fn trickle(mut stream: TcpStream, at_once: Vec<u8>, slowly: Vec<u8>) {
    let (mut reads, mut writes) = stream.split();
    let send = async {
        writes.write_all(&at_once).await?;
        let mut pace = interval(BYTE_INTERVAL);
        for byte in slowly {
            pace.tick().await;
            writes.write_all(&[byte]).await?;
        }
        std::future::pending::<io::Result<()>>().await
    };
    let mut scratch = [0; 4096];
    let received = async { while reads.read(&mut scratch).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        _ = send => {}
        () = received => {}
    }
}

/// A right answer to request 1, with so many publishers that sending it one byte at a time takes
/// far longer than any test.
fn long_answer() -> Vec<u8> {
    let publishers: Vec<_> = (0..=255).map(publisher).collect();
    let set = (0..256).map(|publisher| SetMember { publisher, terms: 0 }).collect();
    let answer = FromReplica::Resolved(Resolved {
        id: 1,
        last: true,
        complete: true,
        tracker: Tracker { incarnation: Incarnation([3; 16]), revision: 1 },
        publishers,
        terms: vec![Terms::default()],
        sets: vec![set],
        answers: vec![PathAnswer::Published { set: 0, default: None }],
    });
    let mut out = FrameWriter::new();
    answer.encode(&mut out);
    out.finish().parts().concat()
}

/// Answers handshakes of the roles that it serves; then sends nothing, or damaged messages.
async fn listening(
    serves: fn(Role) -> bool,
    options: ListenerOptions,
    damaged: bool,
) -> (SocketAddr, JoinHandle<()>) {
    let hang = Duration::from_secs(60);
    let timing = LinkTiming { heartbeat: hang / 4, hang };
    let options = ListenerOptions { timing, ..options };
    let info = ServerInfo { instance: [3; 16], epoch: 0, name: "hostile".into(), serves };
    let mut listener = Listener::bind(LOOPBACK, info, options).unwrap();
    let address = listener.local_address();
    let task = tokio::spawn(async move {
        let mut links = JoinSet::new();
        loop {
            links.spawn(answer(listener.accept().await, damaged));
        }
    });
    (address, task)
}

async fn answer(link: Link, damaged: bool) {
    let (sender, mut receiver) = link.split();
    while receiver.recv().await.is_ok() {
        if damaged {
            let mut out = FrameWriter::new();
            // An answer to request 1, cut off after its number.
            out.message(tag::RESOLVED, |out| out.u64(1));
            let _ = sender.send(out.finish());
        }
    }
}

/// A listener that never accepts and whose backlog is full, like a stopped process.
async fn stopped() -> (SocketAddr, JoinHandle<()>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(LOOPBACK).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        waiting.push(connected.unwrap());
    }
    let task = tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop((listener, waiting));
    });
    (address, task)
}
