//! Links and their sessions; batches of jobs and of settles, and their answers.

use std::collections::BTreeMap;

use longshore_protocol::limits::RESULT_BYTES_MAX;
use longshore_protocol::messages::work::{
    Attached, EnqueueBatch, Enqueued, SettleBatch, SettleItem, Settled, Span, Tokens, Verdict,
};
use longshore_protocol::{
    AttemptOutcome, BatchRefusal, DeathReason, Decode, Durability, EnqueueOutcome, Entry,
    Fingerprint, JobChange, JobError, LinkId, Path, PathSet, Reader, Refusal, Runs, SettleOutcome,
    Token,
};

use super::dispatch::permits;
use super::jobs::Phase;
use super::naive::{Expected, HOUR_MS, Model};
use crate::command::Command;
use crate::outcome::{RecordRef, Reply};

#[derive(Clone)]
pub(super) struct Session {
    pub(super) name: String,
    identity: String,
    /// The queues whose jobs its link may take; none for all.
    pub(super) work: Option<PathSet>,
    pub(super) link: Option<LinkId>,
    /// The handlers of its latest subscription.
    pub(super) handlers: usize,
    /// Since it had no free handler, one of its subscriptions may have waited for one.
    pub(super) may_be_parked: bool,
    pub(super) next_batch: u64,
    batches: Vec<(u64, Runs<EnqueueOutcome>)>,
    next_settle: u64,
    settles: BTreeMap<u64, Runs<SettleOutcome>>,
    /// Revoked leases, with the queue of each job.
    pub(super) revoked: Vec<(Token, Path)>,
    pub(super) forget_at: Option<u64>,
    pub(super) is_known: bool,
}

impl Session {
    fn new(name: &str, identity: &str) -> Session {
        Session {
            name: name.to_owned(),
            identity: identity.to_owned(),
            work: None,
            link: None,
            handlers: 0,
            may_be_parked: false,
            next_batch: 1,
            batches: Vec::new(),
            next_settle: 1,
            settles: BTreeMap::new(),
            revoked: Vec::new(),
            forget_at: None,
            is_known: true,
        }
    }
}

impl Model {
    pub(super) fn session_of(&self, link: LinkId) -> Option<usize> {
        self.sessions.iter().position(|session| session.link == Some(link))
    }

    /// The session's older link ends; listed leases move; the others were never received.
    pub(super) fn link_up(
        &mut self,
        link: LinkId,
        name: &str,
        (identity, work): (&str, Option<&PathSet>),
        resume: &Tokens,
        to: &mut Expected<'_>,
    ) {
        let number = match self.sessions.iter().position(|s| s.is_known && s.name == name) {
            Some(number) if self.sessions[number].identity != identity => {
                let reason = "the session belongs to another client".to_owned();
                to.replies.push((link, Reply::LinkRefused { reason }));
                return;
            }
            Some(number) => number,
            None => {
                self.sessions.push(Session::new(name, identity));
                self.sessions.len() - 1
            }
        };
        if let Some(older) = self.sessions[number].link {
            self.subscriptions.retain(|s| s.link != older);
        }
        self.sessions[number].link = Some(link);
        self.sessions[number].may_be_parked = false;
        self.sessions[number].forget_at = None;
        self.sessions[number].work = work.cloned();
        let may_work = |job: usize| {
            let path = &self.jobs[job].path;
            work.is_none_or(|work| permits(work, path))
        };
        let is_gone = |token: &Token| !self.held_by(*token, number).is_some_and(may_work);
        let gone = Tokens(resume.0.iter().copied().filter(is_gone).collect());
        let mut unlisted = Vec::new();
        for job in &self.jobs {
            match job.phase {
                Phase::Running { token, session } if session == number => {
                    let may_work = work.is_none_or(|work| permits(work, &job.path));
                    if may_work && resume.0.contains(&token) {
                        to.moved.push((token, link));
                    } else {
                        unlisted.push(token);
                    }
                }
                _ => {}
            }
        }
        // In the order of delivery.
        unlisted.sort_unstable();
        for token in unlisted {
            let job = self.holder_of(token).expect("it runs");
            self.revoke(job, None, to);
            self.lose_delivery(job, to);
        }
        let session = &self.sessions[number];
        let attached = Attached {
            durability: Durability::Fsync,
            next_batch: session.next_batch,
            next_settle: session.next_settle,
            gone,
            reconnect_grace_ms: 0,
        };
        to.replies.push((link, Reply::Attached(attached)));
    }

    pub(super) fn link_lost(&mut self, link: LinkId) {
        if let Some(session) = self.session_of(link) {
            self.subscriptions.retain(|s| s.link != link);
            self.sessions[session].link = None;
            self.sessions[session].forget_at = Some(self.now.mono_ms + HOUR_MS);
        }
    }

    /// Sessions without a link are removed after an hour, unless they still hold leases, which end
    /// first.
    pub(super) fn remove_sessions(&mut self) {
        for number in 0..self.sessions.len() {
            let is_leased =
                |phase| matches!(phase, Phase::Running { session, .. } if session == number);
            let is_busy = self.jobs.iter().any(|job| is_leased(job.phase));
            let session = &mut self.sessions[number];
            if session.forget_at.is_some_and(|at| at <= self.now.mono_ms) {
                session.is_known = is_busy;
                session.forget_at = is_busy.then_some(self.now.mono_ms + HOUR_MS);
            }
        }
    }

    pub(super) fn count_stale(&mut self, session: usize, token: Token) {
        self.stale_refused += 1;
        let revoked = self.sessions[session].revoked.iter().find(|(t, _)| *t == token);
        if let Some((_, path)) = revoked.cloned() {
            self.queue(&path).stale += 1;
        }
    }

    pub(super) fn enqueue(&mut self, link: LinkId, batch: &EnqueueBatch, to: &mut Expected<'_>) {
        self.answer_batch(link, batch.sequence, to, |model, to| model.apply_batch(batch, to));
    }

    /// Applies the batch, unless its number is not the next one.
    pub(super) fn answer_batch<'a>(
        &mut self,
        link: LinkId,
        sequence: u64,
        to: &mut Expected<'a>,
        apply: impl FnOnce(&mut Model, &mut Expected<'a>) -> Runs<EnqueueOutcome>,
    ) {
        let Some(session) = self.session_of(link) else { return };
        let s = &self.sessions[session];
        let stored = s.batches.iter().rev().take(64).find(|(n, _)| *n == sequence);
        let outcome = if sequence == 0 {
            Err(BatchRefusal::Malformed)
        } else if sequence < s.next_batch {
            stored.map(|(_, outcomes)| outcomes.clone()).ok_or(BatchRefusal::UnknownProducer)
        } else if sequence > s.next_batch {
            let is_new = s.next_batch == 1;
            Err(if is_new { BatchRefusal::UnknownProducer } else { BatchRefusal::SequenceGap })
        } else {
            let outcomes = apply(self, to);
            let s = &mut self.sessions[session];
            s.next_batch += 1;
            s.batches.push((sequence, outcomes.clone()));
            Ok(outcomes)
        };
        to.replies.push((link, Reply::Enqueued(Enqueued { sequence, outcome })));
    }

    fn apply_batch(&mut self, batch: &EnqueueBatch, to: &mut Expected<'_>) -> Runs<EnqueueOutcome> {
        if batch.atomic {
            // Tried first, with all of its jobs present together: none has expired yet.
            let mut trial = self.clone();
            trial.is_trial = true;
            let outcomes = trial.apply_each(batch, &mut Expected::of(to.actual));
            let is_refused =
                |outcome: &EnqueueOutcome| matches!(outcome, EnqueueOutcome::Refused(_));
            if outcomes.iter().any(is_refused) {
                let others = EnqueueOutcome::Refused(Refusal::BatchRefused);
                return outcomes
                    .into_iter()
                    .map(|outcome| if is_refused(&outcome) { outcome } else { others })
                    .collect();
            }
        }
        self.apply_each(batch, to).into_iter().collect()
    }

    fn apply_each(&mut self, batch: &EnqueueBatch, to: &mut Expected<'_>) -> Vec<EnqueueOutcome> {
        let mut outcomes = Vec::new();
        for entry in batch.entries() {
            let bytes = batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize);
            let record = self.record(Command::BATCH_AT, entry.at, entry.length);
            let path = &batch.paths[entry.path];
            let entry = Entry::read(bytes).expect("it was built");
            outcomes.push(self.apply_job(entry, record, path, to));
        }
        outcomes
    }

    pub(super) fn settle(&mut self, link: LinkId, batch: &SettleBatch, to: &mut Expected<'_>) {
        let Some(session) = self.session_of(link) else { return };
        let sequence = batch.sequence;
        let s = &self.sessions[session];
        let outcomes = if let Some(known) = s.settles.get(&sequence) {
            known.clone()
        } else if sequence == 0 || sequence + 64 < s.next_settle {
            Runs::default()
        } else {
            let outcomes: Runs<SettleOutcome> =
                batch.items().map(|item| self.settle_one(session, batch, item, to)).collect();
            let s = &mut self.sessions[session];
            s.next_settle = s.next_settle.max(sequence + 1);
            s.settles.insert(sequence, outcomes.clone());
            if s.settles.len() > 64 {
                s.settles.pop_first();
            }
            outcomes
        };
        to.replies.push((link, Reply::Settled(Settled { sequence, outcomes })));
    }

    fn settle_one(
        &mut self,
        session: usize,
        batch: &SettleBatch,
        item: SettleItem,
        to: &mut Expected<'_>,
    ) -> SettleOutcome {
        let Some(number) = self.held_by(item.token, session) else {
            self.count_stale(session, item.token);
            return SettleOutcome::StaleToken;
        };
        if let Verdict::Complete(Some(result)) = item.verdict
            && result.length as usize > RESULT_BYTES_MAX
        {
            return SettleOutcome::ResultTooLarge;
        }
        to.ended.push(item.token);
        let path = self.jobs[number].path.clone();
        let error = |model: &Model, span: Span| {
            let bytes = batch.body().slice(span.at as usize..(span.at + span.length) as usize);
            let error = JobError::decode(&mut Reader::new(bytes)).expect("it was built");
            (model.record(Command::BATCH_AT, span.at, span.length), Fingerprint::of(&error))
        };
        if matches!(item.verdict, Verdict::Snooze(_) | Verdict::Throttle(_)) {
            self.jobs[number].expires_at = None;
        }
        match item.verdict {
            Verdict::Complete(result) => {
                self.count_attempt(number, AttemptOutcome::Completed, None);
                self.queue(&path).completed += 1;
                if self.jobs[number].options.keep_result {
                    let record =
                        result.map(|span| self.record(Command::BATCH_AT, span.at, span.length));
                    self.jobs[number].result = record;
                }
                self.end(number, Phase::Completed, JobChange::Completed, to);
            }
            Verdict::Fail(span) => {
                self.count_attempt(number, AttemptOutcome::Failed, Some(error(self, span)));
                self.queue(&path).failed += 1;
                self.retry(number, DeathReason::AttemptsExhausted, JobChange::Failed, to);
            }
            Verdict::Release => self.make_ready(number, JobChange::Released, to),
            Verdict::Throttle(ms) if self.jobs[number].limit.is_some() => {
                let key = self.jobs[number].limit.clone().expect("it has one");
                self.rest(&path, &key, ms);
                self.make_ready(number, JobChange::Snoozed, to);
            }
            Verdict::Snooze(0) | Verdict::Throttle(0) => {
                self.make_ready(number, JobChange::Snoozed, to)
            }
            Verdict::Snooze(ms) | Verdict::Throttle(ms) => {
                self.jobs[number].phase = Phase::Delayed(self.now.mono_ms + ms);
                self.emit(number, JobChange::Snoozed, to);
            }
            Verdict::Bury(span) => {
                self.count_attempt(number, AttemptOutcome::Buried, Some(error(self, span)));
                self.die(number, DeathReason::Buried, JobChange::Buried, to);
            }
        }
        SettleOutcome::Accepted
    }

    /// A part of the current command.
    pub(super) fn record(&self, base: u32, at: u32, length: u32) -> RecordRef {
        RecordRef { index: self.index, at: base + at, length }
    }
}
