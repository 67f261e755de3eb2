//! The session's interface to links: incoming messages, and what a link is to send.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::limits::TOKENS_MAX;
use longshore_protocol::messages::work::{
    Attached, Credit, Deliver, NewSettle, Settled, Started, Tokens, Waiting,
};
use longshore_protocol::{PublisherId, Revoked, SettleOutcome, Token};
use longshore_transport::LinkSender;
use tokio::sync::Notify;

use super::checkpoints::{WaitEnd, end_job};
use super::{
    ExcessJobs, Intake, LeaseHolder, LeasedJob, Outgoing, QueuedJob, SlotId, State, WorkerSession,
};
use crate::CancelReason;
use crate::work::state::counts::SubscriptionCounts;
use crate::work::state::credits::SubscriptionKey;
use crate::work::state::durable::DurableEvent;
use crate::work::state::settles::SettleKind;
use crate::work::state::subscriptions::index_of;

/// Bytes of settles and checkpoints that a link takes at a time; the rest follows once these are in
/// its send queue. Renewals wait behind what is in it: at 1 MB/s for two to four seconds.
const OUTGOING_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How often to check for a received byte while jobs are suspended: heartbeats wake no task.
const SUSPENDED_CHECK: Duration = Duration::from_millis(250);
/// The assumed length of a lease whose settle was refused: the default length. Renewed at once, and
/// then three times per length.
const SETTLE_LEASE: Duration = Duration::from_secs(30);

impl WorkerSession {
    /// The tokens that a new link resumes: all leases and all unanswered settles of a publisher.
    pub(crate) fn resume(&self, slot_id: SlotId) -> Tokens {
        let mut state = self.state.lock();
        let slot = state.slot(slot_id);
        // Limits elsewhere keep both together below what one link resumes. A token that is left out
        // is released, and its job runs again: better a job that has ended than one that still runs
        // here, so leases go first.
        let leased = slot.leases.iter().map(|(token, _)| token);
        let settled = slot.settles.tokens().filter(|&token| !slot.leases.contains(token));
        let tokens = leased.chain(settled).take(TOKENS_MAX);
        let mut tokens: Vec<Token> = tokens.collect();
        tokens.sort_unstable();
        tokens.dedup();
        Tokens(tokens)
    }

    /// The link is attached. Returns the running attempts and their durations, which a publisher
    /// that has restarted does not know.
    pub(crate) fn attached(
        &self,
        slot_id: SlotId,
        sender: LinkSender,
        answer: Attached,
    ) -> Started {
        let now = self.now();
        let mut state = self.state.lock();
        let slot = state.slot(slot_id);
        let lost = slot.leases.revoke(&answer.gone.0);
        slot.sender = Some(sender);
        slot.failure_logged = false;
        slot.grace.set_length(Duration::from_millis(answer.reconnect_grace_ms));
        slot.settles.attached(answer.next_settle);
        slot.leases.connected(now);
        slot.checkpoints.attached();
        slot.resend_progress();
        let (tokens, running_ms) = slot.leases.running_attempts(now).into_iter().unzip();
        let publisher = slot.id;
        if state.quiet {
            state.slot(slot_id).quiet_reply = Some(0);
        }
        self.revoke_leases(&mut state, slot_id, lost, CancelReason::LeaseLost);
        if state.resume_suspended(slot_id, self.clock(), now) {
            self.wake_handler_task(&state);
        }
        self.step(&mut state, DurableEvent::Attached(publisher));
        Started { tokens: Tokens(tokens), running_ms }
    }

    /// An attempt failed, or the link is dead.
    pub(crate) fn link_lost(&self, slot_id: SlotId, reason: String) {
        let now = self.now();
        let mut state = self.state.lock();
        // Links that end with the run have lost their senders already.
        let is_over = state.intake == Intake::Released;
        let slot = state.slot(slot_id);
        slot.update_last_byte(self.clock(), now);
        let was_attached = slot.sender.take().is_some();
        let is_first = !was_attached && !std::mem::replace(&mut slot.failure_logged, true);
        slot.leases.disconnected();
        let freed = slot.settles.detached();
        slot.checkpoints.detached();
        let busy = slot.leases.len() > 0 || slot.settles.unanswered() > 0;
        let publisher = slot.id;
        self.free(&mut state, publisher, freed);
        let event = if was_attached {
            tracing::warn!(%publisher, %reason, "link to the publisher lost");
            DurableEvent::LinkLost { publisher, reason, busy }
        } else {
            // The next attempt follows within seconds, and fails for the same reason.
            match is_first && !is_over {
                true => tracing::warn!(%publisher, %reason, "no link to the publisher"),
                false => tracing::debug!(%publisher, %reason, "no link to the publisher"),
            }
            DurableEvent::AttemptFailed { publisher, reason, busy }
        };
        self.step(&mut state, event);
        // Last, because the steps above may have granted credits to this publisher again. They
        // ended with its link.
        let slot = state.slot(slot_id);
        (slot.grant, slot.recall) = Default::default();
        (slot.unsubscribe, slot.quiet_reply) = (false, None);
        self.supervisor.notify_one();
    }

    /// Jobs arrived.
    pub(crate) fn delivered(&self, slot_id: SlotId, deliver: Deliver) -> Result<(), ExcessJobs> {
        const LIMIT: usize = TOKENS_MAX / 2;
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let jobs = u32::try_from(deliver.jobs.len()).unwrap_or(u32::MAX);
        let subscription = index_of(deliver.subscription);
        let at = state.slot(slot_id).key(subscription);
        let slot = state.slot(slot_id);
        let jobs_held = match slot.leases.len() + deliver.jobs.len() {
            held @ ..=LIMIT => held,
            _ => slot.unsettled() + deliver.jobs.len(),
        };
        if jobs_held > LIMIT {
            return Err(ExcessJobs { jobs_held, limit: LIMIT });
        }
        self.step(state, DurableEvent::Delivered { at, jobs });
        let sources: Vec<usize> = deliver.paths.iter().map(|path| state.source_of(path)).collect();
        let takes_no_jobs = state.takes_no_jobs();
        let slot = &mut state.slots[slot_id as usize];
        for job in deliver.jobs {
            state.stats.redelivered += u64::from(job.deliveries > 1);
            if state.intake > Intake::Open || takes_no_jobs {
                slot.settles.push(job.token, &NewSettle::Release, Some(subscription));
                continue;
            }
            let Some(path) = deliver.paths.get(job.path as usize) else { continue };
            let source = sources[job.path as usize];
            slot.leases.insert(
                now,
                job.token,
                Duration::from_millis(u64::from(job.lease_ms)),
                LeasedJob { subscription, holder: LeaseHolder::Queue },
            );
            let job = QueuedJob {
                slot_id,
                subscription,
                source,
                token: job.token,
                path: path.clone(),
                attempt: job.attempt,
                deliveries: job.deliveries,
                checkpoints: job.checkpoints,
                times: job.times,
                entry: job.entry,
            };
            state.ready.push_back(source, job);
        }
        self.wake_handler_task(state);
        Ok(())
    }

    pub(crate) fn returned(&self, slot_id: SlotId, returned: Credit) {
        let mut state = self.state.lock();
        let at = state.slot(slot_id).key(index_of(returned.subscription));
        self.step(&mut state, DurableEvent::Returned { at, credits: returned.count });
    }

    pub(crate) fn waiting(&self, slot_id: SlotId, waiting: Waiting) {
        let mut state = self.state.lock();
        let at = state.slot(slot_id).key(index_of(waiting.subscription));
        self.step(&mut state, DurableEvent::JobsWaiting { at, jobs: waiting.jobs });
    }

    pub(crate) fn settled(&self, slot_id: SlotId, settled: &Settled) {
        let now = self.now();
        let mut state = self.state.lock();
        let Some(ends) = state.slot(slot_id).settles.answered(settled) else { return };
        let mut stale = 0u64;
        for (token, end, outcome) in ends {
            let stats = &mut state.stats;
            match outcome {
                Some(SettleOutcome::Accepted) => match end {
                    SettleKind::Completed => stats.completed += 1,
                    SettleKind::Failed => stats.failed += 1,
                    SettleKind::Released => stats.released += 1,
                    SettleKind::Snoozed => stats.snoozed += 1,
                    SettleKind::Buried => stats.buried += 1,
                },
                Some(SettleOutcome::StaleToken) => stale += 1,
                // The size was checked before it was sent, so publisher and worker disagree about
                // the limit. The lease still runs.
                Some(SettleOutcome::ResultTooLarge) => {
                    let error = crate::work::handler::failure::job_error(
                        "ResultTooLarge",
                        SettleOutcome::ResultTooLarge,
                    );
                    let slot = state.slot(slot_id);
                    slot.leases.insert_due(now, token, SETTLE_LEASE, LeasedJob::of_settle());
                    slot.settles.push(token, &NewSettle::Bury(error), None);
                }
                // The settle is sent again later.
                Some(SettleOutcome::NoSpace) => {
                    let slot = state.slot(slot_id);
                    slot.leases.insert_due(now, token, SETTLE_LEASE, LeasedJob::of_settle());
                    slot.wake.notify_one();
                }
                None => stats.unanswered += 1,
            }
        }
        if stale > 0 {
            state.stats.stale_refused += stale;
            let publisher = state.slot(slot_id).id;
            tracing::warn!(
                %publisher, stale,
                "settles refused with StaleToken: their leases were lost"
            );
        }
        if state.intake > Intake::Open {
            self.supervisor.notify_one();
        }
    }

    pub(crate) fn renewed(&self, slot_id: SlotId, stale: &[Token]) {
        let mut state = self.state.lock();
        let lost = state.slot(slot_id).leases.renewed(stale, |job, ends| {
            if let Some(signal) = job.signal() {
                signal.extend(ends);
            }
        });
        self.revoke_leases(&mut state, slot_id, lost, CancelReason::LeaseLost);
    }

    pub(crate) fn revoked(&self, slot_id: SlotId, reason: Revoked, tokens: &[Token]) {
        let mut state = self.state.lock();
        let lost = state.slot(slot_id).leases.revoke(tokens);
        let reason = match reason {
            Revoked::Cancelled => CancelReason::Cancelled,
            Revoked::LeaseLost => CancelReason::LeaseLost,
            Revoked::TimedOut => CancelReason::TimedOut,
        };
        self.revoke_leases(&mut state, slot_id, lost, reason);
    }

    /// What the link is to send now. Without `room` in its send queue, settles wait, and credits
    /// with them; so do checkpoints and progress.
    pub(crate) fn outgoing(&self, slot_id: SlotId, room: bool) -> Outgoing {
        let now = self.now();
        let mut state = self.state.lock();
        let mut out = Outgoing::default();
        let release_at = self.release_late(&mut state, now);
        let slot = state.slot(slot_id);
        let publisher = slot.id;
        slot.settles.retry(now);
        let (mut freed, mut bytes) = (SubscriptionCounts::default(), 0);
        while room
            && bytes < OUTGOING_BYTES_MAX
            && let Some(request) = slot.checkpoints.next_to_send()
        {
            bytes += request.bytes();
            out.checkpoint_requests.push(request);
        }
        while room
            && bytes < OUTGOING_BYTES_MAX
            && let Some(sealed) = slot.settles.next_to_send(now)
        {
            freed.add_all(sealed.freed);
            bytes += sealed.body.len();
            out.settles.push(sealed.body);
            slot.settles.last_sent().for_each(|token| _ = slot.leases.remove(token));
        }
        out.more = room && (slot.settles.is_ready(now) || slot.checkpoints.is_ready());
        if room {
            out.progress = slot.take_due_progress(now);
        }
        let progress = slot.pending_progress.next_deadline().filter(|_| room);
        let due = slot.leases.take_due(now);
        out.renew = due.renew;
        if !due.lost.is_empty() {
            tracing::warn!(
                %publisher, leases = due.lost.len(),
                "leases ended: their renewals were not answered in time"
            );
            self.revoke_leases(&mut state, slot_id, due.lost, CancelReason::LeaseLost);
        }
        self.free(&mut state, publisher, freed);
        if state.resume_suspended(slot_id, self.clock(), now) {
            self.wake_handler_task(&state);
        }
        let slot = state.slot(slot_id);
        let suspended = (!slot.suspended.is_empty()).then_some(now + SUSPENDED_CHECK);
        out.grant = std::mem::take(&mut slot.grant);
        out.recall = std::mem::take(&mut slot.recall);
        out.unsubscribe = slot.unsubscribe;
        let settles = slot.settles.next_deadline(now);
        let due = slot.leases.next_deadline();
        let deadlines = due.into_iter().chain(progress).chain(settles).chain(suspended);
        out.deadline = deadlines.chain(release_at).min();
        out.recall_first = state.takes_no_jobs();
        out.quiet = state.take_quiet_reply(slot_id);
        out
    }

    /// The unsubscription is in the link's send queue: a drained worker may close the link.
    pub(crate) fn unsubscribed(&self, slot_id: SlotId) {
        self.state.lock().slot(slot_id).unsubscribe = false;
        self.supervisor.notify_one();
    }

    /// The wake-up of a publisher's link.
    pub(crate) fn wake(&self, slot_id: SlotId) -> Arc<Notify> {
        self.state.lock().slot(slot_id).wake.clone()
    }

    /// Handles lost leases: cancels their running handlers, drops the waiting jobs, and frees their
    /// credits. A running job frees its credit when its handler returns. A settle that waits for
    /// space is dropped: it would be refused.
    pub(super) fn revoke_leases(
        &self,
        state: &mut State,
        slot_id: SlotId,
        lost: Vec<(Token, LeasedJob)>,
        reason: CancelReason,
    ) {
        if lost.is_empty() {
            return;
        }
        let mut waiting = SubscriptionCounts::default();
        state.stats.leases_revoked += lost.len() as u64;
        let slot = &mut state.slots[slot_id as usize];
        let mut settled = BTreeSet::new();
        for (token, LeasedJob { subscription, holder }) in lost {
            tracing::debug!(%token, %reason, "lease lost");
            match holder {
                LeaseHolder::Handler(signal) => {
                    signal.cancel(reason);
                    end_job(&mut slot.checkpoints, token, WaitEnd::Lost(reason));
                }
                LeaseHolder::Queue => waiting.add(subscription, 1),
                LeaseHolder::Settle => _ = settled.insert(token),
            }
        }
        let dropped = slot.settles.drop_postponed(&settled);
        state.stats.unanswered += dropped as u64;
        if dropped > 0 && state.intake > Intake::Open {
            self.supervisor.notify_one();
        }
        if waiting.total() > 0 {
            let publisher = state.slot(slot_id).id;
            state.remove_lost_jobs();
            self.free(state, publisher, waiting);
        }
    }

    /// Jobs of a publisher are no longer held.
    fn free(&self, state: &mut State, publisher: PublisherId, jobs: SubscriptionCounts) {
        for (subscription, jobs) in jobs.iter() {
            let at = SubscriptionKey { publisher, subscription };
            self.step(state, DurableEvent::Freed { at, jobs });
        }
    }
}
