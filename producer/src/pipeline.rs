//! The pipelined form: nothing per job crosses a channel, only batches do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_protocol::NewJob;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::options::PipelineOptions;
use crate::outcome::{BatchReceipt, EnqueueError, JobTicket};
use crate::producer::Handle;
use crate::shell::Lane;

/// The half where jobs go in ([`Producer::pipeline`](crate::Producer::pipeline)). Dropping it sends
/// what is open and lets [`Receipts`] come to its end.
pub struct Pipeline {
    handle: Arc<Handle>,
    lane: Lane,
    options: PipelineOptions,
    next_ticket: u64,
    completed: Arc<Completed>,
}

/// The half where receipts come out, a batch at a time, in the order in which publishers answer
/// them. Those of one publisher come in the order of their tickets; those of several do not, so a
/// job is recognised by its [ticket](crate::JobReceipt::ticket) or its id. Dropping it discards
/// receipts, read or not; jobs go in all the same, and nothing bounds their receipts any more.
pub struct Receipts {
    completed: Arc<Completed>,
    /// Keeps the links while receipts are awaited.
    _handle: Arc<Handle>,
}

/// Batches of one pipeline that have come to their end, until their receipts are read.
#[derive(Default)]
pub(crate) struct Completed {
    batches: Mutex<Batches>,
    /// Jobs of `batches`: what `send` compares with its limit, without the lock.
    unread_jobs: AtomicUsize,
    /// A batch has come to its end, or the last one has.
    added: Notify,
    /// Receipts were read, or will not be.
    room: Notify,
}

#[derive(Default)]
struct Batches {
    unread: VecDeque<BatchReceipt>,
    /// No further batch comes.
    finished: bool,
    /// [`Receipts`] was dropped.
    discarded: bool,
}

impl Completed {
    /// A batch has come to its end.
    pub(crate) fn add(&self, receipt: BatchReceipt) {
        let mut batches = self.batches.lock();
        if !batches.discarded {
            self.unread_jobs.fetch_add(receipt.len(), Ordering::Relaxed);
            batches.unread.push_back(receipt);
            drop(batches);
            self.added.notify_one();
        }
    }

    /// Every batch has come to its end, and no further one comes.
    pub(crate) fn finish(&self) {
        self.batches.lock().finished = true;
        self.added.notify_one();
    }

    fn is_full(&self, limit: usize) -> bool {
        self.unread_jobs.load(Ordering::Relaxed) >= limit
    }

    /// Waits until fewer than `limit` jobs have receipts that wait to be read.
    async fn wait_for_room(&self, limit: usize, time_up: Instant) -> Result<(), EnqueueError> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Enabled before the check, so that a read between check and wait is not missed.
            room.as_mut().enable();
            if !self.is_full(limit) {
                return Ok(());
            }
            if timeout_at(time_up, room).await.is_err() {
                return Err(EnqueueError::ReceiptsUnread { limit });
            }
        }
    }
}

impl Pipeline {
    pub(crate) fn new(
        handle: Arc<Handle>,
        lane: Lane,
        options: PipelineOptions,
        completed: Arc<Completed>,
    ) -> (Pipeline, Receipts) {
        let receipts = Receipts { completed: completed.clone(), _handle: handle.clone() };
        (Pipeline { handle, lane, options, next_ticket: 0, completed }, receipts)
    }

    /// Enqueues a job; its ticket is one more than the last one's, from 0. Waits while receipts are
    /// to be read first, while as much is in flight as may be, and while its path is being
    /// resolved: for the producer's `answer_timeout` at most for the receipts, and as long again
    /// for the others. An error means that the job was not taken in, and no ticket used up; the
    /// pipeline stays good. What becomes of a job that was taken in is reported by [`Receipts`].
    /// Cancel safe: a job whose future was dropped was not taken in.
    pub async fn send(&mut self, job: NewJob) -> Result<JobTicket, EnqueueError> {
        let limit = self.options.receipts_jobs_max;
        if self.completed.is_full(limit) {
            let time_up = Instant::now() + self.handle.shell.options.answer_timeout;
            self.completed.wait_for_room(limit, time_up).await?;
        }
        self.handle.shell.push(&self.lane, self.next_ticket, &job, false).await?;
        self.next_ticket += 1;
        Ok(JobTicket(self.next_ticket - 1))
    }

    /// Sends what is open without waiting for more jobs. Does not wait for receipts, and never
    /// blocks.
    pub fn flush(&mut self) {
        self.handle.shell.step(|inner, now| inner.core.flush_lane(now, self.lane.id));
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.handle.shell.step(|inner, now| inner.core.close_lane(now, self.lane.id));
    }
}

impl Receipts {
    /// The receipts of the next batch that has come to its end; `None` once the pipeline was
    /// dropped and everything has its end. Cancel safe.
    pub async fn next(&mut self) -> Option<BatchReceipt> {
        loop {
            {
                let mut batches = self.completed.batches.lock();
                if let Some(receipt) = batches.unread.pop_front() {
                    self.completed.unread_jobs.fetch_sub(receipt.len(), Ordering::Relaxed);
                    self.completed.room.notify_one();
                    return Some(receipt);
                }
                if batches.finished {
                    return None;
                }
            }
            self.completed.added.notified().await;
        }
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        let mut batches = self.completed.batches.lock();
        batches.discarded = true;
        batches.unread.clear();
        self.completed.unread_jobs.store(0, Ordering::Relaxed);
        self.completed.room.notify_one();
    }
}
