//! Sets of links. Values with exactly the same subscribers share a set and its buffer: an update is
//! encoded once for all of them.

use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::messages::values::UpdatesWriter;
use longshore_protocol::{Frame, Value};

use super::LinkNumber;

/// A set of links, by its index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SetId(u32);

impl SetId {
    /// The empty set.
    pub(super) const EMPTY: SetId = SetId(0);
}

struct LinkSet {
    /// Sorted.
    links: Arc<[LinkNumber]>,
    /// How many values use it.
    values: usize,
    buffer: Option<UpdatesWriter>,
    /// Bytes of its last frame, an estimate for the next.
    bytes: usize,
    /// Links without room for the last frame.
    missed: Vec<LinkNumber>,
}

/// All sets in use.
pub(super) struct LinkSets {
    sets: Vec<LinkSet>,
    free: Vec<u32>,
    by_links: HashMap<Arc<[LinkNumber]>, SetId>,
    /// The last change: subscriptions come in runs, from one set to another.
    last: Option<(SetId, LinkNumber, bool, SetId)>,
    /// Sets with links that missed a frame.
    missed: Vec<SetId>,
}

impl LinkSets {
    pub(super) fn new() -> LinkSets {
        let links: Arc<[LinkNumber]> = Arc::from([]);
        let empty_set =
            LinkSet { links: links.clone(), values: 0, buffer: None, bytes: 0, missed: Vec::new() };
        LinkSets {
            sets: vec![empty_set],
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

    /// The set that a value has once `link` has joined or left. Releases the old one.
    pub(super) fn changed_by(&mut self, from: SetId, link: LinkNumber, joins: bool) -> SetId {
        let known = self.last.filter(|last| (last.0, last.1, last.2) == (from, link, joins));
        let to = known.map_or_else(|| self.find(from, link, joins), |last| last.3);
        if to != from {
            self.last = Some((from, link, joins, to));
            self.sets[to.0 as usize].values += usize::from(to != SetId::EMPTY);
            self.release(from);
        }
        to
    }

    fn find(&mut self, from: SetId, link: LinkNumber, joins: bool) -> SetId {
        let links = &self.sets[from.0 as usize].links;
        let links: Arc<[LinkNumber]> = match (links.binary_search(&link), joins) {
            (Err(index), true) => {
                let (before, after) = links.split_at(index);
                [before, &[link], after].concat().into()
            }
            (Ok(index), false) => [&links[..index], &links[index + 1..]].concat().into(),
            _ => return from,
        };
        if let Some(known) = self.by_links.get(&links) {
            return *known;
        }
        let set =
            LinkSet { links: links.clone(), values: 0, buffer: None, bytes: 0, missed: Vec::new() };
        let id = match self.free.pop() {
            Some(index) => {
                self.sets[index as usize] = set;
                SetId(index)
            }
            None => {
                self.sets.push(set);
                // There are no more sets than values.
                SetId((self.sets.len() - 1) as u32)
            }
        };
        self.by_links.insert(links, id);
        id
    }

    /// A value no longer uses the set.
    pub(super) fn release(&mut self, set: SetId) {
        if set == SetId::EMPTY {
            return;
        }
        let slot = &mut self.sets[set.0 as usize];
        slot.values -= 1;
        if slot.values == 0 {
            self.by_links.remove(&slot.links);
            slot.links = Arc::from([]);
            slot.buffer = None;
            self.free.push(set.0);
            // Its index may be reused.
            self.last = self.last.filter(|last| last.0 != set && last.3 != set);
        }
    }

    /// The number of sets, the empty one included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_links.len()
    }

    /// Encodes an update into the set's buffer; returns its bytes.
    #[inline]
    pub(super) fn push(
        &mut self,
        set: SetId,
        number: u32,
        value: &Value,
        touched: &mut Vec<SetId>,
    ) -> usize {
        let slot = &mut self.sets[set.0 as usize];
        let bytes = slot.bytes;
        let buffer = slot.buffer.get_or_insert_with(|| {
            touched.push(set);
            UpdatesWriter::with_capacity(bytes + 64)
        });
        let before = buffer.body_len();
        buffer.push(number, value);
        buffer.body_len() - before
    }

    /// The set's frame and its links.
    pub(super) fn take(&mut self, set: SetId) -> Option<(Frame, Arc<[LinkNumber]>)> {
        let slot = &mut self.sets[set.0 as usize];
        let frame = slot.buffer.take()?.finish();
        slot.bytes = frame.len();
        Some((frame, slot.links.clone()))
    }

    /// Records the links that had no room for the frame.
    pub(super) fn set_missed(&mut self, set: SetId, missed: Vec<LinkNumber>) {
        if !missed.is_empty() {
            self.sets[set.0 as usize].missed = missed;
            self.missed.push(set);
        }
    }

    /// The links that had no room for the set's last frame.
    pub(super) fn missed(&self, set: SetId) -> &[LinkNumber] {
        &self.sets[set.0 as usize].missed
    }

    /// Clears the records after the missed updates are in backlogs.
    pub(super) fn clear_missed(&mut self) {
        for set in self.missed.drain(..) {
            self.sets[set.0 as usize].missed = Vec::new();
        }
    }
}
