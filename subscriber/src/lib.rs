//! Workers: they hold a durable subscription at every publisher of a pattern, take the jobs that
//! are pushed to them, and run a handler.
//!
//! ```no_run
//! use longshore_subscriber::{Job, JobFailure, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Welcome {
//!     to: String,
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let report = Worker::connect("localhost:4770").await?
//!     .durable_subscribe("/jobs/mail/**")
//!     .concurrency(64)
//!     .run(|job: Job<Welcome>, ctx| async move {
//!         println!("attempt {}: a welcome to {}", ctx.attempt(), job.payload.to);
//!         Ok(())
//!     })
//!     .await?;
//! println!("{} completed", report.completed);
//! # Ok(())
//! # }
//! ```
//!
//! Execution is at-least-once; acceptance is exactly-once, by the publisher that holds the job.
//!
//! What decides is in cores without clock, socket or randomness of their own: `durable` (where to
//! hold the subscription, when to try again), `credits` (who may push how many jobs), `leases`
//! (when to renew, when a lease is over), `settles` and `checkpoints` (what to send, what to send
//! again), `progress` (what to tell, how often) and `publishers` (what several patterns have in
//! all). `desk` joins them under one lock; `director`, `link` and `lane` are the tasks around it.

mod checkpoint;
mod checkpoints;
mod credits;
mod desk;
mod director;
mod durable;
mod failure;
mod grace;
mod handler;
mod job;
mod lane;
mod leases;
mod link;
mod output;
mod payload;
mod progress;
mod publishers;
mod service;
mod settles;
mod shutdown;
mod signal;
mod standstill;
mod stats;
mod take;
mod values;
mod worker;

pub use checkpoint::{Checkpoint, CheckpointError, CheckpointsError};
pub use desk::StatsWatch;
pub use durable::{PublisherState, Standing};
pub use failure::JobFailure;
pub use handler::{Blocking, InPlace};
pub use job::{CancelReason, Job, JobContext};
pub use longshore_protocol::messages::values::Policy;
pub use longshore_resolver::Cluster;
pub use output::{JobOutput, Json};
pub use payload::{FromPayload, PayloadError};
pub use service::{Completion, HandlerFailed, JobRequest, JobService};
pub use shutdown::ShutdownHandle;
pub use stats::{WorkerReport, WorkerStats};
pub use take::{Take, TakeError};
pub use values::{
    CallError, DurableValue, Event, KeyedEvent, SUBSCRIBE_WAIT, SubscribeError, SubscribeOptions,
    Subscriber, SubscriberOptions, SubscriptionKey, UPDATES_BYTES_MAX, UPDATES_MAX, Updates,
    UpdatesSink, ValueState, ValueSubscription, WRITE_QUEUE_BYTES_MAX, WriteError,
};
pub use worker::{
    CANCEL_GRACE, CONCURRENCY, ConnectError, GRACE, HELD_MAX, RunError, Subscription, Worker,
    WorkerOptions,
};

#[cfg(test)]
mod scenarios;
