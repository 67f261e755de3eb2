//! Running commands for jobs.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use longshore::Glob;

use crate::time::parse_length;

/// Which of several patterns comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Take {
    /// All as one queue: by priority, then age
    Age,
    /// None of the second while the first has a job, and so on
    Strict,
    /// Each by its weight, while all have jobs
    Weighted,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The payload is the command's standard input, its standard output is the result (at most 1 MiB), the last 8 KiB of its \
standard error are the error, and of a job that keeps its result they are kept when it succeeds, too. Exit code 0 completes \
the job, 65 buries it, 75 gives it back, any other one is a failed attempt. LONGSHORE_JOB_ID, LONGSHORE_JOB_TOKEN, LONGSHORE_JOB_ATTEMPT and LONGSHORE_JOB_PATH are in its environment. When the \
job is cancelled, has run for longer than its run timeout, or its lease is lost, its process group gets SIGTERM, and SIGKILL \
10 s later.")]
pub(crate) struct Work {
    /// The queues to take jobs from, like /jobs/mail or '/jobs/**'
    #[arg(required = true, value_name = "PATTERN")]
    pub(crate) patterns: Vec<Glob>,
    /// With several patterns: which comes first
    #[arg(long, value_enum, default_value_t = Take::Age)]
    pub(crate) order: Take,
    /// With --order weighted: the share of each pattern, in their order, like 3,1
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..), required_if_eq("order", "weighted"))]
    pub(crate) weights: Vec<u16>,
    /// Commands at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) concurrency: u16,
    /// End when nothing that matches is ready, running or awaiting a retry; exit 1 if any job died
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// When it is stopped: how long commands may go on before they get SIGTERM and their jobs go
    /// back
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = parse_length)]
    pub(crate) grace: Duration,
    /// What operators see [default: work-PID]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
