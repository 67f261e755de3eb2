//! Updates that are committed together.

use std::sync::Arc;

use longshore_protocol::Value;

use super::core::SlotKey;
use super::{Published, Shared, UpdateError};

/// Updates of one publisher's values. [`Batch::commit`] applies them, all at once and in order; a
/// batch that is dropped applies none.
///
/// The larger a batch, the cheaper each update: a commit takes the lock once and writes to each
/// subscriber once.
#[must_use = "updates are applied by `commit`"]
pub struct Batch {
    shared: Arc<Shared>,
    updates: Vec<(SlotKey, Value)>,
    /// The updates that apply only if they change their value, ascending.
    only_changes: Vec<usize>,
}

impl Batch {
    pub(super) fn new(shared: Arc<Shared>) -> Batch {
        Batch { shared, updates: Vec::new(), only_changes: Vec::new() }
    }

    /// Adds an update. An update of a value that is dropped before the commit is ignored. After an
    /// error the batch is unchanged.
    #[inline]
    pub fn update(
        &mut self,
        published: &Published,
        value: impl Into<Value>,
    ) -> Result<(), UpdateError> {
        let value = value.into();
        value.encoded_len()?;
        if !published.is_of(&self.shared) {
            return Err(UpdateError::OtherPublisher);
        }
        self.updates.push((published.key(), value));
        Ok(())
    }

    /// Like [`update`](Batch::update), but the commit leaves the update out if the value is equal
    /// to the one before it, earlier updates of this batch included.
    pub fn update_changed(
        &mut self,
        published: &Published,
        value: impl Into<Value>,
    ) -> Result<(), UpdateError> {
        self.update(published, value)?;
        self.only_changes.push(self.updates.len() - 1);
        Ok(())
    }

    /// The number of updates.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// True if there are no updates.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Applies the updates and empties the batch for reuse. Every subscriber sees commits in their
    /// order. Never waits for a subscriber.
    pub fn commit(&mut self) {
        let mut core = self.shared.core.lock();
        if !self.only_changes.is_empty() {
            core.remove_unchanged(&mut self.updates, &self.only_changes);
            self.only_changes.clear();
        }
        core.commit(&self.updates);
        self.updates.clear();
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("updates", &self.len()).finish()
    }
}
