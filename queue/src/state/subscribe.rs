//! Subscriptions and credits.

use std::collections::BTreeSet;
use std::sync::Arc;

use longshore_protocol::messages::work::{Credit, Sources};
use longshore_protocol::{LinkId, PathSet};

use super::State;
use super::dispatch::{PermittedSources, Subscription, SubscriptionGroup};
use super::queue::{Member, Queue};
use super::row::NONE;
use super::steps;
use crate::outcome::{Outcomes, Reply};

impl State {
    pub(super) fn subscribe(
        &mut self,
        link: LinkId,
        number: u32,
        (sources, handlers): (&Sources, u32),
        out: &mut Outcomes,
    ) {
        let (patterns, most) = (sources.patterns.len() as u64, self.rules.patterns_per_link);
        let Some(up) = self.links.get(&link) else { return };
        let refusal = if up.subscriptions.contains_key(&number) {
            Some(format!("the link has a subscription {number} already"))
        } else if up.patterns + patterns > most {
            Some(format!(
                "{patterns} patterns and the {} of the link's other subscriptions are over the \
                 limit of {most}; combine several in one: /jobs/{{a,b}}",
                up.patterns
            ))
        } else {
            None
        };
        if let Some(reason) = refusal {
            out.replies.push((link, Reply::SubscribeRefused { subscription: number, reason }));
            return;
        }
        let session = up.session;
        self.sessions.table[session].handlers = handlers;
        self.free_handler(session);
        let group = self.group_of(&self.permitted(session, sources));
        let subscription = Subscription {
            link,
            session,
            number,
            group,
            credit: 0,
            is_parked: false,
            before: NONE,
            after: NONE,
        };
        let index = self.dispatch.subscriptions.insert(subscription);
        let g = &mut self.dispatch.groups[group];
        g.subscriptions += 1;
        g.unnotified.insert(index);
        if let Some(up) = self.links.get_mut(&link) {
            up.subscriptions.insert(number, index);
            up.patterns += patterns;
        }
        self.queue_group(group);
    }

    pub(super) fn unsubscribe(&mut self, link: LinkId, number: u32) {
        let Some(up) = self.links.get_mut(&link) else { return };
        if let Some(subscription) = up.subscriptions.remove(&number) {
            let group = &self.dispatch.groups[self.dispatch.subscriptions[subscription].group];
            up.patterns -= group.sources.sources.patterns.len() as u64;
            self.drop_subscriptions([subscription]);
        }
    }

    /// Adds credit, up to the limits of credits per subscription and of leases per session; credit
    /// beyond either is not counted.
    pub(super) fn credit(&mut self, link: LinkId, number: u32, count: u32) {
        let Some(index) = self.subscription_of(link, number) else { return };
        let subscription = &mut self.dispatch.subscriptions[index];
        let session = &mut self.sessions.table[subscription.session];
        let (most, leases) = (self.rules.credits as u32, self.rules.leases_per_session as u32);
        let leases = leases.saturating_sub(session.lease_count + session.credits);
        let count = count.min(most.saturating_sub(subscription.credit)).min(leases);
        if count == 0 {
            return;
        }
        self.add_credit(index, count);
    }

    fn add_credit(&mut self, index: u32, count: u32) {
        if count == 0 {
            return;
        }
        let subscription = &mut self.dispatch.subscriptions[index];
        let session = &mut self.sessions.table[subscription.session];
        let had_none = subscription.credit == 0;
        subscription.credit += count;
        session.credits += count;
        let group = subscription.group;
        let g = &mut self.dispatch.groups[group];
        g.credits += u64::from(count);
        self.dispatch.credits += u64::from(count);
        if had_none {
            g.unnotified.remove(&index);
            g.waiting.push_back(&mut self.dispatch.subscriptions, index);
        }
        self.queue_group(group);
    }

    /// Takes back credit, and answers with the amount taken.
    pub(super) fn recall(&mut self, link: LinkId, number: u32, count: u32, out: &mut Outcomes) {
        let Some(index) = self.subscription_of(link, number) else { return };
        let count = count.min(self.dispatch.subscriptions[index].credit);
        self.take_credit(index, count);
        let returned = Credit { subscription: number, count };
        out.replies.push((link, Reply::Returned(returned)));
    }

    /// Removes subscriptions that their link no longer refers to.
    pub(super) fn drop_subscriptions(&mut self, all: impl IntoIterator<Item = u32>) {
        let mut left = Vec::new();
        for index in all {
            let Subscription { credit, group, .. } = self.dispatch.subscriptions[index];
            self.take_credit(index, credit);
            self.dispatch.subscriptions.remove(index);
            self.leave_group(index, group);
            left.push(group);
        }
        self.drop_empty_groups(&left);
    }

    /// Removes a subscription without credit from its group, which may be empty then.
    fn leave_group(&mut self, index: u32, group: u32) {
        let g = &mut self.dispatch.groups[group];
        g.unnotified.remove(&index);
        g.subscriptions -= 1;
    }

    /// Adds a new queue to the groups that match it.
    pub(super) fn join_groups(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        let groups = self.dispatch.groups.iter();
        let member = |(group, g): (u32, &SubscriptionGroup)| {
            g.sources.lane_of(&q.path).map(|lane| Member { group, lane })
        };
        q.groups = groups.filter_map(member).collect();
    }

    fn subscription_of(&self, link: LinkId, number: u32) -> Option<u32> {
        self.links.get(&link)?.subscriptions.get(&number).copied()
    }

    fn take_credit(&mut self, index: u32, count: u32) {
        if count == 0 {
            return;
        }
        let subscription = &mut self.dispatch.subscriptions[index];
        subscription.credit -= count;
        let (group, left) = (subscription.group, subscription.credit);
        self.sessions.table[subscription.session].credits -= count;
        self.dispatch.credits -= u64::from(count);
        let g = &mut self.dispatch.groups[group];
        g.credits -= u64::from(count);
        if left == 0 {
            g.unnotified.insert(index);
            if self.dispatch.subscriptions[index].is_parked {
                self.forget_parked(index);
            } else {
                g.waiting.unlink(&mut self.dispatch.subscriptions, index);
            }
            self.queue_group(group);
        }
    }

    fn permitted(&self, session: u32, sources: &Sources) -> PermittedSources {
        let within = self.sessions.table[session].work.clone();
        PermittedSources { sources: sources.clone(), within }
    }

    /// The queues whose jobs the link may take have changed.
    pub(super) fn permit(&mut self, link: LinkId, work: Option<&PathSet>) {
        let Some(up) = self.links.get(&link) else { return };
        let (session, all) = (up.session, up.subscriptions.values().copied().collect::<Vec<_>>());
        self.sessions.table[session].work = work.cloned().map(Arc::new);
        let groups: Vec<u32> =
            all.iter().map(|&index| self.dispatch.subscriptions[index].group).collect();
        for index in all {
            self.move_subscription(index);
        }
        self.drop_empty_groups(&groups);
    }

    /// Moves a subscription, with its credit, to the group of what its session may take.
    fn move_subscription(&mut self, index: u32) {
        let Subscription { session, credit, group: before, .. } =
            self.dispatch.subscriptions[index];
        let sources = self.permitted(session, &self.dispatch.groups[before].sources.sources);
        let after = self.group_of(&sources);
        if after == before {
            return;
        }
        self.take_credit(index, credit);
        self.leave_group(index, before);
        self.dispatch.subscriptions[index].group = after;
        let g = &mut self.dispatch.groups[after];
        g.subscriptions += 1;
        g.unnotified.insert(index);
        self.queue_group(after);
        self.add_credit(index, credit);
    }

    fn group_of(&mut self, sources: &PermittedSources) -> u32 {
        if let Some(&group) = self.dispatch.by_sources.get(sources) {
            return group;
        }
        let mut group = SubscriptionGroup::new(sources.clone());
        let number = self.dispatch.groups.insert(SubscriptionGroup::new(sources.clone()));
        for (queue, lane) in self.queues_of(sources) {
            let q = &mut self.queues[queue as usize];
            q.groups.push(Member { group: number, lane });
            group.ready += q.known_ready;
            group.lanes.change(lane, queue, None, q.known_head);
        }
        self.dispatch.groups[number] = group;
        self.dispatch.by_sources.insert(sources.clone(), number);
        number
    }

    /// Removes those of the groups that have no subscription. Each queue is visited once for all of
    /// them, as a link may end with a thousand patterns.
    fn drop_empty_groups(&mut self, groups: &[u32]) {
        let mut queues = BTreeSet::new();
        // Once as many are found as there are queues, all of them are visited.
        let mut left = self.queues.len();
        for &number in groups {
            let is_empty = |g: &SubscriptionGroup| g.subscriptions == 0;
            if !self.dispatch.groups.get(number).is_some_and(is_empty) {
                continue;
            }
            let Some(group) = self.dispatch.remove_group(number) else { continue };
            for source in &group.sources.sources.patterns {
                for (_, queue) in self.paths.candidates(&source.pattern).take(left) {
                    left -= 1;
                    steps::count(1);
                    queues.insert(queue);
                }
            }
        }
        self.dispatch.forget_removed();
        let (all, groups) = (&mut self.queues, &self.dispatch.groups);
        let forget = |queue: &mut Queue| {
            steps::count(1 + queue.groups.len() as u64);
            queue.groups.retain(|member| groups.get(member.group).is_some());
        };
        match left {
            0 => all.iter_mut().for_each(forget),
            _ => queues.iter().for_each(|&queue: &u32| forget(&mut all[queue as usize])),
        }
    }

    /// The queues that the sources match, each once and with its lane.
    pub(super) fn queues_of(&self, sources: &PermittedSources) -> Vec<(u32, u32)> {
        let patterns = sources.sources.patterns.iter();
        let mut queues: Vec<u32> =
            patterns.flat_map(|source| self.queues_matching(&source.pattern)).collect();
        queues.sort_unstable();
        queues.dedup();
        let lane = |queue: u32| sources.lane_of(&self.queues[queue as usize].path);
        queues.into_iter().filter_map(|queue| Some((queue, lane(queue)?))).collect()
    }
}
