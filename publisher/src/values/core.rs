//! What a publisher of values knows and decides, without socket, clock or task.
//!
//! ```text
//!  commit ─▶ slots (the values) ─▶ the buffer of each slot's set of links ─▶ one frame, offered to every link of the set
//!                                                                              └─ no room ─▶ the link's line: what is pending
//!  room again ─▶ pump: what stands in the line, the newest value of each
//! ```
//!
//! A link with nothing in its line gets frames that were written once for all links of a set. What
//! has no room waits in the link's line as a mark for each subscription, and comes out in the
//! line's order. All else that is said to a link (that a subscription stands, is refused or has
//! ended, that a write was answered) goes through the line too: so what is said of one subscription
//! is never out of order.

mod defaults;
mod line;
mod links;
mod pump;
mod sets;
mod subscribe;
mod writes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::{Frame, Path, Value};

pub(crate) use self::defaults::{DefaultId, RequestId, Requests};
pub(crate) use self::links::{LinkNumber, Misuse};
pub(crate) use self::writes::WriteId;

use self::defaults::Defaults;
use self::links::Links;
use self::sets::{SetId, Sets};
use super::limits::{CHUNK_BYTES, VALUE_QUEUE_BYTES_MAX, VALUES_MAX};

/// Where a link's frames go.
pub(crate) trait LinkOutput {
    /// Takes a frame, or says that there is no room for it within `limit` bytes. A link that has
    /// ended takes everything.
    fn offer(&mut self, frame: Frame, limit: usize) -> Offer;
    /// True while at least half of the queue is free: so much may be said at once.
    fn has_room(&self) -> bool;
    /// Something stands in the line, and is to be pumped once there is room.
    fn wait_for_room(&mut self);
    /// So many entries of the line have gone, ever.
    fn advanced(&mut self, gone: u64);
    /// The link is to end: now, or once what it was told has arrived.
    fn end(&mut self, reason: String, farewell: Option<Frame>);
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// It is on its way.
    Taken,
    /// It is not.
    Full,
}

/// Rung when something that a program waits for may have come.
pub(crate) type Bell = std::sync::Arc<tokio::sync::Notify>;

/// A value's place, as its program holds it: a slot, and which of the values that were in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlotKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// One published value.
struct Slot {
    value: Value,
    set: SetId,
    generation: u32,
    /// None while the slot is free.
    path: Option<Path>,
    extra: Option<Box<Extra>>,
}

/// What only some values have.
#[derive(Default)]
struct Extra {
    /// Writes that the program has not taken; none while it takes none.
    writes: Option<writes::Waiting>,
    /// Rung when a link comes or goes.
    links_changed: Option<Bell>,
}

/// What is due at some time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Write(WriteId),
    Request(Path),
}

/// See the module.
pub(crate) struct Core<O> {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_path: HashMap<Path, u32>,
    sets: Sets,
    links: Links<O>,
    defaults: Defaults,
    writes: writes::Open,
    timers: BTreeMap<(Instant, Timer), ()>,
    /// Sets with something in their buffers.
    touched: Vec<SetId>,
    /// Links that got something into their line, to be pumped.
    lined_up: Vec<LinkNumber>,
}

/// Why the core does not take a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotRefusal {
    /// It has the path.
    Taken,
    /// It has as many as it may.
    Full,
}

impl<O: LinkOutput> Core<O> {
    pub(crate) fn new() -> Core<O> {
        Core {
            slots: Vec::new(),
            free: Vec::new(),
            by_path: HashMap::new(),
            sets: Sets::new(),
            links: Links::new(),
            defaults: Defaults::default(),
            writes: writes::Open::default(),
            timers: BTreeMap::new(),
            touched: Vec::new(),
            lined_up: Vec::new(),
        }
    }

    /// Says whether [`Core::publish`] would take the path.
    pub(crate) fn check(&self, path: &Path) -> Result<(), SlotRefusal> {
        match () {
            () if self.by_path.contains_key(path) => Err(SlotRefusal::Taken),
            () if self.by_path.len() >= VALUES_MAX => Err(SlotRefusal::Full),
            () => Ok(()),
        }
    }

    /// Holds a value; those who asked a default for it get it.
    pub(crate) fn publish(&mut self, path: &Path, value: Value) -> Result<SlotKey, SlotRefusal> {
        self.check(path)?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let (set, generation) = (SetId::EMPTY, 0);
                self.slots.push(Slot {
                    value: Value::Null,
                    set,
                    generation,
                    path: None,
                    extra: None,
                });
                // VALUES_MAX is far below.
                (self.slots.len() - 1) as u32
            }
        };
        let held = &mut self.slots[slot as usize];
        held.value = value;
        held.path = Some(path.clone());
        let key = SlotKey { slot, generation: held.generation };
        self.by_path.insert(path.clone(), slot);
        self.granted(path, key);
        Ok(key)
    }

    /// Lets a value go. Its last update still reaches everybody, and then the news that it is gone.
    pub(crate) fn unpublish(&mut self, key: SlotKey) -> Option<Path> {
        let held = self.slot_mut(key)?;
        let path = held.path.take()?;
        let (set, value) = (held.set, std::mem::take(&mut held.value));
        let extra = held.extra.take();
        held.set = SetId::EMPTY;
        held.generation = held.generation.wrapping_add(1);
        self.by_path.remove(&path);
        let links = self.sets.links(set);
        for &link in links.iter() {
            self.links.unpublished(link, key, &value);
            self.lined_up.push(link);
        }
        self.sets.release(set);
        if let Some(extra) = extra {
            self.forget_writes(*extra);
        }
        self.free.push(key.slot);
        self.pump_lined_up();
        Some(path)
    }

    /// The value as it is.
    pub(crate) fn current(&self, key: SlotKey) -> Option<Value> {
        self.slot(key).map(|held| held.value.clone())
    }

    /// How many links have a subscription that stands.
    pub(crate) fn subscribers(&self, key: SlotKey) -> usize {
        self.slot(key).map_or(0, |held| self.sets.links(held.set).len())
    }

    /// What rings when a link comes or goes.
    pub(crate) fn links_changed(&mut self, key: SlotKey) -> Option<Bell> {
        let extra = self.slot_mut(key)?.extra.get_or_insert_default();
        Some(extra.links_changed.get_or_insert_default().clone())
    }

    /// How many links there are.
    pub(crate) fn links_len(&self) -> usize {
        self.links.len()
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }

    /// Makes these the values, in order, and tells every link. Values that are gone are passed
    /// over.
    pub(crate) fn commit(&mut self, updates: &[(SlotKey, Value)]) {
        let mut rest = updates;
        while !rest.is_empty() {
            let (mut bytes, mut count) = (0, 0);
            for (key, value) in rest {
                count += 1;
                let Some(held) = self.slots.get_mut(key.slot as usize) else { continue };
                if held.generation != key.generation || held.path.is_none() {
                    continue;
                }
                held.value.clone_from(value);
                if held.set != SetId::EMPTY {
                    bytes += self.sets.push(held.set, key.slot, value, &mut self.touched);
                    if bytes >= CHUNK_BYTES {
                        break;
                    }
                }
            }
            let (chunk, later) = rest.split_at(count);
            rest = later;
            self.send(chunk);
        }
    }

    /// Offers what the buffers hold to the links. Where there is no room for it, each update goes
    /// into the line.
    fn send(&mut self, chunk: &[(SlotKey, Value)]) {
        let mut missed_any = false;
        for set in self.touched.drain(..) {
            let Some((frame, links)) = self.sets.take(set) else { continue };
            let mut missed = Vec::new();
            for &link in links.iter() {
                if !self.links.offer(link, &frame, VALUE_QUEUE_BYTES_MAX) {
                    missed.push(link);
                }
            }
            missed_any |= !missed.is_empty();
            self.sets.set_missed(set, missed);
        }
        if !missed_any {
            return;
        }
        let mut left = Vec::new();
        for (key, value) in chunk {
            let Some(held) = self.slots.get(key.slot as usize) else { continue };
            if held.generation != key.generation {
                continue;
            }
            for &link in self.sets.missed(held.set) {
                let key = self.links.line_up(link, key.slot, value);
                left.extend(key.map(|key| (key, link)));
            }
        }
        self.sets.clear_missed();
        for (key, link) in left {
            self.move_to_set(key, link, false);
        }
    }

    /// Every link's way out, and how far its line has to go until all that stands in it now is
    /// said.
    pub(crate) fn lines(&mut self) -> Vec<(O, u64)>
    where
        O: Clone,
    {
        self.links.iter_mut().map(|(_, link)| (link.outlet.clone(), link.line.end())).collect()
    }

    /// Ends a link.
    pub(crate) fn end(&mut self, number: LinkNumber, reason: String) {
        if let Some(link) = self.links.get_mut(number) {
            link.end(reason);
        }
    }

    /// Ends every link.
    pub(crate) fn end_all(&mut self, reason: &str) {
        self.links.iter_mut().for_each(|(_, link)| link.end(reason.to_owned()));
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove_entry().0.1 {
                Timer::Write(id) => self.write_is_late(id),
                Timer::Request(path) => self.request_is_late(&path),
            }
        }
        self.pump_lined_up();
    }

    /// When something is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), ())| *at)
    }

    fn set_timer(&mut self, now: Instant, after: Duration, timer: Timer) -> Instant {
        let at = now + after;
        self.timers.insert((at, timer), ());
        at
    }

    fn slot(&self, key: SlotKey) -> Option<&Slot> {
        let held = self.slots.get(key.slot as usize)?;
        (held.generation == key.generation && held.path.is_some()).then_some(held)
    }

    fn slot_mut(&mut self, key: SlotKey) -> Option<&mut Slot> {
        let held = self.slots.get_mut(key.slot as usize)?;
        (held.generation == key.generation && held.path.is_some()).then_some(held)
    }

    /// A link's subscription stands from now on, or no longer.
    fn move_to_set(&mut self, key: SlotKey, link: LinkNumber, stands: bool) {
        let Some(held) = self.slots.get_mut(key.slot as usize) else { return };
        if held.generation != key.generation || held.path.is_none() {
            return;
        }
        held.set = self.sets.moved(held.set, link, stands);
        if let Some(bell) = held.extra.as_ref().and_then(|extra| extra.links_changed.as_ref()) {
            bell.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
