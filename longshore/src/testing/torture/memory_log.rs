//! A log in memory: everything is committed as soon as it is appended.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use longshore_queue::{
    BodyBlock, Log, LogMetrics, LogReadError, LogReader, Now, Poisoned, RecordRef, Records,
};

/// The bodies of all commands; index 1 is the first.
#[derive(Default)]
pub(super) struct MemoryLog {
    bodies: Arc<Bodies>,
    appended: u64,
}

#[derive(Default)]
struct Bodies(RwLock<Vec<Bytes>>);

impl Records for Bodies {
    fn block(&self, at: RecordRef) -> Result<BodyBlock, LogReadError> {
        let bodies = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let body = at.index.checked_sub(1).and_then(|index| bodies.get(index as usize));
        let bytes = body.ok_or(LogReadError::NotFound { index: at.index })?.clone();
        Ok(BodyBlock { from: 0, bytes })
    }
}

impl Log for MemoryLog {
    fn append(&mut self, _: Now, _: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned> {
        let whole = if body.is_empty() { head } else { [&head[..], &body[..]].concat().into() };
        self.bodies.0.write().unwrap_or_else(PoisonError::into_inner).push(whole);
        self.appended += 1;
        Ok(self.appended)
    }

    fn sync(&mut self) {}

    fn flush(&mut self) {}

    fn appended(&self) -> u64 {
        self.appended
    }

    fn committed(&self) -> u64 {
        self.appended
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        if self.appended <= index {
            std::future::pending::<()>().await;
        }
        Ok(self.appended)
    }

    fn uncommitted_bytes(&self) -> usize {
        0
    }

    fn reader(&self) -> LogReader {
        LogReader::new(self.bodies.clone())
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics::default()
    }
}
