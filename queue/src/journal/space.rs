//! How much a journal still takes. What must go on when the disk is full has room set apart for it, so that a full disk costs
//! new jobs and nothing else: first enqueues are refused, then no more jobs are handed out, and what runs can still end.
//!
//! ```text
//!   room + free + reserve:   0 ─── reserve without cleaning's segments ─── reserve + two segments ───▶
//!                               Hold │              NoEnqueues                       │     Open
//! ```
//! Cleaning's segments stand between the two: a queue whose jobs all wait has to be handed out to become shorter, and settles are small.
//! Pure: numbers in, decisions out.

use super::SEGMENT_BYTES_MIN;

/// Segments that cleaning needs: what it carries forward is there twice until the segments it came from are removed, and it
/// gives up at most one at a time, which may be carried to a second one that is not full.
pub(crate) const CLEANING_SEGMENTS: u64 = 2;
/// Segments above the reserve that enqueues leave to all else. Between the last job that is taken and the first worker that
/// gets none there are these: at 64 bytes a settle, 30,000 of them with the shortest segments.
pub(crate) const SPARE_SEGMENTS: u64 = 2;
/// Bytes kept for the end of each running lease: a result of 4 KiB, and half a KiB for the record around it, a renewed link and
/// the credit that follows.
pub(crate) const LEASE_BYTES: u64 = 4 * 1024 + 512;
/// Bytes kept for what is small and cannot be refused: links that come and go, cancels, expiries, drops, purges, refusals.
/// About 15,000 of them.
pub(crate) const SMALL_COMMANDS_BYTES: u64 = 1024 * 1024;
/// The reserve is given out, and grows, in steps of this many bytes: segments made of it are no longer than they must be. One
/// step is the segment that is made ahead of its use.
pub(crate) const STEP_BYTES: u64 = SEGMENT_BYTES_MIN;
/// Fewer bytes than this are none: a level that changed with every small batch would tell nobody anything.
const HEADROOM_MIN: u64 = 64 * 1024;
/// The reserve gives back what it does not need when that is more than this part of it: leases come and go all the time.
const EXCESS_PART: u64 = 4;

/// What a log still takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum SpaceLevel {
    /// Everything.
    #[default]
    Open,
    /// No new jobs; work goes on.
    NoEnqueues,
    /// No new jobs, and none are to be handed out; what runs can end.
    Hold,
}

impl SpaceLevel {
    /// All of them, from much room to little.
    pub const ALL: [SpaceLevel; 3] = [SpaceLevel::Open, SpaceLevel::NoEnqueues, SpaceLevel::Hold];

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

impl Space {
    /// Room without end.
    pub const ENDLESS: Space = Space { level: SpaceLevel::Open, headroom: u64::MAX };

    /// Whether a command with new jobs, of so many bytes, may be appended.
    pub fn admits(&self, bytes: u64) -> bool {
        !self.level.is_short() && bytes <= self.headroom
    }
}

/// What a cycle takes room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// What it carries.
    Cleaning,
    /// Its snapshot. It comes last, and with it what was carried is paid for: what is left of cleaning's part is its, too.
    Snapshot,
}

/// What the reserve is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Needs {
    /// Bytes of a segment.
    pub(crate) segment_bytes: u64,
    /// Bytes of the last snapshot; 0 for none.
    pub(crate) snapshot_bytes: u64,
    /// Leases that run.
    pub(crate) running_leases: u64,
}

/// What the disk has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stock {
    /// Bytes that can still be written into segments that are there.
    pub(crate) room: u64,
    /// Bytes of the disk that anyone may take.
    pub(crate) free: u64,
    /// Bytes of the reserve, and what the cycle under way has drawn of it.
    pub(crate) reserve: u64,
    /// Bytes of those that it has drawn for what it carries.
    pub(crate) carried: u64,
    /// Bytes appended and not yet written: they will take room.
    pub(crate) uncommitted: u64,
}

impl Stock {
    fn all(&self) -> u64 {
        self.room
            .saturating_add(self.free)
            .saturating_add(self.reserve)
            .saturating_sub(self.uncommitted)
    }
}

impl Needs {
    /// Bytes that a cycle may have drawn up to there.
    pub(crate) fn bytes_for(&self, part: Part) -> u64 {
        let cleaning = CLEANING_SEGMENTS * self.segment_bytes;
        match part {
            Part::Cleaning => cleaning,
            // A quarter more: the next snapshot is of more jobs than the last.
            Part::Snapshot => {
                cleaning.saturating_add(self.snapshot_bytes).saturating_add(self.snapshot_bytes / 4)
            }
        }
    }

    /// Bytes of the reserve that are for leases and links: it is filled up to there while a cycle has drawn the rest.
    pub(crate) fn not_for_cycles(&self) -> u64 {
        self.reserve_bytes() - self.bytes_for(Part::Snapshot)
    }

    /// Bytes that a cycle has to leave when it takes some for that part and segments have `room` left. What ends leases may be
    /// one long record, which needs a segment of its own: all of that stays. What is small can go into the segments that are there.
    /// While a cycle carries, the snapshot's part stays, too: without one all that was carried is there twice, and no later cycle
    /// would have the room to write one.
    pub(crate) fn left_by(&self, part: Part, room: u64) -> u64 {
        let small = (SMALL_COMMANDS_BYTES + STEP_BYTES).saturating_sub(room);
        let snapshot = match part {
            Part::Cleaning => self.bytes_for(Part::Snapshot) - self.bytes_for(Part::Cleaning),
            Part::Snapshot => 0,
        };
        self.leases_bytes().saturating_add(small).saturating_add(snapshot)
    }

    fn leases_bytes(&self) -> u64 {
        self.running_leases.saturating_mul(LEASE_BYTES)
    }

    /// How large the reserve is to be, in bytes: a whole number of steps.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        let bytes = self
            .bytes_for(Part::Snapshot)
            .saturating_add(self.leases_bytes())
            .saturating_add(SMALL_COMMANDS_BYTES + STEP_BYTES);
        bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES)
    }

    /// Bytes that the disk of a new journal has free at least. With fewer it would refuse every job.
    pub(crate) fn least_free_bytes(segment_bytes: u64) -> u64 {
        let needs = Needs { segment_bytes, snapshot_bytes: 0, running_leases: 0 };
        // A step for the first jobs, and for the small files of a directory.
        let spare = SPARE_SEGMENTS.saturating_mul(segment_bytes).saturating_add(STEP_BYTES);
        needs.reserve_bytes().saturating_add(spare)
    }

    /// How large a reserve of `bytes` bytes is to become: larger at once, smaller only when that is worth it.
    pub(crate) fn reserve_after(&self, bytes: u64) -> u64 {
        let full = self.reserve_bytes();
        let excess = bytes.saturating_sub(full);
        if bytes < full || excess > full / EXCESS_PART { full } else { bytes }
    }

    /// Bytes of new jobs that fit.
    pub(crate) fn headroom(&self, stock: &Stock) -> u64 {
        let kept = self.reserve_bytes().saturating_add(SPARE_SEGMENTS * self.segment_bytes);
        stock.all().saturating_sub(kept)
    }

    /// What is taken now, when it was `before` until now. `looked` says whether the disk was looked at since that began.
    ///
    /// Work that is held needs no room, so there may never be more than there is: it goes on as soon as a look finds what it
    /// was held for. Only the time between two looks keeps it from coming and going with every commit.
    pub(crate) fn level(&self, before: SpaceLevel, looked: bool, stock: &Stock) -> SpaceLevel {
        let ends = self.reserve_bytes().saturating_sub(CLEANING_SEGMENTS * self.segment_bytes);
        // What it has carried is not there for a snapshot. Below this there would be no room for one.
        if stock.all().saturating_sub(stock.carried) < ends || before == SpaceLevel::Hold && !looked
        {
            return SpaceLevel::Hold;
        }
        // A whole segment has to be free before jobs are taken again.
        let least = if before.is_short() { self.segment_bytes } else { HEADROOM_MIN };
        if self.headroom(stock) < least { SpaceLevel::NoEnqueues } else { SpaceLevel::Open }
    }
}

#[cfg(test)]
mod tests {
    use super::SpaceLevel::{Hold, NoEnqueues, Open};
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn needs(segment_mib: u64, snapshot_bytes: u64, running_leases: u64) -> Needs {
        Needs { segment_bytes: segment_mib * MIB, snapshot_bytes, running_leases }
    }

    fn stock(room: u64, free: u64, reserve: u64, uncommitted: u64) -> Stock {
        Stock { room, free, reserve, carried: 0, uncommitted }
    }

    #[test]
    fn the_reserve_is_two_segments_a_snapshot_the_ends_of_leases_and_a_little() {
        for (needs, mib) in [
            (needs(1, 0, 0), 4),
            (needs(64, 0, 0), 130),
            (needs(1, 8 * MIB, 0), 14),
            // 1,000 leases: 4.4 MiB.
            (needs(1, 0, 1_000), 9),
            (needs(1, 1, 0), 5),
            (needs(1024, 100 * MIB, 10_000), 2_048 + 125 + 44 + 2),
        ] {
            assert_eq!(needs.reserve_bytes(), mib * MIB, "{needs:?}");
        }
    }

    #[test]
    fn the_reserve_grows_at_once_and_shrinks_when_a_quarter_is_too_much() {
        let needs = needs(1, 0, 0);
        for (has, becomes) in [(0, 4), (3, 4), (4, 4), (5, 5), (6, 4), (100, 4)] {
            assert_eq!(needs.reserve_after(has * MIB), becomes * MIB, "from {has} MiB");
        }
    }

    #[test]
    fn enqueues_leave_the_reserve_and_two_segments() {
        let needs = needs(1, 0, 0);
        for (stock, headroom) in [
            (stock(2 * MIB, 10 * MIB, 4 * MIB, 0), 10 * MIB),
            (stock(2 * MIB, 0, 4 * MIB, 0), 0),
            (stock(2 * MIB, 10 * MIB, 4 * MIB, 3 * MIB), 7 * MIB),
            // A reserve that is not full comes first.
            (stock(2 * MIB, 10 * MIB, MIB, 0), 7 * MIB),
            (stock(0, 0, 0, 5 * MIB), 0),
            (stock(u64::MAX, u64::MAX, u64::MAX, 0), u64::MAX - 6 * MIB),
        ] {
            assert_eq!(needs.headroom(&stock), headroom, "{stock:?}");
        }
    }

    #[test]
    fn levels_change_at_their_bounds_and_back_above_them() {
        // The reserve is 4 MiB, half of it for cleaning: enqueues end 2 MiB above it, work 2 MiB below.
        let needs = needs(1, 0, 0);
        let ends = 6 * MIB + HEADROOM_MIN;
        for (before, bytes, after) in [
            (Open, ends, Open),
            (Open, ends - 1, NoEnqueues),
            (NoEnqueues, 7 * MIB - 1, NoEnqueues),
            (NoEnqueues, 7 * MIB, Open),
            (NoEnqueues, 2 * MIB, NoEnqueues),
            (NoEnqueues, 2 * MIB - 1, Hold),
            (Open, 2 * MIB - 1, Hold),
            (Hold, 2 * MIB - 1, Hold),
            // Nothing that is held makes any room: it may not wait for more than there was.
            (Hold, 2 * MIB, NoEnqueues),
            (Hold, 7 * MIB - 1, NoEnqueues),
            (Hold, 7 * MIB, Open),
        ] {
            // Wherever it lies, it is the same room.
            for stock in
                [stock(bytes, 0, 0, 0), stock(0, bytes, 0, 0), stock(MIB, MIB, bytes, 2 * MIB)]
            {
                assert_eq!(needs.level(before, true, &stock), after, "{before:?}, {stock:?}");
                let unseen = if before == Hold { Hold } else { after };
                assert_eq!(needs.level(before, false, &stock), unseen, "{before:?}, {stock:?}");
            }
        }
    }

    #[test]
    fn every_lease_that_begins_raises_what_is_held_back_for_its_end() {
        let stock = stock(MIB, 0, 2 * MIB, 0);
        assert_eq!(needs(1, 0, 0).level(NoEnqueues, true, &stock), NoEnqueues);
        // Beyond the first MiB of them there is no room for another's end.
        assert_eq!(needs(1, 0, 227).level(NoEnqueues, true, &stock), NoEnqueues);
        assert_eq!(needs(1, 0, 466).level(NoEnqueues, true, &stock), Hold);
    }

    #[test]
    fn a_cycle_leaves_the_ends_of_leases_and_what_no_segment_has_room_for() {
        // 100 leases, and a snapshot of 4 MiB: 5 are kept for it.
        let needs = needs(1, 4 * MIB, 100);
        let leases = 100 * LEASE_BYTES;
        for (part, room, left) in [
            (Part::Snapshot, 0, leases + 2 * MIB),
            (Part::Snapshot, MIB, leases + MIB),
            (Part::Snapshot, 100 * MIB, leases),
            (Part::Cleaning, 0, leases + 7 * MIB),
            (Part::Cleaning, 3 * MIB, leases + 5 * MIB),
        ] {
            assert_eq!(needs.left_by(part, room), left, "{part:?}, {room}");
        }
    }

    #[test]
    fn what_fits_is_admitted_while_all_is_taken() {
        let space = |level| Space { level, headroom: 100 };
        assert!(space(Open).admits(100));
        assert!(!space(Open).admits(101));
        assert!(!space(NoEnqueues).admits(1));
        assert!(!space(Hold).admits(1));
        assert!(Space::ENDLESS.admits(u64::MAX));
    }
}
