//! Services, and the demo.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use longshore::protocol::Address;
use longshore::{Durability, Path};

use crate::config::{parse_address, parse_advertised, parse_durability};

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// The folder whose files are worked on [default: the dependencies that the Cargo.lock here
    /// names, as cargo has unpacked them]
    pub(crate) dir: Option<PathBuf>,
    /// Where the digests are written, in the format of sha256sum
    #[arg(long, value_name = "FILE", default_value = "digests.txt")]
    pub(crate) digests: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Up {
    /// Where the journal lives [default: $LONGSHORE_DATA, the configuration file,
    /// ~/.local/share/longshore]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// How many replicas of the resolver
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) replicas: u16,
    /// The port of the first replica; the others follow it
    #[arg(long, value_name = "PORT", default_value_t = crate::config::RESOLVER_PORT)]
    pub(crate) resolver_port: u16,
    /// The port of the publisher
    #[arg(long, value_name = "PORT", default_value_t = crate::config::PUBLISHER_PORT)]
    pub(crate) publisher_port: u16,
    /// Start although acknowledged records are damaged. They and all after them are lost: what is
    /// dropped goes to lost/
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Resolver {
    #[command(subcommand)]
    pub(crate) action: Option<ResolverAction>,
    /// Where to listen; port 0 picks one [default: 127.0.0.1:4770]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// What operators see [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A directory of this replica alone: it writes down there which publishers it knows [default:
    /// resolver-PORT in the data directory; with port 0 it remembers none]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where it serves its metrics, /sys/replicas/NAME [default: a free port of where it listens;
    /// resolver.metrics in the configuration file]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// This replica starts a new cluster: nobody can have published anything before
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) child: ChildFlag,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ResolverAction {
    /// What every replica says of itself: sizes in bytes, times since its start
    Status {
        /// Which publishers each one knows, how long they have been silent, and why they are
        /// missing
        #[arg(long)]
        publishers: bool,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum PublisherAction {
    /// A publisher is to be removed: it takes no new jobs, and says when it holds none
    Drain(Drain),
    /// A publisher that is missing is gone for good, and its jobs with it: report it no longer
    Forget {
        /// Its name, or its id, or the first eight digits of it
        name: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// Its name, or its id, or the first eight digits of it
    pub(crate) name: String,
    /// Wait until none of its jobs is left that has not ended
    #[arg(long, conflicts_with = "undo")]
    pub(crate) wait: bool,
    /// Take new jobs again
    #[arg(long)]
    pub(crate) undo: bool,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Publisher {
    #[command(subcommand)]
    pub(crate) action: Option<PublisherAction>,
    /// Where the journal lives [default: $LONGSHORE_DATA, the configuration file,
    /// ~/.local/share/longshore]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where to listen; port 0 picks one [default: 127.0.0.1:4780]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where others dial it, by host name or IP address; needed when it listens on all addresses
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertised)]
    pub(crate) advertise: Vec<Address>,
    /// A queue to serve
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<Path>,
    /// A path at and below which any queue is made on first use
    #[arg(long, value_name = "PATH")]
    pub(crate) default: Vec<Path>,
    /// What operators see [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The names of all publishers that are home to these queues, the same at each of them
    /// [default: this one alone]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) homes: Vec<String>,
    /// fsync: an acknowledged job survives a power cut; none: it survives this process only
    #[arg(long, value_name = "LEVEL", value_parser = parse_durability)]
    pub(crate) durability: Option<Durability>,
    /// Bytes of a journal segment, at least 1 MiB [default: 64 MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) segment_bytes: Option<u64>,
    /// Bytes of recent payloads that are kept in memory; 0 for none [default: 256 MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) cache_bytes: Option<usize>,
    /// Bytes of memory that jobs may take, at least 16 MiB; from there on new jobs are refused
    /// [default: half of what the machine, or the control group, has]
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_max: Option<u64>,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Start although acknowledged records are damaged. They and all after them are lost: what is
    /// dropped goes to lost/
    #[arg(long)]
    pub(crate) accept_loss: bool,
    #[command(flatten)]
    pub(crate) child: ChildFlag,
}

#[derive(Args, Debug)]
pub(crate) struct ChildFlag {
    /// End when standard input does
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}
