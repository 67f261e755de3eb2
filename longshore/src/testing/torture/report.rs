//! The results of a torture, in words.

use std::collections::BTreeMap;
use std::fmt;

use longshore_protocol::JobState;
use longshore_protocol::messages::work::JobInfo;

use super::fault::Fault;
use crate::{BadPayload, RunError};

/// The end of a case, for an invariant.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Each job as its publisher reports it: state, result, history of attempts; in the order in
    /// which they were added.
    pub jobs: Vec<JobInfo>,
    /// Deliveries of all jobs.
    pub runs: u32,
}

impl Outcome {
    /// True if every job has completed.
    pub fn all_completed(&self) -> bool {
        self.jobs.iter().all(|job| job.state == JobState::Completed)
    }
}

/// What a torture without a failure has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TortureReport {
    /// Cases run, the one without a fault included.
    pub cases: u64,
    /// Cases with a single fault.
    pub single_faults: u64,
    /// How many such cases there are: each fault at each await point. If they are more than half
    /// of the seeds, an even sample of that size is run.
    pub single_faults_possible: u64,
    /// The awaits of each job's first run without a fault. Nothing can happen between two steps of
    /// a handler that does not await between them.
    pub awaits: Vec<u32>,
    /// Deliveries in all cases.
    pub runs: u64,
    /// How often each fault has happened. A planned fault may find no run at its await point.
    pub faults: BTreeMap<Fault, u64>,
}

/// Why a torture failed.
#[derive(thiserror::Error)]
pub enum TortureError {
    /// A case broke an invariant, or did not end.
    #[error("{0}")]
    Failed(Box<TortureFailure>),
    /// There is no job, handler or invariant.
    #[error("a torture needs a job, a handler and an invariant: there is no {0}")]
    Missing(&'static str),
    /// There are too many jobs.
    #[error("{0} jobs are over the limit of {limit} of a torture", limit = super::JOBS_MAX)]
    TooManyJobs(usize),
    /// A job's payload or path is invalid.
    #[error("job {number}: {error}")]
    Job {
        /// The job's number, from 1.
        number: usize,
        /// What is wrong.
        error: BadPayload,
    },
    /// The handlers' kinds overlap, or a path is invalid.
    #[error(transparent)]
    Handlers(#[from] RunError),
    /// The simulated publisher refused the jobs, or failed.
    #[error("{0}")]
    Publisher(String),
    /// `LONGSHORE_TORTURE_SEED` is no number.
    #[error("LONGSHORE_TORTURE_SEED is '{0}'; set it to the number that a failure has printed")]
    Seed(String),
    /// tokio's runtime did not start.
    #[error("no runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Tests print errors with `Debug`: it is the message.
impl fmt::Debug for TortureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A case that failed, with as few faults as still make it fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TortureFailure {
    /// The invariant's message, or how the case did not end.
    pub what: String,
    /// The seed that repeats it, for the same handlers, jobs, faults and number of seeds.
    pub seed: u64,
    /// The faults in words; none if the jobs fail without one.
    pub faults: Vec<String>,
    /// The handlers.
    pub handlers: Vec<&'static str>,
    /// What happened, in order, with the virtual time.
    pub history: Vec<String>,
    /// The name of the test's thread, which is the test's name.
    pub test: Option<String>,
}

impl fmt::Display for TortureFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = match self.faults.is_empty() {
            true => "without a fault".to_owned(),
            false => self.faults.join(", then "),
        };
        writeln!(f, "{}: seed {}, {faults}", self.what, self.seed)?;
        writeln!(f, "  handler {}", self.handlers.join(", "))?;
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        let test = self.test.as_deref().unwrap_or_default();
        write!(f, "  repeat it: LONGSHORE_TORTURE_SEED={} cargo test {test}", self.seed)
    }
}
