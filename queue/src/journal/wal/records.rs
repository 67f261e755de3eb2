//! The records of an open journal: their locations and parts, for any thread.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::journal::compaction::compacted::{self, PartRead};
use crate::journal::files::JournalFile;
use crate::journal::files::directory::Directory;
use crate::journal::wal::block_cache::BlockCache;
use crate::journal::wal::format::crc_seed;
use crate::journal::wal::locations::{Bounds, Locations, RecordLocation, Run};
use crate::journal::wal::record_reader::{AHEAD_BYTES, BodyRead, RecordReader, damaged, failed};
use crate::log::{BodyBlock, LogReadError, Records};
use crate::{Now, RecordRef};

/// Most files open for reading.
const OPEN_FILES_MAX: usize = 64;
/// The records of a journal, readable from any thread.
pub(crate) struct JournalRecords {
    directory: Arc<Directory>,
    locations: RwLock<Locations>,
    open: Mutex<VecDeque<(u64, Arc<dyn JournalFile>)>>,
    cache: Mutex<BlockCache>,
    /// Locked shared while a file is read, from opening it to reading its bytes.
    reading: RwLock<()>,
}

impl JournalRecords {
    pub(crate) fn new(directory: Arc<Directory>, locations: Locations) -> JournalRecords {
        JournalRecords {
            directory,
            locations: RwLock::new(locations),
            open: Mutex::default(),
            cache: Mutex::default(),
            reading: RwLock::default(),
        }
    }

    /// Adds consecutive committed records of one segment; the last one ends at `end`.
    pub(crate) fn extend(&self, sequence: u64, first: u64, offsets: &[u32], end: u32) {
        self.locations.write().extend(sequence, first, offsets, end);
    }

    /// The locations of all records up to `index`.
    pub(crate) fn locations_up_to(&self, index: u64) -> Locations {
        self.locations.read().up_to(index)
    }

    /// The bounds of all runs, in the order of their commands.
    pub(crate) fn bounds(&self) -> Vec<Bounds> {
        self.locations.read().runs().iter().map(Run::bounds).collect()
    }

    /// Replaces runs by compacted ones.
    pub(crate) fn replace(&self, compacted: Vec<Run>) {
        self.locations.write().replace(compacted);
        self.close_unreferenced();
    }

    /// Drops all locations in a file that is about to be removed.
    pub(crate) fn forget(&self, sequence: u64) {
        self.locations.write().forget(sequence);
        self.close_unreferenced();
    }

    /// Waits until nobody reads a file that was dropped and retired before this call: a file must
    /// not be truncated while it is read.
    pub(crate) fn wait_for_readers(&self) {
        drop(self.reading.write());
    }

    /// Closes the files that no run references: while they are open, removing them frees nothing.
    fn close_unreferenced(&self) {
        let mut open = self.open.lock();
        let locations = self.locations.read();
        open.retain(|(sequence, _)| locations.references(*sequence));
    }

    /// Blocks truncation, as a reader does.
    #[cfg(test)]
    pub(crate) fn start_reading(&self) -> parking_lot::RwLockReadGuard<'_, ()> {
        self.reading.read()
    }

    /// Whether any file is being read.
    #[cfg(test)]
    pub(crate) fn has_readers(&self) -> bool {
        self.reading.try_write().is_none()
    }

    /// The sequences of the files that are open.
    #[cfg(test)]
    pub(crate) fn open_files(&self) -> std::collections::BTreeSet<u64> {
        self.open.lock().iter().map(|(sequence, _)| *sequence).collect()
    }

    fn file(&self, sequence: u64, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        let mut open = self.open.lock();
        if let Some((_, file)) = open.iter().find(|(open, _)| *open == sequence) {
            return Ok(Arc::clone(file));
        }
        let file = self.directory.files.open(path)?;
        // Do not cache a file that was dropped meanwhile: it would never be closed.
        if !self.locations.read().references(sequence) {
            return Ok(file);
        }
        if open.len() == OPEN_FILES_MAX {
            open.pop_front();
        }
        open.push_back((sequence, Arc::clone(&file)));
        Ok(file)
    }
}

impl Records for JournalRecords {
    fn block(&self, at: RecordRef) -> Result<BodyBlock, LogReadError> {
        self.block_with_cache(at, &self.cache)
    }
}

/// A cache for one bulk reader, so that the shared cache stays unchanged.
#[derive(Default)]
pub(crate) struct PrivateCache {
    cache: Mutex<BlockCache>,
}

impl JournalRecords {
    /// The same as [`Records::part`].
    pub(crate) fn part_with_cache(
        &self,
        at: RecordRef,
        cache: &mut PrivateCache,
    ) -> Result<Bytes, LogReadError> {
        self.block_with_cache(at, &cache.cache)?.part_or_error(at)
    }

    /// When a command was logged, from its record or the compacted record of that part; unverified.
    pub(crate) fn now_of(&self, index: u64, at: u32) -> Result<Now, LogReadError> {
        let located = self.locations.read().locate(index, at);
        let location = located.ok_or(LogReadError::NotFound { index })?;
        let path = self.directory.path_of(location.sequence, location.compacted);
        let _reading = self.reading.read();
        let file = self.file(location.sequence, &path).map_err(|error| failed(&path, error))?;
        self.record_reader(&*file, location, &path).now()
    }

    /// The bounds of the run that covers a command.
    pub(crate) fn bounds_of(&self, index: u64) -> Option<Bounds> {
        self.locations.read().run_of(index).map(Run::bounds)
    }

    fn block_with_cache(
        &self,
        at: RecordRef,
        cache: &Mutex<BlockCache>,
    ) -> Result<BodyBlock, LogReadError> {
        let mut missing = None;
        loop {
            let located = self.locations.read().locate(at.index, at.at);
            let location = located.ok_or(LogReadError::NotFound { index: at.index })?;
            match self.read(location, at, cache) {
                // The part was compacted, and its file removed, after the lookup.
                Err(LogReadError::Io { error, .. })
                    if error.kind() == io::ErrorKind::NotFound && missing != Some(location) =>
                {
                    missing = Some(location);
                }
                read => return read,
            }
        }
    }

    fn read(
        &self,
        location: RecordLocation,
        at: RecordRef,
        cache: &Mutex<BlockCache>,
    ) -> Result<BodyBlock, LogReadError> {
        if location.compacted {
            self.compacted_block(location, at, cache)
        } else {
            self.log_block(location, at, cache)
        }
    }

    fn log_block(
        &self,
        location: RecordLocation,
        at: RecordRef,
        cache: &Mutex<BlockCache>,
    ) -> Result<BodyBlock, LogReadError> {
        let record = (location.sequence, location.offset);
        // Most parts are found here: avoid any allocation, even of the path.
        if let Some(block) = cache.lock().get(record, at) {
            return Ok(block);
        }
        let path = &self.directory.path_of(location.sequence, false);
        let _reading = self.reading.read();
        let file = self.file(location.sequence, path).map_err(|error| failed(path, error))?;
        let BodyRead { block, is_complete } =
            self.record_reader(&*file, location, path).log_block(at)?;
        // A block with only this part is not needed again.
        if is_complete || block.bytes.len() <= AHEAD_BYTES {
            cache.lock().insert(record, block.clone());
        }
        Ok(block)
    }

    fn compacted_block(
        &self,
        location: RecordLocation,
        at: RecordRef,
        cache: &Mutex<BlockCache>,
    ) -> Result<BodyBlock, LogReadError> {
        let record = (location.sequence, location.offset);
        let path = || self.directory.path_of(location.sequence, true);
        let cached = cache.lock().whole_body(record);
        let body = match cached {
            Some(body) => body,
            None => {
                let path = &path();
                let _reading = self.reading.read();
                let file =
                    self.file(location.sequence, path).map_err(|error| failed(path, error))?;
                let body = self.record_reader(&*file, location, path).compacted_body(at.index)?;
                cache.lock().insert(record, BodyBlock { from: 0, bytes: body.clone() });
                body
            }
        };
        match compacted::part_of(&body, at) {
            // Adjacent bytes in a compacted record are not adjacent in the command.
            PartRead::Bytes(bytes) => Ok(BodyBlock { from: at.at as usize, bytes }),
            PartRead::Corrupt => Err(damaged(&path(), location.offset)),
            PartRead::Missing => Err(LogReadError::NotFound { index: at.index }),
        }
    }

    fn record_reader<'a>(
        &self,
        file: &'a dyn JournalFile,
        location: RecordLocation,
        path: &'a Path,
    ) -> RecordReader<'a> {
        RecordReader {
            file,
            path,
            seed: crc_seed(self.directory.journal, location.sequence),
            location,
        }
    }
}
