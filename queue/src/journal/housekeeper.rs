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
use crate::journal::wal::writer::Chores;

/// How long after a commit its mark is made firm.
const MARK_AFTER: Duration = Duration::from_millis(750);
/// How often the disk is measured: so long after there is room again, jobs are taken again.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How often [`Housekeeper::settle`] looks: a snapshot has time, and commits should not have to
/// wake it.
const SETTLE_LOOK: Duration = Duration::from_millis(2);

/// Shared by the writer, the housekeeper's thread and the cleaner's.
pub(crate) struct Housekeeper {
    directory: Arc<Directory>,
    progress: Arc<Progress>,
    mark: Arc<CommitWatermark>,
    duties: Mutex<Duties>,
    /// The housekeeper has something to do.
    wake: Condvar,
    /// The next segment is there, or will never be.
    ready: Condvar,
    /// Held while what is owed is made firm: nobody takes it for done before it is.
    firming: Mutex<()>,
}

struct Duties {
    next: Option<Segment>,
    /// Since when the firm mark is behind.
    behind: Option<Instant>,
    /// Not even the ballast had room for the next segment: when it is tried again. Until then there
    /// is the rest of this one.
    full_until: Option<Instant>,
    measure_at: Instant,
    owed: PendingSync,
    closing: bool,
    failed: bool,
}

enum Duty {
    Segment,
    CommitWatermark,
    Measure,
    Close,
}

impl Housekeeper {
    pub(crate) fn new(
        directory: Arc<Directory>,
        progress: Arc<Progress>,
        mark: Arc<CommitWatermark>,
    ) -> Housekeeper {
        let owed = PendingSync::new(progress.committed());
        Housekeeper {
            directory,
            progress,
            mark,
            duties: Mutex::new(Duties {
                next: None,
                behind: None,
                full_until: None,
                measure_at: Instant::now() + MEASURE_EVERY,
                owed,
                closing: false,
                failed: false,
            }),
            wake: Condvar::new(),
            ready: Condvar::new(),
            firming: Mutex::new(()),
        }
    }

    /// Works until [`Housekeeper::close`] or the first failure.
    pub(crate) fn run(&self) {
        loop {
            let done = match self.wait() {
                Duty::Segment => self.make_segment(),
                Duty::CommitWatermark => self.firm_owed(),
                Duty::Measure => {
                    self.directory.ballast.measure();
                    self.progress.check()
                }
                Duty::Close => {
                    if let Err(why) = self.firm_owed() {
                        self.progress.poison(why);
                    }
                    return;
                }
            };
            if let Err(why) = done {
                self.progress.poison(why);
                self.duties.lock().failed = true;
                self.ready.notify_all();
                return;
            }
        }
    }

    /// Ends [`Housekeeper::run`], once the mark is firm.
    pub(crate) fn close(&self) {
        self.duties.lock().closing = true;
        self.wake.notify_all();
    }

    fn wait(&self) -> Duty {
        let mut duties = self.duties.lock();
        loop {
            if duties.closing {
                return Duty::Close;
            }
            let now = Instant::now();
            let wants_next = duties.next.is_none();
            if wants_next && duties.full_until.is_none_or(|until| until <= now) {
                return Duty::Segment;
            }
            let mark_at = duties.behind.map(|since| since + MARK_AFTER);
            if mark_at.is_some_and(|at| at <= now) {
                duties.behind = None;
                return Duty::CommitWatermark;
            }
            if duties.measure_at <= now {
                duties.measure_at = now + MEASURE_EVERY;
                return Duty::Measure;
            }
            let next_segment_at = duties.full_until.filter(|_| wants_next);
            let others = mark_at.into_iter().chain(next_segment_at);
            let next = others.fold(duties.measure_at, Instant::min);
            self.wake.wait_until(&mut duties, next);
        }
    }

    fn make_segment(&self) -> Result<(), Poisoned> {
        let made = self.directory.create_segment(0);
        let mut duties = self.duties.lock();
        match made {
            Ok(segment) => (duties.next, duties.full_until) = (Some(segment), None),
            // There is still the rest of the present segment, and there may be room before it is
            // used up.
            Err(why) if is_full(&why.error) => {
                duties.full_until = Some(Instant::now() + MEASURE_EVERY);
            }
            Err(why) => return Err(why),
        }
        self.ready.notify_all();
        Ok(())
    }

    /// Waits until everything up to `index` is on the disk and the firm mark says so, at every
    /// level of durability.
    pub(crate) fn settle(&self, index: u64) -> Result<(), Poisoned> {
        while self.duties.lock().owed.index() < index {
            self.progress.check()?;
            thread::sleep(SETTLE_LOOK);
        }
        self.firm_owed()
    }

    fn firm_owed(&self) -> Result<(), Poisoned> {
        let _firming = self.firming.lock();
        let owed = self.duties.lock().owed.take();
        self.progress.check()?;
        owed.make_firm(&self.directory, &self.mark)
    }
}

impl Chores for Arc<Housekeeper> {
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned> {
        let mut duties = self.duties.lock();
        loop {
            if duties.next.as_ref().is_some_and(|next| next.capacity < least) {
                // A short one, made on a full disk, and a long record: the short one is for later.
                drop(duties);
                return self.directory.create_segment(least);
            }
            if let Some(segment) = duties.next.take() {
                self.wake.notify_all();
                return Ok(segment);
            }
            if duties.failed || duties.full_until.is_some() {
                drop(duties);
                return match self.progress.check() {
                    Err(why) => Err(why),
                    Ok(()) => self.directory.create_segment(least),
                };
            }
            self.ready.wait(&mut duties);
        }
    }

    fn committed(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool) {
        let mut duties = self.duties.lock();
        duties.owed.note(index, file, synced);
        if duties.behind.is_none() {
            duties.behind = Some(Instant::now());
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
    fn the_firm_mark_never_passes_a_file_that_it_did_not_sync() {
        let publisher = PublisherId([9; 16]);
        let files: Arc<dyn Files> = Arc::new(SimulatedDisk::default());
        let dir = Path::new("/data");
        files.create_dir(&dir.join(SEGMENTS_DIR)).unwrap();
        let make = |name| files.create(&dir.join(name)).unwrap();
        let (marks, first) = (make("mark"), make("segments/first"));
        let nothing = CommitWatermark::read(&*marks, publisher).unwrap();
        let mark = CommitWatermark::new(Arc::clone(&marks), dir.join("mark"), publisher, nothing);
        let (files, dir) = (Arc::clone(&files), dir.to_owned());
        let directory = Directory::new(files, dir, publisher, SEGMENT_BYTES_MIN);
        let progress = Arc::new(Progress::new(0));
        let mut keeper =
            Arc::new(Housekeeper::new(Arc::new(directory), Arc::clone(&progress), Arc::new(mark)));
        progress.reach(1);
        keeper.committed(1, &first, false);
        // Written to the next segment; those who wait know of it, the housekeeper not yet.
        progress.reach(2);
        keeper.close();
        assert!(matches!(keeper.wait(), Duty::Close), "it was told to close");
        keeper.firm_owed().unwrap();
        assert_eq!(CommitWatermark::read(&*marks, publisher).unwrap().index, Some(1));
    }
}
