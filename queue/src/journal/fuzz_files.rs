//! Journal files of any content, with valid checksums, for the fuzz targets.

use std::path::Path;
use std::sync::Arc;

use super::files::Files;
use super::opening::Parts;
use super::simulated_disk::SimulatedDisk;
#[cfg(test)]
pub(crate) use super::snapshots::KIND_STATE;
use super::snapshots::with_blocks;
use super::{JournalOpenError, JournalOptions};
use crate::Now;
use crate::fuzz::JOURNAL;
use crate::journal::wal::format::{SegmentHeader, crc_seed};
use crate::journal::wal::record::{FLAG_FIRST, RecordHeader};
use crate::log::Rebuild;

/// Appends a record of the journal's first segment.
pub(crate) fn segment_record(index: u64, kind: u8, body: &[u8], out: &mut Vec<u8>) {
    let now = Now { mono_ms: 7_919 * index, wall_ms: 1_700_000_000_000 + 7_919 * index };
    let header =
        RecordHeader { term: 0, flags: FLAG_FIRST, kind, index, now, body_len: body.len() };
    header.encode(crc_seed(JOURNAL, 1), &[], body, out);
}

/// Creates a journal whose first segment has these bytes after its header.
pub(crate) fn put_segment(disk: &SimulatedDisk, dir: &Path, bytes: &[u8]) {
    let header = SegmentHeader::log(JOURNAL, 1, 1).encode();
    put(disk, dir, "segments", "0000000001.seg", &[&header, bytes].concat());
}

/// Creates a journal whose snapshot of command 1 has these blocks.
pub(crate) fn put_snapshot(disk: &SimulatedDisk, dir: &Path, blocks: &[(u8, &[u8])]) {
    let bytes = with_blocks(JOURNAL, 1, blocks);
    put(disk, dir, "snapshots", "00000000000000000001.snap", &bytes);
}

/// Creates a journal and adds the file.
fn put(disk: &SimulatedDisk, dir: &Path, below: &str, name: &str, bytes: &[u8]) {
    struct IgnoreReplay;
    impl Rebuild for IgnoreReplay {
        fn block(&mut self, _: bytes::Bytes) -> Result<(), crate::SnapshotError> {
            Ok(())
        }
        fn restored(&mut self) -> Result<(), crate::SnapshotError> {
            Ok(())
        }
        fn command(&mut self, _: super::Replayed) -> Result<(), longshore_protocol::WireError> {
            Ok(())
        }
    }
    let options = JournalOptions {
        segment_bytes: super::SEGMENT_BYTES_MIN,
        durability: longshore_protocol::Durability::Fsync,
        accept_loss: false,
        new_publisher: JOURNAL,
        new_journal: JOURNAL,
    };
    let made = Parts::open(Arc::new(disk.clone()), dir, options, &mut IgnoreReplay).map(drop);
    let file = dir.join(below).join(name);
    let written = disk.create(&file).and_then(|file| file.write_at(bytes, 0));
    debug_assert!(made.is_ok() && written.is_ok(), "a disk without faults");
}

/// Opens the journal; true if a snapshot was restored.
pub(crate) fn open(
    disk: &Arc<SimulatedDisk>,
    dir: &Path,
    options: JournalOptions,
    rebuild: &mut dyn Rebuild,
) -> Result<bool, JournalOpenError> {
    let files: Arc<dyn Files> = disk.clone();
    Parts::open(files, dir, options, rebuild).map(|parts| parts.recovered.snapshot.is_some())
}
