//! Measurements, and the processes that they and the demo start.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use longshore::{Durability, Glob, Path};

use crate::config::parse_durability;

#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) measure: Measure,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Measure {
    /// Jobs per second from producer to worker, with a publisher between them, each in a process of
    /// its own
    E2e {
        /// How many jobs
        #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
        jobs: u64,
        /// Bytes of payload of each
        #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=16 * 1024 * 1024))]
        size: u32,
        #[command(flatten)]
        system: BenchSystem,
    },
    /// From the moment a job should be enqueued to the start of its handler, at a steady rate that
    /// waits for nothing
    Latency {
        /// Jobs per second
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        rate: u64,
        /// For how long
        #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        seconds: u64,
        /// Bytes of payload of each
        #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=16 * 1024 * 1024))]
        size: u32,
        #[command(flatten)]
        system: BenchSystem,
    },
    /// What a long queue costs: memory, time of a job, disk, cleaning, recovery; compared with a
    /// queue of 10,000
    ///
    /// Two throwaway publishers are started; one keeps 10,000 jobs waiting, the other --jobs of
    /// them. Costs are the processor time of a publisher's process, measured at both in turns. The
    /// queue keeps no ended jobs (`--keep-jobs 0`), so that what has passed is dead for the journal
    /// at once. The publishers have a payload cache of --cache-bytes, which counts as memory of the
    /// jobs; the system's page cache of the long journal is dropped before costs are measured.
    Backlog(BenchBacklog),
    /// What a resolver replica does: paths registered, resolved and listed a second, memory of a
    /// path, and what others notice
    ///
    /// A throwaway replica, and a publisher that registers --paths paths of 30 bytes, 1,000 below
    /// each parent, are processes of their own; this one reads. Beside registering, and while the
    /// killed publisher's paths expire, somebody else asks about one path every 5 ms.
    Resolver(BenchResolver),
    /// Updates of live values per second from one publisher to one subscriber, and how long a
    /// single update takes
    ///
    /// The publisher commits an update of every path at a time, and flushes so often that none is
    /// conflated: what was lost to conflation is told. Single updates then go out at a steady rate
    /// that waits for nothing.
    Values(BenchValues),
}

#[derive(Args, Debug)]
pub(crate) struct BenchBacklog {
    /// How many jobs wait
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10_000..))]
    pub(crate) jobs: u64,
    /// Bytes of payload of each
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=16 * 1024 * 1024))]
    pub(crate) size: u32,
    /// How many jobs pass through the long queue, in times of --jobs
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) churn: u64,
    /// How long commits are measured at a time
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,
    /// Bytes of a journal segment of the throwaway publishers
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024 * 1024, value_parser = clap::value_parser!(u64).range(1024 * 1024..))]
    pub(crate) segment_bytes: u64,
    /// Bytes of recent payloads that they keep in memory
    #[arg(long, value_name = "BYTES", default_value_t = 16 * 1024 * 1024)]
    pub(crate) cache_bytes: u64,
    #[command(flatten)]
    pub(crate) system: BenchSystem,
}

#[derive(Args, Debug)]
pub(crate) struct BenchResolver {
    /// How many paths
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    pub(crate) paths: u64,
}

#[derive(Args, Debug)]
pub(crate) struct BenchValues {
    /// Bytes of each value; of 8 it is a number
    #[arg(long, value_name = "BYTES", default_value_t = 8, value_parser = clap::value_parser!(u32).range(8..=64 * 1024))]
    pub(crate) size: u32,
    /// How many values
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) paths: u32,
    /// For how long each is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,
    /// Single updates per second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) rate: u64,
}

/// Values below a path: what the publisher and the subscriber of a measurement agree on.
#[derive(Args, Debug)]
pub(crate) struct BenchValuesPart {
    /// Above them
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) paths: u32,
    #[arg(long)]
    pub(crate) size: u32,
    /// What may become of updates that the subscriber is too slow for: they are conflated, instead
    /// of the oldest left out
    #[arg(long)]
    pub(crate) conflate: bool,
}

/// Registers paths, driven over its standard input.
#[derive(Args, Debug)]
pub(crate) struct BenchRegistrar {
    #[arg(long)]
    pub(crate) paths: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchSystem {
    /// Durability of the throwaway publisher
    #[arg(long, value_name = "LEVEL", value_parser = parse_durability, default_value = "fsync")]
    pub(crate) durability: Durability,
    /// Where the throwaway journal lives, in a folder of its own [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct DemoWorker {
    pub(crate) pattern: Glob,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) concurrency: usize,
}

#[derive(Args, Debug)]
pub(crate) struct BenchProducer {
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) jobs: u64,
    #[arg(long)]
    pub(crate) size: u32,
    /// Jobs per second; none: as fast as they are taken
    #[arg(long)]
    pub(crate) rate: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchWorker {
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) jobs: u64,
    #[arg(long)]
    pub(crate) concurrency: usize,
    #[arg(long)]
    pub(crate) prefetch: usize,
    /// Payloads begin with the moment that they were meant to be sent
    #[arg(long)]
    pub(crate) timed: bool,
}

/// A producer and a worker in one, driven over its standard input.
#[derive(Args, Debug)]
pub(crate) struct BenchLoad {
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) size: u32,
    #[arg(long)]
    pub(crate) concurrency: usize,
    #[arg(long)]
    pub(crate) prefetch: usize,
    /// Jobs that may have been enqueued and not come out again while jobs pass through
    #[arg(long)]
    pub(crate) ahead: u64,
}
