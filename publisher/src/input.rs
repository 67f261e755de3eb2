//! What reaches the owner.

use std::sync::Arc;

use longshore_protocol::messages::work::{ToPublisher, Tokens};
use longshore_protocol::{LinkId, Role, SessionId};
use longshore_transport::LinkSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::cold::{ColdJob, LoadedAnswer};
use crate::metrics::Ask;

/// Inputs that may wait for the owner, each at most a frame's worth of messages. When it is full,
/// links are not read.
const INPUTS_MAX: usize = 1_024;
/// Bytes of messages that are decoded and wait for the owner, over all links. Beyond it nothing is
/// decoded, and links are not read either.
pub(crate) const INPUT_BYTES_MAX: usize = 128 * 1024 * 1024;
/// A byte of the shortest messages takes up to so many bytes once it is decoded. Longer messages
/// are mostly payloads, which are slices: of a part of a frame no more than [`DECODED_PART_BYTES`]
/// count so.
const DECODED_FACTOR: usize = 32;
/// See [`DECODED_FACTOR`].
const DECODED_PART_BYTES: usize = 64 * 1024;

/// Where links put what they read.
#[derive(Clone)]
pub(crate) struct Inputs {
    sender: mpsc::Sender<Input>,
    room: Arc<Semaphore>,
}

/// The owner has stopped.
pub(crate) struct Stopped;

impl Inputs {
    /// The links' end and the owner's.
    pub(crate) fn new() -> (Inputs, mpsc::Receiver<Input>) {
        let (sender, receiver) = mpsc::channel(INPUTS_MAX);
        (Inputs { sender, room: Arc::new(Semaphore::new(INPUT_BYTES_MAX)) }, receiver)
    }

    /// For what is not read from a link, and is bounded elsewhere.
    pub(crate) fn sender(&self) -> &mpsc::Sender<Input> {
        &self.sender
    }

    /// Waits until messages of so many bytes may be decoded. Cancel safe.
    pub(crate) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Stopped> {
        let bytes = bytes + DECODED_FACTOR * bytes.min(DECODED_PART_BYTES);
        let permits = bytes.min(INPUT_BYTES_MAX) as u32;
        Arc::clone(&self.room).acquire_many_owned(permits).await.map_err(|_| Stopped)
    }

    /// Waits until it may wait, and puts it down.
    pub(crate) async fn put(&self, input: Input) -> Result<(), Stopped> {
        self.sender.send(input).await.map_err(|_| Stopped)
    }
}

/// One input.
pub(crate) enum Input {
    /// A link has said who it is.
    Up(Up),
    /// Messages of a frame, or some of them.
    Messages {
        /// The link.
        link: LinkId,
        /// In their order.
        messages: Vec<ToPublisher>,
        /// What they take of the bytes that may wait; free again once they are taken.
        _room: OwnedSemaphorePermit,
    },
    /// A link has ended.
    Down {
        /// The link.
        link: LinkId,
    },
    /// A link that had as many bytes under way as it may has room again.
    Ready {
        /// The link.
        link: LinkId,
    },
    /// A link that had too much under way for events has room for them again.
    FeedReady {
        /// The link.
        link: LinkId,
    },
    /// Entries read back from the journal, for jobs on their way to workers.
    Loaded {
        /// The load's number.
        load: u64,
        /// Each job with its entry; none where it could not be read.
        jobs: Vec<ColdJob>,
    },
    /// An answer whose cold parts were read.
    Answered(LoadedAnswer),
    /// Somebody follows metrics.
    Metrics(Ask),
}

/// A link that stands.
pub(crate) struct Up {
    /// Its number.
    pub(crate) link: LinkId,
    /// Its sending half.
    pub(crate) sender: LinkSender,
    /// What it is for.
    pub(crate) role: Role,
    /// The run of the process at its other end.
    pub(crate) session: SessionId,
    /// That process's name.
    pub(crate) name: String,
    /// Leases that it holds.
    pub(crate) resume: Tokens,
}
