//! What replay begins with: the newest snapshot that is good, and of which every file is there.
//! Without one, the log's beginning.

use super::super::OpenError;
use super::super::files::is_unreadable;
use super::super::snapshots::{self, KIND_STATE, Resume, SnapshotFileError, SnapshotReader};
use super::found::FoundFiles;
use super::{Damage, LostPayloads};
use crate::journal::files::directory::Directory;
use crate::journal::wal::locations::{Locations, Run};
use crate::log::Rebuild;

/// What replay begins with; without a good snapshot, nothing.
#[derive(Default)]
pub(super) struct RecoveryBase {
    /// The last command that it reflects; 0 for none.
    pub(super) index: u64,
    /// Where the next one is, or would be; none without a snapshot.
    pub(super) resume: Option<Resume>,
    pub(super) locations: Locations,
    /// Bytes of the snapshot's file.
    pub(super) bytes: u64,
    /// The files whose payloads were given up.
    pub(super) lost_payloads: Option<LostPayloads>,
    /// The segment in which replay goes on was among them: commands after the snapshot may be lost.
    pub(super) lost_log: Option<Damage>,
}

/// Picks the newest snapshot of which all is there; every one is read to its end before any block
/// of it is used, so that nothing ever has to be undone. Tells what is wrong with those that are
/// newer. When none is good, replay shows whether the log is there from its first command on.
///
/// A snapshot whose own blocks are good and that names a file which is not there is taken if the
/// loss is accepted and nothing older can be whole: it costs what lies in that file alone.
pub(super) fn choose(
    directory: &Directory,
    found: &mut FoundFiles,
    accept_loss: bool,
) -> Result<(RecoveryBase, Vec<Damage>), OpenError> {
    let (mut damaged, mut unreadable, mut incomplete) = (Vec::new(), None, None);
    let mut log_is_lost = false;
    for index in found.snapshots.clone() {
        let checked = match snapshots::check(directory, index) {
            Ok(checked) => checked,
            // Unless something older takes its place, nobody knows whether it is lost.
            Err(SnapshotFileError::Io { what, file, error }) if is_unreadable(&error) => {
                let why = "the disk cannot read it";
                damaged.push(Damage { file: file.clone(), offset: 0, why });
                unreadable = Some(OpenError::io(what, &file, error));
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
        let damage = found.why_missing(directory, first);
        // What is gone of the log itself is in no older snapshot's files either. What had been
        // carried may be.
        log_is_lost = !missing.iter().all(Run::is_compacted);
        if incomplete.is_none() {
            incomplete = Some((base, missing, damage.clone()));
        }
        if log_is_lost {
            break;
        }
        damaged.push(damage);
    }
    if let Some(error) = unreadable {
        return Err(error);
    }
    match incomplete {
        Some((mut base, missing, damage))
            if log_is_lost || !found.is_whole_up_to(directory, base.index) =>
        {
            let resume_sequence = base.resume.map(|resume| resume.sequence);
            let resumed = missing.iter().find(|run| Some(run.sequence) == resume_sequence);
            base.lost_log = resumed.map(|run| found.why_missing(directory, run));
            if !accept_loss {
                return Err(match base.lost_log {
                    Some(damage) => damage.refused(base.index + 1),
                    None => OpenError::PayloadsLost { file: damage.file, why: damage.why },
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
    /// Gives the snapshot's blocks to what is rebuilt.
    pub(super) fn restore(
        &self,
        directory: &Directory,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(), OpenError> {
        if self.resume.is_none() {
            return Ok(());
        }
        let path = directory.snapshot_path(self.index);
        let refused = |error| match damage_or_refusal(directory, error) {
            // It was good a moment ago. What was rebuilt so far is of no use: the next start looks
            // anew.
            Ok(Damage { file, offset, why }) => OpenError::Damaged { file, offset, index: 1, why },
            Err(error) => error,
        };
        let mut reader =
            SnapshotReader::open(directory, path.clone(), self.index).map_err(refused)?;
        let unrestored =
            |offset, error| OpenError::Unrestorable { file: path.clone(), offset, error };
        while let Some(block) = reader.next().map_err(refused)? {
            if block.kind == KIND_STATE {
                rebuild.block(block.body).map_err(|error| unrestored(block.offset, error))?;
            }
        }
        rebuild.restored().map_err(|error| unrestored(reader.at(), error))
    }
}

/// What is wrong with a snapshot file, if an older one may take its place.
fn damage_or_refusal(directory: &Directory, error: SnapshotFileError) -> Result<Damage, OpenError> {
    match error {
        SnapshotFileError::Damaged { file, offset, why } => Ok(Damage { file, offset, why }),
        SnapshotFileError::Io { what, file, error } => Err(OpenError::io(what, &file, error)),
        SnapshotFileError::OtherFormat { file, version } => {
            Err(OpenError::OtherFormat { file, version })
        }
        SnapshotFileError::Foreign { file, journal } => {
            Err(OpenError::Foreign { file, journal, expected: directory.journal })
        }
    }
}
