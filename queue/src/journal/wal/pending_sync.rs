//! The next commit watermark, and the files to sync before it.

use std::sync::Arc;

use crate::Poisoned;
use crate::journal::files::JournalFile;
use crate::journal::files::directory::{Directory, poisoned};
use crate::journal::wal::commit_watermark::CommitWatermark;

/// What is owed to the mark.
pub(crate) struct PendingSync {
    /// The last index that was told. Others see a commit earlier, before its file stands here:
    /// their index may be too high.
    index: u64,
    /// Files written to and not synced: only without durability.
    unsynced: Vec<Arc<dyn JournalFile>>,
}

impl PendingSync {
    /// All up to that command is on the disk.
    pub(crate) fn new(index: u64) -> PendingSync {
        PendingSync { index, unsynced: Vec::new() }
    }

    /// The last command that the mark is to tell of.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// All up to `index` is committed, the last of it to that file.
    pub(crate) fn note(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool) {
        self.index = index;
        if !synced && !self.unsynced.last().is_some_and(|last| Arc::ptr_eq(last, file)) {
            self.unsynced.push(Arc::clone(file));
        }
    }

    /// All of it, to be made firm; what comes later is owed anew.
    pub(crate) fn take(&mut self) -> PendingSync {
        PendingSync { index: self.index, unsynced: std::mem::take(&mut self.unsynced) }
    }

    /// Syncs what has to be, then says so.
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
