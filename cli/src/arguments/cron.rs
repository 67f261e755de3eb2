//! Arguments of `longshore cron`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use longshore::protocol::limits::OCCURRENCES_MAX;
use longshore::{Backoff, Missed, Overlap, Path};

use super::{DryRun, file_argument};
use crate::backoff::parse_backoff;
use crate::schedule::{parse_missed, parse_overlap};
use crate::time::{parse_duration, parse_timestamp};

#[derive(Args, Debug)]
pub(crate) struct Cron {
    #[command(subcommand)]
    pub(crate) action: CronAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CronAction {
    /// List schedules
    Ls,
    /// Add a schedule, or change the one of its name; or those of a file
    Add(Box<AddSchedule>),
    /// Remove a schedule; its jobs stay
    Rm(OfSchedule),
    /// Pause a schedule: it has no occurrences, and misses none
    Pause(OfSchedule),
    /// Resume a paused schedule
    Resume(OfSchedule),
    /// Enqueue a job of a schedule now, whatever the overlap
    Run(OfSchedule),
    /// Print the next occurrences of a schedule
    Next {
        /// Its name
        name: String,
        /// How many
        #[arg(
            long,
            value_name = "N",
            default_value_t = 10,
            value_parser = clap::value_parser!(u32).range(1..=OCCURRENCES_MAX as i64)
        )]
        count: u32,
    },
}

#[derive(Args, Debug)]
pub(crate) struct OfSchedule {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) act: DryRun,
}

#[derive(Args, Debug)]
#[command(
    group = clap::ArgGroup::new("timing"),
    override_usage = "longshore cron add [OPTIONS] <NAME> <PATH> [TEXT] --cron <EXPRESSION>\n       \
                      longshore cron add [OPTIONS] <NAME> <PATH> [TEXT] --every <DURATION>\n       \
                      longshore cron add [OPTIONS] --file <FILE>"
)]
pub(crate) struct AddSchedule {
    /// Its name, of 1 to 80 bytes
    #[arg(required_unless_present = "file")]
    pub(crate) name: Option<String>,
    /// The queue of its jobs
    #[arg(required_unless_present = "file")]
    pub(crate) path: Option<Path>,
    /// The payload of its jobs
    pub(crate) text: Option<OsString>,
    /// When: minute hour day month weekday, like '30 3 * * MON-FRI'; or six fields, with seconds
    /// first
    #[arg(
        long,
        value_name = "EXPRESSION",
        group = "timing",
        required_unless_present_any = ["every", "file"]
    )]
    pub(crate) cron: Option<String>,
    /// The time zone of --cron, like Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with_all = ["every", "file"])]
    pub(crate) zone: Option<String>,
    /// At this distance, at least 1s, from --start on, or from when the schedule is added
    #[arg(long, value_name = "DURATION", group = "timing", value_parser = parse_duration)]
    pub(crate) every: Option<Duration>,
    /// No occurrence before this time, like 2026-12-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_timestamp, conflicts_with = "file")]
    pub(crate) start: Option<u64>,
    /// No occurrence after this time
    #[arg(long, value_name = "TIME", value_parser = parse_timestamp, conflicts_with = "file")]
    pub(crate) end: Option<u64>,
    /// Delay each occurrence by a random time up to this, 1d at most, and less than the time to the
    /// next one
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = parse_duration,
        conflicts_with = "file"
    )]
    pub(crate) jitter: Option<Duration>,
    /// Of occurrences that were missed, because the publisher was down: the latest gets a job,
    /// once, within an hour; all do; or none that is over 10s late [default: latest]
    #[arg(
        long,
        value_name = "latest|all|none",
        value_parser = parse_missed,
        conflicts_with = "file"
    )]
    pub(crate) missed: Option<Missed>,
    /// While the job of the occurrence before has not ended: skip this one; allow its job to run;
    /// or let one job wait for the end [default: skip]
    #[arg(
        long,
        value_name = "skip|allow|buffer",
        value_parser = parse_overlap,
        conflicts_with = "file"
    )]
    pub(crate) overlap: Option<Overlap>,
    /// The version of the declaration: the highest one counts [default: none, the last one set]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(crate) version: Option<u64>,
    /// Higher priorities run first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "file")]
    pub(crate) priority: Option<i32>,
    /// Attempts before a job goes to the dead letters [default: the queue's, or 25]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "file"
    )]
    pub(crate) max_attempts: Option<u16>,
    /// How long one attempt may run; 0s for no limit [default: the queue's, or 1h]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = parse_duration,
        conflicts_with = "file"
    )]
    pub(crate) run_timeout: Option<Duration>,
    /// The wait after a failed attempt, as longshore enqueue has it
    #[arg(long, value_name = "POLICY", value_parser = parse_backoff, conflicts_with = "file")]
    pub(crate) backoff: Option<Backoff>,
    /// The schedules of this file, TOML: see the documentation of workflows
    #[arg(
        long,
        value_name = "FILE",
        value_parser = file_argument(),
        conflicts_with_all = ["name", "path", "text", "timing"]
    )]
    pub(crate) file: Option<PathBuf>,
    /// Remove the schedules whose names begin with this and that are not in the file
    #[arg(
        long,
        value_name = "PREFIX",
        requires = "file",
        conflicts_with = "name",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) prune: Option<String>,
    #[command(flatten)]
    pub(crate) act: DryRun,
}
