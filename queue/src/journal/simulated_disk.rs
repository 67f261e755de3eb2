//! A disk in memory for tests: it loses what was not synced, tears it, fails the nth call, and waits before it syncs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::files::{Files, JournalFile, LockError, PinLock};

/// A disk; clones are the same disk.
#[derive(Clone, Default)]
pub(crate) struct SimulatedDisk {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    disk: Mutex<Contents>,
    gate: Condvar,
}

#[derive(Default)]
struct Contents {
    files: Vec<FileContents>,
    /// Names as programs see them.
    names: BTreeMap<PathBuf, usize>,
    /// Names as they are after a power cut.
    lasting_names: BTreeMap<PathBuf, usize>,
    /// Writes and syncs so far.
    calls: u64,
    /// The call that fails, and all after it.
    fails_at: Option<u64>,
    /// Syncs of files wait while this is set.
    held: bool,
    locked: bool,
    /// How many hold each lock of [`Files::pin`] with others; `None` for one who has it alone.
    pins: BTreeMap<PathBuf, Option<usize>>,
}

#[derive(Default, Clone)]
struct FileContents {
    now: Vec<u8>,
    lasting: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl SimulatedDisk {
    /// Writes and syncs so far.
    pub(crate) fn calls(&self) -> u64 {
        self.shared.disk.lock().calls
    }

    /// That call, counted from 1, and all after it fail, and change nothing.
    pub(crate) fn fail_at(&self, call: u64) {
        self.shared.disk.lock().fails_at = Some(call);
    }

    /// Syncs of files wait, or go on.
    pub(crate) fn hold_syncs(&self, held: bool) {
        self.shared.disk.lock().held = held;
        self.shared.gate.notify_all();
    }

    /// The disk after a power cut: of what was not synced, each change is there, or not, or in part.
    pub(crate) fn after_power_cut(&self, seed: u64) -> SimulatedDisk {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = self.shared.disk.lock();
        let files = disk.files.iter().map(|file| file.after_power_cut(&mut random)).collect();
        let mut names = disk.lasting_names.clone();
        for (path, file) in &disk.names {
            // A name that was not synced may have come through.
            if random.random_bool(0.5) {
                names.entry(path.clone()).or_insert(*file);
            }
        }
        SimulatedDisk::with(files, names)
    }

    /// The disk as a process finds it that starts after this one was killed.
    pub(crate) fn after_kill(&self) -> SimulatedDisk {
        let disk = self.shared.disk.lock();
        SimulatedDisk::with(disk.files.clone(), disk.names.clone())
    }

    /// The same disk, on which no sync writes what was not synced before: as after a failed sync.
    pub(crate) fn with_clean_pages(self) -> SimulatedDisk {
        for file in &mut self.shared.disk.lock().files {
            file.unsynced.clear();
        }
        self
    }

    fn with(files: Vec<FileContents>, names: BTreeMap<PathBuf, usize>) -> SimulatedDisk {
        let lasting_names = names.clone();
        let contents = Contents { files, names, lasting_names, ..Contents::default() };
        SimulatedDisk {
            shared: Arc::new(Shared { disk: Mutex::new(contents), gate: Condvar::new() }),
        }
    }

    /// The paths of all files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.shared.disk.lock().names.keys().cloned().collect()
    }

    /// Changes a file's bytes as a bad disk would.
    pub(crate) fn tamper<T>(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut disk = self.shared.disk.lock();
        let file = disk.names[path];
        let file = &mut disk.files[file];
        let changed = change(&mut file.now);
        file.lasting = file.now.clone();
        file.unsynced.clear();
        changed
    }

    /// Counts a call that may fail.
    fn call(&self, disk: &mut Contents) -> io::Result<()> {
        disk.calls += 1;
        match disk.fails_at {
            Some(at) if disk.calls >= at => Err(io::Error::other("simulated failure")),
            _ => Ok(()),
        }
    }
}

impl FileContents {
    fn after_power_cut(&self, random: &mut StdRng) -> FileContents {
        let mut lasting = self.lasting.clone();
        for change in &self.unsynced {
            match change {
                Change::Length(length) if random.random_bool(0.5) => {
                    lasting.resize(*length as usize, 0);
                }
                Change::Length(_) => {}
                Change::Write(at, bytes) => {
                    let (from, to) = match random.random_range(0..4) {
                        0 => (0, 0),
                        1 => (0, bytes.len()),
                        // Its beginning, or its end: blocks reach the disk in any order.
                        2 => (0, random.random_range(0..=bytes.len())),
                        _ => (random.random_range(0..=bytes.len()), bytes.len()),
                    };
                    put(&mut lasting, at + from as u64, &bytes[from..to]);
                }
            }
        }
        FileContents { now: lasting.clone(), lasting, unsynced: Vec::new() }
    }
}

fn put(file: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = at as usize + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at as usize..end].copy_from_slice(bytes);
}

struct SimulatedFile {
    disk: SimulatedDisk,
    number: usize,
}

impl Files for SimulatedDisk {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.shared.disk.lock();
        let within = disk.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(within.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        let disk = self.shared.disk.lock();
        let number = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), number }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        let mut disk = self.shared.disk.lock();
        self.call(&mut disk)?;
        let number = disk.files.len();
        disk.files.push(FileContents::default());
        disk.names.insert(path.to_owned(), number);
        Ok(Arc::new(SimulatedFile { disk: self.clone(), number }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.shared.disk.lock();
        self.call(&mut disk)?;
        let number = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.names.insert(to.to_owned(), number);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.shared.disk.lock();
        self.call(&mut disk)?;
        disk.names.remove(path).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.shared.disk.lock();
        self.call(&mut disk)?;
        let Contents { names, lasting_names, .. } = &mut *disk;
        lasting_names.retain(|path, _| path.parent() != Some(dir));
        let within = names.iter().filter(|(path, _)| path.parent() == Some(dir));
        lasting_names.extend(within.map(|(path, file)| (path.clone(), *file)));
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX / 2)
    }

    fn lock(&self, _: &Path) -> Result<Box<dyn Send + Sync>, LockError> {
        let mut disk = self.shared.disk.lock();
        if std::mem::replace(&mut disk.locked, true) {
            return Err(LockError::Held("process 0 (simulated)".to_owned()));
        }
        Ok(Box::new(Unlock(self.clone())))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        self.open(path)
    }

    fn holder(&self, _: &Path) -> io::Result<Option<String>> {
        Ok(self.shared.disk.lock().locked.then(|| "process 0 (simulated)".to_owned()))
    }

    fn pin(&self, path: &Path, how: PinLock) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let mut disk = self.shared.disk.lock();
        let held = match (how, disk.pins.get(path)) {
            (PinLock::Shared, None) => Some(1),
            (PinLock::Shared, Some(Some(others))) => Some(others + 1),
            (PinLock::Alone, None) => None,
            // Nothing here waits: a test that has it alone is to let go first.
            (PinLock::Shared, Some(None)) => return Err(io::ErrorKind::WouldBlock.into()),
            (PinLock::Alone, Some(_)) => return Ok(None),
        };
        disk.pins.insert(path.to_owned(), held);
        Ok(Some(Box::new(Unpin(self.clone(), path.to_owned()))))
    }
}

struct Unpin(SimulatedDisk, PathBuf);

impl Drop for Unpin {
    fn drop(&mut self) {
        let mut disk = self.0.shared.disk.lock();
        match disk.pins.get(&self.1).copied().flatten() {
            Some(holders) if holders > 1 => disk.pins.insert(self.1.clone(), Some(holders - 1)),
            _ => disk.pins.remove(&self.1),
        };
    }
}

struct Unlock(SimulatedDisk);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.shared.disk.lock().locked = false;
    }
}

impl JournalFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.shared.disk.lock().files[self.number].now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.disk.shared.disk.lock();
        let file = &disk.files[self.number].now;
        let from = (offset as usize).min(file.len());
        let n = bytes.len().min(file.len() - from);
        bytes[..n].copy_from_slice(&file[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.shared.disk.lock();
        let outcome = self.disk.call(&mut disk);
        let file = &mut disk.files[self.number];
        if outcome.is_err() {
            // A write that fails may have reached the disk in part.
            file.unsynced.push(Change::Write(offset, bytes.to_vec()));
            return outcome;
        }
        put(&mut file.now, offset, bytes);
        file.unsynced.push(Change::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.shared.disk.lock();
        while disk.held {
            self.disk.shared.gate.wait(&mut disk);
        }
        self.disk.call(&mut disk)?;
        let file = &mut disk.files[self.number];
        for change in std::mem::take(&mut file.unsynced) {
            match change {
                Change::Write(at, bytes) => put(&mut file.lasting, at, &bytes),
                Change::Length(length) => file.lasting.resize(length as usize, 0),
            }
        }
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk.shared.disk.lock();
        self.disk.call(&mut disk)?;
        let file = &mut disk.files[self.number];
        if (file.now.len() as u64) < length {
            file.now.resize(length as usize, 0);
            file.unsynced.push(Change::Length(length));
        }
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk.shared.disk.lock();
        self.disk.call(&mut disk)?;
        let file = &mut disk.files[self.number];
        if file.now.len() as u64 > length {
            file.now.truncate(length as usize);
            file.unsynced.push(Change::Length(length));
        }
        Ok(())
    }

    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
}
