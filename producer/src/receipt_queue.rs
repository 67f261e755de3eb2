//! The queue of a pipeline's receipts, between the driver and their reader.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::outcome::{BatchReceipt, EnqueueError};

/// The unread receipts of one pipeline.
#[derive(Default)]
pub(crate) struct ReceiptQueue {
    batches: Mutex<Batches>,
    /// Jobs in `batches`, which `send` compares with its limit without the lock.
    unread_jobs: AtomicUsize,
    /// A receipt was added, or the last one was.
    added: Notify,
    /// Receipts were read, or will not be.
    room: Notify,
}

#[derive(Default)]
struct Batches {
    unread: VecDeque<BatchReceipt>,
    /// No further receipt arrives.
    finished: bool,
    /// The reader was dropped.
    discarded: bool,
}

impl ReceiptQueue {
    pub(crate) fn add(&self, receipt: BatchReceipt) {
        let mut batches = self.batches.lock();
        if !batches.discarded {
            self.unread_jobs.fetch_add(receipt.len(), Ordering::Relaxed);
            batches.unread.push_back(receipt);
            drop(batches);
            self.added.notify_one();
        }
    }

    /// The last receipt was added.
    pub(crate) fn finish(&self) {
        self.batches.lock().finished = true;
        self.added.notify_one();
    }

    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.unread_jobs.load(Ordering::Relaxed) >= limit
    }

    /// Waits until fewer than `limit` jobs have unread receipts.
    pub(crate) async fn wait_for_room(
        &self,
        limit: usize,
        deadline: Instant,
    ) -> Result<(), EnqueueError> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Enabled before the check, so that a read between check and wait is not missed.
            room.as_mut().enable();
            if !self.is_full(limit) {
                return Ok(());
            }
            if timeout_at(deadline, room).await.is_err() {
                return Err(EnqueueError::ReceiptsUnread { limit });
            }
        }
    }

    /// Waits for the next receipt; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&self) -> Option<BatchReceipt> {
        loop {
            {
                let mut batches = self.batches.lock();
                if let Some(receipt) = batches.unread.pop_front() {
                    self.unread_jobs.fetch_sub(receipt.len(), Ordering::Relaxed);
                    self.room.notify_one();
                    return Some(receipt);
                }
                if batches.finished {
                    return None;
                }
            }
            self.added.notified().await;
        }
    }

    /// The reader was dropped: discards receipts from now on.
    pub(crate) fn discard(&self) {
        let mut batches = self.batches.lock();
        batches.discarded = true;
        batches.unread.clear();
        self.unread_jobs.store(0, Ordering::Relaxed);
        self.room.notify_one();
    }
}
