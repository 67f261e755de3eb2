//! Errors of opening a journal, with the remedy.

use std::io;
use std::path::{Path, PathBuf};

use longshore_protocol::{PublisherId, WireError};

use super::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::journal::files::identity::LOSSES_MAX;
use crate::journal::wal::format::FORMAT_VERSION;
use crate::state::SnapshotError;

/// Why a journal cannot be opened. Before an [`Io`](JournalOpenError::Io) error the start may have
/// cut a torn tail or removed what nothing needs; before the others it has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// Another process has the directory open.
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
        /// The operation.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The directory has no journal, and other files.
    #[error(
        "{dir:?} holds no journal, but {}: choose an empty directory",
        listed(names, *more)
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// The first of the other names.
        names: Vec<String>,
        /// How many more there are.
        more: usize,
    },
    /// A new directory on a disk so small that every job would be refused.
    #[error(
        "the disk of {dir:?} has {free} bytes free; a new data directory needs {needed} with \
         segments of {segment_bytes} \
         bytes: free some of it, choose another disk, or smaller segments (--segment-bytes)"
    )]
    DiskTooSmall {
        /// The directory.
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes of a segment.
        segment_bytes: u64,
    },
    /// A program of another format wrote it.
    #[error(
        "{file:?} has journal format {version}; this program reads format {FORMAT_VERSION} alone. \
         Use the program that wrote it; \
         to change over, work off its jobs with that one, then start with a new directory"
    )]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        version: u16,
    },
    /// The file belongs to another journal.
    #[error(
        "{file:?} belongs to journal {journal}, this directory to {expected}: files of two \
         journals were mixed"
    )]
    Foreign {
        /// The file.
        file: PathBuf,
        /// The file's journal.
        journal: PublisherId,
        /// The directory's journal.
        expected: PublisherId,
    },
    /// Acknowledged commands are damaged.
    #[error(
        "{file:?} is damaged at byte {offset}: {why}. Command {index} and all after it are lost. \
         Restore a copy, or start with \
         --accept-loss to set them aside and go on without them"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the damage begins.
        offset: u64,
        /// The first command that is lost.
        index: u64,
        /// What proves that it is more than a torn tail.
        why: &'static str,
    },
    /// A file that a snapshot needs is missing or damaged, and no other file has its content.
    #[error(
        "{file:?}: {why}. The jobs whose payload lies in it are lost. Restore the file or a copy, \
         or start with --accept-loss: these jobs are buried when they are read"
    )]
    PayloadsLost {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Loss was accepted so often that no epochs are left.
    #[error(
        "{file:?} counts {LOSSES_MAX} losses, and no epochs are left for another one: start with a \
         new directory, and enqueue there what longshore journal dump shows of this one"
    )]
    TooManyLosses {
        /// The file with the count.
        file: PathBuf,
    },
    /// An intact snapshot that this program cannot restore: a newer one wrote it.
    #[error("{file:?}: the block at byte {offset} is whole but cannot be restored: {error}")]
    Unrestorable {
        /// The file.
        file: PathBuf,
        /// Where the block begins.
        offset: u64,
        /// What is wrong.
        error: SnapshotError,
    },
    /// The identity file cannot be read.
    #[error("{file:?} is missing or damaged, and the directory holds a journal: restore the file")]
    NoIdentity {
        /// The file.
        file: PathBuf,
    },
    /// An intact record that this program cannot decode: a newer one wrote it.
    #[error(
        "{file:?}: command {index} of kind {kind} at byte {offset} is whole but not known to this \
         program: {error}"
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

fn listed(names: &[String], more: usize) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

impl JournalOpenError {
    pub(crate) fn io(what: &'static str, file: &Path, error: io::Error) -> JournalOpenError {
        JournalOpenError::Io { what, file: file.to_owned(), error }
    }
}
