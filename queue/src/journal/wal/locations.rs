//! The location of each record. Pure.
//!
//! ```text
//! runs:  │ 1 … 900 in 7 (compacted) │ 901 … 1500 in 4 (log) │ 1501 … in 5 (log, still growing) │
//! ```
//! Runs are sorted and disjoint: an index is in at most one of them. A record outside all runs is
//! gone.

/// A range of commands whose records are in one segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: u64,
    /// The last index of the range; a compacted run may have no part of it left.
    pub(crate) last: u64,
    pub(crate) sequence: u64,
    pub(crate) records: RunRecords,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RunRecords {
    /// Records as they were written: 4 bytes per command, however many jobs it has.
    Log {
        offsets: Vec<u32>,
        /// Where the last one ends.
        end: u32,
    },
    /// The remaining parts, sorted by index, then by `at`.
    Compacted(Vec<CompactedAt>),
}

/// A compacted record: parts of command `index`, the first of which begins at `at` in its body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CompactedAt {
    pub(crate) index: u64,
    pub(crate) at: u32,
    pub(crate) offset: u32,
}

/// The bounds of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) sequence: u64,
    pub(crate) compacted: bool,
}

impl Run {
    pub(crate) fn is_compacted(&self) -> bool {
        matches!(self.records, RunRecords::Compacted(_))
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let compacted = self.is_compacted();
        Bounds { first: self.first, last: self.last, sequence: self.sequence, compacted }
    }
}

/// The location of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordLocation {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    /// Where it ends; known for a record in a log segment.
    pub(crate) end: Option<u64>,
    pub(crate) compacted: bool,
}

/// The locations of all remaining records of a journal.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Locations {
    runs: Vec<Run>,
}

impl Locations {
    /// From sorted, disjoint runs.
    pub(crate) fn of(runs: Vec<Run>) -> Locations {
        debug_assert!(
            runs.windows(2).all(|pair| pair[0].last < pair[1].first),
            "runs are disjoint"
        );
        Locations { runs }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Adds consecutive records of one segment, after all others; the last one ends at `end`.
    pub(crate) fn extend(&mut self, sequence: u64, first: u64, offsets: &[u32], end: u32) {
        let Some(more) = (offsets.len() as u64).checked_sub(1) else { return };
        match self.runs.last_mut() {
            Some(Run {
                last,
                sequence: of,
                records: RunRecords::Log { offsets: known, end: known_end },
                ..
            }) if *of == sequence && *last + 1 == first => {
                known.extend_from_slice(offsets);
                (*last, *known_end) = (first + more, end);
            }
            _ => {
                let records = RunRecords::Log { offsets: offsets.to_vec(), end };
                self.runs.push(Run { first, last: first + more, sequence, records });
            }
        }
    }

    /// Whether any run is in that file.
    pub(crate) fn references(&self, sequence: u64) -> bool {
        self.runs.iter().any(|run| run.sequence == sequence)
    }

    /// The run that covers a command.
    pub(crate) fn run_of(&self, index: u64) -> Option<&Run> {
        let after = self.runs.partition_point(|run| run.first <= index);
        self.runs.get(after.checked_sub(1)?).filter(|run| index <= run.last)
    }

    /// The location of the record with the part of command `index` that begins at `at`.
    pub(crate) fn locate(&self, index: u64, at: u32) -> Option<RecordLocation> {
        let run = self.run_of(index)?;
        let sequence = run.sequence;
        match &run.records {
            RunRecords::Log { offsets, end } => {
                let position = usize::try_from(index - run.first).ok()?;
                let offset = u64::from(*offsets.get(position)?);
                let end = offsets.get(position + 1).unwrap_or(end);
                Some(RecordLocation {
                    sequence,
                    offset,
                    end: Some(u64::from(*end)),
                    compacted: false,
                })
            }
            RunRecords::Compacted(records) => {
                let after =
                    records.partition_point(|record| (record.index, record.at) <= (index, at));
                let record =
                    records.get(after.checked_sub(1)?).filter(|record| record.index == index)?;
                let offset = u64::from(record.offset);
                Some(RecordLocation { sequence, offset, end: None, compacted: true })
            }
        }
    }

    /// Replaces runs by compacted runs, each with the same bounds.
    pub(crate) fn replace(&mut self, compacted: Vec<Run>) {
        for run in compacted {
            match self.runs.binary_search_by_key(&run.first, |known| known.first) {
                Ok(position) if self.runs[position].last == run.last => self.runs[position] = run,
                _ => debug_assert!(false, "a compacted run replaces exactly one run"),
            }
        }
    }

    /// Removes every run in that segment.
    pub(crate) fn forget(&mut self, sequence: u64) {
        self.runs.retain(|run| run.sequence != sequence);
    }

    /// A copy of the runs up to `index`, for a snapshot.
    pub(crate) fn up_to(&self, index: u64) -> Locations {
        let mut runs: Vec<Run> = Vec::new();
        for run in self.runs.iter().take_while(|run| run.first <= index) {
            let mut run = run.clone();
            if let RunRecords::Log { offsets, end } = &mut run.records
                && run.last > index
            {
                let keep = (index - run.first + 1) as usize;
                // The last retained record ends where the first removed one begins.
                *end = offsets.get(keep).copied().unwrap_or(*end);
                offsets.truncate(keep);
                run.last = index;
            }
            runs.push(run);
        }
        Locations { runs }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// The expected state: every part's location, and each command's number of parts.
    #[derive(Default)]
    struct LocationModel {
        parts: BTreeMap<(u64, u32), RecordLocation>,
        /// The length of every command's body, in parts: parts begin at 0, 10, 20 …
        parts_of: BTreeMap<u64, u32>,
    }

    impl LocationModel {
        fn check(&self, locations: &Locations) {
            for (&(index, at), &position) in &self.parts {
                assert_eq!(locations.locate(index, at), Some(position), "{index} {at}");
                let bounds = locations.run_of(index).unwrap().bounds();
                assert!(bounds.first <= index && index <= bounds.last);
                assert!(locations.references(position.sequence));
            }
            for &index in self.parts_of.keys() {
                let any = self.parts.range((index, 0)..=(index, u32::MAX)).next();
                let located = locations.locate(index, u32::MAX);
                assert_eq!(located.is_some(), any.is_some(), "{index}");
            }
            let runs = locations.runs();
            assert!(runs.windows(2).all(|pair| pair[0].last < pair[1].first));
        }
    }

    #[test]
    fn every_part_is_located_after_any_changes() {
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut locations, mut model) = (Locations::default(), LocationModel::default());
            let (mut index, mut sequence, mut log) = (1, 1, 1);
            let mut end = 4096;
            for _ in 0..random.random_range(1..40) {
                match random.random_range(0..10) {
                    0..5 => {
                        if random.random_bool(0.3) {
                            (sequence, end) = (sequence + 1, 4096);
                            log = sequence;
                        }
                        let mut offsets = Vec::new();
                        let first = index;
                        for _ in 0..random.random_range(0..5) {
                            let parts = random.random_range(1..4);
                            model.parts_of.insert(index, parts);
                            offsets.push(end);
                            let offset = u64::from(end);
                            end += random.random_range(40..100);
                            let ends = Some(u64::from(end));
                            let position = RecordLocation {
                                sequence: log,
                                offset,
                                end: ends,
                                compacted: false,
                            };
                            for part in 0..parts {
                                model.parts.insert((index, part * 10), position);
                            }
                            index += 1;
                        }
                        locations.extend(log, first, &offsets, end);
                    }
                    5..8 => {
                        // Some runs, except the active one, are compacted into one file.
                        sequence += 1;
                        let mut compacted = Vec::new();
                        let mut offset = 4096;
                        for run in locations.runs().iter().filter(|run| run.sequence != log) {
                            if random.random_bool(0.5) {
                                continue;
                            }
                            let mut records = Vec::new();
                            for index in run.first..=run.last {
                                let live = random.random_bool(0.5);
                                let mut position = None;
                                let parts = model.parts.range_mut((index, 0)..=(index, u32::MAX));
                                for (&(_, at), part) in parts {
                                    // Several parts share a record, or not.
                                    if position.is_none() || random.random_bool(0.5) {
                                        offset += 50;
                                        position = Some(offset);
                                        records.push(CompactedAt { index, at, offset });
                                    }
                                    let offset = u64::from(offset);
                                    *part = RecordLocation {
                                        sequence,
                                        offset,
                                        end: None,
                                        compacted: true,
                                    };
                                }
                                if !live {
                                    records.retain(|record| record.index != index);
                                    model.parts.retain(|&(of, _), _| of != index);
                                }
                            }
                            let records = RunRecords::Compacted(records);
                            compacted.push(Run { sequence, records, ..run.clone() });
                        }
                        locations.replace(compacted);
                    }
                    8 => {
                        let gone = random.random_range(0..=sequence);
                        if gone != log {
                            locations.forget(gone);
                            model.parts.retain(|_, position| position.sequence != gone);
                            assert!(!locations.references(gone));
                        }
                    }
                    _ => {
                        let upto = random.random_range(0..=index);
                        let covered = locations.up_to(upto);
                        for (&(index, at), &position) in &model.parts {
                            if index <= upto {
                                assert_eq!(covered.locate(index, at), Some(position));
                            } else if !position.compacted {
                                assert_eq!(covered.locate(index, at), None);
                            }
                        }
                    }
                }
                model.check(&locations);
            }
        }
    }

    #[test]
    fn locations_of_a_snapshot_extend_to_the_full_locations() {
        let mut locations = Locations::default();
        locations.extend(1, 1, &[4096, 4200, 4300], 4400);
        locations.extend(1, 4, &[4400], 4500);
        assert_eq!(locations.runs().len(), 1, "one segment is one run");
        let mut covered = locations.up_to(2);
        let records = RunRecords::Log { offsets: vec![4096, 4200], end: 4300 };
        assert_eq!(covered.runs(), [Run { first: 1, last: 2, sequence: 1, records }]);
        covered.extend(1, 3, &[4300], 4400);
        covered.extend(1, 4, &[4400], 4500);
        assert_eq!(covered, locations);
        assert_eq!(locations.up_to(4), locations);
        assert_eq!(locations.up_to(0), Locations::default());
    }
}
