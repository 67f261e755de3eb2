//! Schedules: jobs that a publisher enqueues by itself, again and again.

use crate::codec::{Reader, WireError};
use crate::fields::{codes, fields};
use crate::job::at_most;
use crate::limits::{
    CRON_BYTES_MAX, JITTER_MS_MAX, PERIOD_MS_MIN, RUN_AT_MS_MAX, SCHEDULE_NAME_BYTES_MAX,
    WAIT_MS_MAX, ZONE_BYTES_MAX,
};
use crate::path::Path;

fields! {
    /// A schedule: at each *occurrence* its publisher enqueues one job, whose payload and options
    /// are the schedule's template. A publisher has at most 20,000, each with its own name.
    pub struct Schedule {
        /// Its name: 1 to 80 bytes.
        pub name: String = read_by(
            schedule_name,
            |_: &mut crate::tests::Source| "nightly".to_owned()
        ),
        /// The queue of its jobs.
        pub path: Path,
        /// When it is due.
        pub timing: Timing,
        /// No occurrence is before this time, in milliseconds since 1970. At most the end of the
        /// year 9999.
        pub starts_at: Option<u64> = read_by(
            time,
            |source: &mut crate::tests::Source| {
                source.of::<bool>().then(|| source.within(0..=RUN_AT_MS_MAX))
            }
        ),
        /// No occurrence is after this time, in milliseconds since 1970. At most the end of the
        /// year 9999.
        pub ends_at: Option<u64> = read_by(
            time,
            |source: &mut crate::tests::Source| {
                source.of::<bool>().then(|| source.within(0..=RUN_AT_MS_MAX))
            }
        ),
        /// Each occurrence waits for a random time of at most this, in milliseconds, and for less
        /// than the time to the next one. At most a day.
        pub jitter_ms: u64 = read_by(
            |r| at_most(r, "jitter in milliseconds", JITTER_MS_MAX),
            |source: &mut crate::tests::Source| source.within(0..=JITTER_MS_MAX)
        ),
        /// What becomes of occurrences that were missed.
        pub missed: Missed,
        /// What becomes of an occurrence while the job of the one before has not ended.
        pub overlap: Overlap,
        /// The version of its declaration: a lower one than the known one changes nothing. `None`
        /// to change the schedule whatever its version, which stays.
        pub version: Option<u64>,
    }

    /// When a schedule is due.
    pub enum Timing, "timing of a schedule" {
        /// By the calendar of a time zone.
        0 = Cron {
            /// Five fields, or six with seconds first.
            expression: String = at_most("cron expression", CRON_BYTES_MAX),
            /// The zone's name in the IANA database, like `Europe/Berlin`.
            zone: String = at_most("time zone", ZONE_BYTES_MAX),
        },
        /// At a fixed distance, counted from `starts_at`, or from when the schedule was added.
        1 = Every {
            /// The distance in milliseconds: at least a second, at most 100 years.
            ms: u64 = read_by(
                period_ms,
                |source: &mut crate::tests::Source| source.within(PERIOD_MS_MIN..=WAIT_MS_MAX)
            ),
        },
    }
}

codes! {
    /// What becomes of occurrences that came due while the publisher was down, held back its wall
    /// clock, or had no room for jobs. Those without a job are counted.
    #[derive(Default)]
    Missed, "rule for missed occurrences" {
        /// The latest one gets a job, once, within an hour and before the next one. The default.
        #[default]
        Latest = 0, "latest";
        /// Each one gets a job, in order. Needs [`Overlap::Allow`].
        All = 1, "all";
        /// None gets a job that is over 10 s late.
        None = 2, "none";
    }
}

codes! {
    /// What becomes of an occurrence while the job of the one before has not ended. A dead job has
    /// ended.
    #[derive(Default)]
    Overlap, "rule for overlapping occurrences" {
        /// It gets no job, and is counted. The default.
        #[default]
        Skip = 0, "skip";
        /// It gets a job, which may run at the same time.
        Allow = 1, "allow";
        /// It gets a job, which waits for the end of the one before; while one waits already, it
        /// gets none, and is counted. The jobs have the schedule's name as order key, unless the
        /// template has another one.
        Buffer = 2, "buffer";
    }
}

impl Schedule {
    /// True if every part is in its range.
    pub fn is_valid(&self) -> bool {
        let is_time = |at: Option<u64>| at.is_none_or(|at| at <= RUN_AT_MS_MAX);
        let has_valid_timing = match &self.timing {
            Timing::Cron { expression, zone } => {
                expression.len() <= CRON_BYTES_MAX && zone.len() <= ZONE_BYTES_MAX
            }
            Timing::Every { ms } => is_period(ms),
        };
        (1..=SCHEDULE_NAME_BYTES_MAX).contains(&self.name.len())
            && has_valid_timing
            && is_time(self.starts_at)
            && is_time(self.ends_at)
            && self.jitter_ms <= JITTER_MS_MAX
    }

    /// True if it comes due at the same times as another one, whatever it does then.
    pub fn has_timing_of(&self, other: &Schedule) -> bool {
        let times = |of: &Schedule| (of.starts_at, of.ends_at, of.jitter_ms);
        self.timing == other.timing && times(self) == times(other)
    }
}

fn is_period(ms: &u64) -> bool {
    (PERIOD_MS_MIN..=WAIT_MS_MAX).contains(ms)
}

fn schedule_name(r: &mut Reader) -> Result<String, WireError> {
    let empty = r.invalid("empty name of a schedule");
    let name = r.string("name of a schedule", SCHEDULE_NAME_BYTES_MAX)?;
    if name.is_empty() { Err(empty) } else { Ok(name) }
}

fn time(r: &mut Reader) -> Result<Option<u64>, WireError> {
    let is_valid = |at: &Option<u64>| at.is_none_or(|at| at <= RUN_AT_MS_MAX);
    r.valid("time of a schedule after the year 9999", is_valid)
}

fn period_ms(r: &mut Reader) -> Result<u64, WireError> {
    r.valid("period of a schedule outside 1 s to 100 years", is_period)
}
