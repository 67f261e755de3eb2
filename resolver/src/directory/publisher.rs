//! What the directory keeps of one publisher.

use std::collections::BTreeMap;
use std::ops::{Bound, Index, IndexMut};
use std::sync::LazyLock;
use std::time::Instant;

use longshore_protocol::Terms;
use longshore_protocol::messages::resolver::{Digest, KeyHash};
use longshore_protocol::{Path, PublisherInfo};

use crate::directory::{Client, Slot};

/// The terms of everything that is held.
pub(super) static TERMS: LazyLock<u64> = LazyLock::new(|| Terms::default().digest());

/// One publisher.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) info: PublisherInfo,
    /// Who writes for it at the moment.
    pub(super) client: Option<Client>,
    /// When it will have been silent for too long.
    pub(super) deadline: Instant,
    /// Silent for too long, or stopped: nobody sees it any more, and its paths are being taken out.
    pub(super) hidden: bool,
    /// How often it was announced with something else than it holds. What it holds carries the round in which it was last written.
    pub(super) round: u64,
    /// Its last announce differed: all that is wanted is being written again.
    pub(super) rewriting: bool,
    pub(super) holds: BTreeMap<Path, Held>,
    /// Of what it holds.
    pub(super) digest: Digest,
}

/// In which round a path, and a default at it, were last written; none for what is not held.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Held {
    path: Option<u64>,
    default: Option<u64>,
}

impl Publisher {
    pub(super) fn new(info: PublisherInfo, client: Client, now: Instant) -> Publisher {
        Publisher {
            info,
            client: Some(client),
            deadline: now,
            hidden: false,
            round: 0,
            rewriting: false,
            holds: BTreeMap::new(),
            digest: Digest::default(),
        }
    }

    /// Notes that it holds what it did not.
    pub(super) fn hold(&mut self, path: &Path, default: bool) {
        let held = self.holds.entry(path.clone()).or_default();
        let seen = if default { &mut held.default } else { &mut held.path };
        debug_assert!(seen.is_none(), "{path} is held already");
        *seen = Some(self.round);
        self.digest.add(KeyHash::of(path.as_str(), default), *TERMS);
    }

    /// Notes that it no longer holds it. False when it did not.
    pub(super) fn let_go(&mut self, path: &Path, default: bool) -> bool {
        let Some(held) = self.holds.get_mut(path) else { return false };
        let seen = if default { &mut held.default } else { &mut held.path };
        if seen.take().is_none() {
            return false;
        }
        if held.path.is_none() && held.default.is_none() {
            self.holds.remove(path);
        }
        self.digest.remove(KeyHash::of(path.as_str(), default), *TERMS);
        true
    }

    /// What it holds, after `path` or from the first.
    pub(super) fn holds_after(&self, path: Option<&Path>) -> impl Iterator<Item = (&Path, &Held)> {
        let from = path.map_or(Bound::Unbounded, Bound::Excluded);
        self.holds.range::<Path, _>((from, Bound::Unbounded))
    }
}

impl Held {
    /// The round in which the path, or the default, was last written, if it is held.
    pub(super) fn of(&mut self, default: bool) -> Option<&mut u64> {
        if default { self.default.as_mut() } else { self.path.as_mut() }
    }

    /// Which of the two are held; true for the default.
    pub(super) fn kinds(self) -> impl Iterator<Item = bool> {
        self.before(u64::MAX)
    }

    /// Which of the two were last written before `round`.
    pub(super) fn before(self, round: u64) -> impl Iterator<Item = bool> {
        let stale = |seen: Option<u64>| seen.is_some_and(|seen| seen < round);
        let path = stale(self.path).then_some(false);
        path.into_iter().chain(stale(self.default).then_some(true))
    }
}

/// All publishers.
#[derive(Default, Debug)]
pub(super) struct Slots {
    slots: Vec<Option<Publisher>>,
    free: Vec<Slot>,
}

impl Slots {
    /// How many publishers, hidden ones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, publisher: Publisher) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(publisher);
                slot
            }
            None => {
                self.slots.push(Some(publisher));
                (self.slots.len() - 1) as Slot
            }
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        if self.slots[slot as usize].take().is_some() {
            self.free.push(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Publisher)> {
        (0..).zip(&self.slots).filter_map(|(slot, publisher)| Some((slot, publisher.as_ref()?)))
    }
}

/// A slot is named by nodes, indexes and writers only while its publisher is there.
impl Index<Slot> for Slots {
    type Output = Publisher;
    fn index(&self, slot: Slot) -> &Publisher {
        self.slots[slot as usize].as_ref().expect("a slot in use has its publisher")
    }
}

impl IndexMut<Slot> for Slots {
    fn index_mut(&mut self, slot: Slot) -> &mut Publisher {
        self.slots[slot as usize].as_mut().expect("a slot in use has its publisher")
    }
}
