//! Reads the beginning of a snapshot file, before the state.

use super::format::{KIND_LOCATIONS, KIND_STATE};
use super::read::{SnapshotFileError, SnapshotReader};
use super::runs::LocationsDecoder;
use crate::journal::files::directory::Directory;
use crate::journal::wal::locations::Locations;

/// The content of a snapshot file before the state, which is not checked.
pub(crate) struct SnapshotHead {
    pub(crate) epoch: u64,
    pub(crate) locations: Locations,
}

/// Reads the beginning of a snapshot file.
pub(crate) fn head(directory: &Directory, index: u64) -> Result<SnapshotHead, SnapshotFileError> {
    let mut reader = SnapshotReader::open(directory, directory.snapshot_path(index), index)?;
    let epoch = reader.header().epoch;
    let mut decoder = LocationsDecoder::up_to(index);
    while let Some(block) = reader.next()? {
        match block.kind {
            KIND_LOCATIONS if decoder.add(&block.body).is_none() => {
                return Err(reader.damaged(block.offset, "a block of locations is inconsistent"));
            }
            KIND_STATE => break,
            _ => {}
        }
    }
    Ok(SnapshotHead { epoch, locations: decoder.locations() })
}
