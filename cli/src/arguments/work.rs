//! Arguments of `longshore work`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use longshore::Glob;

use crate::time::parse_duration;

/// The order in which jobs of several patterns are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TakeOrder {
    /// All as one queue: by priority, then age
    Age,
    /// Each pattern only while all earlier ones have no job
    Strict,
    /// By weight, while all have jobs
    Weighted,
}

#[derive(Args, Debug)]
pub(crate) struct Work {
    /// The queues to take jobs from, like /jobs/mail or '/jobs/**'
    #[arg(required = true, value_name = "PATTERN")]
    pub(crate) patterns: Vec<Glob>,
    /// With several patterns: the order in which their jobs are taken
    #[arg(long, value_enum, default_value_t = TakeOrder::Age)]
    pub(crate) order: TakeOrder,
    /// With --order weighted: the share of each pattern, in order, like 3,1
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
        required_if_eq("order", "weighted")
    )]
    pub(crate) weights: Vec<u16>,
    /// Commands that run at a time
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) concurrency: u16,
    /// Jobs that wait here beside the running ones, so that a command that ends finds the next job
    /// at once; no other worker can take them meanwhile
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) prefetch: u16,
    /// End when no matching job is ready, running or waiting for a retry; exit 1 if any job died.
    /// Jobs that wait for a rate of their limit key are left
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// On stop: how long commands may continue before they get SIGTERM and their jobs are released
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = parse_duration)]
    pub(crate) grace: Duration,
    /// The worker's name for operators [default: work-PID]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
