//! A publisher's queues: the job state machine (pure), leases (pure), and the journal on disk.
//!
//! ```text
//! commands ─▶ State::apply ─▶ outcomes, held ─────────────▶ released, once their index is durable
//!                 └──────────▶ Log::append ─▶ fdatasync ──────┘
//! ```

mod command;
mod outcome;
mod state;
mod time;

pub use command::{Command, Expired, START_PATHS_MAX, Start};
pub use outcome::{Handed, JobView, Outcomes, QueueId, RecordRef, Reply};
pub use state::{State, Totals};
pub use time::Now;
