//! The writer task of every link: writes what is queued, sends heartbeats, and ends the link.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use crate::link::LinkPlace;
use crate::link_end::LinkEnd;
use crate::send_queue::{Shared, Task, advance, with_slices};
use crate::socket::{self, WriteSide};

/// Two bounds. A closed link waits this long for the other side to close too, so that the last
/// frames arrive. A link whose socket failed for writing waits this long for the receiver to read
/// the other side's last bytes.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Closed links of a process that have given up their places while they wait: each has a descriptor
/// of those that are [reserved](crate::ListenerOptions::descriptors_reserved) for other files. More
/// keep their places as well.
const CLOSING_MAX: usize = 64;
static CLOSING: Semaphore = Semaphore::const_new(CLOSING_MAX);

/// Writes for the link until it ends. `place` is what it occupies at the listener.
pub(crate) async fn run(shared: Arc<Shared>, mut writes: WriteSide, place: Option<LinkPlace>) {
    let graceful = write_until_end(&shared, &mut writes).await;
    let closing = place.as_ref().and_then(|_| CLOSING.try_acquire().ok());
    let _place = place.filter(|_| closing.is_none());
    match (graceful, shared.ended()) {
        (true, _) => {
            // The timeout bounds the wait; if the socket fails now, it is closed anyway.
            let _ = timeout(CLOSE_WAIT, async {
                if poll_fn(|cx| writes.poll_finish(cx)).await.is_ok() {
                    socket::drain(&shared.raw).await;
                }
            })
            .await;
            let _ = socket::shutdown(&shared.raw, Shutdown::Both);
        }
        (false, Some(LinkEnd::Closed)) => {
            let _ = socket::shutdown(&shared.raw, Shutdown::Both);
        }
        (false, _) => socket::abort(&shared.raw),
    }
}

/// True if this side ended the link in order: shut it down gracefully.
async fn write_until_end(shared: &Shared, writes: &mut WriteSide) -> bool {
    let mut parts = VecDeque::new();
    let mut alarm = std::pin::pin!(sleep_until(Instant::now() + shared.timing.heartbeat));
    loop {
        match shared.next_task(&mut parts) {
            Task::Write => {
                if let Err(error) = write_all(shared, writes, &mut parts).await {
                    parts.clear();
                    shared.break_off();
                    drain_received(shared).await;
                    shared.end(LinkEnd::io(error));
                    return false;
                }
            }
            Task::Sleep(until) => {
                // The deadline usually has only moved back: the timer fires early and is reset.
                if alarm.is_elapsed() || until < alarm.deadline() {
                    alarm.as_mut().reset(until);
                }
                tokio::select! {
                    biased;
                    () = shared.wake.notified() => {}
                    () = &mut alarm => {}
                }
            }
            Task::Finish(reason) => {
                shared.end(LinkEnd::Local(reason));
                return true;
            }
            Task::Stop => return false,
        }
    }
}

/// Writes `parts`; returns early, with parts left over, only if the link has ended.
async fn write_all(
    shared: &Shared,
    writes: &mut WriteSide,
    parts: &mut VecDeque<Bytes>,
) -> io::Result<()> {
    while !parts.is_empty() {
        let written = poll_fn(|cx| with_slices(parts, |slices| writes.poll_write(cx, slices)));
        let Some(written) = unless_ended(shared, written).await else {
            parts.clear();
            return Ok(());
        };
        let written = written?;
        advance(parts, written);
        let Some(flushed) = unless_ended(shared, poll_fn(|cx| writes.poll_flush(cx))).await else {
            parts.clear();
            return Ok(());
        };
        flushed?;
        shared.wrote(written);
    }
    Ok(())
}

/// The outcome of a write, or `None` if the link ended before the socket took anything.
async fn unless_ended<T>(shared: &Shared, write: impl Future<Output = T>) -> Option<T> {
    let mut write = std::pin::pin!(write);
    // Almost always the socket takes it at once; read the clock only when it does not.
    if let Poll::Ready(outcome) = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
        return Some(outcome);
    }
    let mut last_poll = false;
    loop {
        let deadline = shared.refused();
        tokio::select! {
            biased;
            outcome = &mut write => return Some(outcome),
            () = shared.wake.notified(), if !last_poll => {}
            () = sleep_until(deadline), if !last_poll => {}
            () = tokio::task::yield_now(), if last_poll => {}
        }
        if shared.ended().is_some() {
            return None;
        }
        match shared.death() {
            // A process that was stopped and continued sees the deadline as passed before it learns
            // that the socket is writable: let the runtime poll its sockets once more first.
            Some(_) if !last_poll => last_poll = true,
            Some(end) => {
                shared.end(end);
                return None;
            }
            None => last_poll = false,
        }
    }
}

/// Gives the receiver time to read what the other side sent before the socket failed.
async fn drain_received(shared: &Shared) {
    let _ = timeout(CLOSE_WAIT, async {
        while shared.ended().is_none() {
            shared.wake.notified().await;
        }
    })
    .await;
}
