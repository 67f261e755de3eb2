//! What relates a job to other jobs of its queue. Exact at the home of its path, the one
//! publisher that gets jobs with keys.

use crate::after::{Parent, parents};
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::{put_masked, read_masked};
use crate::frame::FrameWriter;
use crate::id::JobId;
use crate::idempotency::Idempotency;
use crate::job::NewJob;
use crate::job_batch::NewBatch;
use crate::limits::{FAIR_WEIGHT_MAX, KEY_BYTES_MAX, LIMIT_COST_MAX};
use crate::unique::Unique;

/// A job's relations to other jobs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobKeys {
    /// A producer's own name for the job, so that a retry creates no second one.
    pub idempotency: Option<Idempotency>,
    /// Jobs of a queue with the same order key run one at a time, in the order in which they were
    /// enqueued; a job that retries or snoozes keeps the others waiting. 1 to 80 bytes.
    pub order: Option<String>,
    /// One job with the key at a time.
    pub unique: Option<Unique>,
    /// Among a queue's ready jobs of one priority, fair keys take turns by their weights.
    pub fair: Option<FairKey>,
    /// The key of [limits](crate::JobLimit) of scope `key`: 1 to 80 bytes.
    pub limit: Option<String>,
    /// How many units of limits it takes, 1 to 1,000; 1 by default.
    pub cost: Option<u16>,
    /// The jobs that it waits for, all of them: up to 100. It has no other time then, and is not
    /// prepared.
    pub after: Vec<Parent>,
    /// What kind of a batch it is, if it is one.
    pub batch: Option<NewBatch>,
    /// The batch that it is a member of.
    pub member_of: Option<JobId>,
}

/// A fair key: mostly the tenant whose job it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FairKey {
    /// The key: 1 to 80 bytes.
    pub key: String,
    /// How many deliveries the key gets for one of a key of weight 1: 1 to 1,000. That of the
    /// latest job of the key and priority counts.
    pub weight: u16,
}

impl JobKeys {
    /// The most bytes that they take in an entry: their texts, 17 bytes for each parent, and at
    /// most 64 for all else.
    pub fn bytes_max(&self) -> usize {
        let JobKeys { idempotency, order, unique, fair, limit, after, .. } = self;
        let texts = [
            idempotency.as_ref().map(|it| it.key.len()),
            order.as_ref().map(String::len),
            // One of the payload is made later.
            unique.as_ref().map(|it| if it.key.is_empty() { KEY_BYTES_MAX } else { it.key.len() }),
            fair.as_ref().map(|it| it.key.len()),
            limit.as_ref().map(String::len),
        ];
        64 + texts.into_iter().flatten().sum::<usize>() + 17 * after.len()
    }

    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        let JobKeys { idempotency, order, unique, fair, limit, cost, after, batch, member_of } =
            self;
        let (has_key, has_relative) = (
            order.is_some() || unique.is_some() || fair.is_some() || limit.is_some(),
            !after.is_empty() || batch.is_some() || member_of.is_some(),
        );
        !has_key && !has_relative && idempotency.is_none() && cost.is_none()
    }
}

impl NewJob {
    /// Gives the job an [order key](JobKeys::order).
    #[must_use]
    pub fn order_key(mut self, key: impl Into<String>) -> NewJob {
        self.keys_mut().order = Some(key.into());
        self
    }

    /// Gives the job a [fair key](JobKeys::fair) of a weight, 1 to 1,000.
    #[must_use]
    pub fn fair_key(mut self, key: impl Into<String>, weight: u16) -> NewJob {
        self.keys_mut().fair = Some(FairKey { key: key.into(), weight });
        self
    }

    /// Gives the job the key of its [limits](crate::JobLimit).
    #[must_use]
    pub fn limit_key(mut self, key: impl Into<String>) -> NewJob {
        self.keys_mut().limit = Some(key.into());
        self
    }

    /// Lets the job take so many units of its [limits](crate::JobLimit), 1 to 1,000.
    #[must_use]
    pub fn cost(mut self, units: u16) -> NewJob {
        self.keys_mut().cost = Some(units);
        self
    }

    /// The job's keys, to set some.
    pub fn keys_mut(&mut self) -> &mut JobKeys {
        self.keys.get_or_insert_default()
    }

    /// True if the job is related to others, so that only its path's home may get it.
    pub fn has_keys(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| !keys.is_empty())
    }
}

impl Encode for JobKeys {
    fn encode(&self, out: &mut FrameWriter) {
        put_masked! {
            out,
            0 => self.idempotency,
            1 => self.order,
            2 => self.unique,
            3 => self.fair,
            4 => self.limit,
            5 => self.cost.map(u64::from),
            6 => (!self.after.is_empty()).then(|| self.after.clone()),
            7 => self.batch,
            8 => self.member_of,
        }
    }
}

impl Decode for JobKeys {
    fn decode(r: &mut Reader) -> Result<JobKeys, WireError> {
        let empty = r.invalid("keys without a key");
        read_masked! {
            r, mask, "key of a job that this version does not know",
            0 => idempotency: Idempotency::decode,
            1 => order: |r| key(r, "order key"),
            2 => unique: Unique::decode,
            3 => fair: FairKey::decode,
            4 => limit: |r| key(r, "limit key"),
            5 => cost: cost,
            6 => after: parents,
            7 => batch: NewBatch::decode,
            8 => member_of: JobId::decode,
        }
        let after = after.unwrap_or_default();
        // A list of parents is never empty.
        if mask == 0 {
            return Err(empty);
        }
        Ok(JobKeys { idempotency, order, unique, fair, limit, cost, after, batch, member_of })
    }
}

/// Reads the parents of a job from its keys. The others are checked and not copied: a worker needs
/// none of them.
pub(crate) fn parents_of_keys(r: &mut Reader) -> Result<Vec<Parent>, WireError> {
    let empty = r.invalid("keys without a key");
    read_masked! {
        r, mask, "key of a job that this version does not know",
        0 => _idempotency: Idempotency::decode,
        1 => _order: |r| key_text(r, "order key").map(drop),
        2 => _unique: Unique::decode,
        3 => _fair: |r: &mut Reader| {
            key_text(r, "fair key")?;
            fair_weight(r)
        },
        4 => _limit: |r| key_text(r, "limit key").map(drop),
        5 => _cost: cost,
        6 => after: parents,
        7 => _batch: NewBatch::decode,
        8 => _member_of: JobId::decode,
    }
    if mask == 0 { Err(empty) } else { Ok(after.unwrap_or_default()) }
}

impl Encode for FairKey {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.key);
        out.u64(u64::from(self.weight));
    }
}

impl Decode for FairKey {
    fn decode(r: &mut Reader) -> Result<FairKey, WireError> {
        Ok(FairKey { key: key(r, "fair key")?, weight: fair_weight(r)? })
    }
}

fn fair_weight(r: &mut Reader) -> Result<u16, WireError> {
    let is_valid = |weight: &u16| (1..=FAIR_WEIGHT_MAX).contains(weight);
    r.valid("weight of a fair key outside 1 to 1,000", is_valid)
}

fn cost(r: &mut Reader) -> Result<u16, WireError> {
    let is_valid = |cost: &u16| (1..=LIMIT_COST_MAX).contains(cost);
    r.valid("cost of a job outside 1 to 1,000", is_valid)
}

/// Reads a key of 1 to 80 bytes.
pub(crate) fn key(r: &mut Reader, what: &'static str) -> Result<String, WireError> {
    key_text(r, what).map(str::to_owned)
}

fn key_text<'a>(r: &'a mut Reader, what: &'static str) -> Result<&'a str, WireError> {
    let empty = r.invalid("empty key");
    let key = r.text(what, KEY_BYTES_MAX)?;
    if key.is_empty() { Err(empty) } else { Ok(key) }
}
