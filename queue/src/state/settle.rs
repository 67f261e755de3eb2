//! Workers settle leases.
//!
//! Batches of settles are numbered, and a repeated one receives its first answer. Unlike batches of
//! jobs they may come with a gap, or out of order: every settle is fenced by its token, so none can
//! count twice or too late.

use bytes::Bytes;
use longshore_protocol::messages::work::{SettleBatch, SettleItem, Settled, Span, Verdict};
use longshore_protocol::{
    AttemptOutcome, DeathReason, Fingerprint, JobChange, LinkId, Runs, SettleOutcome, Token,
};

use super::State;
use super::history::fingerprint_of;
use super::row::{NONE, Substate};
use super::rows::{PREFETCH, random_of};
use crate::command::Command;
use crate::outcome::{Outcomes, RecordRef, Reply};

impl State {
    /// Settles leases, each if the link's session holds its token. A batch older than the last 64
    /// receives an answer without outcomes: its answer is no longer stored.
    pub(super) fn settle(&mut self, link: LinkId, batch: &SettleBatch, out: &mut Outcomes) {
        let Some(number) = self.session_of(link) else { return };
        let session = &self.sessions.table[number];
        let sequence = batch.sequence;
        let outcomes = match session.settles.get(sequence) {
            Some(known) => known,
            None if session.is_too_old(sequence, self.rules.answers_retained) => Runs::default(),
            None => {
                let outcomes = self.settle_all(number, batch, out);
                let session = &mut self.sessions.table[number];
                session.next_settle = session.next_settle.max(sequence.saturating_add(1));
                let most = self.rules.answers_retained as usize;
                self.sessions.store_settle_answer(number, sequence, outcomes.clone(), most);
                outcomes
            }
        };
        out.replies.push((link, Reply::Settled(Settled { sequence, outcomes })));
    }

    /// The answer to a batch of settles if it ends no lease; none if it may end some.
    pub fn settle_without_effect(
        &self,
        link: LinkId,
        batch: &SettleBatch,
    ) -> Option<Runs<SettleOutcome>> {
        let session = &self.sessions.table[self.session_of(link)?];
        if let Some(known) = session.settles.get(batch.sequence) {
            return Some(known);
        }
        if session.is_too_old(batch.sequence, self.rules.answers_retained) {
            return Some(Runs::default());
        }
        let is_stale = |item: SettleItem| !self.holds(item.token, link);
        let stale = || Runs::all(SettleOutcome::StaleToken, batch.items().count());
        batch.items().all(is_stale).then(stale)
    }

    fn settle_all(
        &mut self,
        session: u32,
        batch: &SettleBatch,
        out: &mut Outcomes,
    ) -> Runs<SettleOutcome> {
        let mut outcomes = Runs::default();
        let mut items = batch.items();
        let mut next = Vec::with_capacity(PREFETCH);
        loop {
            next.extend(items.by_ref().take(PREFETCH));
            if next.is_empty() {
                return outcomes;
            }
            self.rows.fetch_tokens(next.iter().map(|item: &SettleItem| item.token));
            for item in next.drain(..) {
                outcomes.push(self.settle_one(session, item, batch.body(), out));
            }
        }
    }

    fn settle_one(
        &mut self,
        session: u32,
        SettleItem { token, verdict }: SettleItem,
        batch: &Bytes,
        out: &mut Outcomes,
    ) -> SettleOutcome {
        let slot = match self.rows.find_token(token) {
            Some(slot) if self.rows[slot].session == session => slot,
            _ => {
                self.count_stale(session, token);
                return SettleOutcome::StaleToken;
            }
        };
        if let Verdict::Complete(Some(result)) = verdict
            && u64::from(result.length) > self.rules.result_bytes
        {
            return SettleOutcome::ResultTooLarge;
        }
        out.ended.push(token);
        match verdict {
            Verdict::Complete(result) => self.complete(slot, result, out),
            Verdict::Fail(error) => self.fail(slot, self.error_at(batch, error), out),
            Verdict::Release => self.return_job(slot, JobChange::Released, out),
            Verdict::Snooze(ms) => {
                self.clear_expiry(slot);
                self.snooze(slot, ms, out);
            }
            Verdict::Throttle(ms) => {
                self.clear_expiry(slot);
                self.throttle(slot, ms, out);
            }
            Verdict::Bury(error) => {
                let error = Some(self.error_at(batch, error));
                self.consume_attempt(slot, AttemptOutcome::Buried, error);
                self.bury_job(slot, DeathReason::Buried, JobChange::Buried, out);
            }
        }
        SettleOutcome::Accepted
    }

    fn snooze(&mut self, slot: u32, ms: u64, out: &mut Outcomes) {
        if ms == 0 {
            return self.return_job(slot, JobChange::Snoozed, out);
        }
        let due_ms = self.now.mono_ms.saturating_add(ms);
        self.schedule_job(slot, Substate::Delayed, due_ms, JobChange::Snoozed, out);
    }

    /// The job's limit key rests, and the job waits with the key's others.
    fn throttle(&mut self, slot: u32, ms: u64, out: &mut Outcomes) {
        match self.limit_key_of(slot) {
            NONE => self.snooze(slot, ms, out),
            key => {
                self.rest_limit_key(key, ms);
                self.return_job(slot, JobChange::Snoozed, out);
            }
        }
    }

    fn complete(&mut self, slot: u32, result: Option<Span>, out: &mut Outcomes) {
        let row = &mut self.rows[slot];
        row.attempts = row.attempts.saturating_add(1);
        let (queue, keep_result) = (row.queue, self.profiles.options(row.profile).keep_result);
        if let Some(result) = result.filter(|_| keep_result) {
            self.side_mut(slot).result = Some(self.record_ref(result));
        }
        self.queues[queue as usize].completed += 1;
        self.end_job(slot, Substate::Completed, JobChange::Completed, out);
    }

    fn fail(&mut self, slot: u32, error: (RecordRef, Fingerprint), out: &mut Outcomes) {
        self.consume_attempt(slot, AttemptOutcome::Failed, Some(error));
        self.retry_or_bury(slot, DeathReason::AttemptsExhausted, JobChange::Failed, out);
    }

    /// An attempt has failed: retries after a wait, or buries the job after the last attempt.
    pub(super) fn retry_or_bury(
        &mut self,
        slot: u32,
        reason: DeathReason,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        let queue = self.rows[slot].queue;
        self.queues[queue as usize].failed += 1;
        let row = &self.rows[slot];
        if row.attempts >= self.max_attempts(row) {
            self.bury_job(slot, reason, change, out);
        } else {
            self.back_off(slot, change, out);
        }
    }

    /// Schedules the next attempt by the job's back-off.
    pub(super) fn back_off(&mut self, slot: u32, change: JobChange, out: &mut Outcomes) {
        let row = &self.rows[slot];
        let (id, attempts) = (row.id, row.attempts);
        match self.retry_wait_ms(row, attempts, random_of(&id, attempts)) {
            0 => self.return_job(slot, change, out),
            wait_ms => {
                let due_ms = self.now.mono_ms.saturating_add(wait_ms);
                self.schedule_job(slot, Substate::Retrying, due_ms, change, out);
            }
        }
    }

    /// The location of an error in the log, and its fingerprint.
    fn error_at(&self, batch: &Bytes, error: Span) -> (RecordRef, Fingerprint) {
        (self.record_ref(error), fingerprint_of(batch, error))
    }

    /// The location of a part of the batch in the log.
    fn record_ref(&self, span: Span) -> RecordRef {
        RecordRef { index: self.index, at: Command::BATCH_AT + span.at, length: span.length }
    }

    /// Counts a refusal at the publisher, and at the queue if the session recently held that lease.
    pub(super) fn count_stale(&mut self, session: u32, token: Token) {
        self.stale_refused += 1;
        if let Some(&queue) = self.sessions.table[session].revoked.get(&token.0) {
            self.queues[queue as usize].stale_refused += 1;
        }
    }
}
