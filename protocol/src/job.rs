//! A job as a producer enqueues it, and its only encoding: an *entry*. The producer writes the
//! bytes that the publisher stores in its journal and that the worker reads; no step between
//! encodes them again.
//!
//! ```text
//! entry:  id (16) │ flags (1) │ CRC32C of the payload (4, fixed) │ [options] │ [headers]
//!         │ [keys] │ payload, to the end
//! flags:  bit 0 options present, bit 1 headers, bit 2 keys; the others are 0
//! ```

use bytes::Bytes;

use crate::after::Parent;
use crate::codec::{Decode, Encode, Reader, WireError, check_limit};
use crate::fields::{fields, put_masked, read_masked};
use crate::frame::FrameWriter;
use crate::id::JobId;
use crate::idempotency::Idempotency;
use crate::keys::{JobKeys, parents_of_keys};
use crate::limits::{
    ERROR_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
    RUN_AT_MS_MAX, WAIT_MS_MAX,
};
use crate::path::Path;
use crate::settings::{lease_ms, max_attempts};
use crate::unique::Unique;

const HAS_OPTIONS: u8 = 1;
const HAS_HEADERS: u8 = 2;
const HAS_KEYS: u8 = 4;

/// A job to enqueue. `new_job` creates one with a new id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewJob {
    /// The queue.
    pub path: Path,
    /// The job's id: enqueueing the same id again at the same publisher refers to the same job.
    pub id: JobId,
    /// The data for the worker; opaque to Longshore. At most 16 MiB (`limits::PAYLOAD_BYTES_MAX`).
    pub payload: Bytes,
    /// Content type, trace context, user-defined headers. At most 8 KiB and 1,024 headers.
    pub headers: Headers,
    /// How the job runs.
    pub options: JobOptions,
    /// What relates it to other jobs; nothing by default. Never empty: see [`NewJob::keys_mut`].
    pub keys: Option<Box<JobKeys>>,
}

impl NewJob {
    /// A job with the default options and no headers. Limits are checked when it is enqueued.
    pub fn new(path: Path, id: JobId, payload: impl Into<Bytes>) -> NewJob {
        NewJob {
            path,
            id,
            payload: payload.into(),
            headers: Headers::default(),
            options: JobOptions::default(),
            keys: None,
        }
    }

    /// Writes the job's entry up to its payload.
    pub fn encode_entry_head(&self, out: &mut FrameWriter) {
        let options = self.options != JobOptions::default();
        let headers = !self.headers.0.is_empty();
        out.put(&self.id.0);
        let mut flags = if options { HAS_OPTIONS } else { 0 };
        flags |= if headers { HAS_HEADERS } else { 0 };
        flags |= if self.has_keys() { HAS_KEYS } else { 0 };
        out.u8(flags);
        out.u32_fixed(crc32c::crc32c(&self.payload));
        if options {
            self.options.encode(out);
        }
        if headers {
            self.headers.encode(out);
        }
        if let Some(keys) = self.keys.as_ref().filter(|_| self.has_keys()) {
            keys.encode(out);
        }
    }
}

/// A small map of strings in insertion order. A key may occur twice; then the first entry counts.
/// At most 1,024 headers, at most 8 KiB of keys and values together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// Returns the value of `key`, if present.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The size of keys and values together, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(k, v)| k.len() + v.len()).sum()
    }

    /// Reads encoded headers and checks all of their limits, without allocating.
    pub fn check(r: &mut Reader) -> Result<(), WireError> {
        let offset = r.offset();
        let count = r.count("headers", HEADERS_MAX, 2)?;
        let mut bytes = 0;
        for _ in 0..count {
            bytes += r.text("header name", HEADERS_BYTES_MAX)?.len();
            bytes += r.text("header value", HEADERS_BYTES_MAX)?.len();
        }
        check_limit(offset, "bytes of headers", bytes, HEADERS_BYTES_MAX)
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

/// How a job runs. Options at their defaults take no bytes on the wire or on disk. An option that
/// is `None` is taken from the queue's [`QueueSettings`](crate::QueueSettings), and if that is
/// `None`, too, from the constants here. A value out of range is refused when the job is enqueued
/// ([`Refusal::BadOptions`](crate::Refusal::BadOptions)).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct JobOptions {
    /// Higher priorities run first; jobs of one priority run in the order in which they were
    /// enqueued. 0 by default.
    pub priority: i32,
    /// The earliest time to run. Immediately by default.
    pub due: Due,
    /// Stored, but not run before it is confirmed; `due` counts from the confirmation. If
    /// unconfirmed for an hour, it is buried.
    pub prepared: bool,
    /// The job expires at this time if it waits then, unless an attempt was used up, or a handler
    /// snoozed or throttled it: wall clock, milliseconds since 1970.
    /// At most the end of the year 9999.
    pub expires_at: Option<u64>,
    /// Attempts before it becomes a dead letter: 1 to 65,535. 25 by default: about three weeks with
    /// the default back-off.
    pub max_attempts: Option<u16>,
    /// How long a delivery lasts without renewal, in milliseconds: 1,000 to 43,200,000 (1 s to 12
    /// h). Workers renew automatically, so this limits how long a dead worker goes unnoticed, not
    /// how long a job may run. 30 s by default.
    pub lease_ms: Option<u32>,
    /// How long one attempt may run, renewed or not, in milliseconds; 0 for no limit. At most 100
    /// years. An hour by default.
    pub run_timeout_ms: Option<u64>,
    /// The wait after a failed attempt. [`Backoff::Quartic`] by default.
    pub backoff: Option<Backoff>,
    /// How long the job stays readable after it has completed, expired or been cancelled, in
    /// milliseconds; 0 to delete it at once. At most 100 years. 24 hours by default. The queue's
    /// settings determine how long dead letters stay.
    pub keep_ms: Option<u64>,
    /// Whether the handler's result is stored for readers, for as long as the job is. False by
    /// default: waiters then learn only that the job has completed.
    pub keep_result: bool,
}

impl JobOptions {
    /// Attempts, if neither job nor queue sets another number.
    pub const MAX_ATTEMPTS: u16 = 25;
    /// A lease's length in milliseconds, if neither job nor queue sets one.
    pub const LEASE_MS: u32 = 30_000;
    /// How long an attempt may run, in milliseconds, if neither job nor queue sets a limit: an
    /// hour.
    pub const RUN_TIMEOUT_MS: u64 = 60 * 60 * 1_000;
    /// How long ended jobs stay readable, in milliseconds, if neither job nor queue sets a time: 24
    /// hours.
    pub const KEEP_MS: u64 = 24 * 60 * 60 * 1_000;
}

/// The earliest time at which a job may run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Due {
    /// Immediately.
    #[default]
    Now,
    /// This many milliseconds after the publisher accepted the job, or after it was confirmed:
    /// monotonic time, unaffected by clock changes. At most 100 years.
    After(u64),
    /// At a time of the publisher's wall clock, in milliseconds since 1970; immediately if that is
    /// in the past. At most the end of the year 9999.
    At(u64),
}

fields! {
    /// The wait before the next attempt. `n` is the number of the attempt that failed, from 1. A
    /// failure, a run timeout and the second loss of a worker wait; after the first loss of its
    /// worker a job is ready at once.
    #[derive(Hash, Default)]
    pub enum Backoff, "back-off policy" {
        /// A random wait between 0 and `min(base × 2ⁿ⁻¹, max)`: exponential with full jitter.
        0 = Exponential {
            /// The bound after the first attempt, in milliseconds.
            base_ms: u32,
            /// The largest bound, in milliseconds.
            max_ms: u32,
        },
        /// A constant wait, in milliseconds.
        1 = Fixed(ms: u32),
        /// `step × n`, at most `max`.
        2 = Linear {
            /// Added for each attempt, in milliseconds.
            step_ms: u32,
            /// The largest wait, in milliseconds.
            max_ms: u32,
        },
        /// The nth element of the list, in milliseconds; after its end the last element again. 1 to
        /// 64 elements.
        3 = List(list: Vec<u32> = read_by(read_waits)),
        /// The curve of Hangfire's retries: `(n − 1)⁴ + 15 + r × n` seconds, with a random whole
        /// `r` from 0 to 29. That is 15 to 44 s after the first failure, and 1.8 to 1.9 hours after
        /// the tenth.
        4 = Hangfire,
        /// `n⁴` seconds, plus or minus a random tenth, as in Sidekiq and River: 1 s, 16 s, 81 s, 4
        /// min, 10 min … The default. The 24 waits between 25 attempts add up to 20.4 days, with
        /// the random tenth to 18.4 to 22.4.
        #[default]
        5 = Quartic,
    }
}

impl Backoff {
    /// The most elements of a list.
    pub const LIST_MAX: usize = 64;

    /// Returns the wait in milliseconds after attempt `n` (from 1) failed. `random` is uniform over
    /// the whole range of u64. At most 100 years.
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

/// Scales `random` uniformly to 0..=`most`.
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
    r.non_empty_list("empty back-off list", "back-off waits", Backoff::LIST_MAX)
}

/// The part of an entry that a publisher needs. Reading it checks the headers, leaves the payload
/// untouched, and allocates nothing, except for a list of back-off waits and for keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryHead {
    /// The job.
    pub id: JobId,
    /// CRC32C of the payload.
    pub crc: u32,
    /// The options, unless they are all at their defaults.
    pub options: Option<JobOptions>,
    /// What relates it to other jobs.
    pub keys: Option<Box<JobKeys>>,
    /// The size of the payload in bytes.
    pub payload_len: usize,
}

impl EntryHead {
    /// The idempotency key.
    #[inline]
    pub fn idempotency(&self) -> Option<&Idempotency> {
        self.keys.as_ref()?.idempotency.as_ref()
    }

    /// True if the job is related to others, so that only its path's home may get it.
    pub fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// The unique key.
    #[inline]
    pub fn unique(&self) -> Option<&Unique> {
        self.keys.as_ref()?.unique.as_ref()
    }

    /// Reads the head of an entry of `length` bytes, and skips the rest. After an error the
    /// reader's position within the entry is unspecified.
    pub fn read(r: &mut Reader, length: usize) -> Result<EntryHead, WireError> {
        let end = r.offset() + length;
        let (id, flags, crc) = read_start(r)?;
        let options = if flags & HAS_OPTIONS != 0 { Some(JobOptions::decode(r)?) } else { None };
        if flags & HAS_HEADERS != 0 {
            Headers::check(r)?;
        }
        let keys = read_keys(r, flags)?;
        let overrun = r.invalid("entry length");
        let payload_len = end.checked_sub(r.offset()).ok_or(overrun)?;
        check_limit(r.offset(), "payload bytes", payload_len, PAYLOAD_BYTES_MAX)?;
        r.skip(payload_len)?;
        Ok(EntryHead { id, crc, options, keys, payload_len })
    }

    /// True if the payload, the last bytes of `entry`, matches the checksum of its producer.
    pub fn is_intact(&self, entry: &[u8]) -> bool {
        let payload = entry.len().checked_sub(self.payload_len).and_then(|at| entry.get(at..));
        payload.is_some_and(|payload| crc32c::crc32c(payload) == self.crc)
    }
}

/// Reads the start of every entry: its id, its flags, the checksum of its payload.
fn read_start(r: &mut Reader) -> Result<(JobId, u8, u32), WireError> {
    let id = JobId(r.id()?);
    let known = HAS_OPTIONS | HAS_HEADERS | HAS_KEYS;
    let flags = r.valid("entry flags", |flags| flags & !known == 0)?;
    Ok((id, flags, r.u32_fixed()?))
}

fn read_keys(r: &mut Reader, flags: u8) -> Result<Option<Box<JobKeys>>, WireError> {
    if flags & HAS_KEYS == 0 {
        return Ok(None);
    }
    Ok(Some(Box::new(JobKeys::decode(r)?)))
}

/// A whole entry, as a worker reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The job.
    pub id: JobId,
    /// How the job runs.
    pub options: JobOptions,
    /// The headers.
    pub headers: Headers,
    /// What relates it to other jobs.
    pub keys: Option<Box<JobKeys>>,
    /// The payload: a slice of the bytes read.
    pub payload: Bytes,
    /// CRC32C of the payload, as its producer computed it.
    pub crc: u32,
}

impl Entry {
    /// The idempotency key.
    pub fn idempotency(&self) -> Option<&Idempotency> {
        self.keys.as_ref()?.idempotency.as_ref()
    }

    /// The unique key.
    pub fn unique(&self) -> Option<&Unique> {
        self.keys.as_ref()?.unique.as_ref()
    }

    /// Reads an entry from bytes that contain nothing else.
    pub fn read(bytes: Bytes) -> Result<Entry, WireError> {
        let mut keys = None;
        let entry = Entry::read_with(bytes, |r| {
            keys = Some(Box::new(JobKeys::decode(r)?));
            Ok(())
        })?;
        Ok(Entry { keys, ..entry })
    }

    /// The same without its keys, but with its parents: what a worker needs.
    pub fn read_for_worker(bytes: Bytes) -> Result<(Entry, Vec<Parent>), WireError> {
        let mut parents = Vec::new();
        let entry = Entry::read_with(bytes, |r| {
            parents = parents_of_keys(r)?;
            Ok(())
        })?;
        Ok((entry, parents))
    }

    fn read_with(
        bytes: Bytes,
        read_keys: impl FnOnce(&mut Reader) -> Result<(), WireError>,
    ) -> Result<Entry, WireError> {
        let mut r = Reader::new(bytes);
        let (id, flags, crc) = read_start(&mut r)?;
        let options = if flags & HAS_OPTIONS != 0 {
            JobOptions::decode(&mut r)?
        } else {
            JobOptions::default()
        };
        let headers =
            if flags & HAS_HEADERS != 0 { Headers::decode(&mut r)? } else { Headers::default() };
        if flags & HAS_KEYS != 0 {
            read_keys(&mut r)?;
        }
        Ok(Entry { id, options, headers, keys: None, payload: r.take_rest(), crc })
    }

    /// True if the payload matches the checksum of its producer.
    pub fn is_intact(&self) -> bool {
        crc32c::crc32c(&self.payload) == self.crc
    }
}

fields! {
    /// Why an attempt failed or a job was buried, as the worker describes it. The encoder cuts
    /// texts that are too long.
    #[derive(Default)]
    pub struct JobError {
        /// The error's type: failures are grouped by it and by the shape of the message. At most
        /// 128 bytes.
        pub kind: String = cut("error type", NAME_BYTES_MAX),
        /// What went wrong. At most 8 KiB.
        pub message: String = cut("error message", ERROR_BYTES_MAX),
    }
}

impl JobError {
    /// Reads an encoded error and checks its limits, without allocating.
    pub fn check(r: &mut Reader) -> Result<(), WireError> {
        r.text("error type", NAME_BYTES_MAX)?;
        r.text("error message", ERROR_BYTES_MAX)?;
        Ok(())
    }
}
