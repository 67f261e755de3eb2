//! A publisher's entry in the directory.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::Path;
use longshore_resolver::{CheckedTerms, WriteClient};

use crate::values::PathKinds;

/// Registers the paths and defaults of a publisher's queues at the resolver's replicas, all on the
/// same terms. It leaves paths of live values alone.
#[derive(Clone)]
pub(crate) struct Registry {
    client: WriteClient,
    terms: CheckedTerms,
    names: Arc<PathKinds>,
}

impl Registry {
    pub(crate) fn new(client: WriteClient, terms: CheckedTerms, names: Arc<PathKinds>) -> Registry {
        Registry { client, terms, names }
    }

    /// Publishes `path`.
    pub(crate) fn publish(&self, path: Path) {
        if !self.names.is_value(&path) {
            self.client.publish(path, &self.terms);
        }
    }

    /// Publishes all of these paths and defaults.
    pub(crate) fn publish_all(
        &self,
        paths: impl IntoIterator<Item = Path>,
        defaults: impl IntoIterator<Item = Path>,
    ) {
        let paths = paths.into_iter().filter(|path| !self.names.is_value(path));
        self.client.publish_all(paths.map(|path| (path, self.terms.clone())));
        for path in defaults {
            self.client.publish_default(path, &self.terms);
        }
    }

    /// Withdraws all of these.
    pub(crate) fn unpublish_all(
        &self,
        paths: impl IntoIterator<Item = Path>,
        defaults: impl IntoIterator<Item = Path>,
    ) {
        let paths = paths.into_iter().filter(|path| !self.names.is_value(path));
        self.client.unpublish_all(paths);
        for path in defaults {
            self.client.unpublish_default(path);
        }
    }

    /// The client, with the state at each replica.
    pub(crate) fn client(&self) -> &WriteClient {
        &self.client
    }

    /// The publisher stops: every replica that is reached in time removes it.
    pub(crate) async fn close(self, wait: Duration) {
        self.client.close(wait).await;
    }
}
