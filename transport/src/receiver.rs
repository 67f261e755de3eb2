//! The half of a link that frames come out of.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use longshore_protocol::messages::HEARTBEAT;
use tokio::time::{Instant, sleep_until};

use crate::budget::{Charge, LinkBudget};
use crate::end::LinkEnd;
use crate::frames::{FrameReader, Next};
use crate::link::Hold;
use crate::pace::Pace;
use crate::queue::Shared;
use crate::socket::{ReadSide, has_unread};

/// Gives out the other side's frames. Once it and all senders are dropped the link closes.
///
/// It reads the socket in the task of its caller. While nobody calls [`recv`](LinkReceiver::recv)
/// the kernel's buffers fill and the other side has to wait; heartbeats go on all the same.
pub struct LinkReceiver {
    pub(crate) hold: Arc<Hold>,
    pub(crate) reads: ReadSide,
    pub(crate) frames: FrameReader,
    /// None of a link that was dialled.
    pub(crate) budget: Option<LinkBudget>,
    pub(crate) pace: Pace,
}

impl LinkReceiver {
    /// The body of the next frame, without its length. Heartbeats are swallowed. After an end every
    /// call returns it again.
    ///
    /// Cancel safe: a call that is dropped loses nothing.
    ///
    /// A slice of a frame holds all of it, and, on the accepting side, its charge to the
    /// [`FrameBudget`](crate::FrameBudget): copy what is kept for long. An accepted link is not
    /// read while the budget has no room for its next frame, and ends if a partial frame brings
    /// less than 64 KiB in 10 s.
    pub async fn recv(&mut self) -> Result<Bytes, LinkEnd> {
        loop {
            let shared = &self.hold.shared;
            if let Some(end) = shared.ended() {
                return Err(end.clone());
            }
            match self.frames.next() {
                Ok(Next::Frame(body)) => {
                    self.pace.restart();
                    if body.first() == Some(&HEARTBEAT) {
                        shared.heard_heartbeat();
                    }
                    return Ok(body);
                }
                Ok(Next::Heartbeat) => {
                    self.pace.restart();
                    shared.heard_heartbeat();
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
            let read = tokio::select! {
                biased;
                read = self.reads.read(&mut spare, &shared.pulse) => read,
                () = ended(shared) => continue,
                end = too_slow(&mut self.pace, partial) => {
                    // After the process was stopped and continued the runtime may not know yet of
                    // what came meanwhile.
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
                Ok(_) => {}
                Err(error) => return Err(shared.end(LinkEnd::io(error))),
            }
        }
    }
}

/// Waits until a partial frame is too slow. Polled only while the socket has nothing, so that
/// others cost no look at the clock.
async fn too_slow(pace: &mut Pace, partial: Option<(usize, usize)>) -> LinkEnd {
    let Some((had, needed)) = partial else { return pending().await };
    sleep_until(pace.deadline(Instant::now().into_std(), had).into()).await;
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
        let shared = &self.hold.shared;
        f.debug_struct("LinkReceiver")
            .field("peer_address", &shared.peer_address)
            .field("ended", &shared.ended())
            .finish()
    }
}
