//! When a lease ends. Soft: on monotonic time, not in the log; what is logged is `Expire`, once one has ended.
//!
//! Pure, and cheap per job: a lease is a row in a slab, in two lists (those of its length, by age; those of its link), and
//! an entry in a table of tokens. Leases of one length end in the order in which they were renewed, so each length is a
//! queue; a renewal moves its lease to the end. Nothing is sorted or scanned, and a pause costs one number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hashbrown::HashMap;
use longshore_protocol::{LinkId, Token};

use crate::Expired;

/// How long leases outlive what held them, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseTiming {
    /// After its link is lost a lease runs on for this long, or to its own end if that is sooner.
    pub reconnect_grace_ms: u64,
    /// After the publisher's restart a lease runs this long, whatever its length, unless its worker resumes it.
    pub restart_window_ms: u64,
}

impl Default for LeaseTiming {
    fn default() -> LeaseTiming {
        LeaseTiming { reconnect_grace_ms: 5_000, restart_window_ms: 30_000 }
    }
}

/// Most leases that one call of [`Leases::expired`] gives: one `Expire` is one record, and holds up what comes after it.
pub const EXPIRED_MAX: usize = 10_000;

/// Lengths that are kept though no lease has them: a publisher's jobs have few.
const LENGTHS_KEPT: usize = 1_024;
const NONE: u32 = u32::MAX;

/// The leases of a publisher. Times are milliseconds of the publisher's own life; they never fall.
#[derive(Debug)]
pub struct Leases {
    timing: LeaseTiming,
    rows: Vec<Row>,
    free: u32,
    by_token: HashMap<u64, u32>,
    lengths: Vec<Length>,
    by_length: HashMap<u64, u32>,
    free_lengths: Vec<u32>,
    /// Lengths without leases are forgotten once there are so many.
    lengths_before_tidying: usize,
    links: HashMap<u64, LinkRow>,
    /// For each length that has leases: not before when its first one ends. Entries may be too early, never too late.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// Links that are lost, by when.
    lost: VecDeque<(u64, u64)>,
    /// The end of the publisher's last pause: leases count from there, if they were renewed before.
    floor_ms: u64,
    /// The latest time that anything was told.
    latest_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    token: u64,
    renewed_ms: u64,
    link: u64,
    lease_ms: u32,
    length: u32,
    length_prev: u32,
    length_next: u32,
    link_prev: u32,
    link_next: u32,
    started: bool,
    restart: bool,
    /// Given out by `expired`; it stays known until its end is durable.
    expired: bool,
}

/// The leases of one length, oldest renewal first.
#[derive(Debug)]
struct Length {
    ms: u64,
    head: u32,
    tail: u32,
    /// Whether `due` has an entry for it.
    queued: bool,
}

#[derive(Debug)]
struct LinkRow {
    head: u32,
    /// When it was lost; none while it is up.
    lost_ms: Option<u64>,
}

impl Leases {
    /// No leases.
    pub fn new(timing: LeaseTiming) -> Leases {
        Leases {
            timing,
            rows: Vec::new(),
            free: NONE,
            by_token: HashMap::new(),
            lengths: Vec::new(),
            by_length: HashMap::new(),
            free_lengths: Vec::new(),
            lengths_before_tidying: LENGTHS_KEPT,
            links: HashMap::new(),
            due: BinaryHeap::new(),
            lost: VecDeque::new(),
            floor_ms: 0,
            latest_ms: 0,
        }
    }

    /// Leases that are known.
    pub fn len(&self) -> usize {
        self.by_token.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// A link stands.
    pub fn link_up(&mut self, link: LinkId) {
        self.links.entry(link.0).or_insert(LinkRow { head: NONE, lost_ms: None });
    }

    /// A link is gone: its leases run on for the grace, or to their own end.
    pub fn link_lost(&mut self, now_ms: u64, link: LinkId) {
        match self.links.get_mut(&link.0) {
            Some(row) if row.lost_ms.is_none() && row.head == NONE => {
                self.links.remove(&link.0);
            }
            Some(row) if row.lost_ms.is_none() => {
                let now_ms = now_ms.max(self.latest_ms);
                self.latest_ms = now_ms;
                row.lost_ms = Some(now_ms);
                self.lost.push_back((now_ms, link.0));
            }
            _ => {}
        }
    }

    /// A delivery was released to its worker: its lease begins. A link that is not up has lost it already.
    pub fn granted(&mut self, now_ms: u64, token: Token, link: LinkId, lease_ms: u32) {
        self.insert(now_ms, token, link, lease_ms, false);
    }

    /// A lease that was running when the publisher went down: it ends with the restart window unless it is resumed.
    pub fn restarted(&mut self, now_ms: u64, token: Token, link: LinkId, lease_ms: u32) {
        self.insert(now_ms, token, link, lease_ms, true);
    }

    /// Its worker says that it still runs. False when there is no such lease on that link.
    pub fn renewed(&mut self, now_ms: u64, token: Token, link: LinkId) -> bool {
        let Some(slot) = self.find(token, link) else { return false };
        self.renew(now_ms, slot);
        true
    }

    /// Its worker is about to run the job: losing the lease now costs an attempt. False when there is no such lease on
    /// that link.
    pub fn started(&mut self, token: Token, link: LinkId) -> bool {
        let Some(slot) = self.find(token, link) else { return false };
        self.rows[slot as usize].started = true;
        true
    }

    /// Its session has resumed it on another link: it counts as renewed. False when there is no such lease.
    pub fn moved(&mut self, now_ms: u64, token: Token, link: LinkId) -> bool {
        let Some(&slot) = self.by_token.get(&token.0) else { return false };
        if self.rows[slot as usize].expired {
            return true;
        }
        self.leave_link(slot);
        self.rows[slot as usize].link = link.0;
        self.join_link(now_ms, slot);
        self.rows[slot as usize].restart = false;
        self.renew(now_ms, slot);
        true
    }

    /// It has ended, however it did. Unknown ones are passed over.
    pub fn ended(&mut self, token: Token) {
        let Some(slot) = self.by_token.remove(&token.0) else { return };
        if !self.rows[slot as usize].expired {
            self.leave_length(slot);
            self.leave_link(slot);
        }
        self.rows[slot as usize].length_next = self.free;
        self.free = slot;
    }

    /// The publisher itself stood still until now: every lease gets its full length anew, every lost link its grace.
    pub fn paused(&mut self, now_ms: u64) {
        self.floor_ms = self.floor_ms.max(now_ms);
    }

    /// Not after when the next lease ends; it may be earlier. None when there are no leases that can end.
    pub fn next_deadline(&self) -> Option<u64> {
        let by_length = self.due.peek().map(|&Reverse((at, _))| at);
        let by_link = self.lost.front().map(|&(lost_ms, _)| self.grace_end(lost_ms));
        match (by_length, by_link) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes out the leases that have ended by now, at most [`EXPIRED_MAX`]: when it gives that many, there may be more.
    /// They stay known, and can be neither renewed nor given again, until [`Leases::ended`].
    pub fn expired(&mut self, now_ms: u64, out: &mut Vec<Expired>) {
        let most = out.len() + EXPIRED_MAX;
        while let Some(&(lost_ms, link)) = self.lost.front() {
            if self.grace_end(lost_ms) > now_ms {
                break;
            }
            while let Some(head) = self.links.get(&link).map(|row| row.head).filter(|&s| s != NONE)
            {
                if out.len() == most {
                    return;
                }
                self.take(head, out);
            }
            self.links.remove(&link);
            self.lost.pop_front();
        }
        while let Some(&Reverse((at, length))) = self.due.peek() {
            if at > now_ms {
                break;
            }
            let row = &self.lengths[length as usize];
            let head = row.head;
            if head == NONE {
                self.due.pop();
                self.lengths[length as usize].queued = false;
                continue;
            }
            let ends = self.ends(head);
            if ends > now_ms {
                // Its first lease was renewed or ended since: the entry was too early.
                self.due.pop();
                self.due.push(Reverse((ends, length)));
                continue;
            }
            if out.len() == most {
                return;
            }
            self.take(head, out);
        }
    }

    /// Links that something is kept for.
    #[cfg(test)]
    pub(crate) fn links(&self) -> usize {
        self.links.len() + self.lost.len()
    }

    fn find(&self, token: Token, link: LinkId) -> Option<u32> {
        let &slot = self.by_token.get(&token.0)?;
        (self.rows[slot as usize].link == link.0).then_some(slot)
    }

    /// Lists are in the order of time: a clock that falls back is passed over.
    fn not_before_the_last(&mut self, now_ms: u64) -> u64 {
        self.latest_ms = self.latest_ms.max(now_ms);
        self.latest_ms
    }

    fn insert(&mut self, now_ms: u64, token: Token, link: LinkId, lease_ms: u32, restart: bool) {
        let now_ms = self.not_before_the_last(now_ms);
        let row = Row {
            token: token.0,
            renewed_ms: now_ms,
            link: link.0,
            lease_ms,
            length: NONE,
            length_prev: NONE,
            length_next: NONE,
            link_prev: NONE,
            link_next: NONE,
            started: false,
            restart,
            expired: false,
        };
        let slot = match self.free {
            NONE => {
                self.rows.push(row);
                (self.rows.len() - 1) as u32
            }
            slot => {
                self.free = self.rows[slot as usize].length_next;
                self.rows[slot as usize] = row;
                slot
            }
        };
        let before = self.by_token.insert(token.0, slot);
        debug_assert!(before.is_none(), "tokens are never given twice");
        self.join_length(slot);
        // After a restart its link is of the run before; the window takes the place of the grace.
        if !restart {
            self.join_link(now_ms, slot);
        }
    }

    fn renew(&mut self, now_ms: u64, slot: u32) {
        let row = &mut self.rows[slot as usize];
        if row.expired {
            return;
        }
        self.leave_length(slot);
        self.rows[slot as usize].renewed_ms = self.not_before_the_last(now_ms);
        self.join_length(slot);
    }

    /// When a lease ends by its own length.
    fn ends(&self, slot: u32) -> u64 {
        let row = &self.rows[slot as usize];
        let length = &self.lengths[row.length as usize];
        row.renewed_ms.max(self.floor_ms).saturating_add(length.ms)
    }

    fn grace_end(&self, lost_ms: u64) -> u64 {
        lost_ms.max(self.floor_ms).saturating_add(self.timing.reconnect_grace_ms)
    }

    fn take(&mut self, slot: u32, out: &mut Vec<Expired>) {
        self.leave_length(slot);
        self.leave_link(slot);
        let row = &mut self.rows[slot as usize];
        row.expired = true;
        out.push(Expired {
            token: Token(row.token),
            started: row.started,
            restart: row.restart,
            timed_out: false,
        });
    }

    fn join_length(&mut self, slot: u32) {
        let row = self.rows[slot as usize];
        let ms = if row.restart { self.timing.restart_window_ms } else { u64::from(row.lease_ms) };
        let length = match self.by_length.get(&ms) {
            Some(&length) => length,
            None => self.new_length(ms),
        };
        let list = &mut self.lengths[length as usize];
        let tail = std::mem::replace(&mut list.tail, slot);
        match tail {
            NONE => list.head = slot,
            tail => self.rows[tail as usize].length_next = slot,
        }
        let row = &mut self.rows[slot as usize];
        (row.length, row.length_prev, row.length_next) = (length, tail, NONE);
        if !std::mem::replace(&mut self.lengths[length as usize].queued, true) {
            let ends = self.ends(slot);
            self.due.push(Reverse((ends, length)));
        }
    }

    fn new_length(&mut self, ms: u64) -> u32 {
        if self.by_length.len() >= self.lengths_before_tidying {
            self.tidy();
        }
        let length = Length { ms, head: NONE, tail: NONE, queued: false };
        let place = match self.free_lengths.pop() {
            Some(place) => {
                self.lengths[place as usize] = length;
                place
            }
            None => {
                self.lengths.push(length);
                (self.lengths.len() - 1) as u32
            }
        };
        self.by_length.insert(ms, place);
        place
    }

    /// Forgets the lengths that no lease has. Costs as much as lengths were made since the last time.
    fn tidy(&mut self) {
        let Leases { lengths, by_length, free_lengths, due, .. } = self;
        due.retain(|&Reverse((_, length))| lengths[length as usize].head != NONE);
        by_length.retain(|_, &mut length| {
            let used = lengths[length as usize].head != NONE;
            if !used {
                free_lengths.push(length);
            }
            used
        });
        self.lengths_before_tidying = 2 * self.by_length.len() + LENGTHS_KEPT;
    }

    fn leave_length(&mut self, slot: u32) {
        let Row { length, length_prev: prev, length_next: next, .. } = self.rows[slot as usize];
        let list = &mut self.lengths[length as usize];
        match prev {
            NONE => list.head = next,
            prev => self.rows[prev as usize].length_next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.rows[next as usize].length_prev = prev,
        }
    }

    fn join_link(&mut self, now_ms: u64, slot: u32) {
        let link = self.rows[slot as usize].link;
        let lost = &mut self.lost;
        let row = self.links.entry(link).or_insert_with(|| {
            lost.push_back((now_ms, link));
            LinkRow { head: NONE, lost_ms: Some(now_ms) }
        });
        let head = std::mem::replace(&mut row.head, slot);
        if head != NONE {
            self.rows[head as usize].link_prev = slot;
        }
        let row = &mut self.rows[slot as usize];
        (row.link_prev, row.link_next) = (NONE, head);
    }

    fn leave_link(&mut self, slot: u32) {
        let Row { link, link_prev: prev, link_next: next, .. } = self.rows[slot as usize];
        if prev != NONE {
            self.rows[prev as usize].link_next = next;
        } else if let Some(row) = self.links.get_mut(&link).filter(|row| row.head == slot) {
            row.head = next;
        }
        if next != NONE {
            self.rows[next as usize].link_prev = prev;
        }
    }
}

#[cfg(test)]
mod tests;
