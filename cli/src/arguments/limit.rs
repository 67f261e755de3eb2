//! Arguments of `longshore limit`.

use clap::{Args, Subcommand};
use longshore::protocol::limits::LIMIT_UNITS_MAX;
use longshore::{Glob, LimitScope};

use super::act::DryRun;
use crate::limit::{Rate, parse_rate, parse_scope};

#[derive(Args, Debug)]
pub(crate) struct Limit {
    #[command(subcommand)]
    pub(crate) action: LimitAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LimitAction {
    /// List limits
    Ls,
    /// Set a limit of the jobs that run at once, or start in a time; it replaces the one of its name
    Set(SetLimit),
    /// Remove a limit
    Rm {
        /// Its name
        name: String,
        #[command(flatten)]
        act: DryRun,
    },
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct SetLimit {
    /// Its name, of 1 to 80 bytes
    pub(crate) name: String,
    /// The queues, like /mail or '/mail/**'; later ones are included
    pub(crate) pattern: Glob,
    /// What it counts together: the jobs of each queue, of each limit key of each queue, or of all
    /// queues
    #[arg(
        long,
        value_name = "queue|key|shared",
        value_parser = parse_scope,
        default_value = "queue"
    )]
    pub(crate) scope: LimitScope,
    /// Most units of jobs that run at once; a job has one unit, unless it has another --cost
    #[arg(
        long,
        value_name = "N",
        group = "what",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LIMIT_UNITS_MAX))
    )]
    pub(crate) concurrency: Option<u32>,
    /// Units of jobs that start in a time, like 100/s, 5/1m or 1000/1d; up to 31d
    #[arg(long, value_name = "N/DURATION", group = "what", value_parser = parse_rate)]
    pub(crate) rate: Option<Rate>,
    /// Units of the rate that may start at once, also after a lull [default: a tenth of the rate's]
    #[arg(
        long,
        value_name = "N",
        requires = "rate",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LIMIT_UNITS_MAX))
    )]
    pub(crate) burst: Option<u32>,
    #[command(flatten)]
    pub(crate) act: DryRun,
}
