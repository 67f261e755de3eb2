//! Arguments of the services.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use longshore::protocol::{Address, HomePattern};
use longshore::{Durability, Path};

use super::{DryRun, file_argument};
use crate::config::{parse_address, parse_advertised, parse_durability, parse_home};
use crate::confirmation::Confirmation;

#[derive(Args, Debug)]
pub(crate) struct Up {
    /// The directory of the journal [default: $LONGSHORE_DATA, the configuration file,
    /// $XDG_DATA_HOME/longshore, ~/.local/share/longshore]
    #[arg(long, value_name = "DIR", value_parser = file_argument())]
    pub(crate) data: Option<PathBuf>,
    /// Number of resolver replicas
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=16)
    )]
    pub(crate) replicas: u16,
    /// The port of the first replica; the others use the following ports
    #[arg(long, value_name = "PORT", default_value_t = crate::config::RESOLVER_PORT)]
    pub(crate) resolver_port: u16,
    /// The port of the publisher
    #[arg(long, value_name = "PORT", default_value_t = crate::config::PUBLISHER_PORT)]
    pub(crate) publisher_port: u16,
    /// Start although acknowledged records are damaged. They and all later records are lost; their
    /// files are moved to lost/
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Require TLS, with certificates for this machine that it makes in DIR-tls, beside the data
    /// directory, and print the configuration file that clients need
    #[arg(long)]
    pub(crate) tls_dev: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Resolver {
    #[command(subcommand)]
    pub(crate) action: ResolverAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ResolverAction {
    /// Run one replica of the resolver, until SIGTERM
    ///
    /// Replicas do not know each other: publishers register at each that their --resolver, or
    /// `resolvers` in the configuration file, names. To add one to a running system, start it
    /// without --fresh, add it there for every publisher and restart these one at a time, then add
    /// it for workers, producers and tools.
    /// Until then it finds nothing: longshore check names the publishers that a replica does not
    /// know.
    Run(RunReplica),
    /// Show the status of every replica
    Status {
        /// Show the publishers that each replica knows, how long they have been silent, and why
        /// they are missing
        #[arg(long)]
        publishers: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RunReplica {
    /// The address to listen on; port 0 picks a free port [default: 127.0.0.1:4770]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Its name for operators [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A directory for this replica only, where it stores the publishers that it knows [default:
    /// resolver-PORT in the data directory; none with port 0]
    #[arg(long, value_name = "DIR", value_parser = file_argument())]
    pub(crate) data: Option<PathBuf>,
    /// The address that serves its metrics, /sys/replicas/NAME [default: a free port of its
    /// listening address; resolver.metrics in the configuration file]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Start a new cluster: nothing can have been published before
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) child: ChildFlag,
}

#[derive(Args, Debug)]
pub(crate) struct Publisher {
    #[command(subcommand)]
    pub(crate) action: PublisherAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PublisherAction {
    /// Run a publisher, until SIGTERM
    Run(Box<RunPublisher>),
    /// Show every publisher: its queues, jobs and links, its journal, and whether it takes jobs
    Status,
    /// Prepare a publisher for removal: it accepts no new jobs, and reports when it has none left
    Drain(Drain),
    /// Stop reporting a missing publisher that will not return; its jobs are lost
    Forget(Forget),
}

#[derive(Args, Debug)]
pub(crate) struct Forget {
    /// The publisher's name, its id, or the id's first eight digits
    #[arg(value_name = "NAME")]
    pub(crate) publisher: String,
    #[command(flatten)]
    pub(crate) act: DryRun,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// The publisher's name, its id, or the id's first eight digits
    #[arg(value_name = "NAME")]
    pub(crate) publisher: String,
    /// Wait until all its jobs have ended
    #[arg(long, conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) wait: bool,
    /// Accept new jobs again
    #[arg(long)]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) act: DryRun,
}

#[derive(Args, Debug)]
pub(crate) struct RunPublisher {
    /// The directory of the journal [default: $LONGSHORE_DATA, the configuration file,
    /// $XDG_DATA_HOME/longshore, ~/.local/share/longshore]
    #[arg(long, value_name = "DIR", value_parser = file_argument())]
    pub(crate) data: Option<PathBuf>,
    /// The address to listen on; port 0 picks a free port [default: 127.0.0.1:4780]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// The address that clients dial, by host name or IP address; required when it listens on all
    /// addresses
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertised)]
    pub(crate) advertise: Vec<Address>,
    /// A queue to serve
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<Path>,
    /// A path at and below which any queue is created on first use
    #[arg(long, value_name = "PATH")]
    pub(crate) default: Vec<Path>,
    /// Its name for operators [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The publisher that is the home of a path and all below, the same at all publishers: the only
    /// one that gets jobs with idempotency keys. `/tenants/*=pa,pb` chooses one of several for each
    /// match [default: the path's only publisher]
    #[arg(long, value_name = "PATTERN=NAME", value_parser = parse_home)]
    pub(crate) home: Vec<(HomePattern, Vec<String>)>,
    /// fsync: an acknowledged job survives a power cut; none: it survives only a crash of this
    /// process
    #[arg(long, value_name = "LEVEL", value_parser = parse_durability)]
    pub(crate) durability: Option<Durability>,
    /// Bytes of a journal segment, at least 1 MiB [default: 64 MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) segment_bytes: Option<u64>,
    /// Bytes of recent payloads cached in memory; 0 for none [default: 256 MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) cache_bytes: Option<usize>,
    /// Bytes of memory for jobs, at least 16 MiB; beyond it new jobs are refused [default: half of
    /// the memory of the machine or the control group]
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_max: Option<u64>,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Start although acknowledged records are damaged. They and all later records are lost; their
    /// files are moved to lost/
    #[arg(long)]
    pub(crate) accept_loss: bool,
    #[command(flatten)]
    pub(crate) child: ChildFlag,
}

#[derive(Args, Debug)]
pub(crate) struct ChildFlag {
    /// Exit when standard input ends
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}
