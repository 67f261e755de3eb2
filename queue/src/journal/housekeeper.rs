//! What a journal does beside its commits, so that none waits for it: the next segment, the firm
//! mark, a measurement of the disk.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::files::JournalFile;
use crate::Poisoned;
use crate::journal::files::directory::{Directory, Segment};
use crate::journal::space::ballast::is_full;
use crate::journal::wal::commit_watermark::CommitWatermark;
use crate::journal::wal::pending_sync::PendingSync;
use crate::journal::wal::progress::Progress;
use crate::journal::wal::writer::BackgroundWork;

/// How long after a commit its mark is made firm.
const WATERMARK_DELAY: Duration = Duration::from_millis(750);
/// How often the disk is measured: so long after there is room again, jobs are taken again.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How often [`Housekeeper::sync_up_to`] looks: a snapshot has time, and commits should not have to
/// wake it.
const SYNC_POLL: Duration = Duration::from_millis(2);

/// Shared by the writer, the housekeeper's thread and the cleaner's.
pub(crate) struct Housekeeper {
    directory: Arc<Directory>,
    progress: Arc<Progress>,
    watermark: Arc<CommitWatermark>,
    tasks: Mutex<Tasks>,
    /// The housekeeper has something to do.
    wake: Condvar,
    /// The next segment is there, or will never be.
    ready: Condvar,
    /// Held while what is owed is made firm: nobody takes it for done before it is.
    syncing: Mutex<()>,
}

struct Tasks {
    next: Option<Segment>,
    /// Since when the firm mark is behind.
    watermark_behind: Option<Instant>,
    /// Not even the ballast had room for the next segment: when it is tried again. Until then there
    /// is the rest of this one.
    full_until: Option<Instant>,
    measure_at: Instant,
    pending: PendingSync,
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
        progress: Arc<Progress>,
        watermark: Arc<CommitWatermark>,
    ) -> Housekeeper {
        let pending = PendingSync::new(progress.committed());
        Housekeeper {
            directory,
            progress,
            watermark,
            tasks: Mutex::new(Tasks {
                next: None,
                watermark_behind: None,
                full_until: None,
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

    /// Works until [`Housekeeper::close`] or the first failure.
    pub(crate) fn run(&self) {
        loop {
            let done = match self.wait() {
                Task::Segment => self.make_segment(),
                Task::CommitWatermark => self.sync_pending(),
                Task::Measure => {
                    self.directory.ballast.measure();
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

    /// Ends [`Housekeeper::run`], once the mark is firm.
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
            if needs_next && tasks.full_until.is_none_or(|until| until <= now) {
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
            let next_segment_at = tasks.full_until.filter(|_| needs_next);
            let others = watermark_at.into_iter().chain(next_segment_at);
            let next = others.fold(tasks.measure_at, Instant::min);
            self.wake.wait_until(&mut tasks, next);
        }
    }

    fn make_segment(&self) -> Result<(), Poisoned> {
        let made = self.directory.create_segment(0);
        let mut tasks = self.tasks.lock();
        match made {
            Ok(segment) => (tasks.next, tasks.full_until) = (Some(segment), None),
            // There is still the rest of the present segment, and there may be room before it is
            // used up.
            Err(why) if is_full(&why.error) => {
                tasks.full_until = Some(Instant::now() + MEASURE_EVERY);
            }
            Err(why) => return Err(why),
        }
        self.ready.notify_all();
        Ok(())
    }

    /// Waits until everything up to `index` is on the disk and the firm mark says so, at every
    /// level of durability.
    pub(crate) fn sync_up_to(&self, index: u64) -> Result<(), Poisoned> {
        while self.tasks.lock().pending.index() < index {
            self.progress.check()?;
            thread::sleep(SYNC_POLL);
        }
        self.sync_pending()
    }

    fn sync_pending(&self) -> Result<(), Poisoned> {
        let _syncing = self.syncing.lock();
        let pending = self.tasks.lock().pending.take();
        self.progress.check()?;
        pending.sync(&self.directory, &self.watermark)
    }
}

impl BackgroundWork for Arc<Housekeeper> {
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned> {
        let mut tasks = self.tasks.lock();
        loop {
            if tasks.next.as_ref().is_some_and(|next| next.capacity < least) {
                // A short one, made on a full disk, and a long record: the short one is for later.
                drop(tasks);
                return self.directory.create_segment(least);
            }
            if let Some(segment) = tasks.next.take() {
                self.wake.notify_all();
                return Ok(segment);
            }
            if tasks.failed || tasks.full_until.is_some() {
                drop(tasks);
                return match self.progress.check() {
                    Err(why) => Err(why),
                    Ok(()) => self.directory.create_segment(least),
                };
            }
            self.ready.wait(&mut tasks);
        }
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
    use std::path::Path;

    use longshore_protocol::PublisherId;

    use super::*;
    use crate::journal::SEGMENT_BYTES_MIN;
    use crate::journal::files::Files;
    use crate::journal::files::directory::SEGMENTS_DIR;
    use crate::journal::simulated_disk::SimulatedDisk;

    #[test]
    fn synced_watermark_never_passes_an_unsynced_file() {
        let publisher = PublisherId([9; 16]);
        let files: Arc<dyn Files> = Arc::new(SimulatedDisk::default());
        let dir = Path::new("/data");
        files.create_dir(&dir.join(SEGMENTS_DIR)).unwrap();
        let make = |name| files.create(&dir.join(name)).unwrap();
        let (slots, first) = (make("mark"), make("segments/first"));
        let nothing = CommitWatermark::read(&*slots, publisher).unwrap();
        let watermark =
            CommitWatermark::new(Arc::clone(&slots), dir.join("mark"), publisher, nothing);
        let (files, dir) = (Arc::clone(&files), dir.to_owned());
        let directory = Directory::new(files, dir, publisher, SEGMENT_BYTES_MIN);
        let progress = Arc::new(Progress::new(0));
        let mut housekeeper = Arc::new(Housekeeper::new(
            Arc::new(directory),
            Arc::clone(&progress),
            Arc::new(watermark),
        ));
        progress.advance(1);
        housekeeper.committed(1, &first, false);
        // Written to the next segment; those who wait know of it, the housekeeper not yet.
        progress.advance(2);
        housekeeper.close();
        assert!(matches!(housekeeper.wait(), Task::Close), "it was told to close");
        housekeeper.sync_pending().unwrap();
        assert_eq!(CommitWatermark::read(&*slots, publisher).unwrap().index, Some(1));
    }
}
