//! Finds the publishers of paths.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{Glob, Path, PublisherInfo, Terms};
use longshore_resolver::{
    ClusterPublishers, PathAnswer, Publication, ReadClient, ReadError, Resolution,
};

/// Why the publishers are unknown.
#[derive(Debug)]
pub(crate) enum DirectoryError {
    /// No replica answered within this time.
    Timeout(Duration),
    /// There are no replicas.
    NoReplicas,
}

/// A resolver, or publishers that the caller named.
#[derive(Clone)]
pub(crate) enum Directory {
    Resolver(ReadClient),
    Named(Arc<[PublisherInfo]>),
}

impl Directory {
    /// Waits until a replica has answered.
    pub(crate) async fn ready(&self) -> Result<(), ReadError> {
        match self {
            Directory::Resolver(client) => client.ready().await,
            Directory::Named(_) => Ok(()),
        }
    }

    /// Resolves the paths; with `all_publishers`, at a replica that knows them all, if there is
    /// one.
    pub(crate) async fn resolve(
        &self,
        paths: Vec<Path>,
        all_publishers: bool,
    ) -> Result<Resolution, ReadError> {
        match self {
            Directory::Resolver(client) if all_publishers => {
                client.resolve_all_publishers(paths).await
            }
            Directory::Resolver(client) => client.resolve(paths).await,
            Directory::Named(set) => {
                let publication = |publisher| Publication { publisher, terms: Terms::default() };
                let set = set.iter().cloned().map(publication).collect();
                let answer = PathAnswer::Publishers { set, by_default: true, fallback: None };
                let answers = vec![answer; paths.len()];
                Ok(Resolution { complete: true, answers })
            }
        }
    }

    /// The publishers that could hold matching jobs, including missing ones that the replicas
    /// remember. `None` if no replica answers.
    pub(crate) async fn roll(&self, pattern: &Glob) -> Option<ClusterPublishers> {
        match self {
            Directory::Named(_) => Some(ClusterPublishers::default()),
            Directory::Resolver(client) => client.cluster_publishers(pattern).await.ok(),
        }
    }

    /// The publishers that could serve matching paths, and whether the set is complete. Waits up to
    /// `limit` for the first replica's answer, and up to `complete_wait` more for a complete one.
    pub(crate) async fn publishers(
        &self,
        pattern: &Glob,
        limit: Duration,
        complete_wait: Duration,
    ) -> Result<(bool, Vec<PublisherInfo>), DirectoryError> {
        let client = match self {
            Directory::Named(set) => return Ok((true, set.to_vec())),
            Directory::Resolver(client) if !client.has_replicas() => {
                return Err(DirectoryError::NoReplicas);
            }
            Directory::Resolver(client) => client,
        };
        let mut watch = client.watch_publishers(pattern.clone());
        let first = tokio::time::timeout(limit, watch.changed()).await;
        let mut set = first.map_err(|_| DirectoryError::Timeout(limit))?;
        let complete_timeout = tokio::time::sleep(complete_wait);
        tokio::pin!(complete_timeout);
        while !set.complete {
            tokio::select! {
                () = &mut complete_timeout => break,
                newer = watch.changed() => set = newer,
            }
        }
        Ok((set.complete, set.publishers))
    }
}
