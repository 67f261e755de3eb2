//! The sending half of a link.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use longshore_protocol::Frame;

use crate::link::LinkGuard;
use crate::link_end::LinkEnd;
use crate::send_queue::Position;

/// Sends frames to the other side, in the order of the calls. Cheap to clone. Once all senders and
/// the receiver are dropped the link closes.
#[derive(Clone)]
pub struct LinkSender {
    pub(crate) guard: Arc<LinkGuard>,
}

/// Why a frame was not accepted, or will not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The other side does not read as fast as this one writes. Wait with [`LinkSender::ready`], or
    /// close the link.
    #[error("the send queue is full: {queued} bytes of at most {limit}")]
    Full {
        /// Bytes in the queue.
        queued: usize,
        /// The limit.
        limit: usize,
    },
    /// The link has ended or is closing; [`LinkSender::ended`] and the receiver return the reason.
    #[error("the link is closed")]
    Closed,
    /// The other side would refuse the frame and end the link. Send smaller ones.
    #[error("a frame of {length} bytes is over the other side's limit of {limit}")]
    TooLong {
        /// Bytes of the frame's body.
        length: usize,
        /// The longest body that the other side accepts, in bytes.
        limit: usize,
    },
}

impl LinkSender {
    /// Queues a frame. Never blocks; a short frame goes to the kernel at once when the queue is
    /// empty.
    ///
    /// A frame is accepted whole or, with an error, not at all. An empty queue accepts any frame
    /// that the other side accepts.
    pub fn send(&self, frame: Frame) -> Result<(), SendError> {
        self.guard.shared.send(frame)
    }

    /// Like [`send`](LinkSender::send), but full at `limit` bytes, if that is less than the link's
    /// own limit.
    pub fn send_within(&self, frame: Frame, limit: usize) -> Result<(), SendError> {
        self.guard.shared.send_within(frame, limit)
    }

    /// Waits until the kernel refuses a byte, at or after `moment`, and returns when it first did.
    /// A stall that lasts at `moment` (a byte was offered, and the kernel has taken none since)
    /// counts from `moment`; a stall that ended before does not count. Cancel safe.
    pub async fn refused_after(&self, moment: Instant) -> Result<Instant, SendError> {
        let shared = &self.guard.shared;
        let mut refused_at = None;
        self.wait(|position| {
            refused_at = shared.refused_after(moment);
            position.open.then_some(refused_at.is_some()).ok_or(SendError::Closed)
        })
        .await?;
        Ok(refused_at.unwrap_or(moment))
    }

    /// Ends the link with [`LinkEnd::Local`] now; the queue is dropped.
    pub fn cut(&self, reason: impl Into<String>) {
        self.guard.shared.end(LinkEnd::Local(reason.into().into()));
    }

    /// True once this side has ended the link, as when its client has lost rights.
    pub fn was_cut(&self) -> bool {
        matches!(self.guard.shared.ended(), Some(LinkEnd::Local(_)))
    }

    /// Asks the kernel to buffer no more than about `bytes` of this link that the other side has
    /// not taken. It may buffer less.
    pub fn bound_kernel_buffer(&self, bytes: usize) -> std::io::Result<()> {
        crate::socket::bound_send_buffer(&self.guard.shared.raw, bytes)
    }

    /// Bytes that were queued and that the kernel has not taken yet.
    pub fn queued_bytes(&self) -> usize {
        self.guard.shared.queued_bytes()
    }

    /// Waits until fewer than `below` bytes are queued; at least 1, so that an empty queue is
    /// always ready. Cancel safe.
    pub async fn ready(&self, below: usize) -> Result<(), SendError> {
        let below = below.max(1) as u64;
        self.wait(|position| match position.open {
            true => Ok(position.taken - position.written < below),
            false => Err(SendError::Closed),
        })
        .await
    }

    /// Waits until everything that was queued before this call is in the kernel. Cancel safe.
    pub async fn flushed(&self) -> Result<(), SendError> {
        let target = self.guard.shared.position().taken;
        self.wait(|position| match position.written >= target {
            true => Ok(true),
            false => position.open.then_some(false).ok_or(SendError::Closed),
        })
        .await
    }

    /// When the last byte of the other side was read; that of the handshake before any other.
    pub fn received_at(&self) -> tokio::time::Instant {
        self.guard.shared.activity.received_at()
    }

    /// Ends the link with [`LinkEnd::Local`] after the queue was written, or once writing stalls
    /// for the hang timeout. From now on nothing more is accepted.
    pub fn close(&self, reason: impl Into<String>) {
        self.guard.shared.close(reason.into().into());
    }

    /// The other side's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.guard.shared.peer_address
    }

    /// Why the link ended, if it has.
    pub fn ended(&self) -> Option<LinkEnd> {
        self.guard.shared.ended().cloned()
    }

    /// Waits for the end. Cancel safe.
    pub async fn closed(&self) -> LinkEnd {
        let shared = &self.guard.shared;
        loop {
            let mut progress = std::pin::pin!(shared.progress.notified());
            progress.as_mut().enable();
            if let Some(end) = shared.ended() {
                return end.clone();
            }
            progress.await;
        }
    }

    async fn wait(
        &self,
        mut reached: impl FnMut(&Position) -> Result<bool, SendError>,
    ) -> Result<(), SendError> {
        let shared = &self.guard.shared;
        loop {
            let mut progress = std::pin::pin!(shared.progress.notified());
            progress.as_mut().enable();
            if reached(&shared.position())? {
                return Ok(());
            }
            progress.await;
        }
    }
}

impl std::fmt::Debug for LinkSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = &self.guard.shared;
        f.debug_struct("LinkSender")
            .field("peer_address", &shared.peer_address)
            .field("queued_bytes", &shared.queued_bytes())
            .field("ended", &shared.ended())
            .finish()
    }
}
