//! Hellos under way: diallers from whom the rest of a hello is still to come. Each costs a descriptor and some memory, so there
//! may be only so many; and whoever connects and says nothing must not occupy them.
//!
//! **When all turns are taken, the one that has been silent the longest ends.** Not a share for each address: behind one address
//! there may be a whole site, or a proxy, or on one machine everybody. An honest dialler speaks as soon as it is connected, so it
//! is silent for one way of the network; a flood has to bring [`HELLOS_MAX`](crate::HELLOS_MAX) connections within that time to
//! displace it. Who has said a part may think for [`STALLED_AFTER`]: a TLS handshake goes back and forth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

use crate::socket::{Pulse, has_unread};

/// A hello that has begun may be given up after this long without a byte, if another dialler needs its turn.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Most turns that only seem silent and are looked at for one dialler: with a thousand of them at once the listener would stand still.
const LOOKS_MAX: usize = 4;

/// Those whose hello is under way, of whom there may be so many.
#[derive(Debug)]
pub(crate) struct Hellos {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// In the order in which they came.
    turns: BTreeMap<u64, UnderWay>,
    next: u64,
}

/// What is known of a hello under way.
#[derive(Debug)]
struct UnderWay {
    line: Line,
    came_at: Instant,
    /// When bytes were last seen that nobody had read yet.
    unread_at: Option<Instant>,
    /// Ends its hearing.
    hearing: AbortHandle,
}

/// A dialler's connection, as others than its hearing see it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) raw: Arc<OwnedWriteHalf>,
    pub(crate) pulse: Arc<Pulse>,
}

impl Hellos {
    pub(crate) fn new(most: usize) -> Hellos {
        let table = Table { turns: BTreeMap::new(), next: 0 };
        Hellos { most: most.max(1), table: Mutex::new(table) }
    }

    /// Most at a time.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Makes room for one more. `displaced` is whoever had to go for it: it is heard no more, and was told nothing. False if there
    /// is none: all are speaking.
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

    /// Begins a hello. `hearing` ends it if it is displaced.
    pub(crate) fn begin(self: &Arc<Self>, line: Line, hearing: AbortHandle) -> Turn {
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        let came_at = Instant::now();
        table.turns.insert(number, UnderWay { line, came_at, unread_at: None, hearing });
        Turn { hellos: self.clone(), number }
    }

    /// False if it was displaced before.
    fn end(&self, number: u64) -> bool {
        self.table.lock().turns.remove(&number).is_some()
    }
}

impl Table {
    /// Ends the hello that has been silent the longest, if there is one.
    fn displace(&mut self, now: Instant) -> Option<Line> {
        // Each that only seems silent is looked at once: from then on it has been heard, and the next dialler finds others.
        for _ in 0..LOOKS_MAX {
            let number = self.longest_silent(now)?;
            let turn = self.turns.get_mut(&number)?;
            if has_unread(&turn.line.raw) {
                turn.unread_at = Some(now);
                continue;
            }
            let turn = self.turns.remove(&number)?;
            turn.hearing.abort();
            return Some(turn.line);
        }
        None
    }

    fn longest_silent(&self, now: Instant) -> Option<u64> {
        let silent = self.turns.iter().filter_map(|(number, turn)| {
            let heard_at = turn.line.pulse.heard_at().max(turn.unread_at);
            Some((silent_since(turn.came_at, heard_at, now)?, *number))
        });
        silent.min().map(|(_, number)| number)
    }
}

/// Since when a dialler is silent who may be displaced for it. One who never said a word may be at once.
fn silent_since(came_at: Instant, heard_at: Option<Instant>, now: Instant) -> Option<Instant> {
    match heard_at {
        None => Some(came_at),
        Some(heard_at) => (heard_at + STALLED_AFTER <= now).then_some(heard_at),
    }
}

/// One hello's turn. It ends when the dialler has said all that it had to, or is given up.
#[derive(Debug)]
pub(crate) struct Turn {
    hellos: Arc<Hellos>,
    number: u64,
}

impl Turn {
    /// The hello is heard; what follows takes no time of others. False if it was displaced meanwhile, and told so.
    pub(crate) fn end(self) -> bool {
        self.hellos.end(self.number)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.hellos.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_goes_first_and_who_has_begun_may_think_for_a_second() {
        let start = Instant::now();
        let now = start + Duration::from_secs(5);
        let before = |ms| Some(now - Duration::from_millis(ms));
        assert_eq!(silent_since(now, None, now), Some(now));
        assert_eq!(silent_since(start, before(999), now), None);
        assert_eq!(silent_since(start, before(1_000), now), before(1_000));
    }
}
