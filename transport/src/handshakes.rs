//! Handshakes in progress: diallers whose handshake has not fully arrived. Each costs a descriptor
//! and some memory, so their number is limited; and a dialler that connects and sends little or
//! nothing must not occupy a permit for long.
//!
//! **When all permits are taken, the oldest handshake that may be displaced ends**: one that has
//! sent nothing may be displaced at once, one that has begun once [`GRACE`] is over, however slowly
//! its bytes arrive. There is no share for each address: behind one address there may be a whole
//! company, a proxy, or on one machine every client. To keep an honest dialler out, a flood has to
//! open [`HANDSHAKES_MAX`](crate::HANDSHAKES_MAX) new connections within the time of its handshake,
//! or within `GRACE` if that is shorter, again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

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
}

/// A handshake in progress.
#[derive(Debug)]
struct HandshakeInProgress {
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
        let table = Table { in_progress: BTreeMap::new(), next: 0 };
        Handshakes { limit: limit.max(1), table: Mutex::new(table) }
    }

    /// The limit.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Makes room for one more. `displaced` gets the connection whose handshake was aborted for it;
    /// it was sent nothing. False if no handshake may be displaced.
    pub(crate) fn make_room(&self, displaced: impl FnOnce(PendingConnection)) -> bool {
        let mut table = self.table.lock();
        if table.in_progress.len() < self.limit {
            return true;
        }
        let Some(connection) = table.displace(Instant::now()) else { return false };
        drop(table);
        displaced(connection);
        true
    }

    /// Begins a handshake. `abort` aborts it if it is displaced.
    pub(crate) fn begin(
        self: &Arc<Self>,
        connection: PendingConnection,
        abort: AbortHandle,
    ) -> HandshakePermit {
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        let accepted_at = Instant::now();
        let age = Age { accepted_at, unread_at: None };
        table.in_progress.insert(number, HandshakeInProgress { connection, age, abort });
        HandshakePermit { handshakes: self.clone(), number }
    }

    /// False if it was displaced before.
    fn end(&self, number: u64) -> bool {
        self.table.lock().in_progress.remove(&number).is_some()
    }
}

impl Table {
    /// Aborts the oldest handshake that may be displaced, if there is one.
    fn displace(&mut self, now: Instant) -> Option<PendingConnection> {
        // A handshake with unread bytes is excused once; the next dialler displaces another.
        for _ in 0..UNREAD_CHECKS_MAX {
            let number = self.oldest(now)?;
            let entry = self.in_progress.get_mut(&number)?;
            if entry.age.unread_at.is_none() && has_unread(&entry.connection.raw) {
                entry.age.unread_at = Some(now);
                continue;
            }
            let entry = self.in_progress.remove(&number)?;
            entry.abort.abort();
            return Some(entry.connection);
        }
        None
    }

    fn oldest(&self, now: Instant) -> Option<u64> {
        let begun =
            |entry: &HandshakeInProgress| entry.connection.activity.last_received().is_some();
        let oldest = self.in_progress.iter().filter_map(|(number, entry)| {
            Some((entry.age.displaceable(begun(entry), now)?, *number))
        });
        oldest.min().map(|(_, number)| number)
    }
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

    /// 1,024 permits are taken by diallers that send slowly; they dial again as soon as they are
    /// displaced, 100 times a second in all. An honest dialler arrives every 100 ms and needs 60 ms
    /// for its handshake.
    #[test]
    fn honest_diallers_are_admitted_beside_1024_slow_ones() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut in_progress: BTreeMap<u64, (Age, bool)> = BTreeMap::new();
        let mut next = 0;
        let mut come = |in_progress: &mut BTreeMap<u64, (Age, bool)>, begun: bool, now: Instant| {
            if in_progress.len() == 1_024 {
                let may = |(number, (age, begun)): (&u64, &(Age, bool))| {
                    Some((age.displaceable(*begun, now)?, *number))
                };
                let (_, oldest) = in_progress.iter().filter_map(may).min()?;
                in_progress.remove(&oldest);
            }
            next += 1;
            in_progress.insert(next, (Age { accepted_at: now, unread_at: None }, begun));
            Some(next)
        };
        (0..1_024).for_each(|_| assert!(come(&mut in_progress, true, start).is_some()));
        assert_eq!(
            come(&mut in_progress, false, at(999)),
            None,
            "all are within their grace period"
        );
        let mut honest = Vec::new();
        for ms in (1_000..60_000).step_by(10) {
            come(&mut in_progress, true, at(ms));
            if ms % 100 == 0 {
                let number = come(&mut in_progress, false, at(ms)).expect("there is an older one");
                honest.push((number, ms + 60));
            }
            honest.retain(|(number, done)| {
                assert!(in_progress.contains_key(number), "an honest dialler was displaced");
                let done = *done <= ms;
                if done {
                    in_progress.remove(number);
                }
                !done
            });
        }
    }
}
