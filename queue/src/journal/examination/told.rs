//! What the publisher has told its clients: nothing of it may ever turn out to be untrue. Knows nothing of how the state
//! works, only what its answers promise.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use longshore_protocol::messages::work::{ActOutcome, Action, Filter, JobsQuery};
use longshore_protocol::{EnqueueOutcome, Entry, JobId, JobState, NewJob, Path, Token};

use super::reference::Reference;
use super::session::Settle;
use crate::log::{ReadError, Reader};
use crate::{Handed, JobView, Now, RecordRef, State};

/// What was told.
#[derive(Clone, Default)]
pub(super) struct Told {
    /// All that was told is of commands up to this one.
    pub(super) index: u64,
    /// The highest token that was handed out.
    token: Option<Token>,
    jobs: BTreeMap<JobId, Job>,
}

#[derive(Clone)]
struct Job {
    path: Path,
    payload: Bytes,
    /// It stays readable once it has ended.
    is_kept: bool,
    firm: Firm,
    /// The lease that was told to have ended it. None may be the second, unless somebody has wanted the job revived.
    ended_by: Option<Token>,
    may_be_revived: bool,
    /// What was asked for and not yet answered, and how often.
    tried: BTreeMap<Try, u32>,
}

/// The last thing that is certain of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Firm {
    /// Nothing: it was handed in, and no answer came.
    Unknown,
    /// It is there.
    There,
    /// It has ended like that.
    Ended(JobState),
    /// It is not there any more.
    Gone,
}

/// What may change a job without anybody having been told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Try {
    End,
    Drop,
    Revive,
}

impl Try {
    fn of(action: Action) -> Try {
        match action {
            Action::Drop => Try::Drop,
            Action::Revive => Try::Revive,
            _ => Try::End,
        }
    }
}

impl Told {
    /// A job is handed in.
    pub(super) fn submit(&mut self, job: &NewJob) {
        let (path, payload) = (job.path.clone(), job.payload.clone());
        let is_kept = job.options.keep_ms != Some(0);
        let (firm, tried) = (Firm::Unknown, BTreeMap::new());
        let told =
            Job { path, payload, is_kept, firm, ended_by: None, may_be_revived: false, tried };
        self.jobs.insert(job.id, told);
    }

    pub(super) fn enqueued(&mut self, id: JobId, outcome: EnqueueOutcome) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let taken = matches!(outcome, EnqueueOutcome::Created | EnqueueOutcome::Existing);
        // An answer that comes again says nothing of what became of the job since.
        if taken && job.firm == Firm::Unknown {
            job.firm = Firm::There;
        }
    }

    /// A job is delivered; gives which.
    pub(super) fn handed(&mut self, handed: &Handed, entry: Bytes) -> JobId {
        assert!(
            self.token.is_none_or(|before| handed.token > before),
            "token {:?} after {:?}",
            handed.token,
            self.token
        );
        self.token = Some(handed.token);
        let entry = Entry::read(entry).expect("what was handed in");
        let job = self.jobs.get(&entry.id).expect("a job that somebody has handed in");
        assert!(entry.is_intact() && entry.payload == job.payload, "another payload");
        let has_ended = matches!(job.firm, Firm::Ended(_) | Firm::Gone);
        let may_be_back = job.has_tried(Try::Revive);
        assert!(!has_ended || may_be_back, "{:?} was delivered: {:?}", entry.id, job.firm);
        entry.id
    }

    pub(super) fn try_(&mut self, id: JobId, what: Try) {
        if let Some(job) = self.jobs.get_mut(&id) {
            *job.tried.entry(what).or_default() += 1;
            job.may_be_revived |= what == Try::Revive;
        }
    }

    pub(super) fn try_action(&mut self, id: JobId, action: Action) {
        self.try_(id, Try::of(action));
    }

    /// A settle was answered. An answer to one that was `resent` may be an old one: it says nothing of what became of the job
    /// since.
    pub(super) fn settled(&mut self, settle: &Settle, counts: bool, resent: bool) {
        let Some(job) = self.jobs.get_mut(&settle.job) else { return };
        let end = settle.end.filter(|_| counts);
        if end.is_some() {
            let by_another = job.ended_by.is_some_and(|before| before != settle.token);
            assert!(!by_another || job.may_be_revived, "{:?} has ended twice", settle.job);
            job.ended_by = Some(settle.token);
        }
        if !resent {
            job.answered(Try::End);
            job.firm = end.map_or(job.firm, Firm::Ended);
        }
    }

    pub(super) fn acted(&mut self, id: JobId, action: Action, outcome: ActOutcome) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.answered(Try::of(action));
        if outcome == ActOutcome::Done {
            job.firm = match action {
                Action::Drop => Firm::Gone,
                Action::Cancel => Firm::Ended(JobState::Cancelled),
                _ => Firm::There,
            };
        }
    }

    /// Some of the jobs that were handed in.
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    /// Holds what was told against a state that was read back; from now on, what is in it is certain. Gives how many parts
    /// are told to be damaged.
    pub(super) fn check(
        &mut self,
        state: &State,
        now: Now,
        reader: &Reader,
        reference: &Reference,
    ) -> Result<u64, ReadError> {
        state.invariant().expect("the state holds together");
        for (id, job) in &mut self.jobs {
            let there = state.job_state(id);
            let is_as_told = match job.firm {
                Firm::Unknown => true,
                Firm::There => there.is_some() || job.may_be_gone(),
                Firm::Gone => there.is_none(),
                Firm::Ended(end) if there == Some(end) => true,
                Firm::Ended(JobState::Dead) if there.is_none() => job.has_tried(Try::Drop),
                Firm::Ended(_) if there.is_none() => !job.is_kept || job.may_be_gone(),
                Firm::Ended(_) => job.has_tried(Try::Revive),
            };
            assert!(
                is_as_told,
                "{id:?} is {there:?}, and was told: {:?} {:?}",
                job.firm, job.tried
            );
            job.firm = match (there, job.firm) {
                (None, Firm::Unknown) => Firm::Unknown,
                (None, _) => Firm::Gone,
                (Some(end), _) if end.is_end() => Firm::Ended(end),
                (Some(_), _) => Firm::There,
            };
            job.tried.clear();
        }
        self.check_jobs(state, now, reader, reference)
    }

    /// Every job that is there was handed in, once, and is all there.
    fn check_jobs(
        &self,
        state: &State,
        now: Now,
        reader: &Reader,
        reference: &Reference,
    ) -> Result<u64, ReadError> {
        let mut seen = BTreeSet::new();
        let mut damaged = 0;
        let filter = Filter::of("/**".parse().expect("a pattern"));
        let mut query = JobsQuery { filter, cursor: 0, limit: 1_000, full: true };
        loop {
            let (views, next) = state.jobs(&query, now);
            for view in views {
                let id = view.info.id;
                assert!(seen.insert(id), "{id:?} is there twice");
                let job = self.jobs.get(&id).unwrap_or_else(|| panic!("{id:?} is a phantom"));
                assert_eq!(view.info.path, job.path);
                for part in parts(&view) {
                    match reader.read(part) {
                        Ok(bytes) => assert!(bytes == reference.part(part), "{id:?}: {part:?}"),
                        Err(ReadError::Damaged { .. }) => damaged += 1,
                        Err(ReadError::Io { file, error }) => {
                            return Err(ReadError::Io { file, error });
                        }
                        Err(why) => panic!("{id:?}: {part:?}: {why}"),
                    }
                }
                let entry = Entry::read(reference.part(view.entry)).expect("an entry");
                assert!(entry.id == id && entry.payload == job.payload);
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

impl Job {
    fn may_be_gone(&self) -> bool {
        self.has_tried(Try::Drop) || !self.is_kept && self.has_tried(Try::End)
    }

    fn has_tried(&self, what: Try) -> bool {
        self.tried.get(&what).is_some_and(|&times| times > 0)
    }

    fn answered(&mut self, what: Try) {
        self.tried.entry(what).and_modify(|times| *times = times.saturating_sub(1));
    }
}

fn parts(view: &JobView) -> impl Iterator<Item = RecordRef> {
    let errors = view.attempt_errors.iter().copied().chain([view.error, view.result]).flatten();
    [view.entry].into_iter().chain(errors).chain(view.checkpoints.iter().copied())
}
