//! The read client: asks any replica that answers.

use std::sync::Arc;

use longshore_protocol::messages::resolver::{PathListed, ReplicaStatus};
use longshore_protocol::{Glob, Incarnation, Path, PublisherInfo, SessionId};

use crate::cluster::{Cluster, ReplicaFailure};

/// What became of a batch of paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    /// False when every replica that answered is warming: a path that was not found may be published all the same.
    pub complete: bool,
    /// One answer for each path, in order.
    pub answers: Vec<PathAnswer>,
}

/// What became of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathAnswer {
    /// These serve it.
    Publishers {
        /// Who, shared with the other paths that have the same publishers.
        set: Arc<[PublisherInfo]>,
        /// Nobody publishes the path itself; these have declared the nearest default above it.
        by_default: bool,
    },
    /// Nobody does.
    NotFound,
    /// This path was refused, and why.
    Refused(String),
}

/// Paths that a replica knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// False when every replica that answered is warming: there may be more paths.
    pub complete: bool,
    /// The paths, sorted, none twice.
    pub paths: Vec<PathListed>,
}

/// Why a batch has no answer: every replica failed it, in each of three rounds. The client stays good: the next batch starts
/// afresh.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// No replica answered.
    #[error("no resolver replica answered: {}", list(.0))]
    NoAnswer(Vec<ReplicaFailure>),
    /// A replica refused the whole request, and another would too.
    #[error("resolver replica {replica} refused the request: {reason}")]
    Refused {
        /// Which.
        replica: String,
        /// Why, for people.
        reason: String,
    },
    /// The cluster names no replica.
    #[error("no resolver replica is configured; name at least one as host:port")]
    NoReplicas,
}

fn list(failures: &[ReplicaFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Asks a resolver. Cheap to clone: all clones share one link, over which many batches are in flight; it is opened at
/// the first batch or watch.
#[derive(Clone, Debug)]
pub struct ReadClient {}

impl ReadClient {
    /// A client of `cluster`. `name` is what operators see. Needs a tokio runtime.
    pub fn new(cluster: Cluster, session: SessionId, name: impl Into<String>) -> ReadClient {
        let _ = (cluster, session, name.into());
        todo!()
    }

    /// Who publishes each of `paths`? Any number; answers come in order. A "no" of a replica that is warming is asked of another
    /// before it is believed. Cancel safe.
    pub async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, ReadError> {
        let _ = paths;
        todo!()
    }

    /// What lies just below `path`. Cancel safe.
    pub async fn list(&self, path: Path) -> Result<Listing, ReadError> {
        let _ = path;
        todo!()
    }

    /// Every path that matches at least one of `globs`: published, or with a default. Cancel safe.
    pub async fn list_matching(&self, globs: Vec<Glob>) -> Result<Listing, ReadError> {
        let _ = globs;
        todo!()
    }

    /// Watches the publishers that could serve what matches `glob`: those of a path that matches, and those with a default
    /// at or below which one could. Goes from replica to replica by itself, for ever.
    pub fn watch_publishers(&self, glob: Glob) -> PublisherWatch {
        let _ = glob;
        todo!()
    }

    /// Asks every replica, each on a link of its own, how it is. Takes at most connect and hello timeout and 15 s. Cancel safe.
    pub async fn replica_status(&self) -> Vec<(String, Result<ReplicaStatus, String>)> {
        todo!()
    }
}

/// All publishers of a watch, as one replica knows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherSet {
    /// The replica that told, as `host:port`.
    pub replica: String,
    /// Its run.
    pub incarnation: Incarnation,
    /// Its revision; within one incarnation it rises.
    pub revision: u64,
    /// False while it is warming: who is missing may be there all the same.
    pub complete: bool,
    /// The publishers, by id.
    pub publishers: Vec<PublisherInfo>,
}

/// A watch over publishers. Dropping it ends it.
#[derive(Debug)]
pub struct PublisherWatch {}

impl PublisherWatch {
    /// The publishers once they have changed, or were told of by another replica; at first, as soon as any replica tells. What
    /// changed while nobody waited is told once. Cancel safe.
    pub async fn changed(&mut self) -> PublisherSet {
        todo!()
    }
}
