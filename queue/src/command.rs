//! The commands: the only way to change the state.

mod fields;
mod lease_end;
mod occurrence;
mod start;

use bytes::Bytes;
use longshore_protocol::limits::{
    BATCH_JOBS_MAX, LIMIT_NAME_BYTES_MAX, NAME_BYTES_MAX, SCHEDULE_NAME_BYTES_MAX,
};
use longshore_protocol::messages::work::{
    Action, Checkpoint, EnqueueBatch, NextOccurrence, Pace, Selection, SettleBatch, Sources, Tokens,
};
use longshore_protocol::{
    Gate, Glob, JobId, JobLimit, LinkId, Path, PathSet, QueueSettings, Refusal, Role, Schedule,
    SessionId, Token,
};

use self::fields::commands;

pub use self::lease_end::LeaseEnd;
pub use self::occurrence::{Occurrence, RunOfOccurrence};
pub use self::start::{START_PATHS_MAX, Secret, Start};

/// The longest text of a client's identity, in bytes.
pub(crate) const CLIENT_IDENTITY_BYTES_MAX: usize = 512;

commands! {
    /// A command. The same commands in the same order give the same state, on any machine.
    #[derive(Clone, PartialEq, Debug)]
    pub enum Command {
        /// The publisher starts: ends every link of the run before.
        1 = Start(start: Start),
        /// A link attaches. It ends the session's older links and their credits, moves the listed
        /// leases to itself, and releases the session's others.
        2 = LinkUp {
            /// The link.
            link: LinkId,
            /// The client's role.
            role: Role,
            /// The client process's session, one per run.
            session: SessionId,
            /// The process's name.
            name: String = text("process name", NAME_BYTES_MAX),
            /// Who the client is, at most 512 bytes; empty without an identity. A session belongs
            /// to the identity that opened it.
            identity: String = text("identity", CLIENT_IDENTITY_BYTES_MAX),
            /// The queues whose jobs it may take; none for all.
            work: Option<PathSet>,
            /// The leases that it resumes.
            resume: Tokens,
        },
        /// The queues whose jobs a link may take have changed. Its leases stay.
        21 = Permit {
            /// The link.
            link: LinkId,
            /// The queues; none for all.
            work: Option<PathSet>,
        },
        /// A link ends, and its credits with it. Its leases run on until `Expire`, or until the
        /// session resumes them.
        3 = LinkLost {
            /// The link.
            link: LinkId,
        },
        /// Subscribes to queues.
        4 = Subscribe {
            /// The link.
            link: LinkId,
            /// The link's number for the subscription.
            subscription: u32,
            /// The queues, and the order in which they are served.
            sources: Sources,
            /// The worker's handlers.
            handlers: u32,
        },
        /// Ends a subscription.
        5 = Unsubscribe {
            /// The link.
            link: LinkId,
            /// The subscription.
            subscription: u32,
        },
        /// Adds credit.
        6 = Credit {
            /// The link.
            link: LinkId,
            /// The subscription.
            subscription: u32,
            /// How much more.
            count: u32,
        },
        /// Takes back credit.
        7 = Recall {
            /// The link.
            link: LinkId,
            /// The subscription.
            subscription: u32,
            /// How much at most.
            count: u32,
        },
        /// Enqueues a batch of jobs.
        8 = Enqueue {
            /// The producer's link.
            link: LinkId = fixed(LinkId),
            /// The batch.
            batch: EnqueueBatch = body(),
        },
        /// Settles leases.
        9 = Settle {
            /// The worker's link.
            link: LinkId = fixed(LinkId),
            /// The batch.
            batch: SettleBatch = body(),
        },
        /// Ends leases by time, or because their links were lost.
        10 = Expire {
            /// The leases.
            leases: Vec<LeaseEnd> = list("lease ends"),
        },
        /// Stores a checkpoint, which later attempts of the job can read.
        14 = Checkpoint {
            /// The worker's link.
            link: LinkId = fixed(LinkId),
            /// The checkpoint.
            checkpoint: Checkpoint = body(),
        },
        /// Confirms, cancels, revives or drops jobs.
        11 = Act {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// The action.
            action: Action,
            /// The jobs.
            selection: Selection,
            /// How fast revived jobs become ready; none for at once.
            pace: Option<Pace>,
            /// The queues on which the tool may act; none for all. To it jobs of others are
            /// unknown.
            within: Option<PathSet>,
        },
        /// Replaces a dead job with a new one.
        15 = Replace {
            /// The tool's link.
            link: LinkId = fixed(LinkId),
            /// The tool's number for its request.
            request: u64 = fixed(),
            /// The dead job.
            id: JobId,
            /// The new job's entry.
            entry: Bytes = rest(),
        },
        /// Pauses or closes queues, or resumes or opens them.
        16 = Pause {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// The gate: delivery or enqueue.
            gate: Gate,
            /// The queues, existing and future ones.
            pattern: Glob,
            /// True to stop, false to resume.
            paused: bool,
        },
        /// Sets a limit of jobs: adds it, or changes the one of its name.
        22 = SetLimit {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// The limit.
            limit: JobLimit,
        },
        /// Removes a limit of jobs.
        23 = RemoveLimit {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// Its name.
            name: String = text("name of a limit", LIMIT_NAME_BYTES_MAX),
        },
        /// Adds a schedule, or changes the one of its name.
        24 = PutSchedule {
            /// The tool's link.
            link: LinkId = fixed(LinkId),
            /// The tool's number for its request.
            request: u64 = fixed(),
            /// The entry of its template.
            entry: Bytes = sized(),
            /// Its next occurrence.
            next: Option<NextOccurrence>,
            /// The schedule.
            schedule: Box<Schedule>,
        },
        /// Removes a schedule.
        25 = RemoveSchedule {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// Its name.
            name: String = text("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
        },
        /// Pauses or resumes a schedule.
        26 = PauseSchedule {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// Its name.
            name: String = text("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
            /// True to pause, false to resume.
            paused: bool,
            /// When resumed: its next occurrence.
            next: Option<NextOccurrence>,
        },
        /// Enqueues a job of a schedule at once.
        27 = RunSchedule {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// Its name.
            name: String = text("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
            /// The job's id.
            job: JobId,
        },
        /// Occurrences of schedules.
        28 = Occur {
            /// The occurrences.
            occurrences: Vec<Occurrence> = list("occurrences"),
        },
        /// Starts or ends a drain: a draining publisher accepts no new jobs.
        20 = Drain {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// True to start.
            draining: bool,
        },
        /// Changes a queue's settings.
        17 = Configure {
            /// The tool's link.
            link: LinkId,
            /// The tool's number for its request.
            request: u64,
            /// The queue; created if missing.
            path: Path,
            /// The settings to change.
            changes: QueueSettings,
            /// Whether all other settings return to their defaults.
            reset: bool,
        },
        /// The entry of a running job cannot be read: the job is buried, everything else continues.
        12 = Damaged {
            /// Its lease.
            token: Token,
        },
        /// Time has passed: scheduled jobs become ready, old data is removed, in bounded steps.
        13 = Tick,
        /// Refuses a batch that the disk has no room for. Each of its jobs is refused, and the
        /// batch's number is used, so that the next batch can follow. Its jobs are not logged.
        18 = Refuse {
            /// The producer's link.
            link: LinkId,
            /// The batch's number.
            sequence: u64,
            /// How many jobs it had.
            jobs: u32 = at_most("number of refused jobs", BATCH_JOBS_MAX),
            /// Why.
            refusal: Refusal,
        },
        /// Limits how many jobs may still be delivered. Everything else continues: leases are
        /// settled, scheduled jobs become ready.
        19 = DeliveryBudget {
            /// The number of jobs; [`u64::MAX`] for no limit.
            budget: u64,
        },
    }
}

impl Command {
    /// Offset of the raw batch in the encoded body of an `Enqueue` or a `Settle`: after the link, a
    /// fixed `u64`.
    pub const BATCH_AT: u32 = 8;
    /// Offset of a checkpoint's body in the encoded body of its command: after the link.
    pub const CHECKPOINT_AT: u32 = 8;
    /// Offset of the entry in the encoded body of a `Replace`: after link, request and id, each of
    /// a fixed length.
    pub const REPLACE_ENTRY_AT: u32 = 32;
    /// Offset of the entry in the encoded body of a `PutSchedule`: after link, request and its own
    /// length, each of a fixed length.
    pub const SCHEDULE_ENTRY_AT: u32 = 20;
}

#[cfg(test)]
pub(crate) mod tests;
