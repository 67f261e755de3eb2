//! Which jobs: by name, or by what is known of them.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fingerprint::Fingerprint;
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::JobId;
use crate::limits::BATCH_JOBS_MAX;
use crate::refusal::{DeathReason, JobState};

/// Which jobs to act on. What a filter matches is bounded by 10,000 for each request: ask again while `more`.
#[derive(Clone, PartialEq, Debug)]
pub enum Selection {
    /// These; at most 10,000.
    Ids(Vec<JobId>),
    /// All that match and that the action applies to.
    Matching(Filter),
}

/// What jobs have in common. Every part that is there has to fit; [`Filter::of`] begins with all jobs of some queues.
#[derive(Clone, PartialEq, Eq, Debug)]
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

    /// True when a job that ended at that time fits; one that has not ended only fits a filter without times.
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

impl Encode for Selection {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Selection::Ids(ids) => {
                out.u8(0);
                ids.encode(out);
            }
            Selection::Matching(filter) => {
                out.u8(1);
                filter.encode(out);
            }
        }
    }
}

impl Decode for Selection {
    fn decode(r: &mut Reader) -> Result<Selection, WireError> {
        let unknown = r.invalid("selection");
        match r.u8()? {
            0 => Ok(Selection::Ids(r.list("ids", BATCH_JOBS_MAX)?)),
            1 => Ok(Selection::Matching(Filter::decode(r)?)),
            _ => Err(unknown),
        }
    }
}

impl Encode for Filter {
    fn encode(&self, out: &mut FrameWriter) {
        self.pattern.encode(out);
        self.state.encode(out);
        self.death.encode(out);
        self.fingerprint.encode(out);
        self.ended_from.encode(out);
        self.ended_before.encode(out);
    }
}

impl Decode for Filter {
    fn decode(r: &mut Reader) -> Result<Filter, WireError> {
        Ok(Filter {
            pattern: Glob::decode(r)?,
            state: r.option()?,
            death: r.option()?,
            fingerprint: r.option()?,
            ended_from: r.option()?,
            ended_before: r.option()?,
        })
    }
}

impl Encode for Fingerprint {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64_fixed(self.0);
    }
}

impl Decode for Fingerprint {
    fn decode(r: &mut Reader) -> Result<Fingerprint, WireError> {
        r.u64_fixed().map(Fingerprint)
    }
}
