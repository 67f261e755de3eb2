//! The write client: makes every replica match its publisher's desired state.

mod buckets;
mod change_log;
mod core;
mod desired_state;
mod pending_changes;
mod shared;
mod task;
mod terms;

#[cfg(test)]
mod scenario_test;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::{Path, PublisherInfo, Role, SessionId};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::replica_link::Caller;
use crate::write_client::buckets::Key;
use crate::write_client::shared::Shared;

pub use crate::write_client::terms::{CheckedTerms, TermsTooLong};

/// How far a replica matches what its publisher publishes ([`WriteClient::status`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublicationStatus {
    /// The replica, as `host:port`.
    pub replica: String,
    /// Whether it is connected.
    pub health: ReplicaHealth,
    /// Changes of paths and defaults that may still have to be sent. 0 once it is known to match;
    /// an estimate while it is disconnected or being compared.
    pub pending: usize,
    /// Paths and defaults that it has refused; they are sent again every half `writer_ttl`.
    pub refused: usize,
    /// The last error, for people, if there ever was one.
    pub last_error: Option<String>,
}

/// Whether a replica is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaHealth {
    /// Not yet, or not at the moment.
    Connecting {
        /// Since when.
        since: Instant,
    },
    /// It answers.
    Connected {
        /// Since when.
        since: Instant,
    },
    /// Three attempts failed; the next follow every half `writer_ttl`.
    Degraded {
        /// Since when.
        since: Instant,
    },
}

/// Publishes at every replica. Nothing here blocks or fails: the desired state is recorded, and a
/// task for each replica makes it match, for as long as the client lives. Cheap to clone; all
/// clones are one publisher. When the last one is dropped without [`WriteClient::close`], replicas
/// see the publisher as silent, as after a crash.
#[derive(Clone)]
pub struct WriteClient {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl WriteClient {
    /// A client for one publisher; its tasks start at once, and
    /// [`flushed`](WriteClient::flushed) waits until replicas have answered. Needs a tokio runtime.
    ///
    /// With a publisher's name that is empty or over 128 bytes nothing is sent, and nothing is ever
    /// flushed: [`PublicationStatus::last_error`] has the reason, at every replica.
    ///
    /// Paths of an earlier start that are not published again are removed once the desired state
    /// has not changed for a second. So a restart can publish its paths one by one without any of
    /// them disappearing meanwhile.
    pub fn connect(cluster: impl Into<Cluster>, publisher: PublisherInfo) -> WriteClient {
        WriteClient::start(cluster.into(), publisher)
    }

    fn start(cluster: Cluster, publisher: PublisherInfo) -> WriteClient {
        let session = SessionId(rand::random());
        let shared = Arc::new(Shared::new(&cluster.replicas));
        let name = publisher.name.clone();
        let replicas = cluster.replicas.len();
        let caller = Caller { cluster, role: Role::ResolverWriter, session, name };
        let task = |replica| {
            let run = task::run(caller.clone(), publisher.clone(), replica, shared.clone());
            tokio::spawn(run).abort_handle()
        };
        let tasks = (0..replicas).map(task).collect();
        WriteClient { handle: Arc::new(Handle { shared, tasks }) }
    }

    /// The publisher holds `path`, on these terms, which replace earlier ones. Like all records, it
    /// is ignored after [`WriteClient::close`].
    pub fn publish(&self, path: Path, terms: &CheckedTerms) {
        self.set_desired(path, false, Some(terms));
    }

    /// The publisher no longer holds `path`.
    pub fn unpublish(&self, path: Path) {
        self.set_desired(path, false, None);
    }

    /// The publisher creates whatever is requested at or below `path`, on these terms.
    pub fn publish_default(&self, path: Path, terms: &CheckedTerms) {
        self.set_desired(path, true, Some(terms));
    }

    /// The publisher no longer has a default at `path`.
    pub fn unpublish_default(&self, path: Path) {
        self.set_desired(path, true, None);
    }

    /// The publisher holds all of these paths: like [`WriteClient::publish`] for each, but in
    /// batches, so that other callers wait for no more than some hundreds of them.
    pub fn publish_all(&self, paths: impl IntoIterator<Item = (Path, CheckedTerms)>) {
        let key = |(path, terms)| (Key { path, default: false }, Some(terms));
        self.handle.shared.set_desired(paths.into_iter().map(key));
    }

    /// The publisher no longer holds any of these paths.
    pub fn unpublish_all(&self, paths: impl IntoIterator<Item = Path>) {
        let key = |path| (Key { path, default: false }, None);
        self.handle.shared.set_desired(paths.into_iter().map(key));
    }

    fn set_desired(&self, path: Path, default: bool, terms: Option<&CheckedTerms>) {
        self.handle.shared.set_desired([(Key { path, default }, terms.cloned())]);
    }

    /// The state of each replica, in the order of the cluster.
    pub fn status(&self) -> Vec<PublicationStatus> {
        self.handle.shared.states()
    }

    /// Waits until `n` replicas (at most all there are) match the desired state, except for what
    /// they refuse. With `n` = 0, and for a cluster without replicas, it returns at once, whatever
    /// the desired state. It also returns once any clone has been closed: from then on the replicas
    /// are to hold nothing, and their earlier state is unknown. Cancel safe.
    pub async fn flushed(&self, n: usize) {
        self.handle.shared.flushed(n).await;
    }

    /// The graceful stop: removes the publisher at every replica that is reached within
    /// `timeout_after`, then ends the tasks. The others notice its silence. Other clones publish
    /// nothing any more, and their [`WriteClient::flushed`] returns at once. Not cancel safe: after
    /// a dropped call, some replicas may list the publisher until they notice its silence.
    pub async fn close(self, timeout_after: Duration) {
        self.handle.shared.close();
        let _ = timeout(timeout_after, self.handle.shared.closed()).await;
        self.handle.tasks.iter().for_each(AbortHandle::abort);
    }

    /// The end of the publisher without a graceful stop, whatever clones there are: replicas see it
    /// as silent, as after a crash. Other clones publish nothing any more, and their
    /// [`WriteClient::flushed`] returns at once.
    pub fn abandon(&self) {
        // First: a task that learns of the end would withdraw the paths.
        self.handle.tasks.iter().for_each(AbortHandle::abort);
        self.handle.shared.close();
    }
}

impl fmt::Debug for WriteClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteClient").field("replicas", &self.status()).finish_non_exhaustive()
    }
}
