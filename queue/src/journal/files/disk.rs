//! The few things that a journal asks of a file system, so that tests can lose writes, tear them
//! and fail them.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, statfs, statvfs};
use rustix::io::Errno;

use crate::journal::space::ballast::is_full;

/// A file system.
pub(crate) trait Files: Send + Sync {
    /// Makes a directory and those above it, and makes their names last.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// The names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens a file that is there, to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>>;
    /// Opens a file that is there, to read alone: also on a file system that nobody can write to.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>>;
    /// Makes an empty file; an older one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>>;
    /// Gives a file another name, over an older file of that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory last.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that this process may still take of the disk that the directory is on. Not those that
    /// only root may have.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Whether a write may need room where there was some before: what is allocated there promises
    /// little.
    fn is_copy_on_write(&self, dir: &Path) -> io::Result<bool>;
    /// Takes the directory for this process, for as long as what is returned lives.
    fn lock(&self, dir: &Path) -> Result<Box<dyn Send + Sync>, LockError>;
    /// Who has taken the directory, in the lock's own words; none when nobody has. Changes nothing.
    fn holder(&self, dir: &Path) -> io::Result<Option<String>>;
    /// Locks a file of the directory, which is made if it is not there, for as long as what is
    /// returned lives: with others, once nobody has it alone; or alone, which is never waited for:
    /// none while anybody else has it.
    fn pin(&self, path: &Path, how: PinLock) -> io::Result<Option<Box<dyn PinGuard>>>;
}

/// A lock of [`Files::pin`], held for as long as this lives.
pub(crate) trait PinGuard: Send + Sync {
    /// Whether the file still has its name. Without it, the lock keeps nobody out any more.
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
    /// Writes all of it at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes data and length last.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the file at least `length` bytes long, with room on the disk for all of it; what is
    /// new reads as zeros.
    fn allocate(&self, length: u64) -> io::Result<()>;
    /// Makes the file at most `length` bytes long, and gives the disk the room of the rest back.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Whether it has names beside the one by which it was opened.
    fn has_other_names(&self) -> io::Result<bool>;
    /// Lets go of what memory holds of it and the disk has: what is read next comes from the disk.
    /// Advice, no more.
    fn forget_cached(&self) -> io::Result<()>;
}

/// Why a directory cannot be taken.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Another process has it, and says who it is.
    InUse(String),
    /// The lock file cannot be used.
    Io(io::Error),
}

/// The name of the file that holds the lock.
pub(crate) const LOCK_FILE: &str = "LOCK";
/// A lock that is held longer than this is not that of somebody who only asked who has it.
const ASKED_FOR: Duration = Duration::from_millis(20);

/// What `statfs` calls btrfs, zfs and bcachefs. Over any of them, overlayfs names itself alone.
const COPY_ON_WRITE: [u32; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// What was read; none where the disk cannot read the sector.
pub(crate) fn unless_unreadable<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_unreadable(&error) => Ok(None),
        read => read.map(Some),
    }
}

/// What the system reports of a sector that the disk cannot read.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// The real file system.
#[derive(Debug)]
pub(crate) struct Disk;

impl Files for Disk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        // Each directory's name lasts once the one above it is synced.
        // A relative path ends in an empty one: the working directory, which is there.
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let mut missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
        while let Some(dir) = missing.pop() {
            match fs::create_dir(dir) {
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
            // A name that is not UTF-8 is not one of the journal's.
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
        Ok(Arc::new(File::options().read(true).write(true).create(true).truncate(true).open(path)?))
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
        let disk = statvfs(dir)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn is_copy_on_write(&self, dir: &Path) -> io::Result<bool> {
        Ok(COPY_ON_WRITE.contains(&(statfs(dir)?.f_type as u32)))
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn Send + Sync>, LockError> {
        let path = dir.join(LOCK_FILE);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(LockError::Io)?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                // Who asks for the holder has it for a moment.
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
        // Over the old text, so that a full disk has nothing to find room for. A lock without a
        // text is one, too.
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
                File::options().read(true).write(true).create(true).truncate(false).open(path)?
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

/// What a lock's file says of who has it.
fn holder_in(path: &Path) -> String {
    let holder = fs::read_to_string(path).unwrap_or_default();
    let holder = holder.lines().next().unwrap_or_default().trim();
    let text = if holder.is_empty() { "a process that has not said which" } else { holder };
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
        read_whole(bytes, offset, |part, at| FileExt::read_at(self, part, at))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(()),
            // Some file systems cannot: zeros take the same room, only slower.
            Err(rustix::io::Errno::OPNOTSUPP) => fill_with_zeros(self, length),
            Err(error) => Err(error.into()),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        // Also at that very length: a file system may have set blocks apart beyond the end.
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

/// Reads until `bytes` are full or the file ends: one call of the system may give fewer, or be
/// interrupted.
pub(crate) fn read_whole(
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
    fn free_bytes_are_reported_and_truncate_only_shortens() {
        let dir = std::env::temp_dir().join(format!("longshore-free-{}", std::process::id()));
        Disk.create_dir(&dir).unwrap();
        assert!(Disk.free_bytes(&dir).unwrap() > 0);
        let file = Disk.create(&dir.join("file")).unwrap();
        file.allocate(1 << 20).unwrap();
        file.truncate(1 << 21).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20, "it makes none longer");
        file.truncate(4096).unwrap();
        assert_eq!(file.len().unwrap(), 4096);
        fs::remove_dir_all(&dir).unwrap();
    }
}
