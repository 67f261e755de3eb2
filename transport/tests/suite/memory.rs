//! The charges of received frames, over real sockets.

use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use longshore_protocol::{Frame, Handshake, LinkTiming, Role};
use longshore_transport::{
    FrameBudget, LinkEnd, LinkReceiver, LinkSender, Listener, ListenerOptions,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, advance, pause, sleep, timeout};

const MIB: usize = 1024 * 1024;
/// Long enough that no link ends for silence.
const PATIENT: LinkTiming =
    LinkTiming { heartbeat: Duration::from_secs(30), hang: Duration::from_secs(60) };

/// A listener whose links share a budget of 32 MiB, of which 8 MiB are reserved.
async fn charging() -> (Listener, FrameBudget) {
    let budget = FrameBudget::new(32 * MIB);
    let options =
        ListenerOptions { budget: budget.clone(), timing: PATIENT, ..ListenerOptions::default() };
    (listener(options).await, budget)
}

/// A link of `role`: the raw dialling stream, and the accepted side.
async fn dialled(listener: &mut Listener, role: Role) -> (TcpStream, LinkSender, LinkReceiver) {
    let mut stream = TcpStream::connect(listener.local_address()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let handshake = Handshake { timing: PATIENT, role, ..handshake() };
    stream.write_all(&handshake_bytes(&handshake)).await.unwrap();
    raw_answer(&mut stream).await;
    let (sender, receiver) = soon(listener.accept()).await.split();
    (stream, sender, receiver)
}

/// Writes a frame while the other side reads it.
async fn sent(stream: &mut TcpStream, frame: &Frame, receiver: &mut LinkReceiver) -> Bytes {
    let bytes = bytes_of(frame);
    let (written, received) =
        soon(async { tokio::join!(stream.write_all(&bytes), receiver.recv()) }).await;
    written.unwrap();
    received.unwrap()
}

async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_frame_is_charged_from_its_header_until_its_last_slice() {
    let (mut listener, budget) = charging().await;
    let (mut stream, _sender, mut receiver) = dialled(&mut listener, Role::Producer).await;
    let sent = bytes_of(&frame(7, 10 * MIB));
    let body = sent.len() - 4;
    stream.write_all(&sent[..4]).await.unwrap();
    let receiving = tokio::spawn(async move { (receiver.recv().await, receiver) });
    until(|| budget.charged() == body).await;
    stream.write_all(&sent[4..]).await.unwrap();
    let (received, receiver) = soon(receiving).await.unwrap();
    let received = received.unwrap();
    assert_eq!((number(&received), budget.charged()), (7, body));
    let slice = received.slice(100..101);
    drop(received);
    assert_eq!(budget.charged(), body);
    drop(slice);
    assert_eq!(budget.charged(), 0);
    drop(receiver);
}

#[tokio::test]
async fn a_partial_frame_is_charged_until_its_link_ends() {
    let (mut listener, budget) = charging().await;
    let (mut stream, _sender, mut receiver) = dialled(&mut listener, Role::Producer).await;
    let sent = bytes_of(&frame(7, 10 * MIB));
    stream.write_all(&sent[..MIB]).await.unwrap();
    let receiving = tokio::spawn(async move { receiver.recv().await });
    until(|| budget.charged() > 0).await;
    stream.shutdown().await.unwrap();
    let end = soon(receiving).await.unwrap().unwrap_err();
    assert!(matches!(end, LinkEnd::Truncated { .. }), "{end}");
    until(|| budget.charged() == 0).await;
}

#[tokio::test]
async fn with_the_budget_used_up_small_frames_and_workers_continue() {
    let (mut listener, budget) = charging().await;
    let (mut stream, _sender, mut receiver) = dialled(&mut listener, Role::Producer).await;
    let first = sent(&mut stream, &frame(1, 19 * MIB), &mut receiver).await;
    let second = sent(&mut stream, &frame(2, MIB / 2), &mut receiver).await;

    let (mut other, _sender, mut others) = dialled(&mut listener, Role::Producer).await;
    for n in 3..20 {
        assert_eq!(number(&sent(&mut other, &frame(n, 8_000), &mut others).await), n);
    }
    let (mut worker, _sender, mut workers) = dialled(&mut listener, Role::Worker).await;
    assert_eq!(number(&sent(&mut worker, &frame(3, 4 * MIB), &mut workers).await), 3);

    // Its header and some more: the kernel's buffer takes that much.
    let fourth = bytes_of(&frame(4, 2 * MIB));
    soon(other.write_all(&fourth[..100_000])).await.unwrap();
    let waits = timeout(Duration::from_millis(100), others.recv()).await;
    assert!(waits.is_err() && budget.charged() < 24 * MIB, "{waits:?}");
    drop((first, second));
    let (written, received) =
        soon(async { tokio::join!(other.write_all(&fourth[100_000..]), others.recv()) }).await;
    written.unwrap();
    assert_eq!(number(&received.unwrap()), 4);
}

#[tokio::test]
async fn a_dialled_link_is_not_charged() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _receiver) = accepted.split();
    let (_sender, mut receiver) = dialled.split();
    let mut received = Vec::new();
    // Together more than the default budget.
    for n in 0..20 {
        sender.send(frame(n, 15 * MIB)).unwrap();
        received.push(soon(receiver.recv()).await.unwrap());
    }
    assert_eq!(received.iter().map(number).sum::<u64>(), 190);
}

#[tokio::test]
async fn a_frame_that_arrives_too_slowly_ends_its_link() {
    let (mut listener, budget) = charging().await;
    let (mut stream, sender, mut receiver) = dialled(&mut listener, Role::Producer).await;
    stream.write_all(&bytes_of(&frame(1, MIB))[..300_000]).await.unwrap();
    pause();
    let start = Instant::now();
    let slow_writes = tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            stream.write_all(&[1; 6_000]).await.unwrap();
        }
    });
    let end = receiver.recv().await.unwrap_err();
    assert!(matches!(end, LinkEnd::TooSlow { had, .. } if had > 300_000), "{end}");
    let after = start.elapsed().as_secs();
    assert!((10..=21).contains(&after), "after {after} s");
    assert!(sender.closed().await.to_string().contains("too slowly"));
    slow_writes.abort();
    drop(receiver);
    assert_eq!(budget.charged(), 0);
}

#[tokio::test]
async fn a_frame_at_the_least_pace_arrives_and_time_without_a_reader_does_not_count() {
    let (mut listener, _budget) = charging().await;
    let (mut stream, _sender, mut receiver) = dialled(&mut listener, Role::Producer).await;
    let sent = bytes_of(&frame(1, MIB));
    let (now, later) = sent.split_at(300_000);
    stream.write_all(now).await.unwrap();
    pause();
    // No reader for 40 s.
    advance(Duration::from_secs(40)).await;
    let later = later.to_vec();
    let writing = tokio::spawn(async move {
        for part in later.chunks(180_000) {
            sleep(Duration::from_secs(9)).await;
            stream.write_all(part).await.unwrap();
        }
        stream
    });
    assert_eq!(number(&receiver.recv().await.unwrap()), 1);
    writing.await.unwrap();
}
