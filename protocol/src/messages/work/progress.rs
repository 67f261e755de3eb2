//! Workers' reports about running attempts: their start, their progress, their checkpoints.

use bytes::Bytes;

use super::credit::{Tokens, put_token, read_token};
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::codes::CheckpointOutcome;
use crate::fields::fields;
use crate::frame::FrameWriter;
use crate::id::Token;
use crate::limits::{
    BATCH_BYTES_MAX, CHECKPOINT_BYTES_MAX, PROGRESS_BYTES_MAX, PROGRESSES_MAX, TOKENS_MAX,
};
use crate::messages::work::tag;

fields! {
    /// Attempts that are about to run, or, on a link that resumes them, are already running. Not
    /// durable: it decides whether a lost lease counts as an attempt, and starts the time of
    /// `run_timeout`.
    #[derive(Default)]
    pub struct Started {
        /// The attempts.
        pub tokens: Tokens,
        /// How long each has been running, in milliseconds; empty if all of them begin now.
        pub running_ms: Vec<u64> = read_by(
            |r| running_times(r, tokens.0.len()),
            |source| crate::tests::running_times(source, tokens.0.len())
        ),
    }
}

/// The progress of an attempt. Reported to readers, but not logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The attempt's lease.
    pub token: Token,
    /// 0 to 100.
    pub percent: u8,
    /// The current activity, for people. At most 256 bytes.
    pub message: String,
}

/// Reads no times, or one for each of the `attempts`.
fn running_times(r: &mut Reader, attempts: usize) -> Result<Vec<u64>, WireError> {
    let uneven = r.invalid("number of running times");
    let times: Vec<u64> = r.list("running times", TOKENS_MAX)?;
    if times.is_empty() || times.len() == attempts { Ok(times) } else { Err(uneven) }
}

impl Started {
    /// Each attempt, with its running time in milliseconds.
    pub fn iter(&self) -> impl Iterator<Item = (Token, u64)> + '_ {
        let times = self.running_ms.iter().copied().chain(std::iter::repeat(0));
        self.tokens.0.iter().copied().zip(times)
    }
}

/// Writes the progress of several attempts.
pub(super) fn put(progresses: &[Progress], out: &mut FrameWriter) {
    out.u64(progresses.len() as u64);
    let mut before = 0;
    for progress in progresses {
        put_token(out, &mut before, progress.token);
        out.u8(progress.percent.min(100));
        out.string_cut(&progress.message, PROGRESS_BYTES_MAX);
    }
}

/// Reads what [`put`] wrote.
pub(super) fn read(r: &mut Reader) -> Result<Vec<Progress>, WireError> {
    let count = r.count("progress of attempts", PROGRESSES_MAX, 3)?;
    let mut before = 0;
    let mut read_one = || {
        let token = read_token(r, &mut before)?;
        let over = r.invalid("percent over 100");
        let percent = r.u8()?;
        if percent > 100 {
            return Err(over);
        }
        Ok(Progress { token, percent, message: r.string("progress message", PROGRESS_BYTES_MAX)? })
    };
    (0..count).map(|_| read_one()).collect()
}

/// A checkpoint as the publisher reads it: durable data that later attempts of the job can read.
///
/// ```text
/// body:  token │ sequence │ length │ bytes
/// ```
/// The publisher writes the body to its journal unchanged, and reads the data back from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The attempt's lease.
    pub token: Token,
    /// Its number within the attempt: 1, 2, 3 … A repeated number is the same checkpoint.
    pub sequence: u64,
    /// The offset of its data in the body.
    pub at: u32,
    /// The size of its data. Over 64 KiB it is refused.
    pub length: u32,
    body: Bytes,
}

impl Checkpoint {
    /// Reads a checkpoint.
    pub fn decode(body: Bytes) -> Result<Checkpoint, WireError> {
        let mut r = Reader::new(body.clone());
        let token = Token::decode(&mut r)?;
        let zero = r.invalid("checkpoint number 0; the first is 1");
        let sequence = r.u64()?;
        if sequence == 0 {
            return Err(zero);
        }
        let length = r.count("checkpoint", BATCH_BYTES_MAX, 1)?;
        let at = r.offset() as u32;
        r.skip(length)?;
        Ok(Checkpoint { token, sequence, at, length: length as u32, body })
    }

    /// Encodes the body of a checkpoint's message. Data over the limit is cut to one byte over it,
    /// which is refused all the same.
    pub fn body_of(token: Token, sequence: u64, bytes: &Bytes) -> Bytes {
        let mut out = FrameWriter::with_capacity(32);
        token.encode(&mut out);
        out.u64(sequence);
        out.bytes_shared(bytes.slice(..bytes.len().min(CHECKPOINT_BYTES_MAX + 1)));
        out.into_body()
    }

    /// Writes such a body as a message.
    pub fn encode(body: &Bytes, out: &mut FrameWriter) {
        out.message(tag::CHECKPOINT, |out| out.put_shared(body.clone()));
    }

    /// The undecoded bytes, as written to the journal.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

fields! {
    /// The answer to a checkpoint.
    #[derive(Copy)]
    pub struct Checkpointed {
        /// The attempt's lease.
        pub token: Token,
        /// The checkpoint's number.
        pub sequence: u64,
        /// The result.
        pub outcome: CheckpointOutcome,
    }
}
