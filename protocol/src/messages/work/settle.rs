//! Batches of settles: how leases end.
//!
//! ```text
//! body:     sequence │ count │ count × (token, as the difference from the one before │ verdict)
//! verdict:  0 complete │ 1 complete, result │ 2 fail, error │ 3 release
//!           │ 4 snooze, milliseconds │ 5 bury, error │ 6 throttle, milliseconds
//! ```
//! The publisher writes the body to its journal unchanged, and reads results and errors back from
//! there.

use bytes::Bytes;

use super::credit::{put_token, read_token};
use crate::codec::{Decode, Encode, Reader, WireError, check_limit};
use crate::codes::SettleOutcome;
use crate::fields::fields;
use crate::frame::FrameWriter;
use crate::id::Token;
use crate::job::JobError;
use crate::limits::{BATCH_BYTES_MAX, RESULT_BYTES_MAX, SETTLES_MAX, THROTTLE_MS_MAX, WAIT_MS_MAX};
use crate::messages::work::tag;
use crate::runs::Runs;

/// How a worker ends a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewSettle {
    /// The job completed.
    Complete {
        /// The result, stored if the job's options require it. At most 1 MiB.
        result: Option<Bytes>,
    },
    /// The attempt failed; the job's back-off determines the next one.
    Fail(JobError),
    /// The job is returned at once; the attempt does not count.
    Release,
    /// The job is returned after a while; the attempt does not count.
    Snooze {
        /// The delay in milliseconds; over 100 years counts as 100 years.
        ms: u64,
    },
    /// The job becomes a dead letter, even if it has attempts left.
    Bury(JobError),
    /// The job is returned, and until then no job of its limit key is delivered; the attempt does
    /// not count. A job without a limit key is snoozed.
    Throttle {
        /// For how long, in milliseconds; over 7 days counts as 7 days.
        ms: u64,
    },
}

impl NewSettle {
    /// The settle of an item of a batch with that body.
    pub fn of(body: &Bytes, verdict: Verdict) -> NewSettle {
        let part = |span: Span| body.slice(span.at as usize..(span.at + span.length) as usize);
        // The batch was decoded, so its errors can be decoded, too.
        let error = |span| JobError::decode(&mut Reader::new(part(span))).unwrap_or_default();
        match verdict {
            Verdict::Complete(result) => NewSettle::Complete { result: result.map(part) },
            Verdict::Fail(span) => NewSettle::Fail(error(span)),
            Verdict::Release => NewSettle::Release,
            Verdict::Snooze(ms) => NewSettle::Snooze { ms },
            Verdict::Bury(span) => NewSettle::Bury(error(span)),
            Verdict::Throttle(ms) => NewSettle::Throttle { ms },
        }
    }
}

/// Collects settles into a batch.
#[derive(Debug, Default)]
pub struct SettleBatchBuilder {
    items: FrameWriter,
    before: u64,
    count: usize,
}

impl SettleBatchBuilder {
    /// An empty batch.
    pub fn new() -> SettleBatchBuilder {
        SettleBatchBuilder::default()
    }

    /// The number of settles so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True while there are no settles.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if the batch must be finished before another settle is added.
    pub fn is_full(&self) -> bool {
        self.count >= SETTLES_MAX || self.items.body_len() > BATCH_BYTES_MAX / 2
    }

    /// The size of the items so far, in bytes.
    pub fn bytes(&self) -> usize {
        self.items.body_len()
    }

    /// Adds the end of a lease. A result over its limit is cut to one byte over it, which is
    /// refused all the same.
    pub fn push(&mut self, token: Token, settle: &NewSettle) {
        put_token(&mut self.items, &mut self.before, token);
        match settle {
            NewSettle::Complete { result: None } => self.items.u8(0),
            NewSettle::Complete { result: Some(result) } => {
                self.items.u8(1);
                self.items.bytes_shared(result.slice(..result.len().min(RESULT_BYTES_MAX + 1)));
            }
            NewSettle::Fail(error) => {
                self.items.u8(2);
                error.encode(&mut self.items);
            }
            NewSettle::Release => self.items.u8(3),
            NewSettle::Snooze { ms } => {
                self.items.u8(4);
                self.items.u64((*ms).min(WAIT_MS_MAX));
            }
            NewSettle::Bury(error) => {
                self.items.u8(5);
                error.encode(&mut self.items);
            }
            NewSettle::Throttle { ms } => {
                self.items.u8(6);
                self.items.u64((*ms).min(THROTTLE_MS_MAX));
            }
        }
        self.count += 1;
    }

    /// Finishes the batch and returns the body of its message, to be stored until it is answered.
    pub fn seal(self, sequence: u64) -> Bytes {
        let mut out = FrameWriter::with_capacity(self.items.body_len() + 16);
        out.u64(sequence);
        out.u64(self.count as u64);
        out.append(self.items);
        out.into_body()
    }

    /// Writes a sealed body as a message.
    pub fn encode(body: &Bytes, out: &mut FrameWriter) {
        out.message(tag::SETTLE, |out| out.put_shared(body.clone()));
    }
}

/// A batch as the publisher reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettleBatch {
    /// The session's number for it at this publisher: 1, 2, 3 … without a gap.
    pub sequence: u64,
    count: usize,
    items_at: usize,
    body: Bytes,
}

/// The range of a result or an error in the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its offset in the body.
    pub at: u32,
    /// Its length.
    pub length: u32,
}

/// One settle of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettleItem {
    /// The lease.
    pub token: Token,
    /// How it ends.
    pub verdict: Verdict,
}

/// How a lease ends; the data remains in the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Completed, with the range of the result if there is one.
    Complete(Option<Span>),
    /// Failed, with the range of the encoded [`JobError`].
    Fail(Span),
    /// Returned at once.
    Release,
    /// Returned after that many milliseconds.
    Snooze(u64),
    /// Buried, with the range of the encoded [`JobError`].
    Bury(Span),
    /// Returned, with its limit key resting for that many milliseconds.
    Throttle(u64),
}

impl SettleBatch {
    /// Reads a batch and checks all its items.
    pub fn decode(body: Bytes) -> Result<SettleBatch, WireError> {
        check_limit(0, "bytes of a batch of settles", body.len(), BATCH_BYTES_MAX)?;
        let mut r = Reader::new(body.clone());
        let sequence = r.u64()?;
        let count = r.count("settles", SETTLES_MAX, 2)?;
        let items_at = r.offset();
        let mut before = 0;
        for _ in 0..count {
            read_item(&mut r, &mut before)?;
        }
        Ok(SettleBatch { sequence, count, items_at, body })
    }

    /// The number of settles.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The undecoded bytes, as written to the journal.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The settles, in order.
    pub fn items(&self) -> impl Iterator<Item = SettleItem> {
        let mut r = Reader::new(self.body.clone());
        let mut left = if r.skip(self.items_at).is_ok() { self.count } else { 0 };
        let mut before = 0;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            // `decode` has read all items once, so this succeeds.
            read_item(&mut r, &mut before).ok()
        })
    }
}

fn read_item(r: &mut Reader, before: &mut u64) -> Result<SettleItem, WireError> {
    let token = read_token(r, before)?;
    let unknown = r.invalid("verdict");
    let verdict = match r.u8()? {
        0 => Verdict::Complete(None),
        1 => {
            // A result over its limit is refused individually, without an error for the batch.
            let length = r.count("result", BATCH_BYTES_MAX, 1)?;
            let at = r.offset() as u32;
            r.skip(length)?;
            Verdict::Complete(Some(Span { at, length: length as u32 }))
        }
        2 => Verdict::Fail(read_error(r)?),
        3 => Verdict::Release,
        4 => Verdict::Snooze(r.u64()?.min(WAIT_MS_MAX)),
        5 => Verdict::Bury(read_error(r)?),
        6 => Verdict::Throttle(r.u64()?.min(THROTTLE_MS_MAX)),
        _ => return Err(unknown),
    };
    Ok(SettleItem { token, verdict })
}

fn read_error(r: &mut Reader) -> Result<Span, WireError> {
    let at = r.offset();
    JobError::check(r)?;
    Ok(Span { at: at as u32, length: (r.offset() - at) as u32 })
}

fields! {
    /// The answer to a batch of settles.
    pub struct Settled {
        /// The batch.
        pub sequence: u64,
        /// One outcome per settle, in order. Empty for a batch older than the last 64, whose answer
        /// is forgotten.
        pub outcomes: Runs<SettleOutcome> = at_most("outcomes of settles", SETTLES_MAX),
    }
}
