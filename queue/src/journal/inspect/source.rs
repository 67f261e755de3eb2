//! The inspected directory: its identity and its lock holder.

use std::io;
use std::path::Path;
use std::sync::Arc;

use longshore_protocol::PublisherId;

use super::super::files::Files;
use super::super::{SEGMENT_BYTES, snapshots};
use super::InspectError;
use super::read_only::ReadOnly;
use crate::journal::files::directory::Directory;
use crate::journal::files::identity::{self, Identity, IdentityError};
use crate::journal::space::budget::SMALL_BYTES;
use crate::journal::wal::commit_watermark::{CommitWatermark, WATERMARK_FILE};

/// An inspected journal.
pub(super) struct JournalSource {
    /// Its files, read-only.
    pub(super) directory: Directory,
    /// The ids of journal and publisher.
    pub(super) identity: Identity,
    /// The process that has it open, if any.
    pub(super) holder: Option<String>,
}

impl JournalSource {
    pub(super) fn open(files: &Arc<dyn Files>, dir: &Path) -> Result<JournalSource, InspectError> {
        let read_only: Arc<dyn Files> = Arc::new(ReadOnly(Arc::clone(files)));
        let identity = identity_of(&*read_only, dir)?
            .ok_or_else(|| InspectError::NoJournal { dir: dir.to_owned() })?;
        let holder = read_only.holder(dir).map_err(InspectError::io("inspecting", dir))?;
        // It creates no segments, so their length does not matter.
        let directory = Directory::new(read_only, dir.to_owned(), identity.journal, SEGMENT_BYTES);
        Ok(JournalSource { directory, identity, holder })
    }

    pub(super) fn journal(&self) -> PublisherId {
        self.directory.journal
    }

    /// Fails if the disk is below the low watermark of a publisher that uses it.
    pub(super) fn check_room(&self) -> Result<(), InspectError> {
        let free = self.free_bytes()?;
        match self.holder.is_some() && free < SMALL_BYTES {
            true => Err(InspectError::NoSpace { dir: self.directory.dir.clone(), free }),
            false => Ok(()),
        }
    }

    /// The error of a copy that the publisher ended.
    pub(super) fn no_space(&self) -> Result<InspectError, InspectError> {
        Ok(InspectError::NoSpace { dir: self.directory.dir.clone(), free: self.free_bytes()? })
    }

    fn free_bytes(&self) -> Result<u64, InspectError> {
        let dir = &self.directory.dir;
        let free = self.directory.files.free_bytes(dir);
        free.map_err(InspectError::io("measuring the disk of", dir))
    }

    /// The commit watermark; none if it is missing or damaged.
    pub(super) fn watermark(&self) -> Result<Option<u64>, InspectError> {
        let path = self.directory.dir.join(WATERMARK_FILE);
        let file = match self.directory.files.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(InspectError::io("opening", &path)(error)),
        };
        let read = CommitWatermark::read(&*file, self.journal())
            .map_err(InspectError::io("reading", &path))?;
        Ok(read.index)
    }

    /// The indexes of all snapshots, newest first.
    pub(super) fn snapshots(&self) -> Result<Vec<u64>, InspectError> {
        let listed = snapshots::list(&self.directory);
        listed.map_err(InspectError::io("listing", &self.directory.snapshots_dir()))
    }
}

/// The identity of a directory; none if it has no journal.
pub(super) fn identity_of(files: &dyn Files, dir: &Path) -> Result<Option<Identity>, InspectError> {
    match identity::read(files, dir) {
        Ok(known) => Ok(known),
        Err(IdentityError::Io(file, error)) => {
            Err(InspectError::Io { what: "reading", file, error })
        }
        Err(IdentityError::Damaged(file)) => Err(InspectError::NoIdentity { file }),
        Err(IdentityError::OtherFormat(file, version)) => {
            Err(InspectError::OtherFormat { file, version })
        }
    }
}
