//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use longshore::{Durability, Glob, JobId, JobName, JobState, Path};

use crate::commands::enqueue::Ranges;
use crate::config::{Given, parse_address, parse_durability};
use crate::time::{parse_length, parse_moment};

/// Moves jobs from the programs that produce them to the workers that run them.
#[derive(Parser, Debug)]
#[command(name = "longshore", version, max_term_width = 110, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Where the resolver's replicas are [default: $LONGSHORE_RESOLVERS, the configuration file, 127.0.0.1:4770]
    #[arg(long, global = true, value_name = "HOST:PORT,…", value_delimiter = ',')]
    resolver: Option<Vec<String>>,
    /// The configuration file [default: $LONGSHORE_CONFIG, ~/.config/longshore/config.toml, /etc/longshore/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to log on stderr: error, warn, info, debug, or longshore_transport=trace and the like
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
}

impl Global {
    /// What it says about the configuration.
    pub(crate) fn given(&self) -> Given {
        Given {
            resolvers: self.resolver.clone(),
            config: self.config.clone(),
            log: self.log.clone(),
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// The main job, watched: one job per file of DIR, processes killed on the way, every result checked
    Demo(Demo),
    /// A whole system in this one process, ready in a second; Ctrl-C stops it cleanly
    Up(Up),
    /// One replica of the resolver as a service, or what the replicas say of themselves
    Resolver(Resolver),
    /// A publisher as a service: holds queues on its disk and pushes jobs to workers
    Publisher(Publisher),
    /// Hand in jobs
    Enqueue(Enqueue),
    /// Run a command for each job
    Work(Work),
    /// List the directory: the paths below PATH, or those that a pattern matches
    Ls(Ls),
    /// Which publishers serve a path
    Resolve(Resolve),
    /// Jobs per state of each queue
    Stat(Stat),
    /// List jobs
    Jobs(Jobs),
    /// One job, with its payload, error and result
    Job(Job),
    /// The dead letters: list, show, revive, drop
    Dead(Dead),
    /// Cancel jobs that have not ended; those that run are taken from their workers
    Cancel(Cancel),
    /// The health of every part, for monitors
    Check(Check),
    /// What is in force, and where each value came from
    Config,
    /// Measure a throwaway system or, with --resolver, a running one
    Bench(Bench),
    /// A worker of the demo
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// The producer of a measurement
    #[command(hide = true)]
    BenchProducer(BenchProducer),
    /// The worker of a measurement
    #[command(hide = true)]
    BenchWorker(BenchWorker),
}

impl Command {
    /// What is logged unless somebody asks for more or less. Services log what they do. What a library warns of, a command
    /// that ends says itself, as its error.
    pub(crate) fn usual_log(&self) -> &'static str {
        match self {
            Command::Publisher(_) | Command::Resolver(Resolver { action: None, .. }) => "info",
            Command::Up(_) | Command::Work(_) => "warn",
            _ => "error",
        }
    }

    /// True of the commands that can do nothing before a replica of the resolver answers.
    pub(crate) fn waits_for_a_resolver(&self) -> bool {
        use Command::{Cancel, Dead, Enqueue, Job, Jobs, Ls, Resolve, Stat, Work};
        matches!(
            self,
            Work(_)
                | Ls(_)
                | Resolve(_)
                | Enqueue(_)
                | Stat(_)
                | Jobs(_)
                | Job(_)
                | Dead(_)
                | Cancel(_)
        )
    }
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// The folder whose files are worked on [default: what cargo has unpacked of this project's dependencies]
    pub(crate) dir: Option<PathBuf>,
    /// Where the digests are written, in the format of sha256sum
    #[arg(long, value_name = "FILE", default_value = "digests.txt")]
    pub(crate) digests: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Up {
    /// Where the journal lives [default: $LONGSHORE_DATA, the configuration file, ~/.local/share/longshore]
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
    /// What every replica says of itself
    Status,
}

#[derive(Args, Debug)]
pub(crate) struct Publisher {
    /// Where the journal lives [default: $LONGSHORE_DATA, the configuration file, ~/.local/share/longshore]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where to listen; port 0 picks one [default: 127.0.0.1:4780]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where others dial it; needed when it listens on all addresses
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) advertise: Vec<SocketAddr>,
    /// A queue to serve
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<Path>,
    /// A path at and below which any queue is made on first use
    #[arg(long, value_name = "PATH")]
    pub(crate) default: Vec<Path>,
    /// What operators see [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// fsync: an acknowledged job survives a power cut; none: it survives this process only
    #[arg(long, value_name = "LEVEL", value_parser = parse_durability)]
    pub(crate) durability: Option<Durability>,
    /// Listen on an address that other machines can reach, without TLS
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Start although acknowledged records are damaged; what is dropped goes to a side file
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

#[derive(Args, Debug)]
pub(crate) struct Enqueue {
    /// The queue
    pub(crate) path: Path,
    /// The payload of one job
    #[arg(group = "payload")]
    pub(crate) text: Option<OsString>,
    /// One job per file, its contents the payload
    #[arg(long, value_name = "FILE", num_args = 1.., group = "payload")]
    pub(crate) file: Vec<PathBuf>,
    /// One job per line of standard input, without its newline
    #[arg(long, group = "payload")]
    pub(crate) lines: bool,
    /// One job per line of standard input: {"payload": "…" or any JSON, "id", "priority", "delay", "at", "max_attempts",
    /// "lease", "headers"}
    #[arg(long, group = "payload")]
    pub(crate) jsonl: bool,
    /// Only these lines or files, counted from 1: what an earlier run did not get acknowledged
    #[arg(long, value_name = "120-180,400-")]
    pub(crate) only: Option<Ranges>,
    /// The job's id; the same one again is the same job
    #[arg(long, value_name = "UUID", conflicts_with_all = ["file", "lines", "jsonl"])]
    pub(crate) id: Option<JobId>,
    /// Higher first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Not before so long from now, like 5m
    #[arg(long, value_name = "LENGTH", value_parser = parse_length, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Not before this time, like 2026-11-20T21:30:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) at: Option<u64>,
    /// Attempts before a job goes to the dead letters [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_attempts: Option<u16>,
    /// How long a delivery may go without renewal, 1s to 12h [default: 30s]
    #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
    pub(crate) lease: Option<Duration>,
    /// Wait until every job has ended; print the results; exit 1 unless all completed
    #[arg(long)]
    pub(crate) wait: bool,
}

impl Enqueue {
    /// True when there is one payload, not one for each file or line.
    pub(crate) fn is_one_job(&self) -> bool {
        self.file.is_empty() && !self.lines && !self.jsonl
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
The payload is the command's standard input, its standard output is the result (at most 1 MiB), the last 8 KiB of its
standard error are the error. Exit code 0 completes the job, 65 buries it, 75 gives it back, any other one is a failed
attempt. LONGSHORE_JOB_ID, LONGSHORE_JOB_TOKEN, LONGSHORE_JOB_ATTEMPT and LONGSHORE_JOB_PATH are in its environment. When the
job is cancelled or its lease is lost, its process group gets SIGTERM, and SIGKILL 10 s later.")]
pub(crate) struct Work {
    /// The queues to take jobs from, like /jobs/mail or '/jobs/**'
    pub(crate) pattern: Glob,
    /// Commands at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) concurrency: u16,
    /// End when nothing that matches is ready, running or awaiting a retry; exit 1 if any job died
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// What operators see [default: work-PID]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// A path, or a pattern like '/jobs/**' [default: /]
    pub(crate) pattern: Option<Glob>,
}

#[derive(Args, Debug)]
pub(crate) struct Resolve {
    /// The paths
    #[arg(required = true)]
    pub(crate) paths: Vec<Path>,
}

#[derive(Args, Debug)]
pub(crate) struct Stat {
    /// The queues [default: '/**']
    pub(crate) pattern: Option<Glob>,
}

#[derive(Args, Debug)]
pub(crate) struct Jobs {
    /// The queues
    pub(crate) pattern: Glob,
    /// Only jobs in this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    /// At most so many; 0 for all [default: 100; all with --json]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// The states of a job, as the command line knows them.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum State {
    Scheduled,
    Ready,
    Running,
    Completed,
    Dead,
    Cancelled,
}

impl From<State> for JobState {
    fn from(state: State) -> JobState {
        match state {
            State::Scheduled => JobState::Scheduled,
            State::Ready => JobState::Ready,
            State::Running => JobState::Running,
            State::Completed => JobState::Completed,
            State::Dead => JobState::Dead,
            State::Cancelled => JobState::Cancelled,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Job {
    /// A receipt, PUBLISHER:UUID, or a bare UUID
    pub(crate) id: JobName,
    /// Wait until it has ended; exit 1 unless it completed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Write the result's bytes, and nothing else
    #[arg(long, conflicts_with = "payload")]
    pub(crate) result: bool,
    /// Write the payload's bytes, and nothing else
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Dead {
    #[command(subcommand)]
    pub(crate) action: DeadAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeadAction {
    /// List dead jobs, and why they died
    Ls {
        /// The queues [default: '/**']
        pattern: Option<Glob>,
        /// At most so many; 0 for all [default: 100; all with --json]
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Show one, with its payload and error
    Show {
        /// A receipt, PUBLISHER:UUID, or a bare UUID
        id: JobName,
    },
    /// Make dead jobs ready again, with all their attempts
    Revive(Selected),
    /// Delete dead jobs
    Drop(Selected),
}

#[derive(Args, Debug)]
pub(crate) struct Selected {
    /// Receipts or ids, or one pattern of queues like '/jobs/**'
    #[arg(required = true, value_name = "ID… or PATTERN")]
    pub(crate) which: Vec<String>,
    /// Only count them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) selected: Selected,
    /// With a pattern: only jobs in this state
    #[arg(long)]
    pub(crate) state: Option<State>,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// One line and the exit codes of Nagios: 0 ok, 1 warning, 2 critical, 3 unknown
    #[arg(long)]
    pub(crate) nagios: bool,
}

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_words_of_the_readme_are_understood() {
        for line in [
            "longshore demo",
            "longshore --json up --replicas 1",
            "longshore enqueue /jobs/sha --lines",
            "longshore enqueue /jobs/sha hello --priority -3 --delay 5m",
            "longshore enqueue /jobs/sha --lines --only 120-180,400-",
            "longshore work /jobs/sha --until-empty --concurrency 8 -- xargs -d \\n sha256sum --",
            "longshore jobs /jobs/sha --state completed --json",
            "longshore dead revive /jobs/**",
            "longshore resolver --listen 127.0.0.1:0 --fresh",
            "longshore resolver status",
            "longshore bench e2e --jobs 500000 --size 256 --json",
            "longshore bench latency --rate 1000 --seconds 10",
            "longshore check --nagios",
        ] {
            if let Err(error) = CommandLine::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_wrong_usage() {
        for line in [
            "longshore",
            "longshore enqueue jobs text",
            "longshore enqueue /jobs text --lines",
            "longshore enqueue /jobs text --delay 5m --at 2026-11-20T21:30:00Z",
            "longshore work /jobs/[a] -- true",
            "longshore work /jobs",
            "longshore jobs /jobs --state asleep",
        ] {
            let error = CommandLine::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
