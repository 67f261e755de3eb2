//! Connections that stop at some stage and are held, and those that go on as slowly as they can.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use longshore::Glob;
use longshore::protocol::Role;
use longshore::protocol::messages::resolver::{ListMatching, ToReplica};
use longshore::protocol::messages::work::{Attach, Request, ToPublisher, Tokens};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::peer::{self, Peer, Tls, framed, handshake, session};
use super::{Attacker, GROUND, Outcome, expect};

/// The servers end a handshake after 10 s, and close a link whose frame has brought less than 64
/// KiB in 10 s.
const SERVERS_WAIT: Duration = Duration::from_secs(10);
/// How late they may be.
const SLACK: Duration = Duration::from_secs(3);
/// Connections that are opened at once.
const AT_ONCE: usize = 64;

/// Opens connections and sends nothing.
pub(super) async fn silent_connections(attacker: &Attacker) -> Outcome {
    hold(attacker, Stage::Silent).await
}

/// Sends half of a TLS `ClientHello`.
pub(super) async fn half_client_hellos(attacker: &Attacker) -> Outcome {
    hold(attacker, Stage::HalfHello).await
}

/// Makes the TLS handshake and sends nothing more.
pub(super) async fn tls_without_a_handshake(attacker: &Attacker) -> Outcome {
    hold(attacker, Stage::Tls).await
}

/// Sends half of a handshake, over TLS.
pub(super) async fn half_handshakes(attacker: &Attacker) -> Outcome {
    hold(attacker, Stage::HalfHandshake).await
}

/// Sends one byte a second of a long frame, on each of many links.
pub(super) async fn a_byte_a_second(attacker: &Attacker) -> Outcome {
    let mut links = Vec::new();
    for number in 0..attacker.scale.links {
        let role = if number % 2 == 0 { Role::ResolverReader } else { Role::Tool };
        // Some may be refused: links are limited.
        let Ok(mut link) = Peer::dial(attacker, role).await else { break };
        link.send(&1_000_000_u32.to_le_bytes()).await?;
        links.push(link);
    }
    let opened = Instant::now();
    let pause = Duration::from_secs(if attacker.is_long() { 1 } else { 0 });
    let mut rounds = 0;
    while attacker.goes_on(rounds) || attacker.is_long() && opened.elapsed() < SERVERS_WAIT {
        for link in &mut links {
            // The server may have closed it.
            let _ = timeout(Duration::from_millis(10), link.stream.write_all(&[0])).await;
            let _ = timeout(Duration::from_millis(10), link.stream.flush()).await;
        }
        sleep(pause).await;
        rounds += 1;
    }
    if attacker.is_long() {
        for link in &mut links {
            let closed = peer::closes(&mut link.stream, SLACK).await;
            expect(closed, || "a link with a byte a second is still open".to_owned())?;
        }
    }
    Ok(links.len() as u64 * rounds as u64)
}

/// Sends requests whose answers it never reads, until the server reads no more.
pub(super) async fn unread_answers(attacker: &Attacker) -> Outcome {
    /// Bytes of requests on each link: more than any queue takes.
    const BYTES: usize = 4 * 1024 * 1024;
    let listing = ListMatching { id: 1, globs: vec![glob("/**")] };
    let of_replica = framed(|out| {
        (0..1_000).for_each(|_| ToReplica::ListMatching(listing.clone()).encode(out));
    });
    let request = Request::Queues { pattern: glob(&format!("{GROUND}/**")), cursor: 0 };
    let of_publisher = framed(|out| {
        (0..1_000).for_each(|id| {
            ToPublisher::Request { id, request: request.clone() }.encode(out);
        });
    });
    let attach = framed(|out| {
        ToPublisher::Attach(Attach { resume: Tokens::default() }).encode(out);
    });
    let lanes = (0..8).map(async |lane| {
        let (role, first, requests) = match lane % 2 {
            0 => (Role::ResolverReader, &[][..], &of_replica),
            _ => (Role::Tool, &attach[..], &of_publisher),
        };
        let (mut rounds, mut unread) = (0, 0);
        while attacker.goes_on(rounds) && rounds < 8 {
            rounds += 1;
            let Ok(mut link) = Peer::dial(attacker, role).await else { continue };
            if link.send(first).await.is_err() {
                continue;
            }
            unread += 1;
            let mut written = 0;
            while written < BYTES {
                let writing = link.stream.write_all(requests);
                match timeout(Duration::from_millis(100), writing).await {
                    Ok(Ok(())) => written += requests.len(),
                    _ => break,
                }
            }
            // In the short form the other lanes go on meanwhile.
            sleep(Duration::from_millis(if attacker.is_long() { 2_000 } else { 20 })).await;
        }
        unread
    });
    Ok(join_all(lanes).await.into_iter().sum())
}

fn glob(text: &str) -> Glob {
    Glob::new(text).expect("a glob")
}

/// What a connection has sent when it stops.
#[derive(Clone, Copy)]
enum Stage {
    Silent,
    HalfHello,
    Tls,
    HalfHandshake,
}

/// A connection that is held open.
enum Held {
    Tcp(TcpStream),
    Tls(Box<Tls>),
}

impl Held {
    fn tcp(&self) -> &TcpStream {
        match self {
            Held::Tcp(stream) => stream,
            Held::Tls(stream) => stream.get_ref().0,
        }
    }

    /// True once the server has closed it.
    fn is_closed(&self) -> bool {
        let mut ignored = [0; 4096];
        loop {
            match self.tcp().try_read(&mut ignored) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Holds as many connections at a stage as it can, and opens those again that the server closes. In
/// the end the server has to close them all.
async fn hold(attacker: &Attacker, stage: Stage) -> Outcome {
    let (mut held, mut stopped, mut rounds) = (Vec::new(), 0, 0);
    let hello = Arc::new(client_hello(attacker));
    while attacker.goes_on(rounds) {
        held.retain(|connection: &Held| !connection.is_closed());
        let missing = attacker.scale.connections.saturating_sub(held.len());
        if missing == 0 {
            sleep(Duration::from_millis(20)).await;
        }
        for server in [attacker.target.publisher, attacker.target.replica] {
            let opened = (0..missing.div_ceil(2).min(AT_ONCE))
                .map(|_| timeout(SLACK, open(attacker, server, stage, &hello)));
            let opened = join_all(opened).await;
            let before = held.len();
            held.extend(opened.into_iter().flatten().flatten());
            stopped += (held.len() - before) as u64;
        }
        rounds += 1;
    }
    if attacker.is_long() {
        let until = Instant::now() + SERVERS_WAIT + SLACK;
        while Instant::now() < until && !held.is_empty() {
            held.retain(|connection| !connection.is_closed());
            sleep(Duration::from_millis(50)).await;
        }
        let left = held.len();
        expect(left == 0, || {
            format!("{left} are open after {SERVERS_WAIT:?} without a handshake")
        })?;
    }
    Ok(stopped)
}

/// Opens a connection and brings it to a stage; none if the server does not let it.
async fn open(attacker: &Attacker, server: SocketAddr, stage: Stage, hello: &[u8]) -> Option<Held> {
    match stage {
        Stage::Silent => peer::tcp(server).await.ok().map(Held::Tcp),
        Stage::HalfHello => {
            let mut stream = peer::tcp(server).await.ok()?;
            stream.write_all(&hello[..hello.len() / 2]).await.ok()?;
            Some(Held::Tcp(stream))
        }
        Stage::Tls => peer::tls(attacker, server).await.ok().map(|it| Held::Tls(Box::new(it))),
        Stage::HalfHandshake => {
            let mut stream = peer::tls(attacker, server).await.ok()?;
            let handshake = handshake(attacker, Role::Tool, session(), b"");
            stream.write_all(&handshake[..handshake.len() / 2]).await.ok()?;
            stream.flush().await.ok()?;
            Some(Held::Tls(Box::new(stream)))
        }
    }
}

/// The first bytes of a TLS connection.
pub(super) fn client_hello(attacker: &Attacker) -> Vec<u8> {
    let name = ServerName::from(attacker.target.publisher.ip());
    let mut hello = Vec::new();
    if let Ok(mut client) = ClientConnection::new(attacker.tls.clone(), name) {
        // Writing to memory does not fail.
        let _ = client.write_tls(&mut hello);
    }
    hello
}
