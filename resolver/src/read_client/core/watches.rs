//! The watches of the core.

use std::sync::Arc;
use std::time::Instant;

use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{
    PathChanges, PathSnapshot, PublisherGone, Publishers,
};
use rand::Rng;

use super::{Action, ReadCore, Replica, State, Up};

/// The subject of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::read_client) enum Subject {
    /// Publishers that could serve what matches.
    Publishers(Glob),
    /// Paths that match one of the globs.
    Paths(Arc<[Glob]>),
}

/// An update of a watch.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::read_client) enum WatchUpdate {
    Publishers(Publishers),
    Gone(Arc<PublisherGone>),
    Snapshot(PathSnapshot),
    Changes(Arc<PathChanges>),
    /// The replica refuses the watch: it is tried elsewhere.
    Refused(String),
}

impl ReadCore {
    pub(super) fn watch(&mut self, now: Instant, watch: u32, subject: Subject) {
        if self.replicas.is_empty() {
            return;
        }
        self.watches.insert(watch, subject);
        match self.state {
            State::Idle => self.start_round(now),
            State::Up(_) => {
                self.send_watch(watch);
                self.send_watch_to_candidate(watch);
            }
            State::Dialling { .. } | State::Waiting { .. } => {}
        }
    }

    pub(super) fn unwatch(&mut self, now: Instant, watch: u32) {
        if self.watches.remove(&watch).is_none() {
            return;
        }
        let links: Vec<u64> = self.links().collect();
        for link in links {
            let request = self.take_request();
            self.actions.push(Action::Unwatch { link, request, watch });
        }
        if self.watches.is_empty() {
            self.drop_candidate();
            self.queue_waiting_batches(now);
        }
        let State::Up(up) = &mut self.state else { return };
        if up.refused.remove(&watch) && up.refused.is_empty() {
            up.try_elsewhere_at = None;
        }
    }

    /// Sends all watches over a link.
    pub(super) fn send_watches(&mut self, up: &mut Up) {
        let watches: Vec<u32> = self.watches.keys().copied().collect();
        watches.into_iter().for_each(|watch| self.send_watch_over(up, watch));
    }

    fn send_watch_over(&mut self, up: &mut Up, watch: u32) {
        let Some(subject) = self.watches.get(&watch).cloned() else { return };
        let (link, request) = (up.link, self.take_request());
        up.watch_requests.retain(|_, other| *other != watch);
        up.watch_requests.insert(request, watch);
        self.actions.push(Action::Watch { link, request, watch, subject });
    }

    fn take_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request - 1
    }

    /// Sends a watch over the link in use.
    pub(super) fn send_watch(&mut self, watch: u32) {
        if let State::Up(mut up) = std::mem::replace(&mut self.state, State::Idle) {
            self.send_watch_over(&mut up, watch);
            self.state = State::Up(up);
        }
    }

    fn send_watch_to_candidate(&mut self, watch: u32) {
        if let Some(mut candidate) = self.candidate.take() {
            if let Some(up) = candidate.up_if_linked() {
                self.send_watch_over(up, watch);
            }
            self.candidate = Some(candidate);
        }
    }

    pub(super) fn update_watch(
        &mut self,
        link: u64,
        replica: Replica,
        watch: u32,
        update: WatchUpdate,
    ) {
        if self.watches.contains_key(&watch) {
            self.actions.push(Action::Update { link, watch, replica, update });
        }
    }

    pub(super) fn publisher_gone(&mut self, link: u64, replica: Replica, gone: PublisherGone) {
        let gone = Arc::new(gone);
        for &watch in &gone.watches {
            self.update_watch(link, replica, watch, WatchUpdate::Gone(gone.clone()));
        }
    }

    pub(super) fn paths_changed(&mut self, link: u64, replica: Replica, changes: PathChanges) {
        let changes = Arc::new(changes);
        for &watch in &changes.watches {
            self.update_watch(link, replica, watch, WatchUpdate::Changes(changes.clone()));
        }
    }

    /// A full table of watches is no reason to leave a replica that answers: only the watch is
    /// without a replica, until the others are tried, one after the other. If none of them has
    /// room, they are tried at the pace of any watch.
    pub(super) fn watch_refused(&mut self, now: Instant, watch: u32, reason: String) {
        let State::Up(up) = &self.state else { return };
        let (link, replica) = (up.link, up.replica);
        if self.watches.contains_key(&watch) {
            self.update_watch(link, replica, watch, WatchUpdate::Refused(reason));
            self.pace_refused(now, watch);
        }
    }

    /// Schedules when a refused watch is tried elsewhere.
    pub(super) fn pace_refused(&mut self, now: Instant, watch: u32) {
        let State::Up(up) = &mut self.state else { return };
        up.refused.insert(watch);
        if up.try_elsewhere_at.is_none() {
            self.refusals = self.refusals.saturating_add(1);
            let wait = match self.refusals < self.replicas.len() {
                true => self.timing.retry_wait(self.random.next_u64()),
                false => self.timing.reader_ttl,
            };
            up.try_elsewhere_at = Some(now + wait);
        }
    }

    /// Sends the refused watches again.
    pub(super) fn send_refused_again(&mut self) {
        let State::Up(up) = &mut self.state else { return };
        up.try_elsewhere_at = None;
        let refused = std::mem::take(&mut up.refused);
        refused.into_iter().for_each(|watch| self.send_watch(watch));
    }
}
