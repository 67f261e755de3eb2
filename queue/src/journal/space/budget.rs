//! How many bytes may still be appended, and for what. Every append debits its encoded length.
//! Pure: numbers in, decisions out.
//!
//! ```text
//! available:  0 ── compaction ── + small commands ── + two segments ──────────▶
//!             (all of it above the ends of running leases)
//!                  (the ballast)  low watermark       high watermark
//!               settles            acts, pauses …      hand-outs            enqueues, checkpoints, large results
//! ```
//! A full disk costs new work first, then hand-outs; what runs can end, and compaction can make
//! room.

use crate::journal::SEGMENT_BYTES_MIN;

/// Segments that compaction needs: what it copies is on the disk twice until the cycle ends.
pub(crate) const COMPACTION_SEGMENTS: u64 = 2;
/// Segments between the watermarks, for working off what waits.
const WORK_SEGMENTS: u64 = 2;
/// Bytes debited for each running lease: a result of 4 KiB and half a KiB for the records around
/// it, twice: where the next record has no room, the rest of a segment is lost, at most half of it.
pub(crate) const LEASE_BYTES: u64 = 2 * (4 * 1024 + 512);
/// Bytes of what is small and cannot always be refused, links, expiries, refusals; and of the
/// segment that is made ahead. Where less than these is free beside the ballast, the disk is below
/// the low watermark for who cannot know of leases.
pub(crate) const SMALL_BYTES: u64 = 2 * SEGMENT_BYTES_MIN;
/// Fewer bytes than this are none: a level that changed with every small batch would be of no use.
const HEADROOM_MIN: u64 = 64 * 1024;

/// What a log still takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum SpaceLevel {
    /// Everything.
    #[default]
    Open,
    /// No new jobs; work goes on.
    NoEnqueues,
    /// No new jobs, and none are handed out; what runs can end.
    NoHandouts,
}

impl SpaceLevel {
    /// True while something is refused for want of room.
    pub fn is_short(self) -> bool {
        self != SpaceLevel::Open
    }
}

/// What a log still takes, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// What it takes.
    pub level: SpaceLevel,
    /// Bytes of new jobs that fit.
    pub headroom: u64,
}

/// What may still be appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Bytes that can be written: into segments that are there, of what is free, and of the
    /// ballast.
    pub(crate) available: u64,
    pub(crate) segment_bytes: u64,
    /// Bytes of the last snapshot, or of the next if that is more.
    pub(crate) snapshot_bytes: u64,
    /// Bytes by which the next snapshot is longer than the one on the disk: it takes its place.
    pub(crate) growth_bytes: u64,
    /// Leases that run: for the end of each there is to be room.
    pub(crate) leases: u64,
    /// New work was refused, and there is not yet room for a whole segment of it.
    pub(crate) short: bool,
}

impl Budget {
    /// Of a log without an end.
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

    /// Bytes of compaction: so long is the ballast, in whole MiB.
    pub(crate) fn ballast(&self) -> u64 {
        let bytes = self.snapshot_share().saturating_add(COMPACTION_SEGMENTS * self.segment_bytes);
        bytes.div_ceil(SEGMENT_BYTES_MIN).saturating_mul(SEGMENT_BYTES_MIN)
    }

    /// Bytes that the disk of a new journal has free at least. With fewer it would refuse every
    /// job.
    pub(crate) fn min_free_bytes(segment_bytes: u64) -> u64 {
        let new = Budget { segment_bytes, ..Budget::UNLIMITED };
        // Two more: one that is written, and one whose room takes new jobs again after some were
        // refused. And a step for the small files of a directory.
        let segments = WORK_SEGMENTS + 2;
        let spare = segments.saturating_mul(segment_bytes).saturating_add(SEGMENT_BYTES_MIN);
        new.low().saturating_add(spare)
    }

    /// Bytes above so many, above the ends of all leases, and above what the next snapshot adds for
    /// good.
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

    /// Jobs that may be handed out above the low watermark.
    pub fn handouts(&self) -> u64 {
        self.above(self.low()) / LEASE_BYTES
    }

    /// Whether a command of so many bytes that can be refused leaves compaction and the ends of
    /// leases their share.
    pub(crate) fn fits_small(&self, bytes: u64) -> bool {
        bytes <= self.above(self.ballast())
    }

    /// Whether the end of leases in so many bytes leaves room for a snapshot. It always does while
    /// nobody else fills the disk.
    pub(crate) fn fits_settle(&self, bytes: u64) -> bool {
        bytes <= self.available.saturating_sub(self.snapshot_share() + SEGMENT_BYTES_MIN)
    }

    /// After an append of so many bytes.
    pub(crate) fn after_append(self, bytes: u64) -> Budget {
        Budget { available: self.available.saturating_sub(bytes), ..self }
    }

    /// Whether new work is refused from now on, when it was, or was not, until now.
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
    fn budget_cuts_new_work_then_handouts_then_small_commands_then_settles() {
        let leases = 1_000 * LEASE_BYTES;
        let at = |available| budget(available, 1_000);
        assert_eq!(at(16 * MIB + leases + 5).headroom(), 5);
        assert_eq!(at(16 * MIB + leases).headroom(), 0);
        assert_eq!(at(14 * MIB + leases + LEASE_BYTES).handouts(), 1);
        assert_eq!(at(14 * MIB + leases + LEASE_BYTES - 1).handouts(), 0);
        assert!(
            at(12 * MIB + leases + 9).fits_small(9) && !at(12 * MIB + leases + 8).fits_small(9)
        );
        // What was debited for them is theirs, and what is compaction's but for the snapshot, too.
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
