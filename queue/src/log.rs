//! The interface between the state machine and the log that makes its commands durable.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::WireError;

use crate::journal::{Budget, Replayed};
use crate::state::SnapshotError;
use crate::{Now, RecordRef};

/// A log of commands: pipelined and ordered. [`Journal`](crate::Journal) is one; a consensus log
/// will be another.
///
/// Guarantees of every log, which this crate's conformance suite checks:
/// 1. Indexes rise by one from the first append of an empty log, which gets 1.
/// 2. Commands become durable in the order of their indexes: what is committed is a prefix, and
///    [`Log::committed`] never falls.
/// 3. A committed command survives any crash, byte for byte, and is read back by its [`RecordRef`].
/// 4. An appended but uncommitted command may be lost in a crash, but never in part, and never
///    without all commands after it.
/// 5. After its first failure a log commits nothing more: appends and waits return [`Poisoned`]
///    from then on.
///
/// A log accepts every append. The caller stops taking input while [`Log::uncommitted_bytes`] is
/// over [`UNCOMMITTED_BYTES_MAX`].
pub trait Log: Send + 'static {
    /// Appends a command and returns its index. Its body is `head` followed by `body`, which is
    /// shared, not copied, until it is written. The next [`Log::flush`] passes it to the writer.
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned>;

    /// Requires a sync for the commit of everything appended so far, at every level of durability:
    /// a start must be durable.
    fn sync(&mut self);

    /// Passes the appended commands to the writer as one batch, so that no lock is taken per
    /// command.
    fn flush(&mut self);

    /// The last index that was appended; 0 for none.
    fn appended(&self) -> u64;

    /// The last index that is durable at the log's declared level; 0 for none.
    fn committed(&self) -> u64;

    /// Waits until a command after `index` is committed, and returns the last committed index.
    /// Cancel safe. Commits before a failure are still returned; the failure comes after them.
    fn committed_beyond(
        &mut self,
        index: u64,
    ) -> impl Future<Output = Result<u64, Poisoned>> + Send + '_;

    /// Bytes appended and not yet committed.
    fn uncommitted_bytes(&self) -> usize;

    /// Reads committed records back.
    fn reader(&self) -> LogReader;

    /// Counters since the log was opened.
    fn metrics(&self) -> LogMetrics;

    /// What may be appended while `leases` leases run. A caller that stays within the budget never
    /// fills the disk. Cheap: called for every command.
    fn budget(&self, _leases: u64) -> Budget {
        Budget::UNLIMITED
    }

    /// Whether the log needs a snapshot, which would take about `about_bytes` bytes, so that it can
    /// drop old commands and a start need not replay them. Cheap: called often.
    fn wants_snapshot(&self, _about_bytes: u64) -> bool {
        false
    }

    /// Takes the requested snapshot, which reflects every command appended so far. It is written
    /// beside the commits and counts once it is durable; until then the older one counts.
    fn snapshot(&mut self, _snapshot: Box<dyn Snapshot>) {}
}

/// The state after all commands up to an index, while it is written to the disk. The live state
/// goes on changing meanwhile.
pub trait Snapshot: Send {
    /// The last command that it reflects.
    fn index(&self) -> u64;

    /// The epoch of the last start that it reflects; 0 for none.
    fn epoch(&self) -> u64;

    /// Approximate bytes of its blocks. They are counted the same way each time, so one snapshot
    /// predicts the size of the next.
    fn about_bytes(&self) -> u64;

    /// Calls `each` for every live part of the log, in any order. May be called several times
    /// before the first block is taken.
    fn parts(&self, each: &mut dyn FnMut(RecordRef));

    /// Appends the next block of bytes to `out`; false when none is left. [`Rebuild::block`]
    /// receives exactly these blocks in this order.
    fn next_block(&mut self, out: &mut Vec<u8>) -> bool;
}

/// The target of recovery: the blocks of the newest snapshot, if there is one, then every later
/// command.
pub trait Rebuild {
    /// The next block of the snapshot.
    fn block(&mut self, block: Bytes) -> Result<(), SnapshotError>;

    /// The snapshot's last block was delivered.
    fn restored(&mut self) -> Result<(), SnapshotError>;

    /// The next command.
    fn command(&mut self, replayed: Replayed) -> Result<(), WireError>;
}

/// Reads a log that has no snapshot.
impl<F: FnMut(Replayed) -> Result<(), WireError>> Rebuild for F {
    fn block(&mut self, _: Bytes) -> Result<(), SnapshotError> {
        Err(SnapshotError::Inconsistent("a snapshot where none was expected"))
    }

    fn restored(&mut self) -> Result<(), SnapshotError> {
        Ok(())
    }

    fn command(&mut self, replayed: Replayed) -> Result<(), WireError> {
        self(replayed)
    }
}

/// Bytes appended and not yet committed, beyond which the caller stops taking input.
pub const UNCOMMITTED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The log has failed. Nothing was acknowledged after the failure, and nothing will be: restart the
/// publisher, which recovers.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} {file:?} failed: {error}")]
pub struct Poisoned {
    /// The operation.
    pub what: &'static str,
    /// The file.
    pub file: PathBuf,
    /// The system's error.
    pub error: Arc<std::io::Error>,
}

/// Counters of a log since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogMetrics {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes written, for whatever purpose.
    pub written_bytes: u64,
    /// Of these, bytes of snapshots.
    pub snapshot_bytes: u64,
    /// Of these, bytes that compaction copied out of mostly dead segments.
    pub compacted_bytes: u64,
    /// Snapshots made.
    pub snapshots: u64,
    /// Syncs of commits.
    pub syncs: u64,
    /// Commits.
    pub commits: u64,
    /// Bytes of the ballast.
    pub ballast_bytes: u64,
}

/// Reads committed records. Cheap to clone. It blocks, so call it on threads that may block.
#[derive(Clone)]
pub struct LogReader {
    records: Arc<dyn Records>,
}

impl LogReader {
    /// A reader of these records.
    pub fn new(records: Arc<dyn Records>) -> LogReader {
        LogReader { records }
    }

    /// A part of a committed command's body, checked. Blocks on the disk.
    pub fn read(&self, at: RecordRef) -> Result<Bytes, LogReadError> {
        self.records.part(at)
    }

    /// A reader for many parts in sequence: see [`Neighbours`].
    pub fn neighbours(&self) -> Neighbours<'_> {
        Neighbours { reader: self, index: 0, block: BodyBlock::default() }
    }
}

/// Reads parts in sequence. Adjacent parts, as most jobs of a batch are, come from the block that
/// was read for the previous one, without asking the records again.
pub struct Neighbours<'a> {
    reader: &'a LogReader,
    /// The command that `block` is of; 0 is none.
    index: u64,
    block: BodyBlock,
}

impl Neighbours<'_> {
    /// The same as [`LogReader::read`].
    pub fn read(&mut self, at: RecordRef) -> Result<Bytes, LogReadError> {
        if at.index == self.index
            && let Some(part) = self.block.part(at)
        {
            return Ok(part);
        }
        let block = self.reader.records.block(at)?;
        let part = block.part_or_error(at)?;
        (self.index, self.block) = (at.index, block);
        Ok(part)
    }
}

/// Checked bytes of one command's body.
#[derive(Clone, Debug, Default)]
pub struct BodyBlock {
    /// Where they begin in the body.
    pub from: usize,
    /// The bytes.
    pub bytes: Bytes,
}

impl BodyBlock {
    /// A part of the body, if this block contains all of it.
    pub fn part(&self, at: RecordRef) -> Option<Bytes> {
        let from = (at.at as usize).checked_sub(self.from)?;
        let to = from + at.length as usize;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    pub(crate) fn part_or_error(&self, at: RecordRef) -> Result<Bytes, LogReadError> {
        let body_bytes = self.from + self.bytes.len();
        self.part(at).ok_or(LogReadError::OutOfRange { at, body_bytes })
    }
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogReader")
    }
}

/// The source of committed bodies.
pub trait Records: Send + Sync {
    /// The block of a command's body that contains that part, checked against its checksum. Blocks.
    fn block(&self, at: RecordRef) -> Result<BodyBlock, LogReadError>;

    /// That part alone.
    fn part(&self, at: RecordRef) -> Result<Bytes, LogReadError> {
        self.block(at)?.part_or_error(at)
    }
}

/// Why a record cannot be read back.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogReadError {
    /// The log has no committed command of that index.
    #[error("there is no committed command {index}")]
    NotFound {
        /// The requested index.
        index: u64,
    },
    /// The requested part does not lie within the command.
    #[error("{at:?} is not within the command's body of {body_bytes} bytes")]
    OutOfRange {
        /// The requested part.
        at: RecordRef,
        /// How long the body is.
        body_bytes: usize,
    },
    /// The record is damaged.
    #[error("{file:?} is damaged at byte {offset}")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the record begins, or the block of it that is damaged.
        offset: u64,
    },
    /// The file cannot be read.
    #[error("reading {file:?} failed: {error}")]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: Arc<std::io::Error>,
    },
}
