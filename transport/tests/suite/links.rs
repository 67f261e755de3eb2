//! How links transfer frames, and how they end.

use std::time::{Duration, Instant};

use crate::common::*;
use longshore_protocol::{FrameWriter, LinkTiming, Messages, Reader, messages};
use longshore_transport::{LinkEnd, LinkOptions, ListenerOptions, OldestCommand, SendError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_each_of_many_senders_arrive_whole_and_in_order() {
    const SENDERS: u64 = 8;
    const FRAMES: u64 = 2_000;
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    for sender_number in 0..SENDERS {
        let sender = sender.clone();
        tokio::spawn(async move {
            for i in 0..FRAMES {
                let more = if i % 100 == 0 { 100_000 } else { (i as usize * 7) % 6_000 };
                sender.send(frame(sender_number << 32 | i, more)).unwrap();
                if i % 50 == 0 {
                    sender.ready(4 * MIB).await.unwrap();
                }
            }
        });
    }
    let mut next = [0; SENDERS as usize];
    for _ in 0..SENDERS * FRAMES {
        let number = number(&soon(receiver.recv()).await.unwrap());
        let (sender_number, i) = ((number >> 32) as usize, number & 0xffff_ffff);
        assert_eq!(i, next[sender_number]);
        next[sender_number] += 1;
    }
}

#[tokio::test]
async fn a_burst_in_one_task_arrives_in_order() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    for i in 0..5_000 {
        sender.send(frame(i, 20)).unwrap();
    }
    for i in 0..5_000 {
        assert_eq!(number(&soon(receiver.recv()).await.unwrap()), i);
    }
}

#[tokio::test]
async fn a_stream_in_single_bytes_yields_the_same_frames() {
    let mut listener = listener(listening()).await;
    let mut stream = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let (_sender, mut receiver) = soon(listener.accept()).await.split();
    let writing = tokio::spawn(async move {
        for i in 0..200 {
            for byte in bytes_of(&frame(i, 40)) {
                stream.write_all(&[byte]).await.unwrap();
            }
        }
        // Not dropped: on a slow machine it has unread heartbeats, and the kernel would reset the
        // link.
        stream.shutdown().await.unwrap();
        stream
    });
    for i in 0..200 {
        assert_eq!(number(&soon(receiver.recv()).await.unwrap()), i);
    }
    let _stream = soon(writing).await.unwrap();
    assert!(matches!(soon(receiver.recv()).await, Err(LinkEnd::Closed)));
}

#[tokio::test]
async fn a_frame_over_the_limit_ends_the_link_at_its_length() {
    let options = ListenerOptions { frame_bytes_max: 10_000, ..listening() };
    let mut listener = listener(options).await;
    let mut stream = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let (sender, mut receiver) = soon(listener.accept()).await.split();
    stream.write_all(&10_001u32.to_le_bytes()).await.unwrap();
    let end = soon(receiver.recv()).await.unwrap_err();
    assert!(matches!(end, LinkEnd::FrameTooLong { length: 10_001, limit: 10_000 }), "{end}");
    assert_eq!(sender.send(frame(0, 0)), Err(SendError::Closed));
    let again = soon(receiver.recv()).await.unwrap_err();
    assert!(matches!(again, LinkEnd::FrameTooLong { .. }), "the end is returned again: {again}");
    // Closed or reset, but not left open.
    let _ = soon(stream.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn a_frame_that_the_other_side_would_refuse_is_not_sent() {
    let options = ListenerOptions { frame_bytes_max: 10_000, ..listening() };
    let (dialled, accepted, _listener) = link_with(options, dialling()).await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    let refused = sender.send(frame(1, 10_000));
    assert_eq!(refused, Err(SendError::TooLong { length: 10_013, limit: 10_000 }));
    sender.send(frame(2, 10_000 - 13)).unwrap();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 2);
}

#[tokio::test]
async fn a_stream_that_ends_within_a_frame_is_truncated() {
    let mut listener = listener(listening()).await;
    let mut stream = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let (_sender, mut receiver) = soon(listener.accept()).await.split();
    let mut bytes = bytes_of(&frame(1, 0));
    bytes.extend(&bytes_of(&frame(2, 100))[..50]);
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 1);
    let end = soon(receiver.recv()).await.unwrap_err();
    assert!(matches!(end, LinkEnd::Truncated { had: 50, needed: 117 }), "{end}");
}

#[tokio::test]
async fn an_idle_link_lives_on_heartbeats_alone() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    let quiet = tokio::time::timeout(3 * TIMING.hang, receiver.recv()).await;
    assert!(quiet.is_err(), "heartbeats are skipped and the link lives: {quiet:?}");
    sender.send(frame(5, 0)).unwrap();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 5);
}

#[tokio::test]
async fn a_heartbeat_is_answered_at_once_but_not_twice_within_half_the_interval() {
    const HEARTBEAT: [u8; 9] = [5, 0, 0, 0, 1, 0, 0, 0, 0];
    let timing =
        LinkTiming { heartbeat: Duration::from_secs(60), hang: Duration::from_secs(1_000) };
    let mut listener = listener(ListenerOptions { timing, ..listening() }).await;
    let mut stream = raw_dialler(listener.local_address(), timing).await;
    let (sender, mut receiver) = soon(listener.accept()).await.split();
    let reading = tokio::spawn(async move { receiver.recv().await });
    tokio::time::pause();
    tokio::time::advance(timing.heartbeat / 2).await;
    tokio::time::resume();
    let mut answer = [0; HEARTBEAT.len()];
    stream.write_all(&HEARTBEAT).await.unwrap();
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, HEARTBEAT);

    // After the second heartbeat comes a frame: once it was read, an answer would have been sent.
    stream.write_all(&HEARTBEAT).await.unwrap();
    stream.write_all(&bytes_of(&frame(3, 0))).await.unwrap();
    assert_eq!(number(&soon(reading).await.unwrap().unwrap()), 3);
    let next = frame(4, 0);
    let expected = bytes_of(&next);
    sender.send(next).unwrap();
    let mut received = vec![0; expected.len()];
    soon(stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(received, expected);
}

#[tokio::test]
async fn a_heartbeat_with_a_number_is_returned_to_the_caller() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    let mut out = FrameWriter::new();
    out.message(messages::HEARTBEAT, |out| out.u64(12));
    sender.send(out.finish()).unwrap();
    assert_eq!(soon(receiver.recv()).await.unwrap()[..], [1, 1, 0, 0, 0, 12]);
}

#[tokio::test]
async fn heartbeats_carry_the_age_of_the_oldest_command() {
    let oldest = OldestCommand::default();
    let options = ListenerOptions { oldest: oldest.clone(), ..listening() };
    let (dialled, accepted, _listener) = link_with(options, dialling()).await;
    let (_back, _requests) = accepted.split();
    let (_sender, mut receiver) = dialled.split();
    oldest.waits_since(Some(Instant::now()));
    let mut last = 0;
    for _ in 0..3 {
        let frame = soon(receiver.recv()).await.unwrap();
        let (tag, body) = Messages::new(frame).next().unwrap().unwrap();
        assert_eq!(tag, messages::HEARTBEAT);
        let age = Reader::new(body).u64().unwrap();
        assert!(age > last, "{age} ms after {last} ms");
        last = age;
    }
    oldest.waits_since(None);
    // One may already be in flight.
    let _in_flight = tokio::time::timeout(TIMING.hang, receiver.recv()).await;
    let quiet = tokio::time::timeout(2 * TIMING.hang, receiver.recv()).await;
    assert!(quiet.is_err(), "nothing waits: {quiet:?}");
}

#[tokio::test]
async fn a_silent_peer_is_hung_and_both_halves_return_it() {
    let mut listener = listener(listening()).await;
    let _silent = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let started = Instant::now();
    let (sender, mut receiver) = soon(listener.accept()).await.split();
    let end = soon(receiver.recv()).await.unwrap_err();
    let LinkEnd::Hung { silent_for } = end else { panic!("{end}") };
    assert!(silent_for >= TIMING.hang && started.elapsed() < 2 * TIMING.hang, "{silent_for:?}");
    assert_eq!(sender.send(frame(0, 0)), Err(SendError::Closed));
    assert!(matches!(sender.ended(), Some(LinkEnd::Hung { .. })));
}

#[tokio::test]
async fn a_link_that_is_not_read_does_not_count_as_hung() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (back, mut receiver) = accepted.split();
    sender.send(frame(1, 0)).unwrap();
    tokio::time::sleep(2 * TIMING.hang).await;
    assert!(back.ended().is_none(), "{:?}", back.ended());
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 1);
}

#[tokio::test]
async fn a_peer_that_stops_reading_ends_the_link_within_the_queue_limit() {
    const LIMIT: usize = 3 * MIB;
    let options = ListenerOptions { send_queue_bytes_max: LIMIT, ..listening() };
    let mut listener = listener(options).await;
    let mut stopped = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let (sender, mut receiver) = soon(listener.accept()).await.split();
    // The peer still sends, so that only its not reading can end the link.
    let (_stopped_reads, mut stopped_writes) = stopped.split();
    let talking = async {
        loop {
            let _ = stopped_writes.write_all(&bytes_of(&frame(0, 0))).await;
            tokio::time::sleep(TIMING.heartbeat).await;
        }
    };
    let filling = async {
        let full = loop {
            match sender.send(frame(1, 100_000)) {
                Ok(()) => assert!(sender.queued_bytes() <= LIMIT),
                Err(full) => break full,
            }
            tokio::task::yield_now().await;
        };
        assert!(matches!(full, SendError::Full { limit: LIMIT, .. }), "{full:?}");
        let waiting = tokio::join!(sender.ready(MIB), sender.flushed());
        assert_eq!(waiting, (Err(SendError::Closed), Err(SendError::Closed)));
        sender.closed().await
    };
    let reading = async {
        loop {
            if let Err(end) = receiver.recv().await {
                break end;
            }
        }
    };
    let ended = async { tokio::join!(filling, reading) };
    let (sender_end, receiver_end) = tokio::select! {
        ends = soon(ended) => ends,
        () = talking => unreachable!(),
    };
    for end in [sender_end, receiver_end] {
        let LinkEnd::SendStalled { stalled_for } = end else { panic!("{end}") };
        assert!(stalled_for >= TIMING.hang && stalled_for < 2 * TIMING.hang, "{stalled_for:?}");
    }
}

#[tokio::test]
async fn a_frame_larger_than_the_queue_passes_an_empty_queue() {
    let options = LinkOptions { send_queue_bytes_max: 1_000, ..dialling() };
    let (dialled, accepted, _listener) = link_with(listening(), options).await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    sender.send(frame(1, 10 * MIB)).unwrap();
    assert!(matches!(sender.send(frame(2, 0)), Err(SendError::Full { limit: 1_000, .. })));
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 1);
    soon(sender.ready(1)).await.unwrap();
    sender.send(frame(3, 0)).unwrap();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 3);
}

#[tokio::test]
async fn flushed_waits_until_the_kernel_has_everything() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    soon(sender.flushed()).await.unwrap();
    for i in 0..4 {
        sender.send(frame(i, 8 * MIB)).unwrap();
    }
    assert!(sender.queued_bytes() > 8 * MIB, "no kernel buffer takes all of it");
    let reading = tokio::spawn(async move {
        for i in 0..4 {
            assert_eq!(number(&receiver.recv().await.unwrap()), i);
        }
        receiver
    });
    soon(sender.flushed()).await.unwrap();
    assert_eq!(sender.queued_bytes(), 0);
    drop(soon(reading).await.unwrap());
}

#[tokio::test]
async fn the_first_refused_byte_after_an_instant_is_reported() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    sender.send(frame(0, 8 * MIB)).unwrap();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 0);
    soon(sender.flushed()).await.unwrap();
    for round in [1, 2] {
        let begun = Instant::now();
        for _ in 0..4 {
            sender.send(frame(round, 15 * MIB)).unwrap();
        }
        let first = soon(sender.refused_after(begun)).await.unwrap();
        assert!(first >= begun, "a stall that ended before does not count");
        let later = Instant::now();
        assert_eq!(soon(sender.refused_after(later)).await.unwrap(), later, "it is stalled");
        for _ in 0..4 {
            assert_eq!(number(&soon(receiver.recv()).await.unwrap()), round);
        }
        soon(sender.flushed()).await.unwrap();
    }
}

#[tokio::test]
async fn a_lower_queue_limit_applies_and_an_unread_link_can_be_aborted() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, _receiver) = accepted.split();
    // More than the kernel takes; each frame goes alone, and an empty queue takes any frame.
    while sender.queued_bytes() == 0 {
        sender.send_within(frame(0, 16 * MIB), MIB).unwrap();
        tokio::task::yield_now().await;
    }
    let queued = sender.queued_bytes();
    let full = sender.send_within(frame(1, 1_000), MIB).unwrap_err();
    assert!(matches!(full, SendError::Full { limit: MIB, .. }), "{full} of {queued}");
    sender.send(frame(1, 1_000)).unwrap();
    sender.cut("enough");
    let LinkEnd::Local(reason) = soon(sender.closed()).await else { panic!("ended here") };
    assert_eq!(&*reason, "enough");
    assert_eq!(sender.refused_after(Instant::now()).await.unwrap_err(), SendError::Closed);
}

#[tokio::test]
async fn frames_queued_before_a_close_arrive_while_the_other_side_sends() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, mut replies) = dialled.split();
    let (back, mut receiver) = accepted.split();
    for i in 0..50 {
        back.send(frame(i, 50_000)).unwrap();
    }
    for i in 0..100 {
        sender.send(frame(i, 30_000)).unwrap();
    }
    sender.close("done");
    assert_eq!(sender.send(frame(0, 0)), Err(SendError::Closed));
    for i in 0..100 {
        assert_eq!(number(&soon(receiver.recv()).await.unwrap()), i);
    }
    assert!(matches!(soon(receiver.recv()).await, Err(LinkEnd::Closed)));
    let end = loop {
        if let Err(end) = soon(replies.recv()).await {
            break end;
        }
    };
    assert!(matches!(&end, LinkEnd::Local(reason) if &**reason == "done"), "{end}");
}

#[tokio::test]
async fn dropping_both_halves_sends_the_queue_and_ends_the_link() {
    let (dialled, accepted, listener) = link().await;
    let (sender, replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    assert_eq!(listener.connections(), 1);
    sender.send(frame(1, 10 * MIB)).unwrap();
    drop(replies);
    sender.send(frame(2, 0)).unwrap();
    drop(sender);
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 1);
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 2);
    assert!(matches!(soon(receiver.recv()).await, Err(LinkEnd::Closed)));
    let freed = async {
        while listener.connections() > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon(freed).await;
}

#[tokio::test]
async fn the_last_frames_of_a_dead_process_are_read_though_sending_fails() {
    let mut listener = listener(listening()).await;
    let mut dying = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let (sender, mut receiver) = soon(listener.accept()).await.split();
    dying.write_all(&bytes_of(&frame(77, 1_000))).await.unwrap();
    drop(dying);
    // The first send is answered by a reset, the later ones fail.
    for i in 0..20 {
        let _ = sender.send(frame(i, 0));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 77);
    soon(receiver.recv()).await.unwrap_err();
}

#[tokio::test]
async fn a_cancelled_receive_loses_nothing() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    let sending = tokio::spawn(async move {
        for i in 0..300 {
            sender.send(frame(i, 20_000 + (i as usize % 3) * 60_000)).unwrap();
            tokio::task::yield_now().await;
        }
        sender
    });
    let (mut expected, mut cancelled) = (0, 0);
    while expected < 300 {
        tokio::select! {
            biased;
            body = receiver.recv() => {
                assert_eq!(number(&body.unwrap()), expected);
                expected += 1;
            }
            () = tokio::task::yield_now() => cancelled += 1,
        }
    }
    assert!(cancelled > 0, "no call was cancelled, so nothing was tested");
    drop(soon(sending).await.unwrap());
}

#[tokio::test]
async fn a_close_is_reported_at_once_though_the_other_side_stays() {
    let mut listener = listener(listening()).await;
    let _stays = raw_dialler(listener.local_address(), LinkTiming::WORK).await;
    let (sender, mut receiver) = soon(listener.accept()).await.split();
    let receiving = tokio::spawn(async move { receiver.recv().await.unwrap_err() });
    tokio::task::yield_now().await;
    let closed_at = Instant::now();
    sender.close("done");
    let end = soon(receiving).await.unwrap();
    assert!(matches!(end, LinkEnd::Local(_)), "{end}");
    assert!(closed_at.elapsed() < Duration::from_millis(500), "not only after the close wait");
}

#[tokio::test]
async fn short_frames_into_a_filling_kernel_buffer_stay_whole() {
    let (dialled, accepted, _listener) = link().await;
    let (sender, _replies) = dialled.split();
    let (_back, mut receiver) = accepted.split();
    let mut sent = 0;
    while sender.queued_bytes() < 200_000 {
        // Not a burst: each is written at once, as far as the kernel takes it.
        let last = Instant::now();
        while last.elapsed() < Duration::from_micros(30) {
            std::hint::spin_loop();
        }
        sender.send(frame(sent, 9_999)).unwrap();
        sent += 1;
    }
    for i in 0..sent {
        assert_eq!(number(&soon(receiver.recv()).await.unwrap()), i);
    }
}
