//! How jobs move. Every move is: leave one place, enter another; the counters change with it, here
//! and nowhere else.

use longshore_protocol::{DeathReason, Due, JobChange, JobId, Token};

use super::State;
use super::checkpoints::Checkpoints;
use super::history::Attempt;
use super::prepared::Preparation;
use super::queue::counter;
use super::row::{NONE, Place};
use super::rows::Links;
use crate::outcome::{Handed, Outcomes, QueueId, RecordRef};

/// What only some jobs have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Side {
    /// The attempts that did not end well, oldest first.
    pub(super) attempts: Vec<Attempt>,
    /// Attempts that lost their worker, since the job was enqueued or revived.
    pub(super) worker_losses: u8,
    pub(super) result: Option<RecordRef>,
    pub(super) checkpoints: Option<Box<Checkpoints>>,
    /// The dead job whose place it took.
    pub(super) replaces: Option<JobId>,
    pub(super) preparation: Option<Preparation>,
    /// When it expires (wall) if no attempt was made by then.
    pub(super) expires_at: Option<u64>,
}

impl State {
    /// Ready again, in the place that its age gives it.
    pub(super) fn return_job(&mut self, slot: u32, change: JobChange, out: &mut Outcomes) {
        self.leave_place(slot);
        self.enter_ready(slot, Place::Returned);
        self.emit(slot, change, out);
        self.expire_if_past(slot, out);
    }

    /// Not before `due_ms`: wall time for `Timed`, monotonic for the others.
    pub(super) fn schedule_job(
        &mut self,
        slot: u32,
        place: Place,
        due_ms: u64,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        self.leave_place(slot);
        self.enter_scheduled(slot, place, due_ms);
        self.emit(slot, change, out);
    }

    /// Completed, when it ran; cancelled or expired. It may be gone after that.
    pub(super) fn end_job(
        &mut self,
        slot: u32,
        place: Place,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        let worker = (place == Place::Completed).then(|| self.worker_of(slot));
        self.leave_place(slot);
        let row = &mut self.rows[slot];
        row.when = self.now.wall_ms;
        if let Some(worker) = worker {
            self.names.hold(worker);
            row.session = worker;
        }
        row.set_ended_mono_ms(self.now.mono_ms);
        self.set_place(slot, place);
        self.emit(slot, change, out);
        self.keep(slot, out);
    }

    /// Into the dead letters. It may be gone after that.
    pub(super) fn bury_job(
        &mut self,
        slot: u32,
        reason: DeathReason,
        change: JobChange,
        out: &mut Outcomes,
    ) {
        self.leave_place(slot);
        let row = &mut self.rows[slot];
        row.when = self.now.wall_ms;
        let queue = row.queue;
        self.set_place(slot, Place::Dead);
        self.queues[queue as usize].died += 1;
        self.enter_dead_letters(slot, reason);
        self.emit(slot, change, out);
        self.keep_dead(slot, out);
    }

    /// No longer kept.
    pub(super) fn forget_job(&mut self, slot: u32, change: JobChange, out: &mut Outcomes) {
        self.emit_gone(slot, change, out);
        self.leave_place(slot);
        let (profile, side) = (self.rows[slot].profile, self.rows[slot].side);
        self.profiles.give_back(profile);
        if side != NONE {
            self.forget_side(side);
        }
        self.rows.remove(slot);
    }

    /// Into a worker's hands: the next ready job of its queue, against a credit of the
    /// subscription.
    pub(super) fn start_job(&mut self, slot: u32, subscription: u32, out: &mut Outcomes) {
        let s = &self.dispatch.subscriptions[subscription];
        let (link, number, session) = (s.link, s.number, s.session);
        let token = Token(self.next_token);
        self.next_token += 1;

        self.unwatch_expiry(slot);
        let row = &self.rows[slot];
        let (queue, place) = (row.queue, row.place);
        let priority = self.profiles.options(row.profile).priority;
        let (lease_ms, run_timeout_ms) = (self.lease_ms(row), self.run_timeout_ms(row));
        let q = &mut self.queues[queue as usize];
        q.ready.remove(&mut self.rows, priority, slot, place);
        q.counts.ready -= 1;
        q.counts.running += 1;

        let side = self.rows[slot].side;
        let checkpoints = if side == NONE { 0 } else { self.begin_checkpoints(side) };
        let q = &mut self.queues[queue as usize];
        let row = &mut self.rows[slot];
        row.place = Place::Running;
        row.when = token.0;
        row.delivered = self.now.mono_ms as u32;
        row.session = session;
        if row.deliveries > 0 {
            q.redelivered += 1;
        }
        row.deliveries = row.deliveries.saturating_add(1);
        out.handed.push(Handed {
            link,
            subscription: number,
            token,
            queue: QueueId(queue),
            attempt: row.attempts.saturating_add(1),
            deliveries: row.deliveries,
            lease_ms,
            run_timeout_ms,
            checkpoints,
            entry: row.entry,
        });
        q.running.push_back(&mut self.rows, Links::Queue, slot);
        let session = &mut self.sessions.table[session];
        session.held.push_back(&mut self.rows, Links::Main, slot);
        session.held_count += 1;
        self.rows.index_token(slot);
        self.emit(slot, JobChange::Delivered, out);
    }

    /// The lease of a running job ends, against its holder's will: the holder may still try to
    /// settle it.
    pub(super) fn take_lease(&mut self, slot: u32, out: &mut Outcomes) {
        let row = &self.rows[slot];
        out.ended.push(Token(row.when));
        self.sure_from = self.next_token;
        self.sessions.table[row.session].remember_lost(
            row.when,
            row.queue,
            self.rules.lost_kept as usize,
        );
    }

    /// A delivery that no worker started goes back, its attempt given back; after too many of them
    /// the job is buried.
    pub(super) fn return_unstarted(&mut self, slot: u32, out: &mut Outcomes) {
        let row = &mut self.rows[slot];
        row.lost = row.lost.saturating_add(1);
        let lost = row.lost;
        let attempts = u64::from(self.max_attempts(&self.rows[slot]));
        let most = self.rules.lost_deliveries.max(3 * attempts).min(u64::from(u8::MAX));
        if u64::from(lost) >= most {
            self.bury_job(slot, DeathReason::Undeliverable, JobChange::LeaseLost, out);
        } else {
            self.return_job(slot, JobChange::LeaseLost, out);
        }
    }

    pub(super) fn side_of(&mut self, slot: u32) -> &mut Side {
        let row = &mut self.rows[slot];
        if row.side == NONE {
            row.side = self.sides.insert(Side::default());
        }
        &mut self.sides[row.side]
    }

    pub(super) fn enter_ready(&mut self, slot: u32, place: Place) {
        let row = &mut self.rows[slot];
        row.when = self.now.mono_ms;
        let queue = row.queue;
        let priority = self.profiles.options(row.profile).priority;
        self.set_place(slot, place);
        self.queues[queue as usize].ready.add(&mut self.rows, priority, slot, place);
        self.touch(queue);
        self.watch_expiry(slot);
    }

    pub(super) fn enter_scheduled(&mut self, slot: u32, place: Place, due_ms: u64) {
        let row = &mut self.rows[slot];
        row.when = due_ms;
        let queue = row.queue;
        self.due.jobs(place).insert((due_ms, slot));
        self.set_place(slot, place);
        self.queues[queue as usize].scheduled.push_back(&mut self.rows, Links::Main, slot);
        self.watch_expiry(slot);
    }

    /// A job that has not run yet waits for its time, or is ready as `ready`.
    pub(super) fn enter_by_due(&mut self, slot: u32, due: Due, ready: Place) {
        match due {
            Due::After(ms) if ms > 0 => {
                let due_ms = self.now.mono_ms.saturating_add(ms);
                self.enter_scheduled(slot, Place::Delayed, due_ms);
            }
            Due::At(wall_ms) if wall_ms > self.now.wall_ms => {
                self.enter_scheduled(slot, Place::Timed, wall_ms);
            }
            _ => self.enter_ready(slot, ready),
        }
    }

    pub(super) fn set_place(&mut self, slot: u32, place: Place) {
        let row = &mut self.rows[slot];
        row.place = place;
        if let Some(counter) = counter(&mut self.queues[row.queue as usize].counts, place) {
            *counter += 1;
        }
    }

    pub(super) fn leave_place(&mut self, slot: u32) {
        self.unwatch_expiry(slot);
        let row = &self.rows[slot];
        let (queue, place, when, session) = (row.queue, row.place, row.when, row.session);
        let profile = row.profile;
        let q = &mut self.queues[queue as usize];
        if let Some(counter) = counter(&mut q.counts, place) {
            *counter -= 1;
        }
        match place {
            Place::Free => {}
            Place::Fresh | Place::Returned => {
                let priority = self.profiles.options(profile).priority;
                q.ready.remove(&mut self.rows, priority, slot, place);
                self.touch(queue);
            }
            Place::Delayed | Place::Timed | Place::Retrying => {
                q.scheduled.unlink(&mut self.rows, Links::Main, slot);
                self.due.jobs(place).remove(&(when, slot));
            }
            Place::Running => {
                q.running.unlink(&mut self.rows, Links::Queue, slot);
                self.rows.forget_token(slot);
                let session = &mut self.sessions.table[session];
                session.held.unlink(&mut self.rows, Links::Main, slot);
                session.held_count -= 1;
                let row = &mut self.rows[slot];
                row.delivered = row.running_ms(self.now.mono_ms) as u32;
                row.session = NONE;
            }
            Place::Completed | Place::Cancelled | Place::Expired => self.unkeep(slot),
            Place::Prepared => {
                q.prepared.unlink(&mut self.rows, Links::Main, slot);
                self.due.jobs(place).remove(&(when, slot));
            }
            Place::Dead => {
                self.leave_dead_letters(slot);
            }
        }
    }
}
