//! A journal's directory, seen from outside: what it takes, and when its publisher cleans or writes
//! a snapshot.

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

/// How often the directory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A block of `stat`, whatever the file system's own are.
const BLOCK_BYTES: u64 = 512;
/// Folders in which a cycle writes its files.
const WRITTEN_BY_CYCLES: [&str; 2] = ["snapshots", "segments"];
/// The ending of files that are not finished: while there is one, a cycle runs.
const UNFINISHED: &str = ".new";
const SNAPSHOT: &str = ".snap";

/// What a folder and all below it take on the disk, as `du` counts.
pub(crate) fn taken_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    walk(folder, &mut |_, about| bytes += about.blocks() * BLOCK_BYTES)?;
    Ok(bytes)
}

/// Lets the system forget what it keeps in memory of the files: reads go to the disk.
pub(crate) fn drop_from_memory(folder: &Path) -> io::Result<()> {
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

/// Tells of every file. Files and folders come and go meanwhile.
fn walk(folder: &Path, each: &mut dyn FnMut(&Path, &fs::Metadata)) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(about) if about.is_dir() => walk(&entry.path(), each)?,
            Ok(about) => each(&entry.path(), &about),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// When cycles of cleaning and snapshots ran, and what snapshots they wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cycles {
    /// From and to, by the machine's monotonic clock.
    pub(crate) ended: Vec<(u64, u64)>,
    /// Since when one runs.
    pub(crate) runs_since: Option<u64>,
    /// Bytes of every snapshot that was finished, by name.
    snapshots: BTreeMap<String, u64>,
}

impl Cycles {
    fn look(&mut self, now: u64, unfinished: bool) {
        match (self.runs_since, unfinished) {
            (None, true) => self.runs_since = Some(now),
            (Some(from), false) => {
                self.ended.push((from, now));
                self.runs_since = None;
            }
            _ => {}
        }
    }

    /// How many began.
    pub(crate) fn count(&self) -> usize {
        self.ended.len() + usize::from(self.runs_since.is_some())
    }

    /// Bytes of all snapshots that were finished.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.snapshots.values().sum()
    }

    /// True at a moment at which one ran, or will in `before` ns, or has within `after` ns:
    /// freezing the state comes before the first file, deleting segments after the last.
    pub(crate) fn touch(&self, at: u64, before: u64, after: u64) -> bool {
        let touches = |&(from, to): &(u64, u64)| at + before >= from && at <= to + after;
        self.ended.iter().any(touches) || self.runs_since.is_some_and(|from| at + before >= from)
    }
}

/// Looks at a journal's directory all the time.
pub(crate) struct Watch {
    cycles: Arc<Mutex<Cycles>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(journal: PathBuf) -> Watch {
        let (cycles, over) =
            (Arc::new(Mutex::new(Cycles::default())), Arc::new(AtomicBool::new(false)));
        let (mine, is_over) = (cycles.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let (unfinished, snapshots) = files_of_cycles(&journal);
                let mut cycles = mine.lock();
                cycles.look(monotonic_ns(), unfinished);
                cycles.snapshots.extend(snapshots);
                drop(cycles);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Watch { cycles, over, thread: Some(thread) }
    }

    /// What was seen so far.
    pub(crate) fn cycles(&self) -> Cycles {
        self.cycles.lock().clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a file is unfinished, and the finished snapshots with their bytes.
fn files_of_cycles(journal: &Path) -> (bool, Vec<(String, u64)>) {
    let (mut unfinished, mut snapshots) = (false, Vec::new());
    for folder in WRITTEN_BY_CYCLES {
        let entries = fs::read_dir(journal.join(folder)).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            unfinished |= name.ends_with(UNFINISHED);
            if name.ends_with(SNAPSHOT) {
                snapshots.push((name, entry.metadata().map_or(0, |about| about.len())));
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
            cycles.look(now, unfinished);
        }
        assert_eq!((&cycles.ended[..], cycles.runs_since), (&[(2, 5)][..], Some(10)));
        assert_eq!(cycles.count(), 2);
        let touched: Vec<u64> = (0..12).filter(|at| cycles.touch(*at, 1, 2)).collect();
        assert_eq!(touched, [1, 2, 3, 4, 5, 6, 7, 9, 10, 11]);
    }

    #[test]
    fn the_files_of_cycles_are_known_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(files_of_cycles(folder.path()), (false, Vec::new()));
        for below in WRITTEN_BY_CYCLES {
            fs::create_dir(folder.path().join(below)).unwrap();
        }
        fs::write(folder.path().join("segments/0000000001.seg"), "").unwrap();
        fs::write(folder.path().join("snapshots/00000000000000000007.snap"), "four").unwrap();
        let snapshots = vec![("00000000000000000007.snap".to_owned(), 4)];
        assert_eq!(files_of_cycles(folder.path()), (false, snapshots.clone()));
        fs::write(folder.path().join("segments/0000000002.carried.new"), "").unwrap();
        assert_eq!(files_of_cycles(folder.path()), (true, snapshots));
    }

    #[test]
    fn what_is_taken_counts_all_folders_in_blocks() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), vec![1; 10_000]).unwrap();
        fs::write(folder.path().join("c"), vec![1; 10_000]).unwrap();
        drop_from_memory(folder.path()).unwrap();
        let taken = taken_bytes(folder.path()).unwrap();
        assert!((20_000..200_000).contains(&taken), "{taken}");
        assert_eq!(taken_bytes(&folder.path().join("none")).unwrap(), 0);
    }
}
