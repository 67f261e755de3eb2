//! Workers: they subscribe to queues at every publisher of a pattern, receive the jobs that
//! publishers push, and run a handler for each.
//!
//! | Module | Content |
//! |---|---|
//! | [`worker`], [`queue_patterns`], [`shutdown`], [`stats`] | the API to configure, run and stop a worker |
//! | [`kinds`] | several kinds of jobs, each with a handler |
//! | [`handler`] | what a handler receives and returns, and handlers as tower services |
//! | [`middleware`] | ready-made layers around handlers |
//! | [`state`] | state machines without a clock, a socket or randomness of their own |
//! | [`session`] | the state of a run: the state machines of all publishers under one lock |
//! | [`supervisor`] | the task of a run: starts the others, stops them in order |
//! | [`link`], [`link_thread`] | the task of a link to a publisher, and the thread of all |
//! | [`handler_task`] | the tasks that run handlers, one per unit of concurrency |
//! | [`lease_host`] | what a running handler asks of the session |
//! | [`lease_signal`] | shared by a link and a running handler: cancellation, deadline, progress |
//! | [`publisher_watches`] | the publishers that the resolver reports for the worker's patterns |

mod handler;
mod handler_task;
mod kinds;
mod lease_host;
mod lease_signal;
mod link;
mod link_thread;
pub mod middleware;
mod publisher_watches;
mod queue_patterns;
mod session;
mod shutdown;
mod state;
mod stats;
mod supervisor;
pub mod testing;
mod worker;

pub use handler::{
    Blocking, CancelReason, Checkpoint, CheckpointError, CheckpointsError, Completion, FromPayload,
    HandlerFailed, InPlace, Job, JobContext, JobFailure, JobOutput, JobRequest, JobService, Json,
    PARENT_JOBS_MAX, PARENT_RESULTS_BYTES_MAX, ParentJob, ParentPage, Parents, ParentsError,
    PayloadError,
};
pub use kinds::{
    Attempt, AttemptParts, BlockingHandler, FromAttempt, Handler, KindOptions, KindService, Kinds,
    Payload, Router, State, StatePart,
};
pub use queue_patterns::{JobSource, QueuePatterns, QueuePatternsError};
pub use session::StatsWatch;
pub use shutdown::ShutdownHandle;
pub use state::durable::{PublisherState, SubscriptionStatus};
pub use stats::{WorkerReport, WorkerStats};
pub use worker::{
    CANCEL_GRACE, CONCURRENCY, GRACE, RunError, Subscription, WORKER_JOBS_MAX, Worker,
    WorkerBuilder,
};

#[cfg(test)]
mod scenarios;
