//! How a worker is told to stop.

use tokio::sync::watch;

/// How far a worker is to go with stopping; it only ever rises.
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

    /// Takes no more jobs, gives back those that have not begun, lets running handlers finish
    /// within the grace, then cancels their contexts, lets them return within the cancel grace, and
    /// gives back the rest. Then it waits until publishers have answered the ends of all its jobs,
    /// for 5 s or until 5 s after the end of the grace. What a program does at SIGTERM. Returns at
    /// once: [`Subscription::run`](crate::Subscription::run) is what ends. Said before the run, the
    /// run ends as soon as it has begun.
    pub fn drain(&self) {
        self.raise(Stop::Drain);
    }

    /// Ends at once: handlers are dropped where they stand (those that block run on), links are
    /// closed, and leases go the way of a lost link: after 5 s, unless the publisher was told
    /// otherwise, their jobs run elsewhere, and an attempt that had begun is used up. What a
    /// program does at a second signal.
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
