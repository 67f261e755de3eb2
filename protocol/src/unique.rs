//! Unique keys: one job of its kind at a time.

use std::fmt::Write;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::codec::{Reader, WireError};
use crate::fields::{codes, fields};
use crate::job::{NewJob, at_most};
use crate::keys::key;
use crate::limits::UNIQUE_MS_MAX;

fields! {
    /// What makes a job the only one of its kind in its queue: while a job holds the key, a second
    /// one with the same key is not created, whatever its payload.
    pub struct Unique {
        /// The key: 1 to 80 bytes. Empty for one that [`NewJob::unique`] makes of the payload.
        pub key: String = read_by(
            |r| key(r, "unique key"),
            |_: &mut crate::tests::Source| "k".to_owned()
        ),
        /// How long the job holds it.
        pub until: UniqueUntil,
        /// What becomes of a job whose key another one holds.
        pub on_conflict: OnConflict,
    }

    /// How long a job holds its unique key. A prepared job holds it from its enqueue on.
    #[derive(Copy, Default)]
    pub enum UniqueUntil, "end of a unique key" {
        /// Until it has ended: completed, cancelled, expired or dead. While it retries, it holds
        /// the key. The default.
        #[default]
        0 = End,
        /// Until its first delivery to a worker: then the next one may wait.
        1 = Start,
        /// For this time after it was enqueued, in milliseconds: at least 1, at most 30 days. It
        /// may have ended, or have been deleted, before.
        2 = For(
            ms: u64 = read_by(
                unique_ms,
                |source: &mut crate::tests::Source| source.within(1..=UNIQUE_MS_MAX)
            )
        ),
    }
}

codes! {
    /// What becomes of a job whose unique key another one holds.
    #[derive(Default)]
    OnConflict, "answer to a held unique key" {
        /// The first job stays; the answer names it. The default.
        #[default]
        Keep = 0, "keep";
        /// The new job takes the place of the first, with its own id, payload, time and priority,
        /// unless the first was delivered or has ended: then the first stays.
        Replace = 1, "replace";
        /// The new job is refused ([`Refusal::NotUnique`](crate::Refusal::NotUnique)).
        Refuse = 2, "refuse";
    }
}

impl Unique {
    /// One job with this key at a time, until it ends; the first one stays.
    ///
    /// An empty key is one by payload.
    pub fn by_key(key: impl Into<String>) -> Unique {
        let (until, on_conflict) = Default::default();
        Unique { key: key.into(), until, on_conflict }
    }

    /// One job with the same payload at a time, until it ends; the first one stays.
    pub fn by_payload() -> Unique {
        Unique::by_key("")
    }

    /// Until the first delivery: one waits, while others may run.
    #[must_use]
    pub fn until_start(mut self) -> Unique {
        self.until = UniqueUntil::Start;
        self
    }

    /// For this time after the enqueue, whatever becomes of the job; at most 30 days.
    #[must_use]
    pub fn during(mut self, period: Duration) -> Unique {
        self.until = UniqueUntil::For(u64::try_from(period.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// A later job takes the place of one that was not delivered yet.
    #[must_use]
    pub fn replace(mut self) -> Unique {
        self.on_conflict = OnConflict::Replace;
        self
    }

    /// A later job is refused.
    #[must_use]
    pub fn refuse(mut self) -> Unique {
        self.on_conflict = OnConflict::Refuse;
        self
    }
}

impl NewJob {
    /// Makes the job [unique](Unique) in its queue. A key of the payload is made of the payload
    /// that the job has now: SHA-256, as 64 hexadecimal digits.
    #[must_use]
    pub fn unique(mut self, mut unique: Unique) -> NewJob {
        if unique.key.is_empty() {
            for byte in Sha256::digest(&self.payload) {
                // Writing to a string cannot fail.
                let _ = write!(unique.key, "{byte:02x}");
            }
        }
        self.keys_mut().unique = Some(unique);
        self
    }

    /// One job with this key runs, and one waits: the latest. That is a job which is unique until
    /// it starts, replaces the one that waits, and has an [order key](crate::JobKeys::order) of the
    /// same text.
    #[must_use]
    pub fn latest(self, key: impl Into<String>) -> NewJob {
        let key = key.into();
        self.order_key(&*key).unique(Unique::by_key(key).until_start().replace())
    }
}

fn unique_ms(r: &mut Reader) -> Result<u64, WireError> {
    let zero = r.invalid("unique key for 0 ms");
    match at_most(r, "unique key in milliseconds", UNIQUE_MS_MAX)? {
        0 => Err(zero),
        ms => Ok(ms),
    }
}
