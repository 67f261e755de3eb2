//! Jobs come in, and what people do to jobs and queues.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, DeadGroup, Filter, Pace, PauseReport, ReplaceOutcome,
    Selection,
};
use longshore_protocol::{
    AttemptOutcome, DeathReason, EnqueueOutcome, Entry, Fingerprint, Glob, JobChange, JobId,
    JobState, Path, QueueSettings, Refusal, Revoked,
};

use super::jobs::{Job, Place, Queue};
use super::naive::{Expected, HOUR_MS, Model};
use crate::command::Command;
use crate::outcome::{DeadGroupView, RecordRef, Reply};
use crate::time::Now;

impl Model {
    fn takes(&self, path: &Path) -> Result<(), Refusal> {
        let (paths, defaults) = &self.served;
        if path.is_root() {
            Err(Refusal::BadPath)
        } else if path.is_reserved() {
            Err(Refusal::Reserved)
        } else if paths.contains(path) || defaults.iter().any(|base| path.is_at_or_below(base)) {
            Ok(())
        } else {
            Err(Refusal::NotHere)
        }
    }

    /// The queue, made if it is served and not there.
    fn open_queue(&mut self, path: &Path, to: &mut Expected<'_>) -> Result<(), Refusal> {
        self.takes(path)?;
        if self.queues.iter().all(|queue| queue.path != *path) {
            if self.queues.len() >= self.limits.queues {
                return Err(Refusal::TooManyQueues);
            }
            self.queues.push(Queue::new(path.clone()));
            to.queues_made.push(path.clone());
        }
        Ok(())
    }

    pub(super) fn take_job(
        &mut self,
        bytes: Bytes,
        record: RecordRef,
        path: &Path,
        to: &mut Expected<'_>,
    ) -> EnqueueOutcome {
        let entry = Entry::read(bytes).expect("it was built");
        if let Some(known) = self.jobs.iter().find(|job| job.id == entry.id) {
            let same = (known.crc, known.payload_len) == (entry.crc, entry.payload.len());
            let conflict = EnqueueOutcome::Refused(Refusal::IdConflict);
            return if same { EnqueueOutcome::Existing } else { conflict };
        }
        let refused = self.takes(path).err();
        let paused = self.is_paused(path).then_some(Refusal::Paused);
        if let Some(refusal) = refused.or(paused) {
            return EnqueueOutcome::Refused(refusal);
        }
        let queues = self.queues.iter();
        if queues.clone().all(|queue| queue.path != *path) && queues.len() >= self.limits.queues {
            return EnqueueOutcome::Refused(Refusal::TooManyQueues);
        }
        let is_full = self.is_full(path) || self.jobs.len() as u64 >= u64::from(self.limits.jobs);
        if is_full {
            return EnqueueOutcome::Refused(Refusal::QueueFull);
        }
        if let Err(refusal) = self.open_queue(path, to) {
            return EnqueueOutcome::Refused(refusal);
        }
        self.create(entry, record, path, None, to);
        EnqueueOutcome::Created
    }

    fn is_full(&self, path: &Path) -> bool {
        let open = self.jobs.iter().filter(|job| job.path == *path && job.is_open()).count();
        open as u64 >= self.limits.jobs_per_queue
    }

    fn create(
        &mut self,
        entry: Entry,
        record: RecordRef,
        path: &Path,
        replaces: Option<JobId>,
        to: &mut Expected<'_>,
    ) {
        self.queue(path).enqueued += 1;
        let until = self.now.mono_ms + HOUR_MS;
        let is_prepared = entry.options.prepared;
        self.jobs.push(Job {
            id: entry.id,
            path: path.clone(),
            crc: entry.crc,
            payload_len: entry.payload.len(),
            expires_at: entry.options.expires_at,
            options: entry.options,
            entry: record,
            place: Place::Prepared(until),
            attempts: 0,
            deliveries: 0,
            lost: 0,
            enqueued_wall_ms: self.now.wall_ms,
            was_confirmed: false,
            replaces,
            delivered: Now::default(),
            ended: None,
            died_of: Fingerprint::default(),
            result: None,
            history: Vec::new(),
            checkpoints: Vec::new(),
            sequence: 0,
        });
        let job = self.jobs.len() - 1;
        if is_prepared {
            self.tell(job, JobChange::Created, to);
        } else {
            self.wait_for_its_time(job, JobChange::Created, to);
        }
    }

    pub(super) fn replace(
        &mut self,
        id: JobId,
        entry: &Bytes,
        to: &mut Expected<'_>,
    ) -> ReplaceOutcome {
        let record = self.record(Command::REPLACE_ENTRY_AT, 0, entry.len() as u32);
        let entry = Entry::read(entry.clone()).expect("it was built");
        let dead = self.jobs.iter().find(|job| job.id == id);
        let taken = self.jobs.iter().find(|job| job.id == entry.id);
        // Said again, also when a job has come under the old id meanwhile.
        if let Some(new) = taken
            && new.replaces == Some(id)
            && (new.crc, new.payload_len) == (entry.crc, entry.payload.len())
        {
            return ReplaceOutcome::Replaced;
        }
        // Whatever is wrong may be said, if several things are.
        let mut wrong = Vec::new();
        match dead {
            None => wrong.push(ReplaceOutcome::Unknown),
            Some(job) if job.state() != JobState::Dead => wrong.push(ReplaceOutcome::NotDead),
            Some(job) if self.is_full(&job.path) => wrong.push(ReplaceOutcome::QueueFull),
            Some(_) => {}
        }
        if taken.is_some() {
            wrong.push(ReplaceOutcome::IdConflict);
        }
        if let Some(&first) = wrong.first() {
            let said = to.seen.replies.iter().find_map(|(_, reply)| match reply {
                Reply::Replaced { outcome, .. } => Some(*outcome),
                _ => None,
            });
            return said.filter(|said| wrong.contains(said)).unwrap_or(first);
        }
        let job = self.find(id).expect("it is dead");
        let path = self.jobs[job].path.clone();
        self.tell(job, JobChange::Dropped, to);
        self.jobs.remove(job);
        self.create(entry, record, &path, Some(id), to);
        ReplaceOutcome::Replaced
    }

    // Acting on jobs.

    pub(super) fn act(
        &mut self,
        action: Action,
        selection: &Selection,
        pace: Option<Pace>,
        to: &mut Expected<'_>,
    ) -> ActionReport {
        match selection {
            Selection::Ids(ids) => {
                let mut report = ActionReport::default();
                let mut done = 0;
                for &id in ids {
                    let outcome = self.act_on_named(action, id, pace, &mut done, to);
                    match outcome {
                        ActOutcome::Done => report.done += 1,
                        ActOutcome::NotInState(_) => report.refused += 1,
                        ActOutcome::Unknown => report.unknown += 1,
                    }
                    report.outcomes.push(outcome);
                }
                report
            }
            Selection::Matching(filter) => self.act_on_matching(action, filter, pace, to),
        }
    }

    fn act_on_named(
        &mut self,
        action: Action,
        id: JobId,
        pace: Option<Pace>,
        done: &mut u64,
        to: &mut Expected<'_>,
    ) -> ActOutcome {
        let Some(number) = self.find(id) else { return ActOutcome::Unknown };
        let job = &self.jobs[number];
        if action == Action::Confirm && job.was_confirmed {
            ActOutcome::Done
        } else if applies(action, job.state()) {
            self.act_on(action, number, pace, *done, to);
            *done += 1;
            ActOutcome::Done
        } else {
            ActOutcome::NotInState(job.state())
        }
    }

    fn act_on_matching(
        &mut self,
        action: Action,
        filter: &Filter,
        pace: Option<Pace>,
        to: &mut Expected<'_>,
    ) -> ActionReport {
        let mut may = self.matching(action, filter);
        let mut must: Vec<JobId> = may.clone();
        must.retain(|&id| self.is_among_rising_times(id, filter));
        let most = self.limits.step_jobs as u64;
        let mut done = 0;
        let change = match action {
            Action::Confirm => JobChange::Confirmed,
            Action::Cancel => JobChange::Cancelled,
            Action::Revive => JobChange::Revived,
            Action::Drop => JobChange::Dropped,
        };
        // In which order is the state's own affair.
        while done < most
            && let Some(nth) = may.iter().position(|&id| to.sees(change, id))
        {
            let id = may.remove(nth);
            must.retain(|&other| other != id);
            let job = self.find(id).expect("nothing else has happened to it");
            self.act_on(action, job, pace, done, to);
            done += 1;
        }
        let more = done == most && !must.is_empty();
        assert!(more || must.is_empty(), "{action:?} left out {must:?} of {filter:?}");
        ActionReport { done, more, ..ActionReport::default() }
    }

    /// The jobs that the filter takes and that the action applies to.
    pub(super) fn matching(&self, action: Action, filter: &Filter) -> Vec<JobId> {
        let state = match (action, filter.state) {
            (Action::Drop, None) => Some(JobState::Dead),
            (_, state) => state,
        };
        let fits = |job: &&Job| {
            let ended_at = job.ended.map(|(now, _)| now.wall_ms);
            let death = match job.place {
                Place::Dead(reason) => Some((reason, job.died_of)),
                _ => None,
            };
            filter.pattern.matches(&job.path)
                && state.is_none_or(|state| job.state() == state)
                && applies(action, job.state())
                && filter.takes_end(ended_at)
                && (filter.death.is_none() || filter.death == death.map(|(reason, _)| reason))
                && (filter.fingerprint.is_none() || filter.fingerprint == death.map(|(_, of)| of))
        };
        self.jobs.iter().filter(fits).map(|job| job.id).collect()
    }

    /// Dead letters by what they died of, those with most jobs first.
    pub(super) fn dead_groups(&self, filter: &Filter) -> Vec<DeadGroupView> {
        let filter = Filter { state: Some(JobState::Dead), ..filter.clone() };
        let mut kinds: BTreeMap<(Path, DeathReason, Fingerprint), Vec<&Job>> = BTreeMap::new();
        for id in self.matching(Action::Drop, &filter) {
            let job = &self.jobs[self.find(id).expect("it matches")];
            if let Place::Dead(reason) = job.place {
                kinds.entry((job.path.clone(), reason, job.died_of)).or_default().push(job);
            }
        }
        let view = |((path, death, fingerprint), mut jobs): ((_, _, _), Vec<&Job>)| {
            jobs.sort_by_key(|job| job.ended.map(|(_, nth)| nth));
            let (first, last) = (jobs[0], jobs[jobs.len() - 1]);
            let died_at = |job: &Job| job.ended.map_or(0, |(now, _)| now.wall_ms);
            let group = DeadGroup {
                path,
                death,
                fingerprint,
                jobs: jobs.len() as u64,
                first_at: died_at(first),
                last_at: died_at(last),
                example: last.id,
                error: None,
            };
            DeadGroupView { group, error: last.last_error().filter(|_| is_explained(death)) }
        };
        let mut groups: Vec<DeadGroupView> = kinds.into_iter().map(view).collect();
        groups.sort_by_key(|view| std::cmp::Reverse(view.group.jobs));
        groups
    }

    /// Choosing by age walks from the ends of lists in order of end, and stops at the first job that does not fit: while the
    /// wall clock rises, that is exact; where it has fallen, jobs behind a fall may be left out.
    pub(super) fn is_among_rising_times(&self, id: JobId, filter: &Filter) -> bool {
        if filter.ended_from.is_none() && filter.ended_before.is_none() {
            return true;
        }
        let job = &self.jobs[self.find(id).expect("it matched")];
        let is_beside = |other: &&Job| {
            other.path == job.path
                && other.state().is_end()
                && match (job.place, other.place) {
                    (Place::Dead(a), Place::Dead(b)) => a == b && job.died_of == other.died_of,
                    (Place::Dead(_), _) | (_, Place::Dead(_)) => false,
                    _ => true,
                }
        };
        let mut ends: Vec<(u64, u64)> = (self.jobs.iter().filter(is_beside))
            .filter_map(|job| job.ended.map(|(now, nth)| (nth, now.wall_ms)))
            .collect();
        ends.sort_unstable();
        ends.windows(2).all(|pair| pair[0].1 <= pair[1].1)
    }

    /// True when the filter's choice is exact.
    pub(super) fn times_rise(&self, action: Action, filter: &Filter) -> bool {
        let everybody = Filter { ended_from: None, ended_before: None, ..filter.clone() };
        let all = self.matching(action, &everybody);
        all.into_iter().all(|id| self.is_among_rising_times(id, filter))
    }

    fn act_on(
        &mut self,
        action: Action,
        number: usize,
        pace: Option<Pace>,
        nth: u64,
        to: &mut Expected<'_>,
    ) {
        match action {
            Action::Confirm => {
                self.jobs[number].was_confirmed = true;
                self.wait_for_its_time(number, JobChange::Confirmed, to);
            }
            Action::Cancel => {
                self.take(number, Some(Revoked::Cancelled), to);
                self.use_up(number, AttemptOutcome::Cancelled, None);
                self.end(number, Place::Cancelled, JobChange::Cancelled, to);
            }
            Action::Revive => {
                let wait_ms = pace.map_or(0, |pace| {
                    let before = u128::from(pace.before) + u128::from(nth);
                    (before * 1_000 / u128::from(pace.per_second)) as u64
                });
                let job = &mut self.jobs[number];
                (job.attempts, job.deliveries, job.lost) = (0, 0, 0);
                (job.expires_at, job.ended) = (None, None);
                job.place = match wait_ms {
                    0 => Place::Ready,
                    ms => Place::Delayed(self.now.mono_ms + ms),
                };
                self.tell(number, JobChange::Revived, to);
            }
            Action::Drop => {
                self.tell(number, JobChange::Dropped, to);
                self.jobs.remove(number);
            }
        }
    }

    // Acting on queues.

    pub(super) fn configure(
        &mut self,
        path: &Path,
        changes: &QueueSettings,
        reset: bool,
        to: &mut Expected<'_>,
    ) -> Result<QueueSettings, Refusal> {
        self.open_queue(path, to)?;
        let settings = &mut self.queue(path).settings;
        let before = if reset { QueueSettings::default() } else { settings.clone() };
        *settings = QueueSettings {
            max_attempts: changes.max_attempts.or(before.max_attempts),
            lease_ms: changes.lease_ms.or(before.lease_ms),
            run_timeout_ms: changes.run_timeout_ms.or(before.run_timeout_ms),
            backoff: changes.backoff.clone().or(before.backoff),
            keep_ms: changes.keep_ms.or(before.keep_ms),
            keep_jobs: changes.keep_jobs.or(before.keep_jobs),
        };
        Ok(settings.clone())
    }

    pub(super) fn pause(&mut self, pattern: &Glob, paused: bool) -> PauseReport {
        let was_paused = self.pauses.contains(pattern);
        self.pauses.retain(|pause| pause != pattern);
        let matching: Vec<&Path> =
            self.queues.iter().map(|q| &q.path).filter(|path| pattern.matches(path)).collect();
        let holds_one = |pause: &&Glob| matching.iter().any(|path| pause.matches(path));
        let report = PauseReport {
            queues: matching.len() as u64,
            changed: was_paused != paused,
            still_paused_by: self.pauses.iter().filter(holds_one).cloned().collect(),
        };
        self.pauses.extend(paused.then(|| pattern.clone()));
        report
    }

    pub(super) fn is_paused(&self, path: &Path) -> bool {
        self.pauses.iter().any(|pause| pause.matches(path))
    }
}

/// True of deaths that a worker gave an error for.
pub(super) fn is_explained(reason: DeathReason) -> bool {
    matches!(reason, DeathReason::AttemptsExhausted | DeathReason::Buried)
}

fn applies(action: Action, state: JobState) -> bool {
    use JobState::{Cancelled, Completed, Dead, Expired, Prepared, Ready, Running, Scheduled};
    match action {
        Action::Confirm => state == Prepared,
        Action::Cancel => matches!(state, Prepared | Scheduled | Ready | Running),
        Action::Revive => state == Dead,
        Action::Drop => matches!(state, Dead | Completed | Cancelled | Expired),
    }
}
