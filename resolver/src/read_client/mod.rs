//! The read client: reads from any replica that answers.

mod answer;
mod core;
mod known_publishers;
mod links;
mod missing_paths;
mod path_view;
mod task;
mod watch;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod socket_test;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use longshore_protocol::limits::RESOLVER_GLOBS_MAX;
use longshore_protocol::messages::resolver::{
    FromReplica, KnownPublisher, ReplicaStatus, Resolve, ToReplica,
};
use longshore_protocol::{Glob, Path, PublisherId, Role, SessionId, check_name};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

pub use answer::{Listing, PathAnswer, PathTable, Publication, ReadError, Resolution};
pub use known_publishers::ClusterPublishers;
pub use path_view::{PathEvent, WATCHED_PATHS_MAX, WatchEnded};
pub use watch::{PathWatch, PublisherSet, PublisherWatch};

use crate::cluster::{Cluster, ReplicaFailure};
use crate::read_client::answer::Answer;
use crate::read_client::core::Question;
use crate::read_client::known_publishers::{Answers, KnownCollector, RecentAnswers};
use crate::read_client::missing_paths::{CHECK_WAIT, CheckSchedule, merge, missing};
use crate::read_client::task::Command;
use crate::replica_error::ReplicaError;
use crate::replica_link::{Caller, ask_one, now, until};

/// How long to wait for the other replicas once enough have answered.
const OTHERS_WAIT: Duration = Duration::from_millis(250);

/// Reads from a resolver: the publishers of a path, the paths there are, and their changes.
/// Producers, workers and subscribers have one of their own; this one is for programs that inspect
/// the directory. Cheap to clone: all clones share one link, over which many batches are in flight;
/// it is opened at the first batch or watch. The link and its task end with the last clone and the
/// last watch.
#[derive(Clone)]
pub struct ReadClient {
    handle: Arc<Handle>,
}

/// The options of a [`ReadClient`]: `ReadClient::builder().name("dashboard").connect(…)`.
#[derive(Clone, Debug)]
#[must_use = "a builder creates a client with `connect`"]
pub struct ReadClientBuilder {
    name: String,
}

impl ReadClientBuilder {
    /// Sets the name that operators see; 1 to 128 bytes. With an invalid name every call fails with
    /// [`ReadError::Name`], or its text, and a watch over publishers, which has no error, receives
    /// nothing, as with a cluster without replicas; the log has the reason. The default is
    /// `reader-` and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Creates the client: see [`ReadClient::connect`]. Needs a tokio runtime.
    pub fn connect(self, cluster: impl Into<Cluster>) -> ReadClient {
        ReadClient::start(cluster.into(), self.name)
    }
}

struct Handle {
    caller: Caller,
    /// Unbounded, and yet bounded: each call and each watch queues one command at a time.
    commands: mpsc::UnboundedSender<Command>,
    next_batch: AtomicU64,
    next_watch: AtomicU32,
    recent: RecentAnswers,
    checks: CheckSchedule,
}

impl Handle {
    /// The caller for questions about one replica itself: a full replica has slots reserved for
    /// tools.
    fn tool(&self) -> Caller {
        Caller { role: Role::Tool, ..self.caller.clone() }
    }
}

impl ReadClient {
    /// A client of `cluster`: a [`Cluster`], or its replicas as `"HOST:PORT,…"`. Waits for
    /// nothing. Needs a tokio runtime.
    pub fn connect(cluster: impl Into<Cluster>) -> ReadClient {
        ReadClient::builder().connect(cluster)
    }

    /// Starts with the default options, to change some:
    /// `ReadClient::builder().name("dashboard").connect("127.0.0.1")`.
    pub fn builder() -> ReadClientBuilder {
        ReadClientBuilder { name: format!("reader-{}", std::process::id()) }
    }

    fn start(cluster: Cluster, name: String) -> ReadClient {
        let session = SessionId(rand::random());
        let caller = Caller { cluster, role: Role::ResolverReader, session, name };
        if let Err(error) = check_name(&caller.name) {
            tracing::error!(%error, "no resolver replica will be asked");
        }
        let (commands, received) = mpsc::unbounded_channel();
        tokio::spawn(task::run(caller.clone(), received));
        let (next_batch, next_watch) = (AtomicU64::new(1), AtomicU32::new(1));
        let (recent, checks) = (RecentAnswers::default(), CheckSchedule::default());
        let handle = Handle { caller, commands, next_batch, next_watch, recent, checks };
        ReadClient { handle: Arc::new(handle) }
    }

    /// False if the cluster has no replicas: then a watch over publishers receives nothing.
    pub fn has_replicas(&self) -> bool {
        !self.handle.caller.cluster.replicas.is_empty()
    }

    /// Waits until a replica has answered. Takes as long as [`ReadClient::resolve`]. Cancel safe.
    pub async fn ready(&self) -> Result<(), ReadError> {
        let question = Question::Resolve { paths: [Path::root()].into(), all_publishers: false };
        self.ask(question).await.map(drop)
    }

    /// The publishers of each of `paths`: any number; answers are in order. Takes until some
    /// replica answers or all have failed three times, which can be minutes (each may take 15 s and
    /// more for an answer): put a deadline of your own around it. Cancel safe.
    ///
    /// Before a path is reported as not found, all replicas are asked: a publisher may be unable to
    /// reach one of them. This takes at most 2 s, and at most 250 ms after a second replica has
    /// answered. A client does it at intervals: 1 s after it has found something, otherwise 5 s,
    /// which double up to 60 s (`reader_ttl`) while it finds nothing. In between it reports such
    /// paths unchecked, and paths beyond the limit of one request as well. A path that is served by
    /// a default is found.
    pub async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, ReadError> {
        self.resolve_paths(paths.into(), false).await
    }

    /// Like [`ReadClient::resolve`], for callers that need all publishers of the paths: the answer
    /// is incomplete only if no replica has a complete one. Each call while all replicas are
    /// warming makes a link to each of them. Cancel safe.
    pub async fn resolve_all_publishers(&self, paths: Vec<Path>) -> Result<Resolution, ReadError> {
        self.resolve_paths(paths.into(), true).await
    }

    async fn resolve_paths(
        &self,
        paths: Arc<[Path]>,
        all_publishers: bool,
    ) -> Result<Resolution, ReadError> {
        let question = Question::Resolve { paths: Arc::clone(&paths), all_publishers };
        let Answer::Resolved(mut all) = self.ask(question).await? else { unreachable!("{FITS}") };
        self.check_missing(&paths, &mut all).await;
        Ok(all)
    }

    async fn check_missing(&self, paths: &[Path], resolution: &mut Resolution) {
        let (missing, cluster) = (missing(paths, resolution), &self.handle.caller.cluster);
        if missing.is_empty()
            || cluster.replicas.len() < 2
            || !self.handle.checks.begin(now(), cluster.timing.reader_ttl)
        {
            return;
        }
        let texts = missing.iter().map(|&index| &paths[index]).collect();
        let question = Arc::new(ToReplica::Resolve(Resolve { id: 1, paths: texts }));
        let count = missing.len();
        // The first to answer is mostly the replica that has answered before.
        let asked = self.ask_replicas(2, Some(CHECK_WAIT), |client, replica| {
            let question = Arc::clone(&question);
            async move { client.resolve_at(&replica, &question, count).await }
        });
        for answer in asked.await.0 {
            if merge(resolution, &missing, answer) {
                self.handle.checks.found(now());
            }
        }
    }

    /// Asks one replica about `count` paths over a link of its own.
    async fn resolve_at(
        &self,
        replica: &str,
        question: &ToReplica,
        count: usize,
    ) -> Result<Resolution, ReplicaError> {
        let mut all = Resolution { complete: true, answers: Vec::new() };
        ask_one(&self.handle.caller, replica, question, |message| {
            let FromReplica::Resolved(slice) = message else { return None };
            let last = slice.last;
            let slice = Resolution::from(slice);
            all.complete &= slice.complete;
            all.answers.extend(slice.answers);
            (last || all.answers.len() > count).then(|| Ok(std::mem::take(&mut all)))
        })
        .await
    }

    /// The children of `path`. Takes as long as [`ReadClient::resolve`]. Cancel safe.
    pub async fn list(&self, path: Path) -> Result<Listing, ReadError> {
        self.listing(Question::List(path)).await
    }

    /// Every path that matches at least one of `globs`: published, or with a default. At most 256
    /// globs; with more no replica is asked ([`ReadError::TooManyGlobs`]). Takes as long as
    /// [`ReadClient::resolve`]. Cancel safe.
    pub async fn list_matching(&self, globs: Vec<Glob>) -> Result<Listing, ReadError> {
        let limit = RESOLVER_GLOBS_MAX;
        if globs.len() > limit {
            return Err(ReadError::TooManyGlobs { globs: globs.len(), limit });
        }
        self.listing(Question::ListMatching(globs.into())).await
    }

    /// The children of `path` as rows, and their children as columns. Takes as long as
    /// [`ReadClient::resolve`]. Cancel safe.
    pub async fn table(&self, path: Path) -> Result<PathTable, ReadError> {
        match self.ask(Question::Table(path)).await? {
            Answer::Table(table) => Ok(table),
            _ => unreachable!("{FITS}"),
        }
    }

    async fn listing(&self, question: Question) -> Result<Listing, ReadError> {
        match self.ask(question).await? {
            Answer::Listed(listing) => Ok(listing),
            _ => unreachable!("{FITS}"),
        }
    }

    /// Watches the publishers that have, or could make, queues that match `glob`: those of a
    /// matching path, and those with a default at or below which one could match. Publishers of
    /// live values alone are excluded. The watch moves between replicas by itself, until it is
    /// dropped.
    pub fn watch_publishers(&self, glob: Glob) -> PublisherWatch {
        let number = self.handle.next_watch.fetch_add(1, Ordering::Relaxed);
        PublisherWatch::start(number, glob, self.handle.commands.clone())
    }

    /// Watches the paths that match at least one of `globs`, at most 256: first the existing ones,
    /// then the changes. The watch moves between replicas by itself and returns only differences.
    /// It is limited to 1,000,000 paths ([`WATCHED_PATHS_MAX`]); beyond that, with more globs, or
    /// of a cluster without replicas, [`PathWatch::next`] returns an error.
    pub fn watch_paths(&self, globs: Vec<Glob>) -> PathWatch {
        let number = self.handle.next_watch.fetch_add(1, Ordering::Relaxed);
        PathWatch::start(number, &self.handle.caller, globs, self.handle.commands.clone())
    }

    /// The publishers that one replica, named as `host:port`, knows, sorted by name, hidden ones
    /// included. Uses a link of its own. Takes as long as [`ReadClient::replica_status`]. Cancel
    /// safe.
    pub async fn publishers_known(
        &self,
        replica: &str,
    ) -> Result<Vec<KnownPublisher>, ReplicaError> {
        let mut known = KnownCollector::default();
        let question = ToReplica::ListPublishers { id: 1 };
        ask_one(&self.handle.tool(), replica, &question, |message| match message {
            FromReplica::PublishersKnown(part) => known.take(part),
            _ => None,
        })
        .await
    }

    /// The publishers that could hold jobs of matching queues, as all replicas know them: the
    /// registered ones, the missing ones, and the replicas that did not answer. Asks all replicas
    /// at once; once one has answered, the others have a quarter of a second. Answers up to a
    /// second old serve later calls. An error, for people, if no replica answers. Cancel safe.
    pub async fn cluster_publishers(&self, pattern: &Glob) -> Result<ClusterPublishers, String> {
        let ask = async || {
            let known = self.ask_replicas(1, None, async |client, replica| {
                client.publishers_known(&replica).await
            });
            let (known, silent_replicas) = known.await;
            Answers { known, silent_replicas }
        };
        self.handle.recent.roll(pattern, ask()).await
    }

    /// Asks all replicas at once, for at most `wait`. Once `enough` have answered, the others have
    /// a quarter of a second. Returns the answers, and why the others gave none.
    async fn ask_replicas<T: Send + 'static, F>(
        &self,
        enough: usize,
        wait: Option<Duration>,
        ask: impl Fn(ReadClient, String) -> F,
    ) -> (Vec<T>, Vec<ReplicaFailure>)
    where
        F: Future<Output = Result<T, ReplicaError>> + Send + 'static,
    {
        let mut asking = JoinSet::new();
        let mut waiting = self.handle.caller.cluster.replicas.clone();
        for replica in waiting.iter().cloned() {
            let answer = ask(self.clone(), replica.clone());
            asking.spawn(async move { (answer.await, replica) });
        }
        let (mut answers, mut silent_replicas) = (Vec::new(), Vec::new());
        let mut end = wait.map(|wait| now() + wait);
        while let Some(answer) = tokio::select! {
            answer = asking.join_next() => answer,
            () = until(end) => None,
        } {
            // A task that was cancelled or panicked returns no answer.
            let Ok((answer, replica)) = answer else { continue };
            waiting.retain(|one| *one != replica);
            match answer {
                Ok(answer) => {
                    answers.push(answer);
                    if answers.len() == enough {
                        let others = now() + OTHERS_WAIT;
                        end = Some(end.map_or(others, |end| end.min(others)));
                    }
                }
                Err(error) => {
                    silent_replicas.push(ReplicaFailure { replica, why: error.to_string() })
                }
            }
        }
        let why = format!("no answer {OTHERS_WAIT:?} after another replica's");
        let late = waiting.into_iter().map(|replica| ReplicaFailure { replica, why: why.clone() });
        silent_replicas.extend(late);
        (answers, silent_replicas)
    }

    /// Makes one replica forget a missing publisher, so that it is reported no longer. False if the
    /// replica does not know it. Takes as long as [`ReadClient::replica_status`]. Not cancel safe:
    /// a dropped call may have succeeded.
    pub async fn forget_publisher(
        &self,
        replica: &str,
        publisher: PublisherId,
    ) -> Result<bool, ReplicaError> {
        let question = ToReplica::ForgetPublisher { id: 1, publisher };
        ask_one(&self.handle.tool(), replica, &question, |message| match message {
            FromReplica::Written(answer) => Some(Ok(answer.done > 0)),
            _ => None,
        })
        .await
    }

    /// The status of every replica, each over a link of its own, in the order of the cluster; or
    /// why there is none. Each address of a replica may take connect and handshake timeout, and the
    /// answer 15 s. Cancel safe.
    pub async fn replica_status(&self) -> Vec<(String, Result<ReplicaStatus, ReplicaError>)> {
        let mut asking = JoinSet::new();
        for (index, replica) in self.handle.caller.cluster.replicas.iter().cloned().enumerate() {
            let caller = self.handle.tool();
            asking.spawn(async move {
                let status =
                    ask_one(
                        &caller,
                        &replica,
                        &ToReplica::Status { id: 1 },
                        |message| match message {
                            FromReplica::Status { status, .. } => Some(Ok(status)),
                            _ => None,
                        },
                    );
                let status = status.await;
                (index, replica, status)
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_unstable_by_key(|(index, ..)| *index);
        answers.into_iter().map(|(_, replica, status)| (replica, status)).collect()
    }

    async fn ask(&self, question: Question) -> Result<Answer, ReadError> {
        check_name(&self.handle.caller.name)?;
        let batch = self.handle.next_batch.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let gone = || ReadError::NoAnswer(Vec::new());
        self.handle.commands.send(Command::Ask { batch, question, reply }).map_err(|_| gone())?;
        let mut forget = ForgetOnDrop { batch, commands: Some(&self.handle.commands) };
        let answer = answer.await;
        forget.commands = None;
        // The task ends only with its runtime.
        answer.unwrap_or_else(|_| Err(gone()))
    }
}

const FITS: &str = "the core checks that an answer fits its question";

/// Sends `Forget` when a caller stops waiting.
struct ForgetOnDrop<'a> {
    batch: u64,
    commands: Option<&'a mpsc::UnboundedSender<Command>>,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(commands) = self.commands {
            let _ = commands.send(Command::Forget { batch: self.batch });
        }
    }
}

impl fmt::Debug for ReadClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadClient")
            .field("replicas", &self.handle.caller.cluster.replicas)
            .finish_non_exhaustive()
    }
}
