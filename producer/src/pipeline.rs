//! The pipelined form: nothing per job crosses a channel, only batches do.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::NewJob;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::options::PipelineOptions;
use crate::outcome::{BatchReceipt, EnqueueError, JobTicket};
use crate::producer::Handle;
use crate::shell::{Cell, Lane};

/// The half where jobs go in ([`Producer::pipeline`](crate::Producer::pipeline)). Dropping it sends what is open and lets
/// [`Receipts`] come to its end.
pub struct Pipeline {
    handle: Arc<Handle>,
    lane: Lane,
    options: PipelineOptions,
    next_ticket: u64,
    queue: Arc<Queue>,
}

/// The half where receipts come out, a batch at a time, in the order in which batches were begun. Dropping it throws
/// receipts away, read or not; jobs go in all the same, and nothing bounds their receipts any more.
pub struct Receipts {
    queue: Arc<Queue>,
    /// Keeps the links while receipts are awaited.
    _handle: Arc<Handle>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    cells: VecDeque<Arc<Cell>>,
    /// Jobs whose receipts were read.
    read: u64,
    /// No further batch comes.
    finished: bool,
    /// Nobody reads.
    unread: bool,
}

impl Pipeline {
    pub(crate) fn new(
        handle: Arc<Handle>,
        lane: Lane,
        options: PipelineOptions,
    ) -> (Pipeline, Receipts) {
        let queue = Arc::new(Queue::default());
        let receipts = Receipts { queue: queue.clone(), _handle: handle.clone() };
        (Pipeline { handle, lane, options, next_ticket: 0, queue }, receipts)
    }

    /// Hands in a job; its ticket is one more than the last one's, from 0. Waits while as much is in flight as may be, and
    /// while its path is being resolved, for the producer's `answer_timeout` at most. An error means that the job was not
    /// taken in, and no ticket used up; the pipeline stays good. What becomes of a job that was taken in is told by
    /// [`Receipts`]. Cancel safe: a job whose future was dropped was not taken in.
    pub async fn send(&mut self, job: NewJob) -> Result<JobTicket, EnqueueError> {
        let limit = self.options.receipts_jobs_max;
        if self.next_ticket.is_multiple_of(RECEIPTS_CHECK_EVERY) {
            if self.unread_jobs() >= limit as u64 / 2 {
                // Whoever reads may be part of the same task, and come to its turn only when this waits: a publisher that keeps up
                // never makes it wait.
                tokio::task::yield_now().await;
            }
            if self.unread_jobs() >= limit as u64 {
                return Err(EnqueueError::ReceiptsUnread { limit });
            }
        }
        let pushed = self.handle.shell.push(&self.lane, self.next_ticket, &job, false).await?;
        if let Some(cell) = pushed.tag {
            let mut waiting = self.queue.waiting.lock();
            if !waiting.unread {
                waiting.cells.push_back(cell);
                drop(waiting);
                self.queue.changed.notify_one();
            }
        }
        self.next_ticket += 1;
        Ok(JobTicket(self.next_ticket - 1))
    }

    /// Sends what is open without waiting for more jobs. Does not wait for receipts, and never blocks.
    pub fn flush(&mut self) {
        self.handle.shell.step(|inner, now| inner.core.flush_lane(now, self.lane.id));
    }

    fn unread_jobs(&self) -> u64 {
        let waiting = self.queue.waiting.lock();
        if waiting.unread { 0 } else { self.next_ticket - waiting.read }
    }
}

/// Every so many jobs a pipeline looks whether its receipts are read.
const RECEIPTS_CHECK_EVERY: u64 = 64;

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.handle.shell.step(|inner, now| inner.core.close_lane(now, self.lane.id));
        self.queue.waiting.lock().finished = true;
        self.queue.changed.notify_one();
    }
}

impl Receipts {
    /// The next batch's receipts; `None` once the pipeline was dropped and everything has its end. Cancel safe.
    pub async fn next(&mut self) -> Option<BatchReceipt> {
        let cell = loop {
            {
                let waiting = self.queue.waiting.lock();
                if let Some(cell) = waiting.cells.front() {
                    break cell.clone();
                }
                if waiting.finished {
                    return None;
                }
            }
            self.queue.changed.notified().await;
        };
        let receipt = cell.wait().await.clone();
        let mut waiting = self.queue.waiting.lock();
        waiting.cells.pop_front();
        waiting.read += receipt.len() as u64;
        Some(receipt)
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting.lock();
        waiting.unread = true;
        waiting.cells.clear();
    }
}
