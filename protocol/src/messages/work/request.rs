//! Queries and actions of tools.

use bytes::Bytes;

use super::feed::FeedPosition;
use super::quiet::WorkerPattern;
use super::selection::{Filter, Selection};
use crate::codes::Gate;
use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::id::{JobId, Token};
use crate::job_limit::JobLimit;
use crate::limits::{
    BATCH_BYTES_MAX, LIMIT_NAME_BYTES_MAX, PAGE_JOBS_MAX, SCHEDULE_NAME_BYTES_MAX,
    WORKER_PATTERNS_MAX,
};
use crate::path::Path;
use crate::schedule::Schedule;
use crate::settings::QueueSettings;

fields! {
    /// A client's request to a publisher.
    pub enum Request, "request" {
        /// Statistics of the publisher itself.
        1 = Status,
        /// Statistics of matching queues: a page of them.
        2 = Queues {
            /// The queues.
            pattern: Glob,
            /// The start of the page: 0, or [`QueuesPage::next`](super::QueuesPage::next) of the
            /// page before.
            cursor: u64,
        },
        /// A page of jobs.
        3 = Jobs(query: JobsQuery),
        /// One job, with its payload, result, attempts and checkpoints.
        4 = Job {
            /// The job.
            id: JobId,
        },
        /// An action on jobs.
        5 = Act {
            /// The action.
            action: Action,
            /// The jobs.
            selection: Selection,
            /// For [`Action::Revive`]: how fast the jobs become ready; `None` for immediately.
            pace: Option<Pace>,
            /// Only count them.
            dry_run: bool,
        },
        /// Waits for the end of one job. Answered like [`Request::Job`] when the job ends, without
        /// a time limit; a link may have 10,000 such requests. Parts of its payload, headers,
        /// options and checkpoints that cannot be read are left out.
        6 = Await {
            /// The job.
            id: JobId,
        },
        /// Dead letters, grouped by cause.
        7 = DeadGroups {
            /// The jobs; the filter's state is ignored.
            filter: Filter,
        },
        /// Stops or resumes the deliveries of queues, or their acceptance of new jobs.
        8 = Pause {
            /// The gate to stop or resume.
            gate: Gate,
            /// The queues: existing and future ones.
            pattern: Glob,
            /// True to stop; false to end a stop with exactly this pattern.
            paused: bool,
        },
        /// Changes the settings of a queue.
        9 = Configure {
            /// The queue; it is created if it does not exist.
            path: Path,
            /// The changes.
            changes: QueueSettings,
            /// Whether settings that are not among the changes are reset to their defaults.
            reset: bool,
        },
        /// Atomically replaces a dead job with a new one in the same queue.
        10 = Replace {
            /// The dead job.
            id: JobId,
            /// The new job's entry, as a producer encodes it, with a new id.
            entry: Bytes = at_most("entry", BATCH_BYTES_MAX),
        },
        /// The checkpoints of earlier attempts at a job that this link's session runs.
        11 = Checkpoints {
            /// Its lease.
            token: Token,
        },
        /// All transitions of jobs, from now or from an earlier position on. Answered by
        /// [`Answer::Feed`](super::Answer::Feed); the events follow until the client sends
        /// [`ToPublisher::Forget`](super::ToPublisher::Forget) or falls behind.
        12 = Feed {
            /// The queues.
            pattern: Glob,
            /// The position up to which the client has seen events; `None` to start now.
            after: Option<FeedPosition>,
        },
        /// Confirms that the wall clock is right after it jumped: timers that wait for it resume.
        13 = ConfirmClock,
        /// Stops or resumes the acceptance of new jobs; existing jobs continue. Stays in effect
        /// until the opposite is requested, even over restarts. Answered by
        /// [`Answer::Done`](super::Answer::Done); a repetition changes nothing.
        15 = Drain {
            /// True to stop, false to resume.
            draining: bool,
        },
        /// Quiets or resumes workers: the worker's whole process, at every publisher. Answered by
        /// [`Answer::Quieted`](super::Answer::Quieted) when each of them has confirmed, or after 5
        /// s.
        14 = Quiet {
            /// The workers that any of these patterns selects; at most 64 patterns.
            workers: Vec<WorkerPattern> = at_most("patterns of workers", WORKER_PATTERNS_MAX),
            /// True to begin no jobs, false to resume.
            quiet: bool,
            /// Only report the matching workers.
            dry_run: bool,
        },
        /// Adds a limit of jobs, or changes the one of its name. One with another pattern or scope
        /// begins anew. Answered by [`Answer::LimitSet`](super::Answer::LimitSet).
        16 = SetLimit {
            /// The limit.
            limit: JobLimit,
        },
        /// Removes the limit of that name. Answered by
        /// [`Answer::LimitSet`](super::Answer::LimitSet).
        17 = RemoveLimit {
            /// Its name.
            name: String = at_most("name of a limit", LIMIT_NAME_BYTES_MAX),
        },
        /// All limits of jobs.
        18 = Limits,
        /// Adds a schedule, or changes the one of its name, unless that has a higher version.
        /// Answered by [`Answer::ScheduleSet`](super::Answer::ScheduleSet).
        19 = PutSchedule {
            /// The schedule.
            schedule: Schedule,
            /// The template: an entry, as a producer encodes it, whose id does not matter. It has
            /// neither a time, nor an idempotency key, and is not prepared.
            entry: Bytes = at_most("entry", BATCH_BYTES_MAX),
        },
        /// Removes the schedule of that name. Its jobs stay. Answered by
        /// [`Answer::ScheduleSet`](super::Answer::ScheduleSet).
        20 = RemoveSchedule {
            /// Its name.
            name: String = at_most("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
        },
        /// Pauses a schedule: it has no occurrences, and misses none. Or resumes it. Answered by
        /// [`Answer::ScheduleSet`](super::Answer::ScheduleSet).
        21 = PauseSchedule {
            /// Its name.
            name: String = at_most("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
            /// True to pause, false to resume.
            paused: bool,
        },
        /// Enqueues a job of a schedule now, whatever the overlap, also while it is paused.
        /// Answered by [`Answer::ScheduleRun`](super::Answer::ScheduleRun). If it is sent again,
        /// there are two jobs.
        22 = RunSchedule {
            /// Its name.
            name: String = at_most("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
        },
        /// A page of schedules, by name. Answered by
        /// [`Answer::Schedules`](super::Answer::Schedules).
        23 = Schedules {
            /// Only the schedule of this name; `None` for all.
            name: Option<String> = at_most("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
            /// Only schedules with a higher name; empty for the first page.
            after: String = at_most("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
            /// The most schedules of the page: 1 to 1,000.
            limit: u32,
        },
        /// When a schedule would be due. It need not exist. Answered by
        /// [`Answer::Occurrences`](super::Answer::Occurrences).
        24 = PreviewSchedule {
            /// The schedule; only its name and its times matter.
            schedule: Schedule,
            /// When it was added, in milliseconds since 1970; `None` for when the known one of its
            /// name was, if that has the same times, and for now otherwise.
            created_at: Option<u64>,
            /// Occurrences after this time, in milliseconds since 1970; `None` for now.
            after: Option<u64>,
            /// The most occurrences: 1 to 100.
            count: u32,
        },
        /// A job that one of this link's session waited for, with its result; of a batch also its
        /// members, and theirs. Answered by a page of up to 100 jobs
        /// ([`Answer::Jobs`](super::Answer::Jobs)), the first one with the job itself first. A job
        /// that is no longer known is left out.
        25 = ParentJobs {
            /// The lease of the job that waited.
            token: Token,
            /// The job that it waited for.
            parent: JobId,
            /// The start of the page: the `next` of the previous page; 0 for the first page.
            cursor: u64,
        },
    }

    /// Selects the jobs of a listing, and the parts of each job.
    pub struct JobsQuery {
        /// The jobs.
        pub filter: Filter,
        /// The start of the page: the `next` of the previous page; 0 for the first page.
        pub cursor: u64,
        /// The most jobs of a page: 1 to 1,000. A page may have fewer, and has at most 4 MiB.
        pub limit: u32,
        /// True to include payloads, headers, options and results, which are read from disk.
        pub full: bool,
        /// Only jobs of this kind of relation to others.
        pub related: Option<Related>,
    }

    /// Selects jobs by what they have to do with others.
    #[derive(Copy)]
    pub enum Related, "relation of a job" {
        /// Batches.
        0 = Batches,
        /// The members of a batch.
        1 = MembersOf(batch: JobId),
        /// The jobs that still wait for this one.
        2 = WaitingFor(job: JobId),
        /// The dead jobs for whose success others wait.
        3 = WaitedFor,
    }
}

impl JobsQuery {
    /// The first 1,000 of these jobs, without payloads.
    pub fn of(filter: Filter) -> JobsQuery {
        let limit = PAGE_JOBS_MAX as u32;
        JobsQuery { filter, cursor: 0, limit, full: false, related: None }
    }
}

codes! {
    /// An action on jobs. A job in a state that does not allow the action is left unchanged, and
    /// reported so.
    Action, "action" {
        /// Cancel jobs that have not ended, prepared ones included. Running jobs are revoked from
        /// their workers: their handlers are cancelled, and their results are refused.
        Cancel = 1, "cancel";
        /// Make dead jobs ready again, with a new count of attempts; their history remains. Of a
        /// batch by its id, also of an open one within which a job has died: its dead members.
        Revive = 2, "revive";
        /// Permanently delete jobs that have ended. With a filter without a state, only dead
        /// letters.
        Drop = 3, "drop";
        /// Let prepared jobs run. A repetition succeeds, too.
        Confirm = 4, "confirm";
        /// Close open batches, which have no more members then: only by id. A batch that was closed
        /// before counts as done.
        CloseBatch = 5, "close";
    }
}

fields! {
    /// How fast jobs become ready. The nth of them, from 0, is due `n / per_second` seconds after
    /// the action.
    #[derive(Copy)]
    pub struct Pace {
        /// Jobs per second; at least 1.
        pub per_second: u32 = valid("pace of 0 jobs a second; the least is 1", |jobs| *jobs > 0),
        /// The number of jobs that earlier requests of the same action affected.
        pub before: u64,
    }
}

codes! {
    /// Why a request has no answer. Nothing was changed. [`TooMany`](RequestError::TooMany) and
    /// [`NoSpace`](RequestError::NoSpace) are temporary.
    RequestError, "request error" {
        /// It asks for more jobs than fit on a page (1,000), or names more jobs than one action may
        /// (10,000), or more workers (10,000, by 64 patterns) than one request may.
        OverLimit = 1, "OverLimit: a page holds at most 1,000 jobs, an action names at most \
                        10,000, one request 64 patterns of workers and 10,000 workers";
        /// The publisher's journal could not be read; its log has the details for its operator.
        Unreadable = 2, "Unreadable: the publisher could not read its journal; its log says where";
        /// The publisher does not know that request: its version is older.
        Unknown = 3, "Unknown: the publisher's version does not know that request";
        /// This link has reached its limit of open requests: 64, 16 feeds, 10,000 waits for ends of
        /// jobs. Try again once some are answered.
        TooMany = 4, "TooMany: too many requests of this link wait (64, 16 feeds, 10,000 \
                      ends of jobs); send the next one after one of them";
        /// The publisher no longer stores the events after that position. Take a new snapshot.
        TooOld = 5, "TooOld: the publisher no longer stores the events since then; \
                     take a snapshot again";
        /// The publisher has lost events that the client has seen, because it does not sync. Take a
        /// new snapshot.
        Rewound = 6, "Rewound: the publisher started again before that index; \
                      take a snapshot again";
        /// The token no longer has a lease of this session.
        StaleToken = 7, "StaleToken: the lease ended; \
                         the job belongs to another worker now or has ended";
        /// The limit of paused, or of closed, patterns is reached: 1,024 of each.
        TooManyPauses = 8, "TooManyPauses: 1,024 patterns are paused, or closed; \
                            resume or open some, or use one pattern for several queues";
        /// The publisher's disk has no space for the request.
        NoSpace = 9, "NoSpace: the publisher's disk has no room for the request; \
                      name fewer jobs, or free some room and try again";
        /// The publisher's policy does not allow it to the client.
        Forbidden = 10, "Forbidden: the publisher's policy does not allow this to the client \
                         (longshore access check names the rule)";
        /// The publisher's audit log cannot be written, so no administrative act begins. Everything
        /// else goes on.
        NotAudited = 11, "NotAudited: the publisher's audit log cannot be written, so acts are \
                          refused; its log says why";
        /// The publisher has reached its number of limits: 256.
        TooManyLimits = 12, "TooManyLimits: the publisher has 256 limits; \
                             remove some, or let one match more queues";
        /// The publisher has reached its number of schedules: 20,000.
        TooManySchedules = 13, "TooManySchedules: the publisher has 20,000 schedules; \
                                remove some, or let one job enqueue others";
    }
}
