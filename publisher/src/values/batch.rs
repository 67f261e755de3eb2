//! Updates that are made together.

use std::sync::Arc;

use longshore_protocol::Value;

use super::core::SlotKey;
use super::{Published, Shared, UpdateError};

/// Updates of one publisher's values. [`Batch::commit`] makes them, all at once and in their order;
/// a batch that is dropped makes none.
///
/// The larger a batch the cheaper each update: a commit takes the lock, and writes to each
/// subscriber, once.
#[must_use = "updates are made by `commit`"]
pub struct Batch {
    shared: Arc<Shared>,
    updates: Vec<(SlotKey, Value)>,
}

impl Batch {
    pub(super) fn new(shared: Arc<Shared>) -> Batch {
        Batch { shared, updates: Vec::new() }
    }

    /// Adds an update. One of a value that is dropped before the commit is passed over. After an
    /// error the batch is as it was.
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

    /// How many updates it holds.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// True if it holds none.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Makes the updates, and leaves the batch empty, to be used again. Commits are made one after
    /// another, and every subscriber sees them in that order. Never waits for a subscriber.
    pub fn commit(&mut self) {
        self.shared.core.lock().commit(&self.updates);
        self.updates.clear();
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("updates", &self.len()).finish()
    }
}
