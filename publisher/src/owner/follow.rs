//! Requests that wait for a job's end, and feeds. Without any, nothing here costs anything.

use std::time::Instant;

use longshore_access::Action;
use longshore_protocol::messages::work::{FromPublisher, Request};
use longshore_protocol::{JobId, LinkId};

use super::Owner;
use crate::feeds::FeedSink;
use crate::permissions;
use crate::router::Router;

impl Owner {
    /// A client needs events: they are recorded from the next command on.
    pub(super) fn start_recording(&mut self) {
        self.recording.extend(Instant::now());
        self.store.record_events(true);
    }

    /// Stops recording once no client has needed events for a while; returns when to check again.
    pub(super) fn update_recording(&mut self, now: Instant) -> Option<Instant> {
        let is_needed = !self.waiters.is_empty() || !self.feeds.is_empty();
        if self.recording.should_stop(now, is_needed) {
            self.store.record_events(false);
        }
        self.recording.next()
    }

    /// Withdraws queues that have been empty for long; returns when to check again.
    pub(super) fn withdraw_idle_queues(&mut self, now: Instant) -> Option<Instant> {
        // Nothing is published or withdrawn while the disk hangs.
        let registry = self.registry.as_ref().filter(|_| !self.disk.hang.is_hung())?;
        if let Some(from) = self.idle.scan_from(now) {
            let idle = self.idle.scan(now, self.store.state().queue_uses(from));
            if !idle.is_empty() {
                registry.unpublish_all(idle, []);
            }
        }
        Some(self.idle.next())
    }

    /// Passes durable events to the waiting requests.
    pub(super) fn notify_waiters(&mut self) {
        if self.waiters.is_empty() {
            return;
        }
        let tail = self.store.tail();
        self.events_read.clear();
        let read = self
            .waiters_cursor
            .as_mut()
            .map(|cursor| tail.read(cursor, usize::MAX, |_| true, &mut self.events_read));
        match read {
            Some(Ok(_)) => self.waiters.on_events(&self.events_read),
            // More events at once than the tail holds.
            Some(Err(_)) | None => {
                self.waiters_cursor = tail.cursor(None).ok();
                self.waiters.on_gap();
            }
        }
    }

    /// Looks up jobs that may have ended, and writes to feeds what their links have room for.
    pub(super) fn follow(&mut self) {
        if !self.waiters.is_empty() {
            let now = self.clock.now();
            let Owner { waiters, store, router, .. } = self;
            waiters.start_lookups(|link: LinkId, id: u64, job: JobId| {
                let rights = router.rights(link);
                let within = rights.and_then(|rights| permissions::limit(rights, Action::Inspect));
                store.query(now, link, id, Request::Await { id: job }, within);
            });
        }
        let Owner { feeds, store, router, .. } = self;
        let path = |queue| store.state().path(queue);
        feeds.pump(store.tail(), path, &mut RouterSink(router), Instant::now());
    }
}

/// Feeds write to links through the router.
struct RouterSink<'a>(&'a mut Router);

impl FeedSink for RouterSink<'_> {
    fn has_room(&mut self, link: LinkId) -> bool {
        self.0.has_room_for_events(link)
    }

    fn send(&mut self, link: LinkId, message: &FromPublisher) {
        self.0.send(link, message);
    }
}
