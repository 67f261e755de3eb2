//! A publisher's queues: the job state machine (pure), leases (pure), and the journal on disk.
//!
//! ```text
//! commands ─▶ State::apply ─▶ outcomes, held ─────────────▶ released, once their index is durable
//!                 └──────────▶ Log::append ─▶ fdatasync ──────┘
//! ```

mod command;
mod journal;
mod log;
mod outcome;
mod state;
mod time;

pub use command::{Command, Expired, START_PATHS_MAX, Start};
pub use journal::{
    CutTail, Dropped, Journal, JournalOptions, OpenError, Recovered, Replayed, SEGMENT_BYTES,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
};
pub use log::{Log, LogFigures, Poisoned, ReadError, Reader, Records, UNCOMMITTED_BYTES_MAX};
pub use outcome::{Handed, JobView, Outcomes, QueueId, RecordRef, Reply};
pub use state::{SnapshotError, State, Totals};
pub use time::Now;
