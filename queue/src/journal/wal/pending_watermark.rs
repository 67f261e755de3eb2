//! The next commit watermark, and the files to sync before it. Not the sync before an
//! acknowledgement: that is in `writer.rs`.

use std::sync::Arc;

use crate::Poisoned;
use crate::journal::files::JournalFile;
use crate::journal::files::directory::{Directory, poisoned};
use crate::journal::wal::commit_watermark::CommitWatermark;

/// The files to sync, and the index of the next commit watermark.
pub(crate) struct PendingWatermark {
    /// The last reported index. Other threads see a commit before its file is added here: their
    /// index may be too high.
    index: u64,
    /// Written and not yet synced files: only without durability.
    unsynced: Vec<Arc<dyn JournalFile>>,
}

impl PendingWatermark {
    /// Everything up to `index` is synced.
    pub(crate) fn new(index: u64) -> PendingWatermark {
        PendingWatermark { index, unsynced: Vec::new() }
    }

    /// The index of the next commit watermark.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// Notes that everything up to `index` is committed, the last of it to `file`.
    pub(crate) fn note(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool) {
        self.index = index;
        if !synced && !self.unsynced.last().is_some_and(|last| Arc::ptr_eq(last, file)) {
            self.unsynced.push(Arc::clone(file));
        }
    }

    /// Takes everything pending; later commits are pending again.
    pub(crate) fn take(&mut self) -> PendingWatermark {
        PendingWatermark { index: self.index, unsynced: std::mem::take(&mut self.unsynced) }
    }

    /// Syncs the files, then writes the watermark.
    pub(crate) fn sync(
        &self,
        directory: &Directory,
        watermark: &CommitWatermark,
    ) -> Result<(), Poisoned> {
        for file in &self.unsynced {
            let dir = directory.segments_dir();
            file.sync_data().map_err(|error| poisoned("syncing a segment in", &dir, error))?;
        }
        watermark
            .write_durable(self.index)
            .map_err(|error| poisoned("syncing", &watermark.path, error))
    }
}
