//! Which jobs: by name, or by what is known of them.

use crate::fields::fields;
use crate::fingerprint::Fingerprint;
use crate::glob::Glob;
use crate::id::JobId;
use crate::limits::BATCH_JOBS_MAX;
use crate::refusal::{DeathReason, JobState};

fields! {
    /// Which jobs to act on. What a filter matches is bounded by 10,000 for each request: ask again
    /// while `more`.
    pub enum Selection, "selection" {
        /// These; at most 10,000.
        0 = Ids(ids: Vec<JobId> = at_most("ids", BATCH_JOBS_MAX)),
        /// All that match and that the action applies to.
        1 = Matching(filter: Filter),
    }

    /// What jobs have in common. Every part that is there has to fit; [`Filter::of`] begins with
    /// all jobs of some queues.
    pub struct Filter {
        /// Their queues.
        pub pattern: Glob,
        /// Their state.
        pub state: Option<JobState>,
        /// Of dead ones: why.
        pub death: Option<DeathReason>,
        /// Of dead ones: what their last error has in common with others.
        pub fingerprint: Option<Fingerprint>,
        /// Of ended ones: they ended at this time or later, in milliseconds since 1970.
        pub ended_from: Option<u64>,
        /// Of ended ones: they ended before this time, in milliseconds since 1970.
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

    /// Only those in that state; `None` for every state.
    pub fn in_state(self, state: impl Into<Option<JobState>>) -> Filter {
        Filter { state: state.into(), ..self }
    }

    /// True when a job that ended at that time fits; one that has not ended only fits a filter
    /// without times.
    pub fn takes_end(&self, ended_at: Option<u64>) -> bool {
        match ended_at {
            None => self.ended_from.is_none() && self.ended_before.is_none(),
            Some(at) => {
                self.ended_from.is_none_or(|from| at >= from)
                    && self.ended_before.is_none_or(|before| at < before)
            }
        }
    }
}
