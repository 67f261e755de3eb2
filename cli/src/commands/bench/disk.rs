//! Observes a journal's directory from outside: its disk usage, and its publisher's compaction
//! cycles.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};

use super::monotonic_ns;

/// How often the directory is read.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The unit of `st_blocks`, independent of the file system.
const BLOCK_BYTES: u64 = 512;
/// Folders in which a cycle writes files.
const CYCLE_FOLDERS: [&str; 2] = ["snapshots", "segments"];
/// The suffix of unfinished files; while one exists, a cycle runs.
const UNFINISHED_SUFFIX: &str = ".new";
const SNAPSHOT_SUFFIX: &str = ".snap";

/// Disk usage of a folder and everything below it, as `du` counts.
pub(crate) fn disk_usage(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    walk(folder, &mut |_, metadata| bytes += metadata.blocks() * BLOCK_BYTES)?;
    Ok(bytes)
}

/// Drops the files from the page cache, so that reads go to the disk.
pub(crate) fn drop_page_cache(folder: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    walk(folder, &mut |path, _| files.push(path.to_owned()))?;
    for path in files {
        match fs::File::open(&path) {
            Ok(file) => fadvise(&file, 0, None, Advice::DontNeed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Visits every file. Files and folders may appear and disappear during the walk.
fn walk(folder: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => walk(&entry.path(), visit)?,
            Ok(metadata) => visit(&entry.path(), &metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Observed compaction cycles, and the snapshots they wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cycles {
    /// Start and end of each finished cycle, by the monotonic clock.
    pub(crate) ended: Vec<(u64, u64)>,
    /// The start of the running cycle.
    pub(crate) runs_since: Option<u64>,
    /// Bytes of each finished snapshot, by name.
    snapshots: BTreeMap<String, u64>,
}

impl Cycles {
    fn observe(&mut self, now: u64, unfinished: bool) {
        match (self.runs_since, unfinished) {
            (None, true) => self.runs_since = Some(now),
            (Some(from), false) => {
                self.ended.push((from, now));
                self.runs_since = None;
            }
            _ => {}
        }
    }

    /// The number of cycles that have begun.
    pub(crate) fn count(&self) -> usize {
        self.ended.len() + usize::from(self.runs_since.is_some())
    }

    /// Bytes of all finished snapshots.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.snapshots.values().sum()
    }

    /// True if a cycle ran at the moment `at`, began within `before` ns after it, or ended within
    /// `after` ns before it: a cycle freezes the state before its first file exists, and deletes
    /// segments after its last.
    pub(crate) fn touch(&self, at: u64, before: u64, after: u64) -> bool {
        let touches = |&(from, to): &(u64, u64)| at + before >= from && at <= to + after;
        self.ended.iter().any(touches) || self.runs_since.is_some_and(|from| at + before >= from)
    }
}

/// Polls a journal's directory on its own thread.
pub(crate) struct CycleMonitor {
    cycles: Arc<Mutex<Cycles>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CycleMonitor {
    pub(crate) fn start(journal: PathBuf) -> CycleMonitor {
        let (cycles, stop) =
            (Arc::new(Mutex::new(Cycles::default())), Arc::new(AtomicBool::new(false)));
        let (shared, stopped) = (cycles.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let (unfinished, snapshots) = files_of_cycles(&journal);
                let mut cycles = shared.lock();
                cycles.observe(monotonic_ns(), unfinished);
                cycles.snapshots.extend(snapshots);
                drop(cycles);
                std::thread::sleep(POLL_INTERVAL);
            }
        });
        CycleMonitor { cycles, stop, thread: Some(thread) }
    }

    /// The cycles observed so far.
    pub(crate) fn cycles(&self) -> Cycles {
        self.cycles.lock().clone()
    }
}

impl Drop for CycleMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether an unfinished file exists, and the finished snapshots with their sizes.
fn files_of_cycles(journal: &Path) -> (bool, Vec<(String, u64)>) {
    let (mut unfinished, mut snapshots) = (false, Vec::new());
    for folder in CYCLE_FOLDERS {
        let entries = fs::read_dir(journal.join(folder)).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            unfinished |= name.ends_with(UNFINISHED_SUFFIX);
            if name.ends_with(SNAPSHOT_SUFFIX) {
                snapshots.push((name, entry.metadata().map_or(0, |metadata| metadata.len())));
            }
        }
    }
    (unfinished, snapshots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_lasts_while_a_file_is_unfinished() {
        let mut cycles = Cycles::default();
        for (now, unfinished) in [(1, false), (2, true), (3, true), (5, false), (10, true)] {
            cycles.observe(now, unfinished);
        }
        assert_eq!((&cycles.ended[..], cycles.runs_since), (&[(2, 5)][..], Some(10)));
        assert_eq!(cycles.count(), 2);
        let touched: Vec<u64> = (0..12).filter(|at| cycles.touch(*at, 1, 2)).collect();
        assert_eq!(touched, [1, 2, 3, 4, 5, 6, 7, 9, 10, 11]);
    }

    #[test]
    fn cycle_files_are_recognised_by_name() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(files_of_cycles(folder.path()), (false, Vec::new()));
        for below in CYCLE_FOLDERS {
            fs::create_dir(folder.path().join(below)).unwrap();
        }
        fs::write(folder.path().join("segments/0000000001.seg"), "").unwrap();
        fs::write(folder.path().join("snapshots/00000000000000000007.snap"), "four").unwrap();
        let snapshots = vec![("00000000000000000007.snap".to_owned(), 4)];
        assert_eq!(files_of_cycles(folder.path()), (false, snapshots.clone()));
        fs::write(folder.path().join("segments/0000000002.compacted.new"), "").unwrap();
        assert_eq!(files_of_cycles(folder.path()), (true, snapshots));
    }

    #[test]
    fn disk_usage_counts_blocks_of_all_directories() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), vec![1; 10_000]).unwrap();
        fs::write(folder.path().join("c"), vec![1; 10_000]).unwrap();
        drop_page_cache(folder.path()).unwrap();
        let usage = disk_usage(folder.path()).unwrap();
        assert!((20_000..200_000).contains(&usage), "{usage}");
        assert_eq!(disk_usage(&folder.path().join("none")).unwrap(), 0);
    }
}
