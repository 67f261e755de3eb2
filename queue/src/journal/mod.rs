//! The default log: append-only segments of commands, in a directory of one publisher's own.
//!
//! ```text
//! append ─▶ batch ─flush─▶ pending ─▶ writer: one write, one fdatasync ─▶ committed ─▶ those who wait
//!                                       ▲ next segment, firm mark, reserve: housekeeper
//! snapshot ─▶ desk ─▶ cleaner: carries what is wanted out of old segments, writes the snapshot, removes what nobody needs
//! ```

mod carried;
mod carry;
mod cleaner;
mod cleaning;
mod desk;
mod directory;
#[cfg(test)]
mod examination;
pub(crate) mod files;
mod format;
mod housekeeper;
mod identity;
pub mod inspect;
mod locations;
mod mark;
mod owed;
mod paced;
mod pieces;
mod pin;
mod progress;
mod reading;
mod record;
mod records;
mod recovery;
mod reserve;
#[cfg(test)]
pub(crate) mod simulated_disk;
mod snapshots;
mod space;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use longshore_protocol::{Durability, PublisherId, WireError};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use self::cleaner::{Cleaner, CycleFigures};
use self::desk::{Desk, Due};
use self::directory::{Directory, SEGMENTS_DIR, SNAPSHOTS_DIR, poisoned};
use self::files::{Disk, Files, LockError};
use self::format::{FORMAT_OLDEST, FORMAT_VERSION};
use self::housekeeper::Housekeeper;
use self::identity::{Identity, IdentityError};
use self::mark::{MARK_FILE, Mark};
use self::progress::{Progress, Reached};
use self::record::BODY_BYTES_MAX;
use self::records::JournalRecords;
pub use self::recovery::{CutTail, Dropped, LostStarts, RecoveredSnapshot};
pub use self::space::{Space, SpaceLevel};
use self::writer::{Pending, Writer};
use crate::Now;
use crate::log::{Log, LogFigures, Poisoned, Reader, Rebuild, Snapshot};
use crate::state::SnapshotError;

/// Shortest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 1024 * 1024;
/// Longest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// A segment's length unless it is told otherwise, in bytes.
pub const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// How a journal is opened.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Bytes of a segment, [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u64,
    /// What a commit stands for.
    pub durability: Durability,
    /// Starts although something acknowledged is damaged: it and all after it are set aside in `lost/`.
    pub accept_loss: bool,
    /// The id that a new directory gets; random.
    pub new_publisher: PublisherId,
}

/// A command read back at start.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its index.
    pub index: u64,
    /// When it was logged.
    pub now: Now,
    /// Its kind.
    pub kind: u8,
    /// Its body. Holding on to it holds on to the memory of its neighbours.
    pub body: Bytes,
}

/// What opening a journal found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Whose journal it is.
    pub publisher: PublisherId,
    /// The last index; 0 for a new journal.
    pub last_index: u64,
    /// The snapshot that was restored, if there was one.
    pub snapshot: Option<RecoveredSnapshot>,
    /// Commands replayed after it.
    pub records: u64,
    /// Bytes of the log read for that.
    pub bytes: u64,
    /// The torn tail that was cut off, if there was one.
    pub cut: Option<CutTail>,
    /// What was dropped, if damage was found and accepted.
    pub dropped: Option<Dropped>,
    /// Set when starts may have been dropped that no later one has answered yet.
    pub lost_starts: Option<LostStarts>,
}

/// Why a journal cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{dir:?} is in use by {holder}; one process at a time may have a data directory")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// The system refused.
    #[error("{what} {file:?} failed: {error}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// To which file.
        file: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A newer program wrote it.
    #[error(
        "{file:?} has journal format {version}; this program reads formats {FORMAT_OLDEST} to {FORMAT_VERSION}: use a newer one"
    )]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        version: u16,
    },
    /// An older program wrote it.
    #[error(
        "{dir:?} holds a journal of format {version}; this program reads formats {FORMAT_OLDEST} to {FORMAT_VERSION}. Work off its jobs with \
         the version of the program that wrote it, then start with a new directory"
    )]
    Older {
        /// The directory.
        dir: PathBuf,
        /// Its format.
        version: u16,
    },
    /// It belongs to another journal.
    #[error(
        "{file:?} belongs to journal {journal}, this directory to {expected}: files of two journals were mixed"
    )]
    Foreign {
        /// The file.
        file: PathBuf,
        /// To which one.
        journal: PublisherId,
        /// The directory's.
        expected: PublisherId,
    },
    /// Something that was acknowledged is not there as it was written.
    #[error(
        "{file:?} is damaged at byte {offset}: {why}. Command {index} and all after it are lost. Restore a copy, or start with \
         --accept-loss to set them aside and go on without them"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the damage begins.
        offset: u64,
        /// The first command that is lost.
        index: u64,
        /// How it is known to be more than a torn tail.
        why: &'static str,
    },
    /// A whole snapshot that this program cannot put back together: a newer one wrote it.
    #[error("{file:?}: the block at byte {offset} is whole but cannot be restored: {error}")]
    Unrestorable {
        /// The file.
        file: PathBuf,
        /// Where the block begins.
        offset: u64,
        /// What is wrong.
        error: SnapshotError,
    },
    /// The file that says whose directory this is cannot be read.
    #[error("{file:?} is missing or damaged, and the directory holds a journal: restore the file")]
    NoIdentity {
        /// The file.
        file: PathBuf,
    },
    /// A whole record that this program cannot read: a newer one wrote it.
    #[error(
        "{file:?}: command {index} of kind {kind} at byte {offset} is whole but not known to this program: {error}"
    )]
    Undecodable {
        /// The file.
        file: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Its index.
        index: u64,
        /// Its kind.
        kind: u8,
        /// What is wrong.
        error: WireError,
    },
    /// The segment size is out of range.
    #[error("a segment of {0} bytes; it needs {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}")]
    SegmentBytes(u64),
}

/// The journal of one publisher: the default [`Log`].
pub struct Journal {
    directory: Arc<Directory>,
    progress: Arc<Progress>,
    records: Arc<JournalRecords>,
    queue: Arc<WriterQueue>,
    housekeeper: Arc<Housekeeper>,
    desk: Arc<Desk>,
    cycles: Arc<CycleFigures>,
    /// Bytes of log that were written when the newest snapshot was taken; below 0 for what is from before the start.
    written_at_snapshot: i64,
    reached: watch::Receiver<Reached>,
    /// Appended and not yet flushed.
    batch: Vec<Pending>,
    appended: u64,
    threads: Option<Threads>,
    _lock: Box<dyn Send + Sync>,
}

struct Threads {
    writer: JoinHandle<()>,
    keeper: JoinHandle<()>,
    cleaner: JoinHandle<()>,
}

/// What the writer's thread takes from: everything at once.
#[derive(Default)]
struct WriterQueue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    batch: Vec<Pending>,
    closing: bool,
}

/// A journal's parts before its threads run.
struct Parts {
    directory: Arc<Directory>,
    records: Arc<JournalRecords>,
    progress: Arc<Progress>,
    mark: Arc<Mark>,
    segment: Option<directory::Segment>,
    recovered: Recovered,
    lock: Box<dyn Send + Sync>,
}

impl Journal {
    /// Opens the journal in `dir`, or makes it, and rebuilds what its commands come to: from its newest snapshot, and every
    /// command after that, in order. Blocks. Once it returns, that is what there is, for good.
    pub fn open(
        dir: &Path,
        options: JournalOptions,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(Journal, Recovered), OpenError> {
        Journal::open_on(Arc::new(Disk), dir, options, rebuild)
    }

    pub(crate) fn open_on(
        files: Arc<dyn Files>,
        dir: &Path,
        options: JournalOptions,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(Journal, Recovered), OpenError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
            return Err(OpenError::SegmentBytes(options.segment_bytes));
        }
        let durability = options.durability;
        let parts = Parts::open(files, dir, options, rebuild)?;
        let Parts { directory, records, progress, mark, segment, recovered, lock } = parts;
        if let Some(segment) = &segment {
            directory.reserve.add_room(segment.capacity.saturating_sub(segment.at));
        }
        directory.open_reserve()?;
        let housekeeper = Arc::new(Housekeeper::new(
            Arc::clone(&directory),
            Arc::clone(&progress),
            Arc::clone(&mark),
        ));
        let queue = Arc::new(WriterQueue::default());
        let writer = Writer::new(
            Arc::clone(&directory),
            Arc::clone(&records),
            Arc::clone(&progress),
            mark,
            Arc::clone(&housekeeper),
            durability,
            segment,
        );
        let (desk, cycles) = (Arc::new(Desk::default()), Arc::new(CycleFigures::default()));
        let newest_bytes = recovered.snapshot.map_or(0, |snapshot| snapshot.bytes);
        cycles.newest_bytes.store(newest_bytes, Ordering::Relaxed);
        directory.reserve.note_snapshot(newest_bytes);
        let cleaner =
            Cleaner::new(Arc::clone(&directory), Arc::clone(&records), Arc::clone(&cycles));
        let threads = {
            let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
                let io = |error| OpenError::io("starting the threads of", dir, error);
                thread::Builder::new().name(name.to_owned()).spawn(run).map_err(io)
            };
            let keeper = {
                let housekeeper = Arc::clone(&housekeeper);
                spawn("journal-keeper", Box::new(move || housekeeper.run()))?
            };
            let cleaner = {
                let (desk, housekeeper) = (Arc::clone(&desk), Arc::clone(&housekeeper));
                let progress = Arc::clone(&progress);
                let run = move || desk::run(&desk, cleaner, &housekeeper, &progress);
                spawn("journal-cleaner", Box::new(run))?
            };
            let (queue, progress) = (Arc::clone(&queue), Arc::clone(&progress));
            let writer =
                spawn("journal-writer", Box::new(move || write(writer, &queue, &progress)))?;
            Threads { writer, keeper, cleaner }
        };
        let journal = Journal {
            directory,
            reached: progress.subscribe(),
            progress,
            records,
            queue,
            housekeeper,
            desk,
            cycles,
            // A segment holds less than 1 GiB, and a journal fewer bytes than 2^63.
            written_at_snapshot: -(recovered.bytes as i64),
            batch: Vec::new(),
            appended: recovered.last_index,
            threads: Some(threads),
            _lock: lock,
        };
        Ok((journal, recovered))
    }
}

impl Parts {
    fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        options: JournalOptions,
        rebuild: &mut dyn Rebuild,
    ) -> Result<Parts, OpenError> {
        files.create_dir(dir).map_err(|error| OpenError::io("making", dir, error))?;
        let lock = files.lock(dir).map_err(|error| match error {
            LockError::Held(holder) => OpenError::InUse { dir: dir.to_owned(), holder },
            LockError::Io(error) => OpenError::io("locking", &dir.join(files::LOCK_FILE), error),
        })?;
        let segments_dir = dir.join(SEGMENTS_DIR);
        for dir in [&segments_dir, &dir.join(SNAPSHOTS_DIR)] {
            files.create_dir(dir).map_err(|error| OpenError::io("making", dir, error))?;
        }
        let identity = identify(&*files, dir, &segments_dir, options.new_publisher)?;
        let directory = Arc::new(Directory::new(
            Arc::clone(&files),
            dir.to_owned(),
            identity.journal,
            options.segment_bytes,
        ));
        let (mark, committed) = open_mark(&directory, options.accept_loss)?;
        let found = recovery::recover(&directory, committed, options.accept_loss, rebuild)?;
        let io = |error| OpenError::io("syncing", &mark.path, error);
        if found.dropped.is_some() {
            // Last of all: until then, the mark says that something is missing.
            mark.reset(found.last_index).map_err(io)?;
        } else if found.last_index > committed {
            mark.firm(found.last_index).map_err(io)?;
        }
        if identity.version < FORMAT_VERSION {
            // Before anything of this format is written, and after all that could refuse the directory.
            let Identity { journal, publisher, .. } = identity;
            identity::write(&*files, dir, journal, publisher).map_err(unidentified)?;
        }
        let recovered = Recovered {
            publisher: identity.publisher,
            last_index: found.last_index,
            snapshot: found.snapshot,
            records: found.records,
            bytes: found.bytes,
            cut: found.cut,
            dropped: found.dropped,
            lost_starts: found.lost_starts,
        };
        let records = Arc::new(JournalRecords::new(Arc::clone(&directory), found.locations));
        let progress = Arc::new(Progress::new(found.last_index));
        let segment = found.segment;
        let mark = Arc::new(mark);
        Ok(Parts { directory, records, progress, mark, segment, recovered, lock })
    }
}

fn unidentified(error: IdentityError) -> OpenError {
    match error {
        IdentityError::Io(file, error) => OpenError::io("making", &file, error),
        IdentityError::Damaged(file) | IdentityError::OtherFormat(file, _) => {
            OpenError::NoIdentity { file }
        }
    }
}

/// The directory's ids; a new one gets `new`, and its mark, before anything else.
fn identify(
    files: &dyn Files,
    dir: &Path,
    segments_dir: &Path,
    new: PublisherId,
) -> Result<Identity, OpenError> {
    let known = identity::read(files, dir).map_err(|error| match error {
        IdentityError::Io(file, error) => OpenError::io("reading", &file, error),
        IdentityError::Damaged(file) => OpenError::NoIdentity { file },
        IdentityError::OtherFormat(file, version) => OpenError::other_format(dir, file, version),
    })?;
    if let Some(known) = known {
        // The run that made it may have ended before its name, or that of the mark, was known to last.
        files.sync_dir(dir).map_err(|error| OpenError::io("syncing", dir, error))?;
        return Ok(known);
    }
    let list = |dir: &Path| files.list(dir).map_err(|error| OpenError::io("listing", dir, error));
    let is_segment = |name: &String| {
        Directory::sequence_of(name).or_else(|| Directory::carried_sequence_of(name)).is_some()
    };
    let is_snapshot = |name: &String| Directory::snapshot_index_of(name).is_some();
    // Any of them is a journal's: a new id would make all of them foreign.
    if list(segments_dir)?.iter().any(is_segment)
        || list(&dir.join(SNAPSHOTS_DIR))?.iter().any(is_snapshot)
    {
        return Err(OpenError::NoIdentity { file: dir.join(identity::IDENTITY_FILE) });
    }
    // The mark first: a directory with an id has one, so a missing mark is never taken for a new journal.
    let path = dir.join(MARK_FILE);
    let io = |error| OpenError::io("making", &path, error);
    let file = files.create(&path).map_err(io)?;
    let nothing = Mark::read(&*file, new).map_err(io)?;
    Mark::new(file, path.clone(), new, nothing).reset(0).map_err(io)?;
    files.sync_dir(dir).map_err(io)?;
    identity::write(files, dir, new, new).map_err(unidentified)?;
    Ok(Identity { version: FORMAT_VERSION, journal: new, publisher: new })
}

fn open_mark(directory: &Directory, accept_loss: bool) -> Result<(Mark, u64), OpenError> {
    let path = directory.dir.join(MARK_FILE);
    let io = |error| OpenError::io("reading", &path, error);
    let lost = || OpenError::Damaged {
        file: path.clone(),
        offset: 0,
        index: 0,
        why: "without a mark nobody can tell how far commits had come",
    };
    let file = match directory.files.open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && accept_loss => {
            directory.files.create(&path).map_err(io)?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(lost()),
        Err(error) => return Err(io(error)),
    };
    let read = Mark::read(&*file, directory.journal).map_err(io)?;
    if read.index.is_none() && !accept_loss {
        return Err(lost());
    }
    let mark = Mark::new(file, path.clone(), directory.journal, read);
    if read.index.is_none() {
        mark.reset(0).map_err(io)?;
    }
    Ok((mark, read.index.unwrap_or(0)))
}

/// The writer's thread: commits all that waits, until the journal is closed or has failed.
fn write(mut writer: Writer<Arc<Housekeeper>>, queue: &WriterQueue, progress: &Progress) {
    let mut batch = Vec::new();
    loop {
        {
            let mut waiting = queue.waiting.lock();
            while waiting.batch.is_empty() && !waiting.closing {
                queue.wake.wait(&mut waiting);
            }
            if waiting.batch.is_empty() {
                return;
            }
            std::mem::swap(&mut batch, &mut waiting.batch);
        }
        if let Err(why) = writer.write(&batch) {
            tracing::error!(%why, "the journal has failed; nothing is acknowledged any more");
            progress.poison(why);
            return;
        }
        batch.clear();
    }
}

impl Log for Journal {
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned> {
        self.progress.check()?;
        if head.len() + body.len() > BODY_BYTES_MAX {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "a command is over 1 GiB");
            return Err(poisoned("appending to", &self.directory.dir, why));
        }
        self.appended += 1;
        let command = Pending { index: self.appended, now, kind, head, body, synced: false };
        self.progress.uncommitted_bytes.fetch_add(command.record_len(), Ordering::Relaxed);
        self.batch.push(command);
        Ok(self.appended)
    }

    fn sync(&mut self) {
        if let Some(last) = self.batch.last_mut() {
            last.synced = true;
        }
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut waiting = self.queue.waiting.lock();
        if waiting.batch.is_empty() {
            std::mem::swap(&mut waiting.batch, &mut self.batch);
        } else {
            waiting.batch.append(&mut self.batch);
        }
        drop(waiting);
        self.queue.wake.notify_one();
    }

    fn appended(&self) -> u64 {
        self.appended
    }

    fn committed(&self) -> u64 {
        self.progress.committed()
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        let wanted = |reached: &Reached| reached.committed > index || reached.poisoned.is_some();
        match self.reached.wait_for(wanted).await.map(|reached| reached.clone()) {
            Ok(Reached { committed, .. }) if committed > index => Ok(committed),
            Ok(Reached { poisoned: Some(why), .. }) => Err(why),
            // Never so: one of the two was wanted, and the sender lives in `progress`, which `self` holds.
            Ok(_) | Err(_) => std::future::pending().await,
        }
    }

    fn uncommitted_bytes(&self) -> usize {
        self.progress.uncommitted_bytes.load(Ordering::Relaxed)
    }

    fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.records) as _)
    }

    fn figures(&self) -> LogFigures {
        let log_bytes = self.progress.written_bytes.load(Ordering::Relaxed);
        let snapshot_bytes = self.cycles.snapshot_bytes.load(Ordering::Relaxed);
        let carried_bytes = self.cycles.carried_bytes.load(Ordering::Relaxed);
        LogFigures {
            bytes: self.directory.bytes.load(Ordering::Relaxed),
            written_bytes: log_bytes + snapshot_bytes + carried_bytes,
            snapshot_bytes,
            carried_bytes,
            snapshots: self.cycles.snapshots.load(Ordering::Relaxed),
            syncs: self.progress.syncs.load(Ordering::Relaxed),
            commits: self.progress.commits.load(Ordering::Relaxed),
            reserve_bytes: self.directory.reserve.bytes(),
            level: self.directory.reserve.level(),
        }
    }

    fn space(&self) -> Space {
        self.directory.reserve.space(self.uncommitted_bytes() as u64)
    }

    fn note_running(&self, leases: u64) {
        self.directory.reserve.note_running(leases);
    }

    fn wants_snapshot(&self, about_bytes: u64) -> bool {
        let newest_bytes = self.cycles.newest_bytes.load(Ordering::Relaxed);
        self.directory.reserve.note_snapshot(about_bytes.max(newest_bytes));
        let written = self.progress.written_bytes.load(Ordering::Relaxed) as i64;
        let due = Due {
            log_bytes: (written - self.written_at_snapshot).max(0) as u64,
            about_bytes,
            segment_bytes: self.directory.segment_bytes,
            short: self.directory.reserve.level().is_short(),
            again: self.desk.was_given_up(),
            rested: self.desk.is_rested(),
        };
        due.is_due() && !self.desk.is_busy()
    }

    fn snapshot(&mut self, snapshot: Box<dyn Snapshot>) {
        debug_assert_eq!(snapshot.index(), self.appended, "it reflects all that was appended");
        self.written_at_snapshot = self.progress.written_bytes.load(Ordering::Relaxed) as i64;
        self.desk.put(snapshot);
    }
}

/// Commits what was appended, unless the journal has failed; makes the mark firm; gives the directory free.
impl Drop for Journal {
    fn drop(&mut self) {
        self.flush();
        self.queue.waiting.lock().closing = true;
        self.queue.wake.notify_all();
        self.desk.close();
        if let Some(Threads { writer, keeper, cleaner }) = self.threads.take() {
            // A panic of theirs was reported by the thread itself.
            let _ = writer.join();
            let _ = cleaner.join();
            self.housekeeper.close();
            let _ = keeper.join();
        }
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("dir", &self.directory.dir)
            .field("appended", &self.appended)
            .field("committed", &self.committed())
            .finish_non_exhaustive()
    }
}
