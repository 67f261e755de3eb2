//! No new jobs for a while, at all publishers: an operator requests that, handlers block their
//! runtime, or too many results wait for space. Running jobs continue, and links stay.

use std::time::Duration;

use longshore_protocol::messages::work::{NewSettle, Quiet};

use super::{Intake, LeaseHolder, LeasedJob, SlotId, State, WorkerSession};
use crate::work::state::credits::SubscriptionKey;
use crate::work::state::durable::DurableEvent;

/// Most bytes of results that wait for space at their publishers while jobs are taken: 64 MiB.
/// Beyond it come those of the jobs that run, of up to 1 MiB each. Each settle counts
/// [`SETTLE_BYTES`](crate::work::state::settles::SETTLE_BYTES) more.
const POSTPONED_BYTES_MAX: usize = 64 * 1024 * 1024;

impl WorkerSession {
    /// A publisher forwards an operator's request. It applies to every publisher, until the
    /// opposite is requested or the process ends.
    pub(crate) fn quiet_requested(&self, slot_id: SlotId, request: Quiet) {
        let mut state = self.state.lock();
        if state.quiet != request.quiet {
            match request.quiet {
                true => tracing::info!(
                    "quiet on request of an operator: no job starts, running jobs continue"
                ),
                false => tracing::info!("resumed: the worker takes jobs again"),
            }
            self.apply_quiet(&mut state, request.quiet);
        }
        let slot = state.slot(slot_id);
        slot.quiet_reply = Some(request.request);
        slot.wake.notify_one();
    }

    /// True while an operator's request for quiet is in effect.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.lock().quiet
    }

    fn apply_quiet(&self, state: &mut State, quiet: bool) {
        let before = state.takes_no_jobs();
        state.quiet = quiet;
        self.apply_intake(state, before);
        for slot in state.slots.iter_mut().filter(|slot| slot.sender.is_some()) {
            slot.quiet_reply.get_or_insert(0);
            slot.wake.notify_one();
        }
    }

    /// The process is running: called every
    /// [`TICK_INTERVAL`](crate::work::state::pause::TICK_INTERVAL) on the thread of the links.
    pub(crate) fn record_tick(&self) {
        self.pause_detector.lock().tick(self.now());
        let now = self.now();
        let mut state = self.state.lock();
        let before = state.takes_no_jobs();
        // A link wakes for it only if there were more jobs than idle handlers.
        self.release_late(&mut state, now);
        if state.handlers.links_tick() {
            tracing::warn!(
                "handlers block every thread of their runtime: jobs that wait here are released, \
                 and no others are taken meanwhile; use handle_blocking for handlers that compute"
            );
        }
        let postponed: usize = state.slots.iter().map(|slot| slot.settles.postponed_bytes()).sum();
        let is_full = postponed > POSTPONED_BYTES_MAX;
        if is_full && !state.is_full {
            tracing::warn!(
                bytes = postponed,
                "publishers have no space for these results: no job is taken until they have"
            );
        }
        state.is_full = is_full;
        self.apply_intake(&mut state, before);
    }

    /// How long ago the thread of the links ran last; zero before its start.
    pub(crate) fn links_silent_for(&self) -> Duration {
        let last_tick = self.pause_detector.lock().last_tick();
        last_tick.map_or(Duration::ZERO, |last| self.now().saturating_sub(last))
    }

    /// The handlers' runtime is running: called as often, on that runtime.
    pub(crate) fn record_handlers_tick(&self) {
        let mut state = self.state.lock();
        let before = state.takes_no_jobs();
        state.handlers.handlers_tick();
        self.apply_intake(&mut state, before);
    }

    /// Takes jobs again, or no more, if that has changed.
    fn apply_intake(&self, state: &mut State, before: bool) {
        let quiet = state.takes_no_jobs();
        if quiet == before {
            return;
        }
        if quiet {
            // A pending grant would bring a job that has to be released.
            for slot_id in 0..state.slots.len() {
                let slot = &mut state.slots[slot_id];
                let (publisher, grants) = (slot.id, std::mem::take(&mut slot.grant));
                for (subscription, credits) in grants.iter() {
                    let at = SubscriptionKey { publisher, subscription };
                    self.step(state, DurableEvent::GrantWithdrawn { at, credits });
                }
            }
        }
        self.step(state, DurableEvent::Quiet(quiet));
        if quiet {
            for at in state.release_unstarted() {
                self.step(state, DurableEvent::Freed { at, jobs: 1 });
            }
        }
    }
}

impl State {
    /// True while waiting and arriving jobs are released.
    pub(super) fn takes_no_jobs(&self) -> bool {
        self.quiet || self.is_full || self.handlers.are_blocked()
    }

    /// Releases all jobs that have not begun. Returns the subscription of each job at
    /// publishers without a link: these are freed at once, the others when their release is sent.
    pub(super) fn release_unstarted(&mut self) -> Vec<SubscriptionKey> {
        self.ready.retain(|_| false);
        for job in self.announced.drain(..) {
            self.ready.not_begun(job.source);
        }
        let mut freed = Vec::new();
        for slot in &mut self.slots {
            slot.suspended.clear();
            let linked = slot.sender.is_some();
            let is_unstarted = |job: &LeasedJob| matches!(job.holder, LeaseHolder::Queue);
            for (token, LeasedJob { subscription, .. }) in slot.leases.take_if(is_unstarted) {
                slot.settles.push(token, &NewSettle::Release, linked.then_some(subscription));
                if !linked {
                    freed.push(SubscriptionKey { publisher: slot.id, subscription });
                }
            }
            slot.wake.notify_one();
        }
        freed
    }

    /// Takes the quiet state to report on the link. A worker reports quiet after it has sent every
    /// release, including queued ones from before a reconnect, and after the publisher has returned
    /// all credits. From then on the publisher's in-flight count for this worker cannot grow.
    pub(super) fn take_quiet_reply(&mut self, slot_id: SlotId) -> Option<Quiet> {
        let (quiet, draining) = (self.quiet, self.intake > Intake::Open);
        let slot = &mut self.slots[slot_id as usize];
        let ask = slot.quiet_reply?;
        let is_quiet =
            slot.settles.all_sent() && (draining || self.durable.has_no_credit(&slot.id));
        if quiet && !is_quiet {
            return None;
        }
        slot.quiet_reply = None;
        Some(Quiet { request: ask, quiet })
    }
}
