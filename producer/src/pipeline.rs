//! Pipelines: only batches cross between tasks, never single jobs.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use longshore_kinds::IntoJob;

use crate::core::StreamLimits;
use crate::driver::StreamHandle;
use crate::handle::ProducerHandle;
use crate::ids::{new_id, to_job};
use crate::outcome::{BatchReceipt, EnqueueError};
use crate::producer::Producer;
use crate::receipt_queue::ReceiptQueue;

/// The default for [`PipelineBuilder::receipts_jobs_max`].
const RECEIPTS_JOBS_MAX: usize = 1_000_000;

/// The sending half of a pipeline ([`Producer::pipeline`](crate::Producer::pipeline)). Dropping it
/// sends open batches, and ends [`Receipts`] after the last receipt.
pub struct Pipeline {
    handle: Arc<ProducerHandle>,
    stream: StreamHandle,
    receipts_jobs_max: usize,
    next_index: u64,
    receipts: Arc<ReceiptQueue>,
}

/// The receiving half of a pipeline: returns receipts, a batch at a time, in the order of the
/// publishers' answers. The receipts of one publisher are in the order of their indices; those of
/// several are not, so match a job by its [index](crate::EnqueueResult::index) or its id. Dropping
/// it discards receipts, read or not; jobs are still sent, and their receipts are unbounded.
pub struct Receipts {
    queue: Arc<ReceiptQueue>,
    /// Keeps the links while receipts are awaited.
    _handle: Arc<ProducerHandle>,
}

/// The options of a pipeline: how it fills its batches, and its limits. Made by
/// [`Pipeline::builder`], and ended by [`open`](PipelineBuilder::open).
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder creates a pipeline with `open`"]
pub struct PipelineBuilder {
    limits: StreamLimits,
    receipts_jobs_max: usize,
}

impl PipelineBuilder {
    /// Sets the most accepted jobs without an answer; further ones wait in `send`. Each publisher
    /// of a path gets an equal share, and at least one batch. Allow several batches per publisher,
    /// so that a hung publisher does not use up the limit. 100,000 by default.
    pub fn in_flight_jobs_max(mut self, jobs: usize) -> Self {
        self.limits.in_flight_jobs_max = jobs;
        self
    }

    /// Sets the most bytes of these jobs, shared in the same way; a single job of any size is
    /// accepted while there is no other. 64 MiB by default.
    pub fn in_flight_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.in_flight_bytes_max = bytes;
        self
    }

    /// Sets how long a partial batch waits while the publisher has an unanswered one: at most half
    /// of the producer's `answer_timeout`. 1 ms by default.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.limits.linger = linger;
        self
    }

    /// Sets the jobs that make a batch full; at most 10,000. 1,000 by default.
    pub fn batch_jobs_max(mut self, jobs: usize) -> Self {
        self.limits.batch_jobs_max = jobs;
        self
    }

    /// Sets the bytes that make a batch full. A larger job is sent in a batch of its own. 256 KiB
    /// by default.
    pub fn batch_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.batch_bytes_max = bytes;
        self
    }

    /// A partial batch is sent at once while the publisher has fewer unanswered batches than this.
    /// 1 by default.
    pub fn eager_batches(mut self, batches: usize) -> Self {
        self.limits.eager_batches = batches;
        self
    }

    /// Sets the most jobs with unread receipts; beyond that `send` waits for a reader. Jobs in
    /// flight are not counted. 1,000,000 by default.
    pub fn receipts_jobs_max(mut self, jobs: usize) -> Self {
        self.receipts_jobs_max = jobs.max(1);
        self
    }

    /// Opens the pipeline: see [`Producer::pipeline`].
    pub fn open(self, producer: &Producer) -> (Pipeline, Receipts) {
        let handle = producer.handle();
        let receipts = Arc::new(ReceiptQueue::default());
        // A batch that waits longer would time out before it is sent.
        let linger = self.limits.linger.min(handle.driver.options.answer_timeout / 2);
        let limits = StreamLimits { linger, ..self.limits };
        let stream = handle.driver.open_stream(limits, Some(receipts.clone()));
        let reader = Receipts { queue: receipts.clone(), _handle: handle.clone() };
        let receipts_jobs_max = self.receipts_jobs_max;
        (Pipeline { handle, stream, receipts_jobs_max, next_index: 0, receipts }, reader)
    }
}

impl Pipeline {
    /// Starts with the default options, to change some:
    /// `Pipeline::builder().batch_jobs_max(100).open(&producer)`.
    pub fn builder() -> PipelineBuilder {
        PipelineBuilder { limits: StreamLimits::default(), receipts_jobs_max: RECEIPTS_JOBS_MAX }
    }

    /// Enqueues a job (a value of a [`JobKind`](longshore_kinds::JobKind), or a
    /// [`NewJob`](longshore_protocol::NewJob)), and returns its index, which counts from 0. Waits
    /// while too many receipts are unread, for as long as it takes: the log has a warning every 30
    /// s. Then waits while the pipeline has reached its in-flight limits or the path is being
    /// resolved, for at most the producer's `answer_timeout`.
    ///
    /// An error means that the job was not accepted and used no index; the pipeline remains
    /// usable. The outcome of an accepted job arrives at [`Receipts`]. Cancel safe: if the future
    /// is dropped, the job was not accepted, and used no index.
    pub async fn send(&mut self, job: impl IntoJob) -> Result<u64, EnqueueError> {
        let job = to_job(job, new_id)?;
        let limit = self.receipts_jobs_max;
        if self.receipts.is_full(limit) {
            self.receipts.wait_for_room(limit).await;
        }
        self.handle.driver.push(&self.stream, self.next_index, &job, false).await?;
        self.next_index += 1;
        Ok(self.next_index - 1)
    }

    /// Sends open batches without waiting for more jobs. Does not wait for receipts, and never
    /// blocks.
    pub fn flush(&mut self) {
        self.handle.driver.step(|state, now| state.core.flush_stream(now, self.stream.id));
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.handle.driver.step(|state, now| state.core.close_stream(now, self.stream.id));
    }
}

impl Receipts {
    /// The receipts of the next finished batch; `None` once the pipeline was dropped and every
    /// batch has finished. Cancel safe.
    pub async fn next(&mut self) -> Option<BatchReceipt> {
        poll_fn(|context| self.queue.poll_next(context)).await
    }
}

impl Stream for Receipts {
    type Item = BatchReceipt;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BatchReceipt>> {
        self.queue.poll_next(context)
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        self.queue.discard();
    }
}
