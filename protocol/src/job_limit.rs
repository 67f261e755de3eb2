//! Limits: how many units of jobs run at once, and start in a period.

use crate::codec::{Reader, WireError};
use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::limits::{
    LIMIT_NAME_BYTES_MAX, LIMIT_PERIOD_MS_MAX, LIMIT_REFILL_MS_MAX, LIMIT_UNITS_MAX,
};

fields! {
    /// A limit of jobs. A publisher has at most 256, each with its own name.
    pub struct JobLimit {
        /// Its name: 1 to 80 bytes.
        pub name: String = read_by(
            limit_name,
            |_: &mut crate::tests::Source| "smtp".to_owned()
        ),
        /// The queues, existing and future ones.
        pub pattern: Glob,
        /// What it counts together.
        pub scope: LimitScope,
        /// Most units of jobs that run at once: 1 to 1,000,000. A job that costs more runs while
        /// no other does.
        pub concurrency: Option<u32> = read_by(
            optional_units,
            |source: &mut crate::tests::Source| source.of::<bool>().then_some(7)
        ),
        /// How many units of jobs start in a period. Set, if `concurrency` is not.
        pub rate: Option<JobRate> = read_by(
            |r| rate(r, concurrency.is_some()),
            |_: &mut crate::tests::Source| Some(JobRate { units: 100, per_ms: 1_000, burst: 10 })
        ),
    }

    /// A rate of starts. In any time `t`, jobs of at most `units / per_ms × t + burst` units start.
    /// An attempt that ends early gives nothing back.
    #[derive(Copy)]
    pub struct JobRate {
        /// Units per period: 1 to 1,000,000.
        pub units: u32,
        /// The period in milliseconds: at most 31 days.
        pub per_ms: u64,
        /// Units that may start at once: 1 to 1,000,000, and no more than the rate allows in 366
        /// days. A job that costs more takes the whole burst.
        pub burst: u32,
    }
}

codes! {
    /// What a limit counts together.
    #[derive(Default)]
    LimitScope, "scope of a limit" {
        /// The jobs of each queue.
        #[default]
        Queue = 0, "queue";
        /// The jobs of each limit key of each queue. Jobs without a limit key are not limited.
        Key = 1, "key";
        /// All jobs of all its queues.
        Shared = 2, "shared";
    }
}

impl JobLimit {
    /// True if every part is in its range.
    pub fn is_valid(&self) -> bool {
        (1..=LIMIT_NAME_BYTES_MAX).contains(&self.name.len())
            && (self.concurrency.is_some() || self.rate.is_some())
            && self.concurrency.is_none_or(|units| is_units(&units))
            && self.rate.is_none_or(|rate| rate.is_valid())
    }
}

impl JobRate {
    /// The burst of a rate that does not set one: a tenth of its units, at least 1.
    pub fn default_burst(units: u32) -> u32 {
        units.div_ceil(10).max(1)
    }

    /// True if every part is in its range.
    pub fn is_valid(&self) -> bool {
        let refill_ms = u128::from(self.burst) * u128::from(self.per_ms);
        is_units(&self.units)
            && is_units(&self.burst)
            && (1..=LIMIT_PERIOD_MS_MAX).contains(&self.per_ms)
            && refill_ms <= u128::from(self.units) * u128::from(LIMIT_REFILL_MS_MAX)
    }
}

fn is_units(units: &u32) -> bool {
    (1..=LIMIT_UNITS_MAX).contains(units)
}

fn limit_name(r: &mut Reader) -> Result<String, WireError> {
    let empty = r.invalid("empty name of a limit");
    let name = r.string("name of a limit", LIMIT_NAME_BYTES_MAX)?;
    if name.is_empty() { Err(empty) } else { Ok(name) }
}

fn optional_units(r: &mut Reader) -> Result<Option<u32>, WireError> {
    let is_valid = |units: &Option<u32>| units.as_ref().is_none_or(is_units);
    r.valid("units of a limit outside 1 to 1,000,000", is_valid)
}

fn rate(r: &mut Reader, is_optional: bool) -> Result<Option<JobRate>, WireError> {
    let is_valid = |rate: &Option<JobRate>| rate.map_or(is_optional, |rate| rate.is_valid());
    r.valid("rate of a limit", is_valid)
}
