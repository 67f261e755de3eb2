//! Stopping a worker.

use tokio::sync::watch;

/// How far a worker is to stop. Only ever rises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stop {
    No,
    Drain,
    Now,
}

/// Stops a worker, from anywhere. Cheap to clone; dropping it stops nothing.
#[derive(Clone, Debug)]
pub struct ShutdownHandle {
    stop: watch::Sender<Stop>,
}

impl ShutdownHandle {
    pub(crate) fn new() -> ShutdownHandle {
        ShutdownHandle { stop: watch::Sender::new(Stop::No) }
    }

    /// Drains the worker: takes no more jobs, releases jobs that have not begun, lets running
    /// handlers finish within the grace, then cancels their contexts, lets them return within the
    /// cancel grace, and releases the rest. Then it waits until publishers have answered all
    /// settles, for 5 s or until 5 s after the end of the grace. Meant for SIGTERM. Returns at
    /// once: [`Subscription::run`](crate::Subscription::run) returns at the end. If called before
    /// the run, the run ends as soon as it begins.
    pub fn drain(&self) {
        self.raise(Stop::Drain);
    }

    /// Stops at once: drops handlers (blocking handlers run on), for which it waits up to 250 ms,
    /// closes links, and abandons leases. After the reconnect grace (5 s unless the publisher is
    /// configured otherwise) the jobs run elsewhere, and an attempt that had begun is used up.
    /// Meant for a second signal.
    pub fn stop_now(&self) {
        self.raise(Stop::Now);
    }

    fn raise(&self, to: Stop) {
        self.stop.send_if_modified(|stop| {
            let rises = to > *stop;
            *stop = to.max(*stop);
            rises
        });
    }

    pub(crate) fn stop(&self) -> Stop {
        *self.stop.borrow()
    }

    /// Waits until it is at least `least`. Cancel safe.
    pub(crate) async fn reached(&self, least: Stop) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.stop.subscribe().wait_for(|stop| *stop >= least).await;
    }
}
