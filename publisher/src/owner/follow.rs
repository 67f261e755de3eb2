//! Those who follow what happens: waits for jobs' ends, and feeds. While there is none, nothing
//! here costs anything.

use std::time::Instant;

use longshore_protocol::messages::work::{FromPublisher, Request};
use longshore_protocol::{JobId, LinkId};

use super::Owner;
use crate::feeds::Outlets;
use crate::router::Router;

impl Owner {
    /// Somebody wants events: they are recorded from the next command on.
    pub(super) fn want_events(&mut self) {
        self.recording.want(Instant::now());
        self.store.record_events(true);
    }

    /// Stops recording once nobody has wanted events for a while; says when to look again.
    pub(super) fn turn_recording(&mut self, now: Instant) -> Option<Instant> {
        let wanted = !self.awaits.is_empty() || !self.feeds.is_empty();
        if self.recording.ends(now, wanted) {
            self.store.record_events(false);
        }
        self.recording.next()
    }

    /// Takes queues back that have been empty for long; says when to look again.
    pub(super) fn turn_idle(&mut self, now: Instant) -> Option<Instant> {
        // Nobody is told anything while the disk hangs: then nothing is published either.
        let registry = self.registry.as_ref().filter(|_| !self.disk.hang.is_on())?;
        if let Some(from) = self.idle.due(now) {
            let idle = self.idle.look(now, self.store.state().queue_uses(from));
            if !idle.is_empty() {
                registry.unpublish_all(idle, []);
            }
        }
        Some(self.idle.next())
    }

    /// Tells those who wait what has become durable.
    pub(super) fn tell_awaits(&mut self) {
        if self.awaits.is_empty() {
            return;
        }
        let tail = self.store.tail();
        self.happened.clear();
        let read = self
            .awaits_read
            .as_mut()
            .map(|cursor| tail.read(cursor, usize::MAX, |_| true, &mut self.happened));
        match read {
            Some(Ok(_)) => self.awaits.happened(&self.happened),
            // More has happened at once than the tail holds.
            Some(Err(_)) | None => {
                self.awaits_read = tail.cursor(None).ok();
                self.awaits.missed();
            }
        }
    }

    /// Looks up the jobs that may have ended, and writes to feeds what they have room for.
    pub(super) fn follow(&mut self) {
        if !self.awaits.is_empty() {
            let now = self.clock.now();
            let Owner { awaits, store, .. } = self;
            awaits.look(|link: LinkId, id: u64, job: JobId| {
                store.ask(now, link, id, Request::Await { id: job });
            });
        }
        let Owner { feeds, store, router, .. } = self;
        let path = |queue| store.state().path(queue);
        feeds.pump(store.tail(), path, &mut Links(router), Instant::now());
    }
}

/// Feeds write to links through the router.
struct Links<'a>(&'a mut Router);

impl Outlets for Links<'_> {
    fn has_room(&mut self, link: LinkId) -> bool {
        self.0.has_room_for_events(link)
    }

    fn say(&mut self, link: LinkId, message: &FromPublisher) {
        self.0.say(link, message);
    }
}
