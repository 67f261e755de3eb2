//! Sets of links. Values with just the same subscribers share one, and in it one buffer: an update
//! is written once, whoever gets it.

use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::messages::values::UpdatesWriter;
use longshore_protocol::{Frame, Value};

use super::LinkNumber;

/// A set of links, by its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SetId(u32);

impl SetId {
    /// Nobody.
    pub(super) const EMPTY: SetId = SetId(0);
}

struct Set {
    /// Sorted.
    links: Arc<[LinkNumber]>,
    /// How many values have it.
    values: usize,
    buffer: Option<UpdatesWriter>,
    /// Bytes of its last frame: the next will have about as many.
    bytes: usize,
    /// Links that had no room for the last frame.
    missed: Vec<LinkNumber>,
}

/// All sets that some value has.
pub(super) struct Sets {
    sets: Vec<Set>,
    free: Vec<u32>,
    by_links: HashMap<Arc<[LinkNumber]>, SetId>,
    /// The last move: subscriptions come in runs, from one set to another.
    last: Option<(SetId, LinkNumber, bool, SetId)>,
    /// Sets in which a link missed something.
    missed: Vec<SetId>,
}

impl Sets {
    pub(super) fn new() -> Sets {
        let links: Arc<[LinkNumber]> = Arc::from([]);
        let nobody =
            Set { links: links.clone(), values: 0, buffer: None, bytes: 0, missed: Vec::new() };
        Sets {
            sets: vec![nobody],
            free: Vec::new(),
            by_links: HashMap::from_iter([(links, SetId::EMPTY)]),
            last: None,
            missed: Vec::new(),
        }
    }

    /// The links of a set.
    pub(super) fn links(&self, set: SetId) -> Arc<[LinkNumber]> {
        self.sets[set.0 as usize].links.clone()
    }

    /// The set that a value has once `link` has come or gone. The old one is given up for it.
    pub(super) fn moved(&mut self, from: SetId, link: LinkNumber, comes: bool) -> SetId {
        let known = self.last.filter(|last| (last.0, last.1, last.2) == (from, link, comes));
        let to = known.map_or_else(|| self.find(from, link, comes), |last| last.3);
        if to != from {
            self.last = Some((from, link, comes, to));
            self.sets[to.0 as usize].values += usize::from(to != SetId::EMPTY);
            self.release(from);
        }
        to
    }

    fn find(&mut self, from: SetId, link: LinkNumber, comes: bool) -> SetId {
        let links = &self.sets[from.0 as usize].links;
        let links: Arc<[LinkNumber]> = match (links.binary_search(&link), comes) {
            (Err(place), true) => {
                let (before, after) = links.split_at(place);
                [before, &[link], after].concat().into()
            }
            (Ok(place), false) => [&links[..place], &links[place + 1..]].concat().into(),
            _ => return from,
        };
        if let Some(known) = self.by_links.get(&links) {
            return *known;
        }
        let set =
            Set { links: links.clone(), values: 0, buffer: None, bytes: 0, missed: Vec::new() };
        let id = match self.free.pop() {
            Some(place) => {
                self.sets[place as usize] = set;
                SetId(place)
            }
            None => {
                self.sets.push(set);
                // Not more than there are values.
                SetId((self.sets.len() - 1) as u32)
            }
        };
        self.by_links.insert(links, id);
        id
    }

    /// A value has the set no longer.
    pub(super) fn release(&mut self, set: SetId) {
        if set == SetId::EMPTY {
            return;
        }
        let held = &mut self.sets[set.0 as usize];
        held.values -= 1;
        if held.values == 0 {
            self.by_links.remove(&held.links);
            held.links = Arc::from([]);
            held.buffer = None;
            self.free.push(set.0);
            // Its place may become another set's.
            self.last = self.last.filter(|last| last.0 != set && last.3 != set);
        }
    }

    /// How many sets there are, nobody's included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_links.len()
    }

    /// Writes an update into the set's buffer; gives its bytes.
    #[inline]
    pub(super) fn push(
        &mut self,
        set: SetId,
        number: u32,
        value: &Value,
        touched: &mut Vec<SetId>,
    ) -> usize {
        let held = &mut self.sets[set.0 as usize];
        let bytes = held.bytes;
        let buffer = held.buffer.get_or_insert_with(|| {
            touched.push(set);
            UpdatesWriter::with_capacity(bytes + 64)
        });
        let before = buffer.body_len();
        buffer.push(number, value);
        buffer.body_len() - before
    }

    /// What was written for the set, and for whom.
    pub(super) fn take(&mut self, set: SetId) -> Option<(Frame, Arc<[LinkNumber]>)> {
        let held = &mut self.sets[set.0 as usize];
        let frame = held.buffer.take()?.finish();
        held.bytes = frame.len();
        Some((frame, held.links.clone()))
    }

    /// Takes down who had no room for it.
    pub(super) fn set_missed(&mut self, set: SetId, missed: Vec<LinkNumber>) {
        if !missed.is_empty() {
            self.sets[set.0 as usize].missed = missed;
            self.missed.push(set);
        }
    }

    /// Who had no room for the set's last frame.
    pub(super) fn missed(&self, set: SetId) -> &[LinkNumber] {
        &self.sets[set.0 as usize].missed
    }

    /// All that was missed is seen to.
    pub(super) fn clear_missed(&mut self) {
        for set in self.missed.drain(..) {
            self.sets[set.0 as usize].missed = Vec::new();
        }
    }
}
