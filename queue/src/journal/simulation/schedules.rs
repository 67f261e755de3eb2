//! Schedules: the harness is the owner that computes their times. Whatever fails, each occurrence
//! gets one job, which is the same for everyone who sees it.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore_protocol::messages::work::NextOccurrence;
use longshore_protocol::{
    FrameWriter, JobId, Missed, NewJob, Overlap, Path, Role, Schedule, Timing,
};
use rand::RngExt;

use super::harness::{PublisherRun, SimulationHarness};
use crate::{Assignment, Command, Occurrence, Poisoned, RunOfOccurrence};

/// A schedule's name, and the queue of its jobs: so its payload is known, whatever a power cut
/// takes back.
const SCHEDULES: [(&str, &str); 2] = [("s", "/a/b"), ("t", "/c")];
/// The least distance of two occurrences, in milliseconds.
const PERIOD_MS: u64 = 400;

/// What is known about occurrences.
#[derive(Clone, Default)]
pub(super) struct KnownOccurrences {
    /// The occurrence of each job that was logged, durably or not.
    logged: BTreeMap<JobId, (String, u64)>,
    /// The job of each occurrence that a worker has received.
    delivered: BTreeMap<(String, u64), JobId>,
}

impl KnownOccurrences {
    /// A worker has received a job: no other job was ever delivered for its occurrence.
    fn delivered(&mut self, job: JobId) {
        let Some(occurrence) = self.logged.get(&job) else { return };
        let first = *self.delivered.entry(occurrence.clone()).or_insert(job);
        assert_eq!(first, job, "the occurrence {occurrence:?} has two jobs");
    }

    /// Only of a log that was not synced may a suffix be lost that others have seen.
    pub(super) fn forget(&mut self) {
        self.delivered.clear();
    }
}

impl SimulationHarness {
    /// Adds, changes, removes, pauses, resumes or runs a schedule.
    pub(super) fn change_schedule(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((_, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        self.next_request += 1;
        let request = self.next_request;
        let (name, path) = self.one_of(&SCHEDULES);
        let next = Some(self.next_occurrence(self.now.wall_ms));
        let name = name.to_owned();
        let command = match self.random.random_range(0..10) {
            0 => Command::RemoveSchedule { link, request, name },
            1 => Command::PauseSchedule { link, request, name, paused: true, next: None },
            2 => Command::PauseSchedule { link, request, name, paused: false, next },
            3 => {
                let job = self.schedule_job(&name, path);
                self.model.submit(&job);
                Command::RunSchedule { link, request, name, job: job.id }
            }
            _ => {
                let job = self.schedule_job(&name, path);
                let mut entry = FrameWriter::new();
                job.encode_entry_head(&mut entry);
                entry.put_shared(job.payload);
                let schedule = Box::new(Schedule {
                    name,
                    path: job.path,
                    timing: Timing::Every { ms: 1_000 },
                    starts_at: None,
                    ends_at: None,
                    jitter_ms: 0,
                    missed: Missed::Latest,
                    overlap: self.one_of(Overlap::ALL),
                    version: None,
                });
                let entry = entry.into_body();
                Command::PutSchedule { link, request, next, entry, schedule }
            }
        };
        run.store.submit(self.now, command).map(drop)
    }

    /// Logs the occurrences that have come due, as a publisher does.
    pub(super) fn occur(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        if !run.store.takes_occurrences() {
            return Ok(());
        }
        let due = run.store.state().due_schedules();
        let due = due.take_while(|due| due.next.fires_at <= self.now.wall_ms);
        let due: Vec<(u32, String, u64)> =
            due.map(|due| (due.number, due.schedule.name.clone(), due.next.due_at)).collect();
        let mut occurrences = Vec::new();
        for (schedule, name, due_at) in due {
            let path = SCHEDULES.iter().find(|known| known.0 == name).map_or("/c", |known| known.1);
            let job = self.schedule_job(&name, path);
            self.model.submit(&job);
            self.occurrences.logged.insert(job.id, (name, due_at));
            let run = Some(RunOfOccurrence { due_at, job: job.id });
            let next = Some(self.next_occurrence(due_at.max(self.now.wall_ms)));
            occurrences.push(Occurrence { schedule, due_at, run, missed: 0, next });
        }
        if occurrences.is_empty() {
            return Ok(());
        }
        run.store.submit(self.now, Command::Occur { occurrences }).map(drop)
    }

    fn next_occurrence(&mut self, after: u64) -> NextOccurrence {
        let due_at = after + PERIOD_MS + self.random.random_range(0..PERIOD_MS);
        NextOccurrence { due_at, fires_at: due_at }
    }

    fn schedule_job(&mut self, name: &str, path: &str) -> NewJob {
        let path: Path = path.parse().expect("a path");
        let job = self.job(path, 1);
        NewJob::new(job.path, job.id, Bytes::from(format!("of {name}").repeat(20)))
    }

    /// The entry of a delivered job; none if its lease has ended meanwhile.
    pub(super) fn entry_of_schedule(
        &mut self,
        run: &PublisherRun,
        assignment: &Assignment,
        template: Bytes,
    ) -> Option<Bytes> {
        if !assignment.of_template {
            return Some(template);
        }
        let job = run.store.state().job_of(assignment.token)?;
        self.occurrences.delivered(job);
        Some([&job.0[..], &template[16..]].concat().into())
    }
}
