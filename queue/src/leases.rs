//! Decides when a lease ends: by its length, with its link, or by its attempt's run timeout. Leases
//! use monotonic time and are not logged; the log gets `Expire` once some have ended.
//!
//! Pure, and cheap per job: a lease is a row in a slab, an entry in a table of tokens, and a node
//! in three lists: of its length by renewal, of its run timeout by start ([`by_length`]), and of
//! its link. Nothing is sorted or scanned, and a pause updates one number.

mod by_length;

use std::collections::VecDeque;

use hashbrown::HashMap;
use longshore_protocol::{LinkId, Token};

use self::by_length::{ByLength, NONE};
use crate::LeaseEnd;

/// How long leases outlive their link or the publisher's run, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseTiming {
    /// How long a lease runs on after its link is lost, unless it ends sooner by itself. 5,000 by
    /// default.
    pub reconnect_grace_ms: u64,
    /// How long a lease runs after the publisher's restart, whatever its length, unless its worker
    /// resumes it. 30,000 by default.
    pub restart_window_ms: u64,
}

impl Default for LeaseTiming {
    fn default() -> LeaseTiming {
        LeaseTiming { reconnect_grace_ms: 5_000, restart_window_ms: 30_000 }
    }
}

/// Most leases that one call of [`Leases::take_ended`] returns: one `Expire` is one record, and
/// delays the commands after it.
pub const LEASE_ENDS_MAX: usize = 10_000;

/// The leases of a publisher. Times are in milliseconds of the publisher's monotonic time;
/// they never decrease.
#[derive(Debug)]
pub struct Leases {
    timing: LeaseTiming,
    rows: Vec<LeaseRow>,
    free: u32,
    by_token: HashMap<u64, u32>,
    /// All leases by length, since their renewal.
    lengths: ByLength,
    /// Leases of started attempts with a run timeout, by the time that remained when the start was
    /// reported.
    runs: ByLength,
    links: HashMap<u64, LinkRow>,
    /// Lost links, in order of loss.
    lost: VecDeque<(u64, u64)>,
    /// The end of the publisher's last pause: the grace of lost links counts from there.
    floor_ms: u64,
    /// The latest time of any call.
    latest_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct LeaseRow {
    token: u64,
    link: u64,
    run_timeout_ms: u64,
    lease_ms: u32,
    link_prev: u32,
    /// The next free row, of a free one.
    link_next: u32,
    started: bool,
    restart: bool,
    /// The job waits at the publisher.
    unsent: bool,
    /// Returned by [`Leases::take_ended`]; it stays known until its end is durable.
    has_ended: bool,
}

#[derive(Debug)]
struct LinkRow {
    head: u32,
    /// When the link was lost; none while it is up.
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
            lengths: ByLength::new(),
            runs: ByLength::new(),
            links: HashMap::new(),
            lost: VecDeque::new(),
            floor_ms: 0,
            latest_ms: 0,
        }
    }

    /// The configured timing.
    pub fn timing(&self) -> LeaseTiming {
        self.timing
    }

    /// The number of known leases.
    pub fn len(&self) -> usize {
        self.by_token.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// A link is up.
    pub fn link_up(&mut self, link: LinkId) {
        self.links.entry(link.0).or_insert(LinkRow { head: NONE, lost_ms: None });
    }

    /// A link was lost: its leases run on for the grace, or to their own end.
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

    /// A delivery was released to its worker: its lease begins. If the link is down already, it
    /// counts as lost now. Once started, the attempt may run for `run_timeout_ms`, or without a
    /// limit if that is 0.
    pub fn granted(
        &mut self,
        now_ms: u64,
        token: Token,
        link: LinkId,
        lease_ms: u32,
        run_timeout_ms: u64,
    ) {
        self.insert(now_ms, token, link, lease_ms, run_timeout_ms, false);
    }

    /// A lease that was running when the publisher stopped: it ends with the restart window unless
    /// it is resumed. How long its attempt has run is unknown until its worker reports it on its
    /// new link.
    pub fn restarted(
        &mut self,
        now_ms: u64,
        token: Token,
        link: LinkId,
        lease_ms: u32,
        run_timeout_ms: u64,
    ) {
        self.insert(now_ms, token, link, lease_ms, run_timeout_ms, true);
    }

    /// Whether there is such a lease on that link, including one whose end is not durable yet.
    pub fn holds(&self, token: Token, link: LinkId) -> bool {
        self.find(token, link).is_some()
    }

    /// Renews a lease. False if there is no such lease on that link.
    pub fn renewed(&mut self, now_ms: u64, token: Token, link: LinkId) -> bool {
        let Some(slot) = self.find(token, link) else { return false };
        self.renew(now_ms, slot);
        true
    }

    /// The job waits at the publisher, as for a slow link or for the disk: until it is sent, the
    /// end of its lease counts neither against it nor its worker. Unknown leases are ignored.
    pub fn waits(&mut self, token: Token, link: LinkId) {
        if let Some(slot) = self.find(token, link) {
            self.rows[slot as usize].unsent = true;
        }
    }

    /// A job that waited is sent: its lease begins now.
    pub fn sent(&mut self, now_ms: u64, token: Token, link: LinkId) {
        if let Some(slot) = self.find(token, link) {
            self.rows[slot as usize].unsent = false;
            self.renew(now_ms, slot);
        }
    }

    /// The worker starts the job, or has run it for `running_ms`: from now on losing the lease
    /// costs an attempt, and the run timeout counts. A repeated call can only shorten the remaining
    /// time. False if there is no such lease on that link.
    pub fn started(&mut self, now_ms: u64, token: Token, link: LinkId, running_ms: u64) -> bool {
        let Some(slot) = self.find(token, link) else { return false };
        let row = &mut self.rows[slot as usize];
        row.started = true;
        if row.run_timeout_ms == 0 || row.has_ended {
            return true;
        }
        // The remaining time is a length of its own, from now: most attempts start now, and all of
        // those share one length.
        let left_ms = row.run_timeout_ms.saturating_sub(running_ms);
        let now_ms = self.monotonic(now_ms);
        if self.runs.end_of(slot).is_none_or(|end| now_ms.saturating_add(left_ms) < end) {
            self.runs.leave(slot);
            self.runs.join(slot, now_ms, left_ms);
        }
        true
    }

    /// The session resumed the lease on another link: it counts as renewed. False if there is no
    /// such lease.
    pub fn moved(&mut self, now_ms: u64, token: Token, link: LinkId) -> bool {
        let Some(&slot) = self.by_token.get(&token.0) else { return false };
        if self.rows[slot as usize].has_ended {
            return true;
        }
        self.leave_link(slot);
        self.rows[slot as usize].link = link.0;
        self.join_link(now_ms, slot);
        self.rows[slot as usize].restart = false;
        self.renew(now_ms, slot);
        true
    }

    /// The lease has ended, for whatever reason. Unknown tokens are ignored.
    pub fn ended(&mut self, token: Token) {
        let Some(slot) = self.by_token.remove(&token.0) else { return };
        if !self.rows[slot as usize].has_ended {
            self.unlink_all(slot);
        }
        self.rows[slot as usize].link_next = self.free;
        self.free = slot;
    }

    /// The publisher was paused until now: every lease gets its full length again, every lost link
    /// its grace. Run timeouts did not pause.
    pub fn paused(&mut self, now_ms: u64) {
        self.floor_ms = self.floor_ms.max(now_ms);
        self.lengths.restart_all(now_ms);
    }

    /// The publisher refused links until now, as its disk hung: as after a restart, workers have
    /// the restart window to resume their leases.
    pub fn hang_ended(&mut self, now_ms: u64) {
        let LeaseTiming { reconnect_grace_ms, restart_window_ms } = self.timing;
        let more_ms = restart_window_ms.saturating_sub(reconnect_grace_ms);
        // Also for short leases.
        self.paused(now_ms.saturating_add(more_ms));
    }

    /// Takes the leases of a link whose jobs wait at the publisher, at most [`LEASE_ENDS_MAX`]: its
    /// client never gets them.
    pub fn unsent_of(&mut self, link: LinkId, out: &mut Vec<LeaseEnd>) {
        let most = out.len() + LEASE_ENDS_MAX;
        let mut next = self.links.get(&link.0).map_or(NONE, |row| row.head);
        while next != NONE && out.len() < most {
            let slot = next;
            next = self.rows[slot as usize].link_next;
            if self.rows[slot as usize].unsent {
                self.take(slot, false, out);
            }
        }
    }

    /// A lower bound of the next lease's end; none if no lease can end.
    pub fn next_deadline(&self) -> Option<u64> {
        let by_link = self.lost.front().map(|&(lost_ms, _)| self.grace_end(lost_ms));
        [self.lengths.next_end(), self.runs.next_end(), by_link].into_iter().flatten().min()
    }

    /// Takes the leases that have ended by now, at most [`LEASE_ENDS_MAX`]; if it returns that
    /// many, there may be more. They stay known, and can be neither renewed nor granted again,
    /// until [`Leases::ended`].
    pub fn take_ended(&mut self, now_ms: u64, out: &mut Vec<LeaseEnd>) {
        let most = out.len() + LEASE_ENDS_MAX;
        while let Some((slot, end)) = self.runs.first_ended(now_ms) {
            if out.len() == most {
                return;
            }
            // The earlier end counts; at a tie, the run timeout.
            let timed_out = self.lease_end(slot).is_none_or(|lease_end| end <= lease_end);
            self.take(slot, timed_out, out);
        }
        while let Some(&(lost_ms, link)) = self.lost.front() {
            if self.grace_end(lost_ms) > now_ms {
                break;
            }
            while let Some(head) = self.links.get(&link).map(|row| row.head).filter(|&s| s != NONE)
            {
                if out.len() == most {
                    return;
                }
                self.take(head, false, out);
            }
            self.links.remove(&link);
            self.lost.pop_front();
        }
        while let Some((slot, _)) = self.lengths.first_ended(now_ms) {
            if out.len() == most {
                return;
            }
            self.take(slot, false, out);
        }
    }

    /// The number of links with rows.
    #[cfg(test)]
    pub(crate) fn links(&self) -> usize {
        self.links.len() + self.lost.len()
    }

    fn find(&self, token: Token, link: LinkId) -> Option<u32> {
        let &slot = self.by_token.get(&token.0)?;
        (self.rows[slot as usize].link == link.0).then_some(slot)
    }

    /// The lists are ordered by time: clamps a clock that went back.
    fn monotonic(&mut self, now_ms: u64) -> u64 {
        self.latest_ms = self.latest_ms.max(now_ms);
        self.latest_ms
    }

    fn insert(
        &mut self,
        now_ms: u64,
        token: Token,
        link: LinkId,
        lease_ms: u32,
        run_timeout_ms: u64,
        restart: bool,
    ) {
        let now_ms = self.monotonic(now_ms);
        let row = LeaseRow {
            token: token.0,
            link: link.0,
            run_timeout_ms,
            lease_ms,
            link_prev: NONE,
            link_next: NONE,
            started: false,
            restart,
            unsent: false,
            has_ended: false,
        };
        let slot = match self.free {
            NONE => {
                self.rows.push(row);
                (self.rows.len() - 1) as u32
            }
            slot => {
                self.free = self.rows[slot as usize].link_next;
                self.rows[slot as usize] = row;
                slot
            }
        };
        let before = self.by_token.insert(token.0, slot);
        debug_assert!(before.is_none(), "tokens are never reused");
        self.lengths.join(slot, now_ms, self.length_ms(&row));
        // After a restart its link belongs to the previous run; the window replaces the grace.
        if !restart {
            self.join_link(now_ms, slot);
        }
    }

    fn renew(&mut self, now_ms: u64, slot: u32) {
        let row = self.rows[slot as usize];
        if row.has_ended {
            return;
        }
        let now_ms = self.monotonic(now_ms);
        self.lengths.leave(slot);
        self.lengths.join(slot, now_ms, self.length_ms(&row));
    }

    fn length_ms(&self, row: &LeaseRow) -> u64 {
        if row.restart { self.timing.restart_window_ms } else { u64::from(row.lease_ms) }
    }

    /// When a lease ends, by its length or with its link, ignoring its run timeout.
    fn lease_end(&self, slot: u32) -> Option<u64> {
        let row = &self.rows[slot as usize];
        let link = if row.restart { None } else { self.links.get(&row.link) };
        let by_link = link.and_then(|link| link.lost_ms).map(|lost_ms| self.grace_end(lost_ms));
        [self.lengths.end_of(slot), by_link].into_iter().flatten().min()
    }

    fn grace_end(&self, lost_ms: u64) -> u64 {
        lost_ms.max(self.floor_ms).saturating_add(self.timing.reconnect_grace_ms)
    }

    fn take(&mut self, slot: u32, timed_out: bool, out: &mut Vec<LeaseEnd>) {
        self.unlink_all(slot);
        let row = &mut self.rows[slot as usize];
        row.has_ended = true;
        out.push(LeaseEnd {
            token: Token(row.token),
            started: row.started,
            uncounted: row.restart || row.unsent,
            timed_out,
        });
    }

    fn unlink_all(&mut self, slot: u32) {
        self.lengths.leave(slot);
        self.runs.leave(slot);
        self.leave_link(slot);
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
        let LeaseRow { link, link_prev: prev, link_next: next, .. } = self.rows[slot as usize];
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
