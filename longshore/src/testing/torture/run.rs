//! One delivery of a job: its handler's future, its worker, and its lease as the worker knows it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use longshore_protocol::Token;
use longshore_protocol::messages::work::NewSettle;
use longshore_subscriber::CancelReason;
use longshore_subscriber::testing::{Ended, Lease};
use tokio::sync::Notify;

use super::host::HostRequest;
use super::publisher::{Delivery, Worker};

/// A handler under way.
pub(super) type Handling = Pin<Box<dyn Future<Output = Ended>>>;

/// Longest time that a run is held back for another attempt.
const HOLD_MAX: Duration = Duration::from_secs(600);

pub(super) struct Run {
    /// The job's number, from 0.
    pub(super) job: usize,
    /// The run of that job, from 1.
    pub(super) nth: u32,
    pub(super) token: Token,
    pub(super) attempt: u16,
    pub(super) worker: Worker,
    pub(super) lease: Lease,
    /// None once the handler has returned, or was dropped.
    pub(super) handling: Option<Handling>,
    pub(super) woken: Arc<Woken>,
    /// How often the handler has waited.
    pub(super) awaits: u32,
    pub(super) held: Option<Held>,
    /// It went on after it was held, and its worker has not noticed yet that it was.
    pub(super) unaware: bool,
    /// When the lease ends, by the worker's clock; none once the worker knows that it is over.
    pub(super) ends: Option<Duration>,
    length: Duration,
    pub(super) renew_at: Duration,
    /// When the worker links again.
    pub(super) link_at: Option<Duration>,
    /// When a stopping worker drops the handler.
    pub(super) drop_at: Option<Duration>,
    /// When the handler is reported as one that never ends.
    pub(super) must_end_at: Duration,
    /// What the handler has returned, until it is sent.
    pub(super) settle: Option<NewSettle>,
    /// Requests that wait for a link.
    pub(super) requests: VecDeque<HostRequest>,
    /// Checkpoints stored.
    pub(super) checkpoints: u64,
}

/// Why a run is not polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) until: Until,
    /// At the latest.
    pub(super) latest: Duration,
}

/// What a run waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    Time,
    /// A run of the job with a higher number has started.
    OtherStarted,
    /// A run of the job with a higher number has ended.
    OtherEnded,
}

impl Held {
    pub(super) fn until(until: Until, now: Duration) -> Held {
        Held { until, latest: now + HOLD_MAX }
    }

    pub(super) fn delay(now: Duration, delay: Duration) -> Held {
        Held { until: Until::Time, latest: now + delay }
    }
}

impl Run {
    pub(super) fn new(
        (job, nth): (usize, u32),
        delivery: &Delivery,
        worker: Worker,
        (lease, handling): (Lease, Handling),
        wake: Arc<Notify>,
        (now, must_end_at): (Duration, Duration),
    ) -> Run {
        let length = Duration::from_millis(u64::from(delivery.assignment.lease_ms));
        Run {
            job,
            nth,
            token: delivery.assignment.token,
            attempt: delivery.assignment.attempt,
            worker,
            lease,
            handling: Some(handling),
            woken: Arc::new(Woken { is_woken: AtomicBool::new(true), wake }),
            awaits: 0,
            held: None,
            unaware: false,
            ends: Some(now + length),
            length,
            renew_at: now + length / 3,
            link_at: None,
            drop_at: None,
            must_end_at,
            settle: None,
            requests: VecDeque::new(),
            checkpoints: 0,
        }
    }

    pub(super) fn is_runnable(&self) -> bool {
        self.handling.is_some() && self.held.is_none() && self.woken.is_woken()
    }

    /// Polls the handler. Dropped handlers stay pending.
    pub(super) fn poll(&mut self) -> Poll<Ended> {
        self.woken.is_woken.store(false, Ordering::Release);
        let waker = Waker::from(self.woken.clone());
        match &mut self.handling {
            Some(handling) => handling.as_mut().poll(&mut Context::from_waker(&waker)),
            None => Poll::Pending,
        }
    }

    /// The lease was renewed now.
    pub(super) fn renewed(&mut self, now: Duration) -> Duration {
        let ends = now + self.length;
        self.ends = Some(ends);
        self.renew_at = now + self.length / 3;
        self.lease.extend(ends);
        ends
    }

    /// The worker notices that the lease is over.
    pub(super) fn lose_lease(&mut self, reason: CancelReason) {
        self.ends = None;
        self.lease.cancel(reason);
        self.requests.drain(..).for_each(|request| request.end(Some(reason)));
    }

    /// When something is due.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let held = self.held.map(|held| held.latest);
        let runs = self.handling.is_some() && self.held.is_none();
        let running = runs.then_some(self.must_end_at);
        let lease = self.ends.map(|ends| match self.worker.link {
            Some(_) => self.renew_at.min(ends),
            None => ends,
        });
        // A held worker does nothing by itself.
        match held {
            Some(_) if self.worker.link.is_none() => held,
            _ => [held, running, lease, self.link_at, self.drop_at].into_iter().flatten().min(),
        }
    }
}

/// Marks a run to be polled.
pub(super) struct Woken {
    is_woken: AtomicBool,
    wake: Arc<Notify>,
}

impl Woken {
    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}
