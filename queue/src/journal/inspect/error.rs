//! Errors of inspecting a journal.

use std::io;
use std::path::{Path, PathBuf};

use crate::journal::files::identity::LOSSES_MAX;
use crate::journal::wal::format::FORMAT_VERSION;

/// Why a journal cannot be inspected or copied. It was not changed. [`InUse`](InspectError::InUse)
/// and [`Changed`](InspectError::Changed) are temporary: try again later.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The directory is no publisher's data directory.
    #[error("{dir:?} holds no journal: there is no file \"publisher\" in it")]
    NoJournal {
        /// The directory.
        dir: PathBuf,
    },
    /// The identity file cannot be read.
    #[error(
        "{file:?} is missing or damaged: without it the records of this journal cannot be \
         recognized"
    )]
    NoIdentity {
        /// The file.
        file: PathBuf,
    },
    /// A program of another format wrote it.
    #[error(
        "{file:?} has journal format {version}; this program reads format {FORMAT_VERSION}: use \
         the program that wrote it"
    )]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        version: u16,
    },
    /// A process has the journal open.
    #[error(
        "{dir:?} is in use by {holder}, and changes while it is read. Stop that process, or \
         inspect a copy: longshore journal \
         copy {dir:?} DEST"
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// The journal changed while it was read.
    #[error("{dir:?} changed while it was read: {what}. Try again")]
    Changed {
        /// The directory.
        dir: PathBuf,
        /// What happened.
        what: String,
    },
    /// A running copy prevents removals, which a full disk cannot wait for.
    #[error(
        "the disk of {dir:?} is short of room ({free} bytes are free): a copy keeps files there \
         that the publisher has to remove. Free some room, or stop the publisher first"
    )]
    NoSpace {
        /// The directory.
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
    },
    /// A copy has 16 losses more than its original.
    #[error(
        "{file:?} counts almost {LOSSES_MAX} losses, and no epochs are left for a copy: work off \
         its jobs, then start with a new directory"
    )]
    TooManyLosses {
        /// The file with the count.
        file: PathBuf,
    },
    /// The destination of a copy is not empty.
    #[error("{dir:?} is not empty; a copy is made into a new directory, or an empty one")]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// Commands that a copy needs cannot be read.
    #[error(
        "{file:?} is damaged at byte {offset}: command {index} cannot be read, and {why}. A copy \
         would lack it, so none is made; \
         longshore journal verify reports more"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// The first command that is lost.
        index: u64,
        /// What proves that it existed.
        why: &'static str,
    },
    /// The copy does not read back as it was written.
    #[error(
        "{file:?} does not read back as it was written, at byte {offset}: the disk of the copy is \
         bad"
    )]
    NotAsWritten {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
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
}

impl InspectError {
    pub(super) fn io(what: &'static str, file: &Path) -> impl FnOnce(io::Error) -> InspectError {
        let file = file.to_owned();
        move |error| InspectError::Io { what, file, error }
    }

    /// Whether a file has disappeared.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, InspectError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}
