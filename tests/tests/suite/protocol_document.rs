//! The sessions in `docs/PROTOCOL.md`, played byte for byte against a real replica and a real
//! publisher.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use longshore::PublisherOptions;
use longshore::embedded::RunningPublisher;
use longshore_tests::Resolver;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PAGE: &str = include_str!("../../../docs/PROTOCOL.md");
/// A frame with a bare heartbeat.
const HEARTBEAT: [u8; 5] = [1, 0, 0, 0, 0];
const LONG: Duration = Duration::from_secs(60);

/// Who sends what: `C` the client, `S` the server.
struct Step {
    from_client: bool,
    /// None stands for `..`, a byte that differs from session to session.
    bytes: Vec<Option<u8>>,
}

/// The session of that name: lines `C` or `S`, bytes in hex, and after `#` what they are. An
/// indented line goes on with the one before.
fn session(name: &str) -> Vec<Step> {
    let (_, rest) = PAGE.split_once(&format!("```session {name}\n")).expect("the session");
    let (text, _) = rest.split_once("```").expect("its end");
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace().peekable();
        if !line.starts_with(' ') {
            let Some(who) = words.next() else { continue };
            steps.push(Step { from_client: who == "C", bytes: Vec::new() });
        }
        let step = steps.last_mut().expect("a line that begins a step");
        step.bytes.extend(words.map(|word| match word {
            ".." => None,
            hex => Some(u8::from_str_radix(hex, 16).unwrap_or_else(|_| panic!("{word}"))),
        }));
    }
    steps
}

/// One frame, its length included; bare heartbeats come when they come.
async fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let length = stream.read_u32_le().await.unwrap();
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body).await.unwrap();
        if body != HEARTBEAT {
            return [&length.to_le_bytes()[..], &body].concat();
        }
    }
}

async fn play(name: &str, server: SocketAddr) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let mut differences = String::new();
    for (at, step) in session(name).into_iter().enumerate() {
        let expected = step.bytes;
        if step.from_client {
            let bytes: Vec<u8> = expected.into_iter().flatten().collect();
            stream.write_all(&bytes).await.unwrap();
            continue;
        }
        let mut came = Vec::new();
        // The first that a server sends begins with the magic.
        if expected.starts_with(&b"LSH1".map(Some)) {
            came.resize(4, 0);
            timeout(LONG, stream.read_exact(&mut came)).await.unwrap().unwrap();
        }
        came.extend(timeout(LONG, read_frame(&mut stream)).await.unwrap());
        let same = came.len() == expected.len()
            && expected
                .iter()
                .zip(&came)
                .all(|(expected, came)| expected.is_none_or(|e| e == *came));
        if !same {
            writeln!(differences, "session {name}, step {at}: the server sends\n{came:02x?}")
                .unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_of_a_writer_and_a_reader_is_what_a_replica_does() {
    let resolver = Resolver::start().await;
    play("replica-writer", resolver.address()).await;
    play("replica-reader", resolver.address()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_of_a_producer_and_worker_is_what_a_publisher_does() {
    let (resolver, folder) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let mut options = PublisherOptions::new(folder.path());
    (options.name, options.cluster) = ("p1".into(), Some(resolver.cluster()));
    let publisher = RunningPublisher::start(options).await.unwrap();
    play("publisher", publisher.address()).await;
}
