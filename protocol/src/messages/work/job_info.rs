//! What a publisher reports of a job.

use bytes::Bytes;

use crate::fields::fields;
use crate::fingerprint::Fingerprint;
use crate::id::{JobId, Token};
use crate::job::{Headers, JobError, JobOptions};
use crate::limits::{
    ATTEMPTS_MAX, CHECKPOINT_BYTES_MAX, CHECKPOINTS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
    PROGRESS_BYTES_MAX, RESULT_BYTES_MAX,
};
use crate::path::Path;
use crate::refusal::{AttemptOutcome, DeathReason, JobState};

fields! {
    /// What a publisher reports of a job.
    pub struct JobInfo as record {
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
        /// How long a delivery may go without renewal, in milliseconds.
        pub lease_ms: u32,
        /// How long one attempt may run, in milliseconds; 0 for as long as it likes.
        pub run_timeout_ms: u64,
        /// When it was taken, in milliseconds since 1970.
        pub enqueued_at: u64,
        /// Of a scheduled job: when it is due, in milliseconds since 1970.
        pub due_at: Option<u64>,
        /// When it expires if no attempt has begun, in milliseconds since 1970; none for never, or
        /// once one has.
        pub expires_at: Option<u64>,
        /// Of a running job: when it was delivered, in milliseconds since 1970. Reckoned back from
        /// the moment of asking, so that it may differ by a millisecond from answer to answer; so
        /// does `due_at` of a job that waits for a length of time.
        pub delivered_at: Option<u64>,
        /// Of an ended job: when it ended, in milliseconds since 1970.
        pub ended_at: Option<u64>,
        /// Of a running job: its lease.
        pub token: Option<Token>,
        /// Of a running job: the name of the worker that holds it.
        pub worker: Option<String> = at_most("worker name", NAME_BYTES_MAX),
        /// Of a dead job: why.
        pub death: Option<DeathReason>,
        /// The newest error that a worker gave; a later attempt may have ended otherwise.
        pub error: Option<JobError>,
        /// The dead job that this one has replaced.
        pub replaces: Option<JobId>,
        /// Of a running job: its progress, as its worker last reported it.
        pub progress: Option<ProgressInfo>,
        /// The attempts that have ended, oldest first: the last 32. Their errors and those before
        /// the last are there if more than the state was asked for.
        pub attempts: Vec<AttemptInfo> = at_most("attempts of a job", ATTEMPTS_MAX),
        /// The checkpoints that are kept, oldest first.
        pub checkpoints: Vec<CheckpointInfo> = at_most("checkpoints of a job", CHECKPOINTS_MAX),
        /// Bytes of payload.
        pub payload_len: u64,
        /// The payload, if it was asked for.
        pub payload: Option<Bytes> = at_most("payload", PAYLOAD_BYTES_MAX),
        /// The headers, if they were asked for.
        pub headers: Option<Headers>,
        /// The result, if there is one and it was asked for.
        pub result: Option<Bytes> = at_most("result", RESULT_BYTES_MAX),
        /// Its options, if they were asked for.
        pub options: Option<JobOptions>,
    }

    /// How far a running job is. Soft: it is not kept over a restart of the publisher.
    pub struct ProgressInfo {
        /// 0 to 100.
        pub percent: u8,
        /// What it is doing.
        pub message: String = cut("progress message", PROGRESS_BYTES_MAX),
        /// When its worker reported it, in milliseconds since 1970.
        pub at: u64,
    }

    /// An attempt that has ended.
    pub struct AttemptInfo as record {
        /// Which, from 1; counted anew when a job is revived.
        pub number: u16,
        /// The name of the worker that made it.
        pub worker: String = cut("worker name", NAME_BYTES_MAX),
        /// When the job was delivered for it, in milliseconds since 1970.
        pub delivered_at: u64,
        /// When it ended, in milliseconds since 1970.
        pub ended_at: u64,
        /// How.
        pub outcome: AttemptOutcome,
        /// The error that its worker reported.
        pub error: Option<JobError>,
        /// What the error has in common with others like it.
        pub fingerprint: Option<Fingerprint>,
    }

    /// A checkpoint.
    pub struct CheckpointInfo as record {
        /// The attempt that left it.
        pub attempt: u16,
        /// Its number within the attempt, from 1.
        pub sequence: u64,
        /// When it was left, in milliseconds since 1970.
        pub at: u64,
        /// How many bytes it has.
        pub length: u64,
        /// The bytes, if they were asked for.
        pub bytes: Option<Bytes> = at_most("checkpoint", CHECKPOINT_BYTES_MAX),
    }
}
