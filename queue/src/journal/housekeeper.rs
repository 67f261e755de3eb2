//! Work beside the commits, so that no commit waits for it: creating the next segment, syncing the
//! commit watermark, measuring the disk.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Poisoned;
use crate::journal::files::directory::{Directory, Segment, poisoned};
use crate::journal::files::{JournalFile, is_out_of_files};
use crate::journal::space::ballast::is_full;
use crate::journal::wal::commit_watermark::CommitWatermark;
use crate::journal::wal::pending_watermark::PendingWatermark;
use crate::journal::wal::progress::CommitProgress;
use crate::journal::wal::writer::BackgroundWork;

/// How long after a commit the watermark is synced.
const WATERMARK_DELAY: Duration = Duration::from_millis(750);
/// How often the disk is measured: new jobs are accepted this long after there is room again.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// Poll interval of [`Housekeeper::sync_up_to`]: a snapshot can wait, and commits need not wake it.
const SYNC_POLL: Duration = Duration::from_millis(2);

/// Shared by the threads of the writer, the housekeeper and the compactor.
pub(crate) struct Housekeeper {
    directory: Arc<Directory>,
    progress: Arc<CommitProgress>,
    watermark: Arc<CommitWatermark>,
    tasks: Mutex<Tasks>,
    /// Wakes the housekeeper.
    wake: Condvar,
    /// The next segment exists, or creating it has failed.
    ready: Condvar,
    /// Locked while the watermark is synced, so that no thread considers it synced too early, and
    /// while a file is synced that the watermark's sync may sync as well.
    syncing: Mutex<()>,
}

struct Tasks {
    next: Option<Segment>,
    /// Since when commits are ahead of the synced watermark.
    watermark_behind: Option<Instant>,
    /// When creating the next segment is retried: not even the ballast had room for it, or too many
    /// files are open. Until then the rest of the active segment is used.
    retry_at: Option<Instant>,
    measure_at: Instant,
    pending: PendingWatermark,
    closing: bool,
    failed: bool,
}

enum Task {
    Segment,
    CommitWatermark,
    Measure,
    Close,
}

impl Housekeeper {
    pub(crate) fn new(
        directory: Arc<Directory>,
        progress: Arc<CommitProgress>,
        watermark: Arc<CommitWatermark>,
    ) -> Housekeeper {
        let pending = PendingWatermark::new(progress.committed());
        Housekeeper {
            directory,
            progress,
            watermark,
            tasks: Mutex::new(Tasks {
                next: None,
                watermark_behind: None,
                retry_at: None,
                measure_at: Instant::now() + MEASURE_EVERY,
                pending,
                closing: false,
                failed: false,
            }),
            wake: Condvar::new(),
            ready: Condvar::new(),
            syncing: Mutex::new(()),
        }
    }

    /// Runs until [`Housekeeper::close`] or the first failure.
    pub(crate) fn run(&self) {
        loop {
            let done = match self.wait() {
                Task::Segment => self.make_segment(),
                Task::CommitWatermark => self.sync_pending(),
                Task::Measure => {
                    self.directory.ballast.measure_and_grow();
                    self.progress.check()
                }
                Task::Close => {
                    if let Err(why) = self.sync_pending() {
                        self.progress.poison(why);
                    }
                    return;
                }
            };
            if let Err(why) = done {
                self.progress.poison(why);
                self.tasks.lock().failed = true;
                self.ready.notify_all();
                return;
            }
        }
    }

    /// Stops [`Housekeeper::run`] after a last sync of the commit watermark.
    pub(crate) fn close(&self) {
        self.tasks.lock().closing = true;
        self.wake.notify_all();
    }

    fn wait(&self) -> Task {
        let mut tasks = self.tasks.lock();
        loop {
            if tasks.closing {
                return Task::Close;
            }
            let now = Instant::now();
            let needs_next = tasks.next.is_none();
            if needs_next && tasks.retry_at.is_none_or(|until| until <= now) {
                return Task::Segment;
            }
            let watermark_at = tasks.watermark_behind.map(|since| since + WATERMARK_DELAY);
            if watermark_at.is_some_and(|at| at <= now) {
                tasks.watermark_behind = None;
                return Task::CommitWatermark;
            }
            if tasks.measure_at <= now {
                tasks.measure_at = now + MEASURE_EVERY;
                return Task::Measure;
            }
            let next_segment_at = tasks.retry_at.filter(|_| needs_next);
            let others = watermark_at.into_iter().chain(next_segment_at);
            let next = others.fold(tasks.measure_at, Instant::min);
            self.wake.wait_until(&mut tasks, next);
        }
    }

    fn make_segment(&self) -> Result<(), Poisoned> {
        let made = self.directory.create_segment(0);
        let mut tasks = self.tasks.lock();
        match made {
            Ok(segment) => (tasks.next, tasks.retry_at) = (Some(segment), None),
            // The active segment still has room, and the disk may have some before it is full.
            Err(why) if is_full(&why.error) || is_out_of_files(&why.error) => {
                tasks.retry_at = Some(Instant::now() + MEASURE_EVERY);
            }
            Err(why) => return Err(why),
        }
        self.ready.notify_all();
        Ok(())
    }

    /// Waits until everything up to `index` is synced and the synced watermark covers it, at every
    /// level of durability.
    pub(crate) fn sync_up_to(&self, index: u64) -> Result<(), Poisoned> {
        while self.tasks.lock().pending.index() < index {
            self.progress.check()?;
            thread::sleep(SYNC_POLL);
        }
        self.sync_pending()
    }

    fn sync_pending(&self) -> Result<(), Poisoned> {
        self.sync_alone(|| {
            let pending = self.tasks.lock().pending.take();
            pending.sync(&self.directory, &self.watermark)
        })
    }

    /// Calls `sync` while no other thread syncs, unless a sync has failed.
    fn sync_alone(&self, sync: impl FnOnce() -> Result<(), Poisoned>) -> Result<(), Poisoned> {
        let _syncing = self.syncing.lock();
        self.progress.check()?;
        // Before another thread syncs the same file, or what comes after: the system reports a
        // failure once, and the next sync succeeds.
        let synced = sync();
        synced.inspect_err(|why| self.progress.poison(why.clone()))
    }
}

impl BackgroundWork for Arc<Housekeeper> {
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned> {
        let mut tasks = self.tasks.lock();
        loop {
            if tasks.next.as_ref().is_some_and(|next| next.capacity < least) {
                // The next segment is a short one from a full disk, and the record is long: keep
                // the short one for later.
                drop(tasks);
                return self.directory.create_segment(least);
            }
            if let Some(segment) = tasks.next.take() {
                self.wake.notify_all();
                return Ok(segment);
            }
            if tasks.failed || tasks.retry_at.is_some() {
                drop(tasks);
                return match self.progress.check() {
                    Err(why) => Err(why),
                    Ok(()) => self.directory.create_segment(least),
                };
            }
            self.ready.wait(&mut tasks);
        }
    }

    fn sync(&mut self, file: &Arc<dyn JournalFile>, path: &Path) -> Result<(), Poisoned> {
        self.sync_alone(|| file.sync_data().map_err(|error| poisoned("syncing", path, error)))
    }

    fn committed(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool) {
        let mut tasks = self.tasks.lock();
        tasks.pending.note(index, file, synced);
        if tasks.watermark_behind.is_none() {
            tasks.watermark_behind = Some(Instant::now());
            self.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::PublisherId;

    use super::*;
    use crate::journal::SEGMENT_BYTES_MIN;
    use crate::journal::files::directory::SEGMENTS_DIR;
    use crate::journal::simulated_disk::{Call, Failure, Fault, SimulatedDisk};

    const PUBLISHER: PublisherId = PublisherId([9; 16]);

    /// A housekeeper, the file of its watermark and that of a segment.
    fn housekeeper(
        disk: &SimulatedDisk,
    ) -> (Arc<Housekeeper>, Arc<dyn JournalFile>, Arc<dyn JournalFile>) {
        let (files, dir) = (disk.files(), Path::new("/data"));
        files.create_dir(&dir.join(SEGMENTS_DIR)).unwrap();
        let make = |name| files.create(&dir.join(name)).unwrap();
        let (slots, segment) = (make("watermark"), make("segments/first"));
        let nothing = CommitWatermark::read(&*slots, PUBLISHER).unwrap();
        let path = dir.join("watermark");
        let watermark = CommitWatermark::new(Arc::clone(&slots), path, PUBLISHER, nothing);
        let directory =
            Directory::new(Arc::clone(&files), dir.to_owned(), PUBLISHER, SEGMENT_BYTES_MIN);
        let progress = Arc::new(CommitProgress::new(0));
        let made = Housekeeper::new(Arc::new(directory), progress, Arc::new(watermark));
        (Arc::new(made), slots, segment)
    }

    #[test]
    fn synced_watermark_never_passes_an_unsynced_file() {
        let (mut housekeeper, slots, first) = housekeeper(&SimulatedDisk::default());
        let progress = Arc::clone(&housekeeper.progress);
        progress.advance(1);
        housekeeper.committed(1, &first, false);
        // Written to the next segment; waiters see the commit before the housekeeper does.
        progress.advance(2);
        housekeeper.close();
        assert!(matches!(housekeeper.wait(), Task::Close), "it is closing");
        housekeeper.sync_pending().unwrap();
        assert_eq!(CommitWatermark::read(&*slots, PUBLISHER).unwrap().index, Some(1));
    }

    #[test]
    fn nothing_is_synced_after_a_failed_sync() {
        let disk = SimulatedDisk::default();
        let (mut housekeeper, slots, first) = housekeeper(&disk);
        housekeeper.progress.advance(1);
        housekeeper.committed(1, &first, false);
        disk.fail(Fault::nth_of(Call::Sync, 1));
        assert!(housekeeper.sync_pending().is_err());
        assert!(housekeeper.sync_pending().is_err(), "nothing is pending, but something was lost");
        assert_eq!(CommitWatermark::read(&*slots, PUBLISHER).unwrap().index, None);
    }

    #[test]
    fn no_watermark_covers_what_a_failed_sync_of_the_writer_lost() {
        let disk = SimulatedDisk::default();
        let (mut housekeeper, slots, first) = housekeeper(&disk);
        housekeeper.progress.advance(1);
        housekeeper.committed(1, &first, false);
        disk.fail(Fault::nth_of(Call::Sync, 1));
        assert!(housekeeper.sync(&first, Path::new("/data/segments/first")).is_err());
        // The writer's thread has not poisoned the journal yet, and the file's next sync succeeds.
        assert!(housekeeper.sync_pending().is_err());
        assert_eq!(CommitWatermark::read(&*slots, PUBLISHER).unwrap().index, None);
    }

    #[test]
    fn segment_is_retried_when_too_many_files_are_open() {
        let disk = SimulatedDisk::default();
        let (mut housekeeper, ..) = housekeeper(&disk);
        disk.fail(Fault::nth_of(Call::Create, 1).with(Failure::TooManyFiles));
        housekeeper.make_segment().unwrap();
        assert!(housekeeper.tasks.lock().retry_at.is_some(), "it is tried again later");
        // The active segment is full before that.
        housekeeper.segment(0).unwrap();
        disk.fail(Fault::nth_of(Call::Create, 1));
        assert!(housekeeper.make_segment().is_err(), "a device error lasts");
    }
}
