//! What a publisher tells of a job.

use bytes::Bytes;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fingerprint::Fingerprint;
use crate::frame::FrameWriter;
use crate::id::{JobId, Token};
use crate::job::{Headers, JobError, JobOptions};
use crate::limits::{
    ATTEMPTS_MAX, CHECKPOINT_BYTES_MAX, CHECKPOINTS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
    PROGRESS_BYTES_MAX, RESULT_BYTES_MAX,
};
use crate::path::Path;
use crate::refusal::{AttemptOutcome, DeathReason, JobState};

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
    /// How long a delivery may go without renewal, in milliseconds.
    pub lease_ms: u32,
    /// How long one attempt may run, in milliseconds; 0 for as long as it likes.
    pub run_timeout_ms: u64,
    /// When it was taken, in milliseconds since 1970.
    pub enqueued_at: u64,
    /// Of a scheduled job: when it is due, in milliseconds since 1970.
    pub due_at: Option<u64>,
    /// When it expires if no attempt has begun, in milliseconds since 1970; none for never, or once one has.
    pub expires_at: Option<u64>,
    /// Of a running job: when it was delivered, in milliseconds since 1970. Reckoned back from the moment of asking, so that it
    /// may differ by a millisecond from answer to answer; so does `due_at` of a job that waits for a length of time.
    pub delivered_at: Option<u64>,
    /// Of an ended job: when it ended, in milliseconds since 1970.
    pub ended_at: Option<u64>,
    /// Of a running job: its lease.
    pub token: Option<Token>,
    /// Of a running job: the name of the worker that holds it.
    pub worker: Option<String>,
    /// Of a dead job: why.
    pub death: Option<DeathReason>,
    /// The newest error that a worker gave; a later attempt may have ended otherwise.
    pub error: Option<JobError>,
    /// The dead job that this one has replaced.
    pub replaces: Option<JobId>,
    /// Of a running job: how far it is, as its worker last said.
    pub progress: Option<ProgressInfo>,
    /// The attempts that have ended, oldest first: the last 32. Their errors and those before the last are there if more than
    /// the state was asked for.
    pub attempts: Vec<AttemptInfo>,
    /// The checkpoints that are kept, oldest first.
    pub checkpoints: Vec<CheckpointInfo>,
    /// Bytes of payload.
    pub payload_len: u64,
    /// The payload, if it was asked for.
    pub payload: Option<Bytes>,
    /// The headers, if they were asked for.
    pub headers: Option<Headers>,
    /// The result, if there is one and it was asked for.
    pub result: Option<Bytes>,
    /// What its producer said of how it is to be run, if it was asked for.
    pub options: Option<JobOptions>,
}

/// How far a running job is. Soft: it is not kept over a restart of the publisher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgressInfo {
    /// 0 to 100.
    pub percent: u8,
    /// What it is doing.
    pub message: String,
    /// When its worker said so, in milliseconds since 1970.
    pub at: u64,
}

/// An attempt that has ended.
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptInfo {
    /// Which, from 1; counted anew when a job is revived.
    pub number: u16,
    /// The name of the worker that made it.
    pub worker: String,
    /// When the job was delivered for it, in milliseconds since 1970.
    pub delivered_at: u64,
    /// When it ended, in milliseconds since 1970.
    pub ended_at: u64,
    /// How.
    pub outcome: AttemptOutcome,
    /// What its worker said of a failure.
    pub error: Option<JobError>,
    /// What the error has in common with others like it.
    pub fingerprint: Option<Fingerprint>,
}

/// A checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckpointInfo {
    /// The attempt that left it.
    pub attempt: u16,
    /// Its number within the attempt, from 1.
    pub sequence: u64,
    /// When it was left, in milliseconds since 1970.
    pub at: u64,
    /// How many bytes it has.
    pub length: u64,
    /// The bytes, if they were asked for.
    pub bytes: Option<Bytes>,
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
            out.u64(u64::from(self.lease_ms));
            out.u64(self.run_timeout_ms);
            out.u64(self.enqueued_at);
            self.due_at.encode(out);
            self.expires_at.encode(out);
            self.delivered_at.encode(out);
            self.ended_at.encode(out);
            self.token.encode(out);
            out.bool(self.worker.is_some());
            if let Some(worker) = &self.worker {
                out.string(worker);
            }
            self.death.encode(out);
            self.error.encode(out);
            self.replaces.encode(out);
            self.progress.encode(out);
            self.attempts.encode(out);
            self.checkpoints.encode(out);
            out.u64(self.payload_len);
            put_bytes(out, &self.payload);
            self.headers.encode(out);
            put_bytes(out, &self.result);
            self.options.encode(out);
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
                lease_ms: r.u32()?,
                run_timeout_ms: r.u64()?,
                enqueued_at: r.u64()?,
                due_at: r.option()?,
                expires_at: r.option()?,
                delivered_at: r.option()?,
                ended_at: r.option()?,
                token: r.option()?,
                worker: if r.bool()? {
                    Some(r.string("worker name", NAME_BYTES_MAX)?)
                } else {
                    None
                },
                death: r.option()?,
                error: r.option()?,
                replaces: r.option()?,
                progress: r.option()?,
                attempts: r.list("attempts of a job", ATTEMPTS_MAX)?,
                checkpoints: r.list("checkpoints of a job", CHECKPOINTS_MAX)?,
                payload_len: r.u64()?,
                payload: read_bytes(r, "payload", PAYLOAD_BYTES_MAX)?,
                headers: r.option()?,
                result: read_bytes(r, "result", RESULT_BYTES_MAX)?,
                options: r.option()?,
            })
        })
    }
}

impl Encode for ProgressInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.u8(self.percent);
        out.string_cut(&self.message, PROGRESS_BYTES_MAX);
        out.u64(self.at);
    }
}

impl Decode for ProgressInfo {
    fn decode(r: &mut Reader) -> Result<ProgressInfo, WireError> {
        Ok(ProgressInfo {
            percent: r.u8()?,
            message: r.string("progress message", PROGRESS_BYTES_MAX)?,
            at: r.u64()?,
        })
    }
}

impl Encode for AttemptInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            out.u64(u64::from(self.number));
            out.string_cut(&self.worker, NAME_BYTES_MAX);
            out.u64(self.delivered_at);
            out.u64(self.ended_at);
            self.outcome.encode(out);
            self.error.encode(out);
            self.fingerprint.encode(out);
        });
    }
}

impl Decode for AttemptInfo {
    fn decode(r: &mut Reader) -> Result<AttemptInfo, WireError> {
        r.record(|r| {
            Ok(AttemptInfo {
                number: r.u16()?,
                worker: r.string("worker name", NAME_BYTES_MAX)?,
                delivered_at: r.u64()?,
                ended_at: r.u64()?,
                outcome: AttemptOutcome::decode(r)?,
                error: r.option()?,
                fingerprint: r.option()?,
            })
        })
    }
}

impl Encode for CheckpointInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            out.u64(u64::from(self.attempt));
            out.u64(self.sequence);
            out.u64(self.at);
            out.u64(self.length);
            put_bytes(out, &self.bytes);
        });
    }
}

impl Decode for CheckpointInfo {
    fn decode(r: &mut Reader) -> Result<CheckpointInfo, WireError> {
        r.record(|r| {
            Ok(CheckpointInfo {
                attempt: r.u16()?,
                sequence: r.u64()?,
                at: r.u64()?,
                length: r.u64()?,
                bytes: read_bytes(r, "checkpoint", CHECKPOINT_BYTES_MAX)?,
            })
        })
    }
}
