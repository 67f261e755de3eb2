//! The released outcomes of a store, and its metrics.

use longshore_protocol::messages::work::{Answer, FeedPosition, RequestError};
use longshore_protocol::{Durability, Glob, JobId, LinkId, Path, Revoked, Token};

use crate::{
    Assignment, CheckpointView, DeadGroupView, JobView, QueueId, RecordRef, Reply, SpaceLevel,
};
#[cfg(doc)]
use crate::{Store, Tail};

/// Outcomes that became durable, in reusable buffers: the caller drains them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Released {
    /// Deliveries to workers, in order. Their leases begin with the next call that passes the time.
    pub assignments: Vec<Assignment>,
    /// Answers, with the links that they go to.
    pub replies: Vec<(LinkId, Reply)>,
    /// Leases taken from workers whose link is still up.
    pub revoked: Vec<(LinkId, Revoked, Token)>,
    /// New queues, to be published.
    pub queues_created: Vec<Path>,
    /// Queues that were empty and got a job.
    pub queues_filled: Vec<QueueId>,
    /// Answers to [`Store::query`]: the link, its request number, and the answer as far as memory
    /// has it.
    pub answered: Vec<(LinkId, u64, PendingAnswer)>,
}

/// An answer, as far as memory has it.
#[derive(Clone, PartialEq, Debug)]
pub enum PendingAnswer {
    /// A complete answer.
    Ready(Answer),
    /// A page of jobs; entries, errors and results are still to be read. With `full` they total at
    /// most [`PAGE_BYTES_MAX`](longshore_protocol::limits::PAGE_BYTES_MAX) bytes, unless it is a
    /// single job.
    Jobs {
        /// The jobs.
        views: Vec<JobView>,
        /// Where the next page begins.
        next: Option<u64>,
        /// Whether payloads, headers and results were asked for.
        full: bool,
        /// Whether their parents were asked for, which are in the heads of their entries.
        parents: bool,
        /// The command that the page reflects.
        index: u64,
    },
    /// A page of a job's parents; results, of at most a page's bytes in total unless it is a single
    /// one, are still to be read, and so is whether the job has that parent.
    ParentJobs {
        /// The entry of the job.
        child: RecordRef,
        /// The parent.
        parent: JobId,
        /// The jobs.
        views: Vec<JobView>,
        /// Where the next page begins.
        next: Option<u64>,
        /// The command that the page reflects.
        index: u64,
    },
    /// One job, if it exists: answers `Job`, and `Await` with its present state.
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
    /// A feed can be opened: the tail has every event from here on, and [`Tail::cursor`] of `after`
    /// reports whether it has the earlier ones.
    Feed {
        /// Of which queues.
        pattern: Glob,
        /// The client's last position.
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
    /// Jobs in any state.
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
    /// Payload bytes of entries accepted since the start.
    pub payload_bytes: u64,
    /// Syncs since the start.
    pub syncs: u64,
    /// Verbs refused for a stale token: settles and checkpoints ever, renewals, starts and progress
    /// since the start.
    pub stale_refused: u64,
    /// What the journal still accepts.
    pub level: SpaceLevel,
    /// Bytes of the ballast: space reserved for compaction.
    pub ballast_bytes: u64,
    /// Approximate memory of jobs, queues and sessions, in bytes.
    pub memory_bytes: u64,
    /// The limit of that memory; at the limit new jobs are refused.
    pub memory_max: u64,
}
