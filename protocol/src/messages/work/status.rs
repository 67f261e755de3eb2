//! Statistics of publishers and queues.

use super::job_info::LimitedBy;
use crate::codes::{Durability, JobState};
use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::id::PublisherId;
use crate::limits::{NAME_BYTES_MAX, PAUSES_MAX};
use crate::path::Path;
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
        /// Current links.
        pub links: u64,
        /// Stored jobs, in any state.
        pub jobs: u64,
        /// Queues.
        pub queues: u64,
        /// The last index that is durable.
        pub committed_index: u64,
        /// Age of the oldest command that is not yet durable, in milliseconds; 0 if all are
        /// durable.
        pub oldest_uncommitted_ms: u64,
        /// Bytes of its journal on disk.
        pub journal_bytes: u64,
        /// Bytes written to the journal since it started.
        pub written_bytes: u64,
        /// Bytes of accepted payloads since it started.
        pub payload_bytes: u64,
        /// Syncs of the journal since it started.
        pub syncs: u64,
        /// All messages refused for a stale token, of any queue.
        pub stale_refused: u64,
        /// True while the wall clock has jumped and no operator has confirmed it: timers of the
        /// wall clock wait.
        pub clock_held: bool,
        /// The paused patterns, including those that match no queue yet. At most 1,024.
        pub paused: Vec<Glob> = at_most("paused patterns", PAUSES_MAX),
        /// The patterns closed to new jobs, including those that match no queue yet. At most 1,024.
        pub closed: Vec<Glob> = at_most("closed patterns", PAUSES_MAX),
        /// Which writes its journal accepts; restricted while disk space is low.
        pub room: Room,
        /// Bytes reserved for work that must continue when the disk is full.
        pub ballast_bytes: u64,
        /// Approximate memory of its jobs, queues and sessions, in bytes.
        pub memory_bytes: u64,
        /// The memory limit; above it new jobs are refused as `MemoryFull`.
        pub memory_max: u64,
        /// True while it is drained and accepts no new jobs.
        pub draining: bool,
        /// The id of its journal. A publisher on a copy of the directory has another id and the
        /// same journal.
        pub journal: PublisherId,
    }
}

codes! {
    /// Which writes a publisher's journal accepts. It returns to [`Open`](Room::Open) automatically
    /// when its disk has space.
    Room, "room" {
        /// Everything.
        Open = 0, "open";
        /// No new jobs; existing work continues.
        NoEnqueues = 1, "no room for new jobs";
        /// No new jobs and no deliveries; running jobs can end.
        NoDeliveries = 2, "room for running jobs only";
    }
}

fields! {
    /// The number of jobs of a queue in each state.
    #[derive(Copy, Default)]
    pub struct JobCounts {
        /// Not due yet, by request.
        pub scheduled: u64,
        /// Waiting for a retry.
        pub retrying: u64,
        /// Waiting for a worker.
        pub ready: u64,
        /// Leased to workers.
        pub running: u64,
        /// Completed, and still stored.
        pub completed: u64,
        /// Dead letters.
        pub dead: u64,
        /// Cancelled, and still stored.
        pub cancelled: u64,
        /// Stored, and not confirmed yet.
        pub prepared: u64,
        /// Expired before an attempt began, and still stored.
        pub expired: u64,
        /// Due, and waiting for other jobs.
        pub blocked: u64,
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
        self.blocked += more.blocked;
    }
}

impl JobCounts {
    /// The number of jobs in that state.
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
            JobState::Blocked => self.blocked,
        }
    }

    /// The number of jobs in all states.
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
        /// Age of the job that has waited longest, in milliseconds; `None` if no job waits.
        pub oldest_ready_ms: Option<u64>,
        /// All jobs ever enqueued.
        pub enqueued: u64,
        /// All jobs ever completed.
        pub completed: u64,
        /// All attempts that ever failed.
        pub failed: u64,
        /// All deliveries after a job's first.
        pub redelivered: u64,
        /// All messages ever refused for a stale token.
        pub stale_refused: u64,
        /// Subscriptions that match it.
        pub subscriptions: u64,
        /// Unused credits of these subscriptions.
        pub credits: u64,
        /// All jobs that ever became dead letters.
        pub died: u64,
        /// The patterns that pause it; empty if it is not paused.
        pub paused_by: Vec<Glob> = at_most("pauses of a queue", PAUSES_MAX),
        /// The patterns that close it to new jobs; empty if it is not closed.
        pub closed_by: Vec<Glob> = at_most("closings of a queue", PAUSES_MAX),
        /// The settings of its jobs.
        pub settings: QueueSettings,
        /// The limit for which its ready jobs wait; `None` if they wait for workers alone.
        pub limited_by: Option<LimitedBy>,
    }
}

impl QueueStat {
    /// A queue that has never had a job.
    pub fn empty(path: Path) -> QueueStat {
        QueueStat {
            path,
            counts: JobCounts::default(),
            oldest_ready_ms: None,
            enqueued: 0,
            completed: 0,
            failed: 0,
            redelivered: 0,
            stale_refused: 0,
            subscriptions: 0,
            credits: 0,
            died: 0,
            paused_by: Vec::new(),
            closed_by: Vec::new(),
            settings: QueueSettings::default(),
            limited_by: None,
        }
    }
}
