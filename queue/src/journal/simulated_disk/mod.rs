//! A disk in memory for tests: it loses or tears unsynced writes, fails any call, fills up, blocks
//! syncs, and flips bits. The same seed and calls give the same disk.

mod blocks;
mod contents;
mod faults;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::contents::{Contents, FileChange};
use self::faults::Faults;
pub(crate) use self::faults::{Call, Failure, Fault};
use super::files::disk::read_full;
use super::files::{Files, JournalFile, LockError, PinGuard, PinLock};

/// A disk; clones are the same disk.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    shared: Arc<SharedDisk>,
}

struct SharedDisk {
    disk: Mutex<DiskState>,
    gate: Condvar,
}

struct DiskState {
    contents: Contents,
    faults: Faults,
    random: StdRng,
    /// Changing calls so far.
    changes: u64,
    /// A checksum of every changing call so far: equal for equal runs.
    trace: u32,
    capacity: Option<u64>,
    /// Whether it reports more free space than there is.
    hides_capacity: bool,
    short_reads: bool,
    blocked: BlockedSyncs,
    /// The number of blocked syncs.
    waiting: usize,
    /// Locked directories.
    locked: BTreeSet<PathBuf>,
    /// The locks of [`Files::pin`] on named files: the lock's number, and its shared holders; none
    /// for an exclusive lock.
    pins: BTreeMap<PathBuf, (u64, Option<usize>)>,
    /// The number of the last lock.
    last_pin: u64,
}

/// Which files' syncs wait.
#[derive(Default)]
enum BlockedSyncs {
    #[default]
    None,
    All,
    Of(Vec<PathBuf>),
}

impl Default for SimulatedDisk {
    fn default() -> SimulatedDisk {
        SimulatedDisk::with(Contents::default(), StdRng::seed_from_u64(0))
    }
}

impl SimulatedDisk {
    fn with(contents: Contents, random: StdRng) -> SimulatedDisk {
        let disk = DiskState {
            contents,
            faults: Faults::default(),
            random,
            changes: 0,
            trace: 0,
            capacity: None,
            hides_capacity: false,
            short_reads: false,
            blocked: BlockedSyncs::None,
            waiting: 0,
            locked: BTreeSet::new(),
            pins: BTreeMap::new(),
            last_pin: 0,
        };
        SimulatedDisk {
            shared: Arc::new(SharedDisk { disk: Mutex::new(disk), gate: Condvar::new() }),
        }
    }

    /// The disk as a file system.
    pub(crate) fn files(&self) -> Arc<dyn Files> {
        Arc::new(self.clone())
    }

    // Faults.

    /// Injects a fault.
    pub(crate) fn fail(&self, fault: Fault) {
        self.lock().faults.add(fault);
    }

    /// Fails changing call number `call`, counted from the disk's first, and all calls after it, as
    /// in a power failure.
    pub(crate) fn fail_at(&self, call: u64) {
        let nth = call.saturating_sub(self.calls()).max(1);
        self.fail(Fault::nth_where(nth, |call, _| call.is_change()).for_good());
    }

    /// Removes all faults.
    pub(crate) fn heal(&self) {
        self.lock().faults.clear();
    }

    /// The first call that failed, and its file.
    pub(crate) fn hit(&self) -> Option<(Call, PathBuf)> {
        self.lock().faults.hit().cloned()
    }

    /// Limits the disk's capacity, maybe below its present use.
    pub(crate) fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Reports plenty of free space from now on, as a disk does under a user's quota.
    pub(crate) fn hide_capacity(&self) {
        self.lock().hides_capacity = true;
    }

    /// Sets the free space, as if other programs had used or freed the rest.
    pub(crate) fn leave_free(&self, bytes: u64) {
        let mut disk = self.lock();
        disk.capacity = Some(disk.contents.used_bytes().saturating_add(bytes));
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.lock().free()
    }

    /// Makes each system read return fewer bytes than requested, or get interrupted.
    pub(crate) fn read_short(&self, short: bool) {
        self.lock().short_reads = short;
    }

    /// Blocks or releases all syncs of files.
    pub(crate) fn block_syncs(&self, blocked: bool) {
        self.lock().blocked = if blocked { BlockedSyncs::All } else { BlockedSyncs::None };
        self.shared.gate.notify_all();
    }

    /// Blocks syncs of the files opened by these names; others go on.
    pub(crate) fn block_syncs_of(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.lock().blocked = BlockedSyncs::Of(paths.into_iter().collect());
        self.shared.gate.notify_all();
    }

    /// The number of blocked syncs.
    pub(crate) fn blocked_syncs(&self) -> usize {
        self.lock().waiting
    }

    /// Changes a file's bytes as a bad disk would.
    pub(crate) fn tamper<T>(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.lock().contents.tamper(path, change)
    }

    /// Flips one bit of a file.
    pub(crate) fn flip(&self, path: &Path, bit: u64) {
        self.lock().contents.flip(path, bit);
    }

    /// Drops the page of a file at that byte from the page cache: programs read what the disk has.
    pub(crate) fn evict_page(&self, path: &Path, at: u64) {
        self.lock().contents.evict_page(path, at);
    }

    /// Makes the page of a file at that byte unreadable, until it is written whole.
    pub(crate) fn break_page(&self, path: &Path, at: u64) {
        self.lock().contents.break_page(path, at);
    }

    // Power cuts and kills.

    /// The disk after a power cut: each unsynced change survives fully, partly, or not at all.
    pub(crate) fn after_power_cut(&self, seed: u64) -> SimulatedDisk {
        let mut random = StdRng::seed_from_u64(seed);
        let contents = self.lock().contents.after_power_cut(&mut random);
        self.successor(contents, random)
    }

    /// The disk for a process that starts after this one was killed.
    pub(crate) fn after_kill(&self) -> SimulatedDisk {
        let (contents, random) = {
            let mut disk = self.lock();
            (disk.contents.after_kill(), StdRng::seed_from_u64(disk.random.random()))
        };
        self.successor(contents, random)
    }

    /// The same disk, on which no sync writes earlier changes, as after a failed sync.
    pub(crate) fn with_clean_pages(self) -> SimulatedDisk {
        self.lock().contents.count_as_clean();
        self
    }

    /// The disk with other contents; a run's trace continues over all its disks.
    fn successor(&self, contents: Contents, random: StdRng) -> SimulatedDisk {
        let after = SimulatedDisk::with(contents, random);
        let (before, mut disk) = (self.lock(), after.lock());
        (disk.capacity, disk.short_reads) = (before.capacity, before.short_reads);
        disk.hides_capacity = before.hides_capacity;
        disk.trace = before.trace;
        drop((before, disk));
        after
    }

    // Inspection.

    /// Changing calls so far: create, write, sync, rename, remove and the like.
    pub(crate) fn calls(&self) -> u64 {
        self.lock().changes
    }

    /// A checksum of every changing call so far, in order, with its bytes: distinguishes runs.
    pub(crate) fn trace(&self) -> u32 {
        self.lock().trace
    }

    /// The paths of all files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.lock().contents.names().cloned().collect()
    }

    /// A file's bytes, as programs see them.
    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        let disk = self.lock();
        disk.contents.named(path).map_or(Vec::new(), |file| disk.contents.now(file).to_vec())
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.shared.disk.lock()
    }
}

impl DiskState {
    /// Counts a call. Returns its error, if it fails, and whether everything after it fails too.
    fn meet(&mut self, call: Call, path: &Path, data: &[u8]) -> Option<(io::Error, bool)> {
        if call.is_change() {
            self.changes += 1;
            let name = path.as_os_str().as_encoded_bytes();
            for part in [&[call as u8][..], name, data] {
                self.trace = crc32c::crc32c_append(self.trace, part);
            }
        }
        let (failure, lasts) = self.faults.meet(call, path)?;
        Some((failure.error(), lasts))
    }

    /// Counts a call that has no effect if it fails.
    fn call(&mut self, call: Call, path: &Path) -> io::Result<()> {
        self.meet(call, path, &[]).map_or(Ok(()), |(error, _)| Err(error))
    }

    fn free(&self) -> u64 {
        self.capacity
            .map_or(u64::MAX / 2, |capacity| capacity.saturating_sub(self.contents.used_bytes()))
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    number: usize,
    /// The name by which it was opened.
    path: PathBuf,
}

impl SimulatedDisk {
    fn file(&self, number: usize, path: &Path) -> Arc<dyn JournalFile> {
        Arc::new(SimulatedFile { disk: self.clone(), number, path: path.to_owned() })
    }
}

impl Files for SimulatedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.lock().call(Call::MakeDir, dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut disk = self.lock();
        disk.call(Call::List, dir)?;
        let within = disk.contents.names().filter(|path| path.parent() == Some(dir));
        Ok(within.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        let mut disk = self.lock();
        disk.call(Call::Open, path)?;
        let number = disk.contents.open(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(number, path))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        let mut disk = self.lock();
        if let Some((error, lasts)) = disk.meet(Call::Create, path, &[]) {
            if lasts {
                disk.contents.create_in_flight(path);
            }
            return Err(error);
        }
        let number = disk.contents.create(path);
        Ok(self.file(number, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.lock();
        let failed = disk.meet(Call::Rename, from, to.as_os_str().as_encoded_bytes());
        let number = disk.contents.named(from).ok_or(io::ErrorKind::NotFound)?;
        match failed {
            None => {
                disk.contents.name(to, Some(number));
                disk.contents.name(from, None);
                Ok(())
            }
            Some((error, lasts)) => {
                if lasts {
                    disk.contents.name_in_flight(to, Some(number));
                    disk.contents.name_in_flight(from, None);
                }
                Err(error)
            }
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.lock();
        let failed = disk.meet(Call::Remove, path, &[]);
        let is_pinned = disk.pins.contains_key(path);
        let failed = match failed {
            // The lock file has a name that power cuts do not affect.
            Some((error, _)) if is_pinned => return Err(error),
            failed => failed,
        };
        if failed.is_none() {
            disk.pins.remove(path);
        }
        disk.contents.named(path).ok_or(io::ErrorKind::NotFound)?;
        match failed {
            None => {
                disk.contents.name(path, None);
                Ok(())
            }
            Some((error, lasts)) => {
                if lasts {
                    disk.contents.name_in_flight(path, None);
                }
                Err(error)
            }
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.lock();
        disk.call(Call::SyncDir, dir)?;
        disk.contents.sync_dir(dir);
        Ok(())
    }

    fn is_copy_on_write(&self, _: &Path) -> io::Result<bool> {
        Ok(false)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let mut disk = SimulatedDisk::lock(self);
        disk.call(Call::Measure, dir)?;
        Ok(if disk.hides_capacity { u64::MAX / 2 } else { disk.free() })
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn Send + Sync>, LockError> {
        let mut disk = SimulatedDisk::lock(self);
        disk.call(Call::Lock, dir).map_err(LockError::Io)?;
        if !disk.locked.insert(dir.to_owned()) {
            return Err(LockError::InUse(HOLDER.to_owned()));
        }
        Ok(Box::new(LockGuard(self.clone(), dir.to_owned())))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        self.open(path)
    }

    fn holder(&self, dir: &Path) -> io::Result<Option<String>> {
        Ok(SimulatedDisk::lock(self).locked.contains(dir).then(|| HOLDER.to_owned()))
    }

    fn pin(&self, path: &Path, how: PinLock) -> io::Result<Option<Box<dyn PinGuard>>> {
        let mut disk = SimulatedDisk::lock(self);
        let next = disk.last_pin + 1;
        let (number, holders) = match (how, disk.pins.get(path)) {
            (PinLock::Shared, None) => (next, Some(1)),
            (PinLock::Shared, Some(&(number, Some(others)))) => (number, Some(others + 1)),
            (PinLock::IdleContext, None) => (next, None),
            // Shared locks do not wait here: a test must release the exclusive lock first.
            (PinLock::Shared, Some((_, None))) => return Err(io::ErrorKind::WouldBlock.into()),
            (PinLock::IdleContext, Some(_)) => return Ok(None),
        };
        disk.last_pin = disk.last_pin.max(number);
        disk.pins.insert(path.to_owned(), (number, holders));
        Ok(Some(Box::new(SimulatedPin(self.clone(), path.to_owned(), number))))
    }
}

/// The holder of a locked directory.
const HOLDER: &str = "process 0 (simulated)";

struct LockGuard(SimulatedDisk, PathBuf);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.lock().locked.remove(&self.1);
    }
}

struct SimulatedPin(SimulatedDisk, PathBuf, u64);

impl PinGuard for SimulatedPin {
    fn is_valid(&self) -> io::Result<bool> {
        Ok(self.0.lock().pins.get(&self.1).is_some_and(|&(number, _)| number == self.2))
    }
}

impl Drop for SimulatedPin {
    fn drop(&mut self) {
        let mut disk = self.0.lock();
        match disk.pins.get_mut(&self.1).filter(|(number, _)| *number == self.2) {
            Some((_, Some(holders))) if *holders > 1 => *holders -= 1,
            Some(_) => _ = disk.pins.remove(&self.1),
            None => {}
        }
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.disk.lock().contents.close(self.number);
    }
}

impl JournalFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        let mut disk = self.disk.lock();
        disk.call(Call::Length, &self.path)?;
        Ok(disk.contents.now(self.number).len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk.lock();
        disk.call(Call::Read, &self.path)?;
        if !disk.contents.is_readable(self.number, offset, bytes.len()) {
            return Err(Failure::Device.error());
        }
        let DiskState { contents, random, short_reads, .. } = &mut *disk;
        read_full(bytes, offset, |part, at| {
            let mut most = part.len();
            if *short_reads && most > 1 {
                if random.random_bool(0.1) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                most = random.random_range(1..=most);
            }
            Ok(contents.now(self.number).read(at, &mut part[..most]))
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let failed = disk.meet(Call::Write, &self.path, bytes);
        let (room, disk) = (disk.free(), &mut *disk);
        if !disk.contents.is_writable(self.number, offset, bytes.len()) {
            return Err(Failure::Device.error());
        }
        let length = disk.contents.now(self.number).len() as u64;
        let end = offset + bytes.len() as u64;
        let beyond = end.saturating_sub(length.saturating_add(room)) as usize;
        let fits = bytes.len().saturating_sub(beyond);
        match failed {
            None if fits == bytes.len() => {
                let bytes = Bytes::copy_from_slice(bytes);
                disk.contents.change(self.number, FileChange::Write(offset, bytes));
                Ok(())
            }
            Some((error, true)) => {
                let bytes = Bytes::copy_from_slice(bytes);
                disk.contents.change_in_flight(self.number, FileChange::Write(offset, bytes));
                Err(error)
            }
            failed => {
                // A part was written before the call failed.
                let most = if failed.is_some() { disk.random.random_range(0..=fits) } else { fits };
                let part = Bytes::copy_from_slice(&bytes[..most]);
                disk.contents.change(self.number, FileChange::Write(offset, part));
                Err(failed.map_or_else(|| Failure::Full.error(), |(error, _)| error))
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.waiting += 1;
        loop {
            let waits = match &disk.blocked {
                BlockedSyncs::None => false,
                BlockedSyncs::All => true,
                BlockedSyncs::Of(paths) => paths.contains(&self.path),
            };
            if !waits {
                break;
            }
            self.disk.shared.gate.wait(&mut disk);
        }
        disk.waiting -= 1;
        let disk = &mut *disk;
        match disk.meet(Call::Sync, &self.path, &[]) {
            None => {
                disk.contents.sync(self.number);
                Ok(())
            }
            Some((error, lasts)) => {
                if !lasts {
                    disk.contents.sync_failed(self.number, &mut disk.random);
                }
                Err(error)
            }
        }
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let failed = disk.meet(Call::Allocate, &self.path, &length.to_le_bytes());
        let present = disk.contents.now(self.number).len() as u64;
        if let Some((error, lasts)) = failed {
            if lasts && present < length {
                disk.contents.change_in_flight(self.number, FileChange::Length(length));
            }
            return Err(error);
        }
        if length.saturating_sub(present) > disk.free() {
            return Err(Failure::Full.error());
        }
        if present < length {
            disk.contents.change(self.number, FileChange::Length(length));
        }
        Ok(())
    }

    fn has_other_names(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let failed = disk.meet(Call::Truncate, &self.path, &length.to_le_bytes());
        let present = disk.contents.now(self.number).len() as u64;
        match failed {
            None if length < present => {
                disk.contents.change(self.number, FileChange::Length(length));
                Ok(())
            }
            None => Ok(()),
            Some((error, lasts)) => {
                if lasts && length < present {
                    disk.contents.change_in_flight(self.number, FileChange::Length(length));
                }
                Err(error)
            }
        }
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.disk.lock().call(Call::Forget, &self.path)
    }
}
