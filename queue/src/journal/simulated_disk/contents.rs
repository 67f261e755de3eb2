//! What is on a disk: as programs see it, and as it is after a power cut.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rand::RngExt;
use rand::rngs::StdRng;

use super::blocks::Blocks;

/// Bytes that a disk writes whole or not at all when it writes them out of order.
const SECTOR_BYTES: usize = 512;

/// Names and files.
#[derive(Clone, Default)]
pub(super) struct Contents {
    files: Vec<File>,
    /// Names as programs see them.
    names: BTreeMap<PathBuf, usize>,
    /// Names as the last sync of their directories left them.
    lasting_names: BTreeMap<PathBuf, usize>,
    /// What was done to names since, in order: a name leads to a file, or to nothing.
    unsynced_names: Vec<(PathBuf, Option<usize>)>,
    /// What was on its way to the disk when the power went: it may be there after that, and nobody
    /// has seen it.
    in_flight: Vec<InFlight>,
}

#[derive(Clone)]
enum InFlight {
    Name(PathBuf, Option<usize>),
    Change(usize, Change),
}

#[derive(Clone, Default)]
struct File {
    now: Blocks,
    lasting: Blocks,
    unsynced: Vec<Change>,
    /// While it is open its room is taken, with a name or without one.
    open: usize,
}

#[derive(Clone)]
pub(super) enum Change {
    Write(u64, Bytes),
    Length(u64),
}

impl Contents {
    /// As a power cut leaves it: of what was not synced, each change is there, or not, or in part.
    pub(super) fn after_power_cut(&self, random: &mut StdRng) -> Contents {
        let mut arrived = self.clone();
        for in_flight in std::mem::take(&mut arrived.in_flight) {
            match in_flight {
                InFlight::Name(path, file) => arrived.unsynced_names.push((path, file)),
                InFlight::Change(file, change) => arrived.files[file].unsynced.push(change),
            }
        }
        arrived.with_some_of_it(random)
    }

    fn with_some_of_it(&self, random: &mut StdRng) -> Contents {
        let mut names = self.lasting_names.clone();
        // Either one after the other up to some point, or each for itself: file systems differ.
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
            files[number] = File { now: lasting.clone(), lasting, ..File::default() };
        }
        let lasting_names = names.clone();
        Contents { files, names, lasting_names, ..Contents::default() }
    }

    /// As a process finds it that starts after this one was killed: nothing is lost, and nothing
    /// lasts that did not before.
    pub(super) fn after_kill(&self) -> Contents {
        let mut left = self.clone();
        left.files.iter_mut().for_each(|file| file.open = 0);
        left.in_flight.clear();
        left
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &PathBuf> {
        self.names.keys()
    }

    /// The file of that name, opened.
    pub(super) fn open(&mut self, path: &Path) -> Option<usize> {
        let number = *self.names.get(path)?;
        self.files[number].open += 1;
        Some(number)
    }

    /// A new file of that name, opened.
    pub(super) fn create(&mut self, path: &Path) -> usize {
        let number = self.files.len();
        self.files.push(File { open: 1, ..File::default() });
        self.name(path, Some(number));
        number
    }

    /// A new file may have that name after a power cut; nobody has seen it.
    pub(super) fn create_in_flight(&mut self, path: &Path) {
        self.files.push(File::default());
        self.name_in_flight(path, Some(self.files.len() - 1));
    }

    pub(super) fn close(&mut self, number: usize) {
        self.files[number].open -= 1;
    }

    /// The name leads there from now on, or to nothing.
    pub(super) fn name(&mut self, path: &Path, file: Option<usize>) {
        set(&mut self.names, path, file);
        self.unsynced_names.push((path.to_owned(), file));
    }

    /// The change of a name may be there after a power cut; nobody has seen it.
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

    pub(super) fn change(&mut self, number: usize, change: Change) {
        let file = &mut self.files[number];
        change.make(&mut file.now);
        file.unsynced.push(change);
    }

    /// The change may be there after a power cut; nobody has seen it.
    pub(super) fn change_in_flight(&mut self, number: usize, change: Change) {
        self.in_flight.push(InFlight::Change(number, change));
    }

    pub(super) fn sync(&mut self, number: usize) {
        let file = &mut self.files[number];
        for change in file.unsynced.drain(..) {
            change.make(&mut file.lasting);
        }
    }

    /// A sync has failed: what reached the disk has, and what has not the system takes for written,
    /// and never writes again.
    pub(super) fn sync_failed(&mut self, number: usize, random: &mut StdRng) {
        let file = &mut self.files[number];
        file.lasting = file.after_power_cut(random);
        file.unsynced.clear();
    }

    /// As if every sync had failed, with nothing written.
    pub(super) fn count_as_clean(&mut self) {
        self.files.iter_mut().for_each(|file| file.unsynced.clear());
    }

    /// Bytes taken: by files with a name, and by those that somebody has open.
    pub(super) fn used_bytes(&self) -> u64 {
        let mut counts: Vec<bool> = self.files.iter().map(|file| file.open > 0).collect();
        self.names.values().for_each(|&number| counts[number] = true);
        let taken = self.files.iter().zip(counts).filter(|(_, counts)| *counts);
        taken.map(|(file, _)| file.now.len() as u64).sum()
    }

    /// Puts other bytes into a file, as a bad disk would.
    pub(super) fn tamper<T>(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let file = &mut self.files[self.names[path]];
        let mut bytes = file.now.to_vec();
        let changed = change(&mut bytes);
        file.now = bytes.into();
        file.lasting = file.now.clone();
        file.unsynced.clear();
        changed
    }

    /// Flips a bit where it is written; what was written and not synced is left as it is.
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
                Change::Length(_) if random.random_bool(0.5) => change.make(&mut lasting),
                Change::Length(_) => {}
                Change::Write(at, bytes) => tear(&mut lasting, *at, bytes, random),
            }
        }
        lasting
    }
}

impl Change {
    fn make(&self, blocks: &mut Blocks) {
        match self {
            Change::Write(at, bytes) => blocks.write(*at, bytes),
            Change::Length(length) => blocks.resize(*length as usize),
        }
    }
}

/// Writes some of it: torn at any byte, or some of its sectors.
fn tear(blocks: &mut Blocks, at: u64, bytes: &[u8], random: &mut StdRng) {
    let (from, to) = match random.random_range(0..5) {
        0 => (0, 0),
        1 => (0, bytes.len()),
        // Its beginning, or its end: blocks reach the disk in any order.
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
