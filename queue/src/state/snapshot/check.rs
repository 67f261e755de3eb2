//! Whether a restored state's numbers lead anywhere, before anything is looked up by them.

use super::super::State;
use super::super::row::{NONE, Place};
use super::super::rows::List;
use super::SnapshotError;

impl State {
    /// Every number leads to something that is there.
    pub(super) fn check_numbers(&self) -> Result<(), SnapshotError> {
        let wrong = |what| Err(SnapshotError::Inconsistent(what));
        let is_row = |slot: u32| slot == NONE || slot < self.rows.made();
        let is_list = |list: &List| is_row(list.head) && is_row(list.tail);
        if !is_row(self.rows.free) {
            return wrong("the free row");
        }
        for slot in 0..self.rows.made() {
            let row = &self.rows[slot];
            let ends = row.place.is_kept() || row.place == Place::Dead;
            if ![row.prev, row.next].into_iter().all(is_row)
                || !ends && ![row.queue_prev, row.queue_next].into_iter().all(is_row)
            {
                return wrong("a link of a list");
            }
            if row.place == Place::Free {
                continue;
            }
            if row.queue as usize >= self.queues.len()
                || self.profiles.table().get(row.profile).is_none()
                || row.side != NONE && self.sides.get(row.side).is_none()
                || row.place == Place::Running && self.sessions.table.get(row.session).is_none()
                || row.place == Place::Completed && !self.names.is_known(row.session)
                || row.place == Place::Dead && self.dead.get(row.session).is_none()
                || row.entry.length < u32::from(row.head_len)
            {
                return wrong("a row");
            }
        }
        for (_, side) in self.sides.iter() {
            if side.attempts.iter().any(|attempt| !self.names.is_known(attempt.worker)) {
                return wrong("an attempt");
            }
        }
        for (_, group) in self.dead.table().iter() {
            if !is_list(&group.list) || group.queue as usize >= self.queues.len() {
                return wrong("dead letters");
            }
        }
        for queue in &self.queues {
            let lists = [queue.prepared, queue.scheduled, queue.running];
            let lists = lists.into_iter().chain([queue.kept.list, queue.kept.own]);
            let fresh = queue.ready.fresh_lists().map(|(_, list)| list);
            if !lists.chain(fresh).all(|list| is_list(&list))
                || queue
                    .groups
                    .iter()
                    .any(|member| self.dispatch.groups.get(member.group).is_none())
            {
                return wrong("a queue");
            }
        }
        let is_session = |session: u32| self.sessions.table.get(session).is_some();
        let is_subscription = |place: &u32| self.dispatch.subscriptions.get(*place).is_some();
        let queues = self.queues.len() as u32;
        for (_, session) in self.sessions.table.iter() {
            if !is_list(&session.held)
                || !self.names.is_known(session.name)
                || session.lost.values().any(|&queue| queue >= queues)
            {
                return wrong("a session");
            }
        }
        let is_turn = |place: u32| place == NONE || is_subscription(&place);
        for (_, s) in self.dispatch.subscriptions.iter() {
            if !is_session(s.session)
                || !is_turn(s.before)
                || !is_turn(s.after)
                || self.dispatch.groups.get(s.group).is_none()
            {
                return wrong("a subscription");
            }
        }
        for (_, group) in self.dispatch.groups.iter() {
            let ends = [group.waiting.head, group.waiting.tail];
            if !ends.into_iter().all(is_turn) || !group.untold.iter().all(is_subscription) {
                return wrong("a group");
            }
        }
        for link in self.links.values() {
            if !is_session(link.session) || !link.subscriptions.values().all(is_subscription) {
                return wrong("a link");
            }
        }
        Ok(())
    }
}
