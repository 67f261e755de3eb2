//! Entries that end a fixed time after they began: one queue for each length.
//!
//! Time never falls, so entries of one length end in the order in which they began, and a new one
//! goes to the end of its queue: nothing is sorted or scanned. A heap has one entry for each
//! length.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

/// Unused lengths that may stay allocated: a publisher's jobs have few lengths.
pub(super) const IDLE_LENGTHS_MAX: usize = 1_024;
pub(super) const NONE: u32 = u32::MAX;

/// Entries by slot, each in the queue of its length or in none.
#[derive(Debug)]
pub(super) struct ByLength {
    nodes: Vec<Node>,
    lengths: Vec<Length>,
    by_ms: HashMap<u64, u32>,
    free: Vec<u32>,
    /// Unused lengths are freed once there are this many lengths.
    tidy_at: usize,
    /// For each used length, a lower bound of its first entry's end.
    deadlines: BinaryHeap<Reverse<(u64, u32)>>,
    /// Entries that began earlier count from here.
    floor_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    since_ms: u64,
    /// NONE while it is in no queue.
    length: u32,
    prev: u32,
    next: u32,
}

/// The entries of one length, the first to end first.
#[derive(Debug)]
struct Length {
    ms: u64,
    head: u32,
    tail: u32,
    /// Whether `deadlines` has an entry for it.
    queued: bool,
}

impl ByLength {
    pub(super) fn new() -> ByLength {
        ByLength {
            nodes: Vec::new(),
            lengths: Vec::new(),
            by_ms: HashMap::new(),
            free: Vec::new(),
            tidy_at: IDLE_LENGTHS_MAX,
            deadlines: BinaryHeap::new(),
            floor_ms: 0,
        }
    }

    /// Restarts every queued entry at `now_ms`.
    pub(super) fn restart_all(&mut self, now_ms: u64) {
        self.floor_ms = self.floor_ms.max(now_ms);
    }

    /// Queues an entry that is in no queue: it ends `ms` after `since_ms`, which must not fall from
    /// call to call.
    pub(super) fn join(&mut self, slot: u32, since_ms: u64, ms: u64) {
        let length = match self.by_ms.get(&ms) {
            Some(&length) => length,
            None => self.new_length(ms),
        };
        let list = &mut self.lengths[length as usize];
        let tail = std::mem::replace(&mut list.tail, slot);
        match tail {
            NONE => list.head = slot,
            tail => self.nodes[tail as usize].next = slot,
        }
        let node = Node { since_ms, length, prev: tail, next: NONE };
        let position = slot as usize;
        if position >= self.nodes.len() {
            let nowhere = Node { since_ms: 0, length: NONE, prev: NONE, next: NONE };
            self.nodes.resize(position + 1, nowhere);
        }
        debug_assert_eq!(self.nodes[position].length, NONE, "it is in no queue");
        self.nodes[position] = node;
        if !std::mem::replace(&mut self.lengths[length as usize].queued, true) {
            self.deadlines.push(Reverse((self.end(node), length)));
        }
    }

    /// Removes an entry from its queue, if it is in one.
    pub(super) fn leave(&mut self, slot: u32) {
        let Some(node) = self.nodes.get_mut(slot as usize) else { return };
        let Node { length, prev, next, .. } = *node;
        if length == NONE {
            return;
        }
        node.length = NONE;
        let list = &mut self.lengths[length as usize];
        match prev {
            NONE => list.head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.nodes[next as usize].prev = prev,
        }
    }

    /// When an entry ends; none while it is in no queue.
    pub(super) fn end_of(&self, slot: u32) -> Option<u64> {
        let node = self.nodes.get(slot as usize).filter(|node| node.length != NONE)?;
        Some(self.end(*node))
    }

    /// A lower bound of the next end.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.deadlines.peek().map(|&Reverse((at, _))| at)
    }

    /// The first entry that has ended by now, and when it did. It stays in its queue.
    pub(super) fn first_ended(&mut self, now_ms: u64) -> Option<(u32, u64)> {
        while let Some(&Reverse((at, length))) = self.deadlines.peek() {
            if at > now_ms {
                break;
            }
            let head = self.lengths[length as usize].head;
            if head == NONE {
                self.deadlines.pop();
                self.lengths[length as usize].queued = false;
                continue;
            }
            let end = self.end(self.nodes[head as usize]);
            if end <= now_ms {
                return Some((head, end));
            }
            // Its first entry was removed since: the bound was too early.
            self.deadlines.pop();
            self.deadlines.push(Reverse((end, length)));
        }
        None
    }

    /// The larger of the allocated lengths and heap entries.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.lengths.len().max(self.deadlines.len())
    }

    fn end(&self, node: Node) -> u64 {
        let length = &self.lengths[node.length as usize];
        node.since_ms.max(self.floor_ms).saturating_add(length.ms)
    }

    fn new_length(&mut self, ms: u64) -> u32 {
        if self.by_ms.len() >= self.tidy_at {
            self.tidy();
        }
        let length = Length { ms, head: NONE, tail: NONE, queued: false };
        let position = match self.free.pop() {
            Some(position) => {
                self.lengths[position as usize] = length;
                position
            }
            None => {
                self.lengths.push(length);
                (self.lengths.len() - 1) as u32
            }
        };
        self.by_ms.insert(ms, position);
        position
    }

    /// Frees unused lengths. Amortized over the lengths that were created since the last time.
    fn tidy(&mut self) {
        let ByLength { lengths, by_ms, free, deadlines, .. } = self;
        deadlines.retain(|&Reverse((_, length))| lengths[length as usize].head != NONE);
        // In slot order, not table order: the order of simultaneous ends must be deterministic.
        for (position, length) in (0u32..).zip(lengths.iter()) {
            if length.head == NONE && by_ms.get(&length.ms) == Some(&position) {
                by_ms.remove(&length.ms);
                free.push(position);
            }
        }
        self.tidy_at = 2 * self.by_ms.len() + IDLE_LENGTHS_MAX;
    }
}
