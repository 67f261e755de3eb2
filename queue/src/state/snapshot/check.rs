//! Validates the indexes of a restored state before anything follows them.

use super::super::State;
use super::super::profile::{DEFAULT, KeyNumbers};
use super::super::row::{NONE, Row, Substate};
use super::super::rows::List;
use super::super::schedule::OCCURRENCE_AT;
use super::SnapshotError;

impl State {
    /// The job's keys are of its queue, and its substate goes with them.
    fn keys_fit(&self, row: &Row) -> bool {
        let KeyNumbers { order, share, limit, .. } = *self.profiles.keys(row.profile);
        let limit = self.limits.keys.entries().get(limit);
        let order = self.orders.table.entries().get(order);
        let share = self.shares.table.entries().get(share);
        order.is_none_or(|key| key.queue == row.queue)
            && share.is_none_or(|share| share.queue == row.queue)
            && limit.is_none_or(|key| key.queue == row.queue)
            && match row.substate {
                Substate::Fresh => share.is_none(),
                Substate::Limited => limit.is_some(),
                Substate::Blocked => order.is_some_and(|key| key.turn != NONE),
                _ => true,
            }
    }

    /// Every index refers to an existing entry.
    pub(super) fn check_numbers(&self) -> Result<(), SnapshotError> {
        let inconsistent = |what| Err(SnapshotError::Inconsistent(what));
        let is_row = |slot: u32| slot == NONE || slot < self.rows.allocated();
        let is_list = |list: &List| is_row(list.head) && is_row(list.tail);
        if !is_row(self.rows.free) {
            return inconsistent("the free row");
        }
        if *self.profiles.keys(DEFAULT) != KeyNumbers::EMPTY {
            return inconsistent("default options with keys");
        }
        for (_, profile) in self.profiles.table().iter() {
            let order = profile.keys.order;
            let share = profile.keys.share;
            let is_share = |number| {
                let share = self.shares.table.entries().get(number);
                share.is_some_and(|share| share.priority == profile.options.priority)
            };
            if order != NONE && self.orders.table.entries().get(order).is_none()
                || share != NONE && !is_share(share)
                || profile.keys.limit != NONE
                    && self.limits.keys.entries().get(profile.keys.limit).is_none()
            {
                return inconsistent("options");
            }
        }
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            // The others have a time there, or an edge.
            let has_links = row.substate.is_open() && row.substate != Substate::Waiting;
            if ![row.prev, row.next].into_iter().all(is_row)
                || has_links && ![row.queue_prev, row.queue_next].into_iter().all(is_row)
            {
                return inconsistent("a link of a list");
            }
            if row.substate == Substate::Free {
                continue;
            }
            if row.queue as usize >= self.queues.len()
                || self.profiles.table().get(row.profile).is_none()
                || !self.keys_fit(row)
                || row.side != NONE && self.sides.get(row.side).is_none()
                || row.substate == Substate::Running
                    && self.sessions.table.get(row.session).is_none()
                || row.substate == Substate::Completed
                    && !(self.names.is_known(row.session) || self.batch_of(slot).is_some())
                || row.substate == Substate::Dead && self.dead.get(row.session).is_none()
                || row.entry.length < u32::from(row.head_len)
                || (row.entry.at >= OCCURRENCE_AT) != self.template_number(row).is_some()
            {
                return inconsistent("a row");
            }
        }
        for (_, side) in self.sides.iter() {
            if side.attempts.iter().any(|attempt| !self.names.is_known(attempt.worker)) {
                return inconsistent("an attempt");
            }
            let key = side.unique.map(|unique| unique.key);
            if key.is_some_and(|key| self.uniques.table.entries().get(key).is_none()) {
                return inconsistent("the unique key of a job");
            }
        }
        for (_, group) in self.dead.table().iter() {
            if !is_list(&group.list) || group.queue as usize >= self.queues.len() {
                return inconsistent("dead letters");
            }
        }
        if self
            .keys
            .table()
            .entries()
            .iter()
            .any(|(_, held)| held.queue as usize >= self.queues.len())
        {
            return inconsistent("a key");
        }
        let shares = self.shares.table.entries();
        if shares.iter().any(|(_, share)| share.queue as usize >= self.queues.len()) {
            return inconsistent("a share");
        }
        let mut limit_keys = self.limits.keys.entries().iter();
        if limit_keys.any(|(_, key)| key.queue as usize >= self.queues.len()) {
            return inconsistent("a limit key");
        }
        for (number, key) in self.orders.table.entries().iter() {
            let has_key = |slot: u32| self.profiles.keys(self.rows[slot].profile).order == number;
            let may_have = |substate: Substate| {
                !substate.is_retained() && !matches!(substate, Substate::Blocked | Substate::Free)
            };
            let is_turn = |slot: u32| may_have(self.rows[slot].substate) && has_key(slot);
            if key.queue as usize >= self.queues.len()
                || !is_row(key.turn)
                || key.turn != NONE && !is_turn(key.turn)
            {
                return inconsistent("an order key");
            }
        }
        for (_, entry) in self.schedules.table.iter() {
            let queue = self.queues.get(entry.queue as usize);
            if queue.is_none_or(|queue| queue.path != entry.schedule.path) {
                return inconsistent("the queue of a schedule");
            }
        }
        let mut uniques = self.uniques.table.entries().iter();
        if uniques.any(|(_, key)| key.queue as usize >= self.queues.len()) {
            return inconsistent("a unique key");
        }
        for queue in &self.queues {
            let lists = [queue.prepared, queue.scheduled, queue.blocked, queue.running];
            let lists = lists.into_iter().chain([queue.ended.list, queue.ended.own]);
            let ready = queue.ready.lists().map(|(_, list)| list);
            if !lists.chain(ready).all(|list| is_list(&list))
                || queue
                    .groups
                    .iter()
                    .any(|member| self.dispatch.groups.get(member.group).is_none())
            {
                return inconsistent("a queue");
            }
        }
        let is_session = |session: u32| self.sessions.table.get(session).is_some();
        let is_subscription = |index: &u32| self.dispatch.subscriptions.get(*index).is_some();
        let queues = self.queues.len() as u32;
        for (_, session) in self.sessions.table.iter() {
            if !is_list(&session.leases)
                || !self.names.is_known(session.name)
                || session.revoked.values().any(|&queue| queue >= queues)
                || !session.parked.iter().all(is_subscription)
            {
                return inconsistent("a session");
            }
        }
        let is_turn = |index: u32| index == NONE || is_subscription(&index);
        for (_, s) in self.dispatch.subscriptions.iter() {
            if !is_session(s.session)
                || !is_turn(s.before)
                || !is_turn(s.after)
                || self.dispatch.groups.get(s.group).is_none()
            {
                return inconsistent("a subscription");
            }
        }
        for (_, group) in self.dispatch.groups.iter() {
            let ends = [group.waiting.head, group.waiting.tail];
            if !ends.into_iter().all(is_turn) || !group.unnotified.iter().all(is_subscription) {
                return inconsistent("a group");
            }
        }
        let mut of_links = 0;
        for (&id, link) in &self.links {
            let is_own = |(&number, &index): (&u32, &u32)| {
                let subscription = self.dispatch.subscriptions.get(index);
                subscription
                    .is_some_and(|s| (s.link, s.number, s.session) == (id, number, link.session))
            };
            if !is_session(link.session) || !link.subscriptions.iter().all(is_own) {
                return inconsistent("a link");
            }
            of_links += link.subscriptions.len();
        }
        if of_links != self.dispatch.subscriptions.len() {
            return inconsistent("a subscription without a link");
        }
        Ok(())
    }
}
