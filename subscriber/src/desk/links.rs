//! The desk's side that faces the links: what publishers say, and what is to be said to them.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::limits::{BATCH_BYTES_MAX, TOKENS_MAX};
use longshore_protocol::messages::work::{Attached, Deliver, NewSettle, Settled, Started, Tokens};
use longshore_protocol::{Revoked, SettleOutcome, Token};
use longshore_transport::LinkSender;
use tokio::sync::Notify;

use super::checkpoints::{Gone, end_job};
use super::{Desk, Flooded, Outgoing, PlaceId, Stage, State, Waiting};
use crate::CancelReason;
use crate::durable::Input;
use crate::settles::End;
use crate::signal::LeaseSignal;

/// Bytes of settles and checkpoints that a link is given at a time; the rest follows when they are
/// in its send queue.
const BYTES_TOGETHER: usize = BATCH_BYTES_MAX;
/// How soon to look whether a byte came while jobs are put aside: heartbeats wake nobody.
const ASIDE_CHECK: Duration = Duration::from_millis(250);
/// How long a lease is taken to be whose settle waits for room at its publisher: as it is unless a
/// job says otherwise. It is renewed three times as often.
const NO_SPACE_LEASE: Duration = Duration::from_secs(30);

impl Desk {
    /// Every token held at a publisher without an answered settle: what a new link resumes.
    pub(crate) fn resume(&self, place: PlaceId) -> Tokens {
        let mut state = self.state.lock();
        let place = state.place(place);
        // Bounds elsewhere keep both together below what one link resumes. What is left out all the
        // same is released and runs again: better one that has ended than one that still runs here.
        let held = place.leases.iter().map(|(token, _)| token);
        let tokens = held.chain(place.settles.tokens()).take(TOKENS_MAX);
        let mut tokens: Vec<Token> = tokens.collect();
        tokens.sort_unstable();
        tokens.dedup();
        Tokens(tokens)
    }

    /// The link is attached. Gives the attempts that are under way, and for how long, for the
    /// publisher to know again: one that has started since knows neither.
    pub(crate) fn attached(&self, place: PlaceId, sender: LinkSender, answer: Attached) -> Started {
        let now = self.now();
        let mut state = self.state.lock();
        let at = state.place(place);
        let lost = at.leases.revoke(&answer.gone.0);
        at.sender = Some(sender);
        at.grace.is(Duration::from_millis(answer.reconnect_grace_ms));
        at.settles.attached(answer.next_settle);
        at.leases.connected(now);
        at.checkpoints.attached();
        at.progress_again();
        let (tokens, running_ms) = at.leases.under_way(now).into_iter().unzip();
        let publisher = at.id;
        if state.quiet {
            state.place(place).quiet_to_say = Some(0);
        }
        self.lose(&mut state, place, lost, CancelReason::LeaseLost);
        if state.take_from_aside(place, self.ran(), now) {
            self.wake_a_lane(&state);
        }
        self.step(&mut state, Input::Attached(publisher));
        Started { tokens: Tokens(tokens), running_ms }
    }

    /// A try came to nothing, or the link is dead.
    pub(crate) fn link_lost(&self, place: PlaceId, reason: String) {
        let now = self.now();
        let mut state = self.state.lock();
        let at = state.place(place);
        at.hear(self.ran(), now);
        let was_attached = at.sender.take().is_some();
        at.leases.disconnected();
        let freed = at.settles.detached();
        at.checkpoints.detached();
        let busy = at.leases.len() > 0 || at.settles.unanswered() > 0;
        let publisher = at.id;
        if freed > 0 {
            self.step(&mut state, Input::Freed { publisher, jobs: freed });
        }
        let input = if was_attached {
            tracing::warn!(%publisher, %reason, "link to the publisher lost");
            Input::LinkLost { publisher, reason, busy }
        } else {
            tracing::debug!(%publisher, %reason, "no link to the publisher");
            Input::TryFailed { publisher, reason, busy }
        };
        self.step(&mut state, input);
        // Last: what was freed just now may have been granted to it once more, and that ended with
        // its link.
        let at = state.place(place);
        (at.grant, at.recall, at.unsubscribe, at.quiet_to_say) = (0, 0, false, None);
        self.director.notify_one();
    }

    /// Jobs came.
    pub(crate) fn delivered(&self, place: PlaceId, deliver: Deliver) -> Result<(), Flooded> {
        const LIMIT: usize = TOKENS_MAX / 2;
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let jobs = u32::try_from(deliver.jobs.len()).unwrap_or(u32::MAX);
        let publisher = state.place(place).id;
        let held = state.place(place).leases.len() + deliver.jobs.len();
        if held > LIMIT {
            return Err(Flooded { held, limit: LIMIT });
        }
        self.step(state, Input::Delivered { publisher, jobs });
        let at = &mut state.places[place as usize];
        for job in deliver.jobs {
            state.stats.redelivered += u64::from(job.deliveries > 1);
            if state.stage > Stage::Open || state.quiet {
                at.settles.push(job.token, &NewSettle::Release, true);
                continue;
            }
            let Some(path) = deliver.paths.get(job.path as usize) else { continue };
            at.leases.insert(now, job.token, Duration::from_millis(u64::from(job.lease_ms)), None);
            state.ready.push_back(Waiting {
                place,
                token: job.token,
                path: path.clone(),
                attempt: job.attempt,
                deliveries: job.deliveries,
                checkpoints: job.checkpoints,
                entry: job.entry,
            });
        }
        self.wake_a_lane(state);
        Ok(())
    }

    pub(crate) fn returned(&self, place: PlaceId, credits: u32) {
        let mut state = self.state.lock();
        let publisher = state.place(place).id;
        self.step(&mut state, Input::Returned { publisher, credits });
    }

    pub(crate) fn waiting(&self, place: PlaceId, jobs: u64) {
        let mut state = self.state.lock();
        let publisher = state.place(place).id;
        self.step(&mut state, Input::Waiting { publisher, jobs });
    }

    pub(crate) fn settled(&self, place: PlaceId, settled: &Settled) {
        let now = self.now();
        let mut state = self.state.lock();
        let Some(ends) = state.place(place).settles.answered(settled) else { return };
        let mut stale = 0u64;
        for (token, end, outcome) in ends {
            let stats = &mut state.stats;
            match outcome {
                Some(SettleOutcome::Accepted) => match end {
                    End::Completed => stats.completed += 1,
                    End::Failed => stats.failed += 1,
                    End::Released => stats.released += 1,
                    End::Snoozed => stats.snoozed += 1,
                    End::Buried => stats.buried += 1,
                },
                Some(SettleOutcome::StaleToken) => stale += 1,
                // Checked before it was sent, so publisher and worker disagree about the limit. The
                // lease still runs.
                Some(SettleOutcome::ResultTooLarge) => {
                    let error =
                        crate::failure::job_error("ResultTooLarge", SettleOutcome::ResultTooLarge);
                    state.place(place).settles.push(token, &NewSettle::Bury(error), false);
                }
                // It is sent again later. Its lease is renewed until then; it is nobody's but this
                // settle's.
                Some(SettleOutcome::NoSpace) => {
                    let at = state.place(place);
                    at.leases.insert(now, token, NO_SPACE_LEASE, Some(Arc::default()));
                    at.wake.notify_one();
                }
                None => stats.unanswered += 1,
            }
        }
        if stale > 0 {
            state.stats.stale_refused += stale;
            let publisher = state.place(place).id;
            tracing::warn!(%publisher, stale, "ends of jobs refused with StaleToken: their leases were lost");
        }
        if state.stage > Stage::Open {
            self.director.notify_one();
        }
    }

    pub(crate) fn renewed(&self, place: PlaceId, stale: &[Token]) {
        let mut state = self.state.lock();
        let lost = state.place(place).leases.renewed(stale, |signal, ends| {
            if let Some(signal) = signal {
                signal.extend(ends);
            }
        });
        self.lose(&mut state, place, lost, CancelReason::LeaseLost);
    }

    pub(crate) fn revoked(&self, place: PlaceId, reason: Revoked, tokens: &[Token]) {
        let mut state = self.state.lock();
        let lost = state.place(place).leases.revoke(tokens);
        let reason = match reason {
            Revoked::Cancelled => CancelReason::Cancelled,
            Revoked::LeaseLost => CancelReason::LeaseLost,
            Revoked::TimedOut => CancelReason::TimedOut,
        };
        self.lose(&mut state, place, lost, reason);
    }

    /// What the link is to send now. Without `room`, because its send queue is long, ends of jobs
    /// wait, and with them credits; so do checkpoints and progress.
    pub(crate) fn outgoing(&self, place: PlaceId, room: bool) -> Outgoing {
        let now = self.now();
        let mut state = self.state.lock();
        let mut out = Outgoing::default();
        let at = state.place(place);
        let publisher = at.id;
        for token in at.settles.again(now) {
            at.leases.remove(token);
        }
        let (mut freed, mut bytes) = (0, 0);
        while room
            && bytes < BYTES_TOGETHER
            && let Some(asked) = at.checkpoints.next_to_send()
        {
            bytes += asked.bytes();
            out.asked.push(asked);
        }
        while room
            && bytes < BYTES_TOGETHER
            && let Some(sealed) = at.settles.next_to_send()
        {
            freed += sealed.freed;
            bytes += sealed.body.len();
            out.settles.push(sealed.body);
        }
        out.more = room && (at.settles.is_ready() || at.checkpoints.is_ready());
        if room {
            out.progress = at.progress_due(now);
        }
        let progress = at.progresses.next_due().filter(|_| room);
        let due = at.leases.due(now);
        out.renew = due.renew;
        if !due.lost.is_empty() {
            tracing::warn!(%publisher, leases = due.lost.len(), "leases over: their renewal was not answered in time");
            self.lose(&mut state, place, due.lost, CancelReason::LeaseLost);
        }
        if freed > 0 {
            self.step(&mut state, Input::Freed { publisher, jobs: freed });
        }
        if state.take_from_aside(place, self.ran(), now) {
            self.wake_a_lane(&state);
        }
        let at = state.place(place);
        let aside = (!at.aside.is_empty()).then_some(now + ASIDE_CHECK);
        out.grant = std::mem::take(&mut at.grant);
        out.recall = std::mem::take(&mut at.recall);
        out.unsubscribe = std::mem::take(&mut at.unsubscribe);
        let again = at.settles.again_at();
        let due = at.leases.next_due();
        out.deadline = due.into_iter().chain(progress).chain(again).chain(aside).min();
        out.recall_first = state.quiet;
        out.quiet = state.quiet_to_say(place);
        out
    }

    /// Wakes the link of a publisher: it has something to send.
    pub(crate) fn wake(&self, place: PlaceId) -> Arc<Notify> {
        self.state.lock().place(place).wake.clone()
    }

    /// These are lost: handlers that run them are told, those that wait are dropped, and the jobs
    /// are held no more once nothing runs for them.
    pub(super) fn lose(
        &self,
        state: &mut State,
        place: PlaceId,
        lost: Vec<(Token, Option<Arc<LeaseSignal>>)>,
        reason: CancelReason,
    ) {
        if lost.is_empty() {
            return;
        }
        let mut waiting = 0;
        state.stats.leases_lost += lost.len() as u64;
        for (token, signal) in lost {
            tracing::debug!(%token, %reason, "lease lost");
            match signal {
                Some(signal) => {
                    signal.cancel(reason);
                    let at = &mut state.places[place as usize];
                    end_job(&mut at.checkpoints, token, Gone::Lost(reason));
                }
                None => waiting += 1,
            }
        }
        if waiting > 0 {
            let publisher = state.place(place).id;
            state.drop_the_lost();
            self.step(state, Input::Freed { publisher, jobs: waiting });
        }
    }
}
