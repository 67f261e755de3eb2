//! Questions and actions of tools, and their answers. An answer reflects durable state only.

use bytes::Bytes;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::{JobId, Token};
use crate::job::{Headers, JobError};
use crate::limits::{
    BATCH_JOBS_MAX, NAME_BYTES_MAX, PAGE_JOBS_MAX, PAYLOAD_BYTES_MAX, QUEUES_MAX, RESULT_BYTES_MAX,
};
use crate::path::Path;
use crate::refusal::{DeathReason, Durability, JobState, codes};

/// What a tool asks of a publisher.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Figures of the publisher itself.
    Status,
    /// Figures of every queue that matches.
    Queues {
        /// Which.
        pattern: Glob,
    },
    /// A page of jobs.
    Jobs(JobsQuery),
    /// One job, with its payload and result.
    Job {
        /// Which.
        id: JobId,
    },
    /// Something to be done to jobs.
    Act {
        /// What.
        action: Action,
        /// To which.
        selection: Selection,
        /// Only count them.
        dry_run: bool,
    },
}

/// Which jobs to list, and how much of each.
#[derive(Clone, PartialEq, Debug)]
pub struct JobsQuery {
    /// Of which queues.
    pub pattern: Glob,
    /// In which state; none for every state.
    pub state: Option<JobState>,
    /// Where to go on: the `next` of the page before; 0 at the beginning.
    pub cursor: u64,
    /// At most so many; at most 1,000.
    pub limit: u32,
    /// With payloads, headers and results, or without.
    pub full: bool,
}

codes! {
    /// What may be done to jobs.
    Action, "action" {
        /// Cancel jobs that have not ended; those that run are taken from their workers.
        Cancel = 1, "cancel";
        /// Make dead jobs ready again, with all their attempts.
        Revive = 2, "revive";
        /// Delete dead jobs.
        Drop = 3, "drop";
    }
}

/// Which jobs to act on. What a filter matches is bounded by 10,000 for each request: ask again while `more`.
#[derive(Clone, PartialEq, Debug)]
pub enum Selection {
    /// These; at most 10,000.
    Ids(Vec<JobId>),
    /// All of these queues that the action applies to.
    Matching {
        /// The queues.
        pattern: Glob,
        /// Only those in this state.
        state: Option<JobState>,
    },
}

/// The answer to a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// To [`Request::Status`].
    Status(PublisherStatus),
    /// To [`Request::Queues`]; at most 100,000.
    Queues(Vec<QueueStat>),
    /// To [`Request::Jobs`].
    Jobs(JobsPage),
    /// To [`Request::Job`]; none when the publisher has no such job.
    Job(Option<Box<JobInfo>>),
    /// To [`Request::Act`].
    Acted(ActionReport),
}

codes! {
    /// Why a request has no answer.
    RequestError, "request error" {
        /// It asks for more than a page may hold.
        OverLimit = 1, "OverLimit: a page holds at most 1,000 jobs, an action names at most 10,000";
        /// The publisher's journal could not be read.
        Unreadable = 2, "Unreadable: the publisher could not read its journal; its log says where";
        /// The publisher does not know that request.
        Unknown = 3, "Unknown: the publisher's version does not know that request";
        /// As many requests of this link wait for their answers as may.
        TooMany = 4, "TooMany: 64 requests of this link wait for their answers; send the next one after one of them";
    }
}

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
}

/// A page of jobs, in the order in which the publisher holds them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct JobsPage {
    /// The jobs.
    pub jobs: Vec<JobInfo>,
    /// Where the next page begins; none after the last.
    pub next: Option<u64>,
}

/// What a publisher tells of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct JobInfo {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub path: Path,
    /// Where it stands.
    pub state: JobState,
    /// True of a scheduled job that waits for a retry.
    pub retrying: bool,
    /// Higher first.
    pub priority: i32,
    /// The attempt that runs, or the last one made; 0 before the first.
    pub attempt: u16,
    /// Attempts it may have.
    pub max_attempts: u16,
    /// Deliveries so far.
    pub deliveries: u16,
    /// When it was taken, in milliseconds since 1970.
    pub enqueued_at: u64,
    /// Of a scheduled job: when it is due, in milliseconds since 1970.
    pub due_at: Option<u64>,
    /// Of an ended job: when it ended, in milliseconds since 1970.
    pub ended_at: Option<u64>,
    /// Of a running job: its lease.
    pub token: Option<Token>,
    /// Of a running job: the name of the worker that holds it.
    pub worker: Option<String>,
    /// Of a dead job: why.
    pub death: Option<DeathReason>,
    /// The last attempt's error.
    pub error: Option<JobError>,
    /// Bytes of payload.
    pub payload_len: u64,
    /// The payload, if it was asked for.
    pub payload: Option<Bytes>,
    /// The headers, if they were asked for.
    pub headers: Option<Headers>,
    /// The result, if there is one and it was asked for.
    pub result: Option<Bytes>,
}

/// What an action did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ActionReport {
    /// Jobs that it was done to, or would be.
    pub done: u64,
    /// Named jobs that are not in a state for it.
    pub refused: u64,
    /// Named jobs that the publisher does not have.
    pub unknown: u64,
    /// There are more; ask again.
    pub more: bool,
}

impl Encode for Request {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Request::Status => out.u8(1),
            Request::Queues { pattern } => {
                out.u8(2);
                pattern.encode(out);
            }
            Request::Jobs(query) => {
                out.u8(3);
                query.pattern.encode(out);
                query.state.encode(out);
                out.u64(query.cursor);
                out.u64(u64::from(query.limit));
                out.bool(query.full);
            }
            Request::Job { id } => {
                out.u8(4);
                id.encode(out);
            }
            Request::Act { action, selection, dry_run } => {
                out.u8(5);
                action.encode(out);
                selection.encode(out);
                out.bool(*dry_run);
            }
        }
    }
}

impl Decode for Request {
    fn decode(r: &mut Reader) -> Result<Request, WireError> {
        let unknown = r.invalid("request");
        Ok(match r.u8()? {
            1 => Request::Status,
            2 => Request::Queues { pattern: Glob::decode(r)? },
            3 => Request::Jobs(JobsQuery {
                pattern: Glob::decode(r)?,
                state: r.option()?,
                cursor: r.u64()?,
                limit: r.u32()?,
                full: r.bool()?,
            }),
            4 => Request::Job { id: JobId::decode(r)? },
            5 => Request::Act {
                action: Action::decode(r)?,
                selection: Selection::decode(r)?,
                dry_run: r.bool()?,
            },
            _ => return Err(unknown),
        })
    }
}

impl Encode for Selection {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Selection::Ids(ids) => {
                out.u8(0);
                ids.encode(out);
            }
            Selection::Matching { pattern, state } => {
                out.u8(1);
                pattern.encode(out);
                state.encode(out);
            }
        }
    }
}

impl Decode for Selection {
    fn decode(r: &mut Reader) -> Result<Selection, WireError> {
        let unknown = r.invalid("selection");
        match r.u8()? {
            0 => Ok(Selection::Ids(r.list("ids", BATCH_JOBS_MAX)?)),
            1 => Ok(Selection::Matching { pattern: Glob::decode(r)?, state: r.option()? }),
            _ => Err(unknown),
        }
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Answer::Status(status) => {
                out.u8(1);
                status.encode(out);
            }
            Answer::Queues(queues) => {
                out.u8(2);
                queues.encode(out);
            }
            Answer::Jobs(page) => {
                out.u8(3);
                page.jobs.encode(out);
                page.next.encode(out);
            }
            Answer::Job(job) => {
                out.u8(4);
                out.bool(job.is_some());
                if let Some(job) = job {
                    job.encode(out);
                }
            }
            Answer::Acted(report) => {
                out.u8(5);
                out.u64(report.done);
                out.u64(report.refused);
                out.u64(report.unknown);
                out.bool(report.more);
            }
        }
    }
}

impl Decode for Answer {
    fn decode(r: &mut Reader) -> Result<Answer, WireError> {
        let unknown = r.invalid("answer");
        Ok(match r.u8()? {
            1 => Answer::Status(PublisherStatus::decode(r)?),
            2 => Answer::Queues(r.list("queues", QUEUES_MAX)?),
            3 => Answer::Jobs(JobsPage {
                jobs: r.list("jobs of a page", PAGE_JOBS_MAX)?,
                next: r.option()?,
            }),
            4 => Answer::Job(r.option::<JobInfo>()?.map(Box::new)),
            5 => Answer::Acted(ActionReport {
                done: r.u64()?,
                refused: r.u64()?,
                unknown: r.u64()?,
                more: r.bool()?,
            }),
            _ => return Err(unknown),
        })
    }
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
            ] {
                out.u64(figure);
            }
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
            })
        })
    }
}

/// Bytes that may be missing: a flag, then length and bytes.
fn put_bytes(out: &mut FrameWriter, bytes: &Option<Bytes>) {
    out.bool(bytes.is_some());
    if let Some(bytes) = bytes {
        out.bytes_shared(bytes.clone());
    }
}

fn read_bytes(
    r: &mut Reader,
    what: &'static str,
    limit: usize,
) -> Result<Option<Bytes>, WireError> {
    Ok(if r.bool()? { Some(r.bytes(what, limit)?) } else { None })
}

impl Encode for JobInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.id.encode(out);
            self.path.encode(out);
            self.state.encode(out);
            out.bool(self.retrying);
            out.i64(i64::from(self.priority));
            out.u64(u64::from(self.attempt));
            out.u64(u64::from(self.max_attempts));
            out.u64(u64::from(self.deliveries));
            out.u64(self.enqueued_at);
            self.due_at.encode(out);
            self.ended_at.encode(out);
            self.token.encode(out);
            out.bool(self.worker.is_some());
            if let Some(worker) = &self.worker {
                out.string(worker);
            }
            self.death.encode(out);
            self.error.encode(out);
            out.u64(self.payload_len);
            put_bytes(out, &self.payload);
            self.headers.encode(out);
            put_bytes(out, &self.result);
        });
    }
}

impl Decode for JobInfo {
    fn decode(r: &mut Reader) -> Result<JobInfo, WireError> {
        r.record(|r| {
            Ok(JobInfo {
                id: JobId::decode(r)?,
                path: Path::decode(r)?,
                state: JobState::decode(r)?,
                retrying: r.bool()?,
                priority: r.i32()?,
                attempt: r.u16()?,
                max_attempts: r.u16()?,
                deliveries: r.u16()?,
                enqueued_at: r.u64()?,
                due_at: r.option()?,
                ended_at: r.option()?,
                token: r.option()?,
                worker: if r.bool()? {
                    Some(r.string("worker name", NAME_BYTES_MAX)?)
                } else {
                    None
                },
                death: r.option()?,
                error: r.option()?,
                payload_len: r.u64()?,
                payload: read_bytes(r, "payload", PAYLOAD_BYTES_MAX)?,
                headers: r.option()?,
                result: read_bytes(r, "result", RESULT_BYTES_MAX)?,
            })
        })
    }
}
