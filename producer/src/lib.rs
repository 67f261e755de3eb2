//! Hands jobs to publishers, and looks into queues.
//!
//! - [`Producer`] enqueues jobs: one at a time, many at once, or as a [`Pipeline`] for throughput.
//!   Every answer is honest: a job is *held* (and how durably), *refused*, *nowhere*, or *unknown*,
//!   and then it says at which publisher. A job can be prepared and confirmed later, with a
//!   transaction of another system in between, and waited for until it ends.
//! - [`Queues`] asks publishers for metrics and jobs, waits for the ends of jobs, acts on jobs and
//!   queues, and follows what happens in a [`Feed`]; every result names those that did not answer.

mod attach;
mod confirm;
mod core;
mod directory;
mod driver;
mod handle;
mod ids;
mod options;
mod outcome;
mod pipeline;
mod producer;
mod queues;
mod receipt_queue;

pub use confirm::ConfirmError;
pub use ids::{new_id, new_job};
pub use options::{BatchOptions, Failover, PipelineOptions, ProducerOptions};
pub use outcome::{BatchReceipt, EnqueueError, JobReceipt, JobTicket, Receipt};
pub use pipeline::{Pipeline, Receipts};
pub use producer::Producer;
pub use queues::{
    ActEnd, ActedOn, Answered, DeadGroupAt, DeadGroupsAt, Feed, FeedFrom, FeedItem, FeedLoss,
    FeedNews, FeedPositions, Gathered, JobAt, JobEnd, JobLookupError, JobName, JobNameError,
    JobPage, JobPages, Missing, NamedAct, Queues, QueuesError, QueuesOptions, ReplaceError,
    WaitError,
};
