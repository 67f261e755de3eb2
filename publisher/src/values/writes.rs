//! Writes, as the value's program receives them.

use std::sync::Arc;

use longshore_protocol::Value;
use longshore_protocol::messages::values::{WriteRefusal, WriteRefused};

use super::core::{SlotKey, Wakeup, WriteId};
use super::{Shared, now};

/// The writes of subscribers to one value ([`Published::writes`](super::Published::writes)). At
/// most 1,024 wait here, and 16 MiB; more are refused.
pub struct Writes {
    shared: Arc<Shared>,
    key: SlotKey,
    wakeup: Wakeup,
}

/// A write. Its subscriber receives the answer if it requested one and the deadline has not passed.
/// Dropping the write without an answer refuses it.
pub struct Write {
    shared: Arc<Shared>,
    id: Option<WriteId>,
    value: Value,
    by: Arc<str>,
}

impl Writes {
    pub(super) fn of(shared: Arc<Shared>, key: SlotKey) -> Option<Writes> {
        let wakeup = shared.core.lock().accept_writes(key)?;
        Some(Writes { shared, key, wakeup })
    }

    /// The next write whose deadline has not passed; none once the value is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Write> {
        loop {
            // One receiver, and `Notify` stores one permit: no write is missed.
            let next = self.shared.core.lock().next_write(self.key, now());
            match next {
                Ok(Some(write)) => {
                    let shared = self.shared.clone();
                    return Some(Write { shared, id: write.id, value: write.value, by: write.by });
                }
                Ok(None) => self.wakeup.notified().await,
                Err(()) => return None,
            }
        }
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.shared.core.lock().stop_writes(self.key);
    }
}

impl Write {
    /// The written value.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The name of the subscriber's process.
    pub fn by(&self) -> &str {
        &self.by
    }

    /// True if the subscriber waits for an answer.
    pub fn wants_receipt(&self) -> bool {
        self.id.is_some()
    }

    /// Accepts the write: answers with [`Value::Null`].
    pub fn accept(self) {
        self.answer(Value::Null);
    }

    /// Accepts the write, and answers with a value. Never waits. Of a value over the limits, the
    /// subscriber receives [`WriteRefusal::BadAnswer`].
    pub fn answer(mut self, value: impl Into<Value>) {
        let value = value.into();
        match value.encoded_len() {
            Ok(_) => self.settle(Ok(value)),
            Err(error) => self.end(WriteRefusal::BadAnswer, &error.to_string()),
        }
    }

    /// Refuses the write, with a reason.
    pub fn refuse(self, reason: &str) {
        self.end(WriteRefusal::Refused, reason);
    }

    pub(super) fn end(mut self, code: WriteRefusal, reason: &str) {
        self.settle(Err(WriteRefused { code, reason: reason.to_owned() }));
    }

    fn settle(&mut self, outcome: Result<Value, WriteRefused>) {
        if let Some(id) = self.id.take() {
            self.shared.core.lock().answer(id, outcome);
        }
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        let (code, reason) = (WriteRefusal::Refused, "the program has not answered".to_owned());
        self.settle(Err(WriteRefused { code, reason }));
    }
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writes").field("slot", &self.key.slot).finish()
    }
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write").field("value", &self.value).field("by", &self.by).finish()
    }
}
