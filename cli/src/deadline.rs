//! `--timeout`: how long a command may take, without the time that its user takes to answer.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A limit that can be paused and restarted. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Deadline {
    limit: Option<Duration>,
    /// None while it is paused, and without a limit.
    at: watch::Sender<Option<Instant>>,
}

impl Deadline {
    /// A deadline `limit` from now; never without a limit.
    pub(crate) fn start(limit: Option<Duration>) -> Deadline {
        let deadline = Deadline { limit, at: watch::Sender::new(None) };
        deadline.restart();
        deadline
    }

    /// The limit, if there is one.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Stops the time.
    pub(crate) fn pause(&self) {
        self.at.send_replace(None);
    }

    /// Starts again, with the whole limit.
    pub(crate) fn restart(&self) {
        self.at.send_replace(self.limit.and_then(|limit| Instant::now().checked_add(limit)));
    }

    /// The limit, once the deadline has passed.
    pub(crate) fn expired(&self) -> Option<Duration> {
        let at = *self.at.borrow();
        self.limit.filter(|_| at.is_some_and(|at| at <= Instant::now()))
    }

    /// Resolves when the deadline has passed, with its limit.
    pub(crate) async fn passed(&self) -> Duration {
        let mut changes = self.at.subscribe();
        loop {
            let at = *changes.borrow_and_update();
            tokio::select! {
                () = sleep_until(at) => return self.limit.unwrap_or_default(),
                changed = changes.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_time_of_a_pause_does_not_count() {
        let limit = Duration::from_secs(3_600);
        let deadline = Deadline::start(Some(limit));
        let at = |deadline: &Deadline| *deadline.at.borrow();
        let first = at(&deadline).unwrap();
        deadline.clone().pause();
        assert_eq!(at(&deadline), None, "clones share the pause");
        deadline.restart();
        assert!(at(&deadline).unwrap() >= first, "the whole limit begins again");

        assert_eq!(deadline.expired(), None);
        let passed = Deadline::start(Some(Duration::ZERO));
        assert_eq!(passed.passed().await, Duration::ZERO);
        assert_eq!(passed.expired(), Some(Duration::ZERO));
        passed.pause();
        assert_eq!(passed.expired(), None);
        let never = Deadline::start(None);
        never.restart();
        assert_eq!((at(&never), never.expired()), (None, None));
    }
}
