//! A job as a producer hands it in, and its one encoding: an *entry*. The bytes that the producer
//! writes are the bytes in the publisher's journal and the bytes that the worker reads; nothing on
//! the way encodes them again.
//!
//! ```text
//! entry:  id (16) │ flags (1) │ CRC32C of the payload (4, fixed) │ [options] │ [headers] │ payload, to the end
//! flags:  bit 0 options present, bit 1 headers present; the others are 0
//! ```

use bytes::Bytes;

use crate::codec::{Decode, Encode, Reader, WireError, within};
use crate::fields::{fields, put_masked, read_masked};
use crate::frame::FrameWriter;
use crate::id::JobId;
use crate::limits::{
    ERROR_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
    RUN_AT_MS_MAX, WAIT_MS_MAX,
};
use crate::path::Path;
use crate::settings::{lease_ms, max_attempts};

const HAS_OPTIONS: u8 = 1;
const HAS_HEADERS: u8 = 2;

/// A job to enqueue. `new_job` makes one with a new id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewJob {
    /// The queue.
    pub path: Path,
    /// The job's id: the same one again, at the same publisher, is the same job.
    pub id: JobId,
    /// What the worker gets; opaque here. At most 16 MiB (`limits::PAYLOAD_BYTES_MAX`).
    pub payload: Bytes,
    /// Content type, trace context, the user's own. At most 8 KiB and 1,024 of them.
    pub headers: Headers,
    /// How it is to be run.
    pub options: JobOptions,
}

impl NewJob {
    /// A job with the default options and no headers. Checks nothing: handing it in does.
    pub fn new(path: Path, id: JobId, payload: impl Into<Bytes>) -> NewJob {
        NewJob {
            path,
            id,
            payload: payload.into(),
            headers: Headers::default(),
            options: JobOptions::default(),
        }
    }

    /// Writes the job's entry up to its payload.
    pub fn encode_entry_head(&self, out: &mut FrameWriter) {
        let options = self.options != JobOptions::default();
        let headers = !self.headers.0.is_empty();
        out.put(&self.id.0);
        out.u8(if options { HAS_OPTIONS } else { 0 } | if headers { HAS_HEADERS } else { 0 });
        out.u32_fixed(crc32c::crc32c(&self.payload));
        if options {
            self.options.encode(out);
        }
        if headers {
            self.headers.encode(out);
        }
    }
}

/// A small map of strings, in the order it was made; the text of a key may come twice, then the
/// first counts. At most 1,024, at most 8 KiB of keys and values together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// The value of `key`, if it is there.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Keys and values together, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(k, v)| k.len() + v.len()).sum()
    }

    /// Passes over encoded headers and checks all of their limits; allocates nothing.
    pub fn check(r: &mut Reader) -> Result<(), WireError> {
        let offset = r.offset();
        let count = r.count("headers", HEADERS_MAX, 2)?;
        let mut bytes = 0;
        for _ in 0..count {
            bytes += r.text("header name", HEADERS_BYTES_MAX)?.len();
            bytes += r.text("header value", HEADERS_BYTES_MAX)?.len();
        }
        within(offset, "bytes of headers", bytes, HEADERS_BYTES_MAX)
    }
}

impl Encode for Headers {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.0.len() as u64);
        for (key, value) in &self.0 {
            out.string(key);
            out.string(value);
        }
    }
}

impl Decode for Headers {
    fn decode(r: &mut Reader) -> Result<Headers, WireError> {
        let start = r.offset();
        Headers::check(r)?;
        r.seek(start);
        let count = r.count("headers", HEADERS_MAX, 2)?;
        let mut headers = Headers(Vec::with_capacity(count));
        for _ in 0..count {
            let name = r.string("header name", HEADERS_BYTES_MAX)?;
            headers.0.push((name, r.string("header value", HEADERS_BYTES_MAX)?));
        }
        Ok(headers)
    }
}

/// How a job is to be run. Options at their defaults cost no byte on the wire or on disk. What is
/// `None` is as the queue's [`QueueSettings`](crate::QueueSettings) say, and where they say
/// nothing, as the constants here. What is out of its range is refused when the job is enqueued
/// ([`Refusal::BadOptions`](crate::Refusal::BadOptions)).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct JobOptions {
    /// Higher first; those of one priority in the order in which they were enqueued. 0 by default.
    pub priority: i32,
    /// When it may run first. At once by default.
    pub due: Due,
    /// Written, and not to be run until it is confirmed; `due` counts from then. Unconfirmed for an
    /// hour, it is buried.
    pub prepared: bool,
    /// If no attempt has begun by then it expires: wall clock, milliseconds since 1970. At most the
    /// end of the year 9999.
    pub expires_at: Option<u64>,
    /// Attempts before it goes to the dead letters: 1 to 65,535. 25 by default: about three weeks
    /// with the default back-off.
    pub max_attempts: Option<u16>,
    /// How long a delivery may go without renewal, in milliseconds: 1,000 to 43,200,000 (1 s to 12
    /// h). Workers renew by themselves, so this is how soon a dead worker is noticed, not how long
    /// a job may run. 30 s by default.
    pub lease_ms: Option<u32>,
    /// How long one attempt may run, renewed or not, in milliseconds; 0 for as long as it likes. At
    /// most 100 years. An hour by default.
    pub run_timeout_ms: Option<u64>,
    /// The wait after a failed attempt. [`Backoff::Quartic`] by default.
    pub backoff: Option<Backoff>,
    /// How long the job stays readable once it has completed, expired or was cancelled, in
    /// milliseconds; 0 for not at all. At most 100 years. 24 hours by default. How long dead
    /// letters stay is their queue's setting.
    pub keep_ms: Option<u64>,
    /// Whether what the handler returned is kept for readers, for as long as the job is. False by
    /// default: then a waiter hears that the job is done, and nothing else.
    pub keep_result: bool,
}

impl JobOptions {
    /// Attempts, where neither job nor queue sets another number.
    pub const MAX_ATTEMPTS: u16 = 25;
    /// A lease's length in milliseconds, where neither job nor queue says otherwise.
    pub const LEASE_MS: u32 = 30_000;
    /// How long an attempt may run, in milliseconds, where neither job nor queue says otherwise: an
    /// hour.
    pub const RUN_TIMEOUT_MS: u64 = 60 * 60 * 1_000;
    /// How long ended jobs stay readable, in milliseconds, where neither job nor queue says
    /// otherwise: 24 hours.
    pub const KEEP_MS: u64 = 24 * 60 * 60 * 1_000;
}

/// When a job may run first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// So many milliseconds after the publisher took it, or after it was confirmed: monotonic time,
    /// not moved by clock changes. At most 100 years.
    After(u64),
    /// At a time of the publisher's wall clock, in milliseconds since 1970; at once if that is
    /// past. At most the end of the year 9999.
    At(u64),
}

fields! {
    /// The wait before an attempt is made again. `n` is the attempt that failed, from 1. A failure,
    /// an overrun and the second loss of a worker wait: a job that loses its worker for the first
    /// time is ready at once.
    #[derive(Hash, Default)]
    pub enum Backoff, "back-off policy" {
        /// A random wait between 0 and `min(base × 2ⁿ⁻¹, max)`: exponential with full jitter.
        0 = Exponential {
            /// The bound after the first attempt, in milliseconds.
            base_ms: u32,
            /// The largest bound, in milliseconds.
            max_ms: u32,
        },
        /// Always the same, in milliseconds.
        1 = Fixed(ms: u32),
        /// `step × n`, at most `max`.
        2 = Linear {
            /// Added for each attempt, in milliseconds.
            step_ms: u32,
            /// The most, in milliseconds.
            max_ms: u32,
        },
        /// The nth of the list, in milliseconds; the last one again once it is used up. 1 to 64 of
        /// them.
        3 = List(list: Vec<u32> = read_by(read_waits)),
        /// The curve of Hangfire's retries: `(n − 1)⁴ + 15 + r × n` seconds, with a random whole
        /// `r` from 0 to 29. That is 15 to 44 s after the first failure, and 1.8 to 1.9 hours after
        /// the tenth.
        4 = Hangfire,
        /// `n⁴` seconds, with a random tenth more or less, as in Sidekiq and River: 1 s, 16 s, 81
        /// s, 4 min, 10 min … The default. The 24 waits between 25 attempts are 20.4 days together,
        /// with the tenth 18.4 to 22.4.
        #[default]
        5 = Quartic,
    }
}

impl Backoff {
    /// The longest list.
    pub const LIST_MAX: usize = 64;

    /// The wait in milliseconds after attempt `n` (from 1) failed, for a `random` from the whole
    /// range of u64. At most 100 years.
    pub fn wait_ms(&self, n: u16, random: u64) -> u64 {
        let n = u64::from(n.max(1));
        let wait = match self {
            Backoff::Exponential { base_ms, max_ms } => {
                let grown = u64::from(*base_ms).saturating_mul(1 << (n - 1).min(32));
                scale(random, grown.min(u64::from(*max_ms)))
            }
            Backoff::Fixed(ms) => u64::from(*ms),
            Backoff::Linear { step_ms, max_ms } => {
                (u64::from(*step_ms) * n).min(u64::from(*max_ms))
            }
            Backoff::List(list) => {
                let nth = list.get(n as usize - 1).or(list.last());
                nth.copied().map_or(0, u64::from)
            }
            Backoff::Hangfire => {
                let seconds = (n - 1).saturating_pow(4).saturating_add(15 + scale(random, 29) * n);
                seconds.saturating_mul(1_000)
            }
            Backoff::Quartic => {
                let ms = n.saturating_pow(4).saturating_mul(1_000).min(WAIT_MS_MAX);
                ms - ms / 10 + scale(random, ms / 5)
            }
        };
        wait.min(WAIT_MS_MAX)
    }
}

/// `random` scaled to 0..=most, evenly.
fn scale(random: u64, most: u64) -> u64 {
    ((u128::from(random) * (u128::from(most) + 1)) >> 64) as u64
}

impl Encode for JobOptions {
    fn encode(&self, out: &mut FrameWriter) {
        let (delay, run_at) = match self.due {
            Due::Now => (None, None),
            Due::After(ms) => (Some(ms), None),
            Due::At(ms) => (None, Some(ms)),
        };
        put_masked! {
            out,
            0 => (self.priority != 0).then_some(self.priority),
            1 => delay,
            2 => run_at,
            3 => self.max_attempts,
            4 => self.lease_ms,
            5 => self.backoff,
            6 => self.keep_result.then_some(()),
            7 => self.prepared.then_some(()),
            8 => self.expires_at,
            9 => self.run_timeout_ms,
            10 => self.keep_ms,
        }
    }
}

impl Decode for JobOptions {
    fn decode(r: &mut Reader) -> Result<JobOptions, WireError> {
        let delay = |r: &mut Reader, two_dues: bool| match two_dues {
            true => Err(r.invalid("job with both a delay and a time")),
            false => at_most(r, "delay in milliseconds", WAIT_MS_MAX),
        };
        read_masked! {
            r, mask, "job option that this version does not know",
            0 => priority: Reader::i32,
            1 => after: |r| delay(r, mask & 1 << 2 != 0),
            2 => run_at: |r| at_most(r, "time in milliseconds", RUN_AT_MS_MAX),
            3 => max_attempts: max_attempts,
            4 => lease_ms: lease_ms,
            5 => backoff: Backoff::decode,
            6 => keep_result: <()>::decode,
            7 => prepared: <()>::decode,
            8 => expires_at: |r| at_most(r, "time in milliseconds", RUN_AT_MS_MAX),
            9 => run_timeout_ms: |r| at_most(r, "run timeout in milliseconds", WAIT_MS_MAX),
            10 => keep_ms: |r| at_most(r, "keep in milliseconds", WAIT_MS_MAX),
        }
        Ok(JobOptions {
            priority: priority.unwrap_or_default(),
            due: after.map(Due::After).or(run_at.map(Due::At)).unwrap_or_default(),
            prepared: prepared.is_some(),
            expires_at,
            max_attempts,
            lease_ms,
            run_timeout_ms,
            backoff,
            keep_ms,
            keep_result: keep_result.is_some(),
        })
    }
}

/// Reads a number up to `limit`.
pub(crate) fn at_most(r: &mut Reader, what: &'static str, limit: u64) -> Result<u64, WireError> {
    let offset = r.offset();
    match r.u64()? {
        value if value > limit => Err(WireError::OverLimit { offset, what, value, limit }),
        value => Ok(value),
    }
}

fn read_waits(r: &mut Reader) -> Result<Vec<u32>, WireError> {
    r.some("empty back-off list", "back-off waits", Backoff::LIST_MAX)
}

/// What a publisher needs to know of an entry. Reading it checks the headers, leaves the payload
/// untouched, and allocates nothing, except for a list of back-off waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryHead {
    /// The job.
    pub id: JobId,
    /// CRC32C of the payload.
    pub crc: u32,
    /// The options, unless they are all at their defaults.
    pub options: Option<JobOptions>,
    /// Bytes of payload.
    pub payload_len: usize,
}

impl EntryHead {
    /// Reads the head of an entry of `length` bytes, and passes over the rest of it. After an error
    /// the reader stands anywhere within the entry.
    pub fn read(r: &mut Reader, length: usize) -> Result<EntryHead, WireError> {
        let end = r.offset() + length;
        let (id, flags, crc) = read_start(r)?;
        let options = if flags & HAS_OPTIONS != 0 { Some(JobOptions::decode(r)?) } else { None };
        if flags & HAS_HEADERS != 0 {
            Headers::check(r)?;
        }
        let overrun = r.invalid("entry length");
        let payload_len = end.checked_sub(r.offset()).ok_or(overrun)?;
        within(r.offset(), "payload bytes", payload_len, PAYLOAD_BYTES_MAX)?;
        r.skip(payload_len)?;
        Ok(EntryHead { id, crc, options, payload_len })
    }

    /// False when the payload, the last bytes of `entry`, is not what its producer wrote.
    pub fn is_intact(&self, entry: &[u8]) -> bool {
        let payload = entry.len().checked_sub(self.payload_len).and_then(|at| entry.get(at..));
        payload.is_some_and(|payload| crc32c::crc32c(payload) == self.crc)
    }
}

/// What every entry begins with: its id, its flags, the checksum of its payload.
fn read_start(r: &mut Reader) -> Result<(JobId, u8, u32), WireError> {
    let id = JobId(r.id()?);
    let flags = r.valid("entry flags", |flags| flags & !(HAS_OPTIONS | HAS_HEADERS) == 0)?;
    Ok((id, flags, r.u32_fixed()?))
}

/// An entry, read whole: what a worker makes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The job.
    pub id: JobId,
    /// How it is to be run.
    pub options: JobOptions,
    /// The headers.
    pub headers: Headers,
    /// The payload: a slice of what was read.
    pub payload: Bytes,
    /// CRC32C of the payload, as its producer computed it.
    pub crc: u32,
}

impl Entry {
    /// Reads an entry; the bytes are the entry and nothing else.
    pub fn read(bytes: Bytes) -> Result<Entry, WireError> {
        let mut r = Reader::new(bytes);
        let (id, flags, crc) = read_start(&mut r)?;
        let options = if flags & HAS_OPTIONS != 0 {
            JobOptions::decode(&mut r)?
        } else {
            JobOptions::default()
        };
        let headers =
            if flags & HAS_HEADERS != 0 { Headers::decode(&mut r)? } else { Headers::default() };
        Ok(Entry { id, options, headers, payload: r.take_rest(), crc })
    }

    /// False when the payload is not what its producer wrote.
    pub fn is_intact(&self) -> bool {
        crc32c::crc32c(&self.payload) == self.crc
    }
}

fields! {
    /// Why an attempt failed or a job was buried, in the worker's words. Too long ones are cut when
    /// they are written.
    #[derive(Default)]
    pub struct JobError {
        /// The error's type: what failures are grouped by, with the message's shape. At most 128
        /// bytes.
        pub kind: String = cut("error type", NAME_BYTES_MAX),
        /// What went wrong. At most 8 KiB.
        pub message: String = cut("error message", ERROR_BYTES_MAX),
    }
}

impl JobError {
    /// Passes over an encoded error and checks its limits; allocates nothing.
    pub fn check(r: &mut Reader) -> Result<(), WireError> {
        r.text("error type", NAME_BYTES_MAX)?;
        r.text("error message", ERROR_BYTES_MAX)?;
        Ok(())
    }
}
