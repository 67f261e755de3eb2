//! Batches: jobs that end once others, their members, have ended.
//!
//! No worker runs a batch: its row is [`Substate::Waiting`], without an edge, until it is closed
//! and no member is open. Its members have its number in their profile, so that a member costs no
//! memory of its own. A member's end is counted in the command of that end; the command then ends
//! or reopens the batches whose counts have changed. Jobs after a batch have an edge to it, as to
//! any other parent: the [graph](super::graph) knows no batches but for the death of a member.
//!
//! A batch that is cancelled or expires cancels its open members. Reviving one, dead or with a death
//! within, revives its dead members. Both are a sweep over all rows, a bounded number with each
//! tick.
//!
//! Why there are no cycles: a job waits for its parents, which were there before it, and a batch for
//! its members. A member may have a parent only if that one is older than its batch or within it,
//! and so for each batch around it. Take the oldest batch that a cycle leaves for a member. The
//! cycle leaves the inside of that batch by a parent that is older than the batch. From there on it
//! goes to older and older jobs, unless it leaves another batch for a member, which would be older
//! than the oldest: it never comes back.

use std::collections::BTreeSet;

use longshore_protocol::limits::BATCH_DEPTH_MAX;
use longshore_protocol::messages::work::BatchInfo;
use longshore_protocol::{
    DeathReason, Decode, Encode, EntryHead, FrameWriter, JobChange, JobId, JobKeys, NewBatch,
    OnConflict, Parent, Reader, Refusal, WireError,
};

use super::State;
use super::graph::End;
use super::profile::DEFAULT;
use super::row::{NONE, Order, Substate};
use super::rows::List;
use super::slab::Slab;
use super::snapshot::{index, put_index};
use super::steps;
use crate::outcome::Outcomes;

/// A batch. It outlives its row while jobs, ended ones too, have its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Batch {
    id: JobId,
    /// Its row; none once it was removed.
    pub(super) job: u32,
    /// Profiles of members.
    profiles: u32,
    info: BatchInfo,
    /// A job of the batch has died, or one of a batch within.
    has_died: bool,
    /// A member is or was a batch.
    has_batches: bool,
    /// What the sweep does to its members, and the row at which that began.
    sweep: Option<(Sweep, u32)>,
    /// Ended members that it [holds](super::held_members).
    pub(super) held: List,
}

/// What happens to the members that are reached by the sweep over all rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sweep {
    /// The open ones are cancelled.
    Cancel,
    /// The dead ones are revived, also within open batches; until then the batch does not end.
    Revive,
}

/// All batches.
#[derive(Clone, Debug, Default)]
pub(super) struct Batches {
    pub(super) table: Slab<Batch>,
    /// Batches whose counts this command has changed. Empty between commands.
    changed: Vec<u32>,
    /// Batches with a sweep, by the row at which it began: it ends when the sweep is there again.
    /// Not in snapshots.
    sweeping: BTreeSet<(u32, u32)>,
    /// Batches that have ended, and still list members that they held. Not in snapshots.
    pub(super) releasing: BTreeSet<u32>,
    /// The row that the sweep reaches next.
    pub(super) next_row: u32,
}

impl Batches {
    pub(super) fn bytes(&self) -> u64 {
        (self.table.len() * size_of::<Option<Batch>>()) as u64
    }

    /// True if members are left to cancel, to revive or to forget.
    pub(super) fn has_work(&self) -> bool {
        self.is_sweeping() || !self.releasing.is_empty()
    }

    fn is_sweeping(&self) -> bool {
        !self.sweeping.is_empty()
    }

    fn change(&mut self, number: u32) -> &mut BatchInfo {
        // Mostly the members that end together are of one batch.
        if self.changed.last() != Some(&number) {
            self.changed.push(number);
        }
        &mut self.table[number].info
    }

    pub(super) fn add_profile(&mut self, number: u32) {
        self.table[number].profiles += 1;
    }

    pub(super) fn release_profile(&mut self, number: u32) {
        self.table[number].profiles -= 1;
        self.remove_unused(number);
    }

    /// Removes the batch once it has neither a job nor members, nor holds jobs.
    pub(super) fn remove_unused(&mut self, number: u32) {
        let batch = &self.table[number];
        if batch.job == NONE && batch.profiles == 0 && batch.held.is_empty() {
            if let Some((_, start)) = batch.sweep {
                self.sweeping.remove(&(start, number));
            }
            self.table.remove(number);
        }
    }

    /// Begins a sweep over all rows, instead of the one of the batch that may be under way. Most
    /// members follow their batch.
    fn sweep(&mut self, number: u32, sweep: Sweep) {
        let row = self.table[number].job;
        if !self.is_sweeping() && row != NONE {
            self.next_row = row;
        }
        if let Some((_, start)) = self.table[number].sweep.replace((sweep, self.next_row)) {
            self.sweeping.remove(&(start, number));
        }
        self.sweeping.insert((self.next_row, number));
    }

    fn end_sweep(&mut self, number: u32) {
        if let Some((_, start)) = self.table[number].sweep.take() {
            self.sweeping.remove(&(start, number));
            self.change(number);
        }
    }

    /// Indexes the sweeps of a snapshot.
    pub(super) fn index_sweeps(&mut self) {
        let sweep = |(number, batch): (u32, &Batch)| Some((batch.sweep?.1, number));
        self.sweeping = self.table.iter().filter_map(sweep).collect();
    }
}

/// What decides whether others may join a job, or wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relative {
    pub(super) order: Order,
    is_batch: bool,
    /// True of a batch that gets members.
    takes_members: bool,
    member_of: Option<JobId>,
    /// It has ended, and will not be revived.
    has_ended: bool,
}

impl Relative {
    /// A job of the atomic batch that is being judged, at that time.
    pub(super) fn of_head(head: &EntryHead, order: Order, wall_ms: u64) -> Relative {
        let expires_at = head.options.as_ref().and_then(|options| options.expires_at);
        let has_time = expires_at.is_none_or(|at| at > wall_ms);
        let (is_batch, member_of) = (head.batch().is_some(), head.member_of());
        let takes_members = is_batch && has_time;
        Relative { order, is_batch, takes_members, member_of, has_ended: false }
    }
}

impl State {
    /// Whether a job may be a batch, and a member of its batch. `find` knows all others.
    pub(super) fn admit_batch(
        &self,
        keys: &JobKeys,
        find: &impl Fn(&JobId) -> Option<Relative>,
    ) -> Result<(), Refusal> {
        // It would let the jobs after the replaced one wait for parents that are younger than they.
        let replaces =
            keys.unique.as_ref().is_some_and(|unique| unique.on_conflict == OnConflict::Replace);
        let has_other_keys = keys.order.is_some()
            || keys.unique.is_some()
            || keys.fair.is_some()
            || keys.limit.is_some()
            || keys.cost.is_some()
            || !keys.after.is_empty();
        if replaces && !keys.after.is_empty() || keys.batch.is_some() && has_other_keys {
            return Err(Refusal::BadOptions);
        }
        let Some(batch) = keys.member_of else { return Ok(()) };
        let known = find(&batch).filter(|batch| batch.is_batch).ok_or(Refusal::ParentGone)?;
        if !known.takes_members {
            return Err(Refusal::BatchClosed);
        }
        let around: Vec<(JobId, Order)> = chain(Some(batch), find).collect();
        if around.len() > BATCH_DEPTH_MAX {
            return Err(Refusal::BadOptions);
        }
        let may_precede = |parent: &Parent| {
            // An unknown one is refused as such.
            let Some(parent) = find(&parent.job).filter(|parent| !parent.has_ended) else {
                return true;
            };
            // Nearly all: a job may have 100 parents, and each is 8 deep.
            if parent.member_of == keys.member_of || around.iter().all(|(_, o)| parent.order < *o) {
                return true;
            }
            let within: Vec<JobId> = chain(parent.member_of, find).map(|(id, _)| id).collect();
            around.iter().all(|(id, order)| parent.order < *order || within.contains(id))
        };
        if keys.after.iter().all(may_precede) { Ok(()) } else { Err(Refusal::Circular) }
    }

    /// What is known of a job, for others that join it or wait for it.
    pub(super) fn relative(&self, id: &JobId) -> Option<Relative> {
        let slot = self.rows.find(id)?;
        let row = &self.rows[slot];
        let batch = self.batch_of(slot);
        let takes_members = batch.is_some_and(|number| {
            // A closed one gets the members that were enqueued with it.
            let is_closed = self.batches.table[number].info.closed;
            row.substate == Substate::Waiting && (!is_closed || row.entry.index == self.index)
        });
        let (is_batch, member_of) = (batch.is_some(), self.member_of(slot));
        let has_ended = row.substate.is_retained();
        Some(Relative { order: row.order(), is_batch, takes_members, member_of, has_ended })
    }

    /// The batch that the job is, if it is one.
    pub(super) fn batch_of(&self, slot: u32) -> Option<u32> {
        self.side(&self.rows[slot])?.batch
    }

    /// The batch that the job is a member of.
    pub(super) fn enclosing(&self, slot: u32) -> Option<u32> {
        Some(self.profiles.keys(self.rows[slot].profile).batch).filter(|&number| number != NONE)
    }

    /// True of a member of the batch, or of one within it.
    pub(super) fn is_within_batch(&self, slot: u32, batch: u32) -> bool {
        let mut next = self.enclosing(slot);
        while let Some(number) = next {
            if number == batch {
                return true;
            }
            let job = self.batches.table[number].job;
            next = if job == NONE { None } else { self.enclosing(job) };
        }
        false
    }

    /// The number of a known batch, for its members.
    pub(super) fn batch_number(&self, id: &JobId) -> Option<u32> {
        self.batch_of(self.rows.find(id)?)
    }

    /// Members of a batch.
    pub(super) fn batch_info(&self, slot: u32) -> Option<BatchInfo> {
        Some(self.batches.table[self.batch_of(slot)?].info)
    }

    /// The batch that the job is a member of, whose row may be gone.
    pub(super) fn member_of(&self, slot: u32) -> Option<JobId> {
        Some(self.batches.table[self.enclosing(slot)?].id)
    }

    /// True of a batch within which a job has died.
    pub(super) fn had_death(&self, slot: u32) -> bool {
        self.batch_of(slot).is_some_and(|number| self.batches.table[number].has_died)
    }

    /// A new job is a batch.
    pub(super) fn enter_batch(&mut self, slot: u32, kind: NewBatch) {
        let info = BatchInfo { closed: kind == NewBatch::Closed, ..BatchInfo::default() };
        let id = self.rows[slot].id;
        let batch = Batch {
            id,
            job: slot,
            profiles: 0,
            info,
            has_died: false,
            has_batches: false,
            sweep: None,
            held: List::default(),
        };
        let number = self.batches.table.insert(batch);
        self.side_mut(slot).batch = Some(number);
        if let Some(around) = self.enclosing(slot) {
            self.batches.table[around].has_batches = true;
        }
        self.batches.change(number);
        self.enter_waiting(slot, &[]);
    }

    /// True if there is something to close.
    pub(super) fn is_closable(&self, slot: u32) -> bool {
        let is_open = self.rows[slot].substate.is_open();
        self.batch_info(slot).is_some_and(|info| info.closed || is_open)
    }

    pub(super) fn close_batch(&mut self, slot: u32) {
        if let Some(number) = self.batch_of(slot) {
            self.batches.change(number).closed = true;
        }
    }

    /// The batch's row is about to be removed.
    pub(super) fn leave_batch(&mut self, number: u32) {
        self.batches.table[number].job = NONE;
        self.release_members(number);
        self.batches.remove_unused(number);
    }

    /// A new job may be a member.
    #[inline]
    pub(super) fn count_new_member(&mut self, slot: u32) {
        if self.rows[slot].profile == DEFAULT {
            return;
        }
        if let Some(number) = self.enclosing(slot) {
            self.batches.change(number).open += 1;
        }
    }

    /// The job has ended.
    #[inline]
    pub(super) fn count_ended_member(&mut self, slot: u32) {
        // Most jobs have no profile of their own: this check is all that batches cost them.
        if self.rows[slot].profile != DEFAULT {
            self.count_end(slot);
        }
    }

    #[inline(never)]
    fn count_end(&mut self, slot: u32) {
        let Some(number) = self.enclosing(slot) else { return };
        let end = End::of(self.rows[slot].substate);
        let info = self.batches.change(number);
        info.open -= 1;
        match end {
            Some(End::Completed) => info.completed += 1,
            Some(End::Died) => {
                info.dead += 1;
                self.mark_member_death(number);
            }
            _ => info.cancelled += 1,
        }
    }

    /// A job of the batch has died: a death of it and of those around it, unless they have ended.
    fn mark_member_death(&mut self, number: u32) {
        let mut next = Some(number);
        while let Some(number) = next {
            let slot = self.batches.table[number].job;
            if slot == NONE || self.rows[slot].substate.is_retained() {
                return;
            }
            self.batches.table[number].has_died = true;
            if let Some(node) = self.side(&self.rows[slot]).and_then(|side| side.node) {
                self.graph.mark(node, End::MemberDied);
            }
            next = self.enclosing(slot);
        }
    }

    /// The dead job is about to be revived.
    pub(super) fn count_revived_member(&mut self, slot: u32) {
        if let Some(number) = self.enclosing(slot) {
            let info = self.batches.change(number);
            (info.dead, info.open) = (info.dead - 1, info.open + 1);
        }
    }

    /// The job is about to be removed.
    #[inline]
    pub(super) fn count_removed_member(&mut self, slot: u32) {
        if self.rows[slot].profile != DEFAULT && !self.rows[slot].substate.is_retained() {
            self.count_removal(slot);
        }
    }

    #[inline(never)]
    fn count_removal(&mut self, slot: u32) {
        let Some(number) = self.enclosing(slot) else { return };
        let is_dead = self.rows[slot].substate == Substate::Dead;
        let info = self.batches.change(number);
        let of = if is_dead { &mut info.dead } else { &mut info.open };
        *of -= 1;
        info.cancelled += 1;
    }

    /// A job of that profile takes the place of one that was just removed from this batch: it is no
    /// cancelled member if the new one is of the same batch.
    pub(super) fn keep_membership(&mut self, batch: Option<u32>, profile: u32) {
        if let Some(number) = batch.filter(|&batch| self.profiles.keys(profile).batch == batch) {
            self.batches.change(number).cancelled -= 1;
        }
    }

    /// The batch has ended as cancelled or expired.
    pub(super) fn cancel_members(&mut self, number: u32) {
        let batch = &self.batches.table[number];
        if batch.info.open > 0 || batch.sweep.is_some() {
            self.batches.sweep(number, Sweep::Cancel);
        }
    }

    /// True of an open batch within which a job has died: members may wait for its success, so that
    /// the batch does not end.
    pub(super) fn is_open_after_death(&self, slot: u32) -> bool {
        self.rows[slot].substate == Substate::Waiting && self.had_death(slot)
    }

    /// Revives the dead members of a batch, and itself if it is dead.
    pub(super) fn revive_batch(&mut self, slot: u32, number: u32, out: &mut Outcomes) {
        if self.rows[slot].substate == Substate::Dead {
            self.reopen_batch(slot, out);
        }
        self.batches.sweep(number, Sweep::Revive);
        self.batches.change(number);
    }

    fn reopen_batch(&mut self, slot: u32, out: &mut Outcomes) {
        let now_ms = self.now.wall_ms;
        let side = self.side_mut(slot);
        side.expires_at = side.expires_at.filter(|&at| at > now_ms);
        self.leave_substate(slot);
        self.count_revived_member(slot);
        self.enter_waiting(slot, &[]);
        self.emit(slot, JobChange::Revived, out);
    }

    /// Cancels or revives members: examines at most 100,000 rows and changes 10,000 jobs; the rest
    /// with the next tick.
    pub(super) fn sweep_members(&mut self, out: &mut Outcomes) {
        let (mut rows, mut left) = (self.rules.step_rows, self.rules.step_jobs);
        while self.batches.is_sweeping() && rows > 0 && left > 0 {
            rows -= 1;
            steps::count(1);
            let slot = self.batches.next_row;
            left -= u64::from(self.sweep_row(slot, out));
            let next = if slot + 1 < self.rows.allocated() { slot + 1 } else { 0 };
            self.batches.next_row = next;
            // Those that began there have been everywhere. None is left for the next tick, which
            // would go round again for it.
            while let Some(&(_, number)) =
                self.batches.sweeping.range((next, 0)..=(next, NONE)).next()
            {
                left = left.saturating_sub(1);
                self.batches.end_sweep(number);
            }
        }
    }

    /// True if the sweep changed the job.
    fn sweep_row(&mut self, slot: u32, out: &mut Outcomes) -> bool {
        let Some(number) = self.enclosing(slot) else { return false };
        let substate = self.rows[slot].substate;
        match self.batches.table[number].sweep.map(|(sweep, _)| sweep) {
            Some(Sweep::Cancel) if substate.is_open() => self.cancel_job(slot, out),
            Some(Sweep::Revive) if substate == Substate::Dead && self.rival_of(slot).is_none() => {
                self.revive_job(slot, 0, out);
            }
            Some(Sweep::Revive) if self.is_open_after_death(slot) => self.revive_job(slot, 0, out),
            _ => return false,
        }
        // A batch that was removed is gone with its last member.
        let is_done = self.batches.table.get(number).is_some_and(|batch| match batch.sweep {
            Some((Sweep::Cancel, _)) => batch.info.open == 0,
            Some((Sweep::Revive, _)) => batch.info.dead == 0 && !batch.has_batches,
            None => false,
        });
        if is_done {
            self.batches.end_sweep(number);
        }
        true
    }

    /// Ends the batches whose last member has ended, and reopens those whose members were revived,
    /// and the batches around them.
    #[inline]
    pub(super) fn settle_batches(&mut self, out: &mut Outcomes) {
        while let Some(number) = self.batches.changed.pop() {
            self.settle_batch(number, out);
        }
    }

    fn settle_batch(&mut self, number: u32, out: &mut Outcomes) {
        let Some(batch) = self.batches.table.get(number).filter(|batch| batch.job != NONE) else {
            return;
        };
        let BatchInfo { closed, open, completed: _, dead, cancelled } = batch.info;
        let slot = batch.job;
        let is_reviving = batch.sweep.is_some_and(|(sweep, _)| sweep == Sweep::Revive);
        match self.rows[slot].substate {
            Substate::Waiting if !closed || open > 0 || is_reviving => {}
            Substate::Waiting if dead > 0 => {
                self.bury_job(slot, DeathReason::MemberDead, JobChange::MemberDead, out);
            }
            Substate::Waiting if cancelled > 0 => {
                self.end_job(slot, Substate::Cancelled, JobChange::Cancelled, out);
            }
            Substate::Waiting => {
                self.queues[self.rows[slot].queue as usize].completed += 1;
                self.end_job(slot, Substate::Completed, JobChange::Completed, out);
            }
            Substate::Dead if open > 0 => {
                self.reopen_batch(slot, out);
                self.batches.change(number);
            }
            _ => {}
        }
    }

    /// Batches fit to their rows, members and profiles: for snapshots and for the invariant.
    pub(super) fn check_batches(&self) -> Result<(), &'static str> {
        let Batches { table, changed, sweeping, releasing: _, next_row } = &self.batches;
        let mut counts = vec![(0, 0, 0); table.allocated()];
        for (_, profile) in self.profiles.table().iter() {
            let batch = profile.keys.batch;
            if batch != NONE {
                table.get(batch).ok_or("a profile of an unknown batch")?;
                counts[batch as usize].0 += 1;
            }
        }
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            if let Some(number) = self.batch_of(slot)
                && table.get(number).map(|batch| batch.job) != Some(slot)
            {
                return Err("a job with another's batch");
            }
            if let Some(number) = self.enclosing(slot) {
                let count = &mut counts[number as usize];
                count.1 += u64::from(row.substate.is_open());
                count.2 += u64::from(row.substate == Substate::Dead);
            }
        }
        for (number, batch) in table.iter() {
            let (profiles, open, dead) = counts[number as usize];
            if (batch.profiles, batch.info.open, batch.info.dead) != (profiles, open, dead) {
                return Err("the members of a batch are miscounted");
            }
            let is_its =
                |job: u32| job < self.rows.allocated() && self.batch_of(job) == Some(number);
            let is_used = profiles > 0 || !batch.held.is_empty();
            if if batch.job == NONE { !is_used } else { !is_its(batch.job) } {
                return Err("a batch that nobody needs, or without its job");
            }
            let is_listed = |(_, start)| sweeping.contains(&(start, number));
            if !batch.sweep.is_none_or(is_listed) {
                return Err("the sweeps of batches differ");
            }
        }
        let has_ended = |batch: &Batch| {
            let is_open = batch.job == NONE || self.rows[batch.job].substate.is_open();
            let done = batch.info.closed && batch.info.open == 0 && batch.sweep.is_none();
            batch.job == NONE || !(is_open && done)
        };
        let sweeps = table.iter().filter_map(|(_, batch)| batch.sweep).count();
        let is_row = |row: u32| row == 0 || row < self.rows.allocated();
        let is_whole = changed.is_empty()
            && sweeps == sweeping.len()
            && sweeping.iter().map(|&(start, _)| start).chain([*next_row]).all(is_row)
            && table.iter().all(|(_, batch)| has_ended(batch));
        if is_whole { Ok(()) } else { Err("a batch that should have ended, or its sweep") }
    }
}

/// A batch and those around it, the innermost first: one more than there may be, at most.
fn chain(
    batch: Option<JobId>,
    find: &impl Fn(&JobId) -> Option<Relative>,
) -> impl Iterator<Item = (JobId, Order)> {
    let known = move |id: JobId| Some((id, find(&id)?));
    let all =
        std::iter::successors(batch.and_then(known), move |(_, around)| known(around.member_of?));
    all.map(|(id, around)| (id, around.order)).take(BATCH_DEPTH_MAX + 1)
}

impl Encode for Batch {
    fn encode(&self, out: &mut FrameWriter) {
        self.id.encode(out);
        put_index(out, self.job);
        out.u64(u64::from(self.profiles));
        self.info.encode(out);
        out.bool(self.has_died);
        out.bool(self.has_batches);
        out.u8(self.sweep.map_or(0, |(sweep, _)| 1 + sweep as u8));
        if let Some((_, start)) = self.sweep {
            out.u64(u64::from(start));
        }
        self.held.encode(out);
    }
}

impl Decode for Batch {
    fn decode(r: &mut Reader) -> Result<Batch, WireError> {
        let (id, job, profiles) = (JobId::decode(r)?, index(r)?, r.u32()?);
        let info = BatchInfo::decode(r)?;
        let (has_died, has_batches) = (r.bool()?, r.bool()?);
        let invalid = r.invalid("sweep of a batch");
        let sweep = match r.u8()? {
            0 => None,
            1 => Some((Sweep::Cancel, r.u32()?)),
            2 => Some((Sweep::Revive, r.u32()?)),
            _ => return Err(invalid),
        };
        let held = List::decode(r)?;
        Ok(Batch { id, job, profiles, info, has_died, has_batches, sweep, held })
    }
}
