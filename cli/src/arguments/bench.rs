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
    /// Jobs per second from producer to worker, with a publisher between them, each in a process of its own
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
    /// From the moment a job should be enqueued to the start of its handler, at a steady rate that waits for nothing
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
}

#[derive(Args, Debug)]
pub(crate) struct BenchSystem {
    /// Durability of the throwaway publisher
    #[arg(long, value_name = "LEVEL", value_parser = parse_durability, default_value = "fsync")]
    pub(crate) durability: Durability,
    /// Where the throwaway journal lives, in a folder of its own [default: the system's temporary directory]
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
