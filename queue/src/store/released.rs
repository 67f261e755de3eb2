//! What a store gives out, and its metrics.

use longshore_protocol::messages::work::{Answer, FeedPosition, RequestError};
use longshore_protocol::{Durability, Glob, LinkId, Path, Revoked, Token};

use crate::{CheckpointView, DeadGroupView, Handed, JobView, QueueId, Reply, SpaceLevel};
#[cfg(doc)]
use crate::{Store, Tail};

/// What has become durable, in buffers that are used again: whoever takes it drains them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Released {
    /// Jobs for workers, in order. Their leases begin with the next call that says what time it is.
    pub handed: Vec<Handed>,
    /// Answers, with the links that they go to.
    pub replies: Vec<(LinkId, Reply)>,
    /// Leases taken from workers whose link is still up.
    pub revoked: Vec<(LinkId, Revoked, Token)>,
    /// New queues, to be published.
    pub queues_made: Vec<Path>,
    /// Queues that were empty, and got a job.
    pub queues_filled: Vec<QueueId>,
    /// Answers to [`Store::ask`]: the link, its number for the request, and what is known without
    /// the disk.
    pub answered: Vec<(LinkId, u64, Asked)>,
}

/// An answer, as far as memory goes.
#[derive(Clone, PartialEq, Debug)]
pub enum Asked {
    /// All of it.
    Ready(Answer),
    /// A page of jobs; entries, errors and results are still to be read. With `full` it holds no
    /// more than [`PAGE_BYTES_MAX`](longshore_protocol::limits::PAGE_BYTES_MAX) bytes of them, or a
    /// single job.
    Jobs {
        /// The jobs.
        views: Vec<JobView>,
        /// Where the next page begins.
        next: Option<u64>,
        /// Whether payloads, headers and results were asked for.
        full: bool,
        /// The command that the page reflects.
        index: u64,
    },
    /// One job, if it is there: to `Job`, and to `Await` as it stands now.
    Job(Option<Box<JobView>>),
    /// Kinds of dead letters; the errors of their examples are still to be read.
    DeadGroups {
        /// Those with most jobs first.
        groups: Vec<DeadGroupView>,
        /// There are more.
        more: bool,
    },
    /// Checkpoints, oldest first; their bytes are still to be read.
    Checkpoints(Vec<CheckpointView>),
    /// A feed can be opened: the tail has everything from here on, so [`Tail::cursor`] of `after`
    /// says whether it has all.
    Feed {
        /// Of which queues.
        pattern: Glob,
        /// What the client has seen already.
        after: Option<FeedPosition>,
    },
    /// No answer.
    Refused(RequestError),
}

/// Metrics of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreMetrics {
    /// How durable its acknowledgements are.
    pub durability: Durability,
    /// Jobs kept, in any state.
    pub jobs: u64,
    /// Queues.
    pub queues: u64,
    /// The last durable index.
    pub committed_index: u64,
    /// Age of the oldest command that is not yet durable, in milliseconds; 0 for none.
    pub oldest_uncommitted_ms: u64,
    /// Bytes on disk.
    pub journal_bytes: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Bytes of entries taken since the start, less what is the same for all of them.
    pub payload_bytes: u64,
    /// Syncs since the start.
    pub syncs: u64,
    /// Verbs refused for a stale token: settles and checkpoints ever, renewals, beginnings and
    /// progress since the start.
    pub stale_refused: u64,
    /// What the journal still takes.
    pub level: SpaceLevel,
    /// Bytes of the ballast: room that it keeps for compaction.
    pub ballast_bytes: u64,
    /// Bytes of memory that jobs, queues and sessions take, about.
    pub memory_bytes: u64,
    /// How many they may take; from there on new jobs are refused.
    pub memory_max: u64,
}
