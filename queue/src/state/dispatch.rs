//! Assigns jobs to credits.
//!
//! Subscriptions with the same sources form a *group*. A group knows the heads of the queues that
//! it matches, and its [lanes](super::lanes) choose the next. While it has jobs and credits, its
//! subscriptions take turns; a turn is the subscription's even share, at most 64 jobs. Overlapping
//! groups take turns command by command. A [paused](super::pause) queue has no jobs for its groups.
//! A [delivery budget](super::delivery_budget) may limit how many jobs are delivered.
//!
//! A job that has expired when it would be delivered expires instead; one that does not fit a
//! [limit](super::limit) waits, or its queue is held back: in one bounded step per command. A group
//! that finds more of them is *stalled*: the next command continues with it, and the next `Tick` is
//! due at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use longshore_protocol::messages::work::{Sources, Waiting};
use longshore_protocol::{LinkId, Path, PathSet};

use super::State;
use super::lanes::Lanes;
use super::ready::Head;
use super::row::NONE;
use super::slab::Slab;
use super::steps;
use crate::outcome::{Outcomes, Reply};

/// A subscription of a link.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    pub(super) link: LinkId,
    pub(super) session: u32,
    /// The link's number for it.
    pub(super) number: u32,
    pub(super) group: u32,
    pub(super) credit: u32,
    /// It waits for a free handler, among the parked ones of its session. Not in snapshots.
    pub(super) is_parked: bool,
    /// Its neighbours among its group's waiting subscriptions.
    pub(super) before: u32,
    pub(super) after: u32,
}

/// Sources, and the queues among them that a client may take jobs of.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PermittedSources {
    pub(super) sources: Sources,
    /// None for all.
    pub(super) within: Option<Arc<PathSet>>,
}

impl PermittedSources {
    /// The lane of a queue with that path; none if it is of no source, or not permitted.
    pub(super) fn lane_of(&self, path: &Path) -> Option<u32> {
        let is_permitted = self.within.as_ref().is_none_or(|within| within.contains(path));
        is_permitted.then(|| Lanes::lane_of(&self.sources, path)).flatten()
    }
}

/// The subscriptions with the same sources.
#[derive(Clone, Debug)]
pub(super) struct SubscriptionGroup {
    pub(super) sources: PermittedSources,
    pub(super) subscriptions: u32,
    /// The heads of the matching queues that have ready jobs.
    pub(super) lanes: Lanes,
    /// Ready jobs of all these queues, paused ones excluded.
    pub(super) ready: u64,
    /// Subscriptions with credit that are not parked, in the order of their turns.
    pub(super) waiting: TurnQueue,
    /// Credits of all its subscriptions.
    pub(super) credits: u64,
    /// Subscriptions without credit that were not notified of jobs since they last had some.
    pub(super) unnotified: BTreeSet<u32>,
    /// It is on the list of groups to serve.
    pub(super) is_queued: bool,
}

/// A linked list of subscriptions: one that ends leaves it in constant time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TurnQueue {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) count: u32,
}

impl Default for TurnQueue {
    fn default() -> TurnQueue {
        TurnQueue { head: NONE, tail: NONE, count: 0 }
    }
}

impl TurnQueue {
    /// The next in turn.
    pub(super) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn push_back(&mut self, all: &mut Slab<Subscription>, index: u32) {
        let last = std::mem::replace(&mut self.tail, index);
        let subscription = &mut all[index];
        (subscription.before, subscription.after) = (last, NONE);
        match last {
            NONE => self.head = index,
            last => all[last].after = index,
        }
        self.count += 1;
    }

    pub(super) fn unlink(&mut self, all: &mut Slab<Subscription>, index: u32) {
        steps::count(1);
        let subscription = &mut all[index];
        let before = std::mem::replace(&mut subscription.before, NONE);
        let after = std::mem::replace(&mut subscription.after, NONE);
        match before {
            NONE => self.head = after,
            before => all[before].after = after,
        }
        match after {
            NONE => self.tail = before,
            after => all[after].before = before,
        }
        self.count -= 1;
    }
}

impl SubscriptionGroup {
    pub(super) fn new(sources: PermittedSources) -> SubscriptionGroup {
        SubscriptionGroup {
            lanes: Lanes::of(&sources.sources),
            sources,
            subscriptions: 0,
            ready: 0,
            waiting: TurnQueue::default(),
            credits: 0,
            unnotified: BTreeSet::new(),
            is_queued: false,
        }
    }

    fn wants_jobs(&self) -> bool {
        self.waiting.count > 0 || !self.unnotified.is_empty()
    }
}

/// Subscriptions, groups, and what the current command has changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Dispatch {
    pub(super) subscriptions: Slab<Subscription>,
    pub(super) groups: Slab<SubscriptionGroup>,
    /// Credits of all groups.
    pub(super) credits: u64,
    /// Only for lookups, never iterated.
    pub(super) by_sources: HashMap<PermittedSources, u32>,
    /// Queues whose heads or counts may have changed. Empty between commands.
    changed_queues: Vec<u32>,
    /// Groups to serve. Empty between commands.
    queued_groups: Vec<u32>,
    /// Groups with jobs and credits whose next job has expired, or does not fit: the next command
    /// serves them, too.
    pub(super) stalled: BTreeSet<u32>,
    /// Sessions with parked subscriptions that may have a free handler. Empty between commands.
    pub(super) freed: Vec<u32>,
    /// How many jobs this command may still expire, or hold back, instead of delivering them; and
    /// how many queues.
    may_skip: u64,
}

impl Dispatch {
    /// Removes a group that is served no more. Its queues still list it.
    pub(super) fn remove_group(&mut self, group: u32) -> Option<SubscriptionGroup> {
        let removed = self.groups.remove(group)?;
        self.by_sources.remove(&removed.sources);
        self.stalled.remove(&group);
        Some(removed)
    }

    /// Groups were removed: they are not served.
    pub(super) fn forget_removed(&mut self) {
        let groups = &self.groups;
        self.queued_groups.retain(|&group| groups.get(group).is_some());
    }

    /// True between commands: nothing is left to update or serve.
    pub(super) fn is_settled(&self) -> bool {
        self.changed_queues.is_empty() && self.queued_groups.is_empty() && self.freed.is_empty()
    }
}

impl State {
    /// The ready jobs of a queue have changed.
    pub(super) fn mark_changed(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        if !q.is_changed {
            q.is_changed = true;
            self.dispatch.changed_queues.push(queue);
        }
    }

    /// A group has new credit.
    pub(super) fn queue_group(&mut self, group: u32) {
        let g = &mut self.dispatch.groups[group];
        if !g.is_queued {
            g.is_queued = true;
            self.dispatch.queued_groups.push(group);
        }
    }

    /// Delivers ready jobs to waiting credits, for everything that the command has changed.
    pub(super) fn dispatch_jobs(&mut self, out: &mut Outcomes) {
        let mut changed_queues = std::mem::take(&mut self.dispatch.changed_queues);
        for queue in changed_queues.drain(..) {
            self.queues[queue as usize].is_changed = false;
            self.reconsider(queue);
            self.update_groups_of(queue);
            self.queue_groups_of(queue);
        }
        self.dispatch.may_skip = self.rules.step_jobs;
        for group in std::mem::take(&mut self.dispatch.stalled) {
            self.queue_group(group);
        }
        // Before other queues of their groups take the credits: the next job of a group is that
        // with the highest priority, and then the oldest.
        self.serve_lines(out);
        self.serve_parked(out);
        let mut queued_groups = std::mem::take(&mut self.dispatch.queued_groups);
        for &group in &queued_groups {
            self.serve(group, out);
        }
        self.serve_lines(out);
        queued_groups.append(&mut self.dispatch.queued_groups);
        // Queues whose jobs expired instead are marked as changed, but their groups are up to date.
        for queue in self.dispatch.changed_queues.drain(..) {
            self.queues[queue as usize].is_changed = false;
        }
        if self.delivery_budget == 0 {
            // The next budget queues all groups.
            self.dispatch.stalled.clear();
        }
        // Only now is it known what is left: overlapping groups have all taken their jobs.
        let open = self.open_queues();
        for &queue in &open {
            for nth in 0..self.queues[queue as usize].groups.len() {
                let group = self.queues[queue as usize].groups[nth].group;
                self.notify_waiting(group, &open, out);
            }
        }
        for group in queued_groups.drain(..) {
            self.dispatch.groups[group].is_queued = false;
            self.notify_waiting(group, &open, out);
        }
        // The lists keep their memory for the next command.
        self.dispatch.changed_queues = changed_queues;
        self.dispatch.queued_groups = queued_groups;
    }

    fn queue_groups_of(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        let count = q.groups.len();
        if q.known_ready == 0 || count == 0 {
            return;
        }
        let first = q.turn as usize % count;
        q.turn = if count > 1 { ((first + 1) % count) as u32 } else { 0 };
        for nth in 0..count {
            let group = self.queues[queue as usize].groups[(first + nth) % count].group;
            if self.dispatch.groups[group].wants_jobs() {
                self.queue_group(group);
            }
        }
    }

    /// Updates a queue's groups with its current head and number of ready jobs.
    pub(super) fn update_groups_of(&mut self, queue: u32) {
        let q = &self.queues[queue as usize];
        let (head, ready) = match q.delivers() {
            true => (self.next_ready(queue).map(|(head, _)| head), q.ready.len() + q.fair_ready),
            false => (None, 0),
        };
        let q = &mut self.queues[queue as usize];
        let (known, counted) = (q.known_head, q.known_ready);
        (q.known_head, q.known_ready) = (head, ready);
        for member in &q.groups {
            let group = &mut self.dispatch.groups[member.group];
            group.ready = group.ready - counted + ready;
            if known != head {
                group.lanes.change(member.lane, queue, known, head);
            }
        }
    }

    /// Serves the groups of a queue that may deliver again.
    pub(super) fn serve_queue(&mut self, queue: u32, out: &mut Outcomes) {
        self.update_groups_of(queue);
        self.queue_groups_of(queue);
        let q = &self.queues[queue as usize];
        let (first, count) = (q.turn as usize, q.groups.len());
        for nth in 0..count {
            let group = self.queues[queue as usize].groups[(first + nth) % count].group;
            self.serve(group, out);
        }
    }

    /// Whether one more job or queue may be skipped. If not, the next command continues.
    pub(super) fn may_skip(&mut self) -> bool {
        let may_skip = self.dispatch.may_skip > 0;
        self.dispatch.may_skip -= u64::from(may_skip);
        may_skip
    }

    pub(super) fn serve(&mut self, group: u32, out: &mut Outcomes) {
        let g = &self.dispatch.groups[group];
        let jobs = g.ready.min(g.credits);
        let share =
            jobs.div_ceil(u64::from(g.waiting.count.max(1))).clamp(1, self.rules.turn_jobs.max(1));
        while let Some(subscription) = self.dispatch.groups[group].waiting.first() {
            let has_taken = self.take_turn(group, subscription, share, out);
            if !has_taken || self.dispatch.stalled.contains(&group) {
                break;
            }
        }
    }

    /// Notifies subscriptions without credit that jobs wait, also those of the `open` queues: once,
    /// until they have had credit again.
    fn notify_waiting(&mut self, group: u32, open: &[u32], out: &mut Outcomes) {
        let g = &self.dispatch.groups[group];
        if g.unnotified.is_empty() {
            return;
        }
        let open = open.iter().map(|&queue| &self.queues[queue as usize]);
        let open = open.filter(|q| q.groups.iter().any(|member| member.group == group));
        let jobs = g.ready + open.map(|q| q.counts.ready).sum::<u64>();
        if jobs == 0 {
            return;
        }
        let g = &mut self.dispatch.groups[group];
        while let Some(subscription) = g.unnotified.pop_first() {
            let s = &self.dispatch.subscriptions[subscription];
            let waiting = Waiting { subscription: s.number, jobs };
            out.replies.push((s.link, Reply::Waiting(waiting)));
        }
    }

    /// Delivers up to `share` jobs to the subscription at the front, or parks it if the next one
    /// needs a free handler. False if no job was left.
    fn take_turn(&mut self, group: u32, subscription: u32, share: u64, out: &mut Outcomes) -> bool {
        let credit = self.dispatch.subscriptions[subscription].credit;
        let most_jobs = share.min(u64::from(credit)).min(self.delivery_budget) as u32;
        let (mut delivered, mut is_held_back) = (0, false);
        while delivered < most_jobs && !is_held_back {
            let Some(next) = self.dispatch.groups[group].lanes.next() else { break };
            let most = next.most.min(most_jobs - delivered);
            let run;
            (run, is_held_back) = self.take_run(next.queue, next.bound, subscription, most, out);
            if run > 0 {
                self.dispatch.groups[group].lanes.charge(&next);
            }
            delivered += run;
            self.update_groups_of(next.queue);
            if self.dispatch.stalled.contains(&group) {
                break;
            }
        }
        if delivered == 0 && !is_held_back {
            return false;
        }
        self.debit_delivery_budget(delivered);
        self.dispatch.credits -= u64::from(delivered);
        let s = &mut self.dispatch.subscriptions[subscription];
        s.credit -= delivered;
        let spent = s.credit == 0;
        self.sessions.table[s.session].credits -= delivered;
        let g = &mut self.dispatch.groups[group];
        g.credits -= u64::from(delivered);
        g.waiting.unlink(&mut self.dispatch.subscriptions, subscription);
        if spent {
            g.unnotified.insert(subscription);
        } else if is_held_back {
            self.park(subscription);
        } else {
            g.waiting.push_back(&mut self.dispatch.subscriptions, subscription);
        }
        true
    }

    /// Delivers jobs of one queue while they precede every other queue's, until one needs a free
    /// handler: returns their number, and whether that is so. Expired jobs expire instead, and
    /// those without room wait, up to the command's limit: then the group is stalled.
    fn take_run(
        &mut self,
        queue: u32,
        bound: Option<(Head, u32)>,
        subscription: u32,
        most: u32,
        out: &mut Outcomes,
    ) -> (u32, bool) {
        let (mut delivered, mut has_skipped) = (0, false);
        while delivered < most {
            let Some((head, slot)) = self.next_ready(queue) else { break };
            if (delivered > 0 || has_skipped) && bound.is_some_and(|bound| bound < (head, queue)) {
                break;
            }
            let (is_expired, fits) = (self.is_expired(slot), self.fits_limits(queue, slot));
            if is_expired || !fits || !self.still_has_room(slot) {
                if !self.may_skip() {
                    let group = self.dispatch.subscriptions[subscription].group;
                    self.dispatch.stalled.insert(group);
                    break;
                }
                if is_expired {
                    self.expire_job(slot, out);
                } else if fits {
                    self.return_candidate(slot, out);
                } else {
                    self.hold_back(queue, slot);
                    break;
                }
                self.settle_turns(out);
                has_skipped = true;
                continue;
            }
            if self.waits_for_handler(slot, subscription) {
                return (delivered, true);
            }
            self.deliver_job(slot, subscription, out);
            self.settle_limit_keys(out);
            delivered += 1;
        }
        (delivered, false)
    }
}
