//! The events that the owner processes.

use std::sync::Arc;

use longshore_access::{Identity, Rights};
use longshore_protocol::messages::work::{ToPublisher, Tokens};
use longshore_protocol::{LinkId, Role, SessionId};
use longshore_transport::LinkSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::cold::{ColdJob, LoadedAnswer};
use crate::metrics::MetricsRequest;

/// Events that may wait for the owner, each at most a frame's worth of messages. While the channel
/// is full, links are not read.
const EVENTS_MAX: usize = 1_024;
/// Bytes of decoded messages that may wait for the owner, over all links. Beyond it, links neither
/// decode nor read.
pub(crate) const EVENT_BYTES_MAX: usize = 128 * 1024 * 1024;
/// The shortest messages take up to this many times their bytes once decoded. Longer messages are
/// mostly payloads, which are slices. So at most [`DECODED_PART_BYTES`] of each part of a frame are
/// multiplied.
const DECODED_FACTOR: usize = 32;
/// See [`DECODED_FACTOR`].
const DECODED_PART_BYTES: usize = 64 * 1024;

/// Sends events to the owner.
#[derive(Clone)]
pub(crate) struct EventSender {
    sender: mpsc::Sender<OwnerEvent>,
    budget: Arc<Semaphore>,
}

/// The owner has stopped.
pub(crate) struct OwnerStopped;

impl EventSender {
    /// The sender for links, and the owner's receiver.
    pub(crate) fn new() -> (EventSender, mpsc::Receiver<OwnerEvent>) {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        (EventSender { sender, budget: Arc::new(Semaphore::new(EVENT_BYTES_MAX)) }, receiver)
    }

    /// The channel, for events that are not read from a link and are bounded elsewhere.
    pub(crate) fn sender(&self) -> &mpsc::Sender<OwnerEvent> {
        &self.sender
    }

    /// Waits until messages of `bytes` bytes may be decoded. Cancel safe.
    pub(crate) async fn budget(&self, bytes: usize) -> Result<OwnedSemaphorePermit, OwnerStopped> {
        let bytes = bytes + DECODED_FACTOR * bytes.min(DECODED_PART_BYTES);
        let permits = bytes.min(EVENT_BYTES_MAX) as u32;
        Arc::clone(&self.budget).acquire_many_owned(permits).await.map_err(|_| OwnerStopped)
    }

    /// Sends an event, after waiting for a free slot.
    pub(crate) async fn send(&self, event: OwnerEvent) -> Result<(), OwnerStopped> {
        self.sender.send(event).await.map_err(|_| OwnerStopped)
    }
}

/// An event.
pub(crate) enum OwnerEvent {
    /// A link has attached.
    LinkUp(NewLink),
    /// Messages of a frame, or some of them.
    Messages {
        /// The link.
        link: LinkId,
        /// In the frame's order.
        messages: Vec<ToPublisher>,
        /// The messages' share of [`EVENT_BYTES_MAX`], released with them.
        _budget: OwnedSemaphorePermit,
        /// One of the link's few parts that may wait.
        _turn: OwnedSemaphorePermit,
    },
    /// A client has gained rights.
    Rights {
        /// The link.
        link: LinkId,
        /// What the client may do now.
        rights: Arc<Rights>,
    },
    /// A link has ended.
    LinkDown {
        /// The link.
        link: LinkId,
    },
    /// A link whose send queue was full has room again.
    LinkReady {
        /// The link.
        link: LinkId,
    },
    /// A link has room for feed events again.
    FeedReady {
        /// The link.
        link: LinkId,
    },
    /// Entries read from the journal, for jobs on their way to workers.
    JobsLoaded {
        /// The load's number.
        load: u64,
        /// Each job with its entry; none if it could not be read.
        jobs: Vec<ColdJob>,
    },
    /// An answer whose cold parts were read.
    AnswerLoaded(LoadedAnswer),
    /// A subscriber follows metrics.
    Metrics(MetricsRequest),
}

/// A link that has attached.
pub(crate) struct NewLink {
    /// Its number.
    pub(crate) link: LinkId,
    /// Its sending half.
    pub(crate) sender: LinkSender,
    /// The role of the client.
    pub(crate) role: Role,
    /// The client process's session, one per run.
    pub(crate) session: SessionId,
    /// The client process's name.
    pub(crate) name: String,
    /// Who the client is; none without a certificate and a token.
    pub(crate) identity: Option<Arc<Identity>>,
    /// What the client may do.
    pub(crate) rights: Arc<Rights>,
    /// Leases that it resumes.
    pub(crate) resume: Tokens,
}
