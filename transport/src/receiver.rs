//! The receiving half of a link.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use longshore_protocol::messages::HEARTBEAT;
use tokio::time::{Instant, sleep_until};

use crate::budget::{Charge, LinkBudget};
use crate::frames::{FrameReader, Next, READ_BYTES};
use crate::link::LinkGuard;
use crate::link_end::LinkEnd;
use crate::pace::Pace;
use crate::quota::LinkRate;
use crate::send_queue::Shared;
use crate::socket::{ReadSide, has_unread};

/// Heartbeats that cost as much of the runtime's budget of a task as one read.
const HEARTBEATS_PER_UNIT: u32 = 64;

/// Returns the other side's frames. Once it and all senders are dropped the link closes.
///
/// It reads the socket in its caller's task. While no caller runs [`recv`](LinkReceiver::recv), the
/// kernel's buffers fill and the other side has to wait; heartbeats continue all the same.
pub struct LinkReceiver {
    pub(crate) guard: Arc<LinkGuard>,
    pub(crate) reads: ReadSide,
    pub(crate) frames: FrameReader,
    /// `None` for a dialled link.
    pub(crate) budget: Option<LinkBudget>,
    /// The rate at which its client may send; `None` for a dialled link.
    pub(crate) rate: Option<LinkRate>,
    pub(crate) pace: Pace,
}

impl LinkReceiver {
    /// The body of the next frame, without its length. Bare heartbeats are skipped. After the end
    /// every call returns the same error.
    ///
    /// Cancel safe: a call that is dropped loses nothing.
    ///
    /// A slice of a frame holds all of it, and, on the accepting side, its charge to the
    /// [`FrameBudget`](crate::FrameBudget): copy what you retain for long. An accepted link is not
    /// read while the budget has no room for its next frame, or its client is over its quota; it
    /// ends if less than 64 KiB of a partial frame arrive in 10 s.
    pub async fn recv(&mut self) -> Result<Bytes, LinkEnd> {
        let mut heartbeats = 0u32;
        loop {
            let shared = &self.guard.shared;
            if let Some(end) = shared.ended() {
                return Err(end.clone());
            }
            if let Some(rate) = &mut self.rate
                && rate.is_over()
            {
                let from = Instant::now();
                tokio::select! {
                    biased;
                    () = rate.wait() => self.pace.was_not_read(from.elapsed()),
                    () = ended(shared) => {}
                }
                continue;
            }
            match self.frames.next() {
                Ok(Next::Frame(body)) => {
                    self.pace.restart();
                    if let Some(rate) = &mut self.rate {
                        rate.read_frame(body.len());
                    }
                    if body.first() == Some(&HEARTBEAT) {
                        shared.heartbeat_arrived();
                    }
                    return Ok(body);
                }
                Ok(Next::Heartbeat) => {
                    self.pace.restart();
                    if let Some(rate) = &mut self.rate {
                        rate.read_frame(0);
                    }
                    shared.heartbeat_arrived();
                    heartbeats += 1;
                    // A read brings thousands of them, and the runtime counts reads alone.
                    if heartbeats.is_multiple_of(HEARTBEATS_PER_UNIT) {
                        tokio::task::coop::consume_budget().await;
                    }
                    continue;
                }
                Ok(Next::Charge(length)) => {
                    let charge = match &self.budget {
                        None => Charge::default(),
                        Some(budget) => tokio::select! {
                            biased;
                            charge = budget.charge(length) => charge,
                            () = ended(shared) => continue,
                        },
                    };
                    self.frames.charged(charge);
                    self.pace.restart();
                    continue;
                }
                Ok(Next::Read) => {}
                Err(end) => return Err(shared.end(end)),
            }
            let partial = self.budget.as_ref().and_then(|_| self.frames.partial());
            let mut spare = self.frames.spare();
            if self.rate.as_ref().is_some_and(|rate| rate.is_limited()) {
                // So that the wait for each part of a long frame is a short one.
                spare.set_limit(spare.limit().min(READ_BYTES));
            }
            let read = tokio::select! {
                biased;
                read = self.reads.read(&mut spare, &shared.activity) => read,
                () = ended(shared) => continue,
                end = too_slow(&mut self.pace, partial) => {
                    // After the process was stopped and continued, the runtime may not yet know of
                    // bytes that arrived meanwhile.
                    if has_unread(&shared.raw) {
                        self.pace.restart();
                        tokio::task::yield_now().await;
                        continue;
                    }
                    return Err(shared.end(end));
                }
            };
            match read {
                Ok(0) => return Err(shared.end(self.frames.end_of_stream())),
                Ok(bytes) => {
                    if let Some(rate) = &mut self.rate {
                        rate.read(bytes);
                    }
                }
                Err(error) => return Err(shared.end(LinkEnd::io(error))),
            }
        }
    }
}

/// Waits until a partial frame is too slow. Polled only while the socket has nothing to read, so
/// that other reads never read the clock.
async fn too_slow(pace: &mut Pace, partial: Option<(usize, usize)>) -> LinkEnd {
    let Some((had, needed)) = partial else { return pending().await };
    sleep_until(pace.deadline(Instant::now().into_std(), had, needed).into()).await;
    LinkEnd::TooSlow { had, needed }
}

async fn ended(shared: &Shared) {
    poll_fn(|cx| {
        shared.reader.register(cx.waker());
        if shared.ended().is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl std::fmt::Debug for LinkReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = &self.guard.shared;
        f.debug_struct("LinkReceiver")
            .field("peer_address", &shared.peer_address)
            .field("ended", &shared.ended())
            .finish()
    }
}
