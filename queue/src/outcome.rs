//! The outcomes of a command. None is sent before the command is durable.

use longshore_protocol::messages::work::{
    ActionReport, Attached, CheckpointInfo, Checkpointed, Credit, DeadGroup, Enqueued, JobInfo,
    JobTimes, PauseReport, ReplaceOutcome, RequestError, RunOutcome, ScheduleOutcome, Settled,
    Waiting,
};
use longshore_protocol::{
    JobChange, JobId, JobState, LinkId, Path, QueueSettings, Refusal, Revoked, Token,
};

/// A part of a command's body in the log: the location of an entry, result or error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordRef {
    /// The command's index.
    pub index: u64,
    /// The part's offset in the command's encoded body.
    pub at: u32,
    /// The part's length.
    pub length: u32,
}

/// A queue's number within its publisher; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub u32);

/// A job delivered to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The worker's link.
    pub link: LinkId,
    /// The subscription whose credit it used.
    pub subscription: u32,
    /// The lease.
    pub token: Token,
    /// The queue; see `State::path`.
    pub queue: QueueId,
    /// The attempt's number, from 1.
    pub attempt: u16,
    /// How often the job was delivered, this time included.
    pub deliveries: u16,
    /// How long the lease runs without renewal.
    pub lease_ms: u32,
    /// How long the attempt may run once started, in milliseconds; 0 for no limit.
    pub run_timeout_ms: u64,
    /// Checkpoints that earlier attempts have stored.
    pub checkpoints: u16,
    /// When it was enqueued and due.
    pub times: JobTimes,
    /// The job's entry.
    pub entry: RecordRef,
    /// The entry is the template of a schedule: its first 16 bytes are not the job's id.
    pub of_template: bool,
}

/// A running lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningLease {
    /// Its fencing token.
    pub token: Token,
    /// The link that holds it, up or not.
    pub link: LinkId,
    /// Its link was lost while the publisher ran.
    pub worker_is_lost: bool,
    /// How long it runs without renewal, in milliseconds.
    pub lease_ms: u32,
    /// How long its attempt may run once started, in milliseconds; 0 for no limit.
    pub run_timeout_ms: u64,
}

/// An event of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The command that caused it.
    pub index: u64,
    /// The time, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The job.
    pub job: JobId,
    /// Its queue; see `State::path`.
    pub queue: QueueId,
    /// The running attempt, or the last one made; 0 before the first.
    pub attempt: u16,
    /// The change.
    pub change: JobChange,
    /// The job's state since; none once it is removed.
    pub state: Option<JobState>,
    /// True for a scheduled job that waits for a retry.
    pub retrying: bool,
}

/// An answer to one link.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// To `LinkUp`.
    Attached(Attached),
    /// To `LinkUp`, when the limit of sessions is reached: the link is to be closed with that
    /// reason.
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
    /// Jobs wait and the subscription has no credit; sent once until it has had credit again.
    Waiting(Waiting),
    /// To `Subscribe`, when it was refused.
    SubscribeRefused {
        /// The subscription.
        subscription: u32,
        /// Why.
        reason: String,
    },
    /// To `Act`.
    Acted {
        /// The client's number for its request.
        request: u64,
        /// The result.
        report: ActionReport,
    },
    /// To `Act`, when nothing was done.
    ActRefused {
        /// The client's number for its request.
        request: u64,
        /// The reason.
        error: RequestError,
    },
    /// To `Checkpoint`.
    Checkpointed(Checkpointed),
    /// To `Replace`.
    Replaced {
        /// The client's number for its request.
        request: u64,
        /// The result.
        outcome: ReplaceOutcome,
    },
    /// To `Pause`.
    Paused {
        /// The client's number for its request.
        request: u64,
        /// The result, or why nothing was done.
        report: Result<PauseReport, RequestError>,
    },
    /// To `SetLimit` and `RemoveLimit`.
    LimitSet {
        /// The client's number for its request.
        request: u64,
        /// Whether anything has changed, or why nothing was done.
        result: Result<bool, RequestError>,
    },
    /// To `PutSchedule`, `RemoveSchedule` and `PauseSchedule`.
    ScheduleSet {
        /// The client's number for its request.
        request: u64,
        /// The result, or why nothing was done.
        result: Result<ScheduleOutcome, RequestError>,
    },
    /// To `RunSchedule`.
    ScheduleRun {
        /// The client's number for its request.
        request: u64,
        /// The result, or why nothing was done.
        result: Result<RunOutcome, RequestError>,
    },
    /// To `Drain`.
    Drained {
        /// The client's number for its request.
        request: u64,
        /// Why nothing was done, if so.
        result: Result<(), RequestError>,
    },
    /// To `Configure`.
    Configured {
        /// The client's number for its request.
        request: u64,
        /// The settings in effect now, or why the queue is refused.
        result: Result<QueueSettings, Refusal>,
    },
}

/// The outcomes of a command, in buffers that the caller clears and reuses.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcomes {
    /// Jobs delivered to workers, in order.
    pub assignments: Vec<Assignment>,
    /// Answers, with the links that they go to.
    pub replies: Vec<(LinkId, Reply)>,
    /// Leases revoked from workers whose link is still up; they are notified.
    pub revoked: Vec<(LinkId, Revoked, Token)>,
    /// Leases that ended with this command, for any reason.
    pub ended: Vec<Token>,
    /// Leases that moved to another link: the session resumed.
    pub moved: Vec<(Token, LinkId)>,
    /// Queues that the command created, to be published.
    pub queues_created: Vec<Path>,
    /// Queues that were empty and received a job.
    pub queues_filled: Vec<QueueId>,
    /// Events of jobs, in order, while they are recorded.
    pub events: Vec<Event>,
    /// Whether to fill `events`: without a reader they would cost every job for nothing.
    pub wants_events: bool,
}

impl Outcomes {
    /// Clears everything and keeps the memory.
    pub fn clear(&mut self) {
        self.assignments.clear();
        self.replies.clear();
        self.revoked.clear();
        self.ended.clear();
        self.moved.clear();
        self.queues_created.clear();
        self.queues_filled.clear();
        self.events.clear();
    }
}

/// A job as a reader sees it: the data in memory, and the location of the rest.
#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    /// All that needs no disk; payload, headers, errors, result and the bytes of checkpoints are
    /// empty.
    pub info: JobInfo,
    /// Its entry: payload and headers.
    pub entry: RecordRef,
    /// The newest error among the retained attempts, not always the last attempt's: an encoded
    /// `JobError`.
    pub error: Option<RecordRef>,
    /// Its result.
    pub result: Option<RecordRef>,
    /// The errors of `info.attempts`, in their order.
    pub attempt_errors: Vec<Option<RecordRef>>,
    /// The bytes of `info.checkpoints`, in their order.
    pub checkpoints: Vec<RecordRef>,
}

impl JobView {
    /// The start of its entry, before the payload.
    pub fn head(&self) -> RecordRef {
        let payload = u32::try_from(self.info.payload_len).unwrap_or(u32::MAX);
        RecordRef { length: self.entry.length.saturating_sub(payload), ..self.entry }
    }
}

/// A group of dead letters as a reader sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct DeadGroupView {
    /// All that needs no disk; its error is empty.
    pub group: DeadGroup,
    /// The error of its example: an encoded `JobError`.
    pub error: Option<RecordRef>,
}

/// A checkpoint as a reader sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckpointView {
    /// All that needs no disk.
    pub info: CheckpointInfo,
    /// Its bytes.
    pub bytes: RecordRef,
}
