//! Handshakes in progress: diallers whose handshake has not fully arrived. Each costs a descriptor
//! and some memory, so their number is limited; and a dialler that connects and sends little or
//! nothing must not occupy a permit for long.
//!
//! **When all permits are taken, one handshake that may be displaced ends**: one that has sent
//! nothing may be displaced at once, one that has begun once [`GRACE`] is over, however slowly its
//! bytes arrive. It is the oldest of the address that holds the most permits, so that a flood from
//! one address displaces itself; a dialler displaces none of an address that holds fewer than its
//! own. At the Unix socket each user counts as an address. There is no share for each address:
//! behind one address there may be a whole company, a proxy, or on one machine every client. They
//! may use all permits, and are the first to lose them. To keep out a dialler of its own address,
//! or from many addresses everybody, a flood has to open [`HANDSHAKES_MAX`](crate::HANDSHAKES_MAX)
//! new connections within the time of a handshake, or within `GRACE` if that is shorter, again and
//! again.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

use crate::quota::counted_address;
use crate::socket::{Activity, has_unread};

/// How long a handshake that has begun cannot be displaced: a TLS handshake takes several round
/// trips.
const GRACE: Duration = Duration::from_secs(1);

/// The most permits checked for unread bytes for one dialler: with a thousand of them at once the
/// listener would stall.
const UNREAD_CHECKS_MAX: usize = 4;

/// The handshakes in progress, at most `limit`.
#[derive(Debug)]
pub(crate) struct Handshakes {
    limit: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// In the order of arrival.
    in_progress: BTreeMap<u64, HandshakeInProgress>,
    next: u64,
    /// How many of them each origin holds.
    held: HashMap<Origin, usize>,
}

/// Where a dialler comes from, for its share of the permits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Origin {
    /// An address, as [`counted_address`] has it.
    Address(IpAddr),
    /// A user at the Unix socket.
    User(u32),
}

impl Origin {
    pub(crate) fn new(address: IpAddr, user: Option<u32>) -> Origin {
        user.map_or_else(|| Origin::Address(counted_address(address)), Origin::User)
    }
}

/// A handshake in progress.
#[derive(Debug)]
struct HandshakeInProgress {
    origin: Origin,
    connection: PendingConnection,
    age: Age,
    /// Aborts its task.
    abort: AbortHandle,
}

/// Decides whether a handshake may be displaced. Pure.
#[derive(Clone, Copy, Debug)]
struct Age {
    accepted_at: Instant,
    /// When its bytes were found to have arrived unread. From then it has another grace period,
    /// once.
    unread_at: Option<Instant>,
}

impl Age {
    /// Since when it occupies a permit, if it may be displaced for another dialler. `has_begun` is
    /// whether a byte of it was read.
    fn displaceable(self, has_begun: bool, now: Instant) -> Option<Instant> {
        let in_grace = match self.unread_at {
            Some(at) => now < at + GRACE,
            None => has_begun && now < self.accepted_at + GRACE,
        };
        (!in_grace).then_some(self.accepted_at)
    }
}

/// A dialler's connection, as seen from outside its handshake task.
#[derive(Clone, Debug)]
pub(crate) struct PendingConnection {
    pub(crate) raw: Arc<OwnedWriteHalf>,
    pub(crate) activity: Arc<Activity>,
}

impl Handshakes {
    pub(crate) fn new(limit: usize) -> Handshakes {
        let table = Table { in_progress: BTreeMap::new(), next: 0, held: HashMap::new() };
        Handshakes { limit: limit.max(1), table: Mutex::new(table) }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Makes room for one more, from that origin. `displaced` gets the connection whose handshake
    /// was aborted for it; it was sent nothing. False if no handshake may be displaced.
    pub(crate) fn make_room(
        &self,
        origin: Origin,
        displaced: impl FnOnce(PendingConnection),
    ) -> bool {
        let mut table = self.table.lock();
        if table.in_progress.len() < self.limit {
            return true;
        }
        let Some(connection) = table.displace(origin, Instant::now()) else {
            return false;
        };
        drop(table);
        displaced(connection);
        true
    }

    /// Begins a handshake. `abort` aborts it if it is displaced.
    pub(crate) fn begin(
        self: &Arc<Self>,
        connection: PendingConnection,
        origin: Origin,
        abort: AbortHandle,
    ) -> HandshakePermit {
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        let accepted_at = Instant::now();
        let age = Age { accepted_at, unread_at: None };
        let entry = HandshakeInProgress { origin, connection, age, abort };
        table.in_progress.insert(number, entry);
        *table.held.entry(origin).or_default() += 1;
        HandshakePermit { handshakes: self.clone(), number }
    }

    /// False if it was displaced before.
    fn end(&self, number: u64) -> bool {
        self.table.lock().remove(number).is_some()
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<HandshakeInProgress> {
        let entry = self.in_progress.remove(&number)?;
        if let Some(held) = self.held.get_mut(&entry.origin) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&entry.origin);
            }
        }
        Some(entry)
    }

    /// Aborts a handshake for a dialler from `origin`, if one may be displaced.
    fn displace(&mut self, origin: Origin, now: Instant) -> Option<PendingConnection> {
        // A handshake with unread bytes is excused once; the next dialler displaces another.
        for _ in 0..UNREAD_CHECKS_MAX {
            let number = self.first_to_displace(origin, now)?;
            let entry = self.in_progress.get_mut(&number)?;
            if entry.age.unread_at.is_none() && has_unread(&entry.connection.raw) {
                entry.age.unread_at = Some(now);
                continue;
            }
            let entry = self.remove(number)?;
            entry.abort.abort();
            return Some(entry.connection);
        }
        None
    }

    fn first_to_displace(&self, origin: Origin, now: Instant) -> Option<u64> {
        let in_progress = self.in_progress.iter().map(|(number, entry)| {
            let has_begun = entry.connection.activity.last_received().is_some();
            (*number, entry.origin, entry.age.displaceable(has_begun, now))
        });
        first_to_displace(in_progress, &self.held, origin)
    }
}

/// Which handshake a dialler from `origin` displaces: of all numbers, origins, and times since when
/// they may be displaced, the oldest of the origin that holds the most. Pure.
fn first_to_displace(
    in_progress: impl Iterator<Item = (u64, Origin, Option<Instant>)>,
    held: &HashMap<Origin, usize>,
    origin: Origin,
) -> Option<u64> {
    let held_by = |origin: &Origin| held.get(origin).copied().unwrap_or(0);
    let own = held_by(&origin);
    let candidates = in_progress.filter_map(|(number, of, since)| {
        let held = held_by(&of);
        let may = of == origin || held > own;
        may.then_some((std::cmp::Reverse(held), since?, number))
    });
    candidates.min().map(|(_, _, number)| number)
}

/// The permit of one handshake. It is released when the handshake has arrived or was given up.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    handshakes: Arc<Handshakes>,
    number: u64,
}

impl HandshakePermit {
    /// Releases the permit: the handshake was read, and the rest holds up no other. False if it was
    /// displaced, and refused, meanwhile.
    pub(crate) fn end(self) -> bool {
        self.handshakes.end(self.number)
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.handshakes.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_nanos(1);

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_has_begun_cannot_be_displaced_for_a_second() {
        let accepted_at = Instant::now();
        let age = Age { accepted_at, unread_at: None };
        assert_eq!(age.displaceable(false, accepted_at), Some(accepted_at));
        assert_eq!(age.displaceable(true, accepted_at + SECOND - TICK), None);
        assert_eq!(age.displaceable(true, accepted_at + SECOND), Some(accepted_at));
        let late = accepted_at + 20 * SECOND;
        let excused = Age { unread_at: Some(late), ..age };
        assert_eq!(excused.displaceable(false, late + SECOND - TICK), None);
        assert_eq!(excused.displaceable(true, late + SECOND), Some(accepted_at), "once");
    }

    /// Handshakes in virtual time, as [`Table`] has them.
    #[derive(Default)]
    struct Diallers {
        limit: usize,
        in_progress: BTreeMap<u64, (Origin, Age, bool)>,
        held: HashMap<Origin, usize>,
        next: u64,
    }

    impl Diallers {
        /// A dialler comes; none if it is refused.
        fn come(&mut self, address: Origin, has_begun: bool, now: Instant) -> Option<u64> {
            if self.in_progress.len() == self.limit {
                let all = self.in_progress.iter().map(|(number, (address, age, begun))| {
                    (*number, *address, age.displaceable(*begun, now))
                });
                let first = first_to_displace(all, &self.held, address)?;
                self.go(first);
            }
            self.next += 1;
            let age = Age { accepted_at: now, unread_at: None };
            self.in_progress.insert(self.next, (address, age, has_begun));
            *self.held.entry(address).or_default() += 1;
            Some(self.next)
        }

        fn go(&mut self, number: u64) {
            let (address, ..) = self.in_progress.remove(&number).unwrap();
            *self.held.get_mut(&address).unwrap() -= 1;
        }
    }

    fn address(last: u8) -> Origin {
        Origin::new(IpAddr::from([10, 0, 0, last]), None)
    }

    /// 1,024 permits are taken by diallers that send slowly; they dial again as soon as they are
    /// displaced, 100 times a second in all. An honest dialler arrives every 100 ms, from the same
    /// address, and needs 60 ms for its handshake.
    #[test]
    fn honest_diallers_are_admitted_beside_1024_slow_ones() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut all = Diallers { limit: 1_024, ..Diallers::default() };
        (0..1_024).for_each(|_| assert!(all.come(address(1), true, start).is_some()));
        let early = all.come(address(1), false, at(999));
        assert_eq!(early, None, "all are within their grace period");
        let mut honest = Vec::new();
        for ms in (1_000..60_000).step_by(10) {
            all.come(address(1), true, at(ms));
            if ms % 100 == 0 {
                let number = all.come(address(1), false, at(ms)).expect("there is an older one");
                honest.push((number, ms + 60));
            }
            honest.retain(|(number, done)| {
                assert!(all.in_progress.contains_key(number), "an honest dialler was displaced");
                let done = *done <= ms;
                if done {
                    all.go(*number);
                }
                !done
            });
        }
    }

    /// One address opens 10,000 connections a second, which send nothing: 128 permits are taken
    /// anew every 13 ms. Twenty others take a second for their handshakes.
    #[test]
    fn a_flood_from_one_address_displaces_only_itself() {
        let start = Instant::now();
        let at = |us: u64| start + Duration::from_micros(us);
        let mut all = Diallers { limit: 128, ..Diallers::default() };
        let mut honest = Vec::new();
        for step in 0..10_000_u64 {
            if step % 500 == 0 {
                let from = address(2 + (step / 500) as u8);
                honest.push(all.come(from, false, at(100 * step)).expect("the flood makes room"));
            }
            all.come(address(1), false, at(100 * step));
            assert!(honest.iter().all(|number| all.in_progress.contains_key(number)));
        }
        assert_eq!((honest.len(), all.in_progress.len()), (20, 128));
    }

    #[test]
    fn a_user_at_the_socket_displaces_nobody_else() {
        let (start, local) = (Instant::now(), IpAddr::from([127, 0, 0, 1]));
        let user = |number| Origin::new(local, Some(number));
        let mut all = Diallers { limit: 8, ..Diallers::default() };
        let others = [user(2), Origin::new(local, None)].map(|one| all.come(one, false, start));
        for _ in 0..100 {
            all.come(user(1), false, start);
        }
        assert!(others.iter().all(|one| all.in_progress.contains_key(&one.unwrap())));
    }

    #[test]
    fn a_flood_that_cannot_displace_itself_is_refused() {
        let start = Instant::now();
        let mut all = Diallers { limit: 128, ..Diallers::default() };
        let other = all.come(address(2), false, start).unwrap();
        (1..128).for_each(|_| assert!(all.come(address(1), true, start).is_some()));
        assert_eq!(all.come(address(1), true, start), None);
        assert!(all.in_progress.contains_key(&other));
        // Who has none yet takes the place of one that has sent nothing, but, once the flood's may
        // be displaced, one of those.
        assert!(all.come(address(3), false, start + SECOND).is_some());
        assert!(all.in_progress.contains_key(&other));
        assert!(all.come(address(4), false, start).is_some());
        assert!(!all.in_progress.contains_key(&other));
    }
}
