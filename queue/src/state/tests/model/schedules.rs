//! Schedules of the model.

use bytes::Bytes;
use longshore_protocol::messages::work::{
    NextOccurrence, RequestError, RunOutcome, ScheduleInfo, ScheduleOutcome,
};
use longshore_protocol::{Due, EnqueueOutcome, Entry, JobId, LinkId, Overlap, Refusal, Schedule};

use super::naive::{Expected, Model};
use crate::command::{Command, Occurrence};
use crate::outcome::{RecordRef, Reply};

/// A schedule, with the template of its jobs.
#[derive(Clone, Debug)]
pub(super) struct KnownSchedule {
    pub(super) info: ScheduleInfo,
    /// The entry, without its id.
    bytes: Bytes,
    at: RecordRef,
    /// All jobs that it made, the oldest first.
    jobs: Vec<JobId>,
}

impl KnownSchedule {
    /// An occurrence that is due, and waits only to fire, will not.
    fn miss_due(&mut self, now: u64) {
        self.info.missed += u64::from(self.info.next.is_some_and(|next| next.due_at <= now));
    }
}

/// The template of a job, and the name of its schedule.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct MadeBy {
    pub(super) template: RecordRef,
    pub(super) schedule: String,
    due_at: u64,
}

impl Model {
    pub(super) fn apply_to_schedules(&mut self, command: &Command, to: &mut Expected<'_>) {
        let now = self.now.wall_ms;
        let mut reply = |link: &LinkId, reply: Reply| to.replies.push((*link, reply));
        match command {
            Command::PutSchedule { link, request, next, entry, schedule } => {
                let result = self.put(schedule, entry, *next, to);
                to.replies.push((*link, Reply::ScheduleSet { request: *request, result }));
            }
            Command::RemoveSchedule { link, request, name } => {
                let before = self.schedules.len();
                self.schedules.retain(|known| known.info.schedule.name != *name);
                let outcome = match before == self.schedules.len() {
                    true => ScheduleOutcome::Unknown,
                    false => ScheduleOutcome::Changed,
                };
                let request = *request;
                reply(link, Reply::ScheduleSet { request, result: Ok(outcome) });
            }
            Command::PauseSchedule { link, request, name, paused, next } => {
                let outcome = match self.schedule_mut(name) {
                    None => ScheduleOutcome::Unknown,
                    Some(known) if known.info.paused == *paused => ScheduleOutcome::Unchanged,
                    Some(known) => {
                        known.miss_due(now);
                        known.info.paused = *paused;
                        known.info.next = if *paused { None } else { *next };
                        ScheduleOutcome::Changed
                    }
                };
                let request = *request;
                reply(link, Reply::ScheduleSet { request, result: Ok(outcome) });
            }
            Command::RunSchedule { link, request, name, job } => {
                let outcome =
                    match self.schedules.iter().position(|s| s.info.schedule.name == *name) {
                        None => RunOutcome::Unknown,
                        Some(number) => {
                            match self.make_job(number, self.now.wall_ms, *job, 0, to) {
                                Ok(()) => RunOutcome::Enqueued(*job),
                                Err(refusal) => RunOutcome::Refused(refusal),
                            }
                        }
                    };
                let request = *request;
                to.replies.push((*link, Reply::ScheduleRun { request, result: Ok(outcome) }));
            }
            _ => {}
        }
    }

    fn schedule_mut(&mut self, name: &str) -> Option<&mut KnownSchedule> {
        self.schedules.iter_mut().find(|known| known.info.schedule.name == name)
    }

    fn put(
        &mut self,
        schedule: &Schedule,
        bytes: &Bytes,
        next: Option<NextOccurrence>,
        to: &mut Expected<'_>,
    ) -> Result<ScheduleOutcome, RequestError> {
        let known = self.schedules.iter().position(|s| s.info.schedule.name == schedule.name);
        if known.is_none() && self.schedules.len() as u64 >= self.limits.schedules {
            return Err(RequestError::TooManySchedules);
        }
        let refused = |refusal| Ok(ScheduleOutcome::Refused(refusal));
        let entry = Entry::read(bytes.clone()).expect("it was built");
        let options = &entry.options;
        if options.due != Due::Now
            || options.prepared
            || options.expires_at.is_some()
            || entry.idempotency().is_some()
        {
            return refused(Refusal::BadOptions);
        }
        let mut schedule = schedule.clone();
        let contents = bytes.slice(16..);
        if let Some(known) = known.map(|known| &self.schedules[known]) {
            let before = known.info.schedule.version;
            let version = schedule.version;
            schedule.version = version.or(before);
            let is_same = known.info.schedule == schedule && known.bytes == contents;
            let is_over = !known.info.paused && known.info.next.is_none();
            match (version, before) {
                _ if is_same && (!is_over || next.is_none()) => {
                    return Ok(ScheduleOutcome::Unchanged);
                }
                _ if is_same => {}
                (Some(version), Some(before)) if version < before => {
                    return Ok(ScheduleOutcome::Older(before));
                }
                (Some(version), Some(before)) if version == before => {
                    return Ok(ScheduleOutcome::VersionTaken(before));
                }
                _ => {}
            }
        }
        if let Err(refusal) = self.open_queue(&schedule.path, to) {
            return refused(refusal);
        }
        let at = self.record(Command::SCHEDULE_ENTRY_AT, 0, bytes.len() as u32);
        let Some(known) = known else {
            let info = ScheduleInfo {
                schedule,
                created_at: self.now.wall_ms,
                paused: false,
                next,
                last_at: None,
                last_job: None,
                made: 0,
                missed: 0,
                overlapped: 0,
                refused: 0,
                last_refusal: None,
                payload_len: entry.payload.len() as u64,
            };
            self.schedules.push(KnownSchedule { info, bytes: contents, at, jobs: Vec::new() });
            return Ok(ScheduleOutcome::Added);
        };
        let now = self.now.wall_ms;
        let known = &mut self.schedules[known];
        let is_over = known.info.next.is_none();
        if (!known.info.schedule.has_timing_of(&schedule) || is_over) && !known.info.paused {
            known.miss_due(now);
            known.info.next = next;
        }
        known.info.payload_len = entry.payload.len() as u64;
        (known.info.schedule, known.bytes, known.at) = (schedule, contents, at);
        Ok(ScheduleOutcome::Changed)
    }

    /// Numbers of schedules are the state's; names are the model's.
    pub(super) fn occur(
        &mut self,
        name: &str,
        occurrence: &Occurrence,
        nth: u32,
        to: &mut Expected<'_>,
    ) {
        let number = self.schedules.iter().position(|s| s.info.schedule.name == name);
        let number = number.expect("the state knows it");
        let info = &mut self.schedules[number].info;
        if info.next.map(|next| next.due_at) != Some(occurrence.due_at) {
            return;
        }
        info.next = occurrence.next;
        info.missed += occurrence.missed;
        let Some(run) = occurrence.run else { return };
        let overlap = info.schedule.overlap;
        let lately = self.schedules[number].jobs.iter().rev().take(2);
        let open =
            lately.filter(|job| self.jobs.iter().any(|known| known.id == **job && known.is_open()));
        let is_one_too_many = match overlap {
            Overlap::Skip => open.count() > 0,
            Overlap::Allow => false,
            Overlap::Buffer => open.count() > 1,
        };
        if is_one_too_many {
            self.schedules[number].info.overlapped += 1;
            return;
        }
        let made = self.make_job(number, run.due_at, run.job, nth, to);
        let info = &mut self.schedules[number].info;
        match made {
            Ok(()) => info.last_at = Some(run.due_at),
            Err(refusal) => {
                info.refused += 1;
                info.last_refusal = Some(refusal);
            }
        }
    }

    fn make_job(
        &mut self,
        number: usize,
        due_at: u64,
        job: JobId,
        nth: u32,
        to: &mut Expected<'_>,
    ) -> Result<(), Refusal> {
        let known = self.schedules[number].clone();
        let Schedule { name, path, overlap, .. } = known.info.schedule;
        let bytes: Bytes = [&job.0[..], &known.bytes].concat().into();
        let mut entry = Entry::read(bytes).expect("it was built");
        if overlap == Overlap::Buffer {
            let keys = entry.keys.get_or_insert_default();
            keys.order.get_or_insert_with(|| name.clone());
        }
        let record = RecordRef { index: self.index, at: (1 << 31) + nth, length: known.at.length };
        self.made_by = Some(MadeBy { template: known.at, schedule: name, due_at });
        let outcome = self.apply_job(entry, record, &path, to);
        self.made_by = None;
        match outcome {
            EnqueueOutcome::Created => {}
            EnqueueOutcome::Refused(refusal) => return Err(refusal),
            _ => return Err(Refusal::NotUnique),
        }
        let known = &mut self.schedules[number];
        known.jobs.push(job);
        known.info.last_job = Some(job);
        known.info.made += 1;
        Ok(())
    }

    /// When the job that is being created was enqueued.
    pub(super) fn enqueued_at(&self) -> u64 {
        self.made_by.as_ref().map_or(self.now.wall_ms, |made| made.due_at)
    }

    /// Schedules by name.
    pub(super) fn sorted_schedules(&self) -> Vec<ScheduleInfo> {
        let mut all: Vec<ScheduleInfo> =
            self.schedules.iter().map(|known| known.info.clone()).collect();
        all.sort_by(|a, b| a.schedule.name.cmp(&b.schedule.name));
        all
    }
}
