//! What clients know from the publisher's responses: none of it may ever turn out false. It knows
//! only what responses promise, nothing of how the state works.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use longshore_protocol::messages::work::{ActOutcome, Action, Filter, JobsQuery};
use longshore_protocol::{
    DeathReason, EnqueueOutcome, Entry, Glob, JobId, JobState, NewJob, Path, QueueSettings,
    Refusal, Token,
};

use super::reference::Reference;
use super::session::Settle;
use crate::log::{LogReadError, LogReader};
use crate::{Assignment, JobView, Now, RecordRef, State};

/// What clients know.
#[derive(Clone, Default)]
pub(super) struct ClientModel {
    /// Clients know of commands up to this index.
    pub(super) index: u64,
    /// The highest delivered token.
    token: Option<Token>,
    jobs: BTreeMap<JobId, KnownJob>,
    /// Dead jobs, and their replacements.
    replaced: Vec<(JobId, JobId)>,
    /// Queues with reduced retention.
    short_retention: BTreeSet<Path>,
    /// By the pattern's text.
    pauses: BTreeMap<String, Setting<bool>>,
    settings: BTreeMap<Path, Setting<QueueSettings>>,
    /// The job that has each idempotency key that outlasts the run.
    keys: BTreeMap<(Path, String), JobId>,
    /// The state that a power cut cannot revoke where it may lose the end: the model at the log's
    /// last sync, with all requests since.
    synced: Option<Box<ClientModel>>,
}

/// The beginning of idempotency keys that outlast the run.
pub(super) const LONG_KEY: &str = "long ";

/// A setting: the last acknowledged value, and the number of unanswered changes.
#[derive(Clone, Default)]
struct Setting<T> {
    value: T,
    unanswered: u32,
}

#[derive(Clone)]
struct KnownJob {
    path: Path,
    payload: Bytes,
    /// Its idempotency key, if that outlasts the run.
    long_key: Option<String>,
    /// It stays readable after its end.
    is_retained: bool,
    /// While it waits, a later one with its unique key may take its place.
    is_unique: bool,
    /// It may expire, or end with jobs that it waits for or is a member of.
    may_expire: bool,
    is_batch: bool,
    /// It is a batch, or a member of one: whatever revives others may revive it.
    is_of_batch: bool,
    /// It was enqueued prepared, and no client has requested its run.
    is_unconfirmed: bool,
    /// Its confirmation was acknowledged.
    is_confirmed: bool,
    /// It may have been created and deleted before its creation was acknowledged.
    may_have_been_deleted: bool,
    known: KnownState,
    /// The lease whose settle ended it. No second lease may end it, unless a client has requested a
    /// revival.
    ended_by: Option<Token>,
    may_be_revived: bool,
    /// Unanswered requests, and how many of each.
    unanswered: BTreeMap<RequestKind, u32>,
}

/// States of a prepared job whose run nobody has requested.
const WITHOUT_A_RUN: [JobState; 3] = [JobState::Prepared, JobState::Dead, JobState::Cancelled];

/// The last certain state of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KnownState {
    /// Unknown: it was enqueued, and no answer came.
    Unknown,
    /// It exists.
    Present,
    /// It ended in that state.
    Ended(JobState),
    /// It was deleted.
    Deleted,
}

/// Requests that may change a job before they are answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RequestKind {
    End,
    Drop,
    Revive,
    Confirm,
    CloseBatch,
}

impl RequestKind {
    fn of(action: Action) -> RequestKind {
        match action {
            Action::Drop => RequestKind::Drop,
            Action::Revive => RequestKind::Revive,
            Action::Confirm => RequestKind::Confirm,
            Action::CloseBatch => RequestKind::CloseBatch,
            Action::Cancel => RequestKind::End,
        }
    }
}

impl ClientModel {
    /// Everything known so far is synced.
    pub(super) fn note_synced(&mut self) {
        self.synced = None;
        self.synced = Some(Box::new(self.clone()));
    }

    /// A power cut lost the end: only the state of the last sync is certain. Tokens still never
    /// repeat.
    pub(super) fn roll_back_to_sync(&mut self) {
        if let Some(synced) = self.synced.take() {
            *self = ClientModel { token: self.token, ..*synced };
        }
    }

    /// A loss was accepted: nothing is certain except that tokens never repeat.
    pub(super) fn accept_loss(&mut self) {
        self.index = 0;
        self.synced = None;
        self.keys.clear();
        for job in self.jobs.values_mut() {
            (job.known, job.ended_by, job.is_confirmed) = (KnownState::Unknown, None, false);
            job.unanswered.clear();
        }
        self.pauses.values_mut().for_each(|setting| setting.unanswered = 1);
        self.settings.values_mut().for_each(|setting| setting.unanswered = 1);
    }

    /// A job is enqueued.
    pub(super) fn submit(&mut self, job: &NewJob) {
        if let Some(synced) = &mut self.synced {
            synced.submit(job);
        }
        let keys = job.keys.as_deref();
        let is_of_batch = keys.is_some_and(|keys| keys.batch.is_some() || keys.member_of.is_some());
        let waits = keys.is_some_and(|keys| !keys.after.is_empty());
        let known = KnownJob {
            path: job.path.clone(),
            payload: job.payload.clone(),
            long_key: (job.keys.as_ref())
                .and_then(|keys| keys.idempotency.as_ref())
                .map(|it| it.key.clone())
                .filter(|key| key.starts_with(LONG_KEY)),
            is_retained: job.options.keep_ms != Some(0),
            is_unique: job.keys.as_ref().is_some_and(|keys| keys.unique.is_some()),
            may_expire: job.options.expires_at.is_some() || waits || is_of_batch,
            is_batch: keys.is_some_and(|keys| keys.batch.is_some()),
            is_of_batch,
            is_unconfirmed: job.options.prepared,
            is_confirmed: false,
            may_have_been_deleted: false,
            known: KnownState::Unknown,
            ended_by: None,
            may_be_revived: is_of_batch,
            unanswered: BTreeMap::new(),
        };
        self.jobs.insert(job.id, known);
    }

    pub(super) fn enqueued(&mut self, id: JobId, outcome: EnqueueOutcome) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let Some(key) = &job.long_key {
            let holder = match outcome {
                EnqueueOutcome::Created => Some(id),
                EnqueueOutcome::ExistingKey(holder) => Some(holder),
                // It exists by its id, or had no room.
                _ => None,
            };
            if let Some(holder) = holder {
                let known = *self.keys.entry((job.path.clone(), key.clone())).or_insert(holder);
                assert_eq!(holder, known, "the key {key} of {} has two jobs", job.path);
            }
        }
        assert_ne!(outcome, EnqueueOutcome::Refused(Refusal::KeyConflict), "{id:?}");
        let accepted = matches!(outcome, EnqueueOutcome::Created | EnqueueOutcome::Existing);
        // A repeated answer tells nothing about later changes.
        if job.known == KnownState::Unknown && !(accepted && job.may_have_been_deleted) {
            job.known = if accepted { KnownState::Present } else { KnownState::Deleted };
        }
    }

    /// A job was delivered; returns its id.
    pub(super) fn delivered(&mut self, assignment: &Assignment, entry: Bytes) -> JobId {
        assert!(
            self.token.is_none_or(|before| assignment.token > before),
            "token {:?} after {:?}",
            assignment.token,
            self.token
        );
        self.token = Some(assignment.token);
        let entry = Entry::read(entry).expect("what was enqueued");
        let job = self.jobs.get(&entry.id).expect("a job that a client enqueued");
        assert!(entry.is_intact() && entry.payload == job.payload, "another payload");
        assert!(!job.is_unconfirmed, "{:?} was prepared, and nobody has asked for it", entry.id);
        let has_ended = matches!(job.known, KnownState::Ended(_) | KnownState::Deleted);
        let may_be_back = job.is_of_batch || job.has_unanswered(RequestKind::Revive);
        assert!(!has_ended || may_be_back, "{:?} was delivered: {:?}", entry.id, job.known);
        entry.id
    }

    pub(super) fn request(&mut self, id: JobId, what: RequestKind) {
        if let Some(synced) = &mut self.synced {
            synced.request(id, what);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            *job.unanswered.entry(what).or_default() += 1;
            job.may_be_revived |= what == RequestKind::Revive;
            job.is_unconfirmed &= !matches!(what, RequestKind::Confirm | RequestKind::Revive);
        }
    }

    pub(super) fn request_action(&mut self, id: JobId, action: Action) {
        self.request(id, RequestKind::of(action));
    }

    /// An action was requested for every job of that queue.
    pub(super) fn request_action_in(&mut self, path: &Path, action: Action) {
        let within = self.jobs.iter().filter(|(_, job)| job.path == *path);
        let within: Vec<JobId> = within.map(|(&id, _)| id).collect();
        within.into_iter().for_each(|id| self.request_action(id, action));
    }

    /// A job was requested to replace a dead one.
    pub(super) fn request_replace(&mut self, dead: JobId, job: &NewJob) {
        self.submit(job);
        let is_unique = self.jobs.get(&dead).is_some_and(|dead| dead.is_unique);
        for model in [&mut self.jobs].into_iter().chain(self.synced.as_mut().map(|s| &mut s.jobs)) {
            model.entry(job.id).and_modify(|new| new.is_unique = is_unique);
        }
        self.request(dead, RequestKind::Drop);
        self.replaced.push((dead, job.id));
        if let Some(synced) = &mut self.synced {
            synced.replaced.push((dead, job.id));
        }
    }

    pub(super) fn replaced(&mut self, dead: JobId, new: JobId, done: bool) {
        if let Some(job) = self.jobs.get_mut(&dead) {
            job.answered(RequestKind::Drop);
            job.known = if done { KnownState::Deleted } else { job.known };
        }
        if let Some(job) = self.jobs.get_mut(&new)
            && done
            && job.known == KnownState::Unknown
        {
            job.known = KnownState::Present;
        }
    }

    pub(super) fn request_pause(&mut self, pattern: &Glob) {
        if let Some(synced) = &mut self.synced {
            synced.request_pause(pattern);
        }
        self.pauses.entry(pattern.as_str().to_owned()).or_default().unanswered += 1;
    }

    pub(super) fn paused(&mut self, pattern: &Glob, paused: bool) {
        self.pauses.entry(pattern.as_str().to_owned()).or_default().answered(paused);
    }

    pub(super) fn request_configure(&mut self, path: &Path, changes: &QueueSettings) {
        if let Some(synced) = &mut self.synced {
            synced.request_configure(path, changes);
        }
        self.settings.entry(path.clone()).or_default().unanswered += 1;
        if changes.keep_ms.is_some() || changes.keep_jobs.is_some() {
            self.short_retention.insert(path.clone());
        }
    }

    pub(super) fn configured(&mut self, path: Path, settings: QueueSettings) {
        self.settings.entry(path).or_default().answered(settings);
    }

    /// A query showed a job in that state.
    pub(super) fn shown(&mut self, id: JobId, state: Option<JobState>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.known = match (state, job.known) {
            (None, KnownState::Unknown) => KnownState::Unknown,
            (None, _) => KnownState::Deleted,
            (Some(end), _) if end.is_end() => KnownState::Ended(end),
            (Some(_), _) => KnownState::Present,
        };
    }

    /// A settle was answered. The answer to a `resent` one may be old: it tells nothing about later
    /// changes.
    pub(super) fn settled(&mut self, settle: &Settle, counts: bool, resent: bool) {
        let Some(job) = self.jobs.get_mut(&settle.job) else { return };
        let end = settle.end.filter(|_| counts);
        if end.is_some() {
            let by_another = job.ended_by.is_some_and(|before| before != settle.token);
            assert!(!by_another || job.may_be_revived, "{:?} has ended twice", settle.job);
            job.ended_by = Some(settle.token);
        }
        if !resent {
            job.answered(RequestKind::End);
            job.known = end.map_or(job.known, KnownState::Ended);
        }
    }

    pub(super) fn acted(&mut self, id: JobId, action: Action, outcome: ActOutcome) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.answered(RequestKind::of(action));
        if outcome == ActOutcome::Done {
            job.known = match (action, job.known) {
                (Action::Drop, _) => KnownState::Deleted,
                (Action::Cancel, _) => KnownState::Ended(JobState::Cancelled),
                (Action::Revive, _) | (Action::Confirm, KnownState::Unknown) => KnownState::Present,
                // It may have been confirmed before.
                (Action::Confirm, known) => known,
                (Action::CloseBatch, known) => known,
            };
            job.is_confirmed |= action == Action::Confirm;
        }
    }

    /// All enqueued jobs.
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    /// Jobs that the action may apply to, as far as is known.
    pub(super) fn jobs_for(&self, action: Action) -> Vec<JobId> {
        let fits = |job: &KnownJob| match action {
            Action::Confirm => job.is_unconfirmed,
            Action::Cancel => matches!(job.known, KnownState::Present),
            Action::Revive => matches!(job.known, KnownState::Ended(JobState::Dead)),
            Action::Drop => matches!(job.known, KnownState::Ended(_)),
            Action::CloseBatch => job.is_batch && job.known == KnownState::Present,
        };
        self.jobs.iter().filter(|(_, job)| fits(job)).map(|(&id, _)| id).collect()
    }

    /// The latest jobs of all, or batches.
    pub(super) fn latest(&self, are_batches: bool, most: usize) -> Vec<JobId> {
        let fits = |job: &KnownJob| job.is_batch || !are_batches;
        let fitting = self.jobs.iter().rev().filter(|(_, job)| fits(job));
        fitting.map(|(&id, _)| id).take(most).collect()
    }

    /// Whether the job's creation was acknowledged, and nothing else since.
    pub(super) fn is_present(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.known == KnownState::Present)
    }

    /// The queue of a job.
    pub(super) fn path(&self, id: JobId) -> Option<&Path> {
        self.jobs.get(&id).map(|job| &job.path)
    }

    /// Compares the model with a recovered state, whose content becomes certain. Returns the number
    /// of damaged parts.
    pub(super) fn check(
        &mut self,
        state: &State,
        now: Now,
        reader: &LogReader,
        reference: &Reference,
    ) -> Result<u64, LogReadError> {
        state.invariant().expect("the state is consistent");
        for (id, job) in &mut self.jobs {
            let found = state.job_state(id);
            let is_consistent = match job.known {
                KnownState::Unknown => true,
                KnownState::Present => {
                    found.is_some() || job.is_unique || job.may_be_deleted(&self.short_retention)
                }
                KnownState::Deleted => found.is_none(),
                KnownState::Ended(JobState::Dead) if job.is_of_batch => true,
                KnownState::Ended(end) if found == Some(end) => true,
                KnownState::Ended(JobState::Dead) if found.is_none() => {
                    let may_have_ended = job.has_unanswered(RequestKind::Revive)
                        && job.has_unanswered(RequestKind::End);
                    let is_retained = job.is_retained(&self.short_retention);
                    let may_be_replaced = job.is_unique && job.has_unanswered(RequestKind::Revive);
                    job.has_unanswered(RequestKind::Drop)
                        || may_be_replaced
                        || may_have_ended && !is_retained
                }
                KnownState::Ended(_) if found.is_none() => {
                    !job.is_retained(&self.short_retention)
                        || job.may_be_deleted(&self.short_retention)
                }
                KnownState::Ended(_) => job.has_unanswered(RequestKind::Revive),
            };
            assert!(
                is_consistent,
                "{id:?} is {found:?}, expected {:?} {:?}",
                job.known, job.unanswered
            );
            let is_unknown = found.is_none() && job.known == KnownState::Unknown;
            let may_be_gone = job.is_unique || job.may_be_deleted(&self.short_retention);
            job.may_have_been_deleted |= is_unknown && may_be_gone;
            job.known = match (found, job.known) {
                (None, KnownState::Unknown) => KnownState::Unknown,
                (None, _) => KnownState::Deleted,
                (Some(end), _) if end.is_end() => KnownState::Ended(end),
                (Some(_), _) => KnownState::Present,
            };
            let has_run = found.is_some_and(|state| !WITHOUT_A_RUN.contains(&state));
            assert!(!job.is_unconfirmed || !has_run, "{id:?} was prepared, and is {found:?}");
            let is_prepared = found == Some(JobState::Prepared);
            assert!(!job.is_confirmed || !is_prepared, "{id:?} was confirmed");
            job.unanswered.clear();
        }
        for (dead, new) in &self.replaced {
            let both = state.job_state(dead).is_some() && state.job_state(new).is_some();
            assert!(!both, "{new:?} has taken the place of {dead:?}, and both exist");
        }
        self.check_settings(state, now);
        self.check_jobs(state, now, reader, reference)
    }

    fn check_settings(&mut self, state: &State, now: Now) {
        for (pattern, setting) in &mut self.pauses {
            let value = state.pauses().any(|paused| paused.as_str() == pattern);
            assert!(
                setting.unanswered > 0 || setting.value == value,
                "{pattern:?}: paused {value}, expected {}",
                setting.value
            );
            *setting = Setting { value, unanswered: 0 };
        }
        let stats = state.all_queue_stats(&Glob::everything(), now);
        for (path, setting) in &mut self.settings {
            let stat = stats.iter().find(|stat| stat.path == *path);
            let value = stat.map(|stat| stat.settings.clone()).unwrap_or_default();
            let (is_consistent, was) = (setting.value == value, &setting.value);
            assert!(
                setting.unanswered > 0 || is_consistent,
                "{path:?}: {value:?}, expected {was:?}"
            );
            *setting = Setting { value, unanswered: 0 };
        }
    }

    /// Checks that every job was enqueued, exists once, and is complete.
    fn check_jobs(
        &self,
        state: &State,
        now: Now,
        reader: &LogReader,
        reference: &Reference,
    ) -> Result<u64, LogReadError> {
        let mut seen = BTreeSet::new();
        let mut damaged = 0;
        let filter = Filter::of("/**".parse().expect("a pattern"));
        let mut query = JobsQuery { full: true, ..JobsQuery::of(filter) };
        loop {
            let (views, next) = state.jobs(&query, None, now);
            for view in views {
                let id = view.info.id;
                assert!(seen.insert(id), "{id:?} exists twice");
                let job = self.jobs.get(&id).unwrap_or_else(|| panic!("{id:?} is a phantom"));
                assert_eq!(view.info.path, job.path);
                let unconfirmed = view.info.death == Some(DeathReason::Unconfirmed);
                assert!(!unconfirmed || !job.is_confirmed, "{id:?} was confirmed");
                for part in parts(&view) {
                    match reader.read(part) {
                        Ok(bytes) => assert!(bytes == reference.part(part), "{id:?}: {part:?}"),
                        Err(LogReadError::Damaged { .. }) => damaged += 1,
                        Err(LogReadError::Io { file, error }) => {
                            return Err(LogReadError::Io { file, error });
                        }
                        Err(why) => panic!("{id:?}: {part:?}: {why}"),
                    }
                }
                let entry = Entry::read(reference.part(view.entry)).expect("an entry");
                // A template's id is no job's.
                let has_id = entry.id == id || view.info.schedule.is_some();
                assert!(has_id && entry.payload == job.payload);
            }
            match next {
                Some(next) => query.cursor = next,
                None => break,
            }
        }
        assert_eq!(state.totals().jobs, seen.len() as u64);
        Ok(damaged)
    }
}

impl<T> Setting<T> {
    fn answered(&mut self, value: T) {
        self.value = value;
        self.unanswered = self.unanswered.saturating_sub(1);
    }
}

impl KnownJob {
    fn is_retained(&self, short_retention: &BTreeSet<Path>) -> bool {
        self.is_retained && !short_retention.contains(&self.path)
    }

    fn may_be_deleted(&self, short_retention: &BTreeSet<Path>) -> bool {
        let may_have_ended = self.may_expire || self.has_unanswered(RequestKind::End);
        self.has_unanswered(RequestKind::Drop)
            || !self.is_retained(short_retention) && may_have_ended
    }

    fn has_unanswered(&self, what: RequestKind) -> bool {
        self.unanswered.get(&what).is_some_and(|&times| times > 0)
    }

    fn answered(&mut self, what: RequestKind) {
        self.unanswered.entry(what).and_modify(|times| *times = times.saturating_sub(1));
    }
}

fn parts(view: &JobView) -> impl Iterator<Item = RecordRef> {
    let errors = view.attempt_errors.iter().copied().chain([view.error, view.result]).flatten();
    [view.entry].into_iter().chain(errors).chain(view.checkpoints.iter().copied())
}
