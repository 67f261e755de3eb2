//! A log in memory: the smallest that keeps every promise of [`Log`] but the one about power.

use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::{PublisherId, WireError};
use parking_lot::Mutex;

use crate::journal::Replayed;
use crate::log::{Log, LogFigures, Piece, Poisoned, ReadError, Reader, Records};
use crate::{Now, RecordRef};

/// What a [`MemoryLog`] writes to: it outlives the log, as a disk does. Its clones are the same one.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    publisher: PublisherId,
    records: Arc<Mutex<Vec<Record>>>,
}

/// Commands in memory, committed by the next [`Log::flush`]. What was not flushed is lost with the log.
#[derive(Debug)]
pub struct MemoryLog {
    disk: MemoryDisk,
    batch: Vec<Record>,
    committed: u64,
    figures: LogFigures,
}

#[derive(Clone, Debug)]
struct Record {
    now: Now,
    kind: u8,
    head: Bytes,
    body: Bytes,
}

impl MemoryDisk {
    /// An empty one, of that publisher.
    pub fn new(publisher: PublisherId) -> MemoryDisk {
        MemoryDisk { publisher, records: Arc::default() }
    }

    /// Whose it is.
    pub fn publisher(&self) -> PublisherId {
        self.publisher
    }
}

impl MemoryLog {
    /// Opens what is on the disk, and replays every command in order.
    pub fn open(
        disk: &MemoryDisk,
        replay: &mut dyn FnMut(Replayed) -> Result<(), WireError>,
    ) -> Result<MemoryLog, WireError> {
        let records = disk.records.lock().clone();
        let committed = records.len() as u64;
        for (index, record) in (1..).zip(records) {
            let body = record.whole();
            replay(Replayed { index, now: record.now, kind: record.kind, body })?;
        }
        let figures = LogFigures::default();
        Ok(MemoryLog { disk: disk.clone(), batch: Vec::new(), committed, figures })
    }
}

impl Record {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    fn whole(&self) -> Bytes {
        [&self.head[..], &self.body[..]].concat().into()
    }
}

impl Log for MemoryLog {
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned> {
        self.batch.push(Record { now, kind, head, body });
        Ok(self.appended())
    }

    fn sync(&mut self) {}

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let bytes = self.uncommitted_bytes() as u64;
        self.figures.bytes += bytes;
        self.figures.written_bytes += bytes;
        self.figures.commits += 1;
        self.figures.syncs += 1;
        self.committed += self.batch.len() as u64;
        self.disk.records.lock().append(&mut self.batch);
    }

    fn appended(&self) -> u64 {
        self.committed + self.batch.len() as u64
    }

    fn committed(&self) -> u64 {
        self.committed
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        if self.committed <= index {
            // Nobody else can append or flush while this waits.
            std::future::pending::<()>().await;
        }
        Ok(self.committed)
    }

    fn uncommitted_bytes(&self) -> usize {
        // A command without a body counts, too.
        self.batch.iter().map(|record| record.len() + 1).sum()
    }

    fn reader(&self) -> Reader {
        Reader::new(Arc::new(self.disk.clone()))
    }

    fn figures(&self) -> LogFigures {
        self.figures
    }
}

impl Records for MemoryDisk {
    fn piece(&self, at: RecordRef) -> Result<Piece, ReadError> {
        let records = self.records.lock();
        let place = usize::try_from(at.index).ok().and_then(|index| index.checked_sub(1));
        let record = place.and_then(|place| records.get(place));
        let record = record.ok_or(ReadError::NotThere { index: at.index })?;
        Ok(Piece { from: 0, bytes: record.whole() })
    }
}
