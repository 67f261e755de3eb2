//! A queue: its jobs by substate, its counters, and its subscription groups.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use longshore_protocol::messages::work::JobCounts;
use longshore_protocol::{Gate, JobState, Path, QueueSettings};

use super::fair::FairLevels;
use super::limit::of_queue::{Held, QueueLimit};
use super::ready::{Head, Ready};
use super::retention::EndedJobs;
use super::row::Substate;
use super::rows::List;
use crate::outcome::RecordRef;

/// A queue's membership in a subscription group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) group: u32,
    /// Its lane in the group.
    pub(super) lane: u32,
}

/// A queue. It is never removed, so its counters never restart.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) path: Path,
    /// Whether the present start lets it accept new jobs. Its existing jobs are served in any case.
    pub(super) accepts: bool,
    /// How many paused patterns match it: it is paused unless there is none.
    pub(super) pauses: u16,
    /// How many closed patterns match it: it accepts new jobs only if there is none.
    pub(super) closings: u16,
    /// The ready jobs, except for those with a fair key.
    pub(super) ready: Ready,
    /// The shares of fair keys, by priority.
    pub(super) fair: FairLevels,
    /// The priorities with ready jobs of fair keys.
    pub(super) fair_filled: BTreeSet<Reverse<i32>>,
    /// Their ready jobs.
    pub(super) fair_ready: u64,
    /// The limits of its jobs, by number.
    pub(super) limits: Vec<QueueLimit>,
    /// The limits of its limit keys, by number.
    pub(super) key_limits: Vec<u32>,
    /// What holds it back.
    pub(super) held: Option<Held>,
    /// Units of the running jobs beyond one for each.
    pub(super) extra_units: u64,
    pub(super) prepared: List,
    pub(super) scheduled: List,
    /// Waiting for the turn of their order keys, or room of their limit keys.
    pub(super) blocked: List,
    pub(super) running: List,
    pub(super) ended: EndedJobs,
    pub(super) settings: QueueSettings,
    pub(super) counts: JobCounts,
    /// Bytes of the entries of jobs that have not ended.
    pub(super) open_bytes: u64,
    pub(super) enqueued: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) died: u64,
    pub(super) redelivered: u64,
    pub(super) stale_refused: u64,
    /// The matching subscription groups, in the order of their creation.
    pub(super) groups: Vec<Member>,
    /// The group to serve first next time.
    pub(super) turn: u32,
    /// The head and the number of ready jobs that its groups know; updated with each command. None
    /// while it is paused or held back.
    pub(super) known_head: Option<Head>,
    pub(super) known_ready: u64,
    /// It is on the list of queues whose groups need an update.
    pub(super) is_changed: bool,
}

impl Queue {
    pub(super) fn new(path: Path) -> Queue {
        Queue {
            path,
            accepts: true,
            pauses: 0,
            closings: 0,
            ready: Ready::default(),
            fair: FairLevels::new(),
            fair_filled: BTreeSet::new(),
            fair_ready: 0,
            limits: Vec::new(),
            key_limits: Vec::new(),
            held: None,
            extra_units: 0,
            prepared: List::default(),
            scheduled: List::default(),
            blocked: List::default(),
            running: List::default(),
            ended: EndedJobs::default(),
            settings: QueueSettings::default(),
            counts: JobCounts::default(),
            open_bytes: 0,
            enqueued: 0,
            completed: 0,
            failed: 0,
            died: 0,
            redelivered: 0,
            stale_refused: 0,
            groups: Vec::new(),
            turn: 0,
            known_head: None,
            known_ready: 0,
            is_changed: false,
        }
    }

    /// How many patterns close that gate.
    pub(super) fn patterns(&self, gate: Gate) -> u16 {
        match gate {
            Gate::Delivery => self.pauses,
            Gate::Enqueue => self.closings,
        }
    }

    pub(super) fn patterns_mut(&mut self, gate: Gate) -> &mut u16 {
        match gate {
            Gate::Delivery => &mut self.pauses,
            Gate::Enqueue => &mut self.closings,
        }
    }

    /// Units of the running jobs.
    pub(super) fn running_units(&self) -> u64 {
        self.counts.running + self.extra_units
    }

    /// False while it is paused, or held back.
    pub(super) fn delivers(&self) -> bool {
        self.pauses == 0 && self.held.is_none()
    }

    /// Jobs in any state.
    pub(super) fn jobs(&self) -> u64 {
        self.open_jobs() + self.counts.dead + self.ended_jobs()
    }

    /// Jobs that have not ended.
    pub(super) fn open_jobs(&self) -> u64 {
        let c = &self.counts;
        c.prepared + c.scheduled + c.retrying + c.blocked + c.ready + c.running
    }

    /// Completed, cancelled and expired jobs that are retained.
    pub(super) fn ended_jobs(&self) -> u64 {
        self.counts.completed + self.counts.cancelled + self.counts.expired
    }

    /// Those without the ones that batches hold beyond their retention.
    pub(super) fn listed_ended(&self) -> u64 {
        self.ended_jobs() - self.ended.held.all()
    }

    /// Jobs in that state that acts by pattern reach: those that batches hold are left out.
    pub(super) fn selectable(&self, state: JobState) -> u64 {
        self.counts.of(state) - self.ended.held.of(state)
    }

    /// Counts a job that has entered that substate.
    pub(super) fn enter(&mut self, substate: Substate, entry: RecordRef) {
        if let Some(counter) = counter(&mut self.counts, substate) {
            *counter += 1;
        }
        if substate.is_open() {
            self.open_bytes += u64::from(entry.length);
        }
    }

    /// The same for one that leaves it.
    pub(super) fn leave(&mut self, substate: Substate, entry: RecordRef) {
        if let Some(counter) = counter(&mut self.counts, substate) {
            *counter -= 1;
        }
        if substate.is_open() {
            self.open_bytes -= u64::from(entry.length);
        }
    }
}

/// The counter of jobs in that substate.
fn counter(counts: &mut JobCounts, substate: Substate) -> Option<&mut u64> {
    Some(match substate {
        Substate::Free => return None,
        Substate::Fresh | Substate::Returned => &mut counts.ready,
        Substate::Delayed | Substate::Timed => &mut counts.scheduled,
        Substate::Retrying => &mut counts.retrying,
        Substate::Running => &mut counts.running,
        Substate::Completed => &mut counts.completed,
        Substate::Cancelled => &mut counts.cancelled,
        Substate::Dead => &mut counts.dead,
        Substate::Prepared => &mut counts.prepared,
        Substate::Expired => &mut counts.expired,
        Substate::Blocked | Substate::Limited | Substate::Waiting => &mut counts.blocked,
    })
}
