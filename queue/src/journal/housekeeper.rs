//! What a journal does beside its commits, so that none waits for it: the next segment, and the firm mark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::directory::{Directory, Segment, poisoned};
use super::files::JournalFile;
use super::mark::Mark;
use super::progress::Progress;
use super::writer::Chores;
use crate::Poisoned;

/// How long after a commit its mark is made firm.
const MARK_AFTER: Duration = Duration::from_millis(750);

/// Shared by the writer and the housekeeper's thread.
pub(crate) struct Housekeeper {
    directory: Arc<Directory>,
    progress: Arc<Progress>,
    mark: Arc<Mark>,
    duties: Mutex<Duties>,
    /// The housekeeper has something to do.
    wake: Condvar,
    /// The next segment is there, or will never be.
    ready: Condvar,
}

#[derive(Default)]
struct Duties {
    next: Option<Segment>,
    /// Since when the firm mark is behind.
    behind: Option<Instant>,
    /// Files written to and not synced: only without durability.
    unsynced: Vec<Arc<dyn JournalFile>>,
    closing: bool,
    failed: bool,
}

enum Duty {
    Segment,
    Mark(Vec<Arc<dyn JournalFile>>),
    Close(Vec<Arc<dyn JournalFile>>),
}

impl Housekeeper {
    pub(crate) fn new(
        directory: Arc<Directory>,
        progress: Arc<Progress>,
        mark: Arc<Mark>,
    ) -> Housekeeper {
        Housekeeper {
            directory,
            progress,
            mark,
            duties: Mutex::default(),
            wake: Condvar::new(),
            ready: Condvar::new(),
        }
    }

    /// Works until [`Housekeeper::close`] or the first failure.
    pub(crate) fn run(&self) {
        loop {
            let done = match self.wait() {
                Duty::Segment => self.make_segment(),
                Duty::Mark(files) => self.firm_mark(&files),
                Duty::Close(files) => {
                    if let Err(why) = self.firm_mark(&files) {
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
                return Duty::Close(std::mem::take(&mut duties.unsynced));
            }
            if duties.next.is_none() {
                return Duty::Segment;
            }
            match duties.behind {
                Some(since) if since.elapsed() >= MARK_AFTER => {
                    duties.behind = None;
                    return Duty::Mark(std::mem::take(&mut duties.unsynced));
                }
                Some(since) => {
                    self.wake.wait_until(&mut duties, since + MARK_AFTER);
                }
                None => self.wake.wait(&mut duties),
            }
        }
    }

    fn make_segment(&self) -> Result<(), Poisoned> {
        let segment = self.directory.create_segment(self.directory.segment_bytes)?;
        self.duties.lock().next = Some(segment);
        self.ready.notify_all();
        Ok(())
    }

    fn firm_mark(&self, unsynced: &[Arc<dyn JournalFile>]) -> Result<(), Poisoned> {
        self.progress.check()?;
        let index = self.progress.committed();
        for file in unsynced {
            let dir = self.directory.segments_dir();
            file.sync_data().map_err(|error| poisoned("syncing a segment in", &dir, error))?;
        }
        self.mark.firm(index).map_err(|error| poisoned("syncing", &self.mark.path, error))
    }
}

impl Chores for Arc<Housekeeper> {
    fn segment(&mut self) -> Result<Segment, Poisoned> {
        let mut duties = self.duties.lock();
        loop {
            if let Some(segment) = duties.next.take() {
                self.wake.notify_all();
                return Ok(segment);
            }
            if duties.failed {
                drop(duties);
                return match self.progress.check() {
                    Err(why) => Err(why),
                    Ok(()) => self.directory.create_segment(self.directory.segment_bytes),
                };
            }
            self.ready.wait(&mut duties);
        }
    }

    fn committed(&mut self, file: &Arc<dyn JournalFile>, synced: bool) {
        let mut duties = self.duties.lock();
        if !synced && !duties.unsynced.last().is_some_and(|last| Arc::ptr_eq(last, file)) {
            duties.unsynced.push(Arc::clone(file));
        }
        if duties.behind.is_none() {
            duties.behind = Some(Instant::now());
            self.wake.notify_all();
        }
    }
}
