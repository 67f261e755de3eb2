//! The seam between a publisher and what keeps its jobs: commands in, durable outcomes out.

mod admission;
mod asked;
mod held;
mod log_store;
mod opening;
mod options;
mod replay;
mod reports;
#[cfg(test)]
mod tests;

use std::future::Future;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Answer, FeedPosition, Progress, Request, RequestError, Started, Tokens,
};
use longshore_protocol::{
    Durability, Epoch, Glob, JobId, JobState, LinkId, Path, PublisherId, Revoked, Token,
};

pub use self::log_store::{LogStore, PAUSE_MS, TURN_MS};
#[cfg(test)]
pub(crate) use self::opening::epoch_floor;
pub use self::options::{Opened, StoreOptions};
pub use self::replay::Replay;
use crate::log::{Poisoned, Reader};
use crate::tail::Tail;
use crate::{
    CheckpointView, Command, DeadGroupView, Handed, JobView, Now, QueueId, RecordRef, Reply, Space,
    SpaceLevel,
};

/// What keeps a publisher's jobs. [`LogStore`] is the state machine over a [`Log`](crate::Log).
///
/// One task owns a store. It calls [`Store::submit`] and the others as things arrive, [`Store::turn`] after each round of
/// input and when the deadline that it gave has come, [`Store::flush`] once a round is in, and waits on [`Store::released`].
/// **Nothing that a store gives out in [`Released`] could be taken back by a power cut**, at its level of durability.
pub trait Store: Send {
    /// Whose jobs these are, and which start of it this is.
    fn identity(&self) -> (PublisherId, Epoch);

    /// Takes a command, and gives its index; what it brings about is released once it is durable. What the disk has no room for
    /// is refused instead: of jobs each one, for good; of checkpoints, replacements, long acts, and settles with results over
    /// [`SMALL_BYTES_MAX`](longshore_protocol::limits::SMALL_BYTES_MAX), the whole command, for now.
    fn submit(&mut self, now: Now, command: Command) -> Result<u64, Poisoned>;

    /// Hands what was submitted on, to become durable.
    fn flush(&mut self);

    /// Asks for something; the answer reflects all that was submitted before, and is released once that is durable.
    fn ask(&mut self, now: Now, link: LinkId, id: u64, request: Request);

    /// Lets leases of that link run on, and gives the tokens that hold none there.
    fn renew(&mut self, now: Now, link: LinkId, tokens: &Tokens) -> Tokens;

    /// Notes that these attempts begin, or have run for a while already: losing their lease costs an attempt from now on, and
    /// the time of their run timeout has begun. Gives the tokens that hold no lease of that link.
    fn started(&mut self, now: Now, link: LinkId, started: &Started) -> Tokens;

    /// Notes how far attempts are: whoever asks for the job is told. Gives the tokens that hold no lease of that link.
    fn progress(&mut self, now: Now, link: LinkId, progress: Vec<Progress>) -> Tokens;

    /// Ends leases and makes due jobs ready; gives when to come again, in milliseconds of the publisher's own life, if
    /// nothing else happens before.
    fn turn(&mut self, now: Now) -> Result<Option<u64>, Poisoned>;

    /// Waits for more to become durable and adds to `out` all that was held back for it. Cancel safe: what is not in `out`
    /// comes with the next call. After a failure, what was durable before it is still given, then the failure.
    fn released(&mut self, out: &mut Released)
    -> impl Future<Output = Result<(), Poisoned>> + Send;

    /// Keeps what happens to jobs in [`Store::tail`] from the next command on, or no longer. On when a store is opened, so that
    /// clients can go on over a restart; asking for a feed turns it on.
    fn record_events(&mut self, wanted: bool);

    /// The last events, all of them durable: those that have been released, and those of the runs before.
    fn tail(&self) -> &Tail;

    /// The state of a job with everything submitted applied, durable or not: what is told of it must be durable.
    fn job_state(&self, id: &JobId) -> Option<JobState>;

    /// The path of a queue that this store has named.
    fn path(&self, queue: QueueId) -> &Path;

    /// An entry, if it is in memory.
    fn payload(&self, entry: RecordRef) -> Option<Bytes>;

    /// Reads what is not in memory; blocks, so it belongs on threads that may.
    fn reader(&self) -> Reader;

    /// What the disk still has room for. Cheap: for those who would not hand in what will be refused.
    fn space(&self) -> Space;

    /// Bytes submitted and not yet durable: over [`UNCOMMITTED_BYTES_MAX`](crate::UNCOMMITTED_BYTES_MAX) no more input
    /// should be taken.
    fn uncommitted_bytes(&self) -> usize;

    /// Figures of what is durable.
    fn figures(&self, now: Now) -> StoreFigures;
}

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
    /// Answers to [`Store::ask`]: the link, its number for the request, and what is known without the disk.
    pub answered: Vec<(LinkId, u64, Asked)>,
}

/// An answer, as far as memory goes.
#[derive(Clone, PartialEq, Debug)]
pub enum Asked {
    /// All of it.
    Ready(Answer),
    /// A page of jobs; entries, errors and results are still to be read. With `full` it holds no more than
    /// [`PAGE_BYTES_MAX`](longshore_protocol::limits::PAGE_BYTES_MAX) bytes of them, or a single job.
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
    /// A feed can be opened: the tail has everything from here on, so [`Tail::cursor`] of `after` says whether it has all.
    Feed {
        /// Of which queues.
        pattern: Glob,
        /// What the client has seen already.
        after: Option<FeedPosition>,
    },
    /// No answer.
    Refused(RequestError),
}

/// Figures of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreFigures {
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
    /// Verbs refused for a stale token: settles and checkpoints ever, renewals, beginnings and progress since the start.
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
