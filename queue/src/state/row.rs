//! A job's row: 96 bytes, whatever its payload.

use longshore_protocol::{JobId, JobState};

use crate::outcome::RecordRef;

/// No row, no list link, no side row.
pub(super) const NONE: u32 = u32::MAX;

/// All data of a plain job. Fields that only some substates need share memory.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) id: JobId,
    /// The entry in the log. Index and offset rise from job to job, so they are also the order of
    /// enqueuing.
    pub(super) entry: RecordRef,
    /// CRC32C of the payload: with its length, it distinguishes `IdConflict` from `Existing`.
    pub(super) crc: u32,
    /// Running: the time of delivery, in monotonic milliseconds, the low 32 bits. Later: how long
    /// that delivery ran. A run of over 49 days is reported as less.
    pub(super) delivered: u32,
    pub(super) enqueued_wall_ms: u64,
    /// Ready or blocked: since when (monotonic). Scheduled: until when (monotonic, or wall for
    /// `Timed`). Running: the token. Prepared: until when (monotonic). Ended: when (wall).
    pub(super) when: u64,
    /// Links of the job's list: fresh jobs of a priority, a session's leases, its queue's
    /// scheduled, blocked or ended jobs, or its group of dead letters. Of a free row: the next free
    /// one.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Running: links among its queue's running jobs. Ready or blocked: among those of its order
    /// key or limit key. Ended: when, in monotonic time; or the batch that holds it.
    pub(super) queue_prev: u32,
    pub(super) queue_next: u32,
    pub(super) queue: u32,
    pub(super) profile: u32,
    /// Running: the session that holds the lease. Completed: the name of the worker that ran it.
    /// Dead: its group of dead letters.
    pub(super) session: u32,
    /// The side row with data of some jobs: attempts that did not complete, result, checkpoints,
    /// expiry time.
    pub(super) side: u32,
    /// Attempts made, the running one excluded.
    pub(super) attempts: u16,
    pub(super) deliveries: u16,
    /// Bytes of the entry before its payload.
    pub(super) head_len: u16,
    /// Deliveries lost before the worker started the job.
    pub(super) unstarted_deliveries: u8,
    pub(super) substate: Substate,
}

/// A job's state in detail: it determines which list or set holds the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Substate {
    /// No job.
    Free = 0,
    /// Ready since it was enqueued: in its priority's list.
    Fresh = 1,
    /// Ready after another substate: in its priority's list or set.
    Returned = 2,
    /// Scheduled in monotonic time, by a producer's delay, a worker's snooze or the pace of a
    /// revival.
    Delayed = 3,
    /// Scheduled in wall time.
    Timed = 4,
    /// Scheduled in monotonic time, for its next attempt.
    Retrying = 5,
    Running = 6,
    Completed = 7,
    Cancelled = 8,
    Dead = 9,
    /// Not delivered until confirmed.
    Prepared = 10,
    Expired = 11,
    /// Due, and waiting for the turn of its order key.
    Blocked = 12,
    /// Due, and waiting for room of its limit key.
    Limited = 13,
    /// Waits for the ends of other jobs. `queue_prev` is its first edge to one.
    Waiting = 14,
}

impl Substate {
    pub(super) const ALL: [Substate; 15] = [
        Substate::Free,
        Substate::Fresh,
        Substate::Returned,
        Substate::Delayed,
        Substate::Timed,
        Substate::Retrying,
        Substate::Running,
        Substate::Completed,
        Substate::Cancelled,
        Substate::Dead,
        Substate::Prepared,
        Substate::Expired,
        Substate::Blocked,
        Substate::Limited,
        Substate::Waiting,
    ];

    pub(super) fn from_code(code: u8) -> Option<Substate> {
        Substate::ALL.get(usize::from(code)).copied()
    }

    /// True of jobs that have not ended.
    pub(super) fn is_open(self) -> bool {
        self.state().is_some_and(|state| !state.is_end())
    }

    /// True of ended jobs that are retained for a time, other than dead ones.
    pub(super) fn is_retained(self) -> bool {
        matches!(self, Substate::Completed | Substate::Cancelled | Substate::Expired)
    }

    /// True where the queue's links are those of its order or limit key.
    pub(super) fn is_of_key(self) -> bool {
        matches!(self, Substate::Fresh | Substate::Returned | Substate::Blocked | Substate::Limited)
    }

    /// The public state; none for a free row.
    pub(super) fn state(self) -> Option<JobState> {
        Some(match self {
            Substate::Free => return None,
            Substate::Fresh | Substate::Returned => JobState::Ready,
            Substate::Delayed | Substate::Timed | Substate::Retrying => JobState::Scheduled,
            Substate::Running => JobState::Running,
            Substate::Completed => JobState::Completed,
            Substate::Cancelled => JobState::Cancelled,
            Substate::Dead => JobState::Dead,
            Substate::Prepared => JobState::Prepared,
            Substate::Expired => JobState::Expired,
            Substate::Blocked | Substate::Limited | Substate::Waiting => JobState::Blocked,
        })
    }
}

/// The order of enqueuing: log index, offset in the record.
pub(super) type Order = (u64, u32);

impl Row {
    pub(super) fn order(&self) -> Order {
        (self.entry.index, self.entry.at)
    }

    /// The running attempt, or the last one made; 0 before the first.
    pub(super) fn attempt(&self) -> u16 {
        self.attempts.saturating_add(u16::from(self.substate == Substate::Running))
    }

    pub(super) fn payload_len(&self) -> u32 {
        self.entry.length - u32::from(self.head_len)
    }

    /// How long a running job has run, in milliseconds.
    pub(super) fn running_ms(&self, mono_ms: u64) -> u64 {
        u64::from((mono_ms as u32).wrapping_sub(self.delivered))
    }

    /// The time `elapsed_ms` before `wall_ms`. The clocks' milliseconds are not aligned, so the
    /// difference may be 1 ms early: never before the job was enqueued, unless the wall clock was
    /// set back.
    pub(super) fn wall_ms_before(&self, wall_ms: u64, elapsed_ms: u64) -> u64 {
        let before = wall_ms.saturating_sub(elapsed_ms);
        if self.enqueued_wall_ms > wall_ms { before } else { before.max(self.enqueued_wall_ms) }
    }

    pub(super) fn ended_mono_ms(&self) -> u64 {
        u64::from(self.queue_prev) << 32 | u64::from(self.queue_next)
    }

    pub(super) fn set_ended_mono_ms(&mut self, mono_ms: u64) {
        self.queue_prev = (mono_ms >> 32) as u32;
        self.queue_next = mono_ms as u32;
    }
}

const _: () =
    assert!(size_of::<Row>() == 96, "a row's size is a budget: see bytes per waiting job");
