//! The queue of a pipeline's receipts, between the driver and their reader.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::outcome::BatchReceipt;

/// A sender that waits this long for receipts to be read writes a warning.
const UNREAD_WARNING: Duration = Duration::from_secs(30);

/// The unread receipts of one pipeline.
#[derive(Default)]
pub(crate) struct ReceiptQueue {
    batches: Mutex<Batches>,
    /// Jobs in `batches`, which `send` compares with its limit without the lock.
    unread_jobs: AtomicUsize,
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
    /// The task that waits for the next receipt.
    reader: Option<Waker>,
}

impl ReceiptQueue {
    pub(crate) fn add(&self, receipt: BatchReceipt) {
        let mut batches = self.batches.lock();
        if !batches.discarded {
            self.unread_jobs.fetch_add(receipt.len(), Ordering::Relaxed);
            batches.unread.push_back(receipt);
            wake_reader(batches);
        }
    }

    /// The last receipt was added.
    pub(crate) fn finish(&self) {
        let mut batches = self.batches.lock();
        batches.finished = true;
        wake_reader(batches);
    }

    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.unread_jobs.load(Ordering::Relaxed) >= limit
    }

    /// Waits until fewer than `limit` jobs have unread receipts. Cancel safe.
    pub(crate) async fn wait_for_room(&self, limit: usize) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Enabled before the check, so that a read between check and wait is not missed.
            room.as_mut().enable();
            if !self.is_full(limit) {
                return;
            }
            if timeout(UNREAD_WARNING, room).await.is_err() {
                tracing::warn!(limit, "a pipeline waits for its receipts to be read");
            }
        }
    }

    /// The next receipt; `None` after the last one. There is one reader.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<BatchReceipt>> {
        let mut batches = self.batches.lock();
        if let Some(receipt) = batches.unread.pop_front() {
            self.unread_jobs.fetch_sub(receipt.len(), Ordering::Relaxed);
            self.room.notify_one();
            return Poll::Ready(Some(receipt));
        }
        if batches.finished {
            return Poll::Ready(None);
        }
        match &mut batches.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
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

/// Wakes the reader, outside of the lock.
fn wake_reader(mut batches: MutexGuard<'_, Batches>) {
    let reader = batches.reader.take();
    drop(batches);
    if let Some(reader) = reader {
        reader.wake();
    }
}
