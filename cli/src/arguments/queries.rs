//! Commands that read the directory, queues and jobs.

use clap::{Args, ValueEnum};
use longshore::{Glob, JobLocator, JobState, Path};

use super::Filters;

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// A path, or a pattern like '/jobs/**' [default: /]
    pub(crate) pattern: Option<Glob>,
}

#[derive(Args, Debug)]
pub(crate) struct Resolve {
    /// The paths
    #[arg(required = true)]
    pub(crate) paths: Vec<Path>,
}

#[derive(Args, Debug)]
pub(crate) struct Tree {
    /// The root of the tree [default: /]
    pub(crate) path: Option<Path>,
    /// At most this many levels below it, 1 to 32 [default: all]
    #[arg(long, value_name = "LEVELS", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) depth: Option<u8>,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Patterns like '/jobs/**'; at most 256
    #[arg(required = true)]
    pub(crate) patterns: Vec<Glob>,
    /// End after N changes, counting the paths that exist at the start
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct PathTable {
    /// Its children are the rows, their children the columns
    pub(crate) path: Path,
}

#[derive(Args, Debug)]
pub(crate) struct Stat {
    /// The queues [default: '/**']
    pub(crate) pattern: Option<Glob>,
}

#[derive(Args, Debug)]
pub(crate) struct Jobs {
    /// The queues
    pub(crate) pattern: Glob,
    /// Only jobs in this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) filters: Filters,
    /// At most N jobs; 0 for all [default: 100; all with --json]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// Job states on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum State {
    Prepared,
    Scheduled,
    Ready,
    Running,
    Completed,
    Dead,
    Cancelled,
    Expired,
}

impl From<State> for JobState {
    fn from(state: State) -> JobState {
        match state {
            State::Prepared => JobState::Prepared,
            State::Scheduled => JobState::Scheduled,
            State::Ready => JobState::Ready,
            State::Running => JobState::Running,
            State::Completed => JobState::Completed,
            State::Dead => JobState::Dead,
            State::Cancelled => JobState::Cancelled,
            State::Expired => JobState::Expired,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Job {
    /// A receipt, PUBLISHER:UUID, or a bare UUID
    pub(crate) id: JobLocator,
    /// Wait until it has ended; exit 1 unless it completed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print only the result's bytes
    #[arg(long, conflicts_with = "payload")]
    pub(crate) result: bool,
    /// Print only the payload's bytes
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Tail {
    /// The queues [default: '/**']
    pub(crate) pattern: Option<Glob>,
    /// Print the existing jobs first, then transitions
    #[arg(long)]
    pub(crate) snapshot: bool,
    /// End after N transitions
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Print one line and exit as a Nagios plugin: 0 ok, 1 warning, 2 critical, 3 unknown
    #[arg(long)]
    pub(crate) nagios: bool,
}
