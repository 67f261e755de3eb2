//! Figures of publishers and queues.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::limits::{NAME_BYTES_MAX, PAUSES_MAX};
use crate::path::Path;
use crate::refusal::{Durability, JobState, codes};
use crate::settings::QueueSettings;

/// Figures of a publisher.
#[derive(Clone, PartialEq, Debug)]
pub struct PublisherStatus {
    /// Its name.
    pub name: String,
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
    /// Age of the oldest command that is not yet durable, in milliseconds; 0 when there is none.
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
    /// True while the wall clock has jumped and nobody has confirmed it: what waits for it is held back.
    pub clock_held: bool,
    /// The patterns that are paused, those too that no queue matches yet. At most 1,024.
    pub paused: Vec<Glob>,
    /// The patterns that are closed to new jobs, those too that no queue matches yet. At most 1,024.
    pub closed: Vec<Glob>,
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

codes! {
    /// What a publisher's journal still takes. It comes back to [`Open`](Room::Open) by itself once its disk has room.
    Room, "room" {
        /// Everything.
        Open = 0, "open";
        /// No new jobs; work goes on.
        NoEnqueues = 1, "no room for new jobs";
        /// No new jobs, and none are handed out; what runs can end.
        Held = 2, "no room but for what runs";
    }
}

/// How many jobs of a queue are in which state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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

/// Figures of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueStat {
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
    pub paused_by: Vec<Glob>,
    /// The patterns by which it is closed to new jobs; empty for a queue that is not.
    pub closed_by: Vec<Glob>,
    /// What is set for its jobs.
    pub settings: QueueSettings,
}

impl Encode for PublisherStatus {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            out.string(&self.name);
            self.durability.encode(out);
            for figure in [
                self.uptime_ms,
                self.links,
                self.jobs,
                self.queues,
                self.committed_index,
                self.oldest_uncommitted_ms,
                self.journal_bytes,
                self.written_bytes,
                self.payload_bytes,
                self.syncs,
                self.stale_refused,
            ] {
                out.u64(figure);
            }
            out.bool(self.clock_held);
            self.paused.encode(out);
            self.closed.encode(out);
            self.room.encode(out);
            out.u64(self.ballast_bytes);
            out.u64(self.memory_bytes);
            out.u64(self.memory_max);
            out.bool(self.draining);
        });
    }
}

impl Decode for PublisherStatus {
    fn decode(r: &mut Reader) -> Result<PublisherStatus, WireError> {
        r.record(|r| {
            Ok(PublisherStatus {
                name: r.string("publisher name", NAME_BYTES_MAX)?,
                durability: Durability::decode(r)?,
                uptime_ms: r.u64()?,
                links: r.u64()?,
                jobs: r.u64()?,
                queues: r.u64()?,
                committed_index: r.u64()?,
                oldest_uncommitted_ms: r.u64()?,
                journal_bytes: r.u64()?,
                written_bytes: r.u64()?,
                payload_bytes: r.u64()?,
                syncs: r.u64()?,
                stale_refused: r.u64()?,
                clock_held: r.bool()?,
                paused: r.list("paused patterns", PAUSES_MAX)?,
                closed: r.list("closed patterns", PAUSES_MAX)?,
                room: Room::decode(r)?,
                ballast_bytes: r.u64()?,
                memory_bytes: r.u64()?,
                memory_max: r.u64()?,
                draining: r.bool()?,
            })
        })
    }
}

impl Encode for JobCounts {
    fn encode(&self, out: &mut FrameWriter) {
        for count in [
            self.scheduled,
            self.retrying,
            self.ready,
            self.running,
            self.completed,
            self.dead,
            self.cancelled,
            self.prepared,
            self.expired,
        ] {
            out.u64(count);
        }
    }
}

impl Decode for JobCounts {
    fn decode(r: &mut Reader) -> Result<JobCounts, WireError> {
        Ok(JobCounts {
            scheduled: r.u64()?,
            retrying: r.u64()?,
            ready: r.u64()?,
            running: r.u64()?,
            completed: r.u64()?,
            dead: r.u64()?,
            cancelled: r.u64()?,
            prepared: r.u64()?,
            expired: r.u64()?,
        })
    }
}

impl Encode for QueueStat {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.path.encode(out);
            self.counts.encode(out);
            self.oldest_ready_ms.encode(out);
            for figure in [
                self.enqueued,
                self.completed,
                self.failed,
                self.redelivered,
                self.stale_refused,
                self.subscriptions,
                self.credits,
                self.died,
            ] {
                out.u64(figure);
            }
            self.paused_by.encode(out);
            self.closed_by.encode(out);
            self.settings.encode(out);
        });
    }
}

impl Decode for QueueStat {
    fn decode(r: &mut Reader) -> Result<QueueStat, WireError> {
        r.record(|r| {
            Ok(QueueStat {
                path: Path::decode(r)?,
                counts: JobCounts::decode(r)?,
                oldest_ready_ms: r.option()?,
                enqueued: r.u64()?,
                completed: r.u64()?,
                failed: r.u64()?,
                redelivered: r.u64()?,
                stale_refused: r.u64()?,
                subscriptions: r.u64()?,
                credits: r.u64()?,
                died: r.u64()?,
                paused_by: r.list("pauses of a queue", PAUSES_MAX)?,
                closed_by: r.list("closings of a queue", PAUSES_MAX)?,
                settings: QueueSettings::decode(r)?,
            })
        })
    }
}
