//! Moves what accepted damage loses to `lost/`, where people can examine it.
//!
//! ```text
//! lost/IIII-NNNNNNNNNN.seg   IIII: the first command that was lost
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::JournalOpenError;
use super::super::files::{JournalFile, unless_unreadable};
use super::super::opening::count_loss;
use super::end::{end_of_data, erase};
use super::found::FoundSegment;
use super::{CHUNK_BYTES, Damage, Dropped};
use crate::journal::files::directory::{Directory, LOST_DIR};
use crate::journal::wal::walk::{PAGE_BYTES, Walk};

/// Moves everything from the damage on to `lost/`: the end of `tail` from that byte on, and the
/// other files whole.
pub(super) fn set_aside<'a>(
    directory: &Directory,
    damage: Damage,
    index: u64,
    tail: Option<LostTail<'_>>,
    segments: impl Iterator<Item = &'a PathBuf>,
    snapshots: &[PathBuf],
) -> Result<Dropped, JournalOpenError> {
    let mut folder = LostFolder::new(directory, index)?;
    let tail =
        tail.map(|tail| tail.segment.open(directory).map(|file| (tail, file))).transpose()?;
    if let Some((tail, file)) = &tail {
        folder.copy_end(tail.segment, file, tail.from)?;
    }
    // After the steps that may fail repeatedly, so that a retried start counts once.
    count_loss(directory)?;
    for path in segments {
        folder.take(path)?;
    }
    folder.make_last()?;
    // The snapshots last: while one of them exists, an interrupted start finds the same damage
    // again.
    snapshots.iter().try_for_each(|path| folder.take(path))?;
    folder.make_last()?;
    if let Some((tail, file)) = &tail {
        // Only now: until the copy is synced, this is the only one.
        let io = |error| JournalOpenError::io("cutting the end of", &tail.segment.path, error);
        let to = end_of_data(file, tail.from).map_err(io)?;
        erase(&**file, tail.start(&**file).map_err(io)?, to).map_err(io)?;
    }
    Ok(folder.dropped(damage))
}

/// The end of a segment, which is lost.
pub(super) struct LostTail<'a> {
    pub(super) segment: &'a FoundSegment,
    pub(super) from: u64,
    /// Records before it were replayed.
    pub(super) has_records: bool,
}

impl LostTail<'_> {
    /// From where it is erased. A page that the disk cannot read is written whole; what it has of
    /// records that a snapshot covers is lost, too.
    fn start(&self, file: &dyn JournalFile) -> io::Result<u64> {
        let page = self.from - self.from % PAGE_BYTES;
        if self.has_records || page == self.from {
            return Ok(self.from);
        }
        let mut before = vec![0; (self.from - page) as usize];
        let is_read = unless_unreadable(file.read_at(&mut before, page))?.is_some();
        Ok(if is_read { self.from } else { page })
    }
}

/// The `lost/` folder while files are moved there.
struct LostFolder<'a> {
    directory: &'a Directory,
    index: u64,
    moved_to: PathBuf,
    used_names: Vec<String>,
    bytes: u64,
}

impl<'a> LostFolder<'a> {
    fn new(directory: &'a Directory, index: u64) -> Result<LostFolder<'a>, JournalOpenError> {
        let moved_to = directory.dir.join(LOST_DIR);
        let making = |error| JournalOpenError::io("making", &moved_to, error);
        directory.files.create_dir(&moved_to).map_err(making)?;
        let used_names = directory.files.list(&moved_to).map_err(making)?;
        Ok(LostFolder { directory, index, moved_to, used_names, bytes: 0 })
    }

    /// An unused path for a file of that name.
    fn path(&mut self, name: &str) -> PathBuf {
        let first = format!("{}-{name}", self.index);
        let mut free = first.clone();
        let mut tries = 1;
        while self.used_names.contains(&free) {
            tries += 1;
            free = format!("{first}.{tries}");
        }
        self.used_names.push(free.clone());
        self.moved_to.join(free)
    }

    fn take(&mut self, path: &Path) -> Result<(), JournalOpenError> {
        let io = |error| JournalOpenError::io("setting aside", path, error);
        let files = &self.directory.files;
        self.bytes += files.open(path).and_then(|file| file.len()).map_err(io)?;
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let to = self.path(&name);
        files.rename(path, &to).map_err(io)
    }

    fn copy_end(
        &mut self,
        segment: &FoundSegment,
        file: &Arc<dyn JournalFile>,
        from: u64,
    ) -> Result<(), JournalOpenError> {
        let io = |error| JournalOpenError::io("setting aside the end of", &segment.path, error);
        let to = end_of_data(file, from).map_err(io)?;
        if to > from {
            let path = self.path(&format!("{:010}-from-{from}.part", segment.header.sequence));
            let part = self.directory.files.create(&path).map_err(io)?;
            copy(file, from, to, &*part).map_err(io)?;
            self.bytes += to - from;
        }
        Ok(())
    }

    fn make_last(&self) -> Result<(), JournalOpenError> {
        let (segments, snapshots) = (self.directory.segments_dir(), self.directory.snapshots_dir());
        for dir in [&self.moved_to, &segments, &snapshots] {
            let io = |error| JournalOpenError::io("syncing", dir, error);
            self.directory.files.sync_dir(dir).map_err(io)?;
        }
        Ok(())
    }

    fn dropped(self, damage: Damage) -> Dropped {
        let Damage { file, offset, .. } = damage;
        Dropped { file, offset, index: self.index, moved_to: self.moved_to, bytes: self.bytes }
    }
}

fn copy(from: &Arc<dyn JournalFile>, start: u64, end: u64, to: &dyn JournalFile) -> io::Result<()> {
    let mut walk = Walk::new(Arc::clone(from), 0)?;
    let mut at = start;
    while at < end {
        let span = walk.span(at, CHUNK_BYTES.min((end - at) as usize))?;
        if span.is_empty() {
            break;
        }
        to.write_at(&span, at - start)?;
        at += span.len() as u64;
    }
    to.sync_data()
}
