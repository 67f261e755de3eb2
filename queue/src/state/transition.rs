//! Transitions of jobs. Each one leaves a substate and enters another; counters change only here.

use longshore_protocol::messages::work::JobTimes;
use longshore_protocol::{DeathReason, Due, JobChange, JobId, Token};

use super::State;
use super::checkpoints::Checkpoints;
use super::history::Attempt;
use super::prepared::Preparation;
use super::row::{NONE, Substate};
use super::rows::Links;
use super::unique::UniqueOfJob;
use crate::outcome::{Assignment, Outcomes, QueueId, RecordRef};

/// Data that only some jobs have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SideRow {
    /// The attempts that did not complete, oldest first.
    pub(super) attempts: Vec<Attempt>,
    /// Attempts that lost their worker, since the job was enqueued or revived.
    pub(super) worker_losses: u8,
    pub(super) result: Option<RecordRef>,
    pub(super) checkpoints: Option<Box<Checkpoints>>,
    /// The job that it replaced.
    pub(super) replaces: Option<JobId>,
    pub(super) preparation: Option<Preparation>,
    /// When it expires (wall) if no attempt was made by then.
    pub(super) expires_at: Option<u64>,
    pub(super) unique: Option<UniqueOfJob>,
    /// The template of the schedule that made it. Its row's entry is only its place in the order
    /// of enqueuing.
    pub(super) template: Option<u32>,
    /// Its node, if jobs wait for it.
    pub(super) node: Option<u32>,
    /// The batch that it is, if it is one.
    pub(super) batch: Option<u32>,
}

impl State {
    /// Makes the job ready again, ordered by its age. A scheduled job whose time has passed was
    /// ready since that time.
    pub(super) fn return_job(&mut self, slot: u32, change: JobChange, out: &mut Outcomes) {
        let row = &self.rows[slot];
        let since_ms = match row.substate {
            Substate::Delayed | Substate::Retrying => row.when.min(self.now.mono_ms),
            Substate::Timed => {
                self.now.mono_ms.saturating_sub(self.now.wall_ms.saturating_sub(row.when))
            }
            _ => self.now.mono_ms,
        };
        self.leave_substate(slot);
        self.enter_ready(slot, Substate::Returned, since_ms);
        self.emit(slot, change, out);
        self.expire_if_past(slot, out);
    }

    /// Schedules the job for `due_ms`: wall time for `Timed`, monotonic for the others.
    pub(super) fn schedule_job(
        &mut self,
        slot: u32,
        substate: Substate,
        due_ms: u64,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        self.leave_substate(slot);
        self.enter_scheduled(slot, substate, due_ms);
        self.emit(slot, change, out);
    }

    /// Ends the job: completed, cancelled or expired. It may be removed after that.
    pub(super) fn end_job(
        &mut self,
        slot: u32,
        substate: Substate,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        // A batch completes without a worker.
        let is_run = substate == Substate::Completed && self.rows[slot].session != NONE;
        let worker = is_run.then(|| self.worker_of(slot));
        self.leave_substate(slot);
        self.return_turn(slot);
        self.forget_unique(slot);
        let row = &mut self.rows[slot];
        row.when = self.now.wall_ms;
        if let Some(worker) = worker {
            self.names.add_use(worker);
            row.session = worker;
        }
        row.set_ended_mono_ms(self.now.mono_ms);
        self.set_substate(slot, substate);
        self.emit(slot, change, out);
        self.propagate_end(slot);
        self.retain_ended(slot, out);
    }

    /// Buries the job. It may be removed after that.
    pub(super) fn bury_job(
        &mut self,
        slot: u32,
        reason: DeathReason,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        self.leave_substate(slot);
        self.bury_unique(slot);
        let row = &mut self.rows[slot];
        row.when = self.now.wall_ms;
        let queue = row.queue;
        if !self.dead_blocks_order(queue) {
            self.return_turn(slot);
        }
        self.set_substate(slot, Substate::Dead);
        self.queues[queue as usize].died += 1;
        self.enter_dead_letters(slot, reason);
        self.emit(slot, change, out);
        self.propagate_end(slot);
        self.retain_dead(slot, out);
    }

    /// Removes the job.
    pub(super) fn remove_job(&mut self, slot: u32, change: JobChange, out: &mut Outcomes) {
        self.emit_gone(slot, change, out);
        self.count_removed_member(slot);
        self.leave_substate(slot);
        self.return_turn(slot);
        self.forget_unique(slot);
        self.propagate_removal(slot);
        let (profile, side) = (self.rows[slot].profile, self.rows[slot].side);
        if let Some(keys) = self.profiles.release(profile) {
            self.release_keys(keys);
        }
        if side != NONE {
            if let Some(template) = self.sides[side].template {
                self.schedules.templates.release(template);
            }
            if let Some(batch) = self.sides[side].batch {
                self.leave_batch(batch);
            }
            self.remove_side(side);
        }
        self.rows.remove(slot);
    }

    /// Delivers the next ready job of its queue to a worker, against a credit of the subscription.
    pub(super) fn deliver_job(&mut self, slot: u32, subscription: u32, out: &mut Outcomes) {
        let s = &self.dispatch.subscriptions[subscription];
        let (link, number, session) = (s.link, s.number, s.session);
        let token = Token(self.next_token);
        self.next_token += 1;

        self.unwatch_expiry(slot);
        let row = &self.rows[slot];
        let (queue, substate) = (row.queue, row.substate);
        let priority = self.profiles.options(row.profile).priority;
        let (lease_ms, run_timeout_ms) = (self.lease_ms(row), self.run_timeout_ms(row));
        let share = self.remove_ready(slot);
        if !self.queues[queue as usize].fair.is_empty() {
            self.charge_share(queue, priority, share);
        }
        let q = &mut self.queues[queue as usize];
        q.counts.ready -= 1;
        q.counts.running += 1;
        self.charge_limits(slot);

        let side = self.rows[slot].side;
        let checkpoints = if side == NONE { 0 } else { self.restart_checkpoints(side) };
        let mut entry = self.rows[slot].entry;
        if side != NONE {
            self.start_unique(slot);
            entry = self.location_of(slot);
        }
        let q = &mut self.queues[queue as usize];
        let row = &mut self.rows[slot];
        let waited_ms = self.now.mono_ms.saturating_sub(row.when);
        let enqueued_at = row.enqueued_wall_ms;
        let scheduled_at = match substate {
            Substate::Fresh => enqueued_at,
            _ => row.wall_ms_before(self.now.wall_ms, waited_ms),
        };
        row.substate = Substate::Running;
        row.when = token.0;
        row.delivered = self.now.mono_ms as u32;
        row.session = session;
        if row.deliveries > 0 {
            q.redelivered += 1;
        }
        row.deliveries = row.deliveries.saturating_add(1);
        out.assignments.push(Assignment {
            link,
            subscription: number,
            token,
            queue: QueueId(queue),
            attempt: row.attempts.saturating_add(1),
            deliveries: row.deliveries,
            lease_ms,
            run_timeout_ms,
            checkpoints,
            times: JobTimes { enqueued_at, scheduled_at, waited_ms },
            entry,
            of_template: entry != row.entry,
        });
        q.running.push_back(&mut self.rows, Links::Queue, slot);
        let session = &mut self.sessions.table[session];
        session.leases.push_back(&mut self.rows, Links::Main, slot);
        session.lease_count += 1;
        self.rows.index_token(slot);
        self.emit(slot, JobChange::Delivered, out);
    }

    /// Revokes the lease of a running job: its holder may still try to settle it.
    pub(super) fn revoke_lease(&mut self, slot: u32, out: &mut Outcomes) {
        let row = &self.rows[slot];
        out.ended.push(Token(row.when));
        self.unrevoked_from = self.next_token;
        self.sessions.table[row.session].remember_revoked(
            row.when,
            row.queue,
            self.rules.revoked_leases_retained as usize,
        );
    }

    /// Returns a delivery that no worker started, without counting the attempt; after too many of
    /// them the job is buried.
    pub(super) fn return_unstarted(&mut self, slot: u32, out: &mut Outcomes) {
        let row = &mut self.rows[slot];
        row.unstarted_deliveries = row.unstarted_deliveries.saturating_add(1);
        let unstarted = u64::from(row.unstarted_deliveries);
        let attempts = u64::from(self.max_attempts(&self.rows[slot]));
        let most = self.rules.unstarted_deliveries_max.max(3 * attempts).min(u64::from(u8::MAX));
        if unstarted >= most {
            self.bury_job(slot, DeathReason::Undeliverable, JobChange::LeaseLost, out);
        } else {
            self.return_job(slot, JobChange::LeaseLost, out);
        }
    }

    pub(super) fn side_mut(&mut self, slot: u32) -> &mut SideRow {
        let row = &mut self.rows[slot];
        if row.side == NONE {
            row.side = self.sides.insert(SideRow::default());
        }
        &mut self.sides[row.side]
    }

    /// Makes the job ready; or blocked, if another job has the turn of its order key, or its limit
    /// key has no room.
    pub(super) fn enter_ready(&mut self, slot: u32, substate: Substate, since_ms: u64) {
        let key = self.order_key_of(slot);
        if key != NONE && !self.take_turn_of(key, slot) {
            return self.enter_blocked(slot, key);
        }
        let limit = self.limit_key_of(slot);
        if limit != NONE && !self.has_room(slot, limit) {
            return self.enter_limited(slot, limit);
        }
        self.enter_ready_at_once(slot, substate, since_ms);
    }

    /// Makes the job ready, which has its turn and room.
    pub(super) fn enter_ready_at_once(&mut self, slot: u32, mut substate: Substate, since_ms: u64) {
        let limit = self.limit_key_of(slot);
        if limit != NONE {
            self.add_candidate(slot, limit);
        }
        let share = self.share_of(slot);
        if share != NONE {
            substate = Substate::Returned;
        }
        let row = &mut self.rows[slot];
        row.when = since_ms;
        let queue = row.queue;
        let priority = self.profiles.options(row.profile).priority;
        self.set_substate(slot, substate);
        match share {
            NONE => {
                let ready = &mut self.queues[queue as usize].ready;
                let is_late = ready.add(&mut self.rows, priority, slot, substate);
                self.sorted_jobs += u64::from(is_late);
            }
            share => self.add_to_share(slot, share),
        }
        self.mark_changed(queue);
        self.watch_expiry(slot);
    }

    /// Removes a job from the ready ones. Returns its share; `NONE` without a fair key.
    #[inline]
    fn remove_ready(&mut self, slot: u32) -> u32 {
        let limit = self.limit_key_of(slot);
        if limit != NONE {
            self.remove_candidate(slot, limit);
        }
        let share = self.share_of(slot);
        if share == NONE {
            let row = &self.rows[slot];
            let (queue, substate) = (row.queue, row.substate);
            let priority = self.profiles.options(row.profile).priority;
            let ready = &mut self.queues[queue as usize].ready;
            let was_late = ready.remove(&mut self.rows, priority, slot, substate);
            self.sorted_jobs -= u64::from(was_late);
        } else {
            self.remove_from_share(slot, share);
        }
        share
    }

    pub(super) fn enter_scheduled(&mut self, slot: u32, substate: Substate, due_ms: u64) {
        let row = &mut self.rows[slot];
        row.when = due_ms;
        let queue = row.queue;
        self.timers.jobs(substate).insert((due_ms, slot));
        self.set_substate(slot, substate);
        self.queues[queue as usize].scheduled.push_back(&mut self.rows, Links::Main, slot);
        self.watch_expiry(slot);
    }

    /// Schedules a job that has not run yet, or makes it ready as `ready`.
    pub(super) fn schedule_or_ready(&mut self, slot: u32, due: Due, ready: Substate) {
        match due {
            Due::After(ms) if ms > 0 => {
                let due_ms = self.now.mono_ms.saturating_add(ms);
                self.enter_scheduled(slot, Substate::Delayed, due_ms);
            }
            Due::At(wall_ms) if wall_ms > self.now.wall_ms => {
                self.enter_scheduled(slot, Substate::Timed, wall_ms);
            }
            _ => self.enter_ready(slot, ready, self.now.mono_ms),
        }
    }

    pub(super) fn set_substate(&mut self, slot: u32, substate: Substate) {
        let row = &mut self.rows[slot];
        row.substate = substate;
        self.queues[row.queue as usize].enter(substate, row.entry);
    }

    pub(super) fn leave_substate(&mut self, slot: u32) {
        self.unwatch_expiry(slot);
        let row = &self.rows[slot];
        let (queue, substate, when, session) = (row.queue, row.substate, row.when, row.session);
        let entry = row.entry;
        let q = &mut self.queues[queue as usize];
        q.leave(substate, entry);
        match substate {
            Substate::Free => {}
            Substate::Fresh | Substate::Returned => {
                self.remove_ready(slot);
                self.mark_changed(queue);
            }
            Substate::Delayed | Substate::Timed | Substate::Retrying => {
                q.scheduled.unlink(&mut self.rows, Links::Main, slot);
                self.timers.jobs(substate).remove(&(when, slot));
            }
            Substate::Running => {
                q.running.unlink(&mut self.rows, Links::Queue, slot);
                self.rows.remove_token(slot);
                let s = &mut self.sessions.table[session];
                s.leases.unlink(&mut self.rows, Links::Main, slot);
                s.lease_count -= 1;
                self.free_handler(session);
                let row = &mut self.rows[slot];
                row.delivered = row.running_ms(self.now.mono_ms) as u32;
                row.session = NONE;
                self.discharge_limits(slot);
            }
            Substate::Completed | Substate::Cancelled | Substate::Expired => self.leave_ended(slot),
            Substate::Blocked => self.leave_blocked(slot),
            Substate::Limited => self.leave_limited(slot),
            Substate::Waiting => self.leave_waiting(slot),
            Substate::Prepared => {
                q.prepared.unlink(&mut self.rows, Links::Main, slot);
                self.timers.jobs(substate).remove(&(when, slot));
            }
            Substate::Dead => {
                self.leave_dead_letters(slot);
            }
        }
    }
}
