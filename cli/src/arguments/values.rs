//! Live values, and the metrics below /sys.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use longshore::protocol::Address;
use longshore::protocol::limits::WORKER_PATTERNS_MAX;
use longshore::{Glob, Path, WorkerPattern};

use crate::config::{parse_address, parse_advertised};
use crate::time::parse_length;

#[derive(Args, Debug)]
pub(crate) struct Publish {
    /// Where the value is found
    pub(crate) path: Path,
    /// The value: JSON, or else a text; - for the lines of standard input
    #[arg(required_unless_present = "lines", conflicts_with = "lines", allow_hyphen_values = true)]
    pub(crate) value: Option<String>,
    /// Each line of standard input is the next value, until the program is stopped
    #[arg(long)]
    pub(crate) lines: bool,
    /// Subscribers may write to it: what they write becomes the value
    #[arg(long)]
    pub(crate) writable: bool,
    /// Subscribers try the publishers with the lowest number first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) priority: u16,
    /// Where to listen for subscribers
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    pub(crate) listen: SocketAddr,
    /// Where subscribers dial it, by host name or IP address; needed when it listens on all
    /// addresses
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertised)]
    pub(crate) advertise: Vec<Address>,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Subscribe {
    /// A path, or a pattern like '/values/**': then the values that come later as well
    pub(crate) pattern: Glob,
    /// End after so many updates
    #[arg(long, value_name = "N", conflicts_with = "once")]
    pub(crate) count: Option<u64>,
    /// Print each value as it is, and end; exit 1 if there is none
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Write {
    /// The value's path
    pub(crate) path: Path,
    /// What is written: JSON, or else a text
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,
    /// How long its publisher may take to answer
    #[arg(long, value_name = "LENGTH", default_value = "10s", value_parser = parse_length)]
    pub(crate) within: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Workers {
    #[command(subcommand)]
    pub(crate) action: WorkersAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum WorkersAction {
    /// The workers that are linked to publishers, what they take and what they hold
    Ls {
        /// Only those that take from this queue, or whose pattern is one that this pattern matches
        /// [default: all]
        pattern: Option<Glob>,
    },
    /// Have workers begin no job until they are resumed or started anew; those that run go on
    ///
    /// A quiet worker takes no new jobs, gives back at once those that it has not begun, goes on
    /// with those that it runs, and stays linked: at every publisher, and after a reconnect. Before
    /// a deploy: workers quiet --wait, then stop it. Once this command has named a worker as quiet,
    /// it begins nothing.
    Quiet {
        #[command(flatten)]
        which: WhichWorkers,
        /// Then wait until they hold no job any more
        #[arg(long, conflicts_with = "dry_run")]
        wait: bool,
    },
    /// Have quiet workers take jobs again
    Resume(WhichWorkers),
}

#[derive(Args, Debug)]
pub(crate) struct WhichWorkers {
    /// Names or sessions, as workers ls shows them; in a name, * stands for any characters and ?
    /// for one
    #[arg(value_name = "WORKER", required_unless_present = "all", conflicts_with = "all", num_args = 1..=WORKER_PATTERNS_MAX)]
    pub(crate) workers: Vec<WorkerPattern>,
    /// All workers
    #[arg(long)]
    pub(crate) all: bool,
    /// Only say which they are
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Print it once, and end
    #[arg(long)]
    pub(crate) once: bool,
}
