//! Arguments of commands about workers.

use clap::{Args, Subcommand};
use longshore::protocol::limits::WORKER_PATTERNS_MAX;
use longshore::{Glob, WorkerPattern};

use super::DryRun;

#[derive(Args, Debug)]
pub(crate) struct Workers {
    #[command(subcommand)]
    pub(crate) action: WorkersAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum WorkersAction {
    /// List connected workers, their patterns and the jobs they hold
    Ls {
        /// Only workers that take from this queue, or with a pattern that this pattern matches
        /// [default: all]
        pattern: Option<Glob>,
    },
    /// Let workers start no job until they are resumed or restarted; running jobs continue
    ///
    /// A quiet worker takes no new jobs, releases at once those that it has not started, finishes
    /// those that it runs, and stays connected. This holds at every publisher and after a
    /// reconnect. Before a deploy: workers quiet --wait, then stop it. Once this command has
    /// printed a worker as quiet, the worker starts nothing.
    Quiet {
        #[command(flatten)]
        which: WorkerSelection,
        /// Then wait until they hold no jobs
        #[arg(long, conflicts_with = "dry_run")]
        wait: bool,
    },
    /// Let quiet workers take jobs again
    Resume(WorkerSelection),
}

#[derive(Args, Debug)]
pub(crate) struct WorkerSelection {
    /// Names or sessions, as workers ls shows them; in a name, * matches any characters and ? one
    #[arg(
        value_name = "WORKER",
        required_unless_present = "all",
        conflicts_with = "all",
        num_args = 1..=WORKER_PATTERNS_MAX
    )]
    pub(crate) workers: Vec<WorkerPattern>,
    /// All workers
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) act: DryRun,
}
