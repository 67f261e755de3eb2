//! Unique keys of the model.

use longshore_protocol::{
    EnqueueOutcome, Entry, JobId, OnConflict, Path, Refusal, Unique, UniqueUntil,
};

use super::driver::Harness;
use super::jobs::{Job, Phase};
use super::naive::Model;

/// A key that a job holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Hold {
    pub(super) path: Path,
    pub(super) text: String,
    pub(super) job: JobId,
    /// Never by itself, for a key that ends with its job or its job's first delivery.
    pub(super) ends_at: Option<u64>,
}

/// What becomes of a new job.
pub(super) enum Verdict {
    Create,
    /// In the place of this one.
    Replace(JobId),
    Answer(EnqueueOutcome),
}

impl Harness {
    /// Both have the same holds, and the same number of keys.
    pub(super) fn compare_uniques(&self) {
        let keys = self.state.uniques.table.entries();
        let held = keys.iter().filter_map(|(_, key)| {
            Some(Hold {
                path: self.state.queues[key.queue as usize].path.clone(),
                text: String::from_utf8(key.text().to_vec()).expect("a text"),
                job: key.holder?,
                ends_at: Some(key.ends_at).filter(|&at| at != u64::MAX),
            })
        });
        let (mut held, mut expected) = (held.collect::<Vec<_>>(), self.model.holds.clone());
        held.sort_unstable();
        expected.sort_unstable();
        assert_eq!(held, expected);
        assert_eq!(keys.len(), self.model.unique_keys().len());
    }
}

impl Model {
    /// What becomes of a job that is known by neither its id nor its idempotency key.
    pub(super) fn judge_unique(&mut self, path: &Path, entry: &Entry) -> Verdict {
        let Some(unique) = entry.unique() else { return Verdict::Create };
        let key = (path.clone(), unique.key.clone());
        if self.is_trial {
            let is_twice = self.uniques_of_batch.contains(&key);
            self.uniques_of_batch.push(key);
            if is_twice {
                return Verdict::Answer(EnqueueOutcome::Refused(Refusal::NotUnique));
            }
        }
        let Some(holder) = self.holder(path, &unique.key) else { return Verdict::Create };
        let first = self.jobs.iter().find(|job| job.id == holder);
        let waits = |job: &&Job| {
            job.is_open()
                && job.deliveries == 0
                && job.path == *path
                && job.unique.as_ref().is_some_and(|own| own.key == unique.key)
        };
        if holder == entry.id {
            Verdict::Answer(EnqueueOutcome::Existing)
        } else if unique.on_conflict == OnConflict::Refuse
            || first.filter(waits).is_some_and(|job| matches!(job.phase, Phase::Prepared(_)))
            || unique.on_conflict == OnConflict::Replace
                && entry.options.prepared
                && first.filter(waits).is_some()
        {
            Verdict::Answer(EnqueueOutcome::Refused(Refusal::NotUnique))
        } else if unique.on_conflict == OnConflict::Replace && first.filter(waits).is_some() {
            Verdict::Replace(holder)
        } else {
            Verdict::Answer(EnqueueOutcome::ExistingKey(holder))
        }
    }

    /// True if the job adds a key.
    pub(super) fn adds_unique(&self, path: &Path, entry: &Entry) -> bool {
        let is_known = |unique: &Unique| {
            self.unique_keys().iter().any(|(at, text)| at == path && *text == unique.key)
        };
        entry.unique().is_some_and(|unique| !is_known(unique))
    }

    /// The keys that a job holds, or may hold again.
    pub(super) fn unique_keys(&self) -> Vec<(Path, String)> {
        let of_jobs = self.jobs.iter().filter(|job| match job.phase {
            Phase::Dead(_) => true,
            _ => job.is_open(),
        });
        let of_jobs = of_jobs.filter_map(|job| Some((job.path.clone(), job.unique.clone()?.key)));
        let held = self.holds.iter().map(|hold| (hold.path.clone(), hold.text.clone()));
        let mut keys: Vec<(Path, String)> = held.chain(of_jobs).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The job holds its key, as a new one or once it is revived.
    pub(super) fn hold_unique(&mut self, job: usize) {
        let job = &self.jobs[job];
        let Some(Unique { key, until, .. }) = job.unique.clone() else { return };
        let (path, id) = (job.path.clone(), job.id);
        let ends_at = match until {
            UniqueUntil::End | UniqueUntil::Start => None,
            UniqueUntil::For(ms) => Some(self.now.wall_ms + ms),
        };
        self.holds.retain(|hold| (&hold.path, &hold.text) != (&path, &key));
        self.holds.push(Hold { path, text: key, job: id, ends_at });
    }

    /// The job has ended, or was removed: it holds its key only for a period.
    pub(super) fn release_unique(&mut self, job: usize) {
        let id = self.jobs[job].id;
        self.holds.retain(|hold| hold.job != id || hold.ends_at.is_some());
    }

    pub(super) fn start_unique(&mut self, job: usize) {
        if self.jobs[job].unique.as_ref().is_some_and(|own| own.until == UniqueUntil::Start) {
            self.release_unique(job);
        }
    }

    /// A dead job holds no key, and only one without a period may hold it again.
    pub(super) fn bury_unique(&mut self, job: usize) {
        self.release_unique(job);
        let unique = &mut self.jobs[job].unique;
        *unique = unique.take().filter(|own| !matches!(own.until, UniqueUntil::For(_)));
    }

    /// The job that holds the key of a dead one.
    pub(super) fn rival(&self, job: &Job) -> Option<JobId> {
        self.holder(&job.path, &job.unique.as_ref()?.key)
    }

    pub(super) fn end_uniques(&mut self) {
        let now = self.now.wall_ms;
        self.holds.retain(|hold| hold.ends_at.is_none_or(|at| at > now));
    }

    fn holder(&self, path: &Path, text: &str) -> Option<JobId> {
        let now = self.now.wall_ms;
        let is_it = |hold: &&Hold| {
            (&hold.path, &*hold.text) == (path, text) && hold.ends_at.is_none_or(|at| at > now)
        };
        self.holds.iter().find(is_it).map(|hold| hold.job)
    }
}
