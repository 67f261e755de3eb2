//! A publisher's queues: the job state machine (pure), leases (pure), and the journal on disk.
//!
//! ```text
//! commands ─▶ State::apply ─▶ outcomes, pending ──────────▶ released, once their index is durable
//!                 └──────────▶ Log::append ─▶ fdatasync ──────┘
//! ```

mod clock;
mod command;
#[cfg(test)]
mod conformance;
#[cfg(any(test, feature = "fuzzing"))]
#[allow(clippy::panic, reason = "a fuzz target fails by panicking")]
#[doc(hidden)]
pub mod fuzz;
mod journal;
mod leases;
mod log;
mod outcome;
mod payloads;
mod rules;
mod state;
mod store;
mod tail;
mod time;

pub use clock::{
    AHEAD_MS_MAX, BootStamp, Clock, ClockAlarm, ClockCore, ClockSource, JUMP_MS_MAX, LastRun,
    ManualClock, Reading, next_stop,
};
pub use command::{Command, LeaseEnd, Occurrence, RunOfOccurrence, START_PATHS_MAX, Secret, Start};
pub use journal::inspect;
pub use journal::{
    Budget, CutTail, Dropped, Journal, JournalOpenError, JournalOptions, LostPayloads, Recovered,
    RecoveredSnapshot, Replayed, SEGMENT_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Space,
    SpaceLevel,
};
pub use leases::{LEASE_ENDS_MAX, LeaseTiming, Leases};
pub use log::{
    BodyBlock, Log, LogMetrics, LogReadError, LogReader, Neighbours, Poisoned, Rebuild, Records,
    Snapshot, UNCOMMITTED_BYTES_MAX,
};
pub use outcome::{
    Assignment, CheckpointView, DeadGroupView, Event, JobView, Outcomes, QueueId, RecordRef, Reply,
    RunningLease,
};
pub use payloads::{CACHE_BYTES, COPY_BYTES_MAX as CACHE_COPY_BYTES_MAX, PayloadCache};
pub use rules::Rules;
pub use state::{
    DueSchedule, Frozen, LinkUse, QueueKeys, QueueUse, Restoring, SnapshotError, State, Totals,
    WaitingJobs, refusal_of_damaged,
};
pub use store::{
    ADVANCE_MS, Opened, PAUSE_MS, PendingAnswer, Released, Replay, Store, StoreMetrics,
    StoreOptions,
};
pub use tail::{Cursor, QueueSet, Read, TAIL_EVENTS_MAX, Tail};
pub use time::Now;
