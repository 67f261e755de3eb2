//! The phase of a publisher's work when its disk fails, derived from the failing call.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::simulated_disk::{Call, SimulatedDisk};

/// A phase of the publisher's work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    /// A start reads, erases, rewrites and removes.
    Recovery,
    Commit,
    CommitWatermark,
    /// A segment is created.
    Rotation,
    SnapshotWrite,
    /// The rename of a snapshot, and the sync of its directory.
    SnapshotSwitch,
    Compaction,
    /// A segment, a compacted file or an older snapshot is removed.
    Deletion,
    Other,
}

impl Phase {
    /// The phase of a call after the start.
    pub(super) fn of(call: Call, path: &Path) -> Phase {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let ends = |end: &str| name.ends_with(end);
        match call {
            Call::Remove => Phase::Deletion,
            _ if ends(".compacted.new") || ends(".compacted") => Phase::Compaction,
            Call::Rename if ends(".snap.new") => Phase::SnapshotSwitch,
            Call::SyncDir if ends("snapshots") => Phase::SnapshotSwitch,
            _ if ends(".snap.new") => Phase::SnapshotWrite,
            Call::Create | Call::Allocate if ends(".seg") => Phase::Rotation,
            Call::SyncDir if ends("segments") => Phase::Rotation,
            Call::Write | Call::Sync if ends(".seg") => Phase::Commit,
            Call::Write | Call::Sync if ends("watermark") => Phase::CommitWatermark,
            _ => Phase::Other,
        }
    }
}

/// How often a fault occurred in each phase.
#[derive(Default)]
pub(super) struct PhaseCoverage(BTreeMap<Phase, u64>);

impl PhaseCoverage {
    /// Counts the fault of a disk, if one occurred.
    pub(super) fn note(&mut self, disk: &SimulatedDisk, starting: bool) {
        if let Some((call, path)) = disk.hit() {
            let phase = if starting { Phase::Recovery } else { Phase::of(call, &path) };
            *self.0.entry(phase).or_default() += 1;
        }
    }

    /// Asserts at least `least` faults in each phase: otherwise the simulation proves nothing about
    /// it.
    pub(super) fn assert(&self, phases: &[Phase], least: u64) {
        for phase in phases {
            let met = self.0.get(phase).copied().unwrap_or_default();
            assert!(met >= least, "{phase:?} had {met} faults: {:?}", self.0);
        }
    }
}
