//! Schedules: the state enqueues a job at each occurrence.
//!
//! The state computes no time. Its owner does, and logs it: one [`Occurrence`] is both the job of
//! an occurrence and the time of the next one, so that after any crash an occurrence has its job,
//! or is still the next one. A command about an occurrence that is not the next one changes
//! nothing.
//!
//! The jobs of a schedule share its [template], whose entry is in the log once.

mod snapshot;
pub(super) mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    NextOccurrence, RequestError, RunOutcome, ScheduleInfo, ScheduleOutcome, SchedulesPage,
};
use longshore_protocol::{
    EnqueueOutcome, EntryHead, JobId, LinkId, Overlap, PathSet, Refusal, Schedule,
};

use self::template::{Template, Templates};
use super::State;
use super::enqueue::Destination;
use super::row::Row;
use super::slab::Slab;
use crate::command::Occurrence;
use crate::outcome::{Outcomes, RecordRef, Reply};

/// Where the entries of jobs with a template are in the order of enqueuing: after everything that a
/// command may contain. So no such job has the place of another one.
pub(super) const OCCURRENCE_AT: u32 = 1 << 31;

/// What a template counts as in memory, and with it the schedule that refers to it: entries in the
/// tables, texts, options. Jobs may refer to templates of former schedules.
pub(super) const SCHEDULE_BYTES: u64 = 1_024;

/// A schedule and what has become of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ScheduleEntry {
    pub(super) schedule: Arc<Schedule>,
    pub(super) queue: u32,
    pub(super) template: u32,
    pub(super) created_at: u64,
    pub(super) paused: bool,
    pub(super) next: Option<NextOccurrence>,
    /// The time of the last occurrence with a job.
    last_at: Option<u64>,
    /// The last jobs, the newest first. They may have been removed.
    recent: [Option<JobId>; 2],
    made: u64,
    missed: u64,
    overlapped: u64,
    refused: u64,
    last_refusal: Option<Refusal>,
}

impl ScheduleEntry {
    /// It has no next occurrence, although it is not paused: its end has come, or its zone was not
    /// known for a time.
    fn is_over(&self) -> bool {
        !self.paused && self.next.is_none()
    }
}

/// All schedules.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedules {
    pub(super) table: Slab<ScheduleEntry>,
    pub(super) templates: Templates,
    /// By name.
    names: BTreeMap<String, u32>,
    /// The next occurrences, by the time at which they fire (wall).
    due: BTreeSet<(u64, u32)>,
}

impl Schedules {
    pub(super) fn len(&self) -> u64 {
        self.table.len() as u64
    }

    fn set_next(&mut self, number: u32, next: Option<NextOccurrence>) {
        let before = std::mem::replace(&mut self.table[number].next, next);
        if let Some(before) = before {
            self.due.remove(&(before.fires_at, number));
        }
        self.due.extend(next.map(|next| (next.fires_at, number)));
    }

    /// The schedules of a snapshot; none if two have a name.
    pub(super) fn from_tables(
        table: Slab<ScheduleEntry>,
        mut templates: Templates,
    ) -> Option<Schedules> {
        let mut schedules = Schedules::default();
        for (number, entry) in table.iter() {
            templates.add_use(entry.template)?;
            schedules.due.extend(entry.next.map(|next| (next.fires_at, number)));
            if schedules.names.insert(entry.schedule.name.clone(), number).is_some() {
                return None;
            }
        }
        Some(Schedules { table, templates, ..schedules })
    }
}

/// A schedule whose next occurrence may have come due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueSchedule<'a> {
    /// Its number.
    pub number: u32,
    /// The schedule.
    pub schedule: &'a Schedule,
    /// When it was added, in milliseconds since 1970.
    pub created_at: u64,
    /// Its next occurrence.
    pub next: NextOccurrence,
}

impl State {
    /// The number of schedules.
    pub fn schedules(&self) -> u64 {
        self.schedules.len()
    }

    /// The schedules by the time at which their next occurrences fire.
    pub fn due_schedules(&self) -> impl Iterator<Item = DueSchedule<'_>> {
        self.schedules.due.iter().filter_map(|&(_, number)| {
            let entry = &self.schedules.table[number];
            let (schedule, created_at) = (&*entry.schedule, entry.created_at);
            Some(DueSchedule { number, schedule, created_at, next: entry.next? })
        })
    }

    /// The schedule of that name.
    pub fn schedule(&self, name: &str) -> Option<ScheduleInfo> {
        let &number = self.schedules.names.get(name)?;
        Some(self.schedule_info(&self.schedules.table[number]))
    }

    /// The schedules whose names are higher than `after`, by name, as many as fit on a page of
    /// `limit`; those of other queues than `within` are left out.
    pub fn schedules_page(
        &self,
        after: &str,
        limit: usize,
        within: Option<&PathSet>,
    ) -> SchedulesPage {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let entries = self.schedules.names.range::<str, _>(range);
        let entries = entries.map(|(_, &number)| &self.schedules.table[number]);
        let sees = |entry: &&ScheduleEntry| {
            within.is_none_or(|within| within.contains(&entry.schedule.path))
        };
        let mut seen = entries.filter(sees);
        let schedules = seen.by_ref().take(limit).map(|entry| self.schedule_info(entry)).collect();
        SchedulesPage { schedules, more: seen.next().is_some() }
    }

    fn schedule_info(&self, entry: &ScheduleEntry) -> ScheduleInfo {
        ScheduleInfo {
            schedule: (*entry.schedule).clone(),
            created_at: entry.created_at,
            paused: entry.paused,
            next: entry.next,
            last_at: entry.last_at,
            last_job: entry.recent[0],
            made: entry.made,
            missed: entry.missed,
            overlapped: entry.overlapped,
            refused: entry.refused,
            last_refusal: entry.last_refusal,
            payload_len: self.schedules.templates.head(entry.template).payload_len as u64,
        }
    }

    pub(super) fn apply_put_schedule(
        &mut self,
        (link, request): (LinkId, u64),
        schedule: &Schedule,
        entry: &Bytes,
        next: Option<NextOccurrence>,
        out: &mut Outcomes,
    ) {
        let result = self.put_schedule(schedule, entry, next, out);
        out.replies.push((link, Reply::ScheduleSet { request, result }));
    }

    /// Adds a schedule, or changes the one of its name; then its next occurrence stays, unless its
    /// times have changed.
    fn put_schedule(
        &mut self,
        schedule: &Schedule,
        entry: &Bytes,
        next: Option<NextOccurrence>,
        out: &mut Outcomes,
    ) -> Result<ScheduleOutcome, RequestError> {
        let known = self.schedules.names.get(&schedule.name).copied();
        if known.is_none() && self.schedules.len() >= self.rules.schedules {
            return Err(RequestError::TooManySchedules);
        }
        let mut schedule = schedule.clone();
        let template = match Template::read(&schedule, entry, self.index) {
            Ok(template) => template,
            Err(refusal) => return Ok(ScheduleOutcome::Refused(refusal)),
        };
        if let Some(number) = known {
            let entry = &self.schedules.table[number];
            let of_entry = self.schedules.templates.get(entry.template);
            let before = entry.schedule.version;
            let version = schedule.version;
            schedule.version = version.or(before);
            let is_same = *entry.schedule == schedule && of_entry.is_same(&template);
            match (version, before) {
                _ if is_same && (!entry.is_over() || next.is_none()) => {
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
        let queue = match self.destination_if_open(&schedule.path) {
            Destination::Queue(queue) => queue,
            Destination::New if self.queues.len() as u64 >= self.rules.queues => {
                return Ok(ScheduleOutcome::Refused(Refusal::TooManyQueues));
            }
            Destination::New => self.create_queue(&schedule.path, out),
            Destination::Closed(refusal) => return Ok(ScheduleOutcome::Refused(refusal)),
        };
        let template = self.schedules.templates.insert(template);
        let Some(number) = known else {
            let name = schedule.name.clone();
            let number = self.schedules.table.insert(ScheduleEntry {
                schedule: schedule.into(),
                queue,
                template,
                created_at: self.now.wall_ms,
                paused: false,
                next: None,
                last_at: None,
                recent: [None; 2],
                made: 0,
                missed: 0,
                overlapped: 0,
                refused: 0,
                last_refusal: None,
            });
            self.schedules.names.insert(name, number);
            self.schedules.set_next(number, next);
            return Ok(ScheduleOutcome::Added);
        };
        let entry = &mut self.schedules.table[number];
        let stays = entry.schedule.has_timing_of(&schedule) && !entry.is_over();
        let before = std::mem::replace(&mut entry.template, template);
        (entry.schedule, entry.queue) = (schedule.into(), queue);
        let is_paused = entry.paused;
        self.schedules.templates.release(before);
        if !stays && !is_paused {
            self.miss_due(number);
            self.schedules.set_next(number, next);
        }
        Ok(ScheduleOutcome::Changed)
    }

    pub(super) fn apply_remove_schedule(
        &mut self,
        (link, request): (LinkId, u64),
        name: &str,
        out: &mut Outcomes,
    ) {
        let number = self.schedules.names.remove(name);
        if let Some(number) = number {
            self.schedules.set_next(number, None);
            if let Some(entry) = self.schedules.table.remove(number) {
                self.schedules.templates.release(entry.template);
            }
        }
        let outcome = number.map_or(ScheduleOutcome::Unknown, |_| ScheduleOutcome::Changed);
        out.replies.push((link, Reply::ScheduleSet { request, result: Ok(outcome) }));
    }

    /// Pauses a schedule, or resumes it with `next`.
    pub(super) fn apply_pause_schedule(
        &mut self,
        (link, request): (LinkId, u64),
        name: &str,
        paused: bool,
        next: Option<NextOccurrence>,
        out: &mut Outcomes,
    ) {
        let outcome = match self.schedules.names.get(name).copied() {
            None => ScheduleOutcome::Unknown,
            Some(number) if self.schedules.table[number].paused == paused => {
                ScheduleOutcome::Unchanged
            }
            Some(number) => {
                self.miss_due(number);
                self.schedules.table[number].paused = paused;
                self.schedules.set_next(number, next.filter(|_| !paused));
                ScheduleOutcome::Changed
            }
        };
        out.replies.push((link, Reply::ScheduleSet { request, result: Ok(outcome) }));
    }

    /// Counts the next occurrence as missed if it is due and only waits to fire: it will not.
    fn miss_due(&mut self, number: u32) {
        let entry = &mut self.schedules.table[number];
        if entry.next.is_some_and(|next| next.due_at <= self.now.wall_ms) {
            entry.missed = entry.missed.saturating_add(1);
        }
    }

    /// Enqueues a job of a schedule at once.
    pub(super) fn apply_run_schedule(
        &mut self,
        (link, request): (LinkId, u64),
        name: &str,
        job: JobId,
        out: &mut Outcomes,
    ) {
        let outcome = match self.schedules.names.get(name).copied() {
            None => RunOutcome::Unknown,
            Some(number) => {
                match self.enqueue_occurrence(number, (self.now.wall_ms, job), 0, out) {
                    Ok(()) => RunOutcome::Enqueued(job),
                    Err(refusal) => RunOutcome::Refused(refusal),
                }
            }
        };
        out.replies.push((link, Reply::ScheduleRun { request, result: Ok(outcome) }));
    }

    /// Applies occurrences. One that is not its schedule's next is ignored.
    pub(super) fn apply_occurrences(&mut self, all: &[Occurrence], out: &mut Outcomes) {
        for (ordinal, occurrence) in (0u32..).zip(all) {
            let number = occurrence.schedule;
            let Some(entry) = self.schedules.table.get(number) else { continue };
            if entry.next.is_none_or(|next| next.due_at != occurrence.due_at) {
                continue;
            }
            self.schedules.set_next(number, occurrence.next);
            let is_blocked = self.is_overlapping(number);
            let entry = &mut self.schedules.table[number];
            entry.missed = entry.missed.saturating_add(occurrence.missed);
            let Some(run) = occurrence.run else { continue };
            if is_blocked {
                entry.overlapped += 1;
                continue;
            }
            match self.enqueue_occurrence(number, (run.due_at, run.job), ordinal, out) {
                Ok(()) => self.schedules.table[number].last_at = Some(run.due_at),
                Err(refusal) => {
                    let entry = &mut self.schedules.table[number];
                    entry.refused += 1;
                    entry.last_refusal = Some(refusal);
                }
            }
        }
    }

    /// Whether an occurrence now would be one too many beside the jobs of those before.
    fn is_overlapping(&self, number: u32) -> bool {
        let entry = &self.schedules.table[number];
        let is_open = |job: &Option<JobId>| {
            let slot = job.and_then(|job| self.rows.find(&job));
            slot.is_some_and(|slot| self.rows[slot].substate.is_open())
        };
        match entry.schedule.overlap {
            Overlap::Allow => false,
            Overlap::Skip => entry.recent.iter().any(is_open),
            Overlap::Buffer => entry.recent.iter().all(is_open),
        }
    }

    /// Enqueues the job of an occurrence, the one with that ordinal of the command, as if it had
    /// been enqueued when it was due.
    fn enqueue_occurrence(
        &mut self,
        number: u32,
        (due_at, job): (u64, JobId),
        ordinal: u32,
        out: &mut Outcomes,
    ) -> Result<(), Refusal> {
        let entry = &self.schedules.table[number];
        let (template, path) = (entry.template, entry.schedule.path.clone());
        let (head, length) = self.schedules.templates.entry_of(template, job);
        let record = RecordRef { index: self.index, at: OCCURRENCE_AT | ordinal, length };
        let mut destination = self.destination(&path);
        match self.enqueue_job(&path, head, record, &mut destination, out) {
            EnqueueOutcome::Created => {}
            EnqueueOutcome::Refused(refusal) => return Err(refusal),
            EnqueueOutcome::Existing | EnqueueOutcome::ExistingKey(_) => {
                return Err(Refusal::NotUnique);
            }
        }
        // A new job is never removed in the command that creates it, unless it has expired.
        if let Some(slot) = self.rows.find(&job) {
            self.rows[slot].enqueued_wall_ms = due_at;
            self.side_mut(slot).template = Some(template);
            self.schedules.templates.add_use(template);
        }
        let entry = &mut self.schedules.table[number];
        entry.recent = [Some(job), entry.recent[0]];
        entry.made += 1;
        Ok(())
    }

    /// The number of the template of the schedule that made a job.
    #[inline]
    pub(super) fn template_number(&self, row: &Row) -> Option<u32> {
        self.side(row)?.template
    }

    /// The location of a job's entry in the log.
    pub(super) fn location_of(&self, slot: u32) -> RecordRef {
        let row = &self.rows[slot];
        self.template_of(slot).map_or(row.entry, |template| template.entry)
    }

    /// The template of the schedule that made a job.
    #[inline]
    pub(super) fn template_of(&self, slot: u32) -> Option<&Template> {
        let number = self.template_number(&self.rows[slot])?;
        Some(self.schedules.templates.get(number))
    }

    /// Due times, names and uses equal a full scan. For the invariant.
    pub(super) fn check_schedules(&self) -> Result<(), String> {
        let s = &self.schedules;
        let due: BTreeSet<(u64, u32)> = s
            .table
            .iter()
            .filter_map(|(number, entry)| Some((entry.next?.fires_at, number)))
            .collect();
        if due != s.due {
            return Err("the due times of schedules differ".to_owned());
        }
        let names: BTreeMap<String, u32> =
            s.table.iter().map(|(number, entry)| (entry.schedule.name.clone(), number)).collect();
        if names != s.names || names.len() != s.table.len() {
            return Err("the names of schedules differ".to_owned());
        }
        if s.table.iter().any(|(_, entry)| entry.paused && entry.next.is_some()) {
            return Err("a paused schedule comes due".to_owned());
        }
        let of_schedules = s.table.iter().map(|(_, entry)| entry.template);
        let of_jobs = self.sides.iter().filter_map(|(_, side)| side.template);
        s.templates.check(of_schedules.chain(of_jobs))
    }
}

/// The head of a template's entry, checked.
pub(super) fn head_of(entry: &Bytes) -> Result<EntryHead, Refusal> {
    let mut r = longshore_protocol::Reader::new(entry.clone());
    EntryHead::read(&mut r, entry.len()).map_err(|error| super::enqueue::refusal_of(&error))
}
