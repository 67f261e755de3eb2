//! How a store is opened, and what opening it found.

use std::time::Duration;

use longshore_protocol::{Durability, Epoch, Path, PublisherId};

use crate::Secret;
use crate::clock::{ClockSource, JUMP_MS_MAX};
use crate::journal::{CutTail, Dropped, LostPayloads, RecoveredSnapshot, SEGMENT_BYTES};
use crate::leases::LeaseTiming;
use crate::payloads::CACHE_BYTES;
use crate::rules::Rules;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Keys the index of ids of a new data directory; one that has a secret keeps it.
    pub secret: Secret,
    /// Bytes of a journal segment.
    pub segment_bytes: u64,
    /// How durable acknowledgements are.
    pub durability: Durability,
    /// Starts although acknowledged commands are damaged, and sets aside what it drops.
    pub accept_loss: bool,
    /// Bytes of recent payloads kept in memory.
    pub cache_bytes: usize,
    /// Bytes of memory that jobs, queues and sessions may take
    /// ([`State::memory_bytes`](crate::State::memory_bytes)); from there on new jobs are
    /// `MemoryFull`.
    pub memory_max: u64,
    /// Queues served by name.
    pub paths: Vec<Path>,
    /// Paths below which any queue is made on first use.
    pub defaults: Vec<Path>,
    /// The numbers that decide, from this start on.
    pub rules: Rules,
    /// How long leases outlive what held them.
    pub leases: LeaseTiming,
    /// The largest jump of the wall clock that is believed.
    pub clock_skew_max: Duration,
    /// Where the time comes from.
    pub clock: ClockSource,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            secret: Secret(rand::random()),
            segment_bytes: SEGMENT_BYTES,
            durability: Durability::Fsync,
            accept_loss: false,
            cache_bytes: CACHE_BYTES,
            memory_max: u64::MAX,
            paths: Vec::new(),
            defaults: vec![Path::root()],
            rules: Rules::STANDARD,
            leases: LeaseTiming::default(),
            clock_skew_max: Duration::from_millis(JUMP_MS_MAX),
            clock: ClockSource::default(),
        }
    }
}

/// What opening a store found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Whose jobs these are.
    pub publisher: PublisherId,
    /// Which start of it this is.
    pub epoch: Epoch,
    /// The snapshot that was restored, if there was one.
    pub snapshot: Option<RecoveredSnapshot>,
    /// Commands replayed after it.
    pub records: u64,
    /// Bytes of the log read for that.
    pub bytes: u64,
    /// How long all that took.
    pub took: Duration,
    /// Leases that run on from before, until they are resumed or the restart window ends.
    pub running: u64,
    /// The torn tail that was cut off, if there was one.
    pub cut: Option<CutTail>,
    /// What was dropped, if damage was found and accepted.
    pub dropped: Option<Dropped>,
    /// The files whose payloads were given up, if loss of some was found and accepted.
    pub lost_payloads: Option<LostPayloads>,
}
