//! Handles for defaults, and for the values that subscribers request below them.

use std::sync::Arc;

use longshore_protocol::{Path, Value};

use super::core::{DefaultId, NextRequest, RequestId, SlotRefusal, Wakeup};
use super::{PublishError, Published, Shared, Values};

/// A path at and below which values are created on request ([`Values::publish_default`]). Dropping
/// it removes the default; values that it created live as long as their [`Published`].
pub struct ValueDefault {
    shared: Arc<Shared>,
    path: Path,
    id: DefaultId,
    wakeup: Wakeup,
}

/// A requested path. The subscriber waits for 10 s at most; dropping this refuses it.
pub struct ValueRequest {
    values: Values,
    path: Path,
    id: RequestId,
    open: bool,
}

impl ValueDefault {
    pub(super) fn declare(shared: Arc<Shared>, path: Path) -> Result<ValueDefault, PublishError> {
        let mut core = shared.core.lock();
        let declared = core.publish_default(&path).map_err(|refusal| match refusal {
            SlotRefusal::Taken => PublishError::Taken(path.clone()),
            SlotRefusal::Full => PublishError::TooManyDefaults,
        });
        let (id, wakeup) = declared?;
        if !shared.directory.publish_default(&path) {
            core.unpublish_default(&path, id);
            return Err(PublishError::IsQueue(path));
        }
        drop(core);
        Ok(ValueDefault { shared, path, id, wakeup })
    }

    /// The next requested path; at most 4,096 wait. `None` once the default is removed. Cancel
    /// safe.
    pub async fn next(&mut self) -> Option<ValueRequest> {
        loop {
            let next = self.shared.core.lock().next_request(&self.path, self.id);
            match next {
                NextRequest::Ready(path, id) => {
                    let values = Values { shared: self.shared.clone() };
                    return Some(ValueRequest { values, path, id, open: true });
                }
                NextRequest::Empty => self.wakeup.notified().await,
                NextRequest::Gone => return None,
            }
        }
    }
}

impl Drop for ValueDefault {
    fn drop(&mut self) {
        let mut core = self.shared.core.lock();
        if core.unpublish_default(&self.path, self.id) {
            self.shared.directory.unpublish_default(&self.path);
        }
    }
}

impl ValueRequest {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Publishes the value: every subscriber that requested it receives it.
    pub fn publish(mut self, value: impl Into<Value>) -> Result<Published, PublishError> {
        // Paths below `/sys` are requested only from Longshore's own defaults.
        let options = self.values.shared.directory.default_options();
        let published = self.values.publish_any(self.path.clone(), value.into(), options);
        self.open = published.is_err();
        published
    }

    /// Declines: the subscribers are refused with this reason.
    pub fn refuse(mut self, reason: &str) {
        self.decline(Some(reason));
    }

    fn decline(&mut self, reason: Option<&str>) {
        if std::mem::take(&mut self.open) {
            self.values.shared.core.lock().decline(&self.path, self.id, reason);
        }
    }
}

impl Drop for ValueRequest {
    fn drop(&mut self) {
        self.decline(None);
    }
}

impl std::fmt::Debug for ValueDefault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueDefault").field("path", &self.path).finish()
    }
}

impl std::fmt::Debug for ValueRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueRequest").field("path", &self.path).finish()
    }
}
