//! The small task of every link: writes what is queued, sends heartbeats, and sees to it that the
//! link ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout};

use crate::end::LinkEnd;
use crate::places::Place;
use crate::queue::{Shared, Task, advance, with_slices};
use crate::socket::{self, WriteSide};

/// The longest that a closed link waits for the other side to close too, so that its last words
/// arrive; and that a link whose socket failed for writing waits for the receiver to read what the
/// other side said last.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Keeps the link until it ends. `place` is its own among the listener's.
pub(crate) async fn keep(shared: Arc<Shared>, mut writes: WriteSide, place: Option<Place>) {
    let farewell = run(&shared, &mut writes).await;
    drop(place);
    match (farewell, shared.ended()) {
        (true, _) => {
            // The bound is what matters; a socket that fails now is gone, which is what is wanted.
            let _ = timeout(LAST_WORDS, async {
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

/// True if the link ended well from this side: a farewell is due.
async fn run(shared: &Shared, writes: &mut WriteSide) -> bool {
    let mut parts = VecDeque::new();
    let mut alarm = std::pin::pin!(sleep_until(Instant::now() + shared.timing.heartbeat));
    loop {
        match shared.next_task(&mut parts) {
            Task::Write => {
                if let Err(error) = write_all(shared, writes, &mut parts).await {
                    parts.clear();
                    shared.break_off();
                    hear_out(shared).await;
                    shared.end(LinkEnd::io(error));
                    return false;
                }
            }
            Task::Rest(until) => {
                // Most of the time the deadline has only moved on: the alarm rings early and is set
                // anew.
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

/// Writes `parts`; returns early, with parts left out, only if the link has ended.
async fn write_all(
    shared: &Shared,
    writes: &mut WriteSide,
    parts: &mut VecDeque<Bytes>,
) -> io::Result<()> {
    while !parts.is_empty() {
        let written = poll_fn(|cx| with_slices(parts, |slices| writes.poll_write(cx, slices)));
        let Some(written) = unless_dead(shared, written).await else {
            parts.clear();
            return Ok(());
        };
        let written = written?;
        advance(parts, written);
        let Some(flushed) = unless_dead(shared, poll_fn(|cx| writes.poll_flush(cx))).await else {
            parts.clear();
            return Ok(());
        };
        flushed?;
        shared.wrote(written);
    }
    Ok(())
}

/// The outcome of a write, or nothing if the link ended before the socket took anything.
async fn unless_dead<T>(shared: &Shared, write: impl Future<Output = T>) -> Option<T> {
    let mut write = std::pin::pin!(write);
    // Almost always the socket takes it at once; the clock is looked at only when it does not.
    if let Poll::Ready(outcome) = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
        return Some(outcome);
    }
    let mut last_look = false;
    loop {
        let deadline = shared.refused();
        tokio::select! {
            biased;
            outcome = &mut write => return Some(outcome),
            () = shared.wake.notified(), if !last_look => {}
            () = sleep_until(deadline), if !last_look => {}
            () = tokio::task::yield_now(), if last_look => {}
        }
        if shared.ended().is_some() {
            return None;
        }
        match shared.death() {
            // A process that was stopped and continued finds the deadline passed before it hears
            // that the socket is writable: the runtime looks at its sockets once more first.
            Some(_) if !last_look => last_look = true,
            Some(end) => {
                shared.end(end);
                return None;
            }
            None => last_look = false,
        }
    }
}

/// Gives the receiver time to read what the other side sent before the socket failed.
async fn hear_out(shared: &Shared) {
    let _ = timeout(LAST_WORDS, async {
        while shared.ended().is_none() {
            shared.wake.notified().await;
        }
    })
    .await;
}
