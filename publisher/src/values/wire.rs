//! A value link's way out: the core's frames into the link's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_protocol::Frame;
use longshore_transport::{LinkSender, SendError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::core::{LinkOutput, Offer};
use super::limits::VALUE_QUEUE_BYTES_MAX;

/// A link's way out, shared by the core, the link's tasks, and flushes.
#[derive(Clone)]
pub(super) struct Wire(pub(super) Arc<WireState>);

pub(super) struct WireState {
    pub(super) sender: LinkSender,
    /// Who it is, for people.
    pub(super) name: Arc<str>,
    /// Rung when something stands in the line.
    pub(super) waits: Notify,
    /// Entries of the line that were said, ever.
    pub(super) gone: AtomicU64,
    /// Rung when some were.
    pub(super) advanced: Notify,
    /// The core has ended it.
    pub(super) ending: CancellationToken,
}

impl Wire {
    pub(super) fn new(sender: LinkSender, name: Arc<str>) -> Wire {
        Wire(Arc::new(WireState {
            sender,
            name,
            waits: Notify::new(),
            gone: AtomicU64::new(0),
            advanced: Notify::new(),
            ending: CancellationToken::new(),
        }))
    }
}

impl LinkOutput for Wire {
    fn offer(&mut self, frame: Frame, limit: usize) -> Offer {
        match self.0.sender.send_within(frame, limit) {
            Ok(()) | Err(SendError::Closed) => Offer::Taken,
            Err(SendError::Full { .. }) => Offer::Full,
            Err(error @ SendError::TooLong { .. }) => {
                self.end(error.to_string(), None);
                Offer::Taken
            }
        }
    }

    fn has_room(&self) -> bool {
        self.0.sender.queued_bytes() < VALUE_QUEUE_BYTES_MAX / 2
    }

    fn wait_for_room(&mut self) {
        self.0.waits.notify_one();
    }

    fn advanced(&mut self, gone: u64) {
        self.0.gone.store(gone, Ordering::Release);
        self.0.advanced.notify_waiters();
    }

    fn end(&mut self, reason: String, farewell: Option<Frame>) {
        info!(subscriber = %self.0.name, %reason, "a value link is closed");
        if let Some(farewell) = farewell {
            // If it is gone already it needs none.
            let _ = self.0.sender.send(farewell);
        }
        self.0.sender.close(reason);
        self.0.ending.cancel();
    }
}
