//! The command line.

mod access;
mod act;
#[cfg_attr(not(feature = "bench"), allow(dead_code, reason = "the command reports its absence"))]
mod batch;
mod bench;
mod cert;
mod context;
mod cron;
#[cfg_attr(not(feature = "demo"), allow(dead_code, reason = "the command reports its absence"))]
mod demo;
mod directory;
mod enqueue;
mod examples;
mod file_argument;
mod groups;
mod home;
mod journal;
mod kind;
mod limit;
mod queries;
mod service;
mod token;
mod values;
mod work;
mod workers;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::completion::Shell;
use crate::config::{ConfigOverrides, SystemFlags};
use crate::failure::UsageError;
use crate::logging::LogFormat;
use crate::time::parse_duration;

use access::POLICY;
pub(crate) use access::{Access, AccessAction, GroupsArgument, PolicyArgument, Who};
pub(crate) use act::{
    Cancel, Confirm, Dead, DeadAction, DryRun, Filters, Pause, Purge, Queue, QueueAction, Resume,
    Selection,
};
pub(crate) use batch::{Batch, BatchAction, OfBatch};
pub(crate) use bench::Bench;
#[cfg(feature = "bench")]
pub(crate) use bench::{
    BenchBacklog, BenchKeys, BenchLoad, BenchProducer, BenchRegistrar, BenchResolver, BenchSystem,
    BenchValues, BenchValuesProcess, BenchWorker, Measure,
};
pub(crate) use cert::{Cert, CertAction, IssueCertificate};
pub(crate) use context::{ContextAction, ContextCommand};
pub(crate) use cron::{AddSchedule, Cron, CronAction, OfSchedule};
pub(crate) use demo::{Demo, DemoWorker};
pub(crate) use directory::{Directory, DirectoryAction, Ls, PathTable, Resolve, Tree, Watch};
pub(crate) use enqueue::{Enqueue, parse_job_id};
pub(crate) use file_argument::{file_argument, file_text};
pub(crate) use groups::command;
pub(crate) use home::{Home, HomeAction};
pub(crate) use journal::{Journal, JournalAction};
pub(crate) use kind::CommandKind;
pub(crate) use limit::{Limit, LimitAction, SetLimit};
pub(crate) use queries::{Check, Job, Jobs, Stat, State, Tail, Top};
pub(crate) use service::{
    Drain, Forget, Publisher, PublisherAction, Resolver, ResolverAction, RunPublisher, RunReplica,
    Up,
};
pub(crate) use token::{Token, TokenAction, TokenFileArgument};
pub(crate) use values::{Publish, Subscribe, Value, ValueAction, Write};
pub(crate) use work::{TakeOrder, Work};
pub(crate) use workers::{WorkerSelection, Workers, WorkersAction};

/// Moves jobs from the programs that produce them to the workers that run them.
#[derive(Parser, Debug)]
#[command(name = "longshore", version = env!("LONGSHORE_VERSION"), max_term_width = 110)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Addresses of the resolver's replicas
    ///
    /// Default: $LONGSHORE_RESOLVERS, the context, the configuration file, 127.0.0.1:4770.
    #[arg(long, global = true, value_name = "HOST:PORT,…", value_delimiter = ',')]
    resolver: Option<Vec<String>>,
    /// The system, by its name in longshore context ls
    ///
    /// Default: $LONGSHORE_CONTEXT, the selected one.
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "resolver")]
    context: Option<String>,
    /// The configuration file
    ///
    /// Default: $LONGSHORE_CONFIG, $XDG_CONFIG_HOME/longshore/config.toml,
    /// ~/.config/longshore/config.toml, /etc/longshore/config.toml.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        value_parser = file_argument(),
        hide_short_help = true
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    system: SystemFlags,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The log filter for stderr: error, warn, info, debug, or per target like
    /// longshore_transport=trace
    #[arg(long, global = true, value_name = "FILTER", hide_short_help = true)]
    log: Option<String>,
    /// The format of log lines: text or json [default: text; json with --json]
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        value_parser = LogFormat::parse,
        hide_short_help = true
    )]
    log_format: Option<LogFormat>,
    /// How long the command may take, like 10s; exit code 3 after it
    ///
    /// Default: 30s for queries, 60s for acts on named things, none where it streams, waits or
    /// works through a pattern.
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

impl Global {
    /// The flags that override the configuration.
    pub(crate) fn config_overrides(&self, command: &Command) -> ConfigOverrides {
        ConfigOverrides {
            resolvers: self.resolver.clone(),
            context: self.context.clone(),
            system: self.system.clone(),
            config: self.config.clone(),
            ignore_selected: command.ignores_selected_context(),
            log: self.log.clone(),
            log_format: self.log_format,
        }
    }

    /// How long a command of this kind may take; none without a limit. An error if the kind has no
    /// use for a given timeout.
    pub(crate) fn timeout(&self, kind: CommandKind) -> Result<Option<Duration>, UsageError> {
        match self.timeout {
            Some(_) if !kind.accepts_timeout() => {
                let why = "--timeout has no meaning here: the command runs until it is stopped \
                           or its work is done, or needs no running system";
                Err(UsageError(why.to_owned()))
            }
            Some(limit) => Ok(Some(limit)),
            None => Ok(kind.default_timeout()),
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Hash the files of a folder while processes are killed, and check every result
    Demo(Demo),
    /// Run a whole system in this process, ready in a second; Ctrl-C stops it cleanly
    Up(Up),
    /// Run a replica of the resolver; show all replicas
    Resolver(Resolver),
    /// Run a publisher; show all publishers; drain or forget one
    Publisher(Publisher),
    /// Enqueue jobs
    Enqueue(Box<Enqueue>),
    /// Run a command for each job
    ///
    /// The payload is the command's standard input; its standard output is the result (at most
    /// 1 MiB). The last 8 KiB of its standard error are the error; if the job retains its result,
    /// they are retained on success too.
    ///
    /// Exit code 0 completes the job, 65 buries it, 75 releases it, any other is a failed attempt.
    /// LONGSHORE_JOB_ID, LONGSHORE_JOB_TOKEN, LONGSHORE_JOB_ATTEMPT and LONGSHORE_JOB_PATH are in
    /// its environment. When the job is cancelled, exceeds its run timeout or loses its lease, the
    /// command's process group gets SIGTERM, and SIGKILL 10 s later.
    Work(Work),
    /// List jobs
    Jobs(Jobs),
    /// Show one job with its payload, attempts, checkpoints, progress and result
    Job(Job),
    /// Stream the transitions of jobs
    Tail(Tail),
    /// Confirm prepared jobs, so that they run
    Confirm(Confirm),
    /// Cancel jobs that have not ended; running jobs are taken from their workers
    Cancel(Cancel),
    /// Manage failed jobs, the dead letters: list, group, show, retry (revive), drop
    Dead(Dead),
    /// Delete jobs that have ended
    Purge(Purge),
    /// Show jobs per state for each queue
    Stat(Stat),
    /// List queues, set defaults for their jobs, close and open them
    Queue(Queue),
    /// Limit the jobs that run at once, or start in a time
    Limit(Limit),
    /// Enqueue jobs by a calendar, or at a fixed distance
    Cron(Cron),
    /// Open batches of jobs, show them, close, cancel or retry them
    Batch(Batch),
    /// Stop deliveries of queues; new jobs are accepted and running jobs continue
    Pause(Pause),
    /// Resume deliveries of paused queues
    Resume(Resume),
    /// List workers, or stop and resume them
    Workers(Workers),
    /// Show what is published where: list, tree, resolve, watch, table
    #[command(visible_alias = "dir")]
    Directory(Directory),
    /// List which publisher is the home of which paths
    Home(Home),
    /// Publish live values, subscribe to them, write to them
    Value(Value),
    /// Show publishers, queues, workers and replicas live
    Top(Top),
    /// Check the health of every component, for monitoring
    Check(Check),
    /// Inspect, verify, dump or back up (copy) a publisher's data directory
    Journal(Journal),
    /// Show the effective configuration with the origin of each value
    Config {
        /// Print only errors; exit code 2 if there are any
        #[arg(long)]
        check: bool,
    },
    /// Name systems, and select the one that commands use
    Context(ContextCommand),
    /// Make an authority and certificates for TLS, and show certificates
    Cert(Cert),
    /// Create, list and revoke the tokens by which clients are known
    Token(Token),
    /// Show what a policy allows, and by which rule
    #[command(long_about = POLICY)]
    Access(Access),
    /// Print a shell's completions, which also complete paths, workers and contexts
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a man page for each command
    #[command(hide = true)]
    Man {
        /// The folder
        dir: PathBuf,
    },
    /// Measure a throwaway system or, with --resolver, a running one
    Bench(Bench),
    /// A worker of the demo
    #[command(hide = true)]
    DemoWorker(DemoWorker),
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
    fn each_command_has_a_schema_of_its_json() {
        fn add(command: &clap::Command, above: &str, names: &mut Vec<String>) {
            for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
                let name = format!("{above}{}", one.get_name());
                match one.has_subcommands() {
                    true => add(one, &format!("{name} "), names),
                    false => names.push(name),
                }
            }
        }
        let mut names = Vec::new();
        add(&CommandLine::command(), "", &mut names);
        // It prints a script.
        names.retain(|name| name != "completions");
        names.sort_unstable();
        assert_eq!(names, crate::schema::commands().collect::<Vec<_>>());
    }

    #[test]
    fn documented_command_lines_parse() {
        for line in [
            "longshore demo",
            "longshore --json up --replicas 1",
            "longshore enqueue /jobs/sha --lines",
            "longshore enqueue /jobs/sha handshake --priority -3 --delay 5m",
            "longshore enqueue /jobs/sha --lines --only 120-180,400-",
            "longshore work /jobs/sha --until-empty --concurrency 8 -- xargs -d \\n sha256sum --",
            "longshore jobs /jobs/sha --state completed --json",
            "longshore dead revive /jobs/** --reason worker_lost --rate 10",
            "longshore dead groups /jobs/** --older-than 1h",
            "longshore enqueue /jobs/a x --expires 2h --run-timeout 0s --backoff list:1s,5s \
             --keep 1h --prepare --header a=b",
            "longshore enqueue /jobs/a x --idempotency-key order-42 --idempotency-for 1h",
            "longshore enqueue /jobs/a x --unique=a --unique-until 10m --on-conflict replace",
            "longshore enqueue /jobs/a --lines --unique --unique-until start",
            "longshore enqueue /jobs/a x --latest a",
            "longshore work /jobs/a /jobs/b --order weighted --weights 3,1 -- true",
            "longshore tail /jobs/** --snapshot --count 3",
            "longshore pause /jobs/**",
            "longshore resume --clock",
            "longshore queue set /jobs/a --max-attempts 3 --keep-jobs 0 --keep-dead 30d",
            "longshore queue close /jobs/**",
            "longshore queue open /jobs/**",
            "longshore purge /jobs/** --state completed",
            "longshore resolver run --listen 127.0.0.1:0 --fresh",
            "longshore resolver status",
            "longshore resolver status --publishers",
            "longshore directory tree",
            "longshore directory tree /jobs --depth 2",
            "longshore directory watch /jobs/** /values/{a,b} --count 3 --json",
            "longshore directory table /jobs",
            "longshore home ls --json",
            "longshore limit ls --json",
            "longshore limit set smtp /mail --concurrency 5",
            "longshore limit set api /a/** --scope key --rate 100/s --burst 20 --concurrency 2",
            "longshore limit rm smtp",
            "longshore enqueue /jobs text --limit-key acme --cost 5",
            "longshore enqueue /jobs text --after 019a0000-0000-7000-8000-000000000001 \
             --after-end 1a2b3c4d:019a0000-0000-7000-8000-000000000002",
            "longshore batch new /imports monday --batch 01920f3e-5b7a-7fff-bfff-ffffffffffff",
            "longshore batch ls /imports --limit 5",
            "longshore batch show 01920f3e-5b7a-7fff-bfff-ffffffffffff --json",
            "longshore batch close 01920f3e-5b7a-7fff-bfff-ffffffffffff --dry-run",
            "longshore batch cancel 01920f3e-5b7a-7fff-bfff-ffffffffffff",
            "longshore batch retry 01920f3e-5b7a-7fff-bfff-ffffffffffff",
            "longshore enqueue /imports --batch 01920f3e-5b7a-7fff-bfff-ffffffffffff one",
            "longshore jobs --batch 01920f3e-5b7a-7fff-bfff-ffffffffffff",
            "longshore cron ls --json",
            "longshore cron add nightly /reports all --cron 30.3.*.*.* --zone Europe/Berlin",
            "longshore cron add poll /poll --every 5m --jitter 30s --overlap allow --missed all",
            "longshore cron add once /poll --every 1d --start 2026-12-01T00:00:00Z --version 3",
            "longshore cron add --file schedules.toml --prune shop- --dry-run",
            "longshore cron rm nightly --dry-run",
            "longshore cron pause nightly",
            "longshore cron resume nightly",
            "longshore cron run nightly --json",
            "longshore cron next nightly --count 3",
            "longshore publisher run --default / --home /shop=pa --home /tenants/*=pa,pb",
            "longshore bench e2e --jobs 500000 --size 256 --json",
            "longshore bench e2e --order-keys 10000 --limit-keys 10000 --fair-keys 100",
            "longshore bench latency --rate 1000 --seconds 10",
            "longshore bench backlog --jobs 10000000 --size 256 --churn 5 --json",
            "longshore value publish /values/a -5",
            "longshore value publish /values/a - --writable",
            "longshore value publish /values/a --lines --priority 3 --json",
            "longshore value subscribe /values/a --once",
            "longshore value subscribe /sys/publishers/* --count 3 --json",
            "longshore value write /values/a on --within 2s",
            "longshore workers ls",
            "longshore workers ls /jobs/** --json",
            "longshore workers quiet mail-* 3f2a91c0 --dry-run",
            "longshore workers quiet --all --json",
            "longshore workers quiet --all --wait",
            "longshore work /jobs/a --grace 5m -- true",
            "longshore workers resume mail-1",
            "longshore top --once --json",
            "longshore check --nagios",
            "longshore config --json",
            "longshore --config /etc/longshore/config.toml config --check",
            "longshore journal stat /data --json",
            "longshore journal verify /data",
            "longshore journal dump /data --from 3 --to 9 --payloads",
            "longshore journal copy /data /backup",
            "longshore cert ca",
            "longshore cert ca --dir tls --name ours --days 30 --json",
            "longshore cert issue worker-1 --host 10.0.0.5 --host a.test --uri urn:a --out /etc/tls",
            "longshore cert show ca.pem worker-1.pem --json",
            "longshore token create shop --expires 90d --file tokens.toml",
            "longshore token create shop --expires 2027-01-31 --json",
            "longshore token ls --file tokens.toml",
            "longshore token revoke shop mail --dry-run",
            "longshore access check token:shop enqueue /jobs/mail --policy policy.toml",
            "longshore access check anonymous resolve / --json",
            "longshore access check jwt:ann act /jobs --jwt-group ops --jwt-group shop",
            "longshore access show dns:worker-1.example.com",
            "longshore access show jwt:ann --jwt-group ops",
            "longshore access audit audit.1 audit.jsonl",
        ] {
            if let Err(error) = CommandLine::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn contradictory_arguments_are_a_usage_error() {
        for line in [
            "longshore",
            "longshore enqueue jobs text",
            "longshore enqueue /jobs text --lines",
            "longshore enqueue /jobs text --delay 5m --at 2026-11-20T21:30:00Z",
            "longshore work /jobs/[a] -- true",
            "longshore work /jobs",
            "longshore directory tree /jobs --depth 0",
            "longshore directory watch",
            "longshore directory table",
            "longshore home",
            "longshore publisher run --default / --home /shop",
            "longshore publisher run --default / --home shop=pa",
            "longshore jobs /jobs --state asleep",
            "longshore work /jobs --order weighted -- true",
            "longshore resume",
            "longshore queue set /jobs/a",
            "longshore enqueue /jobs text --prepare --wait",
            "longshore enqueue /jobs text --backoff often",
            "longshore enqueue /jobs text --idempotency-for 1h",
            "longshore enqueue /jobs --lines --idempotency-key order-42",
            "longshore enqueue /jobs text --unique-until start",
            "longshore enqueue /jobs text --cost 1001",
            "longshore enqueue /jobs text --after pa",
            "longshore cron add nightly /reports",
            "longshore cron add nightly /reports --cron a --every 5m",
            "longshore cron add nightly /reports --every 5m --zone UTC",
            "longshore cron add nightly /reports --every 5m --overlap wait",
            "longshore cron add nightly /reports --file a.toml",
            "longshore cron add --file a.toml --version 3",
            "longshore cron add nightly /reports --every 5m --prune a",
            "longshore cron next nightly --count 0",
            "longshore cron next nightly --count 101",
            "longshore limit set smtp /mail",
            "longshore limit set smtp /mail --burst 3 --concurrency 1",
            "longshore limit set smtp /mail --rate 100",
            "longshore limit set smtp /mail --concurrency 0",
            "longshore limit set smtp /mail --scope all --concurrency 1",
            "longshore enqueue /jobs text --on-conflict keep",
            "longshore enqueue /jobs text --unique=a --on-conflict ask",
            "longshore enqueue /jobs text --unique=a --unique-until never",
            "longshore enqueue /jobs text --unique=a --latest a",
            "longshore enqueue /jobs text --unique=",
            "longshore dead revive /jobs/** --reason boredom",
            "longshore value publish /values/a",
            "longshore value publish /values/a 5 --lines",
            "longshore value subscribe",
            "longshore value subscribe /values/a --once --count 3",
            "longshore value write /values/a",
            "longshore workers",
            "longshore resolver",
            "longshore publisher",
            "longshore value",
            "longshore queue",
            "longshore workers quiet",
            "longshore workers resume --dry-run",
            "longshore workers quiet mail-1 --all",
            "longshore workers quiet mail-1 --wait --dry-run",
            "longshore workers resume mail-1 --wait",
            "longshore work /jobs/a --grace soon -- true",
            "longshore journal verify",
            "longshore journal dump /data --from last",
            "longshore journal copy /data",
            "longshore cert",
            "longshore cert ca --days 0",
            "longshore cert issue",
            "longshore cert issue ../worker",
            "longshore cert issue ca",
            "longshore cert issue worker --host a.test:4770",
            "longshore cert issue worker --uri worker",
            "longshore cert issue worker --days 36501",
            "longshore cert show",
            "longshore token",
            "longshore token create",
            "longshore token create shop --expires soon",
            "longshore token revoke",
            "longshore access",
            "longshore access check shop enqueue /jobs",
            "longshore access check token:shop enque /jobs",
            "longshore access check token:shop enqueue jobs",
            "longshore access show",
            "longshore access audit",
        ] {
            let error = CommandLine::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
