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
use longshore_transport::{Identity, Link, Listener, ListenerOptions, TlsAcceptor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, timeout};

use super::relay::Relay;
use super::{LOOPBACK, Replica, publisher};

/// How long each byte of a slow answer takes: one of the shortest timeouts sees many of them, and a
/// handshake takes two.
const A_BYTE: Duration = Duration::from_millis(50);

/// How it fails them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It accepts, and says nothing.
    Silent,
    /// It answers the handshake, sends its heartbeats, and answers nothing else.
    Mute,
    /// What listens there is something else.
    Garbage,
    /// After a good handshake its answers do not decode.
    Damaged,
    /// After a good handshake it announces a frame of 4 GiB.
    Endless,
    /// It speaks another version of the protocol.
    OtherVersion,
    /// It is a publisher.
    WrongRole,
    /// It has no place.
    Busy,
    /// It is stopped: the kernel takes no connection for it any more.
    Stopped,
    /// It answers the handshake as slowly as a byte at a time takes.
    TricklesHandshake,
    /// After a good handshake it answers so: a good answer, of which the end never comes.
    Trickles,
    /// Its certificate is of an authority that nobody here knows.
    Stranger,
    /// It wants a certificate of its clients, and theirs is none of those that it knows; or they
    /// have none.
    Demanding,
}

impl Kind {
    /// All but those that need TLS.
    pub const PLAIN: [Kind; 11] = [
        Kind::Silent,
        Kind::Mute,
        Kind::Garbage,
        Kind::Damaged,
        Kind::Endless,
        Kind::OtherVersion,
        Kind::WrongRole,
        Kind::Busy,
        Kind::Stopped,
        Kind::TricklesHandshake,
        Kind::Trickles,
    ];

    /// What clients should say of it.
    pub fn why(self) -> &'static str {
        match self {
            Kind::Silent | Kind::TricklesHandshake => "did not finish the handshake within",
            Kind::Mute | Kind::Trickles => "no answer for",
            Kind::Garbage => "does not speak Longshore's protocol",
            Kind::Damaged => "does not decode",
            Kind::Endless => "a frame of 4294967295 bytes was announced",
            Kind::OtherVersion => "no common protocol version",
            Kind::WrongRole => "is this really the address of a resolver?",
            Kind::Busy => "has no free connection for a resolver",
            Kind::Stopped => "cannot connect",
            Kind::Stranger => "TLS with",
            Kind::Demanding => "received fatal alert",
        }
    }
}

/// Such a replica.
pub struct Hostile {
    pub kind: Kind,
    pub address: SocketAddr,
    /// Who comes is counted, unless nobody can.
    relay: Option<Relay>,
    _replica: Option<Replica>,
    task: JoinHandle<()>,
}

impl Hostile {
    pub async fn start(kind: Kind) -> Hostile {
        Hostile::with(kind, None).await
    }

    /// One that does not know who comes, or whom nobody knows.
    pub async fn secured(kind: Kind, tls: TlsAcceptor) -> Hostile {
        Hostile::with(kind, Some(tls)).await
    }

    async fn with(kind: Kind, tls: Option<TlsAcceptor>) -> Hostile {
        let (mut replica, idle) = (None, tokio::spawn(async {}));
        let (address, task) = match kind {
            Kind::Silent => by_hand(|stream| async move { forever(stream).await }).await,
            Kind::Garbage => by_hand(garbage).await,
            Kind::Endless => by_hand(endless).await,
            Kind::OtherVersion => by_hand(other_version).await,
            Kind::Mute => listening(|_| true, ListenerOptions::default(), false).await,
            Kind::Damaged => listening(|_| true, ListenerOptions::default(), true).await,
            Kind::WrongRole => {
                listening(|role| !role.is_for_resolver(), ListenerOptions::default(), false).await
            }
            Kind::TricklesHandshake => {
                by_hand(|stream| trickle(stream, Vec::new(), handshake_bytes(1))).await
            }
            Kind::Trickles => {
                by_hand(|stream| trickle(stream, handshake_bytes(1), long_answer())).await
            }
            Kind::Stranger | Kind::Demanding => {
                let options = ListenerOptions { tls, ..ListenerOptions::default() };
                listening(|_| true, options, false).await
            }
            Kind::Busy => {
                let options = ServerOptions { connections_max: 0, ..ServerOptions::default() };
                let address = replica.insert(Replica::start(options).await).address;
                (address, idle)
            }
            Kind::Stopped => {
                let (address, task) = stopped().await;
                return Hostile { kind, address, relay: None, _replica: None, task };
            }
        };
        let relay = Relay::to(address).await;
        Hostile { kind, address: relay.address, relay: Some(relay), _replica: replica, task }
    }

    /// How often it was tried; none if that cannot be told.
    pub fn tried(&self) -> Option<usize> {
        self.relay.as_ref().map(Relay::connections)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts, and does that to each.
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

/// Holds the stream until the other side has closed it.
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

/// The answer to a handshake, of that version.
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

/// Says one part at once and the other a byte at a time, and then nothing.
async fn trickle(mut stream: TcpStream, at_once: Vec<u8>, slowly: Vec<u8>) {
    let (mut reads, mut writes) = stream.split();
    let say = async {
        writes.write_all(&at_once).await?;
        let mut pace = interval(A_BYTE);
        for byte in slowly {
            pace.tick().await;
            writes.write_all(&[byte]).await?;
        }
        std::future::pending::<io::Result<()>>().await
    };
    let mut scratch = [0; 4096];
    let heard = async { while reads.read(&mut scratch).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        _ = say => {}
        () = heard => {}
    }
}

/// A right answer to request 1: so many publishers that it takes far longer than any test to say it
/// a byte at a time.
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

/// Answers handshakes of the roles that it serves; then nothing, or what does not decode.
async fn listening(
    serves: fn(Role) -> bool,
    options: ListenerOptions,
    damaged: bool,
) -> (SocketAddr, JoinHandle<()>) {
    let hang = Duration::from_secs(60);
    let timing = LinkTiming { heartbeat: hang / 4, hang };
    let options = ListenerOptions { timing, ..options };
    let identity = Identity { instance: [3; 16], epoch: 0, name: "hostile".into(), serves };
    let mut listener = Listener::bind(LOOPBACK, identity, options).await.unwrap();
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

/// Nobody accepts, and the queue of those who wait for it is full: so is a process that was
/// stopped.
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
