//! Commands that change jobs and queues.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use longshore::protocol::limits::KEEP_JOBS_MAX;
use longshore::protocol::messages::work::Filter;
use longshore::protocol::{Fingerprint, QueueSettings};
use longshore::{Backoff, DeathReason, Glob, JobLocator, JobState, Path};

use super::queries::{parse_job, parse_pattern};
use super::{State, file_argument};
use crate::backoff::parse_backoff;
use crate::confirmation::Confirmation;
use crate::time::{parse_duration, wall_ms};

/// Filters in addition to queue and state.
#[derive(Args, Debug, Default)]
pub(crate) struct Filters {
    /// Only dead jobs with this cause of death, like worker_lost
    #[arg(long, value_name = "REASON", value_parser = parse_reason)]
    reason: Option<DeathReason>,
    /// Only dead jobs whose last error has this fingerprint, as dead groups shows it
    #[arg(long, value_name = "FINGERPRINT")]
    error: Option<Fingerprint>,
    /// Only jobs that ended at least this long ago, like 1h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    older_than: Option<Duration>,
    /// Only jobs that ended less than this long ago
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    younger_than: Option<Duration>,
}

impl Filters {
    /// The filter for these queues and this state.
    pub(crate) fn filter(&self, pattern: Glob, state: Option<JobState>) -> Filter {
        let ago = |age: Duration| {
            wall_ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
        };
        Filter {
            death: self.reason,
            fingerprint: self.error,
            ended_before: self.older_than.map(|age| ago(age).saturating_add(1)),
            ended_from: self.younger_than.map(|age| ago(age).saturating_add(1)),
            ..Filter::of(pattern).in_state(state)
        }
    }

    /// True if no filter is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.reason.is_none()
            && self.error.is_none()
            && self.older_than.is_none()
            && self.younger_than.is_none()
    }
}

fn parse_reason(text: &str) -> Result<DeathReason, String> {
    let found = DeathReason::ALL.iter().find(|reason| reason.to_string() == text);
    found.copied().ok_or_else(|| {
        let all: Vec<String> = DeathReason::ALL.iter().map(DeathReason::to_string).collect();
        format!("'{text}' is not a reason; expected one of {}", all.join(", "))
    })
}

/// The flag of every command that changes jobs, queues or workers.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct DryRun {
    /// Only print what it would do
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Selection {
    /// Receipts or ids, or one queue pattern like '/jobs/**'
    #[arg(required = true, value_name = "ID… or PATTERN")]
    pub(crate) which: Vec<String>,
    #[command(flatten)]
    pub(crate) filters: Filters,
    #[command(flatten)]
    pub(crate) act: DryRun,
}

#[derive(Args, Debug)]
pub(crate) struct Confirm {
    /// Receipts or ids
    #[arg(required = true, value_name = "ID")]
    pub(crate) which: Vec<JobLocator>,
    #[command(flatten)]
    pub(crate) act: DryRun,
}

// Filters on how a job ended never match here: they are hidden, and refused with the reason.
#[derive(Args, Debug)]
#[command(
    mut_arg("reason", |arg| arg.hide(true)),
    mut_arg("error", |arg| arg.hide(true)),
    mut_arg("older_than", |arg| arg.hide(true)),
    mut_arg("younger_than", |arg| arg.hide(true))
)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) selected: Selection,
    /// With a pattern: only jobs in this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Args, Debug)]
pub(crate) struct Purge {
    /// The queues
    pub(crate) pattern: Glob,
    /// The state: completed, cancelled, expired or dead
    #[arg(long, hide_possible_values = true)]
    pub(crate) state: State,
    #[command(flatten)]
    pub(crate) filters: Filters,
    #[command(flatten)]
    pub(crate) act: DryRun,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Args, Debug)]
pub(crate) struct Dead {
    #[command(subcommand)]
    pub(crate) action: DeadAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeadAction {
    /// List dead jobs and their causes of death
    Ls {
        /// The queues [default: '/**']
        #[arg(value_parser = parse_pattern)]
        pattern: Option<Glob>,
        #[command(flatten)]
        filters: Filters,
        /// At most N jobs; 0 for all [default: 100; all with --json]
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Group dead jobs by cause of death, largest groups first
    Groups {
        /// The queues [default: '/**']
        #[arg(value_parser = parse_pattern)]
        pattern: Option<Glob>,
        #[command(flatten)]
        filters: Filters,
    },
    /// Show one job with its payload and every attempt's error
    Show {
        /// A receipt, PUBLISHER:UUID, or a bare UUID
        #[arg(value_parser = parse_job)]
        id: JobLocator,
    },
    /// Make dead jobs ready again, with all their attempts; with a payload, replace one job by a
    /// new one
    #[command(visible_alias = "retry")]
    Revive {
        #[command(flatten)]
        selected: Selection,
        /// Jobs per second, instead of all at once
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        rate: Option<u32>,
        /// The payload of a new job that replaces this one
        #[arg(long, value_name = "TEXT", conflicts_with = "rate")]
        payload: Option<OsString>,
        /// Like --payload, from a file
        #[arg(
            long,
            value_name = "FILE",
            value_parser = file_argument(),
            conflicts_with_all = ["rate", "payload"]
        )]
        payload_file: Option<PathBuf>,
    },
    /// Delete dead jobs
    Drop {
        #[command(flatten)]
        selected: Selection,
        #[command(flatten)]
        confirmation: Confirmation,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Pause {
    /// The queues, including queues created later
    pub(crate) pattern: Glob,
    #[command(flatten)]
    pub(crate) act: DryRun,
}

#[derive(Args, Debug)]
pub(crate) struct Resume {
    /// A pattern that was paused
    #[arg(required_unless_present = "clock")]
    pub(crate) pattern: Option<Glob>,
    /// Accept the wall clock after a jump: every publisher resumes what waits for it
    #[arg(long, conflicts_with = "pattern")]
    pub(crate) clock: bool,
    #[command(flatten)]
    pub(crate) act: DryRun,
}

#[derive(Args, Debug)]
pub(crate) struct Queue {
    #[command(subcommand)]
    pub(crate) action: QueueAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum QueueAction {
    /// List queues with their jobs, their defaults, and whether they are paused or closed
    Ls {
        /// The queues [default: '/**']
        pattern: Option<Glob>,
    },
    /// Show the defaults for its jobs
    Show {
        /// The queue
        path: Path,
    },
    /// Set defaults for its jobs, existing ones included
    Set {
        /// The queue; created if it does not exist
        path: Path,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        act: DryRun,
    },
    /// Remove all defaults
    Reset {
        /// The queue
        path: Path,
        #[command(flatten)]
        act: DryRun,
    },
    /// Refuse new jobs; existing jobs are still delivered
    Close {
        /// The queues, including queues created later
        pattern: Glob,
        #[command(flatten)]
        act: DryRun,
    },
    /// Accept new jobs again
    Open {
        /// A pattern that was closed
        pattern: Glob,
        #[command(flatten)]
        act: DryRun,
    },
}

#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct Settings {
    /// Attempts before a job goes to the dead letters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_attempts: Option<u16>,
    /// How long a delivery may go without renewal, 1s to 12h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    lease: Option<Duration>,
    /// How long one attempt may run; 0s for no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    run_timeout: Option<Duration>,
    /// The wait after a failed attempt: quartic (n⁴ seconds), exponential:2s..10m, fixed:5s,
    /// linear:5s..10m, list:1s,5s,1m or hangfire
    #[arg(long, value_name = "POLICY", value_parser = parse_backoff)]
    backoff: Option<Backoff>,
    /// How long completed, cancelled and expired jobs stay readable
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep: Option<Duration>,
    /// How many ended jobs stay readable: the newest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=KEEP_JOBS_MAX))]
    keep_jobs: Option<u64>,
    /// How long dead letters are retained; 0s for not at all
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep_dead: Option<Duration>,
    /// Whether a dead letter keeps the jobs of its order key waiting until it is revived or dropped
    #[arg(long, value_name = "true|false")]
    dead_blocks_order: Option<bool>,
}

impl Settings {
    /// The settings in protocol form.
    pub(crate) fn changes(self) -> Result<QueueSettings, String> {
        let ms = |duration: Option<Duration>, what| {
            duration.map(|duration| crate::commands::enqueue::wait_ms(duration, what)).transpose()
        };
        Ok(QueueSettings {
            max_attempts: self.max_attempts,
            lease_ms: self.lease.map(crate::commands::enqueue::lease_ms).transpose()?,
            run_timeout_ms: ms(self.run_timeout, "run-timeout")?,
            backoff: self.backoff,
            keep_ms: ms(self.keep, "keep")?,
            keep_jobs: self.keep_jobs,
            keep_dead_ms: ms(self.keep_dead, "keep-dead")?,
            dead_blocks_order: self.dead_blocks_order,
        })
    }
}
