//! Requests of tools: queries of durable state, actions, waits for a job's end, and feeds.

use std::sync::Arc;
use std::time::Instant;

use longshore_access::{Action, Rights};
use longshore_protocol::limits::OCCURRENCES_MAX;
use longshore_protocol::messages::work::{
    Answer, FromPublisher, PublisherStatus, ReplaceOutcome, Request, RequestError, Room, RunOutcome,
};
use longshore_protocol::{JobId, LinkId, Path, Refusal};
use longshore_queue::{Command, Now, PendingAnswer, Poisoned, QueueSet, SpaceLevel, State};
use tracing::debug;

use super::Owner;
use crate::audited;
use crate::cold::{ColdAnswer, LoadedAnswer};
use crate::completion_waiters::{LookupOutcome, TooManyWaiters};
use crate::metrics::METRICS_LINK;
use crate::permissions;

impl Owner {
    pub(super) fn request(
        &mut self,
        now: Now,
        link: LinkId,
        id: u64,
        request: Request,
    ) -> Result<(), Poisoned> {
        let Some(rights) = self.router.rights(link).cloned() else { return Ok(()) };
        let within = match permissions::scope(&rights, &request) {
            Ok(within) => within,
            Err(refusal) => {
                let (action, what) = (permissions::action_of(&request), audited::name_of(&request));
                self.log_denied(link, action, what, || audited::target_of(&request));
                self.answer(link, id, Err(refusal));
                return Ok(());
            }
        };
        if self.is_of_others(&rights, &request) {
            let what = audited::name_of(&request);
            self.log_denied(link, Action::Act, what, || audited::target_of(&request));
            self.answer(link, id, Err(RequestError::Forbidden));
            return Ok(());
        }
        let is_within = |state: &State, job: &JobId| {
            within.is_none_or(|within| state.path_of(job).is_none_or(|path| within.contains(path)))
        };
        // Jobs of other queues are as if they did not exist, also for acts.
        let is_denied = match &request {
            Request::Replace { id: job, .. } => !is_within(self.store.state(), job),
            _ => false,
        };
        if is_denied {
            self.log_denied(link, Action::Act, "replace", || audited::target_of(&request));
        } else if audited::is_act(&request)
            && let Some(client) = self.router.client(link)
            && let Err(why) = self.operator_log.audit_act(client, || audited::act_of(&request))
        {
            debug!(%why, "an act is refused");
            self.answer(link, id, Err(RequestError::NotAudited));
            return Ok(());
        }
        let command = match request {
            Request::Act { action, selection, pace, dry_run: false } => {
                let within = within.cloned();
                Command::Act { link, request: id, action, selection, pace, within }
            }
            Request::Replace { .. } if is_denied => {
                self.answer(link, id, Ok(Answer::Replaced(ReplaceOutcome::Unknown)));
                return Ok(());
            }
            Request::Replace { id: job, entry } => {
                Command::Replace { link, request: id, id: job, entry }
            }
            Request::Pause { gate, pattern, paused } => {
                self.operator_log.pause(gate, &pattern, paused);
                self.pauses.submitted();
                Command::Pause { link, request: id, gate, pattern, paused }
            }
            Request::Drain { draining } => {
                self.operator_log.drain(draining);
                self.pauses.submitted();
                Command::Drain { link, request: id, draining }
            }
            Request::SetLimit { limit } => {
                self.operator_log.limit(&limit);
                Command::SetLimit { link, request: id, limit }
            }
            Request::RemoveLimit { name } => {
                self.operator_log.limit_removed(&name);
                Command::RemoveLimit { link, request: id, name }
            }
            Request::PutSchedule { schedule, entry } => {
                self.operator_log.schedule(&schedule);
                return self.put_schedule(now, (link, id), schedule, entry);
            }
            Request::RemoveSchedule { name } => {
                self.operator_log.schedule_removed(&name);
                Command::RemoveSchedule { link, request: id, name }
            }
            Request::PauseSchedule { name, paused } => {
                self.operator_log.schedule_paused(&name, paused);
                return self.pause_schedule(now, (link, id), name, paused);
            }
            Request::RunSchedule { .. } if self.store.state().is_draining() => {
                let outcome = RunOutcome::Refused(Refusal::QueueClosed);
                self.answer_when_durable(now, (link, id), Answer::ScheduleRun(outcome));
                return Ok(());
            }
            Request::RunSchedule { name } => {
                self.operator_log.schedule_run(&name);
                let job = JobId::new_v7(now.wall_ms, rand::random());
                Command::RunSchedule { link, request: id, name, job }
            }
            Request::PreviewSchedule { count, .. } if count as usize > OCCURRENCES_MAX => {
                self.answer(link, id, Err(RequestError::OverLimit));
                return Ok(());
            }
            Request::PreviewSchedule { schedule, created_at, after, count } => {
                let occurrences = self.preview(&schedule, (created_at, after), count, now);
                self.answer(link, id, Ok(Answer::Occurrences(occurrences)));
                return Ok(());
            }
            Request::Configure { path, changes, reset } => {
                self.operator_log.settings(&path, &changes, reset);
                return self.configure(now, (link, id), path, (changes, reset));
            }
            // Stats of what is durable, and a clock that no command contains: nothing to wait for.
            Request::Status => {
                let status = self.status(now);
                self.answer(link, id, Ok(Answer::Status(status)));
                return Ok(());
            }
            Request::ConfirmClock => {
                self.clock.confirm();
                self.operator_log.clock_confirmed();
                self.answer(link, id, Ok(Answer::Done));
                return Ok(());
            }
            Request::Quiet { workers, quiet, dry_run } => {
                self.request_quiet((link, id), &workers, quiet, dry_run);
                return Ok(());
            }
            Request::Await { id: job } => {
                self.start_recording();
                if self.waiters.is_empty() {
                    self.waiters_cursor = self.store.tail().cursor(None).ok();
                }
                if let Err(TooManyWaiters) = self.waiters.begin(link, id, job) {
                    self.answer(link, id, Err(RequestError::TooMany));
                }
                return Ok(());
            }
            Request::Feed { .. } if self.feeds.request(link, id) => {
                self.start_recording();
                self.store.query(now, link, id, request, within);
                return Ok(());
            }
            Request::Feed { .. } => {
                self.answer(link, id, Err(RequestError::TooMany));
                return Ok(());
            }
            request if self.router.begin_request(link) => {
                self.store.query(now, link, id, request, within);
                return Ok(());
            }
            _ => {
                self.answer(link, id, Err(RequestError::TooMany));
                return Ok(());
            }
        };
        self.store.submit(now, command)?;
        Ok(())
    }

    /// Whether a request changes a limit or a schedule of queues on which the client may not act,
    /// or tells of it.
    fn is_of_others(&self, rights: &Rights, request: &Request) -> bool {
        let schedule = match request {
            Request::PutSchedule { schedule, .. } | Request::PreviewSchedule { schedule, .. } => {
                Some(&schedule.name)
            }
            Request::RemoveSchedule { name }
            | Request::PauseSchedule { name, .. }
            | Request::RunSchedule { name } => Some(name),
            _ => None,
        };
        if let Some(name) = schedule {
            let enqueues = matches!(request, Request::RunSchedule { .. });
            let may = |path: &Path| {
                rights.may(Action::Act, path) && (!enqueues || rights.may(Action::Enqueue, path))
            };
            let known = self.store.state().schedule(name);
            return known.is_some_and(|known| !may(&known.schedule.path));
        }
        let name = match request {
            Request::SetLimit { limit } => &limit.name,
            Request::RemoveLimit { name } => name,
            _ => return false,
        };
        let known = self.store.state().limits().find(|limit| limit.name == *name);
        known.is_some_and(|limit| !rights.paths(Action::Act).covers(&limit.pattern))
    }

    /// Logs, at a bounded rate, what a client may not do.
    pub(super) fn log_denied(
        &mut self,
        link: LinkId,
        action: Action,
        what: &str,
        target: impl FnOnce() -> String,
    ) {
        let Some((identity, address)) = self.router.client(link) else { return };
        self.operator_log.denied(identity, address, action, what, target);
    }

    /// A feed, or a wait for a job's end, is cancelled.
    pub(super) fn forget(&mut self, link: LinkId, id: u64) {
        self.waiters.forget(link, id);
        self.feeds.forget(link, id);
    }

    pub(super) fn answer(&mut self, link: LinkId, id: u64, answer: Result<Answer, RequestError>) {
        self.router.send(link, &FromPublisher::Answer { id, answer });
    }

    /// Answers with what was read from the state, once that is durable.
    pub(super) fn answer_when_durable(
        &mut self,
        now: Now,
        (link, id): (LinkId, u64),
        answer: Answer,
    ) {
        match self.router.begin_request(link) {
            true => self.store.answer_when_durable(now, link, id, answer),
            false => self.answer(link, id, Err(RequestError::TooMany)),
        }
    }

    /// The state that a query reads is durable; its cold parts are still to be read.
    pub(super) fn query_result(&mut self, link: LinkId, id: u64, query_result: PendingAnswer) {
        if link == METRICS_LINK {
            return self.metrics_durable(id);
        }
        let mut for_waiter = false;
        if let PendingAnswer::Job(view) = &query_result {
            let ended = view.as_ref().is_none_or(|view| view.info.state.is_end());
            match self.waiters.looked_up(link, id, ended) {
                LookupOutcome::Drop => return,
                LookupOutcome::Answer => for_waiter = true,
                LookupOutcome::NotAwaited => {}
            }
        }
        match query_result {
            PendingAnswer::Ready(answer) => {
                self.router.end_request(link);
                self.answer(link, id, Ok(answer));
            }
            PendingAnswer::Refused(refusal) => {
                self.router.end_request(link);
                self.answer(link, id, Err(refusal));
            }
            PendingAnswer::Feed { pattern, after } => {
                let (tail, now) = (self.store.tail(), Instant::now());
                let rights = self.router.rights(link);
                let within = rights.and_then(|rights| permissions::limit(rights, Action::Inspect));
                let queues = QueueSet::new(pattern, within.cloned().map(Arc::new));
                if let Some(begun) = self.feeds.begin((link, id), queues, after, tail, now) {
                    self.answer(link, id, begun.map(Answer::Feed));
                }
            }
            query_result => {
                let rights = self.router.rights(link).cloned();
                let contents = rights.and_then(|rights| {
                    permissions::limit(&rights, Action::Payload).cloned().map(Arc::new)
                });
                self.router.answer(ColdAnswer {
                    link,
                    id,
                    pending: query_result,
                    for_waiter,
                    contents,
                })
            }
        }
    }

    /// An answer is complete.
    pub(super) fn answer_loaded(&mut self, loaded: LoadedAnswer) {
        let LoadedAnswer { link, id, answer, for_waiter, bytes } = loaded;
        self.cold.answer_loaded();
        self.router.answered(link, bytes);
        match for_waiter {
            true => self.waiters.answered(link),
            false => self.router.end_request(link),
        }
        self.answer(link, id, answer);
    }

    pub(super) fn status(&self, now: Now) -> PublisherStatus {
        let metrics = self.store.metrics(now);
        PublisherStatus {
            name: self.name.clone(),
            durability: metrics.durability,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            links: self.router.len() as u64,
            jobs: metrics.jobs,
            queues: metrics.queues,
            committed_index: metrics.committed_index,
            oldest_uncommitted_ms: metrics.oldest_uncommitted_ms,
            journal_bytes: metrics.journal_bytes,
            written_bytes: metrics.written_bytes,
            payload_bytes: metrics.payload_bytes,
            syncs: metrics.syncs,
            stale_refused: metrics.stale_refused,
            clock_held: self.clock.alarm().is_some(),
            paused: self.pauses.paused().to_vec(),
            closed: self.pauses.closed().to_vec(),
            room: room_of(metrics.level),
            ballast_bytes: metrics.ballast_bytes,
            memory_bytes: metrics.memory_bytes,
            memory_max: metrics.memory_max,
            draining: self.pauses.is_draining(),
            journal: self.journal,
        }
    }
}

fn room_of(level: SpaceLevel) -> Room {
    match level {
        SpaceLevel::Open => Room::Open,
        SpaceLevel::NoEnqueues => Room::NoEnqueues,
        SpaceLevel::NoDeliveries => Room::NoDeliveries,
    }
}
