//! One published value, as its program uses it.

use std::sync::Arc;

use longshore_protocol::Value;

use super::core::SlotKey;
use super::{Shared, UpdateError, Writes};

/// A published value. Dropping it withdraws the value: subscribers receive its last update, and
/// then the end.
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

    /// Changes the value: a batch of one update. It is sent to every subscriber, and waits for
    /// none.
    pub fn set(&self, value: impl Into<Value>) -> Result<(), UpdateError> {
        let value = value.into();
        value.encoded_len()?;
        self.shared.core.lock().commit(&[(self.key, value)]);
        Ok(())
    }

    /// Like [`set`](Published::set), but does nothing if the value is equal to the current one.
    /// Returns whether it changed.
    pub fn set_changed(&self, value: impl Into<Value>) -> Result<bool, UpdateError> {
        let value = value.into();
        value.encoded_len()?;
        let mut core = self.shared.core.lock();
        let changed = core.current(self.key).as_ref() != Some(&value);
        if changed {
            core.commit(&[(self.key, value)]);
        }
        Ok(changed)
    }

    /// The current value.
    pub fn current(&self) -> Value {
        self.shared.core.lock().current(self.key).unwrap_or_default()
    }

    /// The number of subscribed links.
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
        let Some(wakeup) = self.shared.core.lock().links_changed(self.key) else { return };
        loop {
            let mut changed = std::pin::pin!(wakeup.notified());
            changed.as_mut().enable();
            if reached(self.subscribers()) {
                return;
            }
            changed.await;
        }
    }

    /// The writes of subscribers, from now on; before, and once this is dropped, writes are
    /// refused. `None` while another `Writes` exists.
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
