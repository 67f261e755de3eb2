//! The commit watermark: how far commits have come, in its own file. It distinguishes a torn tail
//! from damage.
//!
//! ```text
//! watermark:  slot │ slot │ slot
//! slot:  a block of 4096: magic 8 │ journal 16 │ index 8 │ count 8 │ CRC 4 │ 0 …
//! ```
//! The first slot is written after each commit without a sync: it survives the process. The others
//! are written in turn and synced within a second: one of them always survives a power cut.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_protocol::PublisherId;

use crate::journal::files::{JournalFile, unless_unreadable};
use crate::journal::wal::format::u64_at;

/// The name of the file.
pub(crate) const WATERMARK_FILE: &str = "watermark";
const SLOT_BYTES: usize = 4096;
const SLOTS: usize = 3;
const MAGIC: &[u8; 8] = b"LONGMRK\n";
const CRC_AT: usize = 40;
const USED: usize = CRC_AT + 4;

/// The commit watermark of an open journal.
pub(crate) struct CommitWatermark {
    file: Arc<dyn JournalFile>,
    pub(crate) path: PathBuf,
    journal: PublisherId,
    /// Number of synced watermarks written: selects the slot.
    count: AtomicU64,
}

/// The content of a watermark file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoredWatermark {
    /// The highest index of a valid slot; none without a valid slot.
    pub(crate) index: Option<u64>,
    count: u64,
    /// The disk cannot read one: it is written again whole, which may replace the bad sector.
    pub(crate) has_unreadable_slot: bool,
}

impl CommitWatermark {
    pub(crate) fn new(
        file: Arc<dyn JournalFile>,
        path: PathBuf,
        journal: PublisherId,
        read: StoredWatermark,
    ) -> CommitWatermark {
        CommitWatermark { file, path, journal, count: AtomicU64::new(read.count) }
    }

    /// Reads every slot.
    pub(crate) fn read(
        file: &dyn JournalFile,
        journal: PublisherId,
    ) -> io::Result<StoredWatermark> {
        let mut read = StoredWatermark { index: None, count: 0, has_unreadable_slot: false };
        for position in 0..SLOTS {
            let mut slot = [0; SLOT_BYTES];
            let at = (position * SLOT_BYTES) as u64;
            read.has_unreadable_slot |= unless_unreadable(file.read_at(&mut slot, at))?.is_none();
            let crc = u32::from_le_bytes([slot[40], slot[41], slot[42], slot[43]]);
            let good = &slot[..8] == MAGIC
                && slot[8..24] == journal.0
                && crc32c::crc32c(&slot[..CRC_AT]) == crc;
            if good {
                read.index = read.index.max(Some(u64_at(&slot, 24)));
                read.count = read.count.max(u64_at(&slot, 32));
            }
        }
        Ok(read)
    }

    /// Writes the watermark without a sync.
    pub(crate) fn note(&self, index: u64) -> io::Result<()> {
        let slot = self.slot(index, self.count.load(Ordering::Relaxed));
        self.file.write_at(&slot[..USED], 0)
    }

    /// Writes and syncs the watermark.
    pub(crate) fn write_durable(&self, index: u64) -> io::Result<()> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let position = 1 + count % (SLOTS as u64 - 1);
        self.file.write_at(&self.slot(index, count), position * SLOT_BYTES as u64)?;
        self.file.sync_data()
    }

    /// Writes and syncs the watermark in every slot, even if it is lower than before.
    pub(crate) fn reset(&self, index: u64) -> io::Result<()> {
        self.file.write_at(&self.slot(index, self.count.load(Ordering::Relaxed)), 0)?;
        self.write_durable(index)?;
        self.write_durable(index)
    }

    fn slot(&self, index: u64, count: u64) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(MAGIC);
        slot[8..24].copy_from_slice(&self.journal.0);
        slot[24..32].copy_from_slice(&index.to_le_bytes());
        slot[32..40].copy_from_slice(&count.to_le_bytes());
        let crc = crc32c::crc32c(&slot[..CRC_AT]);
        slot[CRC_AT..USED].copy_from_slice(&crc.to_le_bytes());
        slot
    }
}
