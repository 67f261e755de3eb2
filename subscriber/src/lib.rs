//! Workers run jobs: a [`Worker`] subscribes to queues at every publisher of a pattern, receives
//! the jobs that publishers push, and runs a handler for each.
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
//! let report = Worker::connect("localhost:4770")
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
//! Execution is at-least-once; acceptance is exactly-once, by the job's publisher.
//!
//! [`Subscriber`] follows live values.

mod connect;
mod values;
mod work;

/// Runs attempts without a publisher: for the facade's `testing`.
#[doc(hidden)]
pub use work::testing;

pub use connect::ConnectError;
pub use longshore_protocol::messages::values::Policy;
pub use longshore_resolver::Cluster;
pub use values::{
    CallError, DurableValue, Event, KeyedEvent, MATCHING_UPDATES_MAX, MatchEvent, MatchingValues,
    SUBSCRIBE_WAIT, SubscribeError, SubscribeOptions, Subscriber, SubscriberBuilder,
    SubscriptionKey, UPDATES_BYTES_MAX, UPDATES_MAX, Updates, UpdatesSink, ValueState,
    ValueSubscription, WRITE_QUEUE_BYTES_MAX, WriteError,
};
pub use work::middleware;
pub use work::{
    Attempt, AttemptParts, Blocking, BlockingHandler, CANCEL_GRACE, CONCURRENCY, CancelReason,
    Checkpoint, CheckpointError, CheckpointsError, Completion, FromAttempt, FromPayload, GRACE,
    Handler, HandlerFailed, InPlace, Job, JobContext, JobFailure, JobOutput, JobRequest,
    JobService, JobSource, Json, KindOptions, KindService, Kinds, PARENT_JOBS_MAX,
    PARENT_RESULTS_BYTES_MAX, ParentJob, ParentPage, Parents, ParentsError, Payload, PayloadError,
    PublisherState, QueuePatterns, QueuePatternsError, Router, RunError, ShutdownHandle, State,
    StatePart, StatsWatch, Subscription, SubscriptionStatus, WORKER_JOBS_MAX, Worker,
    WorkerBuilder, WorkerReport, WorkerStats,
};
