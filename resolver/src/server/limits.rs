//! Limits that may change while a replica serves. A lower one refuses what is new; it throws nobody out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_protocol::Role;
use longshore_protocol::limits::RESOLVER_WATCHES_MAX;
use longshore_transport::{Kept, PlacesHandle};
use tokio::sync::mpsc;

use crate::server::ServerOptions;
use crate::server::connection::REQUESTS_OF_ONE_MAX;
use crate::server::desk::Said;

/// What a replica takes on, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections_max: usize,
    /// Connections among them that only writers may have.
    pub writers_kept: usize,
    /// Connections among them that only tools may have.
    pub tools_kept: usize,
    /// Most watches, over all connections.
    pub watches_max: usize,
    /// Most paths, defaults included.
    pub paths_max: usize,
    /// Most memory of unanswered requests, over all readers, in bytes, and as much over all writers.
    pub requests_bytes_max: usize,
}

/// Of all connections one in so many is kept for writers: publishers that cannot connect are hidden after a `writer_ttl`.
const WRITERS_KEPT_PART: usize = 8;
/// Connections that are kept for tools, such as `longshore resolver status`; at most one in eight.
const TOOLS_KEPT: usize = 8;

impl Limits {
    /// How many of so many connections are kept for writers, unless told otherwise: an eighth.
    pub fn usual_writers_kept(connections_max: usize) -> usize {
        connections_max / WRITERS_KEPT_PART
    }

    /// How many of so many connections are kept for tools, unless told otherwise: 8, or an eighth if that is less.
    pub fn usual_tools_kept(connections_max: usize) -> usize {
        TOOLS_KEPT.min(connections_max / WRITERS_KEPT_PART)
    }

    /// For whom connections are kept. Readers ask another replica; a writer needs this one.
    pub(super) fn kept(&self) -> [Kept; 2] {
        [
            Kept { role: Role::ResolverWriter, places: self.writers_kept },
            Kept { role: Role::Tool, places: self.tools_kept },
        ]
    }

    /// The most watches that there may be: one message may be for all of them.
    pub const WATCHES_MOST: usize = RESOLVER_WATCHES_MAX;
    /// The most paths that there may be: the tree numbers four times as many nodes.
    pub const PATHS_MOST: usize = 1 << 28;
    /// The least memory of unanswered requests, in bytes: what one connection may take of it.
    pub const REQUESTS_BYTES_LEAST: usize = REQUESTS_OF_ONE_MAX;
}

impl From<&ServerOptions> for Limits {
    fn from(options: &ServerOptions) -> Limits {
        let most = options.connections_max;
        let (writers, tools) = (options.writers_kept, options.tools_kept);
        Limits {
            connections_max: most,
            writers_kept: writers.unwrap_or(Limits::usual_writers_kept(most)),
            tools_kept: tools.unwrap_or(Limits::usual_tools_kept(most)),
            watches_max: options.watches_max,
            paths_max: options.paths_max,
            requests_bytes_max: options.requests_bytes_max,
        }
    }
}

/// Changes the limits of a replica that serves. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LimitsHandle {
    pub(super) places: PlacesHandle,
    pub(super) room: Room,
    pub(super) desk: mpsc::WeakSender<Said>,
}

impl LimitsHandle {
    /// Sets them all. What the replica holds beyond a lower one stays until it goes by itself. False if it serves no more.
    pub async fn set(&self, limits: Limits) -> bool {
        let Some(desk) = self.desk.upgrade() else { return false };
        self.places.set(limits.connections_max, &limits.kept());
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

    /// What readers, and what writers have taken, in bytes.
    #[cfg(test)]
    pub(super) fn taken(&self) -> [usize; 2] {
        [&self.readers, &self.writers].map(|used| used.load(Ordering::Relaxed))
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
