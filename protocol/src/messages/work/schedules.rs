//! Answers about schedules.

use crate::codes::Refusal;
use crate::fields::fields;
use crate::id::JobId;
use crate::limits::{OCCURRENCES_MAX, PAGE_SCHEDULES_MAX, REASON_BYTES_MAX};
use crate::schedule::Schedule;

fields! {
    /// A schedule as its publisher knows it.
    pub struct ScheduleInfo as record {
        /// The schedule.
        pub schedule: Schedule,
        /// When it was added, in milliseconds since 1970: fixed distances count from here, unless
        /// the schedule has a start.
        pub created_at: u64,
        /// It has no occurrences until it is resumed.
        pub paused: bool,
        /// The next occurrence; `None` while it is paused, and after its end.
        pub next: Option<NextOccurrence>,
        /// The time of the last occurrence that got a job, in milliseconds since 1970.
        pub last_at: Option<u64>,
        /// The last job, which may have been deleted.
        pub last_job: Option<JobId>,
        /// Occurrences that got a job.
        pub made: u64,
        /// Missed ones without a job: of each interruption at most 1,000.
        pub missed: u64,
        /// Those without a job because the one before had not ended.
        pub overlapped: u64,
        /// Those whose job was refused.
        pub refused: u64,
        /// Why the last of these was refused.
        pub last_refusal: Option<Refusal>,
        /// Bytes of the payload.
        pub payload_len: u64,
    }

    /// An occurrence to come.
    #[derive(Copy)]
    pub struct NextOccurrence {
        /// Its time, in milliseconds since 1970. Its job is enqueued at that time, whatever the
        /// jitter.
        pub due_at: u64,
        /// When its job is created: the same time with its jitter. If its time zone cannot be read
        /// at present: when that is tried again.
        pub fires_at: u64,
    }

    /// A page of schedules, by name.
    #[derive(Default)]
    pub struct SchedulesPage {
        /// The schedules.
        pub schedules: Vec<ScheduleInfo> = at_most("schedules of a page", PAGE_SCHEDULES_MAX),
        /// True if more follow.
        pub more: bool,
    }

    /// The result of a change of a schedule.
    pub enum ScheduleOutcome, "outcome of a change of a schedule" {
        /// It is new.
        0 = Added,
        /// It has changed; or was removed.
        1 = Changed,
        /// It was so already.
        2 = Unchanged,
        /// The publisher has a higher version, this one, which stays.
        3 = Older(version: u64),
        /// The publisher has another schedule of the same version. Raise the version.
        4 = VersionTaken(version: u64),
        /// The queue or the template is refused.
        5 = Refused(refusal: Refusal),
        /// The timing is invalid, or never comes due; or is that of a schedule that was to be
        /// resumed, and cannot be read at present.
        6 = Invalid(reason: String = cut("reason", REASON_BYTES_MAX)),
        /// The publisher has no schedule of that name.
        7 = Unknown,
    }

    /// The result of a run at once.
    #[derive(Copy)]
    pub enum RunOutcome, "outcome of a run of a schedule" {
        /// The new job.
        0 = Enqueued(job: JobId),
        /// The queue refuses the job.
        1 = Refused(refusal: Refusal),
        /// The publisher has no schedule of that name.
        2 = Unknown,
    }

    /// The times of a schedule.
    pub enum Occurrences, "occurrences of a schedule" {
        /// The next ones, in milliseconds since 1970.
        0 = Times(times: Vec<u64> = at_most("occurrences", OCCURRENCES_MAX)),
        /// The timing is invalid, or never comes due.
        1 = Invalid(reason: String = cut("reason", REASON_BYTES_MAX)),
    }
}
