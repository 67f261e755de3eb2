//! The directory of a journal: the paths of its files, and how new segments are created.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_protocol::PublisherId;

use crate::Poisoned;
use crate::journal::SEGMENT_BYTES_MIN;
use crate::journal::files::{Files, JournalFile};
use crate::journal::space::ballast::{BALLAST_FILE, Ballast};
use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, SegmentHeader, crc_seed};

/// The folder of the segments.
pub(crate) const SEGMENTS_DIR: &str = "segments";
/// The folder of the snapshots.
pub(crate) const SNAPSHOTS_DIR: &str = "snapshots";
/// The folder of what `accept_loss` dropped.
pub(crate) const LOST_DIR: &str = "lost";
const EXTENSION: &str = "seg";
const COMPACTED_EXTENSION: &str = "compacted";
const SNAPSHOT_EXTENSION: &str = "snap";
/// Suffix of an unfinished file: the next start removes it.
pub(crate) const UNFINISHED: &str = ".new";

/// A journal's directory.
pub(crate) struct Directory {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) dir: PathBuf,
    /// The id in its files' headers and checksums. A copy has the same journal id, and another
    /// publisher.
    pub(crate) journal: PublisherId,
    /// Bytes of a segment, unless one record needs more.
    pub(crate) segment_bytes: u64,
    next_sequence: AtomicU64,
    /// Bytes of all segments.
    pub(crate) bytes: AtomicU64,
    /// The disk space reserved for compaction.
    pub(crate) ballast: Ballast,
}

/// A segment that can be written to.
pub(crate) struct Segment {
    pub(crate) file: Arc<dyn JournalFile>,
    pub(crate) path: PathBuf,
    pub(crate) sequence: u64,
    pub(crate) seed: u32,
    /// Most bytes of the file.
    pub(crate) capacity: u64,
    /// Where the next write goes; 0 while it has no records and its header lacks their first index.
    pub(crate) at: u64,
    /// The end of the blocks that were written before, also with zeros.
    pub(crate) written_to: u64,
}

impl Directory {
    pub(crate) fn new(
        files: Arc<dyn Files>,
        dir: PathBuf,
        journal: PublisherId,
        segment_bytes: u64,
    ) -> Directory {
        let (next_sequence, bytes) = (AtomicU64::new(1), AtomicU64::new(0));
        let ballast = Ballast::new(Arc::clone(&files), dir.clone(), segment_bytes);
        Directory { files, dir, journal, segment_bytes, next_sequence, bytes, ballast }
    }

    pub(crate) fn segments_dir(&self) -> PathBuf {
        self.dir.join(SEGMENTS_DIR)
    }

    pub(crate) fn segment_path(&self, sequence: u64) -> PathBuf {
        self.segments_dir().join(format!("{sequence:010}.{EXTENSION}"))
    }

    /// A file of compacted records.
    pub(crate) fn compacted_path(&self, sequence: u64) -> PathBuf {
        self.segments_dir().join(format!("{sequence:010}.{COMPACTED_EXTENSION}"))
    }

    /// Its path while it is written.
    pub(crate) fn new_compacted_path(&self, sequence: u64) -> PathBuf {
        self.segments_dir().join(format!("{sequence:010}.{COMPACTED_EXTENSION}{UNFINISHED}"))
    }

    /// The file of that sequence.
    pub(crate) fn path_of(&self, sequence: u64, compacted: bool) -> PathBuf {
        if compacted { self.compacted_path(sequence) } else { self.segment_path(sequence) }
    }

    /// The number in a segment's file name; none for other files.
    pub(crate) fn sequence_of(name: &str) -> Option<u64> {
        name.strip_suffix(EXTENSION)?.strip_suffix('.')?.parse().ok()
    }

    /// The number in a compacted file's name; none for other files.
    pub(crate) fn compacted_sequence_of(name: &str) -> Option<u64> {
        name.strip_suffix(COMPACTED_EXTENSION)?.strip_suffix('.')?.parse().ok()
    }

    pub(crate) fn snapshots_dir(&self) -> PathBuf {
        self.dir.join(SNAPSHOTS_DIR)
    }

    /// The snapshot of the state after that command.
    pub(crate) fn snapshot_path(&self, index: u64) -> PathBuf {
        self.snapshots_dir().join(format!("{index:020}.{SNAPSHOT_EXTENSION}"))
    }

    /// Its path while it is written.
    pub(crate) fn new_snapshot_path(&self, index: u64) -> PathBuf {
        self.snapshots_dir().join(format!("{index:020}.{SNAPSHOT_EXTENSION}{UNFINISHED}"))
    }

    /// The last command in a snapshot's file name; none for other files.
    pub(crate) fn snapshot_index_of(name: &str) -> Option<u64> {
        name.strip_suffix(SNAPSHOT_EXTENSION)?.strip_suffix('.')?.parse().ok()
    }

    /// Marks numbers up to `sequence` as used.
    pub(crate) fn reserve_sequence(&self, sequence: u64) {
        self.next_sequence.fetch_max(sequence + 1, Ordering::Relaxed);
    }

    /// A number that no file has used.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Creates a segment durably, name included: of the usual length, or longer if `least` requires
    /// it. On a full disk it is short, and takes its room from the ballast.
    pub(crate) fn create_segment(&self, least: u64) -> Result<Segment, Poisoned> {
        let sequence = self.next_sequence();
        let path = self.segment_path(sequence);
        let header = SegmentHeader::log(self.journal, sequence, 0).encode();
        let create = |bytes| {
            let file = self.files.create(&path)?;
            file.allocate(bytes)?;
            file.write_at(&header, 0)?;
            file.sync_data()?;
            self.files.sync_dir(&self.segments_dir())?;
            Ok((file, bytes))
        };
        let (usual, short) = (self.segment_bytes.max(least), SEGMENT_BYTES_MIN.max(least));
        let made = self.ballast.make(usual, short, create);
        let (file, bytes) = made.map_err(|error| {
            // On a full disk the next attempt, a second later, uses another name: remove what this
            // one allocated.
            let _ = self.files.remove(&path);
            poisoned("making", &path, error)
        })?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.ballast.add_in_segments(bytes - SEGMENT_HEADER_BYTES as u64);
        let seed = crc_seed(self.journal, sequence);
        let written_to = header.len() as u64;
        Ok(Segment { file, path, sequence, seed, capacity: bytes, at: 0, written_to })
    }
}

impl Directory {
    /// Opens the ballast and resizes it.
    pub(crate) fn open_ballast(&self) -> Result<(), Poisoned> {
        self.ballast.open().map_err(|error| self.ballast_failed(error))
    }

    /// Resizes the ballast after a cycle, as far as there is room.
    pub(crate) fn resize_ballast(&self) -> Result<(), Poisoned> {
        self.ballast.resize().map_err(|error| self.ballast_failed(error))
    }

    fn ballast_failed(&self, error: io::Error) -> Poisoned {
        poisoned("resizing", &self.dir.join(BALLAST_FILE), error)
    }
}

/// The failure of an operation on `file`.
pub(crate) fn poisoned(what: &'static str, file: &Path, error: io::Error) -> Poisoned {
    Poisoned { what, file: file.to_owned(), error: Arc::new(error) }
}
