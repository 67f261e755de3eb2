//! Random graphs of jobs and batches, and what must become of them.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use longshore::{JobId, JobState, NewBatch, NewJob, ParentEnd, Path};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// The payload of a job that dies at its first attempt; the others complete.
pub const DIES: &[u8] = b"dies";

/// Jobs that wait for each other, parents first, and the batches of some.
#[derive(Debug)]
pub struct Graph {
    /// All jobs, batches among them.
    pub jobs: Vec<NewJob>,
    numbers: HashMap<JobId, usize>,
    members: BTreeMap<usize, Vec<usize>>,
}

impl Graph {
    /// A graph of so many jobs, of which every twelfth is a batch, open at first. A fifth of the
    /// jobs dies.
    pub fn random(path: &Path, jobs: usize, seed: u64) -> Graph {
        let mut random = StdRng::seed_from_u64(seed);
        let mut graph =
            Graph { jobs: Vec::new(), numbers: HashMap::new(), members: BTreeMap::new() };
        let mut batches: Vec<usize> = Vec::new();
        for number in 0..jobs {
            let id = JobId::new_v7(1_700_000_000_000, random.random());
            let payload = if random.random_bool(0.2) { DIES } else { b"lives" };
            let mut job = NewJob::new(path.clone(), id, Bytes::from_static(payload));
            let is_batch = number % 12 == 0;
            let latest = batches.len().saturating_sub(3);
            let around = batches.get(latest..).filter(|_| random.random_bool(0.4));
            let around = around.and_then(|latest| latest.choose(&mut random)).copied();
            let around = around.filter(|&batch| graph.depth(batch) < 7);
            // A member waits for jobs from before its batch, and before those around it.
            let mut before = number;
            if let Some(batch) = around {
                job = job.in_batch(graph.jobs[batch].id);
                before = if is_batch { 0 } else { graph.outermost(batch) };
                graph.members.entry(batch).or_default().push(number);
            }
            for _ in 0..if is_batch { 0 } else { random.random_range(0..4) } {
                // Mostly of those just before, so that there are long chains.
                let back = random.random_range(1..=before.clamp(1, 20));
                let ends = [ParentEnd::Success, ParentEnd::Death, ParentEnd::Any, ParentEnd::Any];
                if let Some(parent) = before.checked_sub(back) {
                    let when = ends[random.random_range(0..4)];
                    job = job.after_end(graph.jobs[parent].id, when);
                }
            }
            if is_batch {
                job = job.batch(NewBatch::Open);
                batches.push(number);
            }
            graph.numbers.insert(id, number);
            graph.jobs.push(job);
        }
        graph
    }

    /// The ids of the batches.
    pub fn batches(&self) -> Vec<JobId> {
        self.jobs.iter().filter(|job| is_batch(job)).map(|job| job.id).collect()
    }

    /// The end of each job once all batches are closed and nothing is left to run, by the jobs'
    /// own payloads and what they wait for. What waits for a dead job is blocked.
    pub fn ends(&self) -> BTreeMap<JobId, JobState> {
        let mut ends = vec![None; self.jobs.len()];
        let mut had_death = vec![false; self.jobs.len()];
        loop {
            let before = ends.iter().flatten().count();
            for (number, job) in self.jobs.iter().enumerate() {
                if ends[number].is_some() {
                    continue;
                }
                ends[number] = if is_batch(job) {
                    self.end_of_batch(number, &ends)
                } else {
                    self.end_of_job(job, &ends, &had_death)
                };
                let mut around =
                    self.around(number).filter(|_| ends[number] == Some(JobState::Dead));
                while let Some(batch) = around {
                    had_death[batch] = true;
                    around = self.around(batch);
                }
            }
            if ends.iter().flatten().count() == before {
                let end = |(job, end): (&NewJob, &Option<JobState>)| {
                    (job.id, end.unwrap_or(JobState::Blocked))
                };
                return self.jobs.iter().zip(&ends).map(end).collect();
            }
        }
    }

    fn end_of_batch(&self, batch: usize, ends: &[Option<JobState>]) -> Option<JobState> {
        let members = self.members.get(&batch).into_iter().flatten();
        let ends: Option<Vec<JobState>> = members.map(|&member| ends[member]).collect();
        let ends = ends?;
        Some(match [JobState::Dead, JobState::Cancelled].into_iter().find(|s| ends.contains(s)) {
            Some(state) => state,
            None => JobState::Completed,
        })
    }

    fn end_of_job(
        &self,
        job: &NewJob,
        ends: &[Option<JobState>],
        had_death: &[bool],
    ) -> Option<JobState> {
        let (mut waits, mut is_lost) = (false, false);
        for parent in job.keys.iter().flat_map(|keys| &keys.after) {
            let number = self.numbers[&parent.job];
            match (ends[number], parent.when) {
                (Some(JobState::Dead), ParentEnd::Success) => waits = true,
                (None, ParentEnd::Death) if had_death[number] => {}
                (None, _) => waits = true,
                (_, ParentEnd::Any)
                | (Some(JobState::Completed), ParentEnd::Success)
                | (Some(JobState::Dead), ParentEnd::Death) => {}
                _ => is_lost = true,
            }
        }
        match (is_lost, waits) {
            (true, _) => Some(JobState::Cancelled),
            (_, true) => None,
            _ if job.payload == DIES => Some(JobState::Dead),
            _ => Some(JobState::Completed),
        }
    }

    /// The batch that the job is a member of.
    fn around(&self, number: usize) -> Option<usize> {
        let batch = self.jobs[number].keys.as_ref()?.member_of?;
        self.numbers.get(&batch).copied()
    }

    fn outermost(&self, batch: usize) -> usize {
        self.around(batch).map_or(batch, |around| self.outermost(around))
    }

    fn depth(&self, batch: usize) -> usize {
        1 + self.around(batch).map_or(0, |around| self.depth(around))
    }
}

/// True of a batch.
pub fn is_batch(job: &NewJob) -> bool {
    job.keys.as_ref().is_some_and(|keys| keys.batch.is_some())
}
