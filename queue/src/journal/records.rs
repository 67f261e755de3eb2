//! Reading records back, from any thread.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::directory::Directory;
use super::files::JournalFile;
use super::format::{RECORD_HEADER_BYTES, RecordHeader, crc_seed};
use super::locations::{Bounds, Locations, Place, Run};
use crate::RecordRef;
use crate::log::{ReadError, Records, part_of};

/// Segments kept open for reading.
const OPEN_SEGMENTS_MAX: usize = 64;
/// Bytes of bodies kept after they were read and checked: neighbours are asked for one after the other.
const READ_BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bodies kept at most: they are looked through one by one, and those of single jobs are small. Some for each thread that
/// reads at the same time.
const READ_BODIES_MAX: usize = 64;

/// The records of a journal, readable from any thread.
pub(crate) struct JournalRecords {
    directory: Arc<Directory>,
    locations: RwLock<Locations>,
    open: Mutex<VecDeque<(u64, Arc<dyn JournalFile>)>>,
    bodies: Mutex<Bodies>,
}

#[derive(Default)]
struct Bodies {
    /// The latest at the end.
    kept: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl JournalRecords {
    pub(crate) fn new(directory: Arc<Directory>, locations: Locations) -> JournalRecords {
        JournalRecords {
            directory,
            locations: RwLock::new(locations),
            open: Mutex::default(),
            bodies: Mutex::default(),
        }
    }

    /// Adds committed records that follow each other in one segment; the last one ends at `end`.
    pub(crate) fn extend(&self, sequence: u64, first: u64, offsets: &[u32], end: u32) {
        self.locations.write().extend(sequence, first, offsets, end);
    }

    /// Where all records up to `index` are now.
    pub(crate) fn locations_up_to(&self, index: u64) -> Locations {
        self.locations.read().up_to(index)
    }

    /// What each file speaks for, from the oldest commands on.
    pub(crate) fn bounds(&self) -> Vec<Bounds> {
        self.locations.read().runs().iter().map(Run::bounds).collect()
    }

    /// Reads these runs from their carried files from now on.
    pub(crate) fn replace(&self, carried: Vec<Run>) {
        self.locations.write().replace(carried);
        self.close_unnamed();
    }

    /// Forgets all that lies in that file, which is about to be removed.
    pub(crate) fn forget(&self, sequence: u64) {
        self.locations.write().forget(sequence);
        self.close_unnamed();
    }

    /// Gives up the files that no run names any more: while they are open, removing them frees nothing.
    fn close_unnamed(&self) {
        let mut open = self.open.lock();
        let locations = self.locations.read();
        open.retain(|(sequence, _)| locations.names(*sequence));
    }

    fn file(&self, sequence: u64, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        let mut open = self.open.lock();
        if let Some((_, file)) = open.iter().find(|(open, _)| *open == sequence) {
            return Ok(Arc::clone(file));
        }
        let file = self.directory.files.open(path)?;
        // One that is given up meanwhile is not kept: it would never be closed.
        if !self.locations.read().names(sequence) {
            return Ok(file);
        }
        if open.len() == OPEN_SEGMENTS_MAX {
            open.pop_front();
        }
        open.push_back((sequence, Arc::clone(&file)));
        Ok(file)
    }
}

impl Records for JournalRecords {
    fn part(&self, at: RecordRef) -> Result<Bytes, ReadError> {
        part_of(&self.body(at.index)?, at)
    }
}

impl JournalRecords {
    fn body(&self, index: u64) -> Result<Bytes, ReadError> {
        if let Some(body) = self.bodies.lock().get(index) {
            return Ok(body);
        }
        let place = self.locations.read().locate(index, 0);
        let Place { sequence, offset, .. } = place.ok_or(ReadError::NotThere { index })?;
        let path = self.directory.segment_path(sequence);
        let io = |error| ReadError::Io { file: path.clone(), error: Arc::new(error) };
        let damaged = || ReadError::Damaged { file: path.clone(), offset };
        let file = self.file(sequence, &path).map_err(io)?;
        let mut header = [0; RECORD_HEADER_BYTES];
        file.read_at(&mut header, offset).map_err(io)?;
        let left = file.len().map_err(io)?.saturating_sub(offset);
        let length = RecordHeader::claimed_len(&header, left).map_err(|_| damaged())?;
        let mut record = vec![0; length];
        file.read_at(&mut record, offset).map_err(io)?;
        let seed = crc_seed(self.directory.publisher, sequence);
        match RecordHeader::decode(&record, seed) {
            Ok(header) if header.index == index => {}
            _ => return Err(damaged()),
        }
        let body = Bytes::from(record).slice(RECORD_HEADER_BYTES..);
        self.bodies.lock().keep(index, body.clone());
        Ok(body)
    }
}

impl Bodies {
    fn get(&mut self, index: u64) -> Option<Bytes> {
        let place = self.kept.iter().rposition(|(kept, _)| *kept == index)?;
        let found = self.kept.remove(place)?;
        let body = found.1.clone();
        self.kept.push_back(found);
        Some(body)
    }

    fn keep(&mut self, index: u64, body: Bytes) {
        if self.kept.iter().any(|(kept, _)| *kept == index) {
            return;
        }
        self.bytes += body.len() + RECORD_HEADER_BYTES;
        self.kept.push_back((index, body));
        let too_many = |kept: usize, bytes| {
            kept > READ_BODIES_MAX || (kept > 1 && bytes > READ_BODIES_BYTES_MAX)
        };
        while too_many(self.kept.len(), self.bytes) {
            if let Some((_, body)) = self.kept.pop_front() {
                self.bytes -= body.len() + RECORD_HEADER_BYTES;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bodies_are_kept_however_small_they_are_and_the_latest_read_among_them() {
        let mut bodies = Bodies::default();
        for index in 0..10 * READ_BODIES_MAX as u64 {
            bodies.keep(index, Bytes::from_static(b"small"));
            assert!(bodies.get(0).is_some(), "read again each time");
            assert!(bodies.kept.len() <= READ_BODIES_MAX);
        }
        assert!(bodies.get(1).is_none());
        let bytes = bodies.kept.iter().map(|(_, body)| body.len() + RECORD_HEADER_BYTES);
        assert_eq!(bodies.bytes, bytes.sum::<usize>());
    }

    #[test]
    fn a_body_over_the_whole_room_is_kept_alone() {
        let mut bodies = Bodies::default();
        bodies.keep(1, Bytes::from_static(b"small"));
        bodies.keep(2, vec![0; READ_BODIES_BYTES_MAX + 1].into());
        assert!(bodies.get(1).is_none() && bodies.get(2).is_some());
        bodies.keep(3, Bytes::from_static(b"small"));
        assert!(bodies.get(2).is_none() && bodies.get(3).is_some());
    }
}
