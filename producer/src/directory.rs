//! Where a producer learns who publishes what.

use std::sync::Arc;

use longshore_protocol::{Path, PublisherInfo};
use longshore_resolver::{PathAnswer, ReadClient, ReadError, Resolution};

/// A resolver, or publishers that the user has named.
#[derive(Clone)]
pub(crate) enum Directory {
    Resolver(ReadClient),
    Named(Arc<[PublisherInfo]>),
}

impl Directory {
    pub(crate) async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, ReadError> {
        match self {
            Directory::Resolver(client) => client.resolve(paths).await,
            Directory::Named(set) => {
                let answer = PathAnswer::Publishers { set: set.clone(), by_default: true };
                Ok(Resolution { complete: true, answers: vec![answer; paths.len()] })
            }
        }
    }
}
