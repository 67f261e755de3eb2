//! What a worker has done so far.

/// Counts of one worker's run. Ends of jobs are counted when their publisher has said that they
/// count: not before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// Jobs completed.
    pub completed: u64,
    /// Attempts failed, panics among them.
    pub failed: u64,
    /// Handlers that panicked; each is a failed attempt too.
    pub panicked: u64,
    /// Jobs buried by their handler, or because their payload did not decode or their result was
    /// too large.
    pub buried: u64,
    /// Jobs given back: by their handler, or because the worker stopped.
    pub released: u64,
    /// Jobs put off by their handler.
    pub snoozed: u64,
    /// Deliveries of jobs that had been delivered before, here or elsewhere.
    pub redelivered: u64,
    /// Payloads that were not what their producer wrote; each is a failed attempt too.
    pub damaged: u64,
    /// Checkpoints stored.
    pub checkpoints: u64,
    /// Ends of jobs, checkpoints, and questions after them that a publisher refused with
    /// `StaleToken`: another worker's result stands, or the job had ended.
    pub stale_refused: u64,
    /// Leases lost while the job was here: revoked, gone after a reconnect, or not renewed in time.
    pub leases_lost: u64,
    /// Ends of jobs whose answer no publisher gave; after a report these jobs may run again.
    pub unanswered: u64,
    /// Jobs here now: running, waiting for a lane, or ended and not yet sent.
    pub in_hand: u64,
    /// Handlers running now.
    pub running: u64,
    /// Publishers that the subscription is alive at.
    pub publishers_alive: u64,
    /// Publishers that it is to be held at.
    pub publishers: u64,
}

/// What a worker has done when it has stopped.
pub type WorkerReport = WorkerStats;
