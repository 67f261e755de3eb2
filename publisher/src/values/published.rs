//! One published value, as its program holds it.

use std::sync::Arc;

use longshore_protocol::Value;

use super::core::SlotKey;
use super::{Shared, UpdateError, Writes};

/// A value that is published. Dropped, it is not any more: its subscribers get its last update, and
/// then the news that it has ended.
pub struct Published {
    shared: Arc<Shared>,
    key: SlotKey,
}

impl Published {
    pub(super) fn new(shared: Arc<Shared>, key: SlotKey) -> Published {
        Published { shared, key }
    }

    #[inline]
    pub(super) fn key(&self) -> SlotKey {
        self.key
    }

    #[inline]
    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Changes the value: a batch of one update. Every subscriber is sent it; none is waited for.
    pub fn set(&self, value: impl Into<Value>) -> Result<(), UpdateError> {
        let value = value.into();
        value.encoded_len()?;
        self.shared.core.lock().commit(&[(self.key, value)]);
        Ok(())
    }

    /// The value as it is: what was set last.
    pub fn current(&self) -> Value {
        self.shared.core.lock().current(self.key).unwrap_or_default()
    }

    /// How many subscriptions stand, each of another link.
    pub fn subscribers(&self) -> usize {
        self.shared.core.lock().subscribers(self.key)
    }

    /// Waits until there is a subscriber. Cancel safe.
    pub async fn subscribed(&self) {
        self.wait(|subscribers| subscribers > 0).await;
    }

    /// Waits until there is no subscriber. Cancel safe.
    pub async fn unsubscribed(&self) {
        self.wait(|subscribers| subscribers == 0).await;
    }

    async fn wait(&self, reached: impl Fn(usize) -> bool) {
        let Some(bell) = self.shared.core.lock().links_changed(self.key) else { return };
        loop {
            let mut changed = std::pin::pin!(bell.notified());
            changed.as_mut().enable();
            if reached(self.subscribers()) {
                return;
            }
            changed.await;
        }
    }

    /// What subscribers write to it, from now on; until then, and once this is dropped, their
    /// writes are refused. `None` while there is one already: a write goes to one taker.
    pub fn writes(&self) -> Option<Writes> {
        Writes::of(self.shared.clone(), self.key)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.shared.unpublish(self.key);
    }
}

impl std::fmt::Debug for Published {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Published").field("slot", &self.key.slot).finish()
    }
}
