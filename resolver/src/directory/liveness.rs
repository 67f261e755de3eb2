//! Who the publishers are, who writes for each, and who has been silent for too long.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::messages::resolver::{Departure, RequestRefusal};
use longshore_protocol::{PublisherId, PublisherInfo};

use crate::directory::holdings::{EntryHasher, Holdings};
use crate::directory::remembered::Declares;
use crate::directory::{Client, Slot};

/// One publisher.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) info: PublisherInfo,
    /// Who writes for it at the moment.
    client: Option<Client>,
    /// When it will have been silent for too long.
    deadline: Instant,
    /// When it was last heard of.
    pub(super) heard_at: Instant,
    /// Silent for too long, or stopped: nobody sees it any more, and its paths are being taken out.
    pub(super) hidden: bool,
    /// Why, then.
    pub(super) departure: Option<Departure>,
    pub(super) holdings: Holdings,
    /// Paths that nobody else publishes: once it is hidden, nobody sees them.
    pub(super) alone: usize,
    /// How many queues it holds, and defaults for queues.
    pub(super) jobs: u64,
    /// Where it holds queues, or makes them.
    pub(super) declares: Declares,
    /// It has held something that is not below `/sys`: metrics come and go with their process,
    /// under a new id each time.
    pub(super) is_awaited: bool,
}

/// For whom a client writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    For(Slot),
    /// A newer link or start has taken over.
    Superseded,
}

/// All publishers.
#[derive(Debug)]
pub(super) struct Liveness {
    ttl: Duration,
    /// How the entries of holdings are hashed.
    entries_by: EntryHasher,
    slots: Vec<Option<Publisher>>,
    free: Vec<Slot>,
    by_id: HashMap<PublisherId, Slot>,
    writers: HashMap<Client, Writer>,
    /// When each publisher that can be seen will have been silent for too long.
    deadlines: BTreeSet<(Instant, Slot)>,
    /// Hidden publishers whose paths are still to be taken out.
    graves: VecDeque<Slot>,
}

/// What an announce has come to.
pub(super) struct Announcement {
    pub(super) slot: Slot,
    /// It is known by something else than before: its epoch, its name, its addresses.
    pub(super) moved: bool,
}

impl Liveness {
    pub(super) fn new(ttl: Duration, entries_by: EntryHasher) -> Liveness {
        Liveness {
            ttl,
            entries_by,
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            writers: HashMap::new(),
            deadlines: BTreeSet::new(),
            graves: VecDeque::new(),
        }
    }

    /// Publishers that can be seen.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether that publisher can be seen.
    pub(super) fn is_seen(&self, publisher: PublisherId) -> bool {
        self.by_id.contains_key(&publisher)
    }

    /// Hidden publishers that still hold paths.
    pub(super) fn graves_len(&self) -> usize {
        self.graves.len()
    }

    /// From now on `client` writes for this publisher, and who did before no longer does.
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
                // Hidden ones do not count, but are not to pile up either.
                if self.by_id.len() >= most || self.slots.len() - self.free.len() >= 2 * most {
                    return Err(RequestRefusal::TooManyPublishers);
                }
                let slot = self.insert(Publisher {
                    info: info.clone(),
                    client: Some(client),
                    deadline: now,
                    heard_at: now,
                    hidden: false,
                    departure: None,
                    holdings: Holdings::new(self.entries_by),
                    alone: 0,
                    jobs: 0,
                    declares: Declares::default(),
                    is_awaited: false,
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
        self.heard(client, now);
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

    /// Something came from that client at `at`: its publisher lives.
    pub(super) fn heard(&mut self, client: Client, at: Instant) {
        let Some(&Writer::For(slot)) = self.writers.get(&client) else { return };
        self[slot].heard_at = at.max(self[slot].heard_at);
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

    /// The publisher that has been silent for longest, and when that is too long.
    pub(super) fn next_deadline(&self) -> Option<(Instant, Slot)> {
        self.deadlines.first().copied()
    }

    /// Nobody could be heard for `gap`, until `now`. Who has been heard since has its time from
    /// then on, and not the gap as well.
    pub(super) fn put_off(&mut self, gap: Duration, now: Instant) {
        let deadlines = std::mem::take(&mut self.deadlines);
        for (at, slot) in deadlines {
            let deadline = (at + gap).min(now + self.ttl);
            self[slot].deadline = deadline;
            self.deadlines.insert((deadline, slot));
        }
    }

    /// Hides a publisher for good. A later announce of the same id begins anew.
    pub(super) fn bury(&mut self, slot: Slot, departure: Departure) {
        let publisher = &mut self[slot];
        publisher.hidden = true;
        publisher.departure = Some(departure);
        let (deadline, id) = (publisher.deadline, publisher.info.id);
        let client = publisher.client.take();
        self.deadlines.remove(&(deadline, slot));
        self.by_id.remove(&id);
        if let Some(client) = client {
            self.writers.remove(&client);
        }
        self.graves.push_back(slot);
    }

    /// The hidden publisher whose paths are taken out next.
    pub(super) fn grave(&self) -> Option<Slot> {
        self.graves.front().copied()
    }

    /// All paths of the first hidden publisher have been taken out: it is forgotten.
    pub(super) fn close_grave(&mut self) {
        if let Some(slot) = self.graves.pop_front()
            && self.slots[slot as usize].take().is_some()
        {
            self.free.push(slot);
        }
    }

    /// The client is gone; its publisher may be back with another.
    pub(super) fn client_gone(&mut self, client: Client) {
        if let Some(Writer::For(slot)) = self.writers.remove(&client) {
            self[slot].client = None;
        }
    }

    /// Publishers from that slot on, hidden ones included.
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

/// A slot is named by sets, indexes and writers only while its publisher is there.
impl Index<Slot> for Liveness {
    type Output = Publisher;
    fn index(&self, slot: Slot) -> &Publisher {
        self.slots[slot as usize].as_ref().expect("a slot in use has its publisher")
    }
}

impl IndexMut<Slot> for Liveness {
    fn index_mut(&mut self, slot: Slot) -> &mut Publisher {
        self.slots[slot as usize].as_mut().expect("a slot in use has its publisher")
    }
}

#[cfg(test)]
impl Liveness {
    /// The slot of a publisher that can be seen.
    pub(super) fn find(&self, publisher: PublisherId) -> Option<Slot> {
        self.by_id.get(&publisher).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Publisher)> {
        self.from(0)
    }

    /// Panics where two indexes disagree.
    pub(super) fn invariant(&self) {
        for (slot, publisher) in self.iter() {
            assert_eq!(self.graves.contains(&slot), publisher.hidden, "buried is hidden");
            let named = self.by_id.get(&publisher.info.id) == Some(&slot);
            assert_eq!(named, !publisher.hidden, "who is hidden is not found by its id");
            let awaited = self.deadlines.contains(&(publisher.deadline, slot));
            assert_eq!(awaited, !publisher.hidden, "who can be seen has a deadline");
            if let Some(client) = publisher.client {
                assert_eq!(self.writers.get(&client), Some(&Writer::For(slot)));
            }
        }
        assert_eq!(self.by_id.len(), self.deadlines.len());
        for writer in self.writers.values() {
            if let Writer::For(slot) = writer {
                assert!(!self[*slot].hidden, "nobody writes for a hidden publisher");
            }
        }
    }
}
