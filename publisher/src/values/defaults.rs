//! Defaults, as their program holds them.

use std::sync::Arc;

use longshore_protocol::{Path, Value};

use super::core::{Bell, DefaultId, RequestId, Requests, SlotRefusal};
use super::{PublishError, Published, Shared, Values};

/// A path at and below which values are made when somebody asks for them
/// ([`Values::publish_default`]). Dropped, it is taken back; values that it made stay as long as
/// their [`Published`].
pub struct ValueDefault {
    shared: Arc<Shared>,
    path: Path,
    id: DefaultId,
    bell: Bell,
}

/// A path that somebody asks for. Whoever asks waits for 10 s at most; dropped, this is a refusal.
pub struct Requested {
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
        let (id, bell) = declared?;
        if !shared.directory.publish_default(&path) {
            core.unpublish_default(&path, id);
            return Err(PublishError::IsQueue(path));
        }
        drop(core);
        Ok(ValueDefault { shared, path, id, bell })
    }

    /// The next path that somebody asks for; at most 4,096 wait. `None` once the default is no
    /// more. Cancel safe.
    pub async fn next(&mut self) -> Option<Requested> {
        loop {
            let next = self.shared.core.lock().next_request(&self.path, self.id);
            match next {
                Requests::Asked(path, id) => {
                    let values = Values { shared: self.shared.clone() };
                    return Some(Requested { values, path, id, open: true });
                }
                Requests::Nothing => self.bell.notified().await,
                Requests::Gone => return None,
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

impl Requested {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the value: all who asked for it get it.
    pub fn publish(mut self, value: impl Into<Value>) -> Result<Published, PublishError> {
        // A path of Longshore's own is asked of its own defaults alone.
        let options = self.values.shared.directory.usual();
        let published = self.values.publish_any(self.path.clone(), value.into(), options);
        self.open = published.is_err();
        published
    }

    /// Does not make it: whoever asked is refused, with this reason.
    pub fn refuse(mut self, reason: &str) {
        self.decline(Some(reason));
    }

    fn decline(&mut self, reason: Option<&str>) {
        if std::mem::take(&mut self.open) {
            self.values.shared.core.lock().decline(&self.path, self.id, reason);
        }
    }
}

impl Drop for Requested {
    fn drop(&mut self) {
        self.decline(None);
    }
}

impl std::fmt::Debug for ValueDefault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueDefault").field("path", &self.path).finish()
    }
}

impl std::fmt::Debug for Requested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requested").field("path", &self.path).finish()
    }
}
