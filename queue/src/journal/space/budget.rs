//! How many bytes may still be appended, and for what. Every append debits its encoded length.
//! Pure.
//!
//! ```text
//! available:  0 ── compaction ── + small commands ── + two segments ──────────▶
//!             (all of it above the ends of running leases)
//!                  (the ballast)  low watermark       high watermark
//!               settles            acts, pauses …      deliveries  enqueues, checkpoints,
//!                                                                  large results
//! ```
//! A full disk first refuses new work, then deliveries; running attempts can end, and compaction
//! can free space.

use crate::journal::SEGMENT_BYTES_MIN;

/// Segments that compaction needs: copies exist twice until the cycle ends.
pub(crate) const COMPACTION_SEGMENTS: u64 = 2;
/// Segments between the watermarks, for completing waiting jobs.
const WORK_SEGMENTS: u64 = 2;
/// Bytes debited for each running lease: a result of 4 KiB and half a KiB for the records around
/// it, times two. A record that does not fit wastes the rest of a segment, at most half of it.
pub(crate) const LEASE_BYTES: u64 = 2 * (4 * 1024 + 512);
/// Bytes for small commands that cannot always be refused (links, expiries, refusals), and for the
/// preallocated segment. If less is free beside the ballast, the disk is below the low watermark
/// for code that does not know the leases.
pub(crate) const SMALL_BYTES: u64 = 2 * SEGMENT_BYTES_MIN;
/// Less headroom than this counts as none: a level that changes with every small batch is useless.
const HEADROOM_MIN: u64 = 64 * 1024;

/// What a log still accepts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum SpaceLevel {
    /// Everything.
    #[default]
    Open,
    /// No new jobs; delivery continues.
    NoEnqueues,
    /// No new jobs, and no deliveries; running attempts can end.
    NoDeliveries,
}

impl SpaceLevel {
    /// Whether anything is refused for lack of space.
    pub fn is_short(self) -> bool {
        self != SpaceLevel::Open
    }
}

/// What a log still accepts, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// What it accepts.
    pub level: SpaceLevel,
    /// Bytes of new jobs that fit.
    pub headroom: u64,
}

/// What may still be appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Bytes that can be written: in existing segments, free space, and the ballast.
    pub(crate) available: u64,
    pub(crate) segment_bytes: u64,
    /// Bytes of the last snapshot, or of the next if that is more.
    pub(crate) snapshot_bytes: u64,
    /// Bytes by which the next snapshot is longer than the one that it replaces.
    pub(crate) growth_bytes: u64,
    /// Running leases: space for the end of each is reserved.
    pub(crate) leases: u64,
    /// New work was refused, and there is not yet space for a whole segment of it.
    pub(crate) short: bool,
}

impl Budget {
    /// The budget of an unlimited log.
    pub const UNLIMITED: Budget = Budget {
        available: u64::MAX,
        segment_bytes: 0,
        snapshot_bytes: 0,
        growth_bytes: 0,
        leases: 0,
        short: false,
    };

    /// Bytes that the next snapshot may have.
    pub(crate) fn snapshot_share(&self) -> u64 {
        self.snapshot_bytes.saturating_add(self.snapshot_bytes / 4)
    }

    /// Bytes reserved for compaction: the ballast's length, in whole MiB.
    pub(crate) fn ballast(&self) -> u64 {
        let bytes = self.snapshot_share().saturating_add(COMPACTION_SEGMENTS * self.segment_bytes);
        bytes.div_ceil(SEGMENT_BYTES_MIN).saturating_mul(SEGMENT_BYTES_MIN)
    }

    /// Least free bytes on the disk of a new journal. With fewer it would refuse every job.
    pub(crate) fn min_free_bytes(segment_bytes: u64) -> u64 {
        let new = Budget { segment_bytes, ..Budget::UNLIMITED };
        // Two more: the active one, and one whose space must be free before refused jobs are
        // accepted again. And a step for the small files of a directory.
        let segments = WORK_SEGMENTS + 2;
        let spare = segments.saturating_mul(segment_bytes).saturating_add(SEGMENT_BYTES_MIN);
        new.low().saturating_add(spare)
    }

    /// Bytes available above `bytes`, the ends of all leases, and the growth of the next snapshot.
    fn above(&self, bytes: u64) -> u64 {
        let leases = self.leases.saturating_mul(LEASE_BYTES);
        self.available
            .saturating_sub(bytes)
            .saturating_sub(leases)
            .saturating_sub(self.growth_bytes)
    }

    fn low(&self) -> u64 {
        self.ballast().saturating_add(SMALL_BYTES)
    }

    /// Bytes of new work that fit: those above the high watermark.
    pub fn headroom(&self) -> u64 {
        self.above(self.low().saturating_add(WORK_SEGMENTS * self.segment_bytes))
    }

    /// Jobs that may be delivered above the low watermark.
    pub fn deliveries(&self) -> u64 {
        self.above(self.low()) / LEASE_BYTES
    }

    /// Whether a refusable command of `bytes` leaves space for compaction and the ends of leases.
    pub(crate) fn fits_small(&self, bytes: u64) -> bool {
        bytes <= self.above(self.ballast())
    }

    /// Whether a settle of `bytes` leaves space for a snapshot. It always does unless another
    /// program fills the disk.
    pub(crate) fn fits_settle(&self, bytes: u64) -> bool {
        bytes <= self.available.saturating_sub(self.snapshot_share() + SEGMENT_BYTES_MIN)
    }

    /// The budget after an append of `bytes`.
    pub(crate) fn after_append(self, bytes: u64) -> Budget {
        Budget { available: self.available.saturating_sub(bytes), ..self }
    }

    /// Whether new work is refused from now on; `before` is whether it was until now.
    pub(crate) fn is_short_after(&self, before: bool) -> bool {
        self.headroom() < if before { self.segment_bytes } else { HEADROOM_MIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn budget(available: u64, leases: u64) -> Budget {
        let (segment_bytes, snapshot_bytes, growth_bytes) = (MIB, 8 * MIB, 0);
        Budget { available, segment_bytes, snapshot_bytes, growth_bytes, leases, short: false }
    }

    #[test]
    fn ballast_is_two_segments_and_a_snapshot_and_a_quarter() {
        assert_eq!(budget(0, 0).ballast(), 12 * MIB);
        assert_eq!(Budget { snapshot_bytes: 1, ..budget(0, 0) }.ballast(), 3 * MIB);
    }

    #[test]
    fn budget_cuts_new_work_then_deliveries_then_small_commands_then_settles() {
        let leases = 1_000 * LEASE_BYTES;
        let at = |available| budget(available, 1_000);
        assert_eq!(at(16 * MIB + leases + 5).headroom(), 5);
        assert_eq!(at(16 * MIB + leases).headroom(), 0);
        assert_eq!(at(14 * MIB + leases + LEASE_BYTES).deliveries(), 1);
        assert_eq!(at(14 * MIB + leases + LEASE_BYTES - 1).deliveries(), 0);
        assert!(
            at(12 * MIB + leases + 9).fits_small(9) && !at(12 * MIB + leases + 8).fits_small(9)
        );
        // Settles may use what was debited for them, and compaction's share except the snapshot's.
        assert!(at(11 * MIB + 9).fits_settle(9) && !at(11 * MIB + 8).fits_settle(9));
        assert_eq!(at(16 * MIB + leases + 9).after_append(5).headroom(), 4);
        let grown = Budget { growth_bytes: 7, ..at(16 * MIB + leases + 9) };
        assert_eq!(grown.headroom(), 2);
    }

    #[test]
    fn new_work_stays_refused_until_a_segment_fits() {
        let high = 16 * MIB;
        for (before, above, short) in [
            (false, HEADROOM_MIN, false),
            (false, HEADROOM_MIN - 1, true),
            (true, MIB - 1, true),
            (true, MIB, false),
        ] {
            assert_eq!(budget(high + above, 0).is_short_after(before), short, "{before} {above}");
        }
        assert!(!Budget::UNLIMITED.is_short_after(false));
    }
}
