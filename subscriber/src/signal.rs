//! What a link and a running handler tell each other: until when the lease runs, and that the handler should stop; and how far
//! it is.

use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use longshore_protocol::limits::PROGRESS_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::CancelReason;
use crate::desk::Desk;
use crate::failure::cut;

/// One lane's signal, used again for its next job when no context of the last one is left.
#[derive(Debug, Default)]
pub(crate) struct LeaseSignal {
    /// 0 while it should run.
    reason: AtomicU8,
    /// Since the worker's start.
    ends_ms: AtomicU64,
    cancelled: Notify,
    /// What the handler has said of how far it is.
    progress: Mutex<Option<Word>>,
    /// Whoever asks something for the job waits for this first.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Where the job's publisher is to be reached. Contexts may outlive it.
    pub(crate) desk: Weak<Desk>,
}

/// How far a handler is.
#[derive(Debug)]
struct Word {
    percent: u8,
    message: String,
    told: bool,
}

impl LeaseSignal {
    pub(crate) fn at(desk: Weak<Desk>) -> LeaseSignal {
        LeaseSignal { desk, ..LeaseSignal::default() }
    }

    /// One like this for another job, which some context of this one's job does not see.
    pub(crate) fn another(&self, ends: Duration) -> LeaseSignal {
        let signal = LeaseSignal::at(self.desk.clone());
        signal.extend(ends);
        signal
    }

    /// Makes it the signal of another job.
    pub(crate) fn renew_for(&mut self, ends: Duration) {
        *self.reason.get_mut() = 0;
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
        let code = code_of(reason);
        if self.reason.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.cancelled.notify_waiters();
        }
    }

    pub(crate) fn reason(&self) -> Option<CancelReason> {
        match self.reason.load(Ordering::Acquire) {
            0 => None,
            1 => Some(CancelReason::LeaseLost),
            2 => Some(CancelReason::Cancelled),
            3 => Some(CancelReason::TimedOut),
            _ => Some(CancelReason::Shutdown),
        }
    }

    /// The handler says how far it is. True when the link has been told of all that was said before.
    pub(crate) fn say_progress(&self, percent: u8, message: &str) -> bool {
        let mut progress = self.progress.lock();
        let was_told = progress.as_ref().is_none_or(|word| word.told);
        let message = cut(message.to_owned(), PROGRESS_BYTES_MAX);
        *progress = Some(Word { percent: percent.min(100), message, told: false });
        was_told
    }

    /// What is to be told of it.
    pub(crate) fn tell_progress(&self) -> Option<(u8, String)> {
        let mut progress = self.progress.lock();
        let word = progress.as_mut().filter(|word| !word.told)?;
        word.told = true;
        Some((word.percent, word.message.clone()))
    }

    /// What was said is to be told again. True when something was.
    pub(crate) fn tell_progress_again(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.as_mut().map(|word| word.told = false).is_some()
    }

    pub(crate) async fn cancelled(&self) -> CancelReason {
        let mut notified = pin!(self.cancelled.notified());
        loop {
            // Enabled before the look, so that a cancellation between look and wait is not missed.
            notified.as_mut().enable();
            if let Some(reason) = self.reason() {
                return reason;
            }
            notified.as_mut().await;
            notified.set(self.cancelled.notified());
        }
    }
}

fn code_of(reason: CancelReason) -> u8 {
    match reason {
        CancelReason::LeaseLost => 1,
        CancelReason::Cancelled => 2,
        CancelReason::TimedOut => 3,
        CancelReason::Shutdown => 4,
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
        assert_eq!(signal.tell_progress(), None);
        assert!(signal.say_progress(10, "reading"));
        assert!(!signal.say_progress(200, &"é".repeat(PROGRESS_BYTES_MAX)), "not told yet");
        assert_eq!(signal.tell_progress(), Some((100, "é".repeat(PROGRESS_BYTES_MAX / 2))));
        assert_eq!(signal.tell_progress(), None);
        assert!(signal.tell_progress_again());
        assert!(signal.tell_progress().is_some());
        assert!(signal.say_progress(11, "reading"));
    }

    #[test]
    fn every_reason_has_a_code_of_its_own() {
        use CancelReason::{Cancelled, LeaseLost, Shutdown, TimedOut};
        for reason in [LeaseLost, Cancelled, TimedOut, Shutdown] {
            let signal = LeaseSignal::default();
            signal.cancel(reason);
            assert_eq!(signal.reason(), Some(reason));
        }
    }

    #[test]
    fn a_signal_used_again_has_forgotten_its_last_job() {
        let mut signal = LeaseSignal::default();
        signal.cancel(CancelReason::LeaseLost);
        signal.say_progress(50, "half of the last job");
        signal.renew_for(Duration::from_millis(7));
        assert_eq!(signal.reason(), None);
        assert!(!signal.tell_progress_again());
        assert_eq!(signal.ends(), Duration::from_millis(7));
    }
}
