//! Enqueuing jobs, and actions on queues.

use bytes::Bytes;
use longshore_protocol::messages::work::{PauseReport, ReplaceOutcome};
use longshore_protocol::{
    EnqueueOutcome, Entry, FairKey, Fingerprint, Gate, Glob, JobChange, JobId, JobKeys, JobState,
    Path, QueueSettings, Refusal,
};

use super::jobs::{Job, Phase, Queue};
use super::naive::{Expected, HOUR_MS, Model};
use super::unique::Verdict;
use crate::command::Command;
use crate::outcome::{RecordRef, Reply};
use crate::time::Now;

impl Model {
    fn accepts(&self, path: &Path) -> Result<(), Refusal> {
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

    /// Ensures the queue exists, if it is served.
    pub(super) fn open_queue(&mut self, path: &Path, to: &mut Expected<'_>) -> Result<(), Refusal> {
        self.accepts(path)?;
        if self.queues.iter().all(|queue| queue.path != *path) {
            if self.queues.len() as u64 >= self.limits.queues {
                return Err(Refusal::TooManyQueues);
            }
            self.queues.push(Queue::new(path.clone()));
            to.queues_created.push(path.clone());
        }
        Ok(())
    }

    pub(super) fn apply_job(
        &mut self,
        entry: Entry,
        record: RecordRef,
        path: &Path,
        to: &mut Expected<'_>,
    ) -> EnqueueOutcome {
        if let Some(known) = self.jobs.iter().find(|job| job.id == entry.id) {
            let same = (known.crc, known.payload_len) == (entry.crc, entry.payload.len());
            let conflict = EnqueueOutcome::Refused(Refusal::IdConflict);
            return if same { EnqueueOutcome::Existing } else { conflict };
        }
        if let Some(known) = self.known_by_key(path, &entry) {
            return known;
        }
        let replaces = match self.judge_unique(path, &entry) {
            Verdict::Answer(answer) => return answer,
            Verdict::Replace(first) => Some(first),
            Verdict::Create => None,
        };
        let refused = self.accepts(path).err();
        let is_closed = self.closings.iter().any(|closing| closing.matches(path));
        let closed = is_closed.then_some(Refusal::QueueClosed);
        if let Some(refusal) = refused.or(closed) {
            return EnqueueOutcome::Refused(refusal);
        }
        let queues = self.queues.iter();
        if queues.clone().all(|queue| queue.path != *path)
            && queues.len() as u64 >= self.limits.queues
        {
            return EnqueueOutcome::Refused(Refusal::TooManyQueues);
        }
        let is_full = self.is_full(path) || self.jobs.len() as u64 >= self.limits.jobs;
        // A job that takes the place of another needs no more room.
        if is_full && replaces.is_none() {
            return EnqueueOutcome::Refused(Refusal::QueueFull);
        }
        if self.has_key_too_many(path, &entry) {
            return EnqueueOutcome::Refused(Refusal::KeysFull);
        }
        if let Err(refusal) = self.open_queue(path, to) {
            return EnqueueOutcome::Refused(refusal);
        }
        self.hold_key(path, &entry);
        if let Some(first) = replaces {
            let first = self.find(first).expect("it waits");
            self.release_unique(first);
            self.emit(first, JobChange::Replaced, to);
            let replaced = self.jobs.remove(first);
            if self.is_trial {
                self.replaced_by_batch.push(replaced);
            }
        }
        let keys = entry.keys.clone().unwrap_or_default();
        if let Some(FairKey { key, weight }) = &keys.fair {
            self.join_share(path, entry.options.priority, key, *weight, true);
        }
        self.create(entry, record, path, replaces, *keys, to);
        self.forget_shares();
        EnqueueOutcome::Created
    }

    pub(super) fn is_full(&self, path: &Path) -> bool {
        let open = self.jobs.iter().filter(|job| job.path == *path && job.is_open()).count();
        open as u64 >= self.limits.jobs_per_queue
    }

    fn create(
        &mut self,
        entry: Entry,
        record: RecordRef,
        path: &Path,
        replaces: Option<JobId>,
        keys: JobKeys,
        to: &mut Expected<'_>,
    ) {
        let JobKeys { order, unique, fair, limit, cost, .. } = keys;
        let fair = fair.map(|fair| fair.key);
        self.queue(path).enqueued += 1;
        if self.jobs.iter().all(|job| job.path != *path) {
            to.queues_filled.push(path.clone());
        }
        let until = self.now.mono_ms + HOUR_MS;
        let is_prepared = entry.options.prepared;
        self.jobs.push(Job {
            id: entry.id,
            path: path.clone(),
            crc: entry.crc,
            payload_len: entry.payload.len(),
            expires_at: entry.options.expires_at,
            options: entry.options,
            order,
            fair,
            limit,
            cost,
            has_turn: false,
            keeps_turn: false,
            unique,
            entry: record,
            phase: Phase::Prepared(until),
            attempts: 0,
            deliveries: 0,
            unstarted_deliveries: 0,
            worker_losses: 0,
            enqueued_wall_ms: self.enqueued_at(),
            made_by: self.made_by.clone(),
            ready_since: 0,
            was_scheduled: false,
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
        self.hold_unique(job);
        if is_prepared {
            self.emit(job, JobChange::Created, to);
        } else {
            self.schedule_or_ready(job, JobChange::Created, to);
        }
    }

    pub(super) fn replace(
        &mut self,
        id: JobId,
        entry: &Bytes,
        to: &mut Expected<'_>,
    ) -> ReplaceOutcome {
        let record = self.record(Command::REPLACE_ENTRY_AT, 0, entry.len() as u32);
        let Ok(entry) = Entry::read(entry.clone()) else { return ReplaceOutcome::BadOptions };
        if entry.keys.is_some() {
            return ReplaceOutcome::BadOptions;
        }
        let dead = self.jobs.iter().find(|job| job.id == id);
        let taken = self.jobs.iter().find(|job| job.id == entry.id);
        // A repeated request, even if another job has the old id meanwhile.
        if let Some(new) = taken
            && new.replaces == Some(id)
            && (new.crc, new.payload_len) == (entry.crc, entry.payload.len())
        {
            return ReplaceOutcome::Replaced;
        }
        // If several things are wrong, any of them may be reported.
        let mut wrong = Vec::new();
        match dead {
            None => wrong.push(ReplaceOutcome::Unknown),
            Some(job) if job.state() != JobState::Dead => wrong.push(ReplaceOutcome::NotDead),
            Some(job) => {
                let has_room =
                    !self.is_full(&job.path) && !self.has_no_share_for(job, entry.options.priority);
                wrong.extend((!has_room).then_some(ReplaceOutcome::QueueFull));
                wrong.extend(self.rival(job).map(|_| ReplaceOutcome::NotUnique));
            }
        }
        if taken.is_some() {
            wrong.push(ReplaceOutcome::IdConflict);
        }
        if let Some(&first) = wrong.first() {
            let reported = to.actual.replies.iter().find_map(|(_, reply)| match reply {
                Reply::Replaced { outcome, .. } => Some(*outcome),
                _ => None,
            });
            return reported.filter(|reported| wrong.contains(reported)).unwrap_or(first);
        }
        let job = self.find(id).expect("it is dead");
        self.emit(job, JobChange::Dropped, to);
        let dead = self.jobs.remove(job);
        let (path, had_turn, new) = (dead.path.clone(), dead.has_turn, entry.id);
        let weight = self.weight_of(&dead);
        if let Some(key) = &dead.fair {
            self.join_share(&path, entry.options.priority, key, weight, false);
        }
        let fair = dead.fair.map(|key| FairKey { key, weight });
        let keys = JobKeys {
            idempotency: None,
            order: dead.order,
            unique: dead.unique,
            fair,
            limit: dead.limit,
            cost: dead.cost,
            ..JobKeys::default()
        };
        let holds = self.holds.clone();
        self.create(entry, record, &path, Some(id), keys, to);
        let created = self.find(new).filter(|&new| self.jobs[new].is_open());
        if created.is_none() {
            // It ended at once, and took no key: a hold whose time is over stays until a tick.
            self.holds = holds;
        }
        if let Some(number) = created.filter(|_| had_turn) {
            let job = &mut self.jobs[number];
            (job.has_turn, job.keeps_turn) = (true, true);
            if job.phase == Phase::Blocked {
                self.get_turn(number, to);
            }
        }
        ReplaceOutcome::Replaced
    }

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
            keep_dead_ms: changes.keep_dead_ms.or(before.keep_dead_ms),
            dead_blocks_order: changes.dead_blocks_order.or(before.dead_blocks_order),
        };
        let settings = settings.clone();
        if !self.dead_blocks_order(path) {
            let dead = self.jobs.iter_mut().filter(|job| job.path == *path);
            dead.filter(|job| job.state() == JobState::Dead).for_each(|job| job.has_turn = false);
        }
        Ok(settings)
    }

    pub(super) fn stop(&mut self, gate: Gate, pattern: &Glob, stopped: bool) -> PauseReport {
        let patterns = match gate {
            Gate::Delivery => &mut self.pauses,
            Gate::Enqueue => &mut self.closings,
        };
        let was_stopped = patterns.contains(pattern);
        patterns.retain(|other| other != pattern);
        let matching: Vec<&Path> =
            self.queues.iter().map(|q| &q.path).filter(|path| pattern.matches(path)).collect();
        // A literal path counts even if it is no queue yet.
        let named = pattern.literal();
        let holds_one =
            |other: &&Glob| matching.iter().copied().chain(&named).any(|path| other.matches(path));
        let report = PauseReport {
            queues: matching.len() as u64,
            changed: was_stopped != stopped,
            still_by: patterns.iter().filter(holds_one).cloned().collect(),
        };
        patterns.extend(stopped.then(|| pattern.clone()));
        report
    }

    pub(super) fn is_paused(&self, path: &Path) -> bool {
        self.pauses.iter().any(|pause| pause.matches(path))
    }
}
