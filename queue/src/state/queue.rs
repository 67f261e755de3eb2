//! One queue: its jobs by place, its counters, and who takes from it.

use longshore_protocol::messages::work::JobCounts;
use longshore_protocol::{Gate, Path, QueueSettings};

use super::keep::Kept;
use super::ready::{Head, Ready};
use super::row::{Place, Row};
use super::rows::List;

/// A queue's place in a group of subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) group: u32,
    /// Which of the group's sources it belongs to.
    pub(super) lane: u32,
}

/// A queue. Once made it stays: its counters count for ever.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) path: Path,
    /// Whether the present start lets it take new jobs. What it holds is served in any case.
    pub(super) accepts: bool,
    /// How many paused patterns match it: it is paused unless there is none.
    pub(super) pauses: u16,
    /// How many closed patterns match it: it accepts new jobs only if there is none.
    pub(super) closings: u16,
    pub(super) ready: Ready,
    pub(super) prepared: List,
    pub(super) scheduled: List,
    pub(super) running: List,
    pub(super) kept: Kept,
    pub(super) settings: QueueSettings,
    pub(super) counts: JobCounts,
    pub(super) enqueued: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) died: u64,
    pub(super) redelivered: u64,
    pub(super) stale_refused: u64,
    /// The groups of subscriptions that match it, in the order in which they came.
    pub(super) groups: Vec<Member>,
    /// Which of them is served first next time.
    pub(super) turn: u32,
    /// Its head as the groups have it, and how many ready jobs they have counted; brought up to
    /// date with each command. None while it is paused.
    pub(super) known_head: Option<Head>,
    pub(super) known_ready: u64,
    /// It is on the list of queues whose groups have to be brought up to date.
    pub(super) touched: bool,
}

impl Queue {
    pub(super) fn new(path: Path) -> Queue {
        Queue {
            path,
            accepts: true,
            pauses: 0,
            closings: 0,
            ready: Ready::default(),
            prepared: List::default(),
            scheduled: List::default(),
            running: List::default(),
            kept: Kept::default(),
            settings: QueueSettings::default(),
            counts: JobCounts::default(),
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
            touched: false,
        }
    }

    /// How many patterns stop that gate.
    pub(super) fn stops(&self, gate: Gate) -> u16 {
        match gate {
            Gate::Delivery => self.pauses,
            Gate::Enqueue => self.closings,
        }
    }

    pub(super) fn stops_mut(&mut self, gate: Gate) -> &mut u16 {
        match gate {
            Gate::Delivery => &mut self.pauses,
            Gate::Enqueue => &mut self.closings,
        }
    }

    /// Jobs, in any state.
    pub(super) fn jobs(&self) -> u64 {
        self.open_jobs() + self.counts.dead + self.ended_jobs()
    }

    /// Jobs that have not ended.
    pub(super) fn open_jobs(&self) -> u64 {
        let c = &self.counts;
        c.prepared + c.scheduled + c.retrying + c.ready + c.running
    }

    /// Completed, cancelled and expired jobs that are kept.
    pub(super) fn ended_jobs(&self) -> u64 {
        self.counts.completed + self.counts.cancelled + self.counts.expired
    }
}

/// The counter of jobs in that place.
pub(super) fn counter(counts: &mut JobCounts, place: Place) -> Option<&mut u64> {
    Some(match place {
        Place::Free => return None,
        Place::Fresh | Place::Returned => &mut counts.ready,
        Place::Delayed | Place::Timed => &mut counts.scheduled,
        Place::Retrying => &mut counts.retrying,
        Place::Running => &mut counts.running,
        Place::Completed => &mut counts.completed,
        Place::Cancelled => &mut counts.cancelled,
        Place::Dead => &mut counts.dead,
        Place::Prepared => &mut counts.prepared,
        Place::Expired => &mut counts.expired,
    })
}

/// Counts a row where it stands: for full scans.
pub(super) fn count(counts: &mut JobCounts, row: &Row) {
    if let Some(counter) = counter(counts, row.place) {
        *counter += 1;
    }
}
