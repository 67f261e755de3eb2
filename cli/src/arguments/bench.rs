//! Measurements, and the processes started by them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use longshore::{Durability, Path};

use crate::config::parse_durability;

#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) measure: Measure,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Measure {
    /// Jobs per second from producer over publisher to worker, each a separate process
    E2e {
        /// Number of jobs
        #[arg(
            long,
            value_name = "N",
            default_value_t = 200_000,
            value_parser = clap::value_parser!(u64).range(1..)
        )]
        jobs: u64,
        /// Payload bytes of each job
        #[arg(
            long,
            value_name = "BYTES",
            default_value_t = 256,
            value_parser = clap::value_parser!(u32).range(0..=16 * 1024 * 1024)
        )]
        size: u32,
        #[command(flatten)]
        keys: BenchKeys,
        #[command(flatten)]
        system: BenchSystem,
    },
    /// Latency from a job's scheduled enqueue time to the start of its handler, at a fixed rate
    /// (open loop)
    Latency {
        /// Jobs per second
        #[arg(
            long,
            value_name = "N",
            default_value_t = 1_000,
            value_parser = clap::value_parser!(u64).range(1..=1_000_000)
        )]
        rate: u64,
        /// Duration of the measurement
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 10,
            value_parser = clap::value_parser!(u64).range(1..=3_600)
        )]
        seconds: u64,
        /// Payload bytes of each job
        #[arg(
            long,
            value_name = "BYTES",
            default_value_t = 256,
            value_parser = clap::value_parser!(u32).range(16..=16 * 1024 * 1024)
        )]
        size: u32,
        #[command(flatten)]
        system: BenchSystem,
    },
    /// The cost of a long queue: memory, CPU time per job, disk, compaction, recovery; compared
    /// with a queue of 10,000
    ///
    /// Starts two throwaway publishers: one with 10,000 waiting jobs, the other with --jobs. Costs
    /// are the CPU time of each publisher's process, measured in alternation. The queue retains no
    /// ended jobs (`--keep-jobs 0`), so the journal can drop a completed job at once. The
    /// publishers have a payload cache of --cache-bytes, which counts as memory of the jobs; the
    /// page cache of the long journal is dropped before costs are measured.
    Backlog(BenchBacklog),
    /// A resolver replica: paths registered, resolved and listed per second, memory per path,
    /// latency for other clients
    ///
    /// Starts a throwaway replica and a publisher that registers --paths paths of 30 bytes, 1,000
    /// below each parent; this process reads. During registration, and while the killed publisher's
    /// paths expire, another client resolves one path every 5 ms; each request is timed from its
    /// schedule (open loop).
    Resolver(BenchResolver),
    /// Updates of live values per second from one publisher to one subscriber, and the latency of a
    /// single update
    ///
    /// The publisher commits an update of every path at a time and flushes so often that none is
    /// conflated; updates lost to conflation are reported. Then it sends single updates at a fixed
    /// rate (open loop); lost ones have no latency and are reported, too.
    Values(BenchValues),
    /// The producer of a measurement
    #[command(hide = true)]
    Producer(BenchProducer),
    /// The worker of a measurement
    #[command(hide = true)]
    Worker(BenchWorker),
    /// The producer and the worker of a long queue
    #[command(hide = true)]
    Load(BenchLoad),
    /// A publisher of many paths
    #[command(hide = true)]
    Registrar(BenchRegistrar),
    /// A publisher of live values
    #[command(hide = true)]
    ValuePublisher(BenchValuesProcess),
    /// A subscriber of live values
    #[command(hide = true)]
    ValueSubscriber(BenchValuesProcess),
}

#[derive(Args, Debug)]
pub(crate) struct BenchBacklog {
    /// Number of waiting jobs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(10_000..)
    )]
    pub(crate) jobs: u64,
    /// Payload bytes of each job
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(0..=16 * 1024 * 1024)
    )]
    pub(crate) size: u32,
    /// Jobs that pass through the long queue, as a multiple of --jobs
    #[arg(
        long,
        value_name = "TIMES",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=1_000)
    )]
    pub(crate) churn: u64,
    /// Duration of each measurement of commits
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3_600)
    )]
    pub(crate) seconds: u64,
    /// Bytes of a journal segment of the throwaway publishers
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 64 * 1024 * 1024,
        value_parser = clap::value_parser!(u64).range(1024 * 1024..)
    )]
    pub(crate) segment_bytes: u64,
    /// Bytes of recent payloads that the throwaway publishers cache in memory
    #[arg(long, value_name = "BYTES", default_value_t = 16 * 1024 * 1024)]
    pub(crate) cache_bytes: u64,
    #[command(flatten)]
    pub(crate) system: BenchSystem,
}

#[derive(Args, Debug)]
pub(crate) struct BenchResolver {
    /// Number of paths
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1_000..=10_000_000)
    )]
    pub(crate) paths: u64,
}

#[derive(Args, Debug)]
pub(crate) struct BenchValues {
    /// Bytes of each value; a value of 8 bytes is a number
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(8..=64 * 1024)
    )]
    pub(crate) size: u32,
    /// Number of values
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub(crate) paths: u32,
    /// Duration of each measurement
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=3_600)
    )]
    pub(crate) seconds: u64,
    /// Single updates per second
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub(crate) rate: u64,
}

/// Arguments of the publisher and the subscriber process of a values measurement.
#[derive(Args, Debug)]
pub(crate) struct BenchValuesProcess {
    /// The parent of all values.
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) paths: u32,
    #[arg(long)]
    pub(crate) size: u32,
    /// Conflate updates that the subscriber is too slow for, instead of dropping the oldest.
    #[arg(long)]
    pub(crate) conflate: bool,
}

/// A process that registers paths, driven over its standard input.
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
    /// Parent directory of the throwaway journal [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchProducer {
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) jobs: u64,
    #[arg(long)]
    pub(crate) size: u32,
    /// Jobs per second; none: as fast as they are accepted.
    #[arg(long)]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) keys: BenchKeys,
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
    /// Payloads begin with their scheduled send time.
    #[arg(long)]
    pub(crate) timed: bool,
}

/// A producer and a worker in one process, driven over its standard input.
#[derive(Args, Debug)]
pub(crate) struct BenchLoad {
    pub(crate) path: Path,
    #[arg(long)]
    pub(crate) size: u32,
    #[arg(long)]
    pub(crate) concurrency: usize,
    #[arg(long)]
    pub(crate) prefetch: usize,
    /// The largest number of jobs enqueued but not yet completed while jobs pass through.
    #[arg(long)]
    pub(crate) ahead: u64,
}

/// Keys of the jobs of a measurement.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BenchKeys {
    /// Each job has one of N order keys; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) order_keys: u64,
    /// Each job has one of N limit keys, of which ten jobs run at once; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) limit_keys: u64,
    /// Each job has one of N fair keys; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) fair_keys: u64,
}
