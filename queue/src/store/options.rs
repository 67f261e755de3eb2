//! The options of opening a store, and its result.

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
    /// The secret that keys the id index of a new data directory; an existing directory keeps its
    /// own.
    pub secret: Secret,
    /// Bytes of a journal segment.
    pub segment_bytes: u64,
    /// How durable acknowledgements are.
    pub durability: Durability,
    /// Open even if acknowledged commands are damaged, and set the damaged ones aside.
    pub accept_loss: bool,
    /// Bytes of recent payloads cached in memory.
    pub cache_bytes: usize,
    /// Limit of memory for jobs, queues and sessions
    /// ([`State::memory_bytes`](crate::State::memory_bytes)); at the limit new jobs are
    /// `MemoryFull`.
    pub memory_max: u64,
    /// Queues served by name.
    pub paths: Vec<Path>,
    /// Paths below which queues are created on first use.
    pub defaults: Vec<Path>,
    /// The rules from this start on.
    pub rules: Rules,
    /// How long leases outlive their link or run.
    pub leases: LeaseTiming,
    /// The largest accepted jump of the wall clock.
    pub clock_skew_max: Duration,
    /// The source of time.
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

/// The result of opening a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The publisher's id.
    pub publisher: PublisherId,
    /// The id of its journal, which the journal's copies have, too.
    pub journal: PublisherId,
    /// The epoch of this start.
    pub epoch: Epoch,
    /// The snapshot that was restored, if there was one.
    pub snapshot: Option<RecoveredSnapshot>,
    /// Commands replayed after it.
    pub records: u64,
    /// Bytes of the log read for that.
    pub bytes: u64,
    /// The duration of opening.
    pub took: Duration,
    /// Leases of the previous run, which go on until they are resumed or the restart window ends.
    pub running: u64,
    /// The torn tail that was erased, if there was one.
    pub cut: Option<CutTail>,
    /// What was dropped, if the journal was damaged and the loss was accepted.
    pub dropped: Option<Dropped>,
    /// The files whose payloads are lost, if that loss was accepted.
    pub lost_payloads: Option<LostPayloads>,
}
