//! The core's handle of a value link's send queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_protocol::Frame;
use longshore_transport::{LinkSender, SendError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::core::{LinkSink, Offer};
use super::limits::VALUE_QUEUE_BYTES_MAX;
use crate::link_log;

/// A link's handle, shared by the core, the link's tasks, and flushes.
#[derive(Clone)]
pub(super) struct LinkHandle(pub(super) Arc<LinkState>);

pub(super) struct LinkState {
    pub(super) sender: LinkSender,
    /// The subscriber's name, for logs.
    pub(super) name: Arc<str>,
    /// Notified when the backlog has entries.
    pub(super) waits: Notify,
    /// Backlog entries sent, ever.
    pub(super) sent: AtomicU64,
    /// Notified when that count rises.
    pub(super) advanced: Notify,
    /// The core is ending it.
    pub(super) ending: CancellationToken,
}

impl LinkHandle {
    pub(super) fn new(sender: LinkSender, name: Arc<str>) -> LinkHandle {
        LinkHandle(Arc::new(LinkState {
            sender,
            name,
            waits: Notify::new(),
            sent: AtomicU64::new(0),
            advanced: Notify::new(),
            ending: CancellationToken::new(),
        }))
    }
}

impl LinkSink for LinkHandle {
    fn offer(&mut self, frame: Frame, limit: usize) -> Offer {
        match self.0.sender.send_within(frame, limit) {
            Ok(()) | Err(SendError::Closed) => Offer::Accepted,
            Err(SendError::Full { .. }) => Offer::Full,
            Err(error @ SendError::TooLong { .. }) => {
                self.end(error.to_string(), None);
                Offer::Accepted
            }
        }
    }

    fn has_room(&self) -> bool {
        self.0.sender.queued_bytes() < VALUE_QUEUE_BYTES_MAX / 2
    }

    fn wait_for_room(&mut self) {
        self.0.waits.notify_one();
    }

    fn advanced(&mut self, sent: u64) {
        self.0.sent.store(sent, Ordering::Release);
        self.0.advanced.notify_waiters();
    }

    fn end(&mut self, reason: String, goodbye: Option<Frame>) {
        if let Some(left_out) = link_log::admit() {
            info!(subscriber = ?self.0.name, %reason, left_out, "a value link is closed");
        }
        if let Some(goodbye) = goodbye {
            // The link may have ended already.
            let _ = self.0.sender.send(goodbye);
        }
        self.0.sender.close(reason);
        self.0.ending.cancel();
    }
}
