//! The progress of a journal: what its writer publishes to the other threads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::Poisoned;

/// The state that commit waiters see.
#[derive(Clone, Debug)]
pub(crate) struct CommitStatus {
    pub(crate) committed: u64,
    pub(crate) poisoned: Option<Poisoned>,
}

/// Shared by the journal's handle, its writer and its housekeeper.
pub(crate) struct CommitProgress {
    status: watch::Sender<CommitStatus>,
    committed: AtomicU64,
    failed: AtomicBool,
    pub(crate) uncommitted_bytes: AtomicUsize,
    /// Bytes of log written since the start.
    pub(crate) log_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) commits: AtomicU64,
}

impl CommitProgress {
    pub(crate) fn new(committed: u64) -> CommitProgress {
        CommitProgress {
            status: watch::Sender::new(CommitStatus { committed, poisoned: None }),
            committed: AtomicU64::new(committed),
            failed: AtomicBool::new(false),
            uncommitted_bytes: AtomicUsize::new(0),
            log_bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            commits: AtomicU64::new(0),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<CommitStatus> {
        self.status.subscribe()
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Publishes that everything up to `index` is durable. Does nothing after any failure.
    pub(crate) fn advance(&self, index: u64) {
        self.status.send_if_modified(|status| {
            if status.poisoned.is_some() {
                return false;
            }
            status.committed = index;
            self.committed.store(index, Ordering::Release);
            true
        });
    }

    /// Publishes a failure; the first one stays.
    pub(crate) fn poison(&self, why: Poisoned) {
        self.status.send_modify(|status| {
            status.poisoned.get_or_insert(why);
            self.failed.store(true, Ordering::Release);
        });
    }

    pub(crate) fn check(&self) -> Result<(), Poisoned> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.status.borrow().poisoned.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn no_commit_is_reported_after_the_first_failure() {
        let failure = |what| Poisoned {
            what,
            file: PathBuf::from("watermark"),
            error: Arc::new(io::Error::other("broken")),
        };
        let progress = CommitProgress::new(3);
        progress.advance(4);
        progress.poison(failure("syncing"));
        // A commit that was running when another thread's sync failed.
        progress.advance(5);
        progress.poison(failure("writing"));
        assert_eq!((progress.committed(), progress.subscribe().borrow().committed), (4, 4));
        assert_eq!(progress.check().unwrap_err().what, "syncing");
    }
}
