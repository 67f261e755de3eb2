//! Arguments of `longshore batch`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use longshore::{Glob, JobId, JobLocator, Path};

use super::queries::{parse_job, parse_pattern};
use super::{DryRun, parse_job_id};
use crate::time::parse_deadline;

#[derive(Args, Debug)]
pub(crate) struct Batch {
    #[command(subcommand)]
    pub(crate) action: BatchAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BatchAction {
    /// Open a batch, and print its receipt: longshore enqueue --batch adds members
    New {
        /// Its queue: it may be that of its members
        path: Path,
        /// A text for readers
        text: Option<OsString>,
        /// Its id; opening the same id again does not open a second batch
        #[arg(long, value_name = "UUID")]
        id: Option<JobId>,
        /// Make it a member of this batch
        #[arg(long, value_name = "BATCH", value_parser = parse_job_id)]
        batch: Option<JobId>,
        /// Cancel what has not ended by then: a duration from now, like 10m, or a time [default:
        /// never]
        #[arg(long, value_name = "DURATION or TIME", value_parser = parse_deadline)]
        expires: Option<u64>,
    },
    /// List batches
    Ls {
        /// The queues [default: '/**']
        #[arg(value_parser = parse_pattern)]
        pattern: Option<Glob>,
        /// At most N batches; 0 for all [default: 100; all with --json]
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Show a batch and its members
    Show {
        /// A receipt, PUBLISHER:UUID, or a bare UUID
        #[arg(value_parser = parse_job)]
        id: JobLocator,
        /// At most N members; 0 for all [default: 100; all with --json]
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Close batches: they get no more members, and end with those that they have
    Close(OfBatch),
    /// Cancel batches, and their members that have not ended
    Cancel(OfBatch),
    /// Revive the dead members of batches, and batches that are dead
    Retry(OfBatch),
}

#[derive(Args, Debug)]
pub(crate) struct OfBatch {
    /// Receipts or ids
    #[arg(required = true, value_name = "ID")]
    pub(crate) which: Vec<JobLocator>,
    #[command(flatten)]
    pub(crate) act: DryRun,
}
