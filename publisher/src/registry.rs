//! A publisher's entry in the directory.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::Path;
use longshore_resolver::{PublicationTerms, WriteClient};

use crate::values::Names;

/// What a publisher tells the resolver's replicas: the paths and defaults of its queues, all on the
/// same terms. A path that holds a live value as well is known as that.
#[derive(Clone)]
pub(crate) struct Registry {
    client: WriteClient,
    terms: PublicationTerms,
    names: Arc<Names>,
}

impl Registry {
    pub(crate) fn new(client: WriteClient, terms: PublicationTerms, names: Arc<Names>) -> Registry {
        Registry { client, terms, names }
    }

    /// The publisher holds `path`.
    pub(crate) fn publish(&self, path: Path) {
        if !self.names.is_value(&path) {
            self.client.publish(path, &self.terms);
        }
    }

    /// It holds all of these, and makes what is asked for below those defaults.
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

    /// It takes all of these back.
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

    /// How it stands at each replica.
    pub(crate) fn client(&self) -> &WriteClient {
        &self.client
    }

    /// The publisher stops: every replica that is reached in time forgets it.
    pub(crate) async fn close(self, wait: Duration) {
        self.client.close(wait).await;
    }
}
