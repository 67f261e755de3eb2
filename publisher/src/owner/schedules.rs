//! Schedules: the owner computes their times, and logs them.

use std::time::{Duration, Instant};

use longshore_protocol::messages::work::{
    Answer, NextOccurrence, Occurrences, ScheduleInfo, ScheduleOutcome,
};
use longshore_protocol::{JobId, LinkId, Missed, Overlap, Refusal, Schedule};
use longshore_queue::{Command, DueSchedule, Now, Occurrence, Poisoned, RunOfOccurrence};

use super::Owner;
use crate::schedules::plan::Plan;
use crate::schedules::times::{InvalidTiming, Times};

/// Most occurrences in one command.
const OCCURRENCES_MAX: usize = 1_000;
/// After this time of planning, others have their turn.
const PLANNING_MAX: Duration = Duration::from_millis(2);
/// How often to check whether there is room for jobs again, in milliseconds.
const ROOM_CHECK_MS: u64 = 1_000;

impl Owner {
    /// Ends leases, runs timers, and applies the occurrences that have come due; returns when to do
    /// so again, in milliseconds of the publisher's monotonic time.
    pub(super) fn advance(&mut self, now: Now) -> Result<Option<u64>, Poisoned> {
        let occurrence = self.run_schedules(now)?;
        let next = self.store.advance(now)?;
        Ok([occurrence, next].into_iter().flatten().min())
    }

    /// Applies the occurrences that have come due; returns when the next one does.
    fn run_schedules(&mut self, now: Now) -> Result<Option<u64>, Poisoned> {
        let state = self.store.state();
        let Some(first) = state.due_schedules().next() else { return Ok(None) };
        let wait_ms = first.next.fires_at.saturating_sub(now.wall_ms);
        if wait_ms > 0 {
            return Ok(Some(now.mono_ms.saturating_add(wait_ms)));
        }
        if !self.store.takes_occurrences() {
            return Ok(Some(now.mono_ms.saturating_add(ROOM_CHECK_MS)));
        }
        let began = Instant::now();
        let mut occurrences = Vec::new();
        for due in state.due_schedules() {
            if due.next.fires_at > now.wall_ms
                || occurrences.len() >= OCCURRENCES_MAX
                || !occurrences.is_empty() && began.elapsed() > PLANNING_MAX
            {
                break;
            }
            let log = &mut self.operator_log;
            occurrences.push(occurrence(&due, now, |why| {
                log.schedule_waits(&due.schedule.name, why);
            }));
        }
        self.store.submit(now, Command::Occur { occurrences })?;
        let next = self.store.state().due_schedules().next();
        let wait_ms = next.map(|next| next.next.fires_at.saturating_sub(now.wall_ms));
        Ok(wait_ms.map(|wait_ms| now.mono_ms.saturating_add(wait_ms)))
    }

    /// The command that adds or changes a schedule, or the answer if there is none.
    pub(super) fn put_schedule(
        &mut self,
        now: Now,
        (link, request): (LinkId, u64),
        schedule: Schedule,
        entry: bytes::Bytes,
    ) -> Result<(), Poisoned> {
        // What came due before belongs to the schedule as it was.
        self.run_schedules(now)?;
        let known = self.store.state().schedule(&schedule.name);
        let checked = self.check_schedule(link, &schedule, known.as_ref(), now);
        let next = match checked {
            Ok(next) => next,
            Err(outcome) => {
                // Another version may be on its way to the disk.
                self.answer_when_durable(now, (link, request), Answer::ScheduleSet(outcome));
                return Ok(());
            }
        };
        let names = self.names.clone();
        names.make_queues(|is_value| {
            if is_value(&schedule.path) {
                let outcome = ScheduleOutcome::Refused(Refusal::IsValue);
                self.answer(link, request, Ok(Answer::ScheduleSet(outcome)));
                return Ok(Vec::new());
            }
            let schedule = Box::new(schedule);
            let command = Command::PutSchedule { link, request, next, entry, schedule };
            self.submit_and_list_new_queues(now, command)
        })
    }

    /// The next occurrence of a schedule, or the answer if it cannot be added or changed. One that
    /// is known and over has none: a service puts its schedules at each start.
    fn check_schedule(
        &mut self,
        link: LinkId,
        schedule: &Schedule,
        known: Option<&ScheduleInfo>,
        now: Now,
    ) -> Result<Option<NextOccurrence>, ScheduleOutcome> {
        if self.homes.other_home(&schedule.path).is_some() {
            return Err(ScheduleOutcome::Refused(Refusal::NotHome));
        }
        // An older deploy learns of the newer one, whatever has become of its own times.
        let version = known.and_then(|known| known.schedule.version);
        if let Some(version) = version.filter(|&known| schedule.version.is_some_and(|v| v < known))
        {
            return Err(ScheduleOutcome::Older(version));
        }
        check_missed(schedule).map_err(|why| ScheduleOutcome::Invalid(why.to_owned()))?;
        let created_at = known.map_or(now.wall_ms, |known| known.created_at);
        let may_be_over = known.is_some_and(|known| known.schedule.has_timing_of(schedule));
        let next = Times::of(schedule, created_at).and_then(|times| {
            let next = times.next_after(after_last(known, now));
            if next.is_none() && !may_be_over { Err(InvalidTiming::Never) } else { Ok(next) }
        });
        let next = next.map_err(|why| ScheduleOutcome::Invalid(why.to_string()))?;
        let is_new = !self.store.state().has_queue(&schedule.path);
        if is_new && self.refuse_queue_over_quota(link, &schedule.path) {
            return Err(ScheduleOutcome::Refused(Refusal::OverQuota));
        }
        Ok(next)
    }

    /// Pauses or resumes a schedule. It stays paused while its times cannot be read.
    pub(super) fn pause_schedule(
        &mut self,
        now: Now,
        (link, request): (LinkId, u64),
        name: String,
        paused: bool,
    ) -> Result<(), Poisoned> {
        self.run_schedules(now)?;
        let known = self.store.state().schedule(&name).filter(|known| known.paused && !paused);
        let next = match known.as_ref().map(|k| Times::of(&k.schedule, k.created_at)).transpose() {
            Ok(times) => times.and_then(|times| times.next_after(after_last(known.as_ref(), now))),
            Err(why) => {
                let outcome = ScheduleOutcome::Invalid(why.to_string());
                self.answer(link, request, Ok(Answer::ScheduleSet(outcome)));
                return Ok(());
            }
        };
        let command = Command::PauseSchedule { link, request, name, paused, next };
        self.store.submit(now, command).map(drop)
    }
}

/// What a schedule may do about missed occurrences.
fn check_missed(schedule: &Schedule) -> Result<(), &'static str> {
    match schedule.missed == Missed::All && schedule.overlap != Overlap::Allow {
        true => {
            Err("all missed occurrences get jobs only if these may overlap: allow it, or catch \
                     up with the latest one")
        }
        false => Ok(()),
    }
}

/// From when on a schedule has occurrences: not before its last one, though the clock may have been
/// set back.
fn after_last(known: Option<&ScheduleInfo>, now: Now) -> u64 {
    let last_at = known.and_then(|known| known.last_at);
    now.wall_ms.max(last_at.unwrap_or(0))
}

/// What becomes of an occurrence that has come due; `log` gets why its times cannot be read, if so.
fn occurrence(due: &DueSchedule<'_>, now: Now, log: impl FnOnce(&InvalidTiming)) -> Occurrence {
    let DueSchedule { number, schedule, created_at, next: NextOccurrence { due_at, .. } } = *due;
    let plan = match Times::of(schedule, created_at) {
        Ok(times) => Plan::of(&times, schedule.missed, due_at, now.wall_ms),
        Err(why) => {
            log(&why);
            Plan::try_again(due_at, now.wall_ms)
        }
    };
    let job = |due_at| RunOfOccurrence { due_at, job: JobId::new_v7(due_at, rand::random()) };
    let (run, Plan { missed, next, .. }) = (plan.run.map(job), plan);
    Occurrence { schedule: number, due_at, run, missed, next }
}

impl Owner {
    /// The next times of a schedule. Without `created_at` and `after`, those that it has once it
    /// was put: none if one with the same times is over.
    pub(super) fn preview(
        &self,
        schedule: &Schedule,
        (created_at, after): (Option<u64>, Option<u64>),
        count: u32,
        now: Now,
    ) -> Occurrences {
        if let Err(why) = check_missed(schedule) {
            return Occurrences::Invalid(why.to_owned());
        }
        let known = self.store.state().schedule(&schedule.name);
        let known = known.as_ref();
        let after = after.unwrap_or_else(|| after_last(known, now));
        let created_at = created_at.or(known.map(|known| known.created_at));
        let may_be_over = known.is_some_and(|known| known.schedule.has_timing_of(schedule));
        let times = match Times::of(schedule, created_at.unwrap_or(after)) {
            Ok(times) => times,
            Err(why) => return Occurrences::Invalid(why.to_string()),
        };
        let next = std::iter::successors(times.after(after), |&at| times.after(at));
        match next.take(count as usize).collect::<Vec<u64>>() {
            none if none.is_empty() && !may_be_over => {
                Occurrences::Invalid(InvalidTiming::Never.to_string())
            }
            next => Occurrences::Times(next),
        }
    }
}
