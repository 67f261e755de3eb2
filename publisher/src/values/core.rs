//! The state of a publisher of values, without socket, clock or task.
//!
//! ```text
//!  commit ─▶ slots (the values) ─▶ the buffer of each slot's link set ─▶ one frame, offered to
//!                                                                        every link of the set
//!                                                                        └─ no room ─▶ the link's
//!                                                                           backlog
//!  room again ─▶ pump: the backlog's entries, with the newest value of each
//! ```
//!
//! A link with an empty backlog receives frames that were written once for all links of a set. An
//! update without room becomes one entry per subscription in the link's backlog, and is sent in the
//! backlog's order. All other messages to a link (subscribed, refused, ended, written) go through
//! the backlog too. So the messages of one subscription are never out of order.

mod backlog;
mod defaults;
mod links;
mod pump;
mod sets;
mod subscribe;
mod writes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::{Frame, Path, Value};

pub(crate) use self::defaults::{DefaultId, NextRequest, RequestId};
pub(crate) use self::links::{LinkNumber, Violation};
pub(crate) use self::writes::WriteId;

use self::defaults::Defaults;
use self::links::Links;
use self::sets::{LinkSets, SetId};
use super::limits::{CHUNK_BYTES, VALUE_QUEUE_BYTES_MAX, VALUES_MAX};

/// Where a link's frames go.
pub(crate) trait LinkSink {
    /// Accepts a frame, or reports that it exceeds `limit` bytes of the queue. A link that has
    /// ended accepts everything.
    fn offer(&mut self, frame: Frame, limit: usize) -> Offer;
    /// True while at least half of the queue is free.
    fn has_room(&self) -> bool;
    /// The backlog has entries: pump once there is room.
    fn wait_for_room(&mut self);
    /// `sent` entries of the backlog have been sent, ever.
    fn advanced(&mut self, sent: u64);
    /// Ends the link: at once, or after `goodbye` was sent.
    fn end(&mut self, reason: String, goodbye: Option<Frame>);
}

/// The outcome of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// The frame is in the link's queue.
    Accepted,
    /// The frame does not fit.
    Full,
}

/// Notified when something that a program waits for may be there.
pub(crate) type Wakeup = std::sync::Arc<tokio::sync::Notify>;

/// A value's key: its slot, and which of the slot's successive values it is.
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
    extra: Option<Box<SlotExtra>>,
}

/// State that only some values have.
#[derive(Default)]
struct SlotExtra {
    /// Writes that the program has not received; none while it does not accept writes.
    writes: Option<writes::PendingWrites>,
    /// Notified when a link subscribes or leaves.
    links_changed: Option<Wakeup>,
}

/// A deadline.
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
    sets: LinkSets,
    links: Links<O>,
    defaults: Defaults,
    writes: writes::AwaitedReceipts,
    timers: BTreeMap<(Instant, Timer), ()>,
    /// Sets with updates in their buffers.
    touched: Vec<SetId>,
    /// Links whose backlog has new entries, to be pumped.
    links_to_pump: Vec<LinkNumber>,
    /// Why every link was ended, and later ones end at once.
    closed: Option<String>,
}

/// Why a value is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotRefusal {
    /// Its path has a value already.
    Taken,
    /// The limit of values is reached.
    Full,
}

impl<O: LinkSink> Core<O> {
    pub(crate) fn new() -> Core<O> {
        Core {
            slots: Vec::new(),
            free: Vec::new(),
            by_path: HashMap::new(),
            sets: LinkSets::new(),
            links: Links::new(),
            defaults: Defaults::default(),
            writes: writes::AwaitedReceipts::default(),
            timers: BTreeMap::new(),
            touched: Vec::new(),
            links_to_pump: Vec::new(),
            closed: None,
        }
    }

    /// Checks whether [`Core::publish`] would accept the path.
    pub(crate) fn check(&self, path: &Path) -> Result<(), SlotRefusal> {
        match () {
            () if self.by_path.contains_key(path) => Err(SlotRefusal::Taken),
            () if self.by_path.len() >= VALUES_MAX => Err(SlotRefusal::Full),
            () => Ok(()),
        }
    }

    /// Publishes a value; links that requested it from a default receive it.
    pub(crate) fn publish(&mut self, path: &Path, value: Value) -> Result<SlotKey, SlotRefusal> {
        self.check(path)?;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let (set, generation) = (SetId::EMPTY, 0);
                self.slots.push(Slot {
                    value: Value::Null,
                    set,
                    generation,
                    path: None,
                    extra: None,
                });
                // VALUES_MAX is far below `u32::MAX`.
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.value = value;
        slot.path = Some(path.clone());
        let key = SlotKey { slot: index, generation: slot.generation };
        self.by_path.insert(path.clone(), index);
        self.on_published(path, key);
        Ok(key)
    }

    /// Removes a value. Subscribers receive its last update, and then the end.
    pub(crate) fn unpublish(&mut self, key: SlotKey) -> Option<Path> {
        let slot = self.slot_mut(key)?;
        let path = slot.path.take()?;
        let (set, value) = (slot.set, std::mem::take(&mut slot.value));
        let extra = slot.extra.take();
        slot.set = SetId::EMPTY;
        slot.generation = slot.generation.wrapping_add(1);
        self.by_path.remove(&path);
        let links = self.sets.links(set);
        for &link in links.iter() {
            self.links.unpublished(link, key, &value);
            self.links_to_pump.push(link);
        }
        self.sets.release(set);
        if let Some(extra) = extra {
            self.forget_writes(*extra);
        }
        self.free.push(key.slot);
        self.pump_pending_links();
        Some(path)
    }

    /// The current value.
    pub(crate) fn current(&self, key: SlotKey) -> Option<Value> {
        self.slot(key).map(|slot| slot.value.clone())
    }

    /// The number of links that subscribe to the value.
    pub(crate) fn subscribers(&self, key: SlotKey) -> usize {
        self.slot(key).map_or(0, |slot| self.sets.links(slot.set).len())
    }

    /// Notified when a link subscribes or leaves.
    pub(crate) fn links_changed(&mut self, key: SlotKey) -> Option<Wakeup> {
        let extra = self.slot_mut(key)?.extra.get_or_insert_default();
        Some(extra.links_changed.get_or_insert_default().clone())
    }

    /// The number of links.
    pub(crate) fn links_len(&self) -> usize {
        self.links.len()
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }

    /// Applies updates in order, and sends them to every link. Updates of removed values are
    /// ignored.
    pub(crate) fn commit(&mut self, updates: &[(SlotKey, Value)]) {
        let mut rest = updates;
        while !rest.is_empty() {
            let (mut bytes, mut count) = (0, 0);
            for (key, value) in rest {
                count += 1;
                let Some(slot) = self.slots.get_mut(key.slot as usize) else { continue };
                if slot.generation != key.generation || slot.path.is_none() {
                    continue;
                }
                slot.value.clone_from(value);
                if slot.set != SetId::EMPTY {
                    bytes += self.sets.push(slot.set, key.slot, value, &mut self.touched);
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

    /// Removes those of the updates at `only_changes`, ascending, that equal the value before them:
    /// that of the last remaining update before, or else the current one.
    pub(crate) fn remove_unchanged(
        &self,
        updates: &mut Vec<(SlotKey, Value)>,
        only_changes: &[usize],
    ) {
        let mut latest: HashMap<SlotKey, &Value> = HashMap::new();
        let mut only_changes = only_changes.iter().peekable();
        let applies = updates.iter().enumerate().map(|(at, (key, value))| {
            let current = || self.slot(*key).map(|slot| &slot.value);
            let before = latest.get(key).copied().or_else(current);
            let applies = only_changes.next_if_eq(&&at).is_none() || before != Some(value);
            if applies {
                latest.insert(*key, value);
            }
            applies
        });
        let applies: Vec<bool> = applies.collect();
        drop(latest);
        let mut applies = applies.into_iter();
        updates.retain(|_| applies.next().unwrap_or(true));
    }

    /// Offers the sets' buffers to their links. Updates without room go to the link's backlog.
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
            let Some(slot) = self.slots.get(key.slot as usize) else { continue };
            if slot.generation != key.generation {
                continue;
            }
            for &link in self.sets.missed(slot.set) {
                let key = self.links.defer_update(link, key.slot, value);
                left.extend(key.map(|key| (key, link)));
            }
        }
        self.sets.clear_missed();
        for (key, link) in left {
            self.move_to_set(key, link, false);
        }
    }

    /// Every link's sink, with the count of sent entries at which its present backlog is sent.
    pub(crate) fn backlog_ends(&mut self) -> Vec<(O, u64)>
    where
        O: Clone,
    {
        self.links.iter_mut().map(|(_, link)| (link.sink.clone(), link.backlog_end())).collect()
    }

    /// Ends a link.
    pub(crate) fn end(&mut self, number: LinkNumber, reason: String) {
        if let Some(link) = self.links.get_mut(number) {
            link.end(reason);
        }
    }

    /// Ends every link, also those that attach later.
    pub(crate) fn end_all(&mut self, reason: &str) {
        self.closed = Some(reason.to_owned());
        self.links.iter_mut().for_each(|(_, link)| link.end(reason.to_owned()));
    }

    /// Handles the deadlines that have passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove_entry().0.1 {
                Timer::Write(id) => self.write_timed_out(id),
                Timer::Request(path) => self.request_timed_out(&path),
            }
        }
        self.pump_pending_links();
    }

    /// The next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), ())| *at)
    }

    fn set_timer(&mut self, now: Instant, after: Duration, timer: Timer) -> Instant {
        let at = now + after;
        self.timers.insert((at, timer), ());
        at
    }

    fn slot(&self, key: SlotKey) -> Option<&Slot> {
        let slot = self.slots.get(key.slot as usize)?;
        (slot.generation == key.generation && slot.path.is_some()).then_some(slot)
    }

    fn slot_mut(&mut self, key: SlotKey) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        (slot.generation == key.generation && slot.path.is_some()).then_some(slot)
    }

    /// A link's subscription begins or ends.
    fn move_to_set(&mut self, key: SlotKey, link: LinkNumber, joins: bool) {
        let Some(slot) = self.slots.get_mut(key.slot as usize) else { return };
        if slot.generation != key.generation || slot.path.is_none() {
            return;
        }
        slot.set = self.sets.changed_by(slot.set, link, joins);
        if let Some(wakeup) = slot.extra.as_ref().and_then(|extra| extra.links_changed.as_ref()) {
            wakeup.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
