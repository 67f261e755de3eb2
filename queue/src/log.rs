//! The seam between the state machine and what makes its commands last.

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
/// What every log promises; the conformance suite among this crate's tests checks it:
/// 1. Indexes rise by one from the first append of an empty log, which gets 1.
/// 2. Commands become durable in the order of their indexes: what is committed is a prefix, and
///    [`Log::committed`] never falls.
/// 3. What was committed is there after any crash, byte for byte, and read back by its
///    [`RecordRef`].
/// 4. What was appended and not committed may be gone after a crash, but never in part, and never
///    without all that follows it.
/// 5. After its first failure nothing is committed any more: appends and waits answer [`Poisoned`]
///    for good.
///
/// A log takes what it is given: it is for the caller to take no more input while
/// [`Log::uncommitted_bytes`] is over [`UNCOMMITTED_BYTES_MAX`].
pub trait Log: Send + 'static {
    /// Appends a command and gives its index. Its body is `head` followed by `body`, which is
    /// shared, not copied, until it is written. Takes its course with the next [`Log::flush`].
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned>;

    /// The commit of what was appended so far is synced at every level of durability: a start has
    /// to last.
    fn sync(&mut self);

    /// Hands what was appended to the writer: a batch at a time, so that nothing locks per command.
    fn flush(&mut self);

    /// The last index that was appended; 0 for none.
    fn appended(&self) -> u64;

    /// The last index that is durable at the log's declared level; 0 for none.
    fn committed(&self) -> u64;

    /// Waits until more than `index` is committed, and gives the last committed index. Cancel safe:
    /// nothing is lost by dropping it. What was committed before a failure is still given; the
    /// failure comes after it.
    fn committed_beyond(
        &mut self,
        index: u64,
    ) -> impl Future<Output = Result<u64, Poisoned>> + Send + '_;

    /// Bytes appended and not yet committed.
    fn uncommitted_bytes(&self) -> usize;

    /// Reads committed records back.
    fn reader(&self) -> Reader;

    /// What it has done so far.
    fn metrics(&self) -> LogMetrics;

    /// What may be appended while so many leases run. A log takes what it is given; a caller that
    /// stays within the budget never fills the disk. Cheap: asked for every command.
    fn budget(&self, _leases: u64) -> Budget {
        Budget::UNLIMITED
    }

    /// A snapshot of what all its commands come to, which would take about so many bytes, is
    /// wanted: so that it can let go of old commands, and a start need not read them. Cheap: asked
    /// often.
    fn wants_snapshot(&self, _about_bytes: u64) -> bool {
        false
    }

    /// Takes the snapshot that was wanted, of everything that was appended so far. It is written
    /// beside the commits, and counts once it is durable; until then what was before it counts.
    fn snapshot(&mut self, _snapshot: Box<dyn Snapshot>) {}
}

/// What all commands up to an index come to, on its way to the disk. What it was taken of goes on
/// changing meanwhile.
pub trait Snapshot: Send {
    /// The last command that it reflects.
    fn index(&self) -> u64;

    /// The epoch of the last start that it reflects; 0 for none.
    fn epoch(&self) -> u64;

    /// Bytes that its blocks will have, about: counted in the same way each time, so that one
    /// snapshot tells what the next takes.
    fn about_bytes(&self) -> u64;

    /// Every part of the log that is still wanted, in any order; may be asked several times before
    /// the first block is taken.
    fn parts(&self, each: &mut dyn FnMut(RecordRef));

    /// Appends the next block of bytes to `out`; false when there is none left. What it is put back
    /// together from is exactly these blocks in this order: [`Rebuild::block`].
    fn next_block(&mut self, out: &mut Vec<u8>) -> bool;
}

/// What a log is read back into: the blocks of its newest snapshot, if it has one, then every
/// command after that.
pub trait Rebuild {
    /// The next block of the snapshot.
    fn block(&mut self, block: Bytes) -> Result<(), SnapshotError>;

    /// That was the snapshot's last block.
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

/// Bytes appended and not yet committed, beyond which a caller takes no more input.
pub const UNCOMMITTED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The log has failed. Nothing was acknowledged after the failure, and nothing will be: start
/// again, and recover.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} {file:?} failed: {error}")]
pub struct Poisoned {
    /// What was being done.
    pub what: &'static str,
    /// To which file.
    pub file: PathBuf,
    /// What the system said.
    pub error: Arc<std::io::Error>,
}

/// What a log has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogMetrics {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes written, for whatever purpose.
    pub written_bytes: u64,
    /// Of these, bytes of snapshots.
    pub snapshot_bytes: u64,
    /// Of these, bytes carried out of segments that were mostly dead.
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

/// Reads records back. Cheap to clone; blocks, so it belongs on threads that may.
#[derive(Clone)]
pub struct Reader {
    records: Arc<dyn Records>,
}

impl Reader {
    /// A reader of these records.
    pub fn new(records: Arc<dyn Records>) -> Reader {
        Reader { records }
    }

    /// A part of a committed command's body, checked. Blocks on the disk.
    pub fn read(&self, at: RecordRef) -> Result<Bytes, ReadError> {
        self.records.part(at)
    }

    /// For many parts one after the other: see [`Neighbours`].
    pub fn neighbours(&self) -> Neighbours<'_> {
        Neighbours { reader: self, index: 0, piece: Piece::default() }
    }
}

/// Reads parts one after the other. Those that lie beside the one before, as most jobs of a batch
/// do, come from the piece that was read for it, without asking the records again.
pub struct Neighbours<'a> {
    reader: &'a Reader,
    /// The command that `piece` is of; 0 is none.
    index: u64,
    piece: Piece,
}

impl Neighbours<'_> {
    /// The same as [`Reader::read`].
    pub fn read(&mut self, at: RecordRef) -> Result<Bytes, ReadError> {
        if at.index == self.index
            && let Some(part) = self.piece.part(at)
        {
            return Ok(part);
        }
        let piece = self.reader.records.piece(at)?;
        let part = piece.part_or_error(at)?;
        (self.index, self.piece) = (at.index, piece);
        Ok(part)
    }
}

/// Checked bytes of one command's body.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// Where they begin in the body.
    pub from: usize,
    /// The bytes.
    pub bytes: Bytes,
}

impl Piece {
    /// A part of the body, if all of it is here.
    pub fn part(&self, at: RecordRef) -> Option<Bytes> {
        let from = (at.at as usize).checked_sub(self.from)?;
        let to = from + at.length as usize;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    pub(crate) fn part_or_error(&self, at: RecordRef) -> Result<Bytes, ReadError> {
        let body_bytes = self.from + self.bytes.len();
        self.part(at).ok_or(ReadError::OutOfRange { at, body_bytes })
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

/// Where committed bodies are read from.
pub trait Records: Send + Sync {
    /// A piece of a command's body that holds that part, checked against its checksum. Blocks.
    fn piece(&self, at: RecordRef) -> Result<Piece, ReadError>;

    /// That part alone.
    fn part(&self, at: RecordRef) -> Result<Bytes, ReadError> {
        self.piece(at)?.part_or_error(at)
    }
}

/// Why a record cannot be read back.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The log holds no committed command of that index.
    #[error("there is no committed command {index}")]
    NotThere {
        /// The index that was asked for.
        index: u64,
    },
    /// The part that was asked for does not lie within the command.
    #[error("{at:?} is not within the command's body of {body_bytes} bytes")]
    OutOfRange {
        /// What was asked for.
        at: RecordRef,
        /// How long the body is.
        body_bytes: usize,
    },
    /// The record is not what was written.
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
        /// What the system said.
        error: Arc<std::io::Error>,
    },
}
