//! The write client: drives every replica towards what its publisher wants published.

mod core;
mod shared;
mod task;
mod wanted;

#[cfg(test)]
mod story_test;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::{Path, PublisherInfo, Role, SessionId};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::replica_link::Caller;
use crate::write_client::shared::Shared;
use crate::write_client::wanted::Key;

/// How far a replica is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaState {
    /// The replica, as `host:port`.
    pub replica: String,
    /// Whether it is reached.
    pub standing: ReplicaStanding,
    /// Paths and defaults that it still has to be told of.
    pub lacking: usize,
    /// Paths and defaults that it has refused; they are tried again every half `writer_ttl`.
    pub refused: usize,
    /// What went wrong last, if anything ever did.
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

/// Publishes at every replica. Nothing here blocks or fails: what is wanted is recorded, and each replica is driven towards
/// it by a task of its own, for as long as the client lives. Cheap to clone; all clones are one publisher. When the last
/// one is dropped without [`WriteClient::close`], replicas see the publisher as silent, as after a crash.
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
    /// A client for one publisher; its tasks start at once. Needs a tokio runtime.
    ///
    /// Paths of an earlier start that are not wanted again are removed once the wanted set has been still for a second, so
    /// that a restart can publish its paths one by one without one of them being gone for a moment.
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

    /// The publisher holds `path`.
    pub fn publish(&self, path: Path) {
        self.handle.shared.want(Key { path, default: false }, true);
    }

    /// It no longer does.
    pub fn unpublish(&self, path: Path) {
        self.handle.shared.want(Key { path, default: false }, false);
    }

    /// The publisher makes whatever is asked for at or below `path`.
    pub fn publish_default(&self, path: Path) {
        self.handle.shared.want(Key { path, default: true }, true);
    }

    /// It no longer does.
    pub fn unpublish_default(&self, path: Path) {
        self.handle.shared.want(Key { path, default: true }, false);
    }

    /// How far each replica is, in the order of the cluster.
    pub fn status(&self) -> Vec<ReplicaState> {
        self.handle.shared.states()
    }

    /// Waits until `n` replicas (at most all there are) hold everything that is wanted, but for what they refuse. Cancel safe.
    pub async fn flushed(&self, n: usize) {
        self.handle.shared.flushed(n).await;
    }

    /// The graceful stop: removes the publisher at every replica that is reached within `timeout`, then ends the tasks. The
    /// others notice by its silence. Other clones publish nothing any more.
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
