//! Arguments of `longshore enqueue`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use longshore::protocol::limits::{FAIR_WEIGHT_MAX, LIMIT_COST_MAX};
use longshore::{Backoff, JobId, JobLocator, OnConflict, Path, UniqueUntil};

use super::file_argument;
use crate::backoff::parse_backoff;
use crate::commands::enqueue::Ranges;
use crate::time::{parse_deadline, parse_duration, parse_timestamp};
use crate::unique::{parse_on_conflict, parse_until};

#[derive(Args, Debug)]
#[command(override_usage = "longshore enqueue [OPTIONS] <PATH> [TEXT]\n       \
                            longshore enqueue [OPTIONS] <PATH> --file <FILE>...")]
pub(crate) struct Enqueue {
    /// The queue
    pub(crate) path: Path,
    /// The payload of one job [default: standard input]
    #[arg(group = "payload")]
    pub(crate) text: Option<OsString>,
    /// One job per file, with its contents as payload; not of a folder, see the examples
    #[arg(long, value_name = "FILE", num_args = 1.., group = "payload", value_parser = file_argument())]
    pub(crate) file: Vec<PathBuf>,
    /// One job per line of standard input, without its newline
    #[arg(long, group = "payload")]
    pub(crate) lines: bool,
    /// One job per line of standard input: {"payload": "…" or any JSON, "id", "idempotency_key",
    /// "idempotency_for", "order_key", "fair_key", "fair_weight", "limit_key", "cost",
    /// "unique": KEY or true, "unique_until", "on_conflict", "latest", "after": [JOB, …],
    /// "after_death", "after_end", "batch", "priority", "delay", "at", "expires", "max_attempts",
    /// "lease", "run_timeout", "backoff", "keep", "prepare", "result", "headers"}
    #[arg(long, group = "payload")]
    pub(crate) jsonl: bool,
    /// Only these lines or files, counted from 1: those that an earlier run reported as not
    /// acknowledged
    #[arg(long, value_name = "120-180,400-", conflicts_with = "text")]
    pub(crate) only: Option<Ranges>,
    /// The job's id; enqueueing the same id again does not create a second job
    #[arg(long, value_name = "UUID", conflicts_with_all = ["file", "lines", "jsonl"])]
    pub(crate) id: Option<JobId>,
    /// A key of 1 to 80 bytes: until it ends, a job with the same key and payload is the same job,
    /// whatever its id; another payload is refused
    #[arg(long, value_name = "KEY", conflicts_with_all = ["file", "lines", "jsonl"])]
    pub(crate) idempotency_key: Option<String>,
    /// How long the key lasts, 1ms to 30d; it outlives its job [default: 1d]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = parse_duration,
        requires = "idempotency_key"
    )]
    pub(crate) idempotency_for: Option<Duration>,
    /// Jobs of a queue with the same key, of 1 to 80 bytes, run one at a time, in order
    #[arg(long, value_name = "KEY")]
    pub(crate) order_key: Option<String>,
    /// Among a queue's ready jobs of one priority, keys (such as tenants) take turns
    #[arg(long, value_name = "KEY")]
    pub(crate) fair_key: Option<String>,
    /// The key's share: with 3, three of its jobs for each one of a key of weight 1
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "fair_key",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(FAIR_WEIGHT_MAX))
    )]
    pub(crate) fair_weight: u16,
    /// A key of 1 to 80 bytes, which limits of scope key count together: see longshore limit set
    #[arg(long, value_name = "KEY")]
    pub(crate) limit_key: Option<String>,
    /// How many units of its limits the job takes [default: 1]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(LIMIT_COST_MAX))
    )]
    pub(crate) cost: Option<u16>,
    /// Create no job while another one of the queue holds this key of 1 to 80 bytes; without KEY,
    /// the payload is the key
    #[arg(
        long,
        value_name = "KEY",
        num_args = 0..=1,
        require_equals = true,
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) unique: Option<Option<String>>,
    /// How long the job holds the unique key: until its end, its start (its first delivery), or for
    /// a time after its enqueue, 1ms to 30d [default: end]
    #[arg(long, value_name = "end|start|DURATION", value_parser = parse_until, requires = "unique")]
    pub(crate) unique_until: Option<UniqueUntil>,
    /// If another job holds the key: keep that one; replace it, unless it was delivered; or refuse
    /// the new one [default: keep]
    #[arg(
        long,
        value_name = "keep|replace|refuse",
        value_parser = parse_on_conflict,
        requires = "unique"
    )]
    pub(crate) on_conflict: Option<OnConflict>,
    /// One job with this key runs, and one waits: the latest
    #[arg(long, value_name = "KEY", conflicts_with_all = ["unique", "order_key"])]
    pub(crate) latest: Option<String>,
    /// Do not run before these jobs have completed. One that dies may still be revived; after any
    /// other end of theirs the job is cancelled
    #[arg(long, value_name = "JOB", value_parser = parse_job_id)]
    pub(crate) after: Vec<JobId>,
    /// Do not run before these jobs have died; if one ends in another way, the job is cancelled
    #[arg(long, value_name = "JOB", value_parser = parse_job_id)]
    pub(crate) after_death: Vec<JobId>,
    /// Do not run before these jobs have ended, in whatever way
    #[arg(long, value_name = "JOB", value_parser = parse_job_id)]
    pub(crate) after_end: Vec<JobId>,
    /// Make the job a member of this batch, which is not closed yet: longshore batch new
    #[arg(long, value_name = "BATCH", value_parser = parse_job_id)]
    pub(crate) batch: Option<JobId>,
    /// Higher priorities run first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Do not run before this delay has passed, like 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Do not run before this time, like 2026-11-20T21:30:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_timestamp)]
    pub(crate) at: Option<u64>,
    /// Expire the job if it still waits then and was not attempted or snoozed: a duration from now,
    /// like 10m, or a time [default: never]
    #[arg(long, value_name = "DURATION or TIME", value_parser = parse_deadline)]
    pub(crate) expires: Option<u64>,
    /// Attempts before a job goes to the dead letters [default: the queue's, or 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_attempts: Option<u16>,
    /// How long a delivery may go without renewal, 1s to 12h [default: the queue's, or 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) lease: Option<Duration>,
    /// How long one attempt may run, renewed or not; 0s for no limit [default: the queue's, or 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) run_timeout: Option<Duration>,
    /// The wait after a failed attempt: quartic (n⁴ seconds), exponential:2s..10m, fixed:5s,
    /// linear:5s..10m, list:1s,5s,1m or hangfire [default: the queue's, or quartic]
    #[arg(long, value_name = "POLICY", value_parser = parse_backoff)]
    pub(crate) backoff: Option<Backoff>,
    /// How long the job stays readable after it has completed, expired or been cancelled [default:
    /// the queue's, or 1d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) keep: Option<Duration>,
    /// Do not retain the result
    #[arg(long)]
    pub(crate) no_result: bool,
    /// Store the job, but do not run it before longshore confirm
    #[arg(long, conflicts_with = "wait")]
    pub(crate) prepare: bool,
    /// A header of the job; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_header)]
    pub(crate) header: Vec<(String, String)>,
    /// Wait until every job has ended and print the results; exit 1 unless all completed
    #[arg(long)]
    pub(crate) wait: bool,
}

impl Enqueue {
    /// True if there is one payload, not one per file or line.
    pub(crate) fn is_one_job(&self) -> bool {
        self.file.is_empty() && !self.lines && !self.jsonl
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
            format!("'{text}' is not a header; write it like content-type=text/plain")
        })?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A job's id, alone or as `enqueue` prints it: `PUBLISHER:ID`.
pub(crate) fn parse_job_id(text: &str) -> Result<JobId, String> {
    text.parse::<JobLocator>().map(|job| job.id).map_err(|error| error.to_string())
}
