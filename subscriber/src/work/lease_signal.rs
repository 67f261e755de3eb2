//! Shared by a link and a running handler: the end of the lease, the cancellation, and the
//! progress.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use longshore_protocol::limits::PROGRESS_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::CancelReason;
use crate::work::handler::failure::cut;
use crate::work::lease_host::LeaseHost;
use crate::work::session::WorkerSession;

/// The signal of a job. A handler task reuses it for its next job if no context of the last one is
/// left.
#[derive(Debug)]
pub(crate) struct LeaseSignal {
    /// The reason to stop; `None` while the handler should run.
    reason: watch::Sender<Option<CancelReason>>,
    /// There is a reason: cheaper to read.
    is_cancelled: AtomicBool,
    /// The task of the handler, which ends a handler that does not stop.
    task: AtomicWaker,
    /// Counted from the worker's start.
    ends_ms: AtomicU64,
    /// The progress that the handler reported last.
    progress: Mutex<Option<ProgressReport>>,
    /// Blocking handlers of the job that run, or wait for a thread.
    threads: AtomicU32,
    /// The last of them has ended.
    threads_ended: Notify,
    /// Serializes the requests of the job's contexts.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// The session, to reach the job's publisher. Contexts may outlive it.
    pub(crate) session: Weak<dyn LeaseHost>,
}

/// The progress of a handler.
#[derive(Debug)]
struct ProgressReport {
    percent: u8,
    message: String,
    sent: bool,
}

impl Default for LeaseSignal {
    fn default() -> LeaseSignal {
        LeaseSignal::for_session(Weak::<WorkerSession>::new())
    }
}

impl LeaseSignal {
    pub(crate) fn for_session(session: Weak<dyn LeaseHost>) -> LeaseSignal {
        LeaseSignal {
            reason: watch::Sender::default(),
            is_cancelled: AtomicBool::new(false),
            task: AtomicWaker::new(),
            ends_ms: AtomicU64::default(),
            progress: Mutex::default(),
            threads: AtomicU32::new(0),
            threads_ended: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            session,
        }
    }

    /// A new signal for another job; contexts of this job do not see it.
    pub(crate) fn for_next_job(&self, ends: Duration) -> LeaseSignal {
        let signal = LeaseSignal::for_session(self.session.clone());
        signal.extend(ends);
        signal
    }

    /// Reuses the signal for another job.
    pub(crate) fn reset_for_job(&mut self, ends: Duration) {
        if self.reason().is_some() {
            self.reason = watch::Sender::default();
            *self.is_cancelled.get_mut() = false;
        }
        *self.progress.get_mut() = None;
        self.extend(ends);
    }

    /// The lease runs until `ends`, counted from the worker's start.
    pub(crate) fn extend(&self, ends: Duration) {
        let ms = u64::try_from(ends.as_millis()).unwrap_or(u64::MAX);
        self.ends_ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn ends(&self) -> Duration {
        Duration::from_millis(self.ends_ms.load(Ordering::Relaxed))
    }

    /// Cancels the handler. The first reason stays.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        self.reason.send_if_modified(|own| own.replace(own.unwrap_or(reason)).is_none());
        self.is_cancelled.store(true, Ordering::Release);
        self.task.wake();
    }

    /// True once the job was revoked from the handler, other than by a shutdown; until then the
    /// task is woken for it.
    pub(crate) fn poll_revoked(&self, task: &Waker) -> bool {
        self.task.register(task);
        // At the end of a shutdown the supervisor drops handlers, and releases their jobs.
        self.is_cancelled.load(Ordering::Acquire)
            && self.reason().is_some_and(|reason| reason != CancelReason::Shutdown)
    }

    pub(crate) fn reason(&self) -> Option<CancelReason> {
        *self.reason.borrow()
    }

    /// Stores the progress. Returns true if the link has sent all earlier progress.
    pub(crate) fn report_progress(&self, percent: u8, message: &str) -> bool {
        let mut progress = self.progress.lock();
        let was_sent = progress.as_ref().is_none_or(|report| report.sent);
        let message = cut(message.to_owned(), PROGRESS_BYTES_MAX);
        *progress = Some(ProgressReport { percent: percent.min(100), message, sent: false });
        was_sent
    }

    /// Takes the progress if it was not sent yet.
    pub(crate) fn take_unsent_progress(&self) -> Option<(u8, String)> {
        let mut progress = self.progress.lock();
        let report = progress.as_mut().filter(|report| !report.sent)?;
        report.sent = true;
        Some((report.percent, report.message.clone()))
    }

    /// Marks the progress as unsent, for a new link. Returns true if there is any.
    pub(crate) fn mark_progress_unsent(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.as_mut().map(|report| report.sent = false).is_some()
    }

    /// True while a blocking handler of the job runs: its attempt may have ended without it.
    pub(crate) fn has_threads(&self) -> bool {
        self.threads.load(Ordering::Acquire) > 0
    }

    /// Waits for the end of the job's blocking handlers. Cancel safe.
    pub(crate) async fn threads_ended(&self) {
        while self.has_threads() {
            self.threads_ended.notified().await;
        }
        // The next waiter, if there is one. Otherwise a later one checks once more.
        self.threads_ended.notify_one();
    }

    pub(crate) async fn cancelled(&self) -> CancelReason {
        let mut changes = self.reason.subscribe();
        let reason = changes.wait_for(Option::is_some).await.ok().and_then(|reason| *reason);
        match reason {
            Some(reason) => reason,
            // The sender is borrowed, so it was not dropped.
            None => std::future::pending().await,
        }
    }
}

/// A blocking handler, from its call to its end; or to its drop, if it never began.
#[derive(Debug)]
pub(crate) struct HandlerThread(Arc<LeaseSignal>);

impl HandlerThread {
    pub(crate) fn new(signal: Arc<LeaseSignal>) -> HandlerThread {
        signal.threads.fetch_add(1, Ordering::AcqRel);
        HandlerThread(signal)
    }
}

impl Drop for HandlerThread {
    fn drop(&mut self) {
        if self.0.threads.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.threads_ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_waiter_receives_the_first_reason() {
        let signal = Arc::new(LeaseSignal::default());
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let signal = signal.clone();
                tokio::spawn(async move { signal.cancelled().await })
            })
            .collect();
        tokio::task::yield_now().await;
        signal.cancel(CancelReason::Cancelled);
        signal.cancel(CancelReason::Shutdown);
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), CancelReason::Cancelled);
        }
        assert_eq!(signal.cancelled().await, CancelReason::Cancelled);
    }

    #[test]
    fn the_latest_progress_is_sent_once_within_its_limits() {
        let signal = LeaseSignal::default();
        assert_eq!(signal.take_unsent_progress(), None);
        assert!(signal.report_progress(10, "reading"));
        assert!(!signal.report_progress(200, &"é".repeat(PROGRESS_BYTES_MAX)), "not sent yet");
        assert_eq!(signal.take_unsent_progress(), Some((100, "é".repeat(PROGRESS_BYTES_MAX / 2))));
        assert_eq!(signal.take_unsent_progress(), None);
        assert!(signal.mark_progress_unsent());
        assert!(signal.take_unsent_progress().is_some());
        assert!(signal.report_progress(11, "reading"));
    }

    #[test]
    fn a_reused_signal_has_forgotten_its_last_job() {
        let mut signal = LeaseSignal::default();
        signal.cancel(CancelReason::LeaseLost);
        signal.report_progress(50, "half of the last job");
        signal.reset_for_job(Duration::from_millis(7));
        assert_eq!(signal.reason(), None);
        assert!(!signal.mark_progress_unsent());
        assert_eq!(signal.ends(), Duration::from_millis(7));
    }
}
