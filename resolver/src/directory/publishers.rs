//! The table of publishers: their records, their writers, and their deadlines.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_access::{Identity, Rights};
use longshore_protocol::messages::resolver::{Departure, RequestRefusal};
use longshore_protocol::{PublisherId, PublisherInfo};

use crate::directory::missing_publishers::Declarations;
use crate::directory::registrations::{EntryHasher, Registrations};
use crate::directory::{Client, Slot};

/// One publisher.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) info: PublisherInfo,
    /// Its current writer.
    client: Option<Client>,
    /// The deadline at which it counts as silent.
    deadline: Instant,
    /// When it last sent anything.
    pub(super) last_active: Instant,
    /// Why it is hidden, if it is: silent for too long, or stopped. Its paths are being removed.
    pub(super) departure: Option<Departure>,
    pub(super) registrations: Registrations,
    /// Paths that it alone publishes: once it is hidden they are invisible.
    pub(super) sole_paths: usize,
    /// The identity that registered as it last.
    pub(super) owner: Option<Arc<Identity>>,
    /// What its identity may register, if its policy limits that.
    pub(super) paths_quota: Option<PathsQuota>,
    /// Rights that allow all its registrations, if that is known.
    pub(super) vetted: Option<Arc<Rights>>,
    /// Its queues and its defaults for queues.
    pub(super) jobs: u64,
    /// The queues and defaults that it has declared.
    pub(super) declarations: Declarations,
    /// It has registered something outside `/sys`: publishers of metrics alone come and go with
    /// their process, under a new id each time.
    pub(super) is_recorded: bool,
}

impl Publisher {
    pub(super) fn is_hidden(&self) -> bool {
        self.departure.is_some()
    }
}

/// The quota of paths of a publisher's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathsQuota {
    /// For all its publishers.
    pub(super) limit: usize,
    /// What the others leave for this one.
    pub(super) most: usize,
}

/// The publisher that a client writes for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    For(Slot),
    /// A newer link or start has taken over.
    Superseded,
}

/// All publishers.
#[derive(Debug)]
pub(super) struct PublisherTable {
    ttl: Duration,
    /// The hash of registrations within a bucket.
    entries_by: EntryHasher,
    slots: Vec<Option<Publisher>>,
    free: Vec<Slot>,
    by_id: HashMap<PublisherId, Slot>,
    writers: HashMap<Client, Writer>,
    /// The deadlines of all visible publishers.
    deadlines: BTreeSet<(Instant, Slot)>,
    /// Hidden publishers whose paths are still to be removed.
    hidden: VecDeque<Slot>,
}

/// The result of an announce.
pub(super) struct Announcement {
    pub(super) slot: Slot,
    /// Its record has changed: epoch, name or addresses.
    pub(super) moved: bool,
}

impl PublisherTable {
    pub(super) fn new(ttl: Duration, entries_by: EntryHasher) -> PublisherTable {
        PublisherTable {
            ttl,
            entries_by,
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            writers: HashMap::new(),
            deadlines: BTreeSet::new(),
            hidden: VecDeque::new(),
        }
    }

    /// Visible publishers.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether a publisher is visible.
    pub(super) fn is_visible(&self, publisher: PublisherId) -> bool {
        self.by_id.contains_key(&publisher)
    }

    /// The slot of a visible publisher.
    pub(super) fn find(&self, publisher: PublisherId) -> Option<Slot> {
        self.by_id.get(&publisher).copied()
    }

    /// Hidden publishers that still have paths.
    pub(super) fn hidden_len(&self) -> usize {
        self.hidden.len()
    }

    /// Makes `client` the writer of this publisher, in place of any earlier one.
    pub(super) fn announce(
        &mut self,
        now: Instant,
        client: Client,
        info: &PublisherInfo,
        most: usize,
    ) -> Result<Announcement, RequestRefusal> {
        let (slot, moved) = match self.by_id.get(&info.id) {
            Some(&slot) => {
                if info.epoch < self[slot].info.epoch {
                    return Err(RequestRefusal::Superseded);
                }
                (slot, self.take_over(slot, client, info))
            }
            None => {
                // Hidden publishers do not count, but must not accumulate either.
                if self.by_id.len() >= most || self.slots.len() - self.free.len() >= 2 * most {
                    return Err(RequestRefusal::TooManyPublishers);
                }
                let slot = self.insert(Publisher {
                    info: info.clone(),
                    client: Some(client),
                    deadline: now,
                    last_active: now,
                    departure: None,
                    registrations: Registrations::new(self.entries_by),
                    sole_paths: 0,
                    owner: None,
                    paths_quota: None,
                    vetted: None,
                    jobs: 0,
                    declarations: Declarations::default(),
                    is_recorded: false,
                });
                self.by_id.insert(info.id, slot);
                (slot, false)
            }
        };
        if let Some(Writer::For(before)) = self.writers.insert(client, Writer::For(slot))
            && before != slot
            && self[before].client == Some(client)
        {
            self[before].client = None;
        }
        self.record_activity(client, now);
        Ok(Announcement { slot, moved })
    }

    fn take_over(&mut self, slot: Slot, client: Client, info: &PublisherInfo) -> bool {
        let publisher = &mut self[slot];
        let before = publisher.client.replace(client);
        let moved = publisher.info != *info;
        if moved {
            publisher.info = info.clone();
        }
        if let Some(before) = before.filter(|&before| before != client) {
            self.writers.insert(before, Writer::Superseded);
        }
        moved
    }

    /// A message of this client arrived at `at`: its publisher is alive.
    pub(super) fn record_activity(&mut self, client: Client, at: Instant) {
        let Some(&Writer::For(slot)) = self.writers.get(&client) else { return };
        self[slot].last_active = at.max(self[slot].last_active);
        let (before, deadline) = (self[slot].deadline, at + self.ttl);
        if deadline > before || !self.deadlines.contains(&(before, slot)) {
            self.deadlines.remove(&(before, slot));
            self[slot].deadline = deadline;
            self.deadlines.insert((deadline, slot));
        }
    }

    /// The publisher that `client` writes for.
    pub(super) fn writer(&self, client: Client) -> Result<Slot, RequestRefusal> {
        match self.writers.get(&client) {
            Some(&Writer::For(slot)) => Ok(slot),
            Some(Writer::Superseded) => Err(RequestRefusal::Superseded),
            None => Err(RequestRefusal::NotAnnounced),
        }
    }

    /// The next deadline, and its publisher.
    pub(super) fn next_deadline(&self) -> Option<(Instant, Slot)> {
        self.deadlines.first().copied()
    }

    /// Extends all deadlines by a `gap` until `now` in which no publisher could be heard. One that
    /// was heard since has its time from then on, without the gap.
    pub(super) fn extend_deadlines(&mut self, gap: Duration, now: Instant) {
        let deadlines = std::mem::take(&mut self.deadlines);
        for (at, slot) in deadlines {
            let deadline = (at + gap).min(now + self.ttl);
            self[slot].deadline = deadline;
            self.deadlines.insert((deadline, slot));
        }
    }

    /// Hides a publisher for good. A later announce of the same id begins anew.
    pub(super) fn hide(&mut self, slot: Slot, departure: Departure) {
        let publisher = &mut self[slot];
        publisher.departure = Some(departure);
        let (deadline, id) = (publisher.deadline, publisher.info.id);
        let client = publisher.client.take();
        self.deadlines.remove(&(deadline, slot));
        self.by_id.remove(&id);
        if let Some(client) = client {
            self.writers.remove(&client);
        }
        self.hidden.push_back(slot);
    }

    /// The hidden publisher whose paths are removed next.
    pub(super) fn next_hidden(&self) -> Option<Slot> {
        self.hidden.front().copied()
    }

    /// All paths of the first hidden publisher are removed: so is its record.
    pub(super) fn remove_hidden(&mut self) {
        if let Some(slot) = self.hidden.pop_front()
            && self.slots[slot as usize].take().is_some()
        {
            self.free.push(slot);
        }
    }

    /// The client is gone; its publisher may return with another.
    pub(super) fn client_gone(&mut self, client: Client) {
        if let Some(Writer::For(slot)) = self.writers.remove(&client) {
            self[slot].client = None;
        }
    }

    /// Publishers from this slot on, hidden ones included.
    pub(super) fn from(&self, slot: Slot) -> impl Iterator<Item = (Slot, &Publisher)> {
        let rest = self.slots.get(slot as usize..).unwrap_or_default();
        (slot..).zip(rest).filter_map(|(slot, publisher)| Some((slot, publisher.as_ref()?)))
    }

    fn insert(&mut self, publisher: Publisher) -> Slot {
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
}

/// Sets, indexes and writers refer to a slot only while its publisher is there.
impl Index<Slot> for PublisherTable {
    type Output = Publisher;
    fn index(&self, slot: Slot) -> &Publisher {
        self.slots[slot as usize].as_ref().expect("a slot in use has its publisher")
    }
}

impl IndexMut<Slot> for PublisherTable {
    fn index_mut(&mut self, slot: Slot) -> &mut Publisher {
        self.slots[slot as usize].as_mut().expect("a slot in use has its publisher")
    }
}

#[cfg(test)]
impl PublisherTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Publisher)> {
        self.from(0)
    }

    /// Panics where two indexes disagree.
    pub(super) fn invariant(&self) {
        for (slot, publisher) in self.iter() {
            assert_eq!(
                self.hidden.contains(&slot),
                publisher.is_hidden(),
                "hidden ones wait to be swept"
            );
            let named = self.by_id.get(&publisher.info.id) == Some(&slot);
            assert_eq!(named, !publisher.is_hidden(), "a hidden publisher is not found by its id");
            let awaited = self.deadlines.contains(&(publisher.deadline, slot));
            assert_eq!(awaited, !publisher.is_hidden(), "a visible publisher has a deadline");
            if let Some(client) = publisher.client {
                assert_eq!(self.writers.get(&client), Some(&Writer::For(slot)));
            }
        }
        assert_eq!(self.by_id.len(), self.deadlines.len());
        for writer in self.writers.values() {
            if let Writer::For(slot) = writer {
                assert!(!self[*slot].is_hidden(), "a hidden publisher has no writer");
            }
        }
    }
}
