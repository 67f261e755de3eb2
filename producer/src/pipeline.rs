//! Pipelines: only batches cross between tasks, never single jobs.

use std::sync::Arc;

use longshore_protocol::NewJob;
use tokio::time::Instant;

use crate::driver::StreamHandle;
use crate::handle::ProducerHandle;
use crate::options::PipelineOptions;
use crate::outcome::{BatchReceipt, EnqueueError, JobTicket};
use crate::receipt_queue::ReceiptQueue;

/// The sending half of a pipeline ([`Producer::pipeline`](crate::Producer::pipeline)). Dropping it
/// sends open batches, and ends [`Receipts`] after the last receipt.
pub struct Pipeline {
    handle: Arc<ProducerHandle>,
    stream: StreamHandle,
    options: PipelineOptions,
    next_ticket: u64,
    receipts: Arc<ReceiptQueue>,
}

/// The receiving half of a pipeline: returns receipts, a batch at a time, in the order of the
/// publishers' answers. The receipts of one publisher are in the order of their tickets; those of
/// several are not, so match a job by its [ticket](crate::JobReceipt::ticket) or its id. Dropping
/// it discards receipts, read or not; jobs are still sent, and their receipts are unbounded.
pub struct Receipts {
    queue: Arc<ReceiptQueue>,
    /// Keeps the links while receipts are awaited.
    _handle: Arc<ProducerHandle>,
}

impl Pipeline {
    pub(crate) fn new(
        handle: Arc<ProducerHandle>,
        stream: StreamHandle,
        options: PipelineOptions,
        receipts: Arc<ReceiptQueue>,
    ) -> (Pipeline, Receipts) {
        let reader = Receipts { queue: receipts.clone(), _handle: handle.clone() };
        (Pipeline { handle, stream, options, next_ticket: 0, receipts }, reader)
    }

    /// Enqueues a job, and returns its ticket, which counts from 0. Waits while too many receipts
    /// are unread, for at most the producer's `answer_timeout`; then while the pipeline has reached
    /// its in-flight limits or the path is being resolved, for as long again. An error means that
    /// the job was not accepted and used no ticket; the pipeline remains usable. The outcome of an
    /// accepted job arrives at [`Receipts`]. Cancel safe: if the future is dropped, the job was not
    /// accepted.
    pub async fn send(&mut self, job: NewJob) -> Result<JobTicket, EnqueueError> {
        let limit = self.options.receipts_jobs_max;
        if self.receipts.is_full(limit) {
            let deadline = Instant::now() + self.handle.driver.options.answer_timeout;
            self.receipts.wait_for_room(limit, deadline).await?;
        }
        self.handle.driver.push(&self.stream, self.next_ticket, &job, false).await?;
        self.next_ticket += 1;
        Ok(JobTicket(self.next_ticket - 1))
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
        self.queue.next().await
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        self.queue.discard();
    }
}
