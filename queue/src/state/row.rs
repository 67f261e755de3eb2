//! A job's row: 96 bytes, whatever its payload.

use longshore_protocol::{JobId, JobState};

use crate::outcome::RecordRef;

/// No row, no link of a list, no side row.
pub(super) const NONE: u32 = u32::MAX;

/// All that the state keeps of a plain job. Fields that only some places need share their room.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) id: JobId,
    /// The entry in the log. Index and offset rise from job to job: they are the order of
    /// enqueuing, too.
    pub(super) entry: RecordRef,
    /// CRC32C of the payload: with its length, what tells `IdConflict` from `Existing`.
    pub(super) crc: u32,
    /// Running: when it was delivered, in monotonic milliseconds, the low 32 bits. Later: how long
    /// that delivery ran. A run of over 49 days is told as less.
    pub(super) delivered: u32,
    pub(super) enqueued_wall_ms: u64,
    /// Ready: since when (monotonic). Scheduled: until when (monotonic, or wall for `Timed`).
    /// Running: the token. Prepared: until when (monotonic). Ended: when (wall).
    pub(super) when: u64,
    /// The list that the job is in: fresh jobs of a priority, a session's leases, its queue's
    /// scheduled or ended, or its kind of dead letters. Of a free row: the next free one.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Running: its place among its queue's running jobs. Ended: when, in monotonic time.
    pub(super) queue_prev: u32,
    pub(super) queue_next: u32,
    pub(super) queue: u32,
    pub(super) profile: u32,
    /// Running: who holds the lease. Completed: the name of the worker that ran it. Dead: its kind
    /// of dead letters.
    pub(super) session: u32,
    /// What only some jobs have: attempts that did not end well, result, checkpoints, time of
    /// expiry.
    pub(super) side: u32,
    /// Attempts made; of a running job, without the one that runs.
    pub(super) attempts: u16,
    pub(super) deliveries: u16,
    /// Bytes of the entry before its payload.
    pub(super) head_len: u16,
    /// Deliveries lost before the worker started the job.
    pub(super) lost: u8,
    pub(super) place: Place,
}

/// Which list or set holds the job. Finer than its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Place {
    /// No job.
    Free = 0,
    /// Ready, never moved since it was enqueued: in its priority's list.
    Fresh = 1,
    /// Ready, and was elsewhere before: in its priority's ordered set.
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
    /// Not to be run until it is confirmed.
    Prepared = 10,
    Expired = 11,
}

impl Place {
    pub(super) const ALL: [Place; 12] = [
        Place::Free,
        Place::Fresh,
        Place::Returned,
        Place::Delayed,
        Place::Timed,
        Place::Retrying,
        Place::Running,
        Place::Completed,
        Place::Cancelled,
        Place::Dead,
        Place::Prepared,
        Place::Expired,
    ];

    pub(super) fn from_code(code: u8) -> Option<Place> {
        Place::ALL.get(usize::from(code)).copied()
    }

    /// True of jobs that have ended and are kept for a time.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Place::Completed | Place::Cancelled | Place::Expired)
    }

    /// The state that readers see; none for a free row.
    pub(super) fn state(self) -> Option<JobState> {
        Some(match self {
            Place::Free => return None,
            Place::Fresh | Place::Returned => JobState::Ready,
            Place::Delayed | Place::Timed | Place::Retrying => JobState::Scheduled,
            Place::Running => JobState::Running,
            Place::Completed => JobState::Completed,
            Place::Cancelled => JobState::Cancelled,
            Place::Dead => JobState::Dead,
            Place::Prepared => JobState::Prepared,
            Place::Expired => JobState::Expired,
        })
    }
}

/// The order of enqueuing: log index, offset in the record.
pub(super) type Order = (u64, u32);

impl Row {
    pub(super) fn order(&self) -> Order {
        (self.entry.index, self.entry.at)
    }

    /// The attempt that runs, or the last one made; 0 before the first.
    pub(super) fn attempt(&self) -> u16 {
        self.attempts.saturating_add(u16::from(self.place == Place::Running))
    }

    pub(super) fn payload_len(&self) -> u32 {
        self.entry.length - u32::from(self.head_len)
    }

    /// Of a running job: for how long, in milliseconds.
    pub(super) fn running_ms(&self, mono_ms: u64) -> u64 {
        u64::from((mono_ms as u32).wrapping_sub(self.delivered))
    }

    /// When an attempt was delivered that had run for `ran_ms` at `wall_ms`. The clocks'
    /// milliseconds do not begin at the same moment, so the difference may be 1 ms early: never
    /// before the job was enqueued, unless the wall clock was set back.
    pub(super) fn delivered_wall_ms(&self, wall_ms: u64, ran_ms: u64) -> u64 {
        let delivered = wall_ms.saturating_sub(ran_ms);
        if self.enqueued_wall_ms > wall_ms {
            delivered
        } else {
            delivered.max(self.enqueued_wall_ms)
        }
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
