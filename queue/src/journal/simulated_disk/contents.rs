//! The contents of a disk: as programs see them, and as a power cut leaves them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rand::RngExt;
use rand::rngs::StdRng;

use super::blocks::Blocks;

/// Bytes that fail to be read together.
const PAGE_BYTES: u64 = 4096;
/// Bytes that a disk writes atomically when it reorders writes.
const SECTOR_BYTES: usize = 512;

/// Names and files.
#[derive(Clone, Default)]
pub(super) struct Contents {
    files: Vec<File>,
    /// Names as programs see them.
    names: BTreeMap<PathBuf, usize>,
    /// Names as the last sync of their directories left them.
    lasting_names: BTreeMap<PathBuf, usize>,
    /// Unsynced changes of names since then, in order: a name refers to a file, or to nothing.
    unsynced_names: Vec<(PathBuf, Option<usize>)>,
    /// Changes in flight when the power failed: they may have reached the disk, and no program has
    /// seen them.
    in_flight: Vec<InFlight>,
}

#[derive(Clone)]
enum InFlight {
    Name(PathBuf, Option<usize>),
    FileChange(usize, FileChange),
}

#[derive(Clone, Default)]
struct File {
    now: Blocks,
    lasting: Blocks,
    unsynced: Vec<FileChange>,
    /// Pages that the disk cannot read until they are written whole.
    unreadable: BTreeSet<u64>,
    /// An open file takes space even without a name.
    open: usize,
}

#[derive(Clone)]
pub(super) enum FileChange {
    Write(u64, Bytes),
    Length(u64),
}

impl Contents {
    /// The contents after a power cut: each unsynced change survives fully, partly, or not at all.
    pub(super) fn after_power_cut(&self, random: &mut StdRng) -> Contents {
        let mut arrived = self.clone();
        for in_flight in std::mem::take(&mut arrived.in_flight) {
            match in_flight {
                InFlight::Name(path, file) => arrived.unsynced_names.push((path, file)),
                InFlight::FileChange(file, change) => arrived.files[file].unsynced.push(change),
            }
        }
        arrived.with_partial_changes(random)
    }

    fn with_partial_changes(&self, random: &mut StdRng) -> Contents {
        let mut names = self.lasting_names.clone();
        // Name changes survive in order up to some point, or independently: file systems differ.
        let in_order = random.random_bool(0.5);
        let until = random.random_range(0..=self.unsynced_names.len());
        for (position, (path, file)) in self.unsynced_names.iter().enumerate() {
            if if in_order { position < until } else { random.random_bool(0.5) } {
                set(&mut names, path, *file);
            }
        }
        let mut files = vec![File::default(); self.files.len()];
        for &number in names.values() {
            let lasting = self.files[number].after_power_cut(random);
            let unreadable = self.files[number].unreadable.clone();
            files[number] = File { now: lasting.clone(), lasting, unreadable, ..File::default() };
        }
        let lasting_names = names.clone();
        Contents { files, names, lasting_names, ..Contents::default() }
    }

    /// The contents for a process that starts after this one was killed: nothing is lost, and
    /// nothing more is synced.
    pub(super) fn after_kill(&self) -> Contents {
        let mut left = self.clone();
        left.files.iter_mut().for_each(|file| file.open = 0);
        left.in_flight.clear();
        left
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &PathBuf> {
        self.names.keys()
    }

    /// Opens the file of that name.
    pub(super) fn open(&mut self, path: &Path) -> Option<usize> {
        let number = *self.names.get(path)?;
        self.files[number].open += 1;
        Some(number)
    }

    /// Creates and opens a file of that name.
    pub(super) fn create(&mut self, path: &Path) -> usize {
        let number = self.files.len();
        self.files.push(File { open: 1, ..File::default() });
        self.name(path, Some(number));
        number
    }

    /// A failed creation: the file may exist after a power cut, and no program has seen it.
    pub(super) fn create_in_flight(&mut self, path: &Path) {
        self.files.push(File::default());
        self.name_in_flight(path, Some(self.files.len() - 1));
    }

    pub(super) fn close(&mut self, number: usize) {
        self.files[number].open -= 1;
    }

    /// Makes the name refer to a file, or to nothing.
    pub(super) fn name(&mut self, path: &Path, file: Option<usize>) {
        set(&mut self.names, path, file);
        self.unsynced_names.push((path.to_owned(), file));
    }

    /// A failed change of a name: it may survive a power cut, and no program has seen it.
    pub(super) fn name_in_flight(&mut self, path: &Path, file: Option<usize>) {
        self.in_flight.push(InFlight::Name(path.to_owned(), file));
    }

    pub(super) fn named(&self, path: &Path) -> Option<usize> {
        self.names.get(path).copied()
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let is_within = |path: &Path| path.parent() == Some(dir);
        self.unsynced_names.retain(|(path, _)| !is_within(path));
        self.lasting_names.retain(|path, _| !is_within(path));
        let within = self.names.iter().filter(|(path, _)| is_within(path));
        self.lasting_names.extend(within.map(|(path, file)| (path.clone(), *file)));
    }

    pub(super) fn now(&self, number: usize) -> &Blocks {
        &self.files[number].now
    }

    /// Makes programs read what the disk has of the page at that byte, which must be clean.
    pub(super) fn evict_page(&mut self, path: &Path, at: u64) {
        let file = &mut self.files[self.names[path]];
        let (begins, mut page) = (at - at % PAGE_BYTES, [0; PAGE_BYTES as usize]);
        let n = file.lasting.read(begins, &mut page);
        file.now.write(begins, &page[..n]);
    }

    /// Makes the page at that byte unreadable.
    pub(super) fn break_page(&mut self, path: &Path, at: u64) {
        self.files[self.names[path]].unreadable.insert(at / PAGE_BYTES);
    }

    /// Whether the disk can read all of these bytes.
    pub(super) fn is_readable(&self, number: usize, at: u64, n: usize) -> bool {
        let pages = at / PAGE_BYTES..(at + n as u64).div_ceil(PAGE_BYTES);
        self.files[number].unreadable.range(pages).next().is_none()
    }

    /// Whether no unreadable page would be written in part: it would have to be read first.
    pub(super) fn is_writable(&self, number: usize, at: u64, n: usize) -> bool {
        let unreadable = &self.files[number].unreadable;
        let (first, last) = (at / PAGE_BYTES, (at + n as u64) / PAGE_BYTES);
        let is_part = |page, at: u64| !at.is_multiple_of(PAGE_BYTES) && unreadable.contains(&page);
        !is_part(first, at) && !is_part(last, at + n as u64)
    }

    pub(super) fn change(&mut self, number: usize, change: FileChange) {
        let file = &mut self.files[number];
        if let FileChange::Write(at, bytes) = &change {
            let to = at + bytes.len() as u64;
            file.unreadable.retain(|page| page * PAGE_BYTES < *at || (page + 1) * PAGE_BYTES > to);
        }
        change.make(&mut file.now);
        file.unsynced.push(change);
    }

    /// A failed change: it may survive a power cut, and no program has seen it.
    pub(super) fn change_in_flight(&mut self, number: usize, change: FileChange) {
        self.in_flight.push(InFlight::FileChange(number, change));
    }

    pub(super) fn sync(&mut self, number: usize) {
        let file = &mut self.files[number];
        for change in file.unsynced.drain(..) {
            change.make(&mut file.lasting);
        }
    }

    /// A failed sync: some changes reached the disk; the kernel considers the others clean and
    /// never writes them.
    pub(super) fn sync_failed(&mut self, number: usize, random: &mut StdRng) {
        let file = &mut self.files[number];
        file.lasting = file.after_power_cut(random);
        file.unsynced.clear();
    }

    /// As if every sync had failed and nothing was written.
    pub(super) fn count_as_clean(&mut self) {
        self.files.iter_mut().for_each(|file| file.unsynced.clear());
    }

    /// Bytes used by named and by open files.
    pub(super) fn used_bytes(&self) -> u64 {
        let mut counts: Vec<bool> = self.files.iter().map(|file| file.open > 0).collect();
        self.names.values().for_each(|&number| counts[number] = true);
        let taken = self.files.iter().zip(counts).filter(|(_, counts)| *counts);
        taken.map(|(file, _)| file.now.len() as u64).sum()
    }

    /// Changes a file's bytes, as a bad disk would.
    pub(super) fn tamper<T>(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let file = &mut self.files[self.names[path]];
        let mut bytes = file.now.to_vec();
        let changed = change(&mut bytes);
        file.now = bytes.into();
        file.lasting = file.now.clone();
        file.unsynced.clear();
        changed
    }

    /// Flips a bit in the written data; unsynced changes stay as they are.
    pub(super) fn flip(&mut self, path: &Path, bit: u64) {
        let file = &mut self.files[self.names[path]];
        for blocks in [&mut file.now, &mut file.lasting] {
            let mut byte = [0];
            if blocks.read(bit / 8, &mut byte) == 1 {
                blocks.write(bit / 8, &[byte[0] ^ (1 << (bit % 8))]);
            }
        }
    }
}

fn set(names: &mut BTreeMap<PathBuf, usize>, path: &Path, file: Option<usize>) {
    match file {
        Some(file) => names.insert(path.to_owned(), file),
        None => names.remove(path),
    };
}

impl File {
    fn after_power_cut(&self, random: &mut StdRng) -> Blocks {
        let mut lasting = self.lasting.clone();
        for change in &self.unsynced {
            match change {
                FileChange::Length(_) if random.random_bool(0.5) => change.make(&mut lasting),
                FileChange::Length(_) => {}
                FileChange::Write(at, bytes) => tear(&mut lasting, *at, bytes, random),
            }
        }
        lasting
    }
}

impl FileChange {
    fn make(&self, blocks: &mut Blocks) {
        match self {
            FileChange::Write(at, bytes) => blocks.write(*at, bytes),
            FileChange::Length(length) => blocks.resize(*length as usize),
        }
    }
}

/// Writes a part: torn at any byte, or some of its sectors.
fn tear(blocks: &mut Blocks, at: u64, bytes: &[u8], random: &mut StdRng) {
    let (from, to) = match random.random_range(0..5) {
        0 => (0, 0),
        1 => (0, bytes.len()),
        // A prefix or a suffix: blocks reach the disk in any order.
        2 => (0, random.random_range(0..=bytes.len())),
        3 => (random.random_range(0..=bytes.len()), bytes.len()),
        _ => {
            for (sector, part) in bytes.chunks(SECTOR_BYTES).enumerate() {
                if random.random_bool(0.5) {
                    blocks.write(at + (sector * SECTOR_BYTES) as u64, part);
                }
            }
            return;
        }
    };
    blocks.write(at + from as u64, &bytes[from..to]);
}
