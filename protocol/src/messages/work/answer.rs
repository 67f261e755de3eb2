//! Answers to requests. An answer reflects durable state only.

use super::feed::FeedPosition;
use super::job_info::{CheckpointInfo, JobInfo};
use super::quiet::QuietedWorker;
use super::status::{PublisherStatus, QueueStat};
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fingerprint::Fingerprint;
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::JobId;
use crate::job::JobError;
use crate::limits::{
    BATCH_JOBS_MAX, CHECKPOINTS_MAX, DEAD_GROUPS_MAX, PAGE_JOBS_MAX, PAUSES_MAX, QUEUES_MAX,
    QUIETED_WORKERS_MAX,
};
use crate::path::Path;
use crate::refusal::{DeathReason, JobState, Refusal, codes};
use crate::runs::Runs;
use crate::settings::QueueSettings;

/// The answer to a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// To [`Request::Status`](super::Request::Status).
    Status(PublisherStatus),
    /// To [`Request::Queues`](super::Request::Queues); at most 100,000.
    Queues(Vec<QueueStat>),
    /// To [`Request::Jobs`](super::Request::Jobs).
    Jobs(JobsPage),
    /// To [`Request::Job`](super::Request::Job) and [`Request::Await`](super::Request::Await); none when the publisher has no
    /// such job.
    Job(Option<Box<JobInfo>>),
    /// To [`Request::Act`](super::Request::Act).
    Acted(ActionReport),
    /// To [`Request::DeadGroups`](super::Request::DeadGroups).
    DeadGroups(DeadGroups),
    /// To [`Request::Pause`](super::Request::Pause).
    Paused(PauseReport),
    /// To [`Request::Configure`](super::Request::Configure): what is set now, or why the publisher does not take the queue.
    Configured(Result<QueueSettings, Refusal>),
    /// To [`Request::Replace`](super::Request::Replace).
    Replaced(ReplaceOutcome),
    /// To [`Request::Checkpoints`](super::Request::Checkpoints): oldest first, with their bytes.
    Checkpoints(Vec<CheckpointInfo>),
    /// To [`Request::Feed`](super::Request::Feed): events after this place follow.
    Feed(FeedPosition),
    /// To [`Request::ConfirmClock`](super::Request::ConfirmClock) and
    /// [`Request::Drain`](super::Request::Drain).
    Done,
    /// To [`Request::Quiet`](super::Request::Quiet): the workers that are meant; at most 10,000.
    Quieted(Vec<QuietedWorker>),
}

/// A page of jobs, in the order in which the publisher holds them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct JobsPage {
    /// The jobs.
    pub jobs: Vec<JobInfo>,
    /// Where the next page begins; none after the last.
    pub next: Option<u64>,
    /// The index that the page reflects: of a feed's events, those up to it are in it.
    pub index: u64,
}

/// What an action did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ActionReport {
    /// Jobs that it was done to, or, in a dry run, would be.
    pub done: u64,
    /// Named jobs that are not in a state for it.
    pub refused: u64,
    /// Named jobs that the publisher does not have.
    pub unknown: u64,
    /// There are more that it was not done to yet. `Queues::act` asks until there are none; after a dry run it says *at
    /// least*.
    pub more: bool,
    /// Of named jobs: what became of each, in their order.
    pub outcomes: Runs<ActOutcome>,
}

/// What became of one named job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActOutcome {
    /// It was done, or would be.
    Done,
    /// The job is in this state, which is none for the action.
    NotInState(JobState),
    /// The publisher does not have it.
    Unknown,
}

/// Dead letters by what they died of, those with most jobs first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeadGroups {
    /// At most 1,000.
    pub groups: Vec<DeadGroup>,
    /// There are more, each with no more jobs than the last one here.
    pub more: bool,
}

/// Dead jobs of one queue that died of the same.
#[derive(Clone, PartialEq, Debug)]
pub struct DeadGroup {
    /// Their queue.
    pub path: Path,
    /// Why they are dead.
    pub death: DeathReason,
    /// What their last errors have in common; that of an empty error for those that had none.
    pub fingerprint: Fingerprint,
    /// How many.
    pub jobs: u64,
    /// When the first of them died, in milliseconds since 1970.
    pub first_at: u64,
    /// When the last of them died, in milliseconds since 1970.
    pub last_at: u64,
    /// The last of them.
    pub example: JobId,
    /// Its last error, if it had one.
    pub error: Option<JobError>,
}

/// What a pause, a closing, or the end of one did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PauseReport {
    /// Queues that match the pattern.
    pub queues: u64,
    /// False when nothing had to be done: the pattern was paused or closed before, or was not.
    pub changed: bool,
    /// Other patterns by which some of these queues are still paused, or closed.
    pub still_by: Vec<Glob>,
}

codes! {
    /// What became of a replacement.
    ReplaceOutcome, "outcome of a replacement" {
        /// The new job is there, the dead one is gone. The same said again has the same answer.
        Replaced = 0, "replaced";
        /// The publisher has no such job.
        Unknown = 1, "Unknown: the publisher has no such job";
        /// The job is not dead.
        NotDead = 2, "NotDead: only a dead job can be replaced";
        /// The new job's id belongs to another job. Make a new one.
        IdConflict = 3, "IdConflict: the new job's id belongs to another job; make a new one";
        /// The new job's payload is over 16 MiB, or its headers are over 8 KiB.
        TooLarge = 4, "TooLarge: the payload is over 16 MiB or the headers over 8 KiB";
        /// An option of the new job is out of range.
        BadOptions = 5, "BadOptions: an option of the new job is out of its range";
        /// The queue or the publisher holds as many jobs as it may. Try again later.
        QueueFull = 6, "QueueFull: the queue holds as many jobs as it may";
        /// The disk has no room for jobs over 4 KiB. Try again later.
        NoSpace = 7, "NoSpace: the publisher's disk has no room for jobs; free some, and try again";
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Answer::Status(status) => {
                out.u8(1);
                status.encode(out);
            }
            Answer::Queues(queues) => {
                out.u8(2);
                queues.encode(out);
            }
            Answer::Jobs(page) => {
                out.u8(3);
                page.jobs.encode(out);
                page.next.encode(out);
                out.u64(page.index);
            }
            Answer::Job(job) => {
                out.u8(4);
                out.bool(job.is_some());
                if let Some(job) = job {
                    job.encode(out);
                }
            }
            Answer::Acted(report) => {
                out.u8(5);
                report.encode(out);
            }
            Answer::DeadGroups(groups) => {
                out.u8(6);
                groups.groups.encode(out);
                out.bool(groups.more);
            }
            Answer::Paused(report) => {
                out.u8(7);
                out.u64(report.queues);
                out.bool(report.changed);
                report.still_by.encode(out);
            }
            Answer::Configured(result) => {
                out.u8(8);
                out.bool(result.is_ok());
                match result {
                    Ok(settings) => settings.encode(out),
                    Err(refusal) => refusal.encode(out),
                }
            }
            Answer::Replaced(outcome) => {
                out.u8(9);
                outcome.encode(out);
            }
            Answer::Checkpoints(checkpoints) => {
                out.u8(10);
                checkpoints.encode(out);
            }
            Answer::Feed(position) => {
                out.u8(11);
                position.encode(out);
            }
            Answer::Done => out.u8(12),
            Answer::Quieted(workers) => {
                out.u8(13);
                workers.encode(out);
            }
        }
    }
}

impl Decode for Answer {
    fn decode(r: &mut Reader) -> Result<Answer, WireError> {
        let unknown = r.invalid("answer");
        Ok(match r.u8()? {
            1 => Answer::Status(PublisherStatus::decode(r)?),
            2 => Answer::Queues(r.list("queues", QUEUES_MAX)?),
            3 => Answer::Jobs(JobsPage {
                jobs: r.list("jobs of a page", PAGE_JOBS_MAX)?,
                next: r.option()?,
                index: r.u64()?,
            }),
            4 => Answer::Job(r.option::<JobInfo>()?.map(Box::new)),
            5 => Answer::Acted(ActionReport::decode(r)?),
            6 => Answer::DeadGroups(DeadGroups {
                groups: r.list("groups of dead letters", DEAD_GROUPS_MAX)?,
                more: r.bool()?,
            }),
            7 => Answer::Paused(PauseReport {
                queues: r.u64()?,
                changed: r.bool()?,
                still_by: r.list("pauses", PAUSES_MAX)?,
            }),
            8 => Answer::Configured(if r.bool()? {
                Ok(QueueSettings::decode(r)?)
            } else {
                Err(Refusal::decode(r)?)
            }),
            9 => Answer::Replaced(ReplaceOutcome::decode(r)?),
            10 => Answer::Checkpoints(r.list("checkpoints", CHECKPOINTS_MAX)?),
            11 => Answer::Feed(FeedPosition::decode(r)?),
            12 => Answer::Done,
            13 => Answer::Quieted(r.list("workers", QUIETED_WORKERS_MAX)?),
            _ => return Err(unknown),
        })
    }
}

impl Encode for ActionReport {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.done);
        out.u64(self.refused);
        out.u64(self.unknown);
        out.bool(self.more);
        self.outcomes.encode(out);
    }
}

impl Decode for ActionReport {
    fn decode(r: &mut Reader) -> Result<ActionReport, WireError> {
        Ok(ActionReport {
            done: r.u64()?,
            refused: r.u64()?,
            unknown: r.u64()?,
            more: r.bool()?,
            outcomes: Runs::decode(r, "outcomes of an action", BATCH_JOBS_MAX)?,
        })
    }
}

impl Encode for ActOutcome {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            ActOutcome::Done => out.u8(0),
            ActOutcome::NotInState(state) => {
                out.u8(1);
                state.encode(out);
            }
            ActOutcome::Unknown => out.u8(2),
        }
    }
}

impl Decode for ActOutcome {
    fn decode(r: &mut Reader) -> Result<ActOutcome, WireError> {
        let invalid = r.invalid("outcome of an action");
        Ok(match r.u8()? {
            0 => ActOutcome::Done,
            1 => ActOutcome::NotInState(JobState::decode(r)?),
            2 => ActOutcome::Unknown,
            _ => return Err(invalid),
        })
    }
}

impl Encode for DeadGroup {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.path.encode(out);
            self.death.encode(out);
            self.fingerprint.encode(out);
            out.u64(self.jobs);
            out.u64(self.first_at);
            out.u64(self.last_at);
            self.example.encode(out);
            self.error.encode(out);
        });
    }
}

impl Decode for DeadGroup {
    fn decode(r: &mut Reader) -> Result<DeadGroup, WireError> {
        r.record(|r| {
            Ok(DeadGroup {
                path: Path::decode(r)?,
                death: DeathReason::decode(r)?,
                fingerprint: Fingerprint::decode(r)?,
                jobs: r.u64()?,
                first_at: r.u64()?,
                last_at: r.u64()?,
                example: JobId::decode(r)?,
                error: r.option()?,
            })
        })
    }
}
