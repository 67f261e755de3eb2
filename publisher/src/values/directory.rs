//! What a publisher of values tells the resolver, and which paths are whose within one publisher.

use std::sync::Arc;

use hashbrown::HashSet;
use longshore_protocol::{Path, PublicationKind, Terms};
use longshore_resolver::{PublicationTerms, WriteClient};
use parking_lot::Mutex;

use super::ValueOptions;

/// Which of a publisher's paths hold jobs, and which a live value. Looked at when one is made or
/// let go, and by batches for paths that are no queue yet; never for a queue that is there.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    queues: HashSet<Path>,
    queue_defaults: HashSet<Path>,
    values: HashSet<Path>,
}

impl Names {
    /// These are queues, and these are defaults for queues.
    pub(crate) fn of_queues(
        queues: impl IntoIterator<Item = Path>,
        defaults: impl IntoIterator<Item = Path>,
    ) -> Names {
        let (queues, queue_defaults) = (HashSet::from_iter(queues), HashSet::from_iter(defaults));
        Names { names: Mutex::new(Known { queues, queue_defaults, values: HashSet::new() }) }
    }

    /// A queue was made.
    pub(crate) fn add_queue(&self, path: &Path) {
        self.names.lock().queues.insert(path.clone());
    }

    /// True if it holds jobs.
    pub(crate) fn is_queue(&self, path: &Path) -> bool {
        self.names.lock().queues.contains(path)
    }

    /// Lets `take` make queues: it is told which paths hold a value, and gives those that it made.
    /// No value is published meanwhile, so that no path ever holds both.
    pub(crate) fn make_queues<E>(
        &self,
        take: impl FnOnce(&dyn Fn(&Path) -> bool) -> Result<Vec<Path>, E>,
    ) -> Result<(), E> {
        let mut names = self.names.lock();
        let Known { queues, values, .. } = &mut *names;
        queues.extend(take(&|path| !values.is_empty() && values.contains(path))?);
        Ok(())
    }

    /// True if it holds a value: then that is what the resolver knows it as.
    pub(crate) fn is_value(&self, path: &Path) -> bool {
        self.names.lock().values.contains(path)
    }
}

/// The publisher's entries in the resolver, as far as they are values.
pub(crate) struct Directory {
    client: Option<WriteClient>,
    names: Arc<Names>,
    /// On which terms its queues are published.
    queue_terms: Option<PublicationTerms>,
    /// On which its values are, and its defaults, unless told otherwise.
    usual: ValueOptions,
}

impl Directory {
    pub(crate) fn new(
        client: Option<WriteClient>,
        names: Arc<Names>,
        queue_terms: Option<PublicationTerms>,
        usual: ValueOptions,
    ) -> Directory {
        Directory { client, names, queue_terms, usual }
    }

    /// On which terms values are published unless told otherwise.
    pub(super) fn usual(&self) -> ValueOptions {
        self.usual
    }

    /// True if the path holds jobs here.
    pub(super) fn is_queue(&self, path: &Path) -> bool {
        self.names.is_queue(path)
    }

    /// A value is published; false if the path holds jobs.
    pub(super) fn publish(&self, path: &Path, options: ValueOptions) -> bool {
        let mut names = self.names.names.lock();
        if names.queues.contains(path) {
            return false;
        }
        names.values.insert(path.clone());
        if let (Some(client), Some(terms)) = (&self.client, terms(options)) {
            client.publish(path.clone(), &terms);
        }
        true
    }

    /// A value is let go. A queue that was made there meanwhile is found now.
    pub(super) fn unpublish(&self, path: &Path) {
        let mut names = self.names.names.lock();
        names.values.remove(path);
        let Some(client) = &self.client else { return };
        match &self.queue_terms {
            Some(terms) if names.queues.contains(path) => client.publish(path.clone(), terms),
            _ => client.unpublish(path.clone()),
        }
    }

    /// A default is declared; false if it is one for queues.
    pub(super) fn publish_default(&self, path: &Path) -> bool {
        if self.names.names.lock().queue_defaults.contains(path) {
            return false;
        }
        if let (Some(client), Some(terms)) = (&self.client, terms(self.usual)) {
            client.publish_default(path.clone(), &terms);
        }
        true
    }

    /// A default is taken back.
    pub(super) fn unpublish_default(&self, path: &Path) {
        if let Some(client) = &self.client {
            client.unpublish_default(path.clone());
        }
    }
}

fn terms(options: ValueOptions) -> Option<PublicationTerms> {
    let ValueOptions { priority, weight } = options;
    // Only homes can make terms that are refused, and a value has none.
    PublicationTerms::new(Terms {
        kind: PublicationKind::Value,
        priority,
        weight,
        ..Terms::default()
    })
    .ok()
}
