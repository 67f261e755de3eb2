//! What is watched.

use std::time::Instant;

use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::Publishers;
use rand::Rng;

use super::{Action, ReadCore, Replica, State, Up};

impl ReadCore {
    pub(super) fn watch(&mut self, now: Instant, watch: u32, glob: Glob) {
        if self.replicas.is_empty() {
            return;
        }
        self.watches.insert(watch, glob.clone());
        match self.state {
            State::Idle => self.start_round(now),
            State::Up(_) => {
                let links: Vec<u64> = self.links().collect();
                for link in links {
                    self.actions.push(Action::Watch { link, watch, glob: glob.clone() });
                }
            }
            State::Dialling { .. } | State::Waiting { .. } => {}
        }
    }

    pub(super) fn unwatch(&mut self, now: Instant, watch: u32) {
        if self.watches.remove(&watch).is_none() {
            return;
        }
        let links: Vec<u64> = self.links().collect();
        self.actions.extend(links.into_iter().map(|link| Action::Unwatch { link, watch }));
        if self.watches.is_empty() {
            self.drop_candidate();
            self.queue_those_asked_meanwhile(now);
        }
        let State::Up(up) = &mut self.state else { return };
        if up.refused.remove(&watch) && up.refused.is_empty() {
            up.try_elsewhere_at = None;
        }
    }

    pub(super) fn send_watches(&mut self, up: &Up) {
        for (&watch, glob) in &self.watches {
            self.actions.push(Action::Watch { link: up.link, watch, glob: glob.clone() });
        }
    }

    pub(super) fn tell(&mut self, replica: Replica, publishers: Publishers) {
        let watch = publishers.watch;
        if self.watches.contains_key(&watch) {
            self.actions.push(Action::Tell { watch, replica, publishers });
        }
    }

    /// A full table of watches is no reason to leave a replica that answers: only the watch goes without it, until the others are
    /// tried, one after the other. If none of them has room, they are tried at the pace of any watch.
    pub(super) fn watch_refused(&mut self, now: Instant, watch: u32, reason: String) {
        let State::Up(up) = &self.state else { return };
        let replica = up.replica;
        if self.watches.contains_key(&watch) {
            self.actions.push(Action::WatchRefused { watch, replica, reason });
            self.pace_refused(now, watch);
        }
    }

    /// When a watch that was refused is tried elsewhere.
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

    /// Asks for the watches that were refused once more.
    pub(super) fn send_refused_again(&mut self) {
        let State::Up(up) = &mut self.state else { return };
        up.try_elsewhere_at = None;
        for watch in std::mem::take(&mut up.refused) {
            if let Some(glob) = self.watches.get(&watch) {
                let (link, glob) = (up.link, glob.clone());
                self.actions.push(Action::Watch { link, watch, glob });
            }
        }
    }
}
