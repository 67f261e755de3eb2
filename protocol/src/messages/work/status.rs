//! Statistics of publishers and queues.

use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::limits::{NAME_BYTES_MAX, PAUSES_MAX};
use crate::path::Path;
use crate::refusal::{Durability, JobState};
use crate::settings::QueueSettings;

fields! {
    /// Statistics of a publisher.
    pub struct PublisherStatus as record {
        /// Its name.
        pub name: String = at_most("publisher name", NAME_BYTES_MAX),
        /// How durable its acknowledgements are.
        pub durability: Durability,
        /// How long it has run, in milliseconds.
        pub uptime_ms: u64,
        /// Links at the moment.
        pub links: u64,
        /// Jobs that it keeps, in any state.
        pub jobs: u64,
        /// Queues.
        pub queues: u64,
        /// The last index that is durable.
        pub committed_index: u64,
        /// Age of the oldest command that is not yet durable, in milliseconds; 0 when there is
        /// none.
        pub oldest_uncommitted_ms: u64,
        /// Bytes of its journal on disk.
        pub journal_bytes: u64,
        /// Bytes written to the journal since it started.
        pub written_bytes: u64,
        /// Bytes of payload taken since it started.
        pub payload_bytes: u64,
        /// Syncs of the journal since it started.
        pub syncs: u64,
        /// Verbs refused for a stale token, ever, whatever their queue.
        pub stale_refused: u64,
        /// True while the wall clock has jumped and nobody has confirmed it: what waits for it is
        /// held back.
        pub clock_held: bool,
        /// The patterns that are paused, those too that no queue matches yet. At most 1,024.
        pub paused: Vec<Glob> = at_most("paused patterns", PAUSES_MAX),
        /// The patterns that are closed to new jobs, those too that no queue matches yet. At most
        /// 1,024.
        pub closed: Vec<Glob> = at_most("closed patterns", PAUSES_MAX),
        /// What its journal still takes: less than everything when its disk is short of room.
        pub room: Room,
        /// Bytes that it keeps for what must go on when the disk is full.
        pub ballast_bytes: u64,
        /// Bytes of memory that its jobs, queues and sessions take, about.
        pub memory_bytes: u64,
        /// How many they may take: from there on new jobs are `MemoryFull`.
        pub memory_max: u64,
        /// True while it is drained: it takes no new jobs.
        pub draining: bool,
    }
}

codes! {
    /// What a publisher's journal still takes. It comes back to [`Open`](Room::Open) by itself once
    /// its disk has room.
    Room, "room" {
        /// Everything.
        Open = 0, "open";
        /// No new jobs; work goes on.
        NoEnqueues = 1, "no room for new jobs";
        /// No new jobs, and none are handed out; what runs can end.
        Held = 2, "no room but for what runs";
    }
}

fields! {
    /// How many jobs of a queue are in which state.
    #[derive(Copy, Default)]
    pub struct JobCounts {
        /// Not due yet, by a user's wish.
        pub scheduled: u64,
        /// Waiting for a retry.
        pub retrying: u64,
        /// Waiting for a worker.
        pub ready: u64,
        /// Held by workers.
        pub running: u64,
        /// Ended well, and kept.
        pub completed: u64,
        /// In the dead letters.
        pub dead: u64,
        /// Cancelled, and kept.
        pub cancelled: u64,
        /// Written, and not confirmed yet.
        pub prepared: u64,
        /// Not begun in time, and kept.
        pub expired: u64,
    }
}

impl std::ops::AddAssign for JobCounts {
    fn add_assign(&mut self, more: JobCounts) {
        self.scheduled += more.scheduled;
        self.retrying += more.retrying;
        self.ready += more.ready;
        self.running += more.running;
        self.completed += more.completed;
        self.dead += more.dead;
        self.cancelled += more.cancelled;
        self.prepared += more.prepared;
        self.expired += more.expired;
    }
}

impl JobCounts {
    /// Jobs in that state.
    pub fn of(&self, state: JobState) -> u64 {
        match state {
            JobState::Scheduled => self.scheduled + self.retrying,
            JobState::Ready => self.ready,
            JobState::Running => self.running,
            JobState::Completed => self.completed,
            JobState::Dead => self.dead,
            JobState::Cancelled => self.cancelled,
            JobState::Prepared => self.prepared,
            JobState::Expired => self.expired,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        JobState::ALL.iter().map(|&state| self.of(state)).sum()
    }
}

fields! {
    /// Statistics of a queue.
    pub struct QueueStat as record {
        /// The queue.
        pub path: Path,
        /// Its jobs by state.
        pub counts: JobCounts,
        /// Age of the job that has waited longest, in milliseconds; none when no job waits.
        pub oldest_ready_ms: Option<u64>,
        /// Jobs taken, ever.
        pub enqueued: u64,
        /// Jobs completed, ever.
        pub completed: u64,
        /// Attempts that failed, ever.
        pub failed: u64,
        /// Deliveries after a job's first, ever.
        pub redelivered: u64,
        /// Verbs refused for a stale token, ever.
        pub stale_refused: u64,
        /// Subscriptions that match it.
        pub subscriptions: u64,
        /// Credits that wait for a job of it.
        pub credits: u64,
        /// Jobs that went to the dead letters, ever.
        pub died: u64,
        /// The patterns by which it is paused; empty for a queue that is not.
        pub paused_by: Vec<Glob> = at_most("pauses of a queue", PAUSES_MAX),
        /// The patterns by which it is closed to new jobs; empty for a queue that is not.
        pub closed_by: Vec<Glob> = at_most("closings of a queue", PAUSES_MAX),
        /// What is set for its jobs.
        pub settings: QueueSettings,
    }
}
