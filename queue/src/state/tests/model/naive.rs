//! The naive model: what each command does to jobs, written from the contract.
//!
//! Where the contract allows any order (such as that of expired timers), the model follows the
//! state's events, and checks each step: see [`Expected::next_actual_event`].

use longshore_protocol::messages::work::{Checkpointed, Credit, Tokens};
use longshore_protocol::{
    DeathReason, Due, EnqueueOutcome, Fingerprint, Glob, JobChange, JobError, JobId, LinkId, Path,
    Revoked, Runs, Token,
};

use super::actions::is_explained;
use super::dispatch::{Shares, Subscription};
use super::driver::STEP_JOBS;
use super::fair::{Level, Share};
use super::jobs::{Job, Phase, Queue};
use super::keys::Key;
use super::limit::{JobStart, Limit};
use super::schedules::{KnownSchedule, MadeBy};
use super::sessions::Session;
use super::unique::Hold;
use crate::Rules;
use crate::command::Command;
use crate::outcome::{Event, Outcomes, QueueId, RecordRef, Reply};
use crate::time::Now;

pub(super) const HOUR_MS: u64 = 3_600_000;

#[derive(Clone)]
pub(super) struct Model {
    pub(super) limits: Rules,
    pub(super) index: u64,
    pub(super) now: Now,
    /// The paths and defaults of the present start.
    pub(super) served: (Vec<Path>, Vec<Path>),
    pub(super) jobs: Vec<Job>,
    pub(super) queues: Vec<Queue>,
    pub(super) keys: Vec<Key>,
    pub(super) holds: Vec<Hold>,
    pub(super) sessions: Vec<Session>,
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) shares: Vec<Shares>,
    pub(super) fair_shares: Vec<Share>,
    pub(super) fair_levels: Vec<Level>,
    pub(super) pauses: Vec<Glob>,
    pub(super) job_limits: Vec<Limit>,
    pub(super) schedules: Vec<KnownSchedule>,
    /// The schedule whose job is being created.
    pub(super) made_by: Option<MadeBy>,
    /// The names of the state's schedules, by its numbers, before the command.
    pub(super) schedule_names: Vec<(u32, String)>,
    pub(super) starts: Vec<JobStart>,
    /// Limit keys that rest, until when.
    pub(super) rests: Vec<(Path, String, u64)>,
    /// The queues that the state holds back after the command.
    pub(super) held: Vec<Path>,
    /// Those for which it names a limit, and not only a credit that is missing.
    pub(super) limited: Vec<Path>,
    pub(super) closings: Vec<Glob>,
    pub(super) draining: bool,
    pub(super) delivery_budget: u64,
    pub(super) ends: u64,
    pub(super) stale_refused: u64,
    /// The lowest allowed next token.
    pub(super) next_token: u64,
    /// A copy on which an atomic batch is tried.
    pub(super) is_trial: bool,
    /// The unique keys of that batch so far.
    pub(super) uniques_of_batch: Vec<(Path, String)>,
    /// The jobs that it replaces: the room of their other keys is free only after it.
    pub(super) replaced_by_batch: Vec<Job>,
}

/// The model's outcomes of a command.
pub(super) struct Expected<'a> {
    /// The state's outcomes.
    pub(super) actual: &'a Outcomes,
    pub(super) replies: Vec<(LinkId, Reply)>,
    pub(super) ended: Vec<Token>,
    pub(super) revoked: Vec<(LinkId, Revoked, Token)>,
    pub(super) moved: Vec<(Token, LinkId)>,
    pub(super) queues_created: Vec<Path>,
    /// Queues that were empty and received a job.
    pub(super) queues_filled: Vec<Path>,
    pub(super) events: Vec<Event>,
}

impl<'a> Expected<'a> {
    pub(super) fn of(actual: &'a Outcomes) -> Expected<'a> {
        Expected {
            actual,
            replies: Vec::new(),
            ended: Vec::new(),
            revoked: Vec::new(),
            moved: Vec::new(),
            queues_created: Vec::new(),
            queues_filled: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The state's next event, if all earlier ones were expected.
    pub(super) fn next_actual_event(&self) -> Option<Event> {
        self.actual.events.get(self.events.len()).copied()
    }

    /// Whether the state's next event is that change of that job.
    pub(super) fn actual_next_is(&self, change: JobChange, id: JobId) -> bool {
        self.next_actual_event().is_some_and(|event| event.change == change && event.job == id)
    }
}

impl Model {
    pub(super) fn new(limits: Rules) -> Model {
        Model {
            limits,
            index: 0,
            now: Now::default(),
            served: Default::default(),
            jobs: Vec::new(),
            queues: Vec::new(),
            keys: Vec::new(),
            holds: Vec::new(),
            sessions: Vec::new(),
            subscriptions: Vec::new(),
            shares: Vec::new(),
            fair_shares: Vec::new(),
            fair_levels: Vec::new(),
            pauses: Vec::new(),
            job_limits: Vec::new(),
            schedules: Vec::new(),
            made_by: None,
            schedule_names: Vec::new(),
            starts: Vec::new(),
            rests: Vec::new(),
            held: Vec::new(),
            limited: Vec::new(),
            closings: Vec::new(),
            draining: false,
            delivery_budget: u64::MAX,
            ends: 0,
            stale_refused: 0,
            next_token: 1,
            is_trial: false,
            uniques_of_batch: Vec::new(),
            replaced_by_batch: Vec::new(),
        }
    }

    pub(super) fn apply<'a>(
        &mut self,
        index: u64,
        now: Now,
        command: &Command,
        actual: &'a Outcomes,
    ) -> Expected<'a> {
        (self.index, self.now) = (index, now);
        let mut to = Expected::of(actual);
        self.apply_to_jobs(command, &mut to);
        self.settle_turns(&mut to);
        self.dispatch_jobs(&mut to);
        self.notify_waiting_subscriptions(&mut to);
        self.forget_shares();
        if self.limits.step_jobs >= STEP_JOBS {
            self.check_candidates();
        }
        to
    }

    fn apply_to_jobs(&mut self, command: &Command, to: &mut Expected<'_>) {
        match command {
            Command::Start(start) => {
                let up: Vec<LinkId> = self.sessions.iter().filter_map(|s| s.link).collect();
                up.into_iter().for_each(|link| self.link_lost(link));
                self.served = (start.paths.clone(), start.defaults.clone());
                self.next_token += 1 << 32;
                self.limits = (*start.rules).clone();
            }
            Command::LinkUp { link, name, identity, work, resume, .. } => {
                self.link_up(*link, name, (identity, work.as_ref()), resume, to);
            }
            Command::Permit { link, work } => self.permit(*link, work.as_ref()),
            Command::LinkLost { link } => self.link_lost(*link),
            Command::Subscribe { link, subscription, sources, handlers } => {
                self.subscribe(*link, *subscription, (sources, *handlers), to);
            }
            Command::Unsubscribe { link, subscription } => {
                self.subscriptions.retain(|s| (s.link, s.number) != (*link, *subscription));
            }
            Command::Credit { link, subscription, count } => {
                if let Some(s) = self.subscription(*link, *subscription)
                    && *count > 0
                {
                    s.credit += count;
                    s.notified = false;
                }
            }
            Command::Recall { link, subscription, count } => {
                if let Some(s) = self.subscription(*link, *subscription) {
                    let count = s.credit.min(*count);
                    s.credit -= count;
                    let returned = Credit { subscription: *subscription, count };
                    to.replies.push((*link, Reply::Returned(returned)));
                }
            }
            Command::Enqueue { link, batch } => self.enqueue(*link, batch, to),
            Command::Settle { link, batch } => self.settle(*link, batch, to),
            Command::Expire { leases } => leases.iter().for_each(|lease| self.expire(lease, to)),
            Command::Checkpoint { link, checkpoint } => {
                if let Some(session) = self.session_of(*link) {
                    let (token, sequence) = (checkpoint.token, checkpoint.sequence);
                    let bytes = RecordRef {
                        index: self.index,
                        at: Command::CHECKPOINT_AT + checkpoint.at,
                        length: checkpoint.length,
                    };
                    let outcome = self.checkpoint(session, token, sequence, bytes);
                    let answer = Checkpointed { token, sequence, outcome };
                    to.replies.push((*link, Reply::Checkpointed(answer)));
                }
            }
            Command::Act { link, request, action, selection, pace, within } => {
                let report = self.act(*action, selection, *pace, within.as_ref(), to);
                to.replies.push((*link, Reply::Acted { request: *request, report }));
            }
            Command::Replace { link, request, id, entry } => {
                let outcome = self.replace(*id, entry, to);
                to.replies.push((*link, Reply::Replaced { request: *request, outcome }));
            }
            Command::Pause { link, request, gate, pattern, paused } => {
                let report = self.stop(*gate, pattern, *paused);
                to.replies.push((*link, Reply::Paused { request: *request, report: Ok(report) }));
            }
            Command::SetLimit { link, request, limit } => {
                let result = self.set_limit(limit);
                to.replies.push((*link, Reply::LimitSet { request: *request, result }));
            }
            Command::RemoveLimit { link, request, name } => {
                let result = Ok(self.remove_limit(name));
                to.replies.push((*link, Reply::LimitSet { request: *request, result }));
            }
            Command::PutSchedule { .. }
            | Command::RemoveSchedule { .. }
            | Command::PauseSchedule { .. }
            | Command::RunSchedule { .. } => self.apply_to_schedules(command, to),
            Command::Occur { occurrences } => {
                let names = self.schedule_names.clone();
                for (nth, occurrence) in (0..).zip(occurrences) {
                    let name = names.iter().find(|(number, _)| *number == occurrence.schedule);
                    if let Some((_, name)) = name {
                        self.occur(name, occurrence, nth, to);
                    }
                }
            }
            Command::Drain { link, request, draining } => {
                self.draining = *draining;
                to.replies.push((*link, Reply::Drained { request: *request, result: Ok(()) }));
            }
            Command::Configure { link, request, path, changes, reset } => {
                let result = self.configure(path, changes, *reset, to);
                to.replies.push((*link, Reply::Configured { request: *request, result }));
            }
            Command::Damaged { token } => {
                if let Some(job) = self.holder_of(*token) {
                    self.revoke(job, None, to);
                    self.die(job, DeathReason::PayloadDamaged, JobChange::Damaged, to);
                }
            }
            Command::Tick => self.tick(to),
            Command::Refuse { link, sequence, jobs, refusal } => {
                let refused = Runs::all(EnqueueOutcome::Refused(*refusal), *jobs as usize);
                self.answer_batch(*link, *sequence, to, |_, _| refused);
            }
            Command::DeliveryBudget { budget } => self.delivery_budget = *budget,
        }
    }

    // Transitions. Each emits an event.

    pub(super) fn emit(&self, job: usize, change: JobChange, to: &mut Expected<'_>) {
        let job = &self.jobs[job];
        let queue = self.queues.iter().position(|queue| queue.path == job.path);
        let gone =
            matches!(change, JobChange::Dropped | JobChange::Forgotten | JobChange::Replaced);
        to.events.push(Event {
            index: self.index,
            wall_ms: self.now.wall_ms,
            job: job.id,
            queue: QueueId(queue.expect("jobs have queues") as u32),
            attempt: job.attempt(),
            change,
            state: (!gone).then_some(job.state()),
            retrying: job.is_retrying(),
        });
    }

    /// Schedules a new or confirmed job, or makes it ready.
    pub(super) fn schedule_or_ready(
        &mut self,
        job: usize,
        change: JobChange,
        to: &mut Expected<'_>,
    ) {
        let phase = match self.jobs[job].options.due {
            Due::After(ms) if ms > 0 => Phase::Delayed(self.now.mono_ms + ms),
            Due::At(ms) if ms > self.now.wall_ms => Phase::Timed(ms),
            _ => self.take_turn(job, to),
        };
        let is_fresh = change == JobChange::Created && self.jobs[job].fair.is_none();
        self.jobs[job].ready_since = self.now.mono_ms;
        self.jobs[job].was_scheduled = !is_fresh || phase != Phase::Ready;
        self.jobs[job].phase = phase;
        self.emit(job, change, to);
        if self.jobs[job].has_expired(self.now) && !self.is_trial {
            self.end(job, Phase::Expired, JobChange::Expired, to);
        }
    }

    pub(super) fn make_ready(&mut self, job: usize, change: JobChange, to: &mut Expected<'_>) {
        let now = self.now;
        let late_ms = match self.jobs[job].phase {
            Phase::Delayed(due) | Phase::Retrying(due) => now.mono_ms.saturating_sub(due),
            Phase::Timed(due) => now.wall_ms.saturating_sub(due),
            _ => 0,
        };
        self.jobs[job].ready_since = now.mono_ms.saturating_sub(late_ms);
        self.jobs[job].was_scheduled = true;
        self.jobs[job].phase = self.take_turn(job, to);
        if self.jobs[job].has_expired(self.now) {
            if change != JobChange::CameDue {
                self.emit(job, change, to);
            }
            self.end(job, Phase::Expired, JobChange::Expired, to);
        } else {
            self.emit(job, change, to);
        }
    }

    pub(super) fn die(
        &mut self,
        number: usize,
        reason: DeathReason,
        change: JobChange,
        to: &mut Expected<'_>,
    ) {
        self.ends += 1;
        let job = &mut self.jobs[number];
        let error = job.history.last().and_then(|attempt| attempt.error);
        let fingerprint =
            error.filter(|_| is_explained(reason)).map(|(_, fingerprint)| fingerprint);
        job.died_of = fingerprint.unwrap_or(Fingerprint::of(&JobError::default()));
        job.phase = Phase::Dead(reason);
        job.ended = Some((self.now, self.ends));
        self.bury_unique(number);
        let job = &self.jobs[number];
        let path = job.path.clone();
        self.jobs[number].has_turn &= self.dead_blocks_order(&path);
        self.queue(&path).died += 1;
        self.emit(number, change, to);
        if self.keep_dead_ms(&path) == 0 {
            self.remove_job(number, to);
        }
    }

    /// Completed, cancelled or expired; retained for a time, or removed at once.
    pub(super) fn end(
        &mut self,
        number: usize,
        phase: Phase,
        change: JobChange,
        to: &mut Expected<'_>,
    ) {
        self.ends += 1;
        let job = &mut self.jobs[number];
        job.phase = phase;
        job.has_turn = false;
        job.ended = Some((self.now, self.ends));
        self.release_unique(number);
        let job = &self.jobs[number];
        let path = job.path.clone();
        self.emit(number, change, to);
        if self.keep_ms(&self.jobs[number]) == 0 || self.keep_jobs(&path) == 0 {
            self.remove_job(number, to);
        } else if self.stored(&path).count() as u64 > self.keep_jobs(&path) {
            // One for one: if a change of settings allows fewer, the rest is removed with the next
            // tick.
            let id = self.next_to_remove(&path, to);
            self.remove_job(self.find(id).expect("it is stored"), to);
        }
    }

    /// In a queue with too many ended jobs, the next to remove: the one that ended first; or, if
    /// all have their own retention, the one whose retention ends first.
    pub(super) fn next_to_remove(&self, path: &Path, to: &Expected<'_>) -> JobId {
        let plain = self.stored(path).filter(|job| job.options.keep_ms.is_none());
        if let Some(job) = plain.min_by_key(|job| job.ended.map(|(_, nth)| nth)) {
            return job.id;
        }
        let own = || self.stored(path).filter(|job| job.options.keep_ms.is_some());
        let first = own().map(|job| self.removal_at(job)).min().expect("there are too many");
        let mut candidates = own().filter(|job| self.removal_at(job) == first);
        let actual = candidates.clone().find(|job| to.actual_next_is(JobChange::Forgotten, job.id));
        actual.or(candidates.next()).expect("one of them is the first").id
    }

    pub(super) fn remove_job(&mut self, job: usize, to: &mut Expected<'_>) {
        self.emit(job, JobChange::Forgotten, to);
        self.jobs.remove(job);
    }

    // Queries.

    pub(super) fn find(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == id)
    }

    pub(super) fn holder_of(&self, token: Token) -> Option<usize> {
        let has_token =
            |job: &Job| matches!(job.phase, Phase::Running { token: t, .. } if t == token);
        self.jobs.iter().position(has_token)
    }

    pub(super) fn held_by(&self, token: Token, session: usize) -> Option<usize> {
        let lease = Phase::Running { token, session };
        self.jobs.iter().position(|job| job.phase == lease)
    }

    pub(super) fn tokens(&self) -> Tokens {
        let token = |job: &Job| match job.phase {
            Phase::Running { token, .. } => Some(token),
            _ => None,
        };
        Tokens(self.jobs.iter().filter_map(token).collect())
    }

    pub(super) fn queue(&mut self, path: &Path) -> &mut Queue {
        self.queues.iter_mut().find(|queue| queue.path == *path).expect("jobs have queues")
    }
}
