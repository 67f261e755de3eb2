//! A publisher: the process that holds queues on its disk and pushes jobs to workers.
//!
//! ```text
//!          link tasks (one per link)              owner task                     journal thread
//!  socket ─▶ decode a frame's messages ─event──▶ Store::submit: apply, append ──▶ write, fdatasync
//!  socket ◀─ frames ◀──── router: one frame per link ◀─ Store::released ◀───────── committed index
//!                            └─▶ cold loads (blocking threads) ─▶ owner
//! ```
//!
//! Only the owner accesses the store. Link tasks decode and wait; they decide nothing. Nothing is
//! sent before the command that it reflects is durable: the store holds outcomes back until then.
//!
//! Requests that wait for a job's end (`completion_waiters`) and feeds (`feeds`) read the store's
//! tail of events after each release. While there is neither, no event is recorded (`recording`),
//! and a job costs nothing more. What a link has no room for waits as a number or a cursor, never
//! as bytes.

mod accept;
mod audited;
mod cold;
mod completion_waiters;
mod deaths;
mod delayed_refusals;
mod error;
mod event;
mod feeds;
mod hang;
mod health;
mod homes;
mod idle;
mod link;
mod link_log;
mod machine_memory;
mod metrics;
mod operator_log;
mod options;
mod owner;
mod pauses;
mod permissions;
mod publisher;
mod queue_quotas;
mod quiet_requests;
mod recording;
mod registry;
mod router;
mod schedules;
mod test_clock;
mod values;

pub use error::{OpenError, PublisherFailed};
pub use health::{HealthHandle, PublisherHealth};
#[doc(hidden)]
pub use metrics::{
    METRICS_EVERY, METRICS_MAX, MetricSample, MetricSource, metrics_path, serve_metrics,
};
pub use options::PublisherOptions;
pub use publisher::Publisher;
pub use test_clock::{ClockUnused, TestClock};
pub use values::limits as value_limits;
pub use values::{
    Batch, FlushReport, Procedure, PublishError, Published, UpdateError, ValueDefault,
    ValueOptions, ValuePublisher, ValuePublisherBuilder, ValuePublisherError, ValueRequest, Values,
    Write, Writes,
};
