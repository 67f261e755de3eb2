//! Records what was enqueued and how it ended, and checks that no job is lost, doubled or unknown.
//! No side effects.

use std::collections::HashMap;

use longshore::JobId;

/// The producer's knowledge of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EnqueueState {
    /// Not enqueued yet, or refused.
    NotEnqueued,
    /// Acknowledged as durable.
    Acknowledged,
    /// Not answered in time: the job may exist.
    Unknown,
}

/// How a job ended, read from a publisher's durable state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Completed with this digest.
    Digest(String),
    /// Buried for this reason.
    Buried(String),
}

struct Row {
    name: Vec<u8>,
    state: EnqueueState,
    ends: Vec<End>,
}

/// One row for each file.
pub(crate) struct Ledger {
    rows: Vec<Row>,
    by_job: HashMap<JobId, usize>,
    foreign: u64,
}

/// The outcome of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Name and digest of each completed file.
    pub(crate) digests: Vec<(Vec<u8>, String)>,
    /// Name and reason of each buried file.
    pub(crate) buried: Vec<(Vec<u8>, String)>,
    /// Files without an end whose job was acknowledged, or never enqueued.
    pub(crate) lost: Vec<Vec<u8>>,
    /// Ends beyond a file's first.
    pub(crate) doubled: u64,
    /// Files without an end whose job was not answered.
    pub(crate) unknown: u64,
    /// Ended jobs that were never enqueued.
    pub(crate) foreign: u64,
}

impl Summary {
    /// True if every file has exactly one end.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.doubled == 0 && self.unknown == 0 && self.foreign == 0
    }
}

impl Ledger {
    /// Creates a ledger of these files.
    pub(crate) fn new(names: impl IntoIterator<Item = Vec<u8>>) -> Ledger {
        let rows = names.into_iter().map(|name| Row {
            name,
            state: EnqueueState::NotEnqueued,
            ends: Vec::new(),
        });
        Ledger { rows: rows.collect(), by_job: HashMap::new(), foreign: 0 }
    }

    /// The number of files.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// A file's name, which is its job's payload.
    pub(crate) fn name(&self, row: usize) -> &[u8] {
        &self.rows[row].name
    }

    /// Records the id of a file's job.
    pub(crate) fn enqueue(&mut self, row: usize, id: JobId) {
        self.by_job.insert(id, row);
    }

    /// Records that a publisher acknowledged the job.
    pub(crate) fn acknowledged(&mut self, id: JobId) {
        self.set_state(id, EnqueueState::Acknowledged);
    }

    /// Records that no publisher answered for the job.
    pub(crate) fn unknown(&mut self, id: JobId) {
        self.set_state(id, EnqueueState::Unknown);
    }

    fn set_state(&mut self, id: JobId, state: EnqueueState) {
        if let Some(&row) = self.by_job.get(&id) {
            self.rows[row].state = state;
        }
    }

    /// Records a job's end.
    pub(crate) fn ended(&mut self, id: JobId, end: End) {
        match self.by_job.get(&id) {
            Some(&row) => self.rows[row].ends.push(end),
            None => self.foreign += 1,
        }
    }

    /// Summarises the run.
    pub(crate) fn summary(self) -> Summary {
        let mut summary = Summary { foreign: self.foreign, ..Summary::default() };
        for row in self.rows {
            summary.doubled += row.ends.len().saturating_sub(1) as u64;
            match (row.ends.into_iter().next(), row.state) {
                (Some(End::Digest(digest)), _) => summary.digests.push((row.name, digest)),
                (Some(End::Buried(reason)), _) => summary.buried.push((row.name, reason)),
                (None, EnqueueState::Unknown) => summary.unknown += 1,
                (None, EnqueueState::Acknowledged | EnqueueState::NotEnqueued) => {
                    summary.lost.push(row.name)
                }
            }
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> JobId {
        JobId([n; 16])
    }

    fn digest(text: &str) -> End {
        End::Digest(text.to_owned())
    }

    fn ledger_of(names: &[&str]) -> Ledger {
        let mut ledger = Ledger::new(names.iter().map(|name| name.as_bytes().to_vec()));
        for row in 0..names.len() {
            ledger.enqueue(row, id(row as u8));
        }
        ledger
    }

    #[test]
    fn a_run_with_one_end_per_file_is_clean() {
        let mut ledger = ledger_of(&["a", "gone"]);
        ledger.acknowledged(id(0));
        ledger.ended(id(0), digest("d"));
        // An unanswered job that exists.
        ledger.unknown(id(1));
        ledger.ended(id(1), End::Buried("no such file".to_owned()));
        let summary = ledger.summary();
        assert!(summary.is_clean(), "{summary:?}");
        assert_eq!(summary.digests, [(b"a".to_vec(), "d".to_owned())]);
        assert_eq!(summary.buried.len(), 1);
    }

    #[test]
    fn lost_doubled_unknown_and_foreign_jobs_are_counted() {
        let mut ledger = ledger_of(&["lost", "doubled", "unknown", "never enqueued"]);
        ledger.acknowledged(id(0));
        ledger.acknowledged(id(1));
        ledger.ended(id(1), digest("d"));
        ledger.ended(id(1), digest("d"));
        ledger.unknown(id(2));
        ledger.ended(id(9), digest("d"));
        let summary = ledger.summary();
        assert_eq!(summary.lost, [b"lost".to_vec(), b"never enqueued".to_vec()]);
        assert_eq!((summary.doubled, summary.unknown, summary.foreign), (1, 1, 1));
        assert!(!summary.is_clean());
    }

    #[test]
    fn each_fault_alone_spoils_a_run() {
        for fault in 0..4 {
            let mut ledger = ledger_of(&["file"]);
            match fault {
                0 => ledger.acknowledged(id(0)),
                1 => (0..2).for_each(|_| ledger.ended(id(0), digest("d"))),
                2 => ledger.unknown(id(0)),
                _ => {
                    ledger.ended(id(0), digest("d"));
                    ledger.ended(id(7), digest("d"));
                }
            }
            assert!(!ledger.summary().is_clean(), "{fault}");
        }
    }
}
