//! The commands: the only way to change the state.

mod expired;
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
    Decode, Encode, FrameWriter, Gate, Glob, JobId, JobLimit, LinkId, Path, PathSet, QueueSettings,
    Reader, Refusal, Role, Schedule, SessionId, Token, WireError,
};

pub use self::expired::Expired;
pub use self::occurrence::{Occurrence, RunOfOccurrence};
pub use self::start::{START_PATHS_MAX, Secret, Start};

/// The longest text of a client's identity, in bytes.
pub(crate) const CLIENT_IDENTITY_BYTES_MAX: usize = 512;

/// A command. The same commands in the same order give the same state, on any machine.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// The publisher starts: ends every link of the run before.
    Start(Start),
    /// A link attaches. It ends the session's older links and their credits, moves the listed
    /// leases to itself, and releases the session's others.
    LinkUp {
        /// The link.
        link: LinkId,
        /// The client's role.
        role: Role,
        /// The client process's session, one per run.
        session: SessionId,
        /// The process's name.
        name: String,
        /// Who the client is, at most 512 bytes; empty without an identity. A session belongs to
        /// the identity that opened it.
        identity: String,
        /// The queues whose jobs it may take; none for all.
        work: Option<PathSet>,
        /// The leases that it resumes.
        resume: Tokens,
    },
    /// The queues whose jobs a link may take have changed. Its leases stay.
    Permit {
        /// The link.
        link: LinkId,
        /// The queues; none for all.
        work: Option<PathSet>,
    },
    /// A link ends, and its credits with it. Its leases run on until `Expire`, or until the session
    /// resumes them.
    LinkLost {
        /// The link.
        link: LinkId,
    },
    /// Subscribes to queues.
    Subscribe {
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
    Unsubscribe {
        /// The link.
        link: LinkId,
        /// The subscription.
        subscription: u32,
    },
    /// Adds credit.
    Credit {
        /// The link.
        link: LinkId,
        /// The subscription.
        subscription: u32,
        /// How much more.
        count: u32,
    },
    /// Takes back credit.
    Recall {
        /// The link.
        link: LinkId,
        /// The subscription.
        subscription: u32,
        /// How much at most.
        count: u32,
    },
    /// Enqueues a batch of jobs.
    Enqueue {
        /// The producer's link.
        link: LinkId,
        /// The batch.
        batch: EnqueueBatch,
    },
    /// Settles leases.
    Settle {
        /// The worker's link.
        link: LinkId,
        /// The batch.
        batch: SettleBatch,
    },
    /// Ends leases by time, or because their links were lost.
    Expire {
        /// The leases.
        leases: Vec<Expired>,
    },
    /// Stores a checkpoint, which later attempts of the job can read.
    Checkpoint {
        /// The worker's link.
        link: LinkId,
        /// The checkpoint.
        checkpoint: Checkpoint,
    },
    /// Confirms, cancels, revives or drops jobs.
    Act {
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
        /// The queues on which the tool may act; none for all. To it jobs of others are unknown.
        within: Option<PathSet>,
    },
    /// Replaces a dead job with a new one.
    Replace {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// The dead job.
        id: JobId,
        /// The new job's entry.
        entry: Bytes,
    },
    /// Pauses or closes queues, or resumes or opens them.
    Pause {
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
    SetLimit {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// The limit.
        limit: JobLimit,
    },
    /// Removes a limit of jobs.
    RemoveLimit {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// Its name.
        name: String,
    },
    /// Adds a schedule, or changes the one of its name.
    PutSchedule {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// Its next occurrence.
        next: Option<NextOccurrence>,
        /// The entry of its template.
        entry: Bytes,
        /// The schedule.
        schedule: Box<Schedule>,
    },
    /// Removes a schedule.
    RemoveSchedule {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// Its name.
        name: String,
    },
    /// Pauses or resumes a schedule.
    PauseSchedule {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// Its name.
        name: String,
        /// True to pause, false to resume.
        paused: bool,
        /// When resumed: its next occurrence.
        next: Option<NextOccurrence>,
    },
    /// Enqueues a job of a schedule at once.
    RunSchedule {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// Its name.
        name: String,
        /// The job's id.
        job: JobId,
    },
    /// Occurrences of schedules.
    Occur {
        /// The occurrences.
        occurrences: Vec<Occurrence>,
    },
    /// Starts or ends a drain: a draining publisher accepts no new jobs.
    Drain {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// True to start.
        draining: bool,
    },
    /// Changes a queue's settings.
    Configure {
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
    Damaged {
        /// Its lease.
        token: Token,
    },
    /// Time has passed: scheduled jobs become ready, old data is removed, in bounded steps.
    Tick,
    /// Refuses a batch that the disk has no room for. Each of its jobs is refused, and the batch's
    /// number is used, so that the next batch can follow. Its jobs are not logged.
    Refuse {
        /// The producer's link.
        link: LinkId,
        /// The batch's number.
        sequence: u64,
        /// How many jobs it had.
        jobs: u32,
        /// Why.
        refusal: Refusal,
    },
    /// Limits how many jobs may still be delivered. Everything else continues: leases are settled,
    /// scheduled jobs become ready.
    DeliveryBudget {
        /// The number of jobs; [`u64::MAX`] for no limit.
        budget: u64,
    },
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

    /// Its kind's number in the log. Numbers are never reused.
    pub fn kind(&self) -> u8 {
        match self {
            Command::Start(_) => kind::START,
            Command::LinkUp { .. } => kind::LINK_UP,
            Command::LinkLost { .. } => kind::LINK_LOST,
            Command::Permit { .. } => kind::PERMIT,
            Command::Subscribe { .. } => kind::SUBSCRIBE,
            Command::Unsubscribe { .. } => kind::UNSUBSCRIBE,
            Command::Credit { .. } => kind::CREDIT,
            Command::Recall { .. } => kind::RECALL,
            Command::Enqueue { .. } => kind::ENQUEUE,
            Command::Settle { .. } => kind::SETTLE,
            Command::Expire { .. } => kind::EXPIRE,
            Command::Act { .. } => kind::ACT,
            Command::Damaged { .. } => kind::DAMAGED,
            Command::Tick => kind::TICK,
            Command::Checkpoint { .. } => kind::CHECKPOINT,
            Command::Replace { .. } => kind::REPLACE,
            Command::Pause { .. } => kind::PAUSE,
            Command::Drain { .. } => kind::DRAIN,
            Command::SetLimit { .. } => kind::SET_LIMIT,
            Command::RemoveLimit { .. } => kind::REMOVE_LIMIT,
            Command::PutSchedule { .. } => kind::PUT_SCHEDULE,
            Command::RemoveSchedule { .. } => kind::REMOVE_SCHEDULE,
            Command::PauseSchedule { .. } => kind::PAUSE_SCHEDULE,
            Command::RunSchedule { .. } => kind::RUN_SCHEDULE,
            Command::Occur { .. } => kind::OCCUR,
            Command::Configure { .. } => kind::CONFIGURE,
            Command::Refuse { .. } => kind::REFUSE,
            Command::DeliveryBudget { .. } => kind::DELIVERY_BUDGET,
        }
    }

    /// The body in two parts, which are consecutive in the log: the encoded fields, and the
    /// client's raw batch.
    pub fn encode(&self) -> (Bytes, Bytes) {
        let mut out = FrameWriter::with_capacity(64);
        let mut raw = Bytes::new();
        match self {
            Command::Start(start) => start.encode(&mut out),
            Command::LinkUp { link, role, session, name, identity, work, resume } => {
                link.encode(&mut out);
                role.encode(&mut out);
                session.encode(&mut out);
                out.string(name);
                out.string(identity);
                work.encode(&mut out);
                resume.encode(&mut out);
            }
            Command::Permit { link, work } => {
                link.encode(&mut out);
                work.encode(&mut out);
            }
            Command::LinkLost { link } => link.encode(&mut out),
            Command::Subscribe { link, subscription, sources, handlers } => {
                link.encode(&mut out);
                out.u64(u64::from(*subscription));
                sources.encode(&mut out);
                out.u64(u64::from(*handlers));
            }
            Command::Unsubscribe { link, subscription } => {
                link.encode(&mut out);
                out.u64(u64::from(*subscription));
            }
            Command::Credit { link, subscription, count }
            | Command::Recall { link, subscription, count } => {
                link.encode(&mut out);
                out.u64(u64::from(*subscription));
                out.u64(u64::from(*count));
            }
            Command::Enqueue { link, batch } => {
                out.u64_fixed(link.0);
                raw = batch.body().clone();
            }
            Command::Settle { link, batch } => {
                out.u64_fixed(link.0);
                raw = batch.body().clone();
            }
            Command::Expire { leases } => leases.encode(&mut out),
            Command::Act { link, request, action, selection, pace, within } => {
                link.encode(&mut out);
                out.u64(*request);
                action.encode(&mut out);
                selection.encode(&mut out);
                pace.encode(&mut out);
                within.encode(&mut out);
            }
            Command::Checkpoint { link, checkpoint } => {
                out.u64_fixed(link.0);
                raw = checkpoint.body().clone();
            }
            Command::Replace { link, request, id, entry } => {
                out.u64_fixed(link.0);
                out.u64_fixed(*request);
                id.encode(&mut out);
                raw = entry.clone();
            }
            Command::Pause { link, request, gate, pattern, paused } => {
                link.encode(&mut out);
                out.u64(*request);
                gate.encode(&mut out);
                pattern.encode(&mut out);
                out.bool(*paused);
            }
            Command::SetLimit { link, request, limit } => {
                link.encode(&mut out);
                out.u64(*request);
                limit.encode(&mut out);
            }
            Command::RemoveLimit { link, request, name } => {
                link.encode(&mut out);
                out.u64(*request);
                out.string(name);
            }
            Command::PutSchedule { link, request, next, entry, schedule } => {
                out.u64_fixed(link.0);
                out.u64_fixed(*request);
                out.u32_fixed(entry.len() as u32);
                out.put_shared(entry.clone());
                next.encode(&mut out);
                schedule.encode(&mut out);
            }
            Command::RemoveSchedule { link, request, name } => {
                link.encode(&mut out);
                out.u64(*request);
                out.string(name);
            }
            Command::PauseSchedule { link, request, name, paused, next } => {
                link.encode(&mut out);
                out.u64(*request);
                out.string(name);
                out.bool(*paused);
                next.encode(&mut out);
            }
            Command::RunSchedule { link, request, name, job } => {
                link.encode(&mut out);
                out.u64(*request);
                out.string(name);
                job.encode(&mut out);
            }
            Command::Occur { occurrences } => occurrences.encode(&mut out),
            Command::Drain { link, request, draining } => {
                link.encode(&mut out);
                out.u64(*request);
                out.bool(*draining);
            }
            Command::Configure { link, request, path, changes, reset } => {
                link.encode(&mut out);
                out.u64(*request);
                path.encode(&mut out);
                changes.encode(&mut out);
                out.bool(*reset);
            }
            Command::Damaged { token } => token.encode(&mut out),
            Command::Tick => {}
            Command::Refuse { link, sequence, jobs, refusal } => {
                link.encode(&mut out);
                out.u64(*sequence);
                out.u64(u64::from(*jobs));
                refusal.encode(&mut out);
            }
            Command::DeliveryBudget { budget } => out.u64(*budget),
        }
        (out.into_body(), raw)
    }

    /// Decodes the output of [`Command::encode`]. Ignores fields after the known ones.
    pub fn decode(kind: u8, body: Bytes) -> Result<Command, WireError> {
        let mut reader = Reader::new(body);
        let r = &mut reader;
        let unknown = r.invalid("kind of command that this version does not know");
        Ok(match kind {
            kind::START => Command::Start(Start::decode(r)?),
            kind::LINK_UP => Command::LinkUp {
                link: LinkId::decode(r)?,
                role: Role::decode(r)?,
                session: SessionId::decode(r)?,
                name: r.string("process name", NAME_BYTES_MAX)?,
                identity: r.string("identity", CLIENT_IDENTITY_BYTES_MAX)?,
                work: r.option()?,
                resume: Tokens::decode(r)?,
            },
            kind::PERMIT => Command::Permit { link: LinkId::decode(r)?, work: r.option()? },
            kind::LINK_LOST => Command::LinkLost { link: LinkId::decode(r)? },
            kind::SUBSCRIBE => Command::Subscribe {
                link: LinkId::decode(r)?,
                subscription: r.u32()?,
                sources: Sources::decode(r)?,
                handlers: r.u32()?,
            },
            kind::UNSUBSCRIBE => {
                Command::Unsubscribe { link: LinkId::decode(r)?, subscription: r.u32()? }
            }
            kind::CREDIT => Command::Credit {
                link: LinkId::decode(r)?,
                subscription: r.u32()?,
                count: r.u32()?,
            },
            kind::RECALL => Command::Recall {
                link: LinkId::decode(r)?,
                subscription: r.u32()?,
                count: r.u32()?,
            },
            kind::ENQUEUE => Command::Enqueue {
                link: LinkId(r.u64_fixed()?),
                batch: EnqueueBatch::decode(r.take_rest())?,
            },
            kind::SETTLE => Command::Settle {
                link: LinkId(r.u64_fixed()?),
                batch: SettleBatch::decode(r.take_rest())?,
            },
            kind::EXPIRE => Command::Expire { leases: r.list("expired leases", usize::MAX)? },
            kind::ACT => Command::Act {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                action: Action::decode(r)?,
                selection: Selection::decode(r)?,
                pace: r.option()?,
                within: r.option()?,
            },
            kind::CHECKPOINT => Command::Checkpoint {
                link: LinkId(r.u64_fixed()?),
                checkpoint: Checkpoint::decode(r.take_rest())?,
            },
            kind::REPLACE => Command::Replace {
                link: LinkId(r.u64_fixed()?),
                request: r.u64_fixed()?,
                id: JobId::decode(r)?,
                entry: r.take_rest(),
            },
            kind::PAUSE => Command::Pause {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                gate: Gate::decode(r)?,
                pattern: Glob::decode(r)?,
                paused: r.bool()?,
            },
            kind::SET_LIMIT => Command::SetLimit {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                limit: JobLimit::decode(r)?,
            },
            kind::REMOVE_LIMIT => Command::RemoveLimit {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                name: r.string("name of a limit", LIMIT_NAME_BYTES_MAX)?,
            },
            kind::PUT_SCHEDULE => {
                let (link, request) = (LinkId(r.u64_fixed()?), r.u64_fixed()?);
                let length = r.u32_fixed()? as usize;
                let entry = r.take(length)?;
                let (next, schedule) = (r.option()?, Box::new(Schedule::decode(r)?));
                Command::PutSchedule { link, request, next, entry, schedule }
            }
            kind::REMOVE_SCHEDULE => Command::RemoveSchedule {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                name: r.string("name of a schedule", SCHEDULE_NAME_BYTES_MAX)?,
            },
            kind::PAUSE_SCHEDULE => Command::PauseSchedule {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                name: r.string("name of a schedule", SCHEDULE_NAME_BYTES_MAX)?,
                paused: r.bool()?,
                next: r.option()?,
            },
            kind::RUN_SCHEDULE => Command::RunSchedule {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                name: r.string("name of a schedule", SCHEDULE_NAME_BYTES_MAX)?,
                job: JobId::decode(r)?,
            },
            kind::OCCUR => Command::Occur { occurrences: r.list("occurrences", usize::MAX)? },
            kind::DRAIN => {
                Command::Drain { link: LinkId::decode(r)?, request: r.u64()?, draining: r.bool()? }
            }
            kind::CONFIGURE => Command::Configure {
                link: LinkId::decode(r)?,
                request: r.u64()?,
                path: Path::decode(r)?,
                changes: QueueSettings::decode(r)?,
                reset: r.bool()?,
            },
            kind::DAMAGED => Command::Damaged { token: Token::decode(r)? },
            kind::TICK => Command::Tick,
            kind::REFUSE => {
                let (link, sequence) = (LinkId::decode(r)?, r.u64()?);
                let too_many = r.invalid("number of refused jobs");
                let jobs = r.u32()?;
                if jobs as usize > BATCH_JOBS_MAX {
                    return Err(too_many);
                }
                Command::Refuse { link, sequence, jobs, refusal: Refusal::decode(r)? }
            }
            kind::DELIVERY_BUDGET => Command::DeliveryBudget { budget: r.u64()? },
            _ => return Err(unknown),
        })
    }
}

/// The kinds in the log. The journal itself uses 0.
mod kind {
    pub(super) const START: u8 = 1;
    pub(super) const LINK_UP: u8 = 2;
    pub(super) const LINK_LOST: u8 = 3;
    pub(super) const SUBSCRIBE: u8 = 4;
    pub(super) const UNSUBSCRIBE: u8 = 5;
    pub(super) const CREDIT: u8 = 6;
    pub(super) const RECALL: u8 = 7;
    pub(super) const ENQUEUE: u8 = 8;
    pub(super) const SETTLE: u8 = 9;
    pub(super) const EXPIRE: u8 = 10;
    pub(super) const ACT: u8 = 11;
    pub(super) const DAMAGED: u8 = 12;
    pub(super) const TICK: u8 = 13;
    pub(super) const CHECKPOINT: u8 = 14;
    pub(super) const REPLACE: u8 = 15;
    pub(super) const PAUSE: u8 = 16;
    pub(super) const CONFIGURE: u8 = 17;
    pub(super) const REFUSE: u8 = 18;
    pub(super) const DELIVERY_BUDGET: u8 = 19;
    pub(super) const DRAIN: u8 = 20;
    pub(super) const PERMIT: u8 = 21;
    pub(super) const SET_LIMIT: u8 = 22;
    pub(super) const REMOVE_LIMIT: u8 = 23;
    pub(super) const PUT_SCHEDULE: u8 = 24;
    pub(super) const REMOVE_SCHEDULE: u8 = 25;
    pub(super) const PAUSE_SCHEDULE: u8 = 26;
    pub(super) const RUN_SCHEDULE: u8 = 27;
    pub(super) const OCCUR: u8 = 28;
}

#[cfg(test)]
pub(crate) mod tests;
