//! What a link tells a running handler: until when its lease runs, and that it should stop.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::CancelReason;

/// One lane's signal, used again for its next job when no context of the last one is left.
#[derive(Debug, Default)]
pub(crate) struct LeaseSignal {
    /// 0 while it should run.
    reason: AtomicU8,
    /// Since the worker's start.
    ends_ms: AtomicU64,
    cancelled: Notify,
}

impl LeaseSignal {
    pub(crate) fn running_until(ends: Duration) -> LeaseSignal {
        let signal = LeaseSignal::default();
        signal.extend(ends);
        signal
    }

    /// Makes it the signal of another job.
    pub(crate) fn renew_for(&mut self, ends: Duration) {
        *self.reason.get_mut() = 0;
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
    fn a_signal_used_again_has_forgotten_its_last_job() {
        let mut signal = LeaseSignal::default();
        signal.cancel(CancelReason::LeaseLost);
        signal.renew_for(Duration::from_millis(7));
        assert_eq!(signal.reason(), None);
        assert_eq!(signal.ends(), Duration::from_millis(7));
    }
}
