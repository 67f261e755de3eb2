//! Limits that may change while a replica serves. A lower one refuses what is new; it throws nobody out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_protocol::limits::RESOLVER_WATCHES_MAX;
use tokio::sync::mpsc;

use crate::server::ServerOptions;
use crate::server::connection::REQUESTS_OF_ONE_MAX;
use crate::server::desk::Said;

/// What a replica takes on, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections_max: usize,
    /// Most watches, over all connections.
    pub watches_max: usize,
    /// Most paths, defaults included.
    pub paths_max: usize,
    /// Most memory of unanswered requests, over all readers, in bytes, and as much over all writers.
    pub requests_bytes_max: usize,
}

impl Limits {
    /// The most watches that there may be: one message may be for all of them.
    pub const WATCHES_MOST: usize = RESOLVER_WATCHES_MAX;
    /// The most paths that there may be: the tree numbers four times as many nodes.
    pub const PATHS_MOST: usize = 1 << 28;
    /// The least memory of unanswered requests, in bytes: what one connection may take of it.
    pub const REQUESTS_BYTES_LEAST: usize = REQUESTS_OF_ONE_MAX;
}

impl From<&ServerOptions> for Limits {
    fn from(options: &ServerOptions) -> Limits {
        Limits {
            connections_max: options.connections_max,
            watches_max: options.watches_max,
            paths_max: options.paths_max,
            requests_bytes_max: options.requests_bytes_max,
        }
    }
}

/// Changes the limits of a replica that serves. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LimitsHandle {
    pub(super) room: Room,
    pub(super) desk: mpsc::WeakSender<Said>,
}

impl LimitsHandle {
    /// Sets them all. What the replica holds beyond a lower one stays until it goes by itself. False if it serves no more.
    pub async fn set(&self, limits: Limits) -> bool {
        let Some(desk) = self.desk.upgrade() else { return false };
        self.room.set_most(limits.requests_bytes_max);
        desk.send(Said::Limits(limits)).await.is_ok()
    }
}

/// Memory for the requests that all connections may have unanswered, in bytes. Beyond, requests are refused as `Busy`: who does not
/// read its answers must not make others wait. Writers have theirs, so that readers hide no publisher.
#[derive(Clone, Debug)]
pub(super) struct Room {
    most: Arc<AtomicUsize>,
    readers: Arc<AtomicUsize>,
    writers: Arc<AtomicUsize>,
}

impl Room {
    pub(super) fn new(most: usize) -> Room {
        let (readers, writers) = Default::default();
        Room { most: Arc::new(AtomicUsize::new(most)), readers, writers }
    }

    /// Takes some of it, if there is as much.
    pub(super) fn take(&self, writes: bool, bytes: usize) -> Option<Taken> {
        let of = if writes { &self.writers } else { &self.readers };
        let most = self.most.load(Ordering::Relaxed);
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= most);
        of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Taken { of: of.clone(), bytes })
    }

    fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }
}

/// A part of it, given back when dropped.
#[derive(Debug)]
pub(super) struct Taken {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_and_a_lower_limit_takes_nothing_away() {
        let room = Room::new(100);
        let first = room.take(false, 60).unwrap();
        assert!(room.take(false, 41).is_none());
        let second = room.take(false, 40).unwrap();
        assert!(room.take(true, 100).is_some(), "writers have theirs");

        room.set_most(50);
        assert!(room.take(false, 1).is_none());
        drop(first);
        assert!(room.take(false, 11).is_none());
        assert!(room.take(false, 10).is_some(), "40 of 50 are taken");
        drop(second);
        room.set_most(200);
        assert!(room.take(false, 200).is_some());
        assert!(room.take(false, usize::MAX).is_none());
    }
}
