//! A journal recovered from a snapshot equals the original, whatever happened while the snapshot
//! was written.

mod recovery;
mod writing;

use std::collections::VecDeque;
use std::path::PathBuf;

use super::*;
use crate::RecordRef;
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::snapshots::{self, Resume, WriteError, Written};
use crate::journal::wal::locations::{Locations, Run, RunRecords};
use crate::log::Snapshot;

const EPOCH: u64 = 77;

pub(super) fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn snapshot_path(index: u64) -> PathBuf {
    path(&format!("snapshots/{index:020}.snap"))
}

pub(super) fn segment(number: u64) -> PathBuf {
    path(&format!("segments/{number:010}.seg"))
}

pub(super) fn snapshots_of(disk: &SimulatedDisk) -> Vec<PathBuf> {
    let paths = disk.paths().into_iter();
    paths.filter(|path| path.starts_with(Path::new(DIR).join("snapshots"))).collect()
}

/// The state after so many commands, as [`Rebuilt`] reads it.
pub(super) struct Commands {
    pub(super) index: u64,
    pub(super) blocks: VecDeque<Vec<u8>>,
    /// The parts of commands that it references.
    pub(super) parts: Vec<RecordRef>,
}

impl Commands {
    pub(super) fn up_to(index: u64, length: usize) -> Commands {
        let block = |index: u64| {
            let PendingCommand { now, kind, head, body, .. } = command(index, length);
            let mut block = Vec::new();
            for number in [index, now.mono_ms, now.wall_ms] {
                block.extend_from_slice(&number.to_le_bytes());
            }
            block.push(kind);
            block.extend_from_slice(&head);
            block.extend_from_slice(&body);
            block
        };
        Commands { index, blocks: (1..=index).map(block).collect(), parts: Vec::new() }
    }
}

impl Snapshot for Commands {
    fn index(&self) -> u64 {
        self.index
    }

    fn epoch(&self) -> u64 {
        EPOCH
    }

    fn about_bytes(&self) -> u64 {
        0
    }

    fn parts(&self, each: &mut dyn FnMut(RecordRef)) {
        self.parts.iter().copied().for_each(each);
    }

    fn next_block(&mut self, out: &mut Vec<u8>) -> bool {
        let block = self.blocks.pop_front();
        block.inspect(|block| out.extend_from_slice(block)).is_some()
    }
}

impl SteppedJournal {
    /// Writes a snapshot of the first `index` commands that needs the runs selected by `needs`.
    pub(super) fn snapshot(
        &self,
        index: u64,
        length: usize,
        needs: impl Fn(&Run) -> bool,
    ) -> Result<Written, WriteError> {
        let located = self.records.locations_up_to(index);
        let resume = resume_after(&located);
        let runs = located.runs().iter().filter(|run| needs(run)).cloned().collect();
        let mut state = Commands::up_to(index, length);
        let locations = Locations::of(runs);
        snapshots::write(&self.directory, &mut state, &locations, resume, &mut |_| Ok(CHUNK_BYTES))
    }
}

fn resume_after(located: &Locations) -> Resume {
    let last = located.runs().last().unwrap();
    let RunRecords::Log { end, .. } = last.records else { panic!() };
    Resume { sequence: last.sequence, offset: u64::from(end) }
}

/// A journal of a little more than three segments, and its last index.
fn journal_of_segments() -> (SimulatedDisk, SteppedJournal, u64) {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for _ in 0..8 {
        journal.write(2, 200_000).unwrap();
    }
    let last = journal.committed();
    assert!(disk.paths().contains(&segment(4)) && last == 16);
    (disk, journal, last)
}

fn accepting() -> JournalOptions {
    JournalOptions { accept_loss: true, ..options() }
}

/// A small journal with a snapshot of which every byte can be tried.
fn small() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(4, 10).unwrap();
    journal.snapshot(3, 10, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    disk.after_kill()
}
