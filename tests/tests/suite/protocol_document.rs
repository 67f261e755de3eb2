//! Replays the sessions that `docs/PROTOCOL.md` names, byte for byte, against a real replica and a
//! real publisher.
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

const SESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/tests/sessions");
/// A frame with a bare heartbeat.
const HEARTBEAT: [u8; 5] = [1, 0, 0, 0, 0];
const LONG: Duration = Duration::from_secs(60);

/// A step of a session: bytes from the client (`C`) or the server (`S`).
struct Step {
    from_client: bool,
    bytes: Vec<Expected>,
}

/// What a session has at one place.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Byte(u8),
    /// `..`: a byte that differs from session to session.
    AnyByte,
    /// `~`: a number of any length.
    AnyNumber,
}

fn matches(expected: &[Expected], received: &[u8]) -> bool {
    let mut received = received.iter();
    let all = expected.iter().all(|expected| match expected {
        Expected::Byte(byte) => received.next() == Some(byte),
        Expected::AnyByte => received.next().is_some(),
        // Its last byte has no continuation bit.
        Expected::AnyNumber => received.any(|byte| byte & 0x80 == 0),
    });
    all && received.next().is_none()
}

/// Parses the session of that name: lines with `C` or `S`, bytes in hex, and comments after `#`. An
/// indented line continues the previous one.
fn session(name: &str) -> Vec<Step> {
    let text = std::fs::read_to_string(format!("{SESSIONS}/{name}.txt")).expect("the session");
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
            ".." => Expected::AnyByte,
            "~" => Expected::AnyNumber,
            hex => {
                let byte = u8::from_str_radix(hex, 16).unwrap_or_else(|_| panic!("{word}"));
                Expected::Byte(byte)
            }
        }));
    }
    steps
}

/// Reads one frame, its length included, and skips bare heartbeats.
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

async fn replay(name: &str, server: SocketAddr) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let mut differences = String::new();
    for (at, step) in session(name).into_iter().enumerate() {
        let expected = step.bytes;
        if step.from_client {
            let byte = |expected| match expected {
                Expected::Byte(byte) => byte,
                _ => panic!("step {at} of {name}: the client's bytes are given"),
            };
            let bytes: Vec<u8> = expected.into_iter().map(byte).collect();
            stream.write_all(&bytes).await.unwrap();
            continue;
        }
        let mut received = Vec::new();
        // The server's first message begins with the magic.
        if expected.starts_with(&b"LSH1".map(Expected::Byte)) {
            received.resize(4, 0);
            timeout(LONG, stream.read_exact(&mut received)).await.unwrap().unwrap();
        }
        received.extend(timeout(LONG, read_frame(&mut stream)).await.unwrap());
        if !matches(&expected, &received) {
            writeln!(differences, "session {name}, step {at}: the server sends\n{received:02x?}")
                .unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_sessions_match_the_document() {
    let resolver = Resolver::start().await;
    replay("replica-writer", resolver.address()).await;
    replay("replica-reader", resolver.address()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn publisher_session_matches_the_document() {
    let (resolver, folder) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let mut options = PublisherOptions::new(folder.path());
    (options.name, options.cluster) = ("p1".into(), Some(resolver.cluster()));
    let publisher = RunningPublisher::start(options).await.unwrap();
    replay("publisher", publisher.address()).await;
}
