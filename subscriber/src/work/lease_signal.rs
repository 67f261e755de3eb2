//! What a link and a running handler tell each other: until when the lease runs, and that the
//! handler should stop; and how far it is.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_protocol::limits::PROGRESS_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::CancelReason;
use crate::work::handler::failure::cut;
use crate::work::session::WorkerSession;

/// One lane's signal, used again for its next job when no context of the last one is left.
#[derive(Debug, Default)]
pub(crate) struct LeaseSignal {
    /// Why it should stop; none while it should run.
    reason: watch::Sender<Option<CancelReason>>,
    /// Since the worker's start.
    ends_ms: AtomicU64,
    /// What the handler has said of how far it is.
    progress: Mutex<Option<ProgressReport>>,
    /// Whoever asks something for the job waits for this first.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Where the job's publisher is to be reached. Contexts may outlive it.
    pub(crate) session: Weak<WorkerSession>,
}

/// How far a handler is.
#[derive(Debug)]
struct ProgressReport {
    percent: u8,
    message: String,
    sent: bool,
}

impl LeaseSignal {
    pub(crate) fn for_session(session: Weak<WorkerSession>) -> LeaseSignal {
        LeaseSignal { session, ..LeaseSignal::default() }
    }

    /// One like this for another job, which some context of this one's job does not see.
    pub(crate) fn for_next_job(&self, ends: Duration) -> LeaseSignal {
        let signal = LeaseSignal::for_session(self.session.clone());
        signal.extend(ends);
        signal
    }

    /// Makes it the signal of another job.
    pub(crate) fn reset_for_job(&mut self, ends: Duration) {
        if self.reason().is_some() {
            self.reason = watch::Sender::default();
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

    /// Says once why to stop; the first reason stays.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        self.reason.send_if_modified(|own| own.replace(own.unwrap_or(reason)).is_none());
    }

    pub(crate) fn reason(&self) -> Option<CancelReason> {
        *self.reason.borrow()
    }

    /// The handler says how far it is. True when the link has been told of all that was said
    /// before.
    pub(crate) fn report_progress(&self, percent: u8, message: &str) -> bool {
        let mut progress = self.progress.lock();
        let was_sent = progress.as_ref().is_none_or(|report| report.sent);
        let message = cut(message.to_owned(), PROGRESS_BYTES_MAX);
        *progress = Some(ProgressReport { percent: percent.min(100), message, sent: false });
        was_sent
    }

    /// What is to be told of it.
    pub(crate) fn take_unsent_progress(&self) -> Option<(u8, String)> {
        let mut progress = self.progress.lock();
        let report = progress.as_mut().filter(|report| !report.sent)?;
        report.sent = true;
        Some((report.percent, report.message.clone()))
    }

    /// What was said is to be told again. True when something was.
    pub(crate) fn mark_progress_unsent(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.as_mut().map(|report| report.sent = false).is_some()
    }

    pub(crate) async fn cancelled(&self) -> CancelReason {
        let mut changes = self.reason.subscribe();
        let reason = changes.wait_for(Option::is_some).await.ok().and_then(|reason| *reason);
        match reason {
            Some(reason) => reason,
            // Its sender is borrowed: it has not gone.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn everyone_who_waits_learns_the_first_reason() {
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
    fn the_newest_word_is_told_once_within_its_limits() {
        let signal = LeaseSignal::default();
        assert_eq!(signal.take_unsent_progress(), None);
        assert!(signal.report_progress(10, "reading"));
        assert!(!signal.report_progress(200, &"é".repeat(PROGRESS_BYTES_MAX)), "not told yet");
        assert_eq!(signal.take_unsent_progress(), Some((100, "é".repeat(PROGRESS_BYTES_MAX / 2))));
        assert_eq!(signal.take_unsent_progress(), None);
        assert!(signal.mark_progress_unsent());
        assert!(signal.take_unsent_progress().is_some());
        assert!(signal.report_progress(11, "reading"));
    }

    #[test]
    fn a_signal_used_again_has_forgotten_its_last_job() {
        let mut signal = LeaseSignal::default();
        signal.cancel(CancelReason::LeaseLost);
        signal.report_progress(50, "half of the last job");
        signal.reset_for_job(Duration::from_millis(7));
        assert_eq!(signal.reason(), None);
        assert!(!signal.mark_progress_unsent());
        assert_eq!(signal.ends(), Duration::from_millis(7));
    }
}
