//! Handshakes under way: diallers from whom the rest of a handshake is still to come. Each costs a
//! descriptor and some memory, so there may be only so many; and whoever connects and says little
//! or nothing must not occupy them.
//!
//! **When all turns are taken, the oldest handshake that may be displaced ends**: one that has said
//! nothing may be at once, one that has begun once [`GRACE`] is over, however it trickles in. Not a
//! share for each address: behind one address there may be a whole site, or a proxy, or on one
//! machine everybody. To keep an honest dialler out, a flood has to bring
//! [`HANDSHAKES_MAX`](crate::HANDSHAKES_MAX) new connections within the time that its handshake
//! takes, or within `GRACE` if that is shorter, over and over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

use crate::socket::{Pulse, has_unread};

/// How long a handshake that has begun keeps its turn whoever else comes: a TLS handshake goes back
/// and forth.
const GRACE: Duration = Duration::from_secs(1);

/// Most turns that only seem silent and are looked at for one dialler: with a thousand of them at
/// once the listener would stand still.
const LOOKS_MAX: usize = 4;

/// Those whose handshake is under way, of whom there may be so many.
#[derive(Debug)]
pub(crate) struct Handshakes {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// In the order in which they came.
    turns: BTreeMap<u64, UnderWay>,
    next: u64,
}

/// A handshake under way.
#[derive(Debug)]
struct UnderWay {
    line: Line,
    age: Age,
    /// Ends its hearing.
    hearing: AbortHandle,
}

/// What decides who is displaced. Pure.
#[derive(Clone, Copy, Debug)]
struct Age {
    came_at: Instant,
    /// When it was found that its bytes had come and nobody had read them: once, its grace counts
    /// from then.
    unread_at: Option<Instant>,
}

impl Age {
    /// Since when it occupies a turn, if it may be displaced for another dialler. `has_begun` is
    /// whether a byte of it was read.
    fn displaceable(self, has_begun: bool, now: Instant) -> Option<Instant> {
        let in_grace = match self.unread_at {
            Some(at) => now < at + GRACE,
            None => has_begun && now < self.came_at + GRACE,
        };
        (!in_grace).then_some(self.came_at)
    }
}

/// A dialler's connection, as others than its hearing see it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) raw: Arc<OwnedWriteHalf>,
    pub(crate) pulse: Arc<Pulse>,
}

impl Handshakes {
    pub(crate) fn new(most: usize) -> Handshakes {
        let table = Table { turns: BTreeMap::new(), next: 0 };
        Handshakes { most: most.max(1), table: Mutex::new(table) }
    }

    /// Most at a time.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Makes room for one more. `displaced` is whoever had to go for it: it is heard no more, and
    /// was told nothing. False if there is none: all are speaking.
    pub(crate) fn make_room(&self, displaced: impl FnOnce(Line)) -> bool {
        let mut table = self.table.lock();
        if table.turns.len() < self.most {
            return true;
        }
        let Some(line) = table.displace(Instant::now()) else { return false };
        drop(table);
        displaced(line);
        true
    }

    /// Begins a handshake. `hearing` ends it if it is displaced.
    pub(crate) fn begin(self: &Arc<Self>, line: Line, hearing: AbortHandle) -> Turn {
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        let came_at = Instant::now();
        let age = Age { came_at, unread_at: None };
        table.turns.insert(number, UnderWay { line, age, hearing });
        Turn { handshakes: self.clone(), number }
    }

    /// False if it was displaced before.
    fn end(&self, number: u64) -> bool {
        self.table.lock().turns.remove(&number).is_some()
    }
}

impl Table {
    /// Ends the oldest handshake that may be displaced, if there is one.
    fn displace(&mut self, now: Instant) -> Option<Line> {
        // One whose bytes nobody has read yet is excused, once; the next dialler finds others.
        for _ in 0..LOOKS_MAX {
            let number = self.oldest(now)?;
            let turn = self.turns.get_mut(&number)?;
            if turn.age.unread_at.is_none() && has_unread(&turn.line.raw) {
                turn.age.unread_at = Some(now);
                continue;
            }
            let turn = self.turns.remove(&number)?;
            turn.hearing.abort();
            return Some(turn.line);
        }
        None
    }

    fn oldest(&self, now: Instant) -> Option<u64> {
        let begun = |turn: &UnderWay| turn.line.pulse.heard_at().is_some();
        let oldest = self
            .turns
            .iter()
            .filter_map(|(number, turn)| Some((turn.age.displaceable(begun(turn), now)?, *number)));
        oldest.min().map(|(_, number)| number)
    }
}

/// One handshake's turn. It ends when the dialler has said all that it had to, or is given up.
#[derive(Debug)]
pub(crate) struct Turn {
    handshakes: Arc<Handshakes>,
    number: u64,
}

impl Turn {
    /// The handshake is heard; what follows takes no time of others. False if it was displaced
    /// meanwhile, and told so.
    pub(crate) fn end(self) -> bool {
        self.handshakes.end(self.number)
    }
}

impl Drop for Turn {
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
    async fn a_handshake_that_has_begun_keeps_its_turn_for_a_second_whatever_trickles_in() {
        let came_at = Instant::now();
        let age = Age { came_at, unread_at: None };
        assert_eq!(age.displaceable(false, came_at), Some(came_at));
        assert_eq!(age.displaceable(true, came_at + SECOND - TICK), None);
        assert_eq!(age.displaceable(true, came_at + SECOND), Some(came_at));
        let late = came_at + 20 * SECOND;
        let excused = Age { unread_at: Some(late), ..age };
        assert_eq!(excused.displaceable(false, late + SECOND - TICK), None);
        assert_eq!(excused.displaceable(true, late + SECOND), Some(came_at), "once");
    }

    /// 1,024 turns are taken by diallers that trickle; they dial again as soon as they are
    /// displaced, 100 times a second in all. An honest one comes every 100 ms and needs 60 ms for
    /// its handshake.
    #[test]
    fn honest_diallers_get_in_beside_1024_that_trickle() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut turns: BTreeMap<u64, (Age, bool)> = BTreeMap::new();
        let mut next = 0;
        let mut come = |turns: &mut BTreeMap<u64, (Age, bool)>, begun: bool, now: Instant| {
            if turns.len() == 1_024 {
                let may = |(number, (age, begun)): (&u64, &(Age, bool))| {
                    Some((age.displaceable(*begun, now)?, *number))
                };
                let (_, oldest) = turns.iter().filter_map(may).min()?;
                turns.remove(&oldest);
            }
            next += 1;
            turns.insert(next, (Age { came_at: now, unread_at: None }, begun));
            Some(next)
        };
        (0..1_024).for_each(|_| assert!(come(&mut turns, true, start).is_some()));
        assert_eq!(come(&mut turns, false, at(999)), None, "all are within their grace");
        let mut honest = Vec::new();
        for ms in (1_000..60_000).step_by(10) {
            come(&mut turns, true, at(ms));
            if ms % 100 == 0 {
                let number = come(&mut turns, false, at(ms)).expect("there is an older one");
                honest.push((number, ms + 60));
            }
            honest.retain(|(number, done)| {
                assert!(turns.contains_key(number), "an honest dialler was displaced");
                let done = *done <= ms;
                if done {
                    turns.remove(number);
                }
                !done
            });
        }
    }
}
