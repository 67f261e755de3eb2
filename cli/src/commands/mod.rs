//! The commands, one file each.

mod access;
mod act;
mod audit_log;
mod batch;
#[cfg(feature = "bench")]
mod bench;
mod cert;
pub(crate) mod check;
mod config;
mod contexts;
mod cron;
mod dead;
#[cfg(feature = "demo")]
mod demo;
mod dev_tls;
mod drain;
pub(crate) mod enqueue;
mod forget;
mod home;
mod job;
mod job_graph;
mod job_view;
mod jobs;
mod journal;
mod journal_copies;
mod known_publishers;
mod limit;
mod ls;
mod missing_job;
mod pause;
mod publish;
mod publisher;
mod publisher_status;
mod queue;
mod quiet;
mod remaining_jobs;
mod replica_metrics;
mod resolve;
mod resolver;
mod stat;
mod subscribe;
pub(crate) mod sys;
mod table;
mod tail;
mod token;
#[cfg(feature = "top")]
mod top;
mod tree;
mod up;
mod value_text;
mod waiting_reasons;
mod watch;
mod work;
mod workers;
mod write;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use longshore::{
    AuditLog, Cluster, LinkOptions, MemoryBounds, MissingPublisher, PublisherAnswers,
    PublisherInfo, Queues, ReadClient, ReplicaError, ReplicaFailure, ResolverTiming, TlsAcceptor,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::access_rules::AccessRules;
use crate::arguments::{self, Command, CommandKind, Directory, DirectoryAction, ValueAction};
use crate::completion;
use crate::config::{Config, ConfigOverrides, Problem, Setting};
use crate::deadline::Deadline;
use crate::failure::{AlreadyReported, Failure, FailureKind, UsageError};
use crate::logging::LogFilter;
use crate::output::Output;
use crate::time::show_duration;
use crate::tls::Tls;

/// The memory bounds of a service's links as JSON.
fn memory_json(bounds: &MemoryBounds) -> Value {
    json!({
        "received_bytes": bounds.received(), "unread_link_bytes": bounds.unread,
        "links": bounds.links, "total_bytes": bounds.total(),
    })
}

/// Configuration and output, shared by all commands.
pub(crate) struct Context {
    pub(crate) config: Config,
    /// What is wrong with the configuration, for the commands that run nevertheless.
    pub(crate) problems: Vec<Problem>,
    pub(crate) output: Output,
    /// The command line's settings, for services that reload the configuration.
    pub(crate) overrides: ConfigOverrides,
    pub(crate) log: LogFilter,
    /// When the command times out.
    pub(crate) deadline: Deadline,
    /// A replica that is silent is given up within seconds.
    pub(crate) links_within_seconds: bool,
    /// The TLS of its links.
    pub(crate) tls: Tls,
    /// The rules of its listeners.
    pub(crate) rules: AccessRules,
    /// Their audit log.
    pub(crate) audit: AuditLog,
}

impl Context {
    /// The configured resolver.
    pub(crate) fn cluster(&self) -> Cluster {
        let mut cluster = self.tls.cluster(&self.config);
        if self.links_within_seconds {
            link_within_seconds(&mut cluster.timing);
        }
        cluster
    }

    /// The system that the command acts on, for questions: its context and its replicas.
    pub(crate) fn system(&self) -> String {
        let replicas = self.config.resolvers.value.join(", ");
        match &self.config.context.value {
            Some(name) => format!("context {name} ({replicas})"),
            None => format!("the resolver {replicas}"),
        }
    }

    /// TLS for a listener at this address; none without TLS.
    pub(crate) fn acceptor(&self, listen: SocketAddr) -> Result<Option<TlsAcceptor>, UsageError> {
        let checked =
            self.config.tls.check_listener(listen, self.config.access.policy.value.is_some());
        checked.map_err(|why| UsageError(format!("{listen}: {why}")))?;
        self.tls.acceptor()
    }

    /// A client for its directory.
    pub(crate) fn read_client(&self) -> ReadClient {
        ReadClient::builder().name("longshore").connect(self.cluster())
    }

    /// A client for its queues.
    pub(crate) fn queues(&self) -> Queues {
        Queues::connect(self.cluster())
    }

    /// A client for the queues of these publishers only.
    pub(crate) fn queues_of(&self, publishers: impl IntoIterator<Item = PublisherInfo>) -> Queues {
        let link = self.cluster().link_options(LinkOptions::default());
        Queues::builder().link(link).to_publishers(publishers)
    }
}

/// How long a one-shot command tries to reach a replica.
const CONNECT_FOR: Duration = Duration::from_millis(1_500);
const CONNECT_RETRY: Duration = Duration::from_millis(250);
/// The most that each step of a try may take. A replica that accepts a connection and is silent, as
/// a stopped process is, is reported within 3 s, as one that refuses it.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Shortens how long a link to a replica may take; then the next replica is tried.
fn link_within_seconds(timing: &mut ResolverTiming) {
    timing.connect_timeout = timing.connect_timeout.min(CONNECT_MAX);
    timing.handshake_timeout = timing.handshake_timeout.min(ANSWER_MAX);
}

/// A client that asks each replica for its status, and waits for the answers for seconds only.
fn prober(mut cluster: Cluster) -> ReadClient {
    link_within_seconds(&mut cluster.timing);
    cluster.timing.request_timeout_min = cluster.timing.request_timeout_min.min(ANSWER_MAX);
    ReadClient::builder().name("longshore").connect(cluster)
}

/// Asks each replica for its status; none if one answers, or else each replica's reason.
async fn reasons(client: &ReadClient) -> Option<Vec<(String, ReplicaError)>> {
    let replicas = client.replica_status().await.into_iter();
    replicas.map(|(replica, status)| status.err().map(|why| (replica, why))).collect()
}

/// Returns an error with each replica's reason if none answers, at once if all refuse the client:
/// no wait changes who it is. Never returns once one has answered.
async fn unreachable(cluster: Cluster) -> anyhow::Error {
    let (began, client) = (Instant::now(), prober(cluster));
    loop {
        let Some(replicas) = reasons(&client).await else { return std::future::pending().await };
        if let Some(refused) = refused_by_all(&replicas) {
            return refused;
        }
        if began.elapsed() >= CONNECT_FOR {
            return no_replica("can be reached", &replicas);
        }
        tokio::time::sleep(CONNECT_RETRY).await;
    }
}

/// The error of a client whom every replica refuses, at each of its addresses.
fn refused_by_all(replicas: &[(String, ReplicaError)]) -> Option<anyhow::Error> {
    let all = !replicas.is_empty() && replicas.iter().all(|(_, why)| why.refuses_client());
    all.then(|| no_replica("accepts this client", replicas))
}

fn no_replica(does: &str, replicas: &[(String, ReplicaError)]) -> anyhow::Error {
    let why: String =
        replicas.iter().map(|(replica, why)| format!("\n  {replica}: {why}")).collect();
    let hint = resolver_hint(replicas);
    let message = format!("no replica of the resolver {does}:{why}");
    Failure::new(FailureKind::Unreachable, message).with_hint(hint).into()
}

/// The remedy for replicas that cannot be reached for these reasons.
fn resolver_hint(replicas: &[(String, ReplicaError)]) -> &'static str {
    match replicas.iter().any(|(_, why)| why.concerns_identity()) {
        true => {
            "--tls-ca FILE names who signs the servers' certificates; --tls-certificate and \
             --tls-key, or --token-file, who this client is"
        }
        false => "longshore up starts one here; --resolver HOST:PORT,… names another",
    }
}

/// How long a command waits for the resolver before it prints that it does.
const SILENT_WAIT_MAX: Duration = Duration::from_millis(750);

/// Prints once what a command waits for, if no replica answers. The command itself continues with
/// its own timeout; but one that is no service ends with the error that this returns if every
/// replica refuses the client.
async fn report_wait_for_resolver(cluster: Cluster, is_service: bool) -> anyhow::Error {
    tokio::time::sleep(SILENT_WAIT_MAX).await;
    let replicas = reasons(&prober(cluster)).await.unwrap_or_default();
    if let Some(refused) = refused_by_all(&replicas).filter(|_| !is_service) {
        return refused;
    }
    for (replica, why) in &replicas {
        report!("waiting for the resolver at {replica}: {why}");
    }
    if !replicas.is_empty() {
        report!("{}", resolver_hint(&replicas));
    }
    std::future::pending().await
}

/// Runs one command.
pub(crate) async fn run(command: Command, mut context: Context) -> anyhow::Result<()> {
    context.links_within_seconds = command.is_one_shot();
    let fails_without_resolver = command.fails_without_resolver();
    let unreachable = unreachable(context.cluster());
    tokio::spawn(context.tls.clone().keep_fresh());
    tokio::spawn(context.rules.clone().keep_fresh());
    let waits_for_resolver = command.waits_for_resolver();
    let is_service = command.kind() == CommandKind::Service;
    let refused = report_wait_for_resolver(context.cluster(), is_service);
    let deadline = context.deadline.clone();
    let changes = command.changes();
    // It stops reading and reports what was acknowledged.
    let stops_itself = matches!(command, Command::Enqueue(_));
    tokio::select! {
        done = Box::pin(run_command(command, context)) => done,
        why = unreachable, if fails_without_resolver => Err(why),
        why = refused, if waits_for_resolver => Err(why),
        limit = deadline.passed(), if !stops_itself => Err(timed_out(limit, changes).into()),
    }
}

const TIMEOUT_HINT: &str = "--timeout DURATION allows more";

fn timed_out(limit: Duration, changes: bool) -> Failure {
    let limit = show_duration(limit);
    let message = match changes {
        true => format!("not done within {limit}; some of it may have been done"),
        false => format!("no complete answer within {limit}"),
    };
    Failure::new(FailureKind::TimedOut, message).with_hint(TIMEOUT_HINT)
}

async fn run_command(command: Command, mut context: Context) -> anyhow::Result<()> {
    match command {
        Command::Up(arguments) => up::run(arguments, context).await,
        Command::Resolver(arguments) => resolver::run(arguments, context).await,
        Command::Publisher(arguments) => publisher::run(arguments, context).await,
        Command::Work(arguments) => work::run(arguments, context).await,
        Command::Directory(Directory { action }) => match action {
            DirectoryAction::Ls(arguments) => ls::run(arguments, context).await,
            DirectoryAction::Tree(arguments) => tree::run(arguments, context).await,
            DirectoryAction::Watch(arguments) => watch::run(arguments, context).await,
            DirectoryAction::Table(arguments) => table::run(arguments, context).await,
            DirectoryAction::Resolve(arguments) => resolve::run(arguments, context).await,
        },
        Command::Home(arguments) => home::run(arguments, context).await,
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => demo::run(arguments, context).await,
        Command::Enqueue(arguments) => enqueue::run(*arguments, context).await,
        Command::Stat(arguments) => stat::run(arguments, context).await,
        Command::Jobs(arguments) => jobs::run(arguments, context).await,
        Command::Job(arguments) => job::run(arguments, context).await,
        Command::Dead(arguments) => dead::run(arguments, context).await,
        Command::Confirm(arguments) => act::confirm(arguments, context).await,
        Command::Cancel(arguments) => act::cancel(arguments, context).await,
        Command::Purge(arguments) => act::purge(arguments, context).await,
        Command::Pause(arguments) => pause::pause(arguments, context).await,
        Command::Resume(arguments) => pause::resume(arguments, context).await,
        Command::Queue(arguments) => queue::run(arguments, context).await,
        Command::Limit(arguments) => limit::run(arguments, context).await,
        Command::Cron(arguments) => cron::run(arguments, context).await,
        Command::Batch(arguments) => batch::run(arguments, context).await,
        Command::Tail(arguments) => tail::run(arguments, context).await,
        Command::Value(arguments::Value { action }) => match action {
            ValueAction::Publish(arguments) => publish::run(arguments, context).await,
            ValueAction::Subscribe(arguments) => subscribe::run(arguments, context).await,
            ValueAction::Write(arguments) => write::run(arguments, context).await,
        },
        Command::Workers(arguments) => workers::run(arguments, context).await,
        #[cfg(feature = "top")]
        Command::Top(arguments) => top::run(arguments, context).await,
        Command::Check(arguments) => check::run(arguments, context).await,
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => bench::run(arguments, context).await,
        #[cfg(feature = "demo")]
        Command::DemoWorker(arguments) => demo::worker::run(arguments, context).await,
        Command::Journal(arguments) => journal::run(arguments, context).await,
        Command::Config { check } => config::run(check, context),
        Command::Context(arguments) => contexts::run(arguments, context),
        Command::Cert(arguments) => cert::run(arguments, context),
        Command::Token(arguments) => token::run(arguments, context),
        Command::Access(arguments) => access::run(arguments, context),
        Command::Completions { shell } => completion::print_script(shell, &mut context.output),
        Command::Man { dir } => completion::write_man_pages(&dir),
        #[cfg(not(all(feature = "bench", feature = "demo", feature = "top")))]
        _ => anyhow::bail!(
            "this build is without the command: build longshore with its features bench, demo and \
             top, which are its defaults"
        ),
    }
}

/// The file that a command is given, or the configured one; or the error that names both ways.
fn named_file(
    given: &Option<PathBuf>,
    configured: &Setting<Option<PathBuf>>,
    flag: &str,
    key: &str,
    context: &Context,
) -> anyhow::Result<PathBuf> {
    if let Some(file) = given.as_ref().or(configured.value.as_ref()) {
        return Ok(file.clone());
    }
    Err(match context.problems.first() {
        Some(problem) => Failure::new(FailureKind::Configuration, &problem.message).into(),
        None => {
            UsageError(format!("name the file with {flag}, or set {key} in the configuration file"))
                .into()
        }
    })
}

/// Reports what is missing in the answers, and fails if anything is: for what needs all of them,
/// and for an act that has changed nothing.
pub(crate) fn require_whole<T>(gathered: &PublisherAnswers<T>) -> anyhow::Result<()> {
    require_confirmed(gathered, false)
}

/// Reports what is missing in the answers of an act, and fails if anything is. Without a dry run it
/// also fails if there may be publishers that were not asked: those have done nothing.
pub(crate) fn require_confirmed<T>(
    gathered: &PublisherAnswers<T>,
    dry_run: bool,
) -> anyhow::Result<()> {
    if warn_of_missing(&gathered.missing, gathered.complete, &gathered.silent_replicas) {
        return Err(AlreadyReported.into());
    }
    anyhow::ensure!(gathered.complete || dry_run, "not every publisher is known: run it again");
    Ok(())
}

/// Warns that a service could not print that it is ready. It goes on: its clients do not read that.
fn warn_if_unprinted(printed: Result<(), impl std::fmt::Display>) {
    if let Err(why) = printed {
        report_warning!("cannot write to standard output: {why}");
    }
}

/// Warns that the directory may be incomplete.
pub(crate) fn warn_if_incomplete(complete: bool) {
    if !complete {
        report!("the resolver is still warming up: there may be more");
    }
}

/// Reports publishers that did not answer. True if there are any.
pub(crate) fn warn_of_missing(
    missing: &[MissingPublisher],
    complete: bool,
    silent_replicas: &[ReplicaFailure],
) -> bool {
    for MissingPublisher { publisher, why, .. } in missing {
        report_error!(
            "publisher {} ({}) did not answer: {why}",
            publisher.name,
            publisher.id.prefix()
        );
    }
    if !complete {
        report!(
            "the resolver is still warming up, or did not list the missing publishers: there may \
             be publishers that were not asked"
        );
    }
    for failure in silent_replicas {
        report_warning!("a missing publisher may not be listed here: replica {failure}");
    }
    !missing.is_empty()
}

/// Publishers that did not answer, as JSON.
pub(crate) fn missing_json(missing: &[MissingPublisher]) -> Vec<Value> {
    let one = |MissingPublisher { publisher, why, .. }: &MissingPublisher| {
        let id = publisher.id.to_string();
        json!({ "publisher": id, "name": publisher.name, "error": why })
    };
    missing.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_replica_is_unreachable_within_three_seconds() {
        // The system accepts connections for it; nothing answers them.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let replica = silent.local_addr().unwrap().to_string();
        let began = Instant::now();
        let why = unreachable(Cluster::new([replica.as_str()])).await.to_string();
        assert!(began.elapsed() <= Duration::from_secs(3), "{:?}", began.elapsed());
        assert!(why.contains(&replica), "{why}");
    }
}
