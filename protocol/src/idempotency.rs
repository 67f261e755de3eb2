//! Idempotency keys: a producer's own name for a job, so that a retry from another process, or with
//! another id, creates no second job.

use std::time::Duration;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::job::{NewJob, at_most};
use crate::keys::key;
use crate::limits::IDEMPOTENCY_MS_MAX;

/// A job's idempotency key. One job of a queue has it at a time: while it lasts, a job with the
/// same key and the same payload is that job, and one with another payload is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// The key: 1 to 80 bytes.
    pub key: String,
    /// How long it lasts after the job was enqueued, in milliseconds: at most 30 days, at least 1.
    /// 24 hours by default. It outlives its job.
    pub for_ms: Option<u64>,
}

impl Idempotency {
    /// How long a key lasts, in milliseconds, if its job does not say: 24 hours.
    pub const FOR_MS: u64 = 24 * 60 * 60 * 1_000;
}

impl NewJob {
    /// Gives the job an [idempotency key](Idempotency), for 24 hours.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> NewJob {
        self.keys_mut().idempotency = Some(Idempotency { key: key.into(), for_ms: None });
        self
    }

    /// Gives the job an [idempotency key](Idempotency) that lasts as long as `duration`, at most 30
    /// days.
    #[must_use]
    pub fn idempotency_key_for(mut self, key: impl Into<String>, duration: Duration) -> NewJob {
        let for_ms = Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        self.keys_mut().idempotency = Some(Idempotency { key: key.into(), for_ms });
        self
    }
}

impl Encode for Idempotency {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.key);
        self.for_ms.encode(out);
    }
}

impl Decode for Idempotency {
    fn decode(r: &mut Reader) -> Result<Idempotency, WireError> {
        let key = key(r, "idempotency key")?;
        if !r.bool()? {
            return Ok(Idempotency { key, for_ms: None });
        }
        let zero = r.invalid("idempotency of 0 ms");
        match at_most(r, "idempotency in milliseconds", IDEMPOTENCY_MS_MAX)? {
            0 => Err(zero),
            ms => Ok(Idempotency { key, for_ms: Some(ms) }),
        }
    }
}
