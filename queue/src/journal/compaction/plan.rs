//! Decides which segments to compact, from what each contains and how much of that is live. Pure.
//!
//! A segment without live parts is *dead*: it is removed once a snapshot covers it. Of the others,
//! those with the smallest share of live bytes are *victims*: their live parts are copied into a
//! compacted file, then they are removed too. A segment stays while it has a command that the
//! snapshot does not cover, or while it is active.

use std::collections::{BTreeSet, HashMap};

use crate::RecordRef;
use crate::journal::wal::locations::Bounds;
use crate::log::Snapshot;

/// Segments with a larger live share are not worth copying: nine bytes written to free one.
const SHARE_MAX: f64 = 0.9;
/// Segments may take at least this multiple of their live bytes: below it, compaction would copy
/// the same bytes over and over.
const SLACK_MIN: f64 = 1.15;
/// Memory of a job's row, which counts as live too.
const ROW_BYTES: u64 = 96;
/// Segments that the disk may hold beyond twice the live bytes.
const SEGMENTS_OVER: u64 = 2;
/// Overhead of a compacted part, at most: its own record, and its location.
const COMPACTED_PART_BYTES: u64 = 50;
/// Parts that one cycle may always collect: 16 bytes of memory each.
const PARTS_MIN: u64 = 1 << 20;
/// One cycle may collect a quarter of all live parts, if that is more: 4 bytes of memory for each
/// job.
const PARTS_SHARE: u64 = 4;

/// What one segment contains, and how much of it is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentUsage {
    pub(crate) sequence: u64,
    /// Bytes of its file.
    pub(crate) bytes: u64,
    /// Its last command, as far as runs cover it.
    pub(crate) last: u64,
    pub(crate) live_bytes: u64,
    pub(crate) live_parts: u64,
}

/// Live bytes and parts, by run and by segment.
#[derive(Debug)]
pub(crate) struct LiveUsage {
    /// First and last index of each run, and the position of its segment in `segments`: sorted by
    /// index.
    runs: Vec<(u64, u64, usize)>,
    segments: Vec<SegmentUsage>,
    unlocated: u64,
}

impl LiveUsage {
    /// Starts with nothing counted. `bytes` returns the length of a segment's file.
    pub(crate) fn of(all: &[Bounds], bytes: impl Fn(u64) -> u64) -> LiveUsage {
        let mut segments: Vec<SegmentUsage> = Vec::new();
        let mut runs = Vec::with_capacity(all.len());
        let mut positions = HashMap::new();
        for run in all {
            let sequence = run.sequence;
            let position = *positions.entry(sequence).or_insert_with(|| {
                let bytes = bytes(sequence);
                segments.push(SegmentUsage {
                    sequence,
                    bytes,
                    last: 0,
                    live_bytes: 0,
                    live_parts: 0,
                });
                segments.len() - 1
            });
            let segment = &mut segments[position];
            segment.last = segment.last.max(run.last);
            runs.push((run.first, run.last, position));
        }
        LiveUsage { runs, segments, unlocated: 0 }
    }

    /// Counts a live part.
    pub(crate) fn count(&mut self, part: RecordRef) {
        match self.segment_of(part.index) {
            Some(position) => {
                let segment = &mut self.segments[position];
                segment.live_bytes += u64::from(part.length);
                segment.live_parts += 1;
            }
            None => self.unlocated += 1,
        }
    }

    /// These segments stay as long as a part of them is live, as if they had commands to come: the
    /// others of their file need not wait for what cannot be read.
    pub(crate) fn retain(&mut self, sequences: &BTreeSet<u64>) {
        let retained = |segment: &&mut SegmentUsage| {
            segment.live_parts > 0 && sequences.contains(&segment.sequence)
        };
        self.segments.iter_mut().filter(retained).for_each(|segment| segment.last = u64::MAX);
    }

    /// The position in [`LiveUsage::segments`] of the segment that contains a command.
    pub(crate) fn segment_of(&self, index: u64) -> Option<usize> {
        let after = self.runs.partition_point(|&(first, ..)| first <= index);
        let &(_, last, position) = self.runs.get(after.checked_sub(1)?)?;
        (index <= last).then_some(position)
    }

    pub(crate) fn segments(&self) -> &[SegmentUsage] {
        &self.segments
    }

    /// Parts of commands outside every run. There should be none; if there is one, nothing may be
    /// deleted.
    pub(crate) fn unlocated(&self) -> u64 {
        self.unlocated
    }
}

/// How much room segments may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskBudget {
    /// The last command that the snapshot covers.
    pub(crate) covered: u64,
    /// The active segment.
    pub(crate) writing: u64,
    /// Bytes of a snapshot.
    pub(crate) snapshot_bytes: u64,
    /// Bytes by which the log grows until the next cycle has ended.
    pub(crate) growth_bytes: u64,
    /// The disk is short: free as much as possible.
    pub(crate) short: bool,
    /// Most bytes of one compacted file.
    pub(crate) segment_bytes: u64,
    /// Most bytes to copy: until the cycle's end they exist twice.
    pub(crate) copy_bytes: u64,
}

/// The segments to remove and to compact.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct CompactionPlan {
    /// Segments without live parts.
    pub(crate) dead: Vec<u64>,
    /// Positions in [`LiveUsage::segments`] of the victims, grouped by compacted file.
    pub(crate) groups: Vec<Vec<usize>>,
}

impl CompactionPlan {
    pub(crate) fn of(live: &LiveUsage, budget: DiskBudget) -> CompactionPlan {
        let is_removable = |segment: &&(usize, &SegmentUsage)| {
            segment.1.last <= budget.covered && segment.1.sequence != budget.writing
        };
        let all: Vec<(usize, &SegmentUsage)> = live.segments.iter().enumerate().collect();
        let is_dead =
            |segment: &&(usize, &SegmentUsage)| segment.1.live_parts == 0 && is_removable(segment);
        let dead = all.iter().filter(is_dead).map(|(_, segment)| segment.sequence).collect();

        let remaining = all.iter().filter(|segment| !is_dead(segment));
        let (mut bytes, mut live_bytes, mut parts) = (0, 0, 0);
        for (_, segment) in remaining.clone() {
            bytes += segment.bytes;
            live_bytes += segment.live_bytes;
            parts += segment.live_parts;
        }
        let most = CompactionPlan::most_bytes(live_bytes, parts, budget);
        let mut parts_left = PARTS_MIN.max(parts / PARTS_SHARE);
        let mut victims: Vec<&(usize, &SegmentUsage)> = remaining
            .filter(is_removable)
            .filter(|(_, segment)| segment.share() <= SHARE_MAX)
            .collect();
        victims.sort_by(|a, b| a.1.share().total_cmp(&b.1.share()));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let (mut room, mut copy_left) = (0, budget.copy_bytes);
        for &&(position, segment) in &victims {
            let compacted = segment.compacted_bytes();
            if bytes <= most {
                break;
            }
            // A smaller one may fit.
            if segment.live_parts > parts_left || compacted > copy_left {
                continue;
            }
            copy_left -= compacted;
            parts_left -= segment.live_parts;
            bytes -= segment.bytes - compacted;
            match groups.last_mut() {
                Some(group) if compacted <= room => group.push(position),
                _ => {
                    groups.push(vec![position]);
                    room = budget.segment_bytes;
                }
            }
            room = room.saturating_sub(compacted);
        }
        CompactionPlan { dead, groups }
    }

    /// The live parts of the victims, grouped by compacted file.
    pub(crate) fn collect(&self, live: &LiveUsage, snapshot: &dyn Snapshot) -> Vec<Vec<RecordRef>> {
        let mut group_of = vec![None; live.segments.len()];
        let mut collected = Vec::with_capacity(self.groups.len());
        for (number, group) in self.groups.iter().enumerate() {
            group.iter().for_each(|&position| group_of[position] = Some(number));
            let parts = group.iter().map(|&position| live.segments[position].live_parts as usize);
            collected.push(Vec::with_capacity(parts.sum()));
        }
        if self.groups.is_empty() {
            return collected;
        }
        snapshot.parts(&mut |part| {
            let group = live.segment_of(part.index).and_then(|position| group_of[position]);
            if let Some(group) = group {
                collected[group].push(part);
            }
        });
        collected
    }

    /// Bytes that segments and compacted files may have at the end of this cycle. At its fullest,
    /// just before the next cycle ends, the disk holds at most twice the live bytes (payloads and
    /// job rows) and two segments.
    fn most_bytes(live_bytes: u64, parts: u64, budget: DiskBudget) -> u64 {
        let least = (live_bytes as f64 * SLACK_MIN) as u64;
        if budget.short {
            return least;
        }
        let most = 2 * (live_bytes + parts * ROW_BYTES) + SEGMENTS_OVER * budget.segment_bytes;
        // By then there are also this snapshot, the next one, and a preallocated segment. The
        // ballast is not counted: a queue may be so short that the ballast is most of what it
        // takes, and no compaction would help.
        let others = 2 * budget.snapshot_bytes + budget.growth_bytes + budget.segment_bytes;
        least.max(most.saturating_sub(others))
    }
}

impl SegmentUsage {
    /// Bytes that its live parts take after compaction, at most.
    fn compacted_bytes(&self) -> u64 {
        self.live_bytes + self.live_parts * COMPACTED_PART_BYTES
    }

    /// The bytes to copy as a share of the file.
    fn share(&self) -> f64 {
        self.compacted_bytes() as f64 / self.bytes.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// Segments of 1 MiB with 100 commands each, with so many live parts of 1 KiB.
    fn live(live_bytes: &[u64]) -> LiveUsage {
        let run = |position: usize| Bounds {
            first: position as u64 * 100 + 1,
            last: position as u64 * 100 + 100,
            sequence: position as u64 + 10,
            compacted: false,
        };
        let runs: Vec<Bounds> = (0..live_bytes.len()).map(run).collect();
        let mut live = LiveUsage::of(&runs, |_| MIB);
        for (position, &parts) in live_bytes.iter().enumerate() {
            for part in 0..parts {
                let index = position as u64 * 100 + 1 + part % 100;
                live.count(RecordRef { index, at: part as u32 / 100 * 1024, length: 1024 });
            }
        }
        live
    }

    fn budget(covered: u64, writing: u64) -> DiskBudget {
        DiskBudget {
            covered,
            writing,
            snapshot_bytes: 0,
            // With the preallocated segment this cancels the two extra ones.
            growth_bytes: MIB,
            short: false,
            segment_bytes: MIB,
            copy_bytes: u64::MAX,
        }
    }

    #[test]
    fn dead_segments_go_once_covered_and_never_the_active_one() {
        let live = live(&[0, 1_000, 0, 0]);
        assert_eq!(CompactionPlan::of(&live, budget(400, 13)).dead, [10, 12]);
        assert_eq!(
            CompactionPlan::of(&live, budget(299, 13)).dead,
            [10],
            "one command of 12 is not covered"
        );
        assert_eq!(CompactionPlan::of(&live, budget(99, 13)).dead, [0; 0]);
        assert_eq!(live.unlocated(), 0);
    }

    #[test]
    fn emptiest_segments_are_compacted_until_the_disk_budget_holds() {
        // 5 MiB of segments, 1.8 MiB live: without two of them it is 3.3 MiB.
        let live = live(&[950, 100, 600, 200, 0]);
        let plan = CompactionPlan::of(&live, budget(500, 14));
        // The last one is active: it counts, and stays.
        assert_eq!(plan, CompactionPlan { dead: vec![], groups: vec![vec![1, 3]] });
        assert_eq!(CompactionPlan::of(&live, budget(150, 14)).groups, [[0; 0]; 0], "not covered");
        let short = DiskBudget { short: true, ..budget(500, 14) };
        assert_eq!(
            CompactionPlan::of(&live, short).groups,
            [vec![1, 3, 2]],
            "the first is too full to be worth it"
        );
    }

    #[test]
    fn a_segment_that_cannot_be_read_does_not_hold_up_others() {
        let mut live = live(&[950, 100, 600, 200, 0]);
        live.retain(&[11, 14].into());
        let short = DiskBudget { short: true, ..budget(500, 99) };
        let plan = CompactionPlan::of(&live, short);
        assert_eq!(plan.groups, [vec![3, 2]], "without the second");
        assert_eq!(plan.dead, [14], "nothing of it is live");
    }

    #[test]
    fn large_state_leaves_less_room_for_segments() {
        let live = live(&[500, 600, 700, 800]);
        assert!(CompactionPlan::of(&live, budget(400, 99)).groups.is_empty(), "4 MiB for 2.5 MiB");
        let large = DiskBudget { snapshot_bytes: 6 * MIB / 5, ..budget(400, 99) };
        assert_eq!(CompactionPlan::of(&live, large).groups, [vec![0], vec![1]]);
    }

    #[test]
    fn segment_budget_reserves_room_until_the_next_cycle_ends() {
        let (live_bytes, parts) = (1_000 * MIB, 1_000_000);
        let full = DiskBudget {
            snapshot_bytes: 70 * MIB,
            growth_bytes: 300 * MIB,
            segment_bytes: 64 * MIB,
            ..budget(0, 0)
        };
        // Twice the payloads and the rows, and two segments; less two snapshots, the log, and the
        // preallocated segment.
        let (rows, others) = (96_000_000, 2 * 70 * MIB + 300 * MIB + 64 * MIB);
        let most = 2 * (live_bytes + rows) + 2 * 64 * MIB - others;
        assert_eq!(CompactionPlan::most_bytes(live_bytes, parts, full), most);
        // Below 1.15 times the live bytes, compaction would only copy the same bytes again.
        let least = 1_150 * MIB;
        let large = DiskBudget { growth_bytes: 4_000 * MIB, ..full };
        assert_eq!(CompactionPlan::most_bytes(live_bytes, parts, large), least);
        assert_eq!(
            CompactionPlan::most_bytes(live_bytes, parts, DiskBudget { short: true, ..full }),
            least
        );
    }

    #[test]
    fn compacted_file_stays_within_a_segment_unless_one_victim_is_longer() {
        let live = live(&[500, 500, 500, 500, 500, 0]);
        let short = DiskBudget { short: true, ..budget(600, 15) };
        let plan = CompactionPlan::of(&live, short);
        assert!(plan.groups.iter().all(|group| group.len() <= 2), "{plan:?}");
        assert!(!plan.groups.is_empty());
    }

    #[test]
    fn overhead_of_small_parts_counts_against_compacting_them() {
        // A compacted file of 9,000 live parts of 60 bytes: the next one would be as long.
        let run = Bounds { first: 1, last: 9_000, sequence: 10, compacted: true };
        let mut live = LiveUsage::of(&[run], |_| 9_000 * 110);
        for index in 1..=9_000 {
            live.count(RecordRef { index, at: 0, length: 60 });
        }
        let short = DiskBudget { short: true, ..budget(9_000, 99) };
        assert_eq!(CompactionPlan::of(&live, short), CompactionPlan::default());
        // With three of four parts dead, a quarter is left; with all of them live, two do not fit
        // into one file.
        let mut live = LiveUsage::of(
            &[run, Bounds { first: 9_001, last: 18_000, sequence: 11, ..run }],
            |_| 9_000 * 110,
        );
        for index in (1..=18_000).step_by(4) {
            live.count(RecordRef { index, at: 0, length: 60 });
        }
        let short = DiskBudget { short: true, segment_bytes: 400_000, ..budget(18_000, 99) };
        assert_eq!(
            CompactionPlan::of(&live, short).groups,
            [vec![0], vec![1]],
            "2 × 247,500 bytes"
        );
        // Compacting the first frees 742,500 of 1,980,000 bytes, not quite enough where 1,180,000
        // may stay.
        let tight = DiskBudget { short: false, growth_bytes: 624_000, ..short };
        assert_eq!(CompactionPlan::of(&live, tight).groups, [vec![0], vec![1]]);
    }

    #[test]
    fn compaction_copies_no_more_than_the_copy_budget() {
        let live = live(&[450, 450, 450, 450, 450, 0]);
        let short = DiskBudget { short: true, copy_bytes: 11 * MIB / 10, ..budget(600, 15) };
        assert_eq!(CompactionPlan::of(&live, short).groups, [vec![0, 1]]);
        assert!(CompactionPlan::of(&live, DiskBudget { copy_bytes: 0, ..short }).groups.is_empty());
    }

    #[test]
    fn victim_that_does_not_fit_leaves_the_copy_budget_to_smaller_ones() {
        let mut live = live(&[3 * 1024, 300, 300, 300]);
        // One long record has a segment of its own, with the smallest live share.
        live.segments[0].bytes = 16 * MIB;
        let short = DiskBudget { short: true, copy_bytes: 2 * MIB, ..budget(400, 99) };
        assert_eq!(CompactionPlan::of(&live, short).groups, [vec![1, 2, 3]]);
    }

    #[test]
    fn part_outside_every_run_is_unlocated() {
        let mut live = live(&[1]);
        live.count(RecordRef { index: 101, at: 0, length: 1 });
        assert_eq!(live.unlocated(), 1);
    }
}
