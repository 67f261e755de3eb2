//! Enqueues jobs at publishers, and reads and controls queues.
//!
//! - [`Producer`] enqueues jobs: one at a time, many at once, or as a [`Pipeline`] for throughput.
//!   A receipt reports whether a publisher *holds* the job (and how durably), or the error reports
//!   that it was *refused*, is *nowhere*, or is *unknown* at a named publisher. A job can be
//!   prepared and confirmed later, with a transaction of another system in between, and its end
//!   awaited.
//! - [`Queues`] requests metrics and jobs, waits for the ends of jobs, acts on jobs and queues, and
//!   follows changes in a [`Feed`]. Every result names the publishers that did not answer.

mod attach;
mod confirm;
mod core;
mod directory;
mod driver;
mod enqueue;
mod enqueue_all;
mod handle;
mod ids;
mod options;
mod outcome;
mod pipeline;
mod producer;
mod queues;
mod receipt_queue;
mod schedule;
mod workflow;

pub use confirm::ConfirmError;
pub use enqueue::{Enqueue, ResultError};
pub use enqueue_all::{AllResults, EnqueueAll};
pub use ids::{new_id, new_job};
pub use options::{Failover, ProducerBuilder};
pub use outcome::{BadOption, BatchReceipt, EnqueueError, EnqueueResult, Receipt};
pub use pipeline::{Pipeline, PipelineBuilder, Receipts};
pub use producer::Producer;
pub use queues::{
    ActionOutcome, ActionResult, ActionResults, ClusterDeadGroup, ClusterDeadGroups, Feed,
    FeedFrom, FeedItem, FeedLoss, FeedPositions, FeedUpdate, FoundJob, JobEnd, JobLocator,
    JobLocatorError, JobLookupError, JobPage, JobPages, MissingPublisher, PublisherAnswer,
    PublisherAnswers, Queues, QueuesBuilder, QueuesError, ReplaceError, ScheduleError, WaitError,
};
pub use schedule::NewSchedule;
pub use workflow::{Both, FanOut, Step, Workflow};
