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
    /// Most memory of unanswered reads, over all connections, in bytes, and as much of unanswered writes.
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
    /// The least memory of unanswered requests, in bytes: what the largest request counts.
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
    /// Not cancel safe: of a call that was dropped, some of them may hold.
    pub async fn set(&self, limits: Limits) -> bool {
        let Some(desk) = self.desk.upgrade() else { return false };
        self.places.set(limits.connections_max, &limits.kept());
        self.room.set_most(limits.requests_bytes_max);
        desk.send(Said::Limits(limits)).await.is_ok()
    }
}

/// Of the memory for requests, one part in so many is kept for connections that hold little of it.
const ROOM_KEPT_PART: usize = 4;
/// There is a piece of what is kept for so many connections: more than there may be, unless told otherwise.
const ROOM_KEPT_FOR: usize = 1_024;

/// Memory for the requests that all connections may have unanswered, in bytes. Beyond, requests are refused as `Busy`: who does not
/// read its answers must not make others wait. Writes have theirs, so that reads hide no publisher; and of either kind no connection
/// holds more than its [`share`].
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

    /// Takes some of it for a connection that holds so much already, if there is as much and its share is not over.
    pub(super) fn take(&self, writes: bool, held: usize, bytes: usize) -> Option<Taken> {
        let of = if writes { &self.writers } else { &self.readers };
        let most = self.most.load(Ordering::Relaxed);
        let more = |used: usize| {
            let after = used.checked_add(bytes).filter(|after| *after <= most)?;
            // Where nobody holds anything, whatever fits is served: else it never would be.
            let fits = used == 0 || held.checked_add(bytes)? <= share(most, most - after);
            fits.then_some(after)
        };
        of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Taken { of: of.clone(), bytes })
    }

    /// What reads, and what writes have taken, in bytes.
    #[cfg(test)]
    pub(super) fn taken(&self) -> [usize; 2] {
        [&self.readers, &self.writers].map(|used| used.load(Ordering::Relaxed))
    }

    fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }
}

/// The most that one connection may hold when `free` bytes of `most` are left after it: as much as is left to all others, without what
/// is kept; and its piece of what is kept in any case. So those that come last get something, whatever the others hold.
fn share(most: usize, free: usize) -> usize {
    let kept = most / ROOM_KEPT_PART;
    free.saturating_sub(kept).max(kept / ROOM_KEPT_FOR)
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
        let first = room.take(false, 0, 60).unwrap();
        assert!(
            room.take(false, 0, 9).is_none(),
            "9 of 100 would leave 31, and 25 of them are kept"
        );
        let second = room.take(false, 0, 7).unwrap();
        assert!(room.take(true, 0, 100).is_some(), "writes have theirs");

        room.set_most(50);
        assert!(room.take(false, 0, 1).is_none());
        drop(first);
        assert!(room.take(false, 0, 16).is_none());
        assert!(room.take(false, 0, 15).is_some(), "7 of 50 are taken, and 13 kept");
        drop(second);
        room.set_most(200);
        assert!(room.take(false, 0, 200).is_some(), "nobody else holds anything");
        assert!(room.take(false, 0, usize::MAX).is_none());
        assert_eq!(room.taken(), [0; 2]);
    }

    #[test]
    fn whatever_others_hold_those_that_come_last_get_their_piece() {
        const MIB: usize = 1 << 20;
        let room = Room::new(256 * MIB);
        // As much as one can get, a request of so many bytes at a time.
        let greedy = |bytes: usize| {
            let (mut all, mut held) = (Vec::new(), 0);
            while held + bytes <= REQUESTS_OF_ONE_MAX
                && let Some(taken) = room.take(false, held, bytes)
            {
                held += bytes;
                all.push(taken);
            }
            (all, held)
        };
        let greedies: Vec<_> = (0..256).map(|_| greedy(1024)).collect();
        assert_eq!(greedies[0].1, REQUESTS_OF_ONE_MAX);
        assert!(greedies.windows(2).all(|pair| pair[0].1 >= pair[1].1), "shares shrink");
        let last: Vec<_> = (256..ROOM_KEPT_FOR).map(|_| greedy(1024)).collect();
        let piece = 256 * MIB / ROOM_KEPT_PART / ROOM_KEPT_FOR;
        assert_eq!(piece, 64 * 1024);
        assert!(last.iter().all(|(_, held)| *held == piece));
        assert!(room.taken()[0] <= 256 * MIB);
        drop(greedies);
        assert_eq!(room.taken()[0], last.len() * piece);
    }
}
