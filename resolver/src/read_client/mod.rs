//! The read client: asks any replica that answers.

mod answer;
mod core;
mod known;
mod lines;
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
    FromReplica, KnownPublisher, ReplicaStatus, ToReplica,
};
use longshore_protocol::{Glob, Path, PublisherId, Role, SessionId, check_name};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub use answer::{Listing, PathAnswer, PathTable, Publication, ReadError, Resolution};
pub use known::PublisherRoll;
pub use path_view::{PathEvent, WATCHED_PATHS_MAX, WatchEnded};
pub use watch::{PathWatch, PublisherSet, PublisherWatch};

use crate::cluster::{Cluster, ReplicaFailure};
use crate::read_client::answer::Answer;
use crate::read_client::core::Question;
use crate::read_client::known::{Answers, Known, RecentAnswers};
use crate::read_client::task::Command;
use crate::replica_link::{Caller, ask_one};

/// Once a replica has answered, how long it is waited for the others to say which publishers they
/// know.
const OTHERS_WAIT: Duration = Duration::from_millis(250);

/// Asks a resolver: who publishes a path, what there is, what changes. Producers, workers and
/// subscribers have one of their own; this one is for programs that look into the directory. Cheap
/// to clone: all clones share one link, over which many batches are in flight; it is opened at the
/// first batch or watch. The link and its task end with the last clone and the last watch.
#[derive(Clone)]
pub struct ReadClient {
    handle: Arc<Handle>,
}

struct Handle {
    caller: Caller,
    /// Unbounded, and yet bounded: each call and each watch has one command in it at a time.
    commands: mpsc::UnboundedSender<Command>,
    next_batch: AtomicU64,
    next_watch: AtomicU32,
    recent: RecentAnswers,
}

impl Handle {
    /// Who asks one replica about itself: of a full replica's places some are kept for tools.
    fn tool(&self) -> Caller {
        Caller { role: Role::Tool, ..self.caller.clone() }
    }
}

impl ReadClient {
    /// A client of `cluster`. `session` is 16 random bytes that name this client (a `SessionId`, in
    /// `protocol`); `name` is what operators see, 1 to 128 bytes. With another, whatever is asked
    /// has [`ReadError::Name`] for an answer, or its text, and a watch over publishers, which has
    /// no error, is told nothing, as where the cluster names no replica; the log says why. Waits
    /// for nothing. Needs a tokio runtime.
    pub fn new(cluster: Cluster, session: SessionId, name: impl Into<String>) -> ReadClient {
        let caller = Caller { cluster, role: Role::ResolverReader, session, name: name.into() };
        if let Err(error) = check_name(&caller.name) {
            tracing::error!(%error, "no resolver replica will be asked");
        }
        let (commands, received) = mpsc::unbounded_channel();
        tokio::spawn(task::run(caller.clone(), received));
        let (next_batch, next_watch) = (AtomicU64::new(1), AtomicU32::new(1));
        let recent = RecentAnswers::default();
        ReadClient { handle: Arc::new(Handle { caller, commands, next_batch, next_watch, recent }) }
    }

    /// Who publishes each of `paths`? Any number; answers come in order. A "no" of a replica that
    /// is warming is asked of another before it is believed. Takes until some replica answers or
    /// all have failed three times, which can be minutes (each may take 15 s and more for an
    /// answer): put a deadline of your own around it. Cancel safe.
    pub async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, ReadError> {
        match self.ask(Question::Resolve(paths.into())).await? {
            Answer::Resolved(resolution) => Ok(resolution),
            _ => unreachable!("{FITS}"),
        }
    }

    /// What lies just below `path`. Takes as long as [`ReadClient::resolve`]. Cancel safe.
    pub async fn list(&self, path: Path) -> Result<Listing, ReadError> {
        self.listing(Question::List(path)).await
    }

    /// Every path that matches at least one of `globs`: published, or with a default. At most 256
    /// globs; with more nobody is asked ([`ReadError::TooManyGlobs`]). Takes as long as
    /// [`ReadClient::resolve`]. Cancel safe.
    pub async fn list_matching(&self, globs: Vec<Glob>) -> Result<Listing, ReadError> {
        let limit = RESOLVER_GLOBS_MAX;
        if globs.len() > limit {
            return Err(ReadError::TooManyGlobs { globs: globs.len(), limit });
        }
        self.listing(Question::ListMatching(globs.into())).await
    }

    /// What lies just below `path`, as rows, and below those, as columns. Takes as long as
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

    /// Watches the publishers that have, or could make, queues that match `glob`: those of a path
    /// that matches, and those with a default at or below which one could. Those of live values
    /// alone are not told. Goes from replica to replica by itself, for ever, or until it is
    /// dropped.
    pub fn watch_publishers(&self, glob: Glob) -> PublisherWatch {
        let number = self.handle.next_watch.fetch_add(1, Ordering::Relaxed);
        PublisherWatch::start(number, glob, self.handle.commands.clone())
    }

    /// Watches the paths that match at least one of `globs`, at most 256: first those that there
    /// are, then what changes. Goes from replica to replica by itself, for ever, and tells only
    /// what differs. Holds at most 1,000,000 paths ([`WATCHED_PATHS_MAX`]); with more, or with more
    /// globs, [`PathWatch::next`] says that it has ended.
    pub fn watch_paths(&self, globs: Vec<Glob>) -> PathWatch {
        let number = self.handle.next_watch.fetch_add(1, Ordering::Relaxed);
        let caller = &self.handle.caller.name;
        PathWatch::start(number, caller, globs, self.handle.commands.clone())
    }

    /// Asks one replica, named as `host:port`, over a link of its own, which publishers it knows;
    /// they come by name, hidden ones too. Takes as long as [`ReadClient::replica_status`]; the
    /// error is for people. Cancel safe.
    pub async fn publishers_known(&self, replica: &str) -> Result<Vec<KnownPublisher>, String> {
        let mut known = Known::default();
        let question = ToReplica::ListPublishers { id: 1 };
        ask_one(&self.handle.tool(), replica, &question, |message| match message {
            FromReplica::PublishersKnown(part) => known.take(part),
            _ => None,
        })
        .await
    }

    /// The publishers that could hold jobs of queues which match, as all replicas know them: those
    /// that are registered, those that are missing, and the replicas that did not answer. Asks all
    /// replicas at once; once one has answered, the others have a quarter of a second. Answers of
    /// up to a second ago serve later calls. An error, for people, if none answers. Cancel safe.
    pub async fn publisher_roll(&self, pattern: &Glob) -> Result<PublisherRoll, String> {
        self.handle.recent.roll(pattern, self.ask_who_is_known()).await
    }

    async fn ask_who_is_known(&self) -> Answers {
        let mut asking = JoinSet::new();
        let mut waiting = self.handle.caller.cluster.replicas.clone();
        for replica in waiting.iter().cloned() {
            let client = self.clone();
            asking.spawn(async move { (client.publishers_known(&replica).await, replica) });
        }
        let mut answers = Answers::default();
        while let Some(known) = match answers.known.is_empty() {
            true => asking.join_next().await,
            false => timeout(OTHERS_WAIT, asking.join_next()).await.ok().flatten(),
        } {
            // A task that was cancelled or panicked answers nothing.
            let Ok((known, replica)) = known else { continue };
            waiting.retain(|one| *one != replica);
            match known {
                Ok(known) => answers.known.push(known),
                Err(why) => answers.unanswered.push(ReplicaFailure { replica, why }),
            }
        }
        let why = format!("no answer {OTHERS_WAIT:?} after another replica's");
        let late = waiting.into_iter().map(|replica| ReplicaFailure { replica, why: why.clone() });
        answers.unanswered.extend(late);
        answers
    }

    /// Has one replica forget a publisher that is missing: it is reported no longer. False if the
    /// replica does not know it. Takes as long as [`ReadClient::replica_status`]; the error is for
    /// people. Not cancel safe: dropped, it may have been done.
    pub async fn forget_publisher(
        &self,
        replica: &str,
        publisher: PublisherId,
    ) -> Result<bool, String> {
        let question = ToReplica::ForgetPublisher { id: 1, publisher };
        ask_one(&self.handle.tool(), replica, &question, |message| match message {
            FromReplica::Written(answer) => Some(Ok(answer.done > 0)),
            _ => None,
        })
        .await
    }

    /// Asks every replica, each on a link of its own, how it is; in the order of the cluster, each
    /// with its answer or, for people, why there is none. Each address of a replica has until
    /// connect and handshake timeout are over, and the answer 15 s. Cancel safe.
    pub async fn replica_status(&self) -> Vec<(String, Result<ReplicaStatus, String>)> {
        let mut asking = JoinSet::new();
        for (place, replica) in self.handle.caller.cluster.replicas.iter().cloned().enumerate() {
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
                (place, replica, status)
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_unstable_by_key(|(place, ..)| *place);
        answers.into_iter().map(|(_, replica, status)| (replica, status)).collect()
    }

    async fn ask(&self, question: Question) -> Result<Answer, ReadError> {
        check_name(&self.handle.caller.name)?;
        let batch = self.handle.next_batch.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let gone = || ReadError::NoAnswer(Vec::new());
        self.handle.commands.send(Command::Ask { batch, question, reply }).map_err(|_| gone())?;
        let mut forget = Forget { batch, commands: Some(&self.handle.commands) };
        let answer = answer.await;
        forget.commands = None;
        // The task ends only with its runtime.
        answer.unwrap_or_else(|_| Err(gone()))
    }
}

const FITS: &str = "the core checks that an answer fits its question";

/// A caller that no longer waits says so.
struct Forget<'a> {
    batch: u64,
    commands: Option<&'a mpsc::UnboundedSender<Command>>,
}

impl Drop for Forget<'_> {
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
