//! Clients of a replica that are written from `docs/PROTOCOL.md` alone: they encode bytes by hand,
//! and compute no digests.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{Replica, in_time};
use longshore_protocol::ResolverTiming;
use longshore_protocol::messages::resolver::{Digest, KeyHash};
use longshore_resolver::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use twox_hash::XxHash3_64;

const RESOLVE: u8 = 50;
const ANNOUNCE: u8 = 56;
const WRITE: u8 = 57;
const CONFIRM: u8 = 58;
const RESOLVED: u8 = 70;
const ANNOUNCED: u8 = 74;
const WRITTEN: u8 = 75;

/// A queue, flags 0, priority 0, weight 100, no homes.
const TERMS: &[u8] = &[1, 0, 0, 100, 0];
/// The same with a field that no version knows yet.
const LATER_TERMS: &[u8] = &[1, 0, 0, 100, 0, 0x80, 0x01, b'x'];

/// A link, byte by byte. Numbers below 128 are one byte, and no other numbers are used.
struct Link(TcpStream);

impl Link {
    /// Roles: 1 reader, 2 writer.
    async fn open(replica: SocketAddr, role: u8) -> Link {
        let mut link = Link(TcpStream::connect(replica).await.unwrap());
        let mut handshake = vec![1, 1, role];
        handshake.extend([0x11; 16]);
        handshake.extend(b"\x01m");
        // Heartbeats each 1,000 ms, hung after 30,000 ms, frames of 20 MiB, no features, no
        // credential.
        handshake.extend([0xe8, 0x07, 0xb0, 0xea, 0x01, 0x80, 0x80, 0x80, 0x0a, 0, 0]);
        link.0.write_all(b"LSH1").await.unwrap();
        link.frame(&handshake).await;
        let mut magic = [0; 4];
        link.0.read_exact(&mut magic).await.unwrap();
        assert_eq!(&magic, b"LSH1");
        assert_eq!(link.read_frame().await[0], 0, "welcome");
        link
    }

    async fn frame(&mut self, body: &[u8]) {
        self.0.write_all(&(body.len() as u32).to_le_bytes()).await.unwrap();
        self.0.write_all(body).await.unwrap();
    }

    async fn read_frame(&mut self) -> Vec<u8> {
        let length = in_time(self.0.read_u32_le()).await.unwrap();
        let mut body = vec![0; length as usize];
        in_time(self.0.read_exact(&mut body)).await.unwrap();
        body
    }

    /// Sends one message, and returns the body of the answer, which has this tag.
    async fn ask(&mut self, tag: u8, body: &[u8], answer: u8) -> Vec<u8> {
        let length = (body.len() as u32).to_le_bytes();
        self.frame(&[&[tag], &length[..], body].concat()).await;
        loop {
            let frame = self.read_frame().await;
            if frame[0] != 1 {
                assert_eq!(frame[0], answer, "{frame:02x?}");
                return frame[5..].to_vec();
            }
        }
    }

    async fn announce(&mut self, publisher: &[u8], digest: Option<Digest>) -> Vec<u8> {
        let mut body = [&[9][..], &record(publisher)].concat();
        match digest {
            None => body.push(0),
            Some(digest) => {
                body.extend([1, digest.count as u8]);
                body.extend(digest.sum.to_le_bytes());
            }
        }
        self.ask(ANNOUNCE, &body, ANNOUNCED).await
    }

    /// Publishes one path, and removes everything else.
    async fn publish_only(&mut self, path: &str, terms: &[u8]) {
        let group = record(&[&[1], &record(terms)[..]].concat());
        let body = [&[9, 1][..], &group, &[1, path.len() as u8], path.as_bytes()].concat();
        assert_eq!(self.ask(WRITE, &body, WRITTEN).await, [9, 1, 1, 0], "one path is done");
        assert_eq!(self.ask(CONFIRM, &[9], WRITTEN).await, [9, 1, 0, 0]);
    }

    async fn resolve(&mut self, path: &str) -> Vec<u8> {
        let body = [&[9, 1, path.len() as u8], path.as_bytes()].concat();
        self.ask(RESOLVE, &body, RESOLVED).await
    }

    /// The answer to a path ends the message: 0 not found, 1 published by a set, with no default
    /// above.
    async fn is_published(&mut self, path: &str) -> bool {
        match self.resolve(path).await[..] {
            [.., 1, 1, 0, 0] => true,
            [.., 1, 0] => false,
            ref other => panic!("{other:02x?}"),
        }
    }
}

fn record(fields: &[u8]) -> Vec<u8> {
    [&(fields.len() as u32).to_le_bytes()[..], fields].concat()
}

/// Its id, epoch, the name `p`, one address: the host name `p.example` and port 4780.
fn publisher(epoch: u8) -> Vec<u8> {
    [&[7; 16][..], &[epoch], b"\x01p", &[1, 0], b"\x0bp.example", &[0x12, 0xac]].concat()
}

async fn replica() -> Replica {
    let timing = ResolverTiming { writer_ttl: Duration::from_secs(2), ..ResolverTiming::default() };
    Replica::start(ServerOptions { timing, fresh: true, ..ServerOptions::default() }).await
}

#[tokio::test]
async fn a_writer_without_digests_publishes_and_is_hidden_when_silent() {
    let replica = replica().await;
    let mut reader = Link::open(replica.address, 1).await;
    let mut writer = Link::open(replica.address, 2).await;
    // The replica has no digests; writer_ttl is 2,000 ms.
    assert_eq!(writer.announce(&publisher(1), None).await, [9, 0, 0xd0, 0x0f]);
    writer.publish_only("/jobs/mail", TERMS).await;
    assert!(reader.is_published("/jobs/mail").await);

    // Its next start publishes another path.
    let mut writer = Link::open(replica.address, 2).await;
    writer.announce(&publisher(2), None).await;
    assert!(reader.is_published("/jobs/mail").await, "nothing is removed before the confirm");
    writer.publish_only("/jobs/sms", TERMS).await;
    assert!(reader.is_published("/jobs/sms").await);
    assert!(!reader.is_published("/jobs/mail").await);

    // An announce serves as heartbeat, and removes nothing.
    for _ in 0..6 {
        sleep(Duration::from_millis(500)).await;
        writer.announce(&publisher(2), None).await;
    }
    assert!(reader.is_published("/jobs/sms").await);
    drop(writer);
    let silent = Instant::now();
    while reader.is_published("/jobs/sms").await {
        assert!(silent.elapsed() < Duration::from_secs(20), "it is never hidden");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn fields_of_later_versions_reach_readers_unchanged_and_are_in_digests() {
    let replica = replica().await;
    let publisher = [&publisher(1)[..], b"\x05later"].concat();
    let mut writer = Link::open(replica.address, 2).await;
    writer.announce(&publisher, None).await;
    writer.publish_only("/jobs/mail", LATER_TERMS).await;

    let mut reader = Link::open(replica.address, 1).await;
    let answer = reader.resolve("/jobs/mail").await;
    let contains = |bytes: &[u8]| answer.windows(bytes.len()).any(|window| window == bytes);
    assert!(contains(&record(&publisher)), "{answer:02x?}");
    assert!(contains(&record(LATER_TERMS)), "{answer:02x?}");

    // XXH3-64 of the fields as they were written, those of later versions included.
    let mut expected = Digest::default();
    let terms = XxHash3_64::oneshot(LATER_TERMS);
    expected.add(KeyHash::of("/jobs/mail", false), terms);
    let answer = writer.announce(&publisher, Some(expected)).await;
    assert_eq!(answer[..3], [9, 1, 1]);
    assert_eq!(
        answer[3..19],
        expected.sum.to_le_bytes(),
        "both sides agree, so nothing is rewritten"
    );
}
