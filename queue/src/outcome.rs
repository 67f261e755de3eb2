//! What a command brought about. Nothing of it leaves before the command is durable.

use longshore_protocol::messages::work::{
    ActionReport, Attached, Credit, Enqueued, JobInfo, Settled, Waiting,
};
use longshore_protocol::{LinkId, Path, Revoked, Token};

/// A part of a command's body in the log: where a cold thing (entry, result, error) lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordRef {
    /// The command's index.
    pub index: u64,
    /// Where the part begins in the command's encoded body.
    pub at: u32,
    /// How long it is.
    pub length: u32,
}

/// A queue's number within its publisher; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub u32);

/// A job handed to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// The worker's link.
    pub link: LinkId,
    /// The subscription whose credit it used up.
    pub subscription: u32,
    /// The lease.
    pub token: Token,
    /// The queue; see `State::path`.
    pub queue: QueueId,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// How often the job was delivered, this time included.
    pub deliveries: u16,
    /// How long the lease runs without renewal.
    pub lease_ms: u32,
    /// The job's entry.
    pub entry: RecordRef,
}

/// An answer to one link.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// To `LinkUp`.
    Attached(Attached),
    /// To `LinkUp`, when the publisher has as many sessions as it may: the link is to be closed with that reason.
    LinkRefused {
        /// Why.
        reason: String,
    },
    /// To `Enqueue`.
    Enqueued(Enqueued),
    /// To `Settle`.
    Settled(Settled),
    /// To `Recall`.
    Returned(Credit),
    /// Jobs wait and the subscription has no credit; said once until it has had credit again.
    Waiting(Waiting),
    /// To `Subscribe`, when it was not made.
    SubscribeRefused {
        /// Which.
        subscription: u32,
        /// Why.
        reason: String,
    },
    /// To `Act`.
    Acted {
        /// The client's number for its request.
        request: u64,
        /// What was done.
        report: ActionReport,
    },
}

/// Everything that a command brought about, in buffers that the caller clears and uses again.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcomes {
    /// Jobs handed to workers, in order.
    pub handed: Vec<Handed>,
    /// Answers, with the links that they go to.
    pub replies: Vec<(LinkId, Reply)>,
    /// Leases taken from workers whose link is still up; they are told.
    pub revoked: Vec<(LinkId, Revoked, Token)>,
    /// Leases that ended with this command, however they ended.
    pub ended: Vec<Token>,
    /// Leases that moved to another link: the session resumed.
    pub moved: Vec<(Token, LinkId)>,
    /// Queues that the command made; they are to be published.
    pub queues_made: Vec<Path>,
}

impl Outcomes {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.handed.clear();
        self.replies.clear();
        self.revoked.clear();
        self.ended.clear();
        self.moved.clear();
        self.queues_made.clear();
    }
}

/// A job as a reader sees it: what is in memory, and where the rest lies.
#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    /// All that needs no disk; payload, headers, error and result are empty.
    pub info: JobInfo,
    /// Its entry: payload and headers.
    pub entry: RecordRef,
    /// The last attempt's error: an encoded `JobError`.
    pub error: Option<RecordRef>,
    /// Its result.
    pub result: Option<RecordRef>,
}
