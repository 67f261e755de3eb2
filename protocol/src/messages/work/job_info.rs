//! The description of a job in a publisher's answers.

use bytes::Bytes;

use crate::after::Parent;
use crate::codec::{Reader, WireError};
use crate::codes::{AttemptOutcome, DeathReason, JobState};
use crate::fields::fields;
use crate::fingerprint::Fingerprint;
use crate::id::{JobId, Token};
use crate::job::{Headers, JobError, JobOptions};
use crate::keys::key;
use crate::limits::{
    ATTEMPTS_MAX, CHECKPOINT_BYTES_MAX, CHECKPOINTS_MAX, KEY_BYTES_MAX, LIMIT_NAME_BYTES_MAX,
    NAME_BYTES_MAX, PARENTS_MAX, PAYLOAD_BYTES_MAX, PROGRESS_BYTES_MAX, RESULT_BYTES_MAX,
    SCHEDULE_NAME_BYTES_MAX,
};
use crate::path::Path;

fields! {
    /// The description of a job in a publisher's answers.
    pub struct JobInfo as record {
        /// The job.
        pub id: JobId,
        /// Its queue.
        pub path: Path,
        /// Its state.
        pub state: JobState,
        /// True for a scheduled job that waits for a retry.
        pub retrying: bool,
        /// Higher priorities run first.
        pub priority: i32,
        /// The current attempt, or the last one; 0 before the first.
        pub attempt: u16,
        /// The limit of attempts.
        pub max_attempts: u16,
        /// Deliveries so far.
        pub deliveries: u16,
        /// How long a delivery lasts without renewal, in milliseconds.
        pub lease_ms: u32,
        /// How long one attempt may run, in milliseconds; 0 for no limit.
        pub run_timeout_ms: u64,
        /// When it was enqueued, in milliseconds since 1970.
        pub enqueued_at: u64,
        /// For a scheduled job: when it is due, in milliseconds since 1970.
        pub due_at: Option<u64>,
        /// When it expires if no attempt has begun, in milliseconds since 1970; `None` for never,
        /// or once an attempt has begun.
        pub expires_at: Option<u64>,
        /// For a running job: when it was delivered, in milliseconds since 1970. Calculated from
        /// the current time at each request, so it may differ by a millisecond between answers; the
        /// same applies to `due_at` of a job with a delay.
        pub delivered_at: Option<u64>,
        /// For an ended job: when it ended, in milliseconds since 1970.
        pub ended_at: Option<u64>,
        /// For a running job: its lease.
        pub token: Option<Token>,
        /// For a running job: the name of its worker.
        pub worker: Option<String> = at_most("worker name", NAME_BYTES_MAX),
        /// For a blocked job: what it waits for.
        pub blocked: Option<BlockedBy>,
        /// For a dead job: the reason.
        pub death: Option<DeathReason>,
        /// The latest error reported by a worker; a later attempt may have ended differently.
        pub error: Option<JobError>,
        /// The job that this one has replaced: a dead one, or one with the same unique key.
        pub replaces: Option<JobId>,
        /// For a running job: the latest progress reported by its worker.
        pub progress: Option<ProgressInfo>,
        /// The last 32 ended attempts, oldest first. Errors, and attempts before the last, are
        /// included if the request asked for more than the state.
        pub attempts: Vec<AttemptInfo> = at_most("attempts of a job", ATTEMPTS_MAX),
        /// The stored checkpoints, oldest first.
        pub checkpoints: Vec<CheckpointInfo> = at_most("checkpoints of a job", CHECKPOINTS_MAX),
        /// The size of the payload in bytes.
        pub payload_len: u64,
        /// The payload, if requested.
        pub payload: Option<Bytes> = at_most("payload", PAYLOAD_BYTES_MAX),
        /// The headers, if requested.
        pub headers: Option<Headers>,
        /// The result, if there is one and it is requested.
        pub result: Option<Bytes> = at_most("result", RESULT_BYTES_MAX),
        /// The options, if requested.
        pub options: Option<JobOptions>,
        /// The schedule that made it: its name at that time. The job was enqueued at the time of
        /// the occurrence, even if the publisher was late.
        pub schedule: Option<String> = at_most("name of a schedule", SCHEDULE_NAME_BYTES_MAX),
        /// For a batch: its members.
        pub batch: Option<BatchInfo>,
        /// The batch that it is a member of.
        pub member_of: Option<JobId>,
        /// The jobs that it was enqueued after, if it was requested in full, or by a
        /// [relation](super::Related).
        pub after: Vec<Parent> = at_most("parents of a job", PARENTS_MAX),
    }

    /// The members of a batch.
    #[derive(Copy, Default)]
    pub struct BatchInfo {
        /// True if it gets no more members.
        pub closed: bool,
        /// Those that have not ended.
        pub open: u64,
        /// Those that have completed.
        pub completed: u64,
        /// Those that are dead.
        pub dead: u64,
        /// Those that were cancelled, deleted or replaced, or have expired.
        pub cancelled: u64,
    }

    /// What a blocked job waits for.
    pub enum BlockedBy, "cause of a blocked job" {
        /// For the turn of its order key.
        0 = Order {
            /// The key.
            key: String = at_most("order key", KEY_BYTES_MAX),
            /// The job whose turn it is.
            job: JobId,
            /// Its state.
            state: JobState,
        },
        /// For room in a limit. Also of a ready job, whose queue waits for it.
        1 = Limit {
            /// The limit.
            by: LimitedBy,
            /// The job's limit key, if the limit counts by key.
            key: Option<String> = read_by(
                optional_key,
                |_: &mut crate::tests::Source| Some("acme".to_owned())
            ),
        },
        /// For the end of its limit key's rest.
        2 = Throttled {
            /// The key.
            key: String = at_most("limit key", KEY_BYTES_MAX),
            /// When it ends, in milliseconds since 1970.
            until: u64,
        },
        /// For the end of another job.
        3 = Parent {
            /// The job.
            job: JobId,
            /// Its state. A dead one can be revived.
            state: JobState,
        },
        /// For the ends of its members, or until it is closed: it is a batch.
        4 = Members(members: BatchInfo),
    }

    /// A limit without room.
    pub struct LimitedBy {
        /// Its name.
        pub limit: String = at_most("name of a limit", LIMIT_NAME_BYTES_MAX),
        /// When it has room again, in milliseconds since 1970; `None` if that depends on other
        /// jobs.
        pub until: Option<u64>,
    }

    /// The progress of a running job. It is not stored durably: a restart of the publisher loses
    /// it.
    pub struct ProgressInfo {
        /// 0 to 100.
        pub percent: u8,
        /// The current activity.
        pub message: String = cut("progress message", PROGRESS_BYTES_MAX),
        /// When its worker reported it, in milliseconds since 1970.
        pub at: u64,
    }

    /// An attempt that has ended.
    pub struct AttemptInfo as record {
        /// Its number, from 1; restarts at 1 when a job is revived.
        pub number: u16,
        /// The name of its worker.
        pub worker: String = cut("worker name", NAME_BYTES_MAX),
        /// When the job was delivered for it, in milliseconds since 1970.
        pub delivered_at: u64,
        /// When it ended, in milliseconds since 1970.
        pub ended_at: u64,
        /// How it ended.
        pub outcome: AttemptOutcome,
        /// The error that its worker reported.
        pub error: Option<JobError>,
        /// The fingerprint that groups the error with similar ones.
        pub fingerprint: Option<Fingerprint>,
    }

    /// A checkpoint.
    pub struct CheckpointInfo as record {
        /// The attempt that wrote it.
        pub attempt: u16,
        /// Its number within the attempt, from 1.
        pub sequence: u64,
        /// When it was written, in milliseconds since 1970.
        pub at: u64,
        /// Its size in bytes.
        pub length: u64,
        /// Its data, if requested.
        pub bytes: Option<Bytes> = at_most("checkpoint", CHECKPOINT_BYTES_MAX),
    }
}

impl JobInfo {
    /// A plain job of which nothing else is known, such as tests of programs need: never delivered,
    /// enqueued in 1970, with an empty payload.
    pub fn new(id: JobId, path: Path, state: JobState) -> JobInfo {
        JobInfo {
            id,
            path,
            state,
            retrying: false,
            priority: 0,
            attempt: 0,
            max_attempts: 1,
            deliveries: 0,
            lease_ms: 0,
            run_timeout_ms: 0,
            enqueued_at: 0,
            due_at: None,
            expires_at: None,
            delivered_at: None,
            ended_at: None,
            token: None,
            worker: None,
            blocked: None,
            death: None,
            error: None,
            replaces: None,
            progress: None,
            attempts: Vec::new(),
            checkpoints: Vec::new(),
            payload_len: 0,
            payload: None,
            headers: None,
            result: None,
            options: None,
            schedule: None,
            batch: None,
            member_of: None,
            after: Vec::new(),
        }
    }
}

fn optional_key(r: &mut Reader) -> Result<Option<String>, WireError> {
    if r.bool()? { key(r, "limit key").map(Some) } else { Ok(None) }
}
