//! The file system operations that a journal needs, as a trait, so that tests can lose, tear and
//! fail writes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, statfs, statvfs};
use rustix::io::{Errno, retry_on_intr};

use crate::journal::space::ballast::is_full;

/// A file system.
pub(crate) trait Files: Send + Sync {
    /// Creates a directory and its ancestors, and syncs their names.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// The names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>>;
    /// Opens an existing file to read, also on a read-only file system.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>>;
    /// Creates an empty file; an older one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>>;
    /// Renames a file, and replaces an older file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Syncs the names in a directory.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Free bytes for this process on the disk of `dir`, without those reserved for root.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Whether overwriting allocated bytes may need room: then allocation guarantees little.
    fn is_copy_on_write(&self, dir: &Path) -> io::Result<bool>;
    /// Locks the directory for this process, for as long as the returned guard lives.
    fn lock(&self, dir: &Path) -> Result<Box<dyn Send + Sync>, LockError>;
    /// Who has locked the directory, as the lock file says; none if nobody has. Changes nothing.
    fn holder(&self, dir: &Path) -> io::Result<Option<String>>;
    /// Locks a file of the directory, for as long as the returned guard lives; creates it if it is
    /// missing. A shared lock waits for an exclusive one. An exclusive lock never waits: it returns
    /// none while anybody else has the lock.
    fn pin(&self, path: &Path, how: PinLock) -> io::Result<Option<Box<dyn PinGuard>>>;
}

/// A lock of [`Files::pin`].
pub(crate) trait PinGuard: Send + Sync {
    /// Whether the file still has its name. Without it, the lock excludes nobody.
    fn is_valid(&self) -> io::Result<bool>;
}

/// How a file is locked by [`Files::pin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PinLock {
    Shared,
    IdleContext,
}

/// An open file. All calls may be made from several threads.
pub(crate) trait JournalFile: Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads up to `bytes.len()` bytes at `offset`; fewer only at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Syncs data and length.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the file at least `length` bytes long and allocates its blocks; new bytes read as
    /// zeros.
    fn allocate(&self, length: u64) -> io::Result<()>;
    /// Makes the file at most `length` bytes long, and frees the rest.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Whether it has other hard links.
    fn has_other_names(&self) -> io::Result<bool>;
    /// Drops the file's clean pages from the page cache, so that the next read comes from the disk.
    /// Advice, no more.
    fn forget_cached(&self) -> io::Result<()>;
}

/// Why a directory cannot be locked.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Another process has locked it; the text of its lock file.
    InUse(String),
    /// The lock file cannot be used.
    Io(io::Error),
}

/// The name of the lock file.
pub(crate) const LOCK_FILE: &str = "LOCK";
/// A reader of the holder has the lock for less than this.
const ASKED_FOR: Duration = Duration::from_millis(20);

/// The `statfs` types of btrfs, zfs and bcachefs. An overlayfs above them reports its own type.
const COPY_ON_WRITE: [u32; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// Why something is damaged that the disk cannot read. Unlike other damage it may be readable again
/// later.
pub(crate) const UNREADABLE: &str = "the disk cannot read it; check the disk first";

/// The result of a read; none if the disk cannot read the sector.
pub(crate) fn unless_unreadable<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_unreadable(&error) => Ok(None),
        read => read.map(Some),
    }
}

/// Whether the error means that the disk cannot read the sector.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Whether the process or the system has reached its limit of open files.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Payloads and results are for the publisher's user alone, whatever the umask.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// How to open a file that may have to be created.
fn writable() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(FILE_MODE);
    options
}

/// The real file system.
#[derive(Debug)]
pub(crate) struct Disk;

impl Files for Disk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        // A directory's name is durable once its parent is synced. A relative path ends in an empty
        // ancestor: the working directory, which exists.
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let mut missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
        while let Some(dir) = missing.pop() {
            match fs::DirBuilder::new().mode(DIR_MODE).create(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            match dir.parent() {
                Some(above) if above.as_os_str().is_empty() => self.sync_dir(Path::new("."))?,
                Some(above) => self.sync_dir(above)?,
                None => {}
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not UTF-8 is no journal file.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        Ok(Arc::new(File::options().read(true).write(true).open(path)?))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        Ok(Arc::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        Ok(Arc::new(writable().create(true).truncate(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let disk = retry_on_intr(|| statvfs(dir))?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn is_copy_on_write(&self, dir: &Path) -> io::Result<bool> {
        Ok(COPY_ON_WRITE.contains(&(retry_on_intr(|| statfs(dir))?.f_type as u32)))
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn Send + Sync>, LockError> {
        let path = dir.join(LOCK_FILE);
        let mut file =
            writable().create(true).truncate(false).open(&path).map_err(LockError::Io)?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                // A process that reads the holder has the lock for a moment.
                std::thread::sleep(ASKED_FOR);
                file.try_lock()
            }
            locked => locked,
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::InUse(holder_in(&path))),
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        let program = std::env::current_exe().ok().as_deref().map(program_name).unwrap_or_default();
        let text = format!("process {} ({program})\n", std::process::id());
        // Overwrites the old text, so that a full disk needs no room. A lock without a text is
        // valid too.
        match file.write_all(text.as_bytes()).and_then(|()| file.set_len(text.len() as u64)) {
            Err(error) if !is_full(&error) => Err(LockError::Io(error)),
            _ => Ok(Box::new(file)),
        }
    }

    fn holder(&self, dir: &Path) -> io::Result<Option<String>> {
        let path = dir.join(LOCK_FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(holder_in(&path))),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn pin(&self, path: &Path, how: PinLock) -> io::Result<Option<Box<dyn PinGuard>>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                writable().create(true).truncate(false).open(path)?
            }
            opened => opened?,
        };
        match how {
            PinLock::Shared => file.lock_shared()?,
            PinLock::IdleContext => match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            },
        }
        Ok(Some(Box::new(file)))
    }
}

/// The holder named in a lock file.
fn holder_in(path: &Path) -> String {
    let holder = fs::read_to_string(path).unwrap_or_default();
    let holder = holder.lines().next().unwrap_or_default().trim();
    let text = if holder.is_empty() { "an unnamed process" } else { holder };
    text.to_owned()
}

fn program_name(program: &Path) -> String {
    program.file_name().map(PathBuf::from).unwrap_or_default().display().to_string()
}

impl PinGuard for File {
    fn is_valid(&self) -> io::Result<bool> {
        Ok(self.metadata()?.nlink() > 0)
    }
}

impl JournalFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        read_full(bytes, offset, |part, at| FileExt::read_at(self, part, at))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        allocate_with(self, length, || fallocate(self, FallocateFlags::empty(), 0, length))
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        // Also at exactly that length: a file system may have allocated blocks beyond the end.
        if JournalFile::len(self)? >= length { self.set_len(length) } else { Ok(()) }
    }

    fn has_other_names(&self) -> io::Result<bool> {
        Ok(self.metadata()?.nlink() > 1)
    }

    fn forget_cached(&self) -> io::Result<()> {
        // No length: to its end.
        Ok(fadvise(self, 0, None, Advice::DontNeed)?)
    }
}

/// Reads until `bytes` is full or the file ends: one system call may return fewer bytes, or be
/// interrupted.
pub(crate) fn read_full(
    bytes: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match read(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Allocates with `fallocate`, which some file systems end at a signal, and others lack.
fn allocate_with(
    file: &File,
    length: u64,
    fallocate: impl FnMut() -> rustix::io::Result<()>,
) -> io::Result<()> {
    match retry_on_intr(fallocate) {
        Ok(()) => Ok(()),
        // Zeros take the same room, only slower.
        Err(Errno::OPNOTSUPP) => fill_with_zeros(file, length),
        Err(error) => Err(error.into()),
    }
}

fn fill_with_zeros(file: &File, length: u64) -> io::Result<()> {
    let zeros = vec![0; 256 * 1024];
    let mut at = file.metadata()?.len();
    while at < length {
        let n = (length - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..n as usize], at)?;
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_directory_is_created_below_the_working_directory() {
        let dir = std::path::PathBuf::from(format!("relative-{}", std::process::id()));
        Disk.create_dir(&dir).unwrap();
        assert!(dir.is_dir());
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn nobody_else_reads_a_journal() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("data");
        Disk.create_dir(&dir).unwrap();
        Disk.create(&dir.join("file")).unwrap();
        drop(Disk.lock(&dir).unwrap());
        for path in [dir.clone(), dir.join("file"), dir.join(LOCK_FILE)] {
            let mode = fs::metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        }
    }

    #[test]
    fn free_bytes_are_reported_and_truncate_only_shortens() {
        let dir = std::env::temp_dir().join(format!("longshore-free-{}", std::process::id()));
        Disk.create_dir(&dir).unwrap();
        assert!(Disk.free_bytes(&dir).unwrap() > 0);
        let file = Disk.create(&dir.join("file")).unwrap();
        file.allocate(1 << 20).unwrap();
        file.truncate(1 << 21).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20, "truncate never extends a file");
        file.truncate(4096).unwrap();
        assert_eq!(file.len().unwrap(), 4096);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn interrupted_allocation_is_repeated_and_a_missing_one_is_filled_with_zeros() {
        let file = tempfile::tempfile().unwrap();
        let mut results = vec![Errno::OPNOTSUPP, Errno::INTR, Errno::INTR];
        allocate_with(&file, 300_000, || Err(results.pop().unwrap())).unwrap();
        assert_eq!(JournalFile::len(&file).unwrap(), 300_000);
        let full = allocate_with(&file, 400_000, || Err(Errno::NOSPC)).unwrap_err();
        assert!(is_full(&full), "{full}");
    }
}
