//! Answers to requests. An answer reflects only durable state.

use super::feed::FeedPosition;
use super::job_info::{CheckpointInfo, JobInfo};
use super::quiet::QuietedWorker;
use super::schedules::{Occurrences, RunOutcome, ScheduleOutcome, SchedulesPage};
use super::status::{PublisherStatus, QueueStat};
use crate::codes::{DeathReason, JobState, Refusal};
use crate::fields::{codes, fields};
use crate::fingerprint::Fingerprint;
use crate::glob::Glob;
use crate::id::JobId;
use crate::job::JobError;
use crate::job_limit::JobLimit;
use crate::limits::{
    BATCH_JOBS_MAX, CHECKPOINTS_MAX, DEAD_GROUPS_MAX, LIMITS_MAX, PAGE_JOBS_MAX, PAGE_QUEUES_MAX,
    PAUSES_MAX, QUIETED_WORKERS_MAX,
};
use crate::path::Path;
use crate::runs::Runs;
use crate::settings::QueueSettings;

fields! {
    /// The answer to a request.
    pub enum Answer, "answer" {
        /// To [`Request::Status`](super::Request::Status).
        1 = Status(status: PublisherStatus),
        /// To [`Request::Queues`](super::Request::Queues).
        2 = Queues(page: QueuesPage),
        /// To [`Request::Jobs`](super::Request::Jobs).
        3 = Jobs(page: JobsPage),
        /// To [`Request::Job`](super::Request::Job) and [`Request::Await`](super::Request::Await);
        /// `None` if the publisher does not have the job.
        4 = Job(job: Option<Box<JobInfo>>),
        /// To [`Request::Act`](super::Request::Act).
        5 = Acted(report: ActionReport),
        /// To [`Request::DeadGroups`](super::Request::DeadGroups).
        6 = DeadGroups(groups: DeadGroups),
        /// To [`Request::Pause`](super::Request::Pause).
        7 = Paused(report: PauseReport),
        /// To [`Request::Configure`](super::Request::Configure): the new settings, or why the
        /// publisher refused.
        8 = Configured(settings: Result<QueueSettings, Refusal>),
        /// To [`Request::Replace`](super::Request::Replace).
        9 = Replaced(outcome: ReplaceOutcome),
        /// To [`Request::Checkpoints`](super::Request::Checkpoints): oldest first, with their data.
        10 = Checkpoints(
            checkpoints: Vec<CheckpointInfo> = at_most("checkpoints", CHECKPOINTS_MAX)
        ),
        /// To [`Request::Feed`](super::Request::Feed): events after this position follow.
        11 = Feed(position: FeedPosition),
        /// To [`Request::ConfirmClock`](super::Request::ConfirmClock) and
        /// [`Request::Drain`](super::Request::Drain).
        12 = Done,
        /// To [`Request::Quiet`](super::Request::Quiet): the matching workers; at most 10,000.
        13 = Quieted(workers: Vec<QuietedWorker> = at_most("workers", QUIETED_WORKERS_MAX)),
        /// To [`Request::SetLimit`](super::Request::SetLimit) and
        /// [`Request::RemoveLimit`](super::Request::RemoveLimit): whether anything has changed.
        14 = LimitSet(changed: bool),
        /// To [`Request::Limits`](super::Request::Limits): those of queues that the client may see.
        15 = Limits(limits: Vec<JobLimit> = at_most("limits", LIMITS_MAX)),
        /// To [`Request::PutSchedule`](super::Request::PutSchedule),
        /// [`Request::RemoveSchedule`](super::Request::RemoveSchedule) and
        /// [`Request::PauseSchedule`](super::Request::PauseSchedule).
        16 = ScheduleSet(outcome: ScheduleOutcome),
        /// To [`Request::RunSchedule`](super::Request::RunSchedule).
        17 = ScheduleRun(outcome: RunOutcome),
        /// To [`Request::Schedules`](super::Request::Schedules): those of queues that the client
        /// may see.
        18 = Schedules(page: SchedulesPage),
        /// To [`Request::PreviewSchedule`](super::Request::PreviewSchedule).
        19 = Occurrences(occurrences: Occurrences),
    }

    /// A page of queues, in the order of their creation.
    #[derive(Default)]
    pub struct QueuesPage {
        /// The queues.
        pub queues: Vec<QueueStat> = at_most("queues of a page", PAGE_QUEUES_MAX),
        /// The start of the next page; `None` after the last.
        pub next: Option<u64>,
    }

    /// A page of jobs, in the publisher's order.
    #[derive(Default)]
    pub struct JobsPage {
        /// The jobs.
        pub jobs: Vec<JobInfo> = at_most("jobs of a page", PAGE_JOBS_MAX),
        /// The start of the next page; `None` after the last.
        pub next: Option<u64>,
        /// The state index that the page reflects: it includes feed events up to this index.
        pub index: u64,
    }

    /// The result of an action.
    #[derive(Default)]
    pub struct ActionReport {
        /// The number of jobs affected, or, in a dry run, that would be.
        pub done: u64,
        /// Jobs that were left as they are: named ones in a state that does not allow the action,
        /// and dead ones whose unique key another job has, by a filter those of the last step.
        pub refused: u64,
        /// Named jobs that the publisher does not have.
        pub unknown: u64,
        /// More jobs remain. `Queues::act` repeats the request until none remain; after a dry run
        /// `done` is a lower bound.
        pub more: bool,
        /// For named jobs: the outcome of each, in order.
        pub outcomes: Runs<ActOutcome> = at_most("outcomes of an action", BATCH_JOBS_MAX),
    }

    /// The outcome for one named job.
    #[derive(Copy)]
    pub enum ActOutcome, "outcome of an action" {
        /// It was affected, or would be.
        0 = Done,
        /// The job is in this state, which does not allow the action.
        1 = NotInState(state: JobState),
        /// The publisher does not have the job.
        2 = Unknown,
        /// The job cannot be revived: the job with this id has its unique key.
        3 = NotUnique(holder: JobId),
    }

    /// Dead letters grouped by cause, largest groups first.
    #[derive(Default)]
    pub struct DeadGroups {
        /// At most 1,000.
        pub groups: Vec<DeadGroup> = at_most("groups of dead letters", DEAD_GROUPS_MAX),
        /// Other groups, or further jobs of these, may match.
        pub more: bool,
    }

    /// Dead jobs of one queue with the same cause.
    pub struct DeadGroup as record {
        /// Their queue.
        pub path: Path,
        /// The reason why they are dead.
        pub death: DeathReason,
        /// The fingerprint of their last errors; that of an empty error for jobs without one.
        pub fingerprint: Fingerprint,
        /// The number of jobs.
        pub jobs: u64,
        /// When the first of them died, in milliseconds since 1970.
        pub first_at: u64,
        /// When the last of them died, in milliseconds since 1970.
        pub last_at: u64,
        /// The last of them to die.
        pub example: JobId,
        /// Its last error, if it had one.
        pub error: Option<JobError>,
    }

    /// The result of pausing or closing a pattern, or of ending that.
    #[derive(Default)]
    pub struct PauseReport {
        /// Queues that match the pattern.
        pub queues: u64,
        /// False if nothing had to be done: the pattern already was in the requested state.
        pub changed: bool,
        /// Other patterns that still pause, or close, some of these queues.
        pub still_by: Vec<Glob> = at_most("pauses", PAUSES_MAX),
    }
}

codes! {
    /// The result of a replacement.
    ReplaceOutcome, "outcome of a replacement" {
        /// The new job exists, the dead one is deleted. Repeating the request returns the same
        /// answer.
        Replaced = 0, "replaced";
        /// The publisher does not have the job.
        Unknown = 1, "Unknown: the publisher has no such job";
        /// The job is not dead.
        NotDead = 2, "NotDead: only a dead job can be replaced";
        /// Another job has the new job's id. Use a new id.
        IdConflict = 3, "IdConflict: the new job's id belongs to another job; make a new one";
        /// The new job's payload is over 16 MiB, or its headers are over 8 KiB.
        TooLarge = 4, "TooLarge: the payload is over 16 MiB or the headers over 8 KiB";
        /// An option of the new job is out of range.
        BadOptions = 5, "BadOptions: an option of the new job is out of its range";
        /// The queue or the publisher has reached its limit of jobs. Try again later.
        QueueFull = 6, "QueueFull: the queue has reached its limit of jobs or, for a fair key with \
                        another priority, the publisher that of fair keys";
        /// The disk has no space for jobs over 4 KiB. Try again later.
        NoSpace = 7, "NoSpace: the publisher's disk has no room for jobs; free some, and try again";
        /// Another job has the dead job's unique key. Try again when that one no longer holds it.
        NotUnique = 8, "NotUnique: another job has the unique key of the dead one; \
                        try again once that one no longer holds it";
    }
}
