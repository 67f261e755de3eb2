//! The write client: drives every replica towards what its publisher wants published.

mod buckets;
mod changes;
mod core;
mod lacking;
mod shared;
mod task;
mod terms;
mod wanted;

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

pub use crate::write_client::terms::{PublicationTerms, TermsError};

/// How far a replica is in knowing what a publisher publishes ([`WriteClient::status`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaState {
    /// The replica, as `host:port`.
    pub replica: String,
    /// Whether it is reached.
    pub standing: ReplicaStanding,
    /// Changes of paths and defaults that it may still have to be told of. 0 once it is known to
    /// hold everything; while it is away, or being compared with, an estimate.
    pub lacking: usize,
    /// Paths and defaults that it has refused; they are tried again every half `writer_ttl`.
    pub refused: usize,
    /// What went wrong last, for people, if anything ever did.
    pub last_error: Option<String>,
}

/// Whether a replica is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaStanding {
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
    /// Three tries failed; it is tried again every half `writer_ttl`.
    Degraded {
        /// Since when.
        since: Instant,
    },
}

/// Publishes at every replica. Nothing here blocks or fails: what is wanted is recorded, and each
/// replica is driven towards it by a task of its own, for as long as the client lives. Cheap to
/// clone; all clones are one publisher. When the last one is dropped without
/// [`WriteClient::close`], replicas see the publisher as silent, as after a crash.
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
    /// A client for one publisher; its tasks start at once. `session` is 16 random bytes that name
    /// this run of it. Needs a tokio runtime.
    ///
    /// With a publisher's name that is empty or over 128 bytes nothing is sent, and nothing is ever
    /// flushed: [`ReplicaState::last_error`] says why, at every replica.
    ///
    /// Paths of an earlier start that are not wanted again are removed once the wanted set has been
    /// still for a second, so that a restart can publish its paths one by one without one of them
    /// being gone for a moment.
    pub fn new(cluster: Cluster, publisher: PublisherInfo, session: SessionId) -> WriteClient {
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

    /// The publisher holds `path`, on these terms: those before them no longer hold. Like all that
    /// is recorded here, it is ignored after [`WriteClient::close`].
    pub fn publish(&self, path: Path, terms: &PublicationTerms) {
        self.want(path, false, Some(terms));
    }

    /// It no longer does.
    pub fn unpublish(&self, path: Path) {
        self.want(path, false, None);
    }

    /// The publisher makes whatever is asked for at or below `path`, on these terms.
    pub fn publish_default(&self, path: Path, terms: &PublicationTerms) {
        self.want(path, true, Some(terms));
    }

    /// It no longer does.
    pub fn unpublish_default(&self, path: Path) {
        self.want(path, true, None);
    }

    /// The publisher holds all of these paths: as [`WriteClient::publish`] for each, but for many
    /// at a time, while other callers wait for no more than some hundreds of them.
    pub fn publish_all(&self, paths: impl IntoIterator<Item = (Path, PublicationTerms)>) {
        let key = |(path, terms)| (Key { path, default: false }, Some(terms));
        self.handle.shared.want(paths.into_iter().map(key));
    }

    /// It no longer holds any of these paths.
    pub fn unpublish_all(&self, paths: impl IntoIterator<Item = Path>) {
        let key = |path| (Key { path, default: false }, None);
        self.handle.shared.want(paths.into_iter().map(key));
    }

    fn want(&self, path: Path, default: bool, terms: Option<&PublicationTerms>) {
        self.handle.shared.want([(Key { path, default }, terms.cloned())]);
    }

    /// How far each replica is, in the order of the cluster.
    pub fn status(&self) -> Vec<ReplicaState> {
        self.handle.shared.states()
    }

    /// Waits until `n` replicas (at most all there are) hold everything that is wanted, but for
    /// what they refuse. With `n` = 0, and for a cluster without replicas, there is nobody to wait
    /// for: it returns at once, whatever is wanted. It returns too once any clone has been closed:
    /// from then on the replicas are to hold nothing, and what they held before is not known any
    /// more. Cancel safe.
    pub async fn flushed(&self, n: usize) {
        self.handle.shared.flushed(n).await;
    }

    /// The graceful stop: removes the publisher at every replica that is reached within
    /// `timeout_after`, then ends the tasks. The others notice by its silence. Other clones publish
    /// nothing any more, and wait for nothing in [`WriteClient::flushed`]. Not cancel safe: of a
    /// call that was dropped, the publisher may stand at some replicas until its silence is
    /// noticed.
    pub async fn close(self, timeout_after: Duration) {
        self.handle.shared.close();
        let _ = timeout(timeout_after, self.handle.shared.closed()).await;
        self.handle.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for WriteClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteClient").field("replicas", &self.status()).finish_non_exhaustive()
    }
}
