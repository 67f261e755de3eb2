//! What was enqueued, what came of it, and the judgement: nothing lost, nothing doubled, nothing
//! unknown. Pure.

use std::collections::HashMap;

use longshore::JobId;

/// What the producer was told about a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handed {
    /// Nothing yet, or that it was not taken.
    No,
    /// That it is durable.
    Taken,
    /// Nothing, within the time allowed: it is there or not.
    Unknown,
}

/// How a job ended, as a publisher's durable state tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// With this digest.
    Digest(String),
    /// In the dead letters, for this reason.
    Buried(String),
}

struct Row {
    name: Vec<u8>,
    handed: Handed,
    ends: Vec<End>,
}

/// One row for each file.
pub(crate) struct Ledger {
    rows: Vec<Row>,
    by_job: HashMap<JobId, usize>,
    foreign: u64,
}

/// What the ledger says in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Files with exactly one digest, by name.
    pub(crate) digests: Vec<(Vec<u8>, String)>,
    /// Files with exactly one burial, and why.
    pub(crate) buried: Vec<(Vec<u8>, String)>,
    /// Files whose job was acknowledged, or never enqueued, and that have no end.
    pub(crate) lost: Vec<Vec<u8>>,
    /// Ends beyond a file's first.
    pub(crate) doubled: u64,
    /// Files whose job nobody answered for, and that have no end.
    pub(crate) unknown: u64,
    /// Ended jobs that nobody enqueued.
    pub(crate) foreign: u64,
}

impl Judgement {
    /// True when every file has exactly one end.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.doubled == 0 && self.unknown == 0 && self.foreign == 0
    }
}

impl Ledger {
    /// A ledger of these names.
    pub(crate) fn new(names: impl IntoIterator<Item = Vec<u8>>) -> Ledger {
        let rows = names.into_iter().map(|name| Row { name, handed: Handed::No, ends: Vec::new() });
        Ledger { rows: rows.collect(), by_job: HashMap::new(), foreign: 0 }
    }

    /// How many files.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The name of a file: its job's payload.
    pub(crate) fn name(&self, row: usize) -> &[u8] {
        &self.rows[row].name
    }

    /// The file's job is enqueued under this id.
    pub(crate) fn enqueue(&mut self, row: usize, id: JobId) {
        self.by_job.insert(id, row);
    }

    /// A publisher acknowledged the job.
    pub(crate) fn taken(&mut self, id: JobId) {
        self.mark(id, Handed::Taken);
    }

    /// Nobody answered for the job.
    pub(crate) fn unknown(&mut self, id: JobId) {
        self.mark(id, Handed::Unknown);
    }

    fn mark(&mut self, id: JobId, handed: Handed) {
        if let Some(&row) = self.by_job.get(&id) {
            self.rows[row].handed = handed;
        }
    }

    /// A publisher holds the job as ended.
    pub(crate) fn ended(&mut self, id: JobId, end: End) {
        match self.by_job.get(&id) {
            Some(&row) => self.rows[row].ends.push(end),
            None => self.foreign += 1,
        }
    }

    /// Adds everything up.
    pub(crate) fn judge(self) -> Judgement {
        let mut judgement = Judgement { foreign: self.foreign, ..Judgement::default() };
        for row in self.rows {
            judgement.doubled += row.ends.len().saturating_sub(1) as u64;
            match (row.ends.into_iter().next(), row.handed) {
                (Some(End::Digest(digest)), _) => judgement.digests.push((row.name, digest)),
                (Some(End::Buried(reason)), _) => judgement.buried.push((row.name, reason)),
                (None, Handed::Unknown) => judgement.unknown += 1,
                (None, Handed::Taken | Handed::No) => judgement.lost.push(row.name),
            }
        }
        judgement
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
    fn a_run_where_every_file_ended_once_is_clean() {
        let mut ledger = ledger_of(&["a", "gone"]);
        ledger.taken(id(0));
        ledger.ended(id(0), digest("d"));
        // Nobody answered for it, but it is there.
        ledger.unknown(id(1));
        ledger.ended(id(1), End::Buried("no such file".to_owned()));
        let judgement = ledger.judge();
        assert!(judgement.is_clean(), "{judgement:?}");
        assert_eq!(judgement.digests, [(b"a".to_vec(), "d".to_owned())]);
        assert_eq!(judgement.buried.len(), 1);
    }

    #[test]
    fn lost_doubled_unknown_and_foreign_are_each_seen() {
        let mut ledger = ledger_of(&["lost", "doubled", "unknown", "never enqueued"]);
        ledger.taken(id(0));
        ledger.taken(id(1));
        ledger.ended(id(1), digest("d"));
        ledger.ended(id(1), digest("d"));
        ledger.unknown(id(2));
        ledger.ended(id(9), digest("d"));
        let judgement = ledger.judge();
        assert_eq!(judgement.lost, [b"lost".to_vec(), b"never enqueued".to_vec()]);
        assert_eq!((judgement.doubled, judgement.unknown, judgement.foreign), (1, 1, 1));
        assert!(!judgement.is_clean());
    }

    #[test]
    fn each_fault_alone_spoils_a_run() {
        for spoil in 0..4 {
            let mut ledger = ledger_of(&["file"]);
            match spoil {
                0 => ledger.taken(id(0)),
                1 => (0..2).for_each(|_| ledger.ended(id(0), digest("d"))),
                2 => ledger.unknown(id(0)),
                _ => {
                    ledger.ended(id(0), digest("d"));
                    ledger.ended(id(7), digest("d"));
                }
            }
            assert!(!ledger.judge().is_clean(), "{spoil}");
        }
    }
}
