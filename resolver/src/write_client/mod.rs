//! The write client: drives every replica towards what its publisher wants published.

use std::time::{Duration, Instant};

use longshore_protocol::{Path, PublisherInfo, SessionId};

use crate::cluster::Cluster;

/// How far a replica is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaState {
    /// The replica, as `host:port`.
    pub replica: String,
    /// Whether it is reached.
    pub standing: ReplicaStanding,
    /// Paths and defaults that it still has to be told of.
    pub lacking: usize,
    /// Paths and defaults that it has refused; they are tried again on its next link.
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
    /// It has answered the announce.
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
/// it by a task of its own, for as long as the client lives. Cheap to clone; all clones are one publisher.
#[derive(Clone, Debug)]
pub struct WriteClient {}

impl WriteClient {
    /// A client for one publisher; its tasks start at once. Needs a tokio runtime.
    ///
    /// Paths of an earlier start that are not wanted again are removed once the wanted set has been still for a second, so
    /// that a restart can publish its paths one by one without one of them being gone for a moment.
    pub fn new(cluster: Cluster, publisher: PublisherInfo, session: SessionId) -> WriteClient {
        let _ = (cluster, publisher, session);
        todo!()
    }

    /// The publisher holds `path`.
    pub fn publish(&self, path: Path) {
        let _ = path;
        todo!()
    }

    /// It no longer does.
    pub fn unpublish(&self, path: Path) {
        let _ = path;
        todo!()
    }

    /// The publisher makes whatever is asked for at or below `path`.
    pub fn publish_default(&self, path: Path) {
        let _ = path;
        todo!()
    }

    /// It no longer does.
    pub fn unpublish_default(&self, path: Path) {
        let _ = path;
        todo!()
    }

    /// How far each replica is, in the order of the cluster.
    pub fn status(&self) -> Vec<ReplicaState> {
        todo!()
    }

    /// Waits until `n` replicas (at most all there are) hold everything that was wanted when it was called. Cancel safe.
    pub async fn flushed(&self, n: usize) {
        let _ = n;
        todo!()
    }

    /// The graceful stop: removes the publisher at every replica that is reached within `timeout`, then ends the tasks. The others
    /// notice by its silence.
    pub async fn close(self, timeout: Duration) {
        let _ = timeout;
        todo!()
    }
}
