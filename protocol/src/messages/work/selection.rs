//! Selections of jobs, by id or by their properties.

use crate::codes::{DeathReason, JobState};
use crate::fields::fields;
use crate::fingerprint::Fingerprint;
use crate::glob::Glob;
use crate::id::JobId;
use crate::limits::BATCH_JOBS_MAX;

fields! {
    /// The jobs of an action. Each request affects at most 10,000 of the jobs that match a filter:
    /// repeat it while `more`.
    pub enum Selection, "selection" {
        /// Jobs by id; at most 10,000.
        0 = Ids(ids: Vec<JobId> = at_most("ids", BATCH_JOBS_MAX)),
        /// All matching jobs to which the action applies.
        1 = Matching(filter: Filter),
    }

    /// Properties of jobs. A job must match every part that is present; [`Filter::of`] creates a
    /// filter for all jobs of some queues.
    pub struct Filter {
        /// Their queues.
        pub pattern: Glob,
        /// Their state.
        pub state: Option<JobState>,
        /// For dead jobs: the reason.
        pub death: Option<DeathReason>,
        /// For dead jobs: the fingerprint of their last error.
        pub fingerprint: Option<Fingerprint>,
        /// For ended jobs: they ended at this time or later, in milliseconds since 1970.
        pub ended_from: Option<u64>,
        /// For ended jobs: they ended before this time, in milliseconds since 1970.
        pub ended_before: Option<u64>,
    }
}

impl Filter {
    /// All jobs of these queues.
    pub fn of(pattern: Glob) -> Filter {
        Filter {
            pattern,
            state: None,
            death: None,
            fingerprint: None,
            ended_from: None,
            ended_before: None,
        }
    }

    /// Restricts the filter to a state; `None` for every state.
    pub fn in_state(self, state: impl Into<Option<JobState>>) -> Filter {
        Filter { state: state.into(), ..self }
    }

    /// True if a job that ended at that time matches; a job that has not ended matches only a
    /// filter without times.
    pub fn matches_end_time(&self, ended_at: Option<u64>) -> bool {
        match ended_at {
            None => self.ended_from.is_none() && self.ended_before.is_none(),
            Some(at) => {
                self.ended_from.is_none_or(|from| at >= from)
                    && self.ended_before.is_none_or(|before| at < before)
            }
        }
    }
}
