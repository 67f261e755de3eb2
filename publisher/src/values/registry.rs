//! Registration of values at the resolver, and which of a publisher's paths are queues or values.

use std::sync::Arc;

use hashbrown::HashSet;
use longshore_protocol::{Path, PublicationKind, Terms};
use longshore_resolver::{CheckedTerms, WriteClient};
use parking_lot::Mutex;

use super::ValueOptions;

/// Which of a publisher's paths hold jobs, and which a live value. Consulted when a value or queue
/// is created or removed, and by batches for paths that are no queue yet; never for an existing
/// queue.
#[derive(Debug, Default)]
pub(crate) struct PathKinds {
    kinds: Mutex<KindTable>,
}

#[derive(Debug, Default)]
struct KindTable {
    queues: HashSet<Path>,
    queue_defaults: HashSet<Path>,
    values: HashSet<Path>,
}

impl PathKinds {
    /// With these queues, and these defaults for queues.
    pub(crate) fn of_queues(
        queues: impl IntoIterator<Item = Path>,
        defaults: impl IntoIterator<Item = Path>,
    ) -> PathKinds {
        let (queues, queue_defaults) = (HashSet::from_iter(queues), HashSet::from_iter(defaults));
        PathKinds {
            kinds: Mutex::new(KindTable { queues, queue_defaults, values: HashSet::new() }),
        }
    }

    /// A queue was created.
    pub(crate) fn add_queue(&self, path: &Path) {
        self.kinds.lock().queues.insert(path.clone());
    }

    /// True if the path holds jobs.
    pub(crate) fn is_queue(&self, path: &Path) -> bool {
        self.kinds.lock().queues.contains(path)
    }

    /// Calls `create`, which may create queues: its argument tests whether a path holds a value,
    /// and it returns the paths that it created. No value is published meanwhile, so no path ever
    /// holds both.
    pub(crate) fn make_queues<E>(
        &self,
        create: impl FnOnce(&dyn Fn(&Path) -> bool) -> Result<Vec<Path>, E>,
    ) -> Result<(), E> {
        let mut kinds = self.kinds.lock();
        let KindTable { queues, values, .. } = &mut *kinds;
        queues.extend(create(&|path| !values.is_empty() && values.contains(path))?);
        Ok(())
    }

    /// True if the path holds a value: then the resolver knows it as a value.
    pub(crate) fn is_value(&self, path: &Path) -> bool {
        self.kinds.lock().values.contains(path)
    }
}

/// The publisher's entries in the resolver that are values.
pub(crate) struct ValueRegistry {
    client: Option<WriteClient>,
    kinds: Arc<PathKinds>,
    /// The terms on which its queues are published.
    queue_terms: Option<CheckedTerms>,
    /// The terms of its values and defaults that have none of their own.
    default_options: ValueOptions,
}

impl ValueRegistry {
    pub(crate) fn new(
        client: Option<WriteClient>,
        kinds: Arc<PathKinds>,
        queue_terms: Option<CheckedTerms>,
        default_options: ValueOptions,
    ) -> ValueRegistry {
        ValueRegistry { client, kinds, queue_terms, default_options }
    }

    /// The terms of values that have none of their own.
    pub(super) fn default_options(&self) -> ValueOptions {
        self.default_options
    }

    /// True if the path holds jobs here.
    pub(super) fn is_queue(&self, path: &Path) -> bool {
        self.kinds.is_queue(path)
    }

    /// Publishes a value; false if the path holds jobs.
    pub(super) fn publish(&self, path: &Path, options: ValueOptions) -> bool {
        let mut kinds = self.kinds.kinds.lock();
        if kinds.queues.contains(path) {
            return false;
        }
        kinds.values.insert(path.clone());
        if let (Some(client), Some(terms)) = (&self.client, terms(options)) {
            client.publish(path.clone(), &terms);
        }
        true
    }

    /// Withdraws a value. If a queue was created at its path meanwhile, it is published instead.
    pub(super) fn unpublish(&self, path: &Path) {
        let mut kinds = self.kinds.kinds.lock();
        kinds.values.remove(path);
        let Some(client) = &self.client else { return };
        match &self.queue_terms {
            Some(terms) if kinds.queues.contains(path) => client.publish(path.clone(), terms),
            _ => client.unpublish(path.clone()),
        }
    }

    /// Publishes a default; false if it is a default for queues.
    pub(super) fn publish_default(&self, path: &Path) -> bool {
        if self.kinds.kinds.lock().queue_defaults.contains(path) {
            return false;
        }
        if let (Some(client), Some(terms)) = (&self.client, terms(self.default_options)) {
            client.publish_default(path.clone(), &terms);
        }
        true
    }

    /// Withdraws a default.
    pub(super) fn unpublish_default(&self, path: &Path) {
        if let Some(client) = &self.client {
            client.unpublish_default(path.clone());
        }
    }
}

fn terms(options: ValueOptions) -> Option<CheckedTerms> {
    let ValueOptions { priority, weight } = options;
    // Only homes can make terms invalid, and a value has none.
    CheckedTerms::new(Terms { kind: PublicationKind::Value, priority, weight, ..Terms::default() })
        .ok()
}
