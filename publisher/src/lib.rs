//! A publisher: the process that holds queues on its disk and pushes jobs to workers.
//!
//! ```text
//!            link tasks (one per link)              owner task                     journal thread
//!  socket ──▶ decode a frame's messages ──input──▶ Store::submit: apply, append ──▶ write, fdatasync
//!  socket ◀── frames ◀──── router: one frame per link ◀── Store::released ◀───────── committed index
//!                              └─▶ cold loads (blocking threads) ─▶ owner
//! ```
//!
//! The owner is the only one that touches the store. Link tasks decode and wait; they decide
//! nothing. Nothing leaves for a socket before the command that it reflects is durable: the store
//! holds outcomes back until then.
//!
//! Waits for jobs' ends (`awaits`) and feeds (`feeds`) read the store's tail of events after each
//! release; while there is neither, no event is recorded (`recording`), and a job costs nothing
//! more. What a link has no room for waits as a number or a cursor, never as bytes.

mod accept;
mod awaits;
mod cold;
mod deaths;
mod error;
mod feeds;
mod hang;
mod idle;
mod input;
mod link;
mod machine_memory;
mod metrics;
mod notices;
mod options;
mod owner;
mod pauses;
mod publisher;
mod quiets;
mod recording;
mod refusals;
mod registry;
mod router;
mod test_clock;
mod values;

pub use error::{OpenError, PublisherFailed};
#[doc(hidden)]
pub use metrics::{METRICS_EVERY, METRICS_MAX, MetricSource, Taken, metrics_path, serve_metrics};
pub use options::PublisherOptions;
pub use publisher::Publisher;
pub use test_clock::{ClockUnused, TestClock};
pub use values::limits as value_limits;
pub use values::{
    Batch, FlushReport, PublishError, Published, Requested, UpdateError, ValueDefault,
    ValueOptions, ValuePublisher, ValuePublisherError, ValuePublisherOptions, Values, Write,
    Writes,
};
