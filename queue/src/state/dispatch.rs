//! Which job goes to which credit.
//!
//! Subscriptions with the same sources form a *group*. A group knows the heads of the queues that
//! it matches, and its [lanes](super::lanes) say which is next. While it has jobs and credits, its
//! subscriptions take turns; a turn is the subscription's even share of what is there, at most 64
//! jobs. Where groups overlap, they take turns command by command. To its groups a
//! [paused](super::pause) queue has no jobs. A [budget](super::handouts) may bound how many jobs
//! are handed out.
//!
//! What is past its time when it would be handed out expires instead, in one bounded step for each
//! command. A group that meets more of it is *stalled*: the next command goes on with it, and a
//! `Tick` is due at once.

use std::collections::{BTreeSet, HashMap};

use longshore_protocol::LinkId;
use longshore_protocol::messages::work::{Sources, Waiting};

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
    /// Its neighbours among its group's subscriptions that wait for their turn.
    pub(super) before: u32,
    pub(super) after: u32,
}

/// The subscriptions with the same sources.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) sources: Sources,
    pub(super) subscriptions: u32,
    /// The heads of the queues that it matches and that have ready jobs.
    pub(super) lanes: Lanes,
    /// Ready jobs of all those queues, without the paused ones.
    pub(super) ready: u64,
    /// Subscriptions with credit, in the order of their turns.
    pub(super) waiting: Turns,
    /// Credits of them all.
    pub(super) credits: u64,
    /// Subscriptions without credit that have not been told of jobs since they had some.
    pub(super) untold: BTreeSet<u32>,
    /// It is on the list of groups to be served.
    pub(super) called: bool,
}

/// A list that runs through subscriptions: one that ends leaves it at once, however many wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turns {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) count: u32,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { head: NONE, tail: NONE, count: 0 }
    }
}

impl Turns {
    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn push_back(&mut self, all: &mut Slab<Subscription>, place: u32) {
        let last = std::mem::replace(&mut self.tail, place);
        let subscription = &mut all[place];
        (subscription.before, subscription.after) = (last, NONE);
        match last {
            NONE => self.head = place,
            last => all[last].after = place,
        }
        self.count += 1;
    }

    pub(super) fn unlink(&mut self, all: &mut Slab<Subscription>, place: u32) {
        steps::count(1);
        let subscription = &mut all[place];
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

impl Group {
    pub(super) fn new(sources: Sources) -> Group {
        Group {
            lanes: Lanes::of(&sources),
            sources,
            subscriptions: 0,
            ready: 0,
            waiting: Turns::default(),
            credits: 0,
            untold: BTreeSet::new(),
            called: false,
        }
    }

    fn wants_jobs(&self) -> bool {
        self.waiting.count > 0 || !self.untold.is_empty()
    }
}

/// Subscriptions, groups, and what the command at hand has touched.
#[derive(Clone, Debug, Default)]
pub(super) struct Dispatch {
    pub(super) subscriptions: Slab<Subscription>,
    pub(super) groups: Slab<Group>,
    /// Credits of all groups.
    pub(super) credits: u64,
    /// Only looked up, never walked.
    pub(super) by_sources: HashMap<Sources, u32>,
    /// Queues whose heads or numbers may have changed. Empty between commands.
    touched: Vec<u32>,
    /// Groups to be served. Empty between commands.
    called: Vec<u32>,
    /// Groups that have jobs and credits, and whose next job is past its time: to be served by the
    /// next command, too.
    pub(super) stalled: BTreeSet<u32>,
    /// Jobs that this command may still let expire instead of handing them out.
    may_expire: usize,
}

impl Dispatch {
    /// A group is gone: it is not to be served.
    pub(super) fn forget(&mut self, group: u32) {
        self.called.retain(|&g| g != group);
        self.stalled.remove(&group);
    }

    /// True between commands: nothing is left to be brought up to date or served.
    pub(super) fn is_settled(&self) -> bool {
        self.touched.is_empty() && self.called.is_empty()
    }
}

impl State {
    /// The ready jobs of a queue have changed.
    pub(super) fn touch(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        if !q.touched {
            q.touched = true;
            self.dispatch.touched.push(queue);
        }
    }

    /// A group has credit that it did not have.
    pub(super) fn call(&mut self, group: u32) {
        let g = &mut self.dispatch.groups[group];
        if !g.called {
            g.called = true;
            self.dispatch.called.push(group);
        }
    }

    /// Hands ready jobs to waiting credits, for all that the command has touched.
    pub(super) fn hand_out(&mut self, out: &mut Outcomes) {
        let mut touched = std::mem::take(&mut self.dispatch.touched);
        for queue in touched.drain(..) {
            self.queues[queue as usize].touched = false;
            self.bring_up_to_date(queue);
            self.call_groups_of(queue);
        }
        self.dispatch.may_expire = self.rules.step_jobs as usize;
        for group in std::mem::take(&mut self.dispatch.stalled) {
            self.call(group);
        }
        let mut called = std::mem::take(&mut self.dispatch.called);
        for &group in &called {
            self.serve(group, out);
        }
        // What expired instead of being handed out has touched its queue, whose groups know that
        // already.
        for queue in self.dispatch.touched.drain(..) {
            self.queues[queue as usize].touched = false;
        }
        if self.handouts == 0 {
            // The next budget calls all groups.
            self.dispatch.stalled.clear();
        }
        // Only now is it known what is left: groups that overlap have all taken their jobs.
        for group in called.drain(..) {
            self.dispatch.groups[group].called = false;
            self.tell(group, out);
        }
        // The lists keep their memory for the next command.
        self.dispatch.touched = touched;
        self.dispatch.called = called;
    }

    fn call_groups_of(&mut self, queue: u32) {
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
                self.call(group);
            }
        }
    }

    /// Tells a queue's groups of its present head and number of ready jobs.
    pub(super) fn bring_up_to_date(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        let (head, ready) = match q.pauses {
            0 => (q.ready.next(&self.rows).map(|(head, _)| head), q.ready.len()),
            _ => (None, 0),
        };
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

    fn serve(&mut self, group: u32, out: &mut Outcomes) {
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

    /// Tells subscriptions without credit that jobs wait: once, until they have had credit again.
    fn tell(&mut self, group: u32, out: &mut Outcomes) {
        let g = &mut self.dispatch.groups[group];
        if g.ready == 0 {
            return;
        }
        while let Some(subscription) = g.untold.pop_first() {
            let s = &self.dispatch.subscriptions[subscription];
            let waiting = Waiting { subscription: s.number, jobs: g.ready };
            out.replies.push((s.link, Reply::Waiting(waiting)));
        }
    }

    /// Hands the subscription at the front up to `share` jobs. False when there was none left.
    fn take_turn(&mut self, group: u32, subscription: u32, share: u64, out: &mut Outcomes) -> bool {
        let credit = self.dispatch.subscriptions[subscription].credit;
        let wanted = share.min(u64::from(credit)).min(self.handouts) as u32;
        let mut taken = 0;
        while taken < wanted {
            let Some(next) = self.dispatch.groups[group].lanes.next() else { break };
            let most = next.most.min(wanted - taken);
            let run = self.take_run(next.queue, next.bound, subscription, most, out);
            if run > 0 {
                self.dispatch.groups[group].lanes.pay(&next);
            }
            taken += run;
            self.bring_up_to_date(next.queue);
            if self.dispatch.stalled.contains(&group) {
                break;
            }
        }
        if taken == 0 {
            return false;
        }
        self.debit_handouts(taken);
        self.dispatch.credits -= u64::from(taken);
        let s = &mut self.dispatch.subscriptions[subscription];
        s.credit -= taken;
        let spent = s.credit == 0;
        self.sessions.table[s.session].credits -= taken;
        let g = &mut self.dispatch.groups[group];
        g.credits -= u64::from(taken);
        g.waiting.unlink(&mut self.dispatch.subscriptions, subscription);
        if spent {
            g.untold.insert(subscription);
        } else {
            g.waiting.push_back(&mut self.dispatch.subscriptions, subscription);
        }
        true
    }

    /// Hands out jobs of one queue while they come before every other queue's. What is past its
    /// time expires instead, until the command has let enough of it expire: then the group is
    /// stalled.
    fn take_run(
        &mut self,
        queue: u32,
        bound: Option<(Head, u32)>,
        subscription: u32,
        most: u32,
        out: &mut Outcomes,
    ) -> u32 {
        let (mut taken, mut has_expired) = (0, false);
        while taken < most {
            let Some((head, slot)) = self.queues[queue as usize].ready.next(&self.rows) else {
                break;
            };
            if (taken > 0 || has_expired) && bound.is_some_and(|bound| bound < (head, queue)) {
                break;
            }
            if self.is_past(slot) {
                if self.dispatch.may_expire == 0 {
                    let group = self.dispatch.subscriptions[subscription].group;
                    self.dispatch.stalled.insert(group);
                    break;
                }
                self.dispatch.may_expire -= 1;
                self.expire_job(slot, out);
                has_expired = true;
                continue;
            }
            self.start_job(slot, subscription, out);
            taken += 1;
        }
        taken
    }
}
