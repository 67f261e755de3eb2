//! Chooses the base of replay: the newest good snapshot of which every file exists. Without one,
//! the log's beginning.

use super::super::JournalOpenError;
use super::super::files::{UNREADABLE, is_unreadable};
use super::super::snapshots::{self, KIND_STATE, Resume, SnapshotFileError, SnapshotReader};
use super::found::FoundFiles;
use super::{Damage, LostPayloads};
use crate::journal::files::directory::Directory;
use crate::journal::wal::locations::{Locations, Run};
use crate::log::Rebuild;

/// The base of replay; empty without a good snapshot.
#[derive(Default)]
pub(super) struct RecoveryBase {
    /// The last command that it reflects; 0 for none.
    pub(super) index: u64,
    /// Where the next command is, or would be; none without a snapshot.
    pub(super) resume: Option<Resume>,
    pub(super) locations: Locations,
    /// Bytes of the snapshot's file.
    pub(super) bytes: u64,
    /// The files whose payloads are lost, if the loss was accepted.
    pub(super) lost_payloads: Option<LostPayloads>,
    /// The resume segment is among them: commands after the snapshot may be lost.
    pub(super) lost_log: Option<Damage>,
}

/// Chooses the newest complete snapshot. Each is read to its end before any of its blocks is used,
/// so that nothing has to be undone. Also returns what is wrong with the newer ones. If none is
/// good, replay shows whether the log is complete from its first command on.
///
/// An intact snapshot that names a missing file is used if the loss is accepted and no older
/// snapshot can be complete: it costs only the content of that file.
pub(super) fn choose(
    directory: &Directory,
    found: &mut FoundFiles,
    accept_loss: bool,
) -> Result<(RecoveryBase, Vec<Damage>), JournalOpenError> {
    let (mut damaged, mut incomplete) = (Vec::new(), None);
    let mut log_is_lost = false;
    for index in found.snapshots.clone() {
        let checked = match snapshots::check(directory, index) {
            Ok(checked) => checked,
            Err(SnapshotFileError::Io { file, error, .. }) if is_unreadable(&error) => {
                damaged.push(Damage { file, offset: 0, why: UNREADABLE });
                continue;
            }
            Err(error) => {
                damaged.push(damage_or_refusal(directory, error)?);
                continue;
            }
        };
        let snapshots::Checked { resume, locations, bytes, .. } = checked;
        let missing: Vec<Run> =
            found.missing(directory, &locations)?.into_iter().cloned().collect();
        let base = RecoveryBase {
            index,
            resume: Some(resume),
            locations,
            bytes,
            ..RecoveryBase::default()
        };
        let Some(first) = missing.first() else { return Ok((base, damaged)) };
        let damage = found.damage_of(directory, first);
        // A missing log segment is missing for older snapshots too. A missing compacted file may
        // not be.
        log_is_lost = !missing.iter().all(Run::is_compacted);
        if incomplete.is_none() {
            incomplete = Some((base, missing, damage.clone()));
        }
        if log_is_lost {
            break;
        }
        damaged.push(damage);
    }
    match incomplete {
        Some((mut base, missing, damage))
            if log_is_lost || !found.is_complete_up_to(directory, base.index) =>
        {
            let resume_sequence = base.resume.map(|resume| resume.sequence);
            let resumed = missing.iter().find(|run| Some(run.sequence) == resume_sequence);
            base.lost_log = resumed.map(|run| found.damage_of(directory, run));
            if !accept_loss {
                return Err(match base.lost_log {
                    Some(damage) => damage.refused(base.index + 1),
                    None => JournalOpenError::PayloadsLost { file: damage.file, why: damage.why },
                });
            }
            found.accept(directory, &missing)?;
            base.lost_payloads =
                Some(LostPayloads { file: damage.file, files: missing.len() as u64 });
            Ok((base, damaged))
        }
        _ => Ok((RecoveryBase::default(), damaged)),
    }
}

impl RecoveryBase {
    /// Passes the snapshot's blocks to `rebuild`.
    pub(super) fn restore(
        &self,
        directory: &Directory,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(), JournalOpenError> {
        if self.resume.is_none() {
            return Ok(());
        }
        let path = directory.snapshot_path(self.index);
        let refused = |error| match damage_or_refusal(directory, error) {
            // It was good a moment ago. The partial rebuild is useless: the next start tries again.
            Ok(Damage { file, offset, why }) => {
                JournalOpenError::Damaged { file, offset, index: 1, why }
            }
            Err(error) => error,
        };
        let mut reader =
            SnapshotReader::open(directory, path.clone(), self.index).map_err(refused)?;
        let unrestored =
            |offset, error| JournalOpenError::Unrestorable { file: path.clone(), offset, error };
        while let Some(block) = reader.next().map_err(refused)? {
            if block.kind == KIND_STATE {
                rebuild.block(block.body).map_err(|error| unrestored(block.offset, error))?;
            }
        }
        rebuild.restored().map_err(|error| unrestored(reader.at(), error))
    }
}

/// The damage of a snapshot file that an older one may replace; otherwise the error that refuses
/// the start.
fn damage_or_refusal(
    directory: &Directory,
    error: SnapshotFileError,
) -> Result<Damage, JournalOpenError> {
    match error {
        SnapshotFileError::Damaged { file, offset, why } => Ok(Damage { file, offset, why }),
        SnapshotFileError::Io { what, file, error } => {
            Err(JournalOpenError::io(what, &file, error))
        }
        SnapshotFileError::OtherFormat { file, version } => {
            Err(JournalOpenError::OtherFormat { file, version })
        }
        SnapshotFileError::Foreign { file, journal } => {
            Err(JournalOpenError::Foreign { file, journal, expected: directory.journal })
        }
    }
}
