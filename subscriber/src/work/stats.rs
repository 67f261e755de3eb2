//! The counters of a worker.

/// The counters of one worker's run. A settle is counted once its publisher has accepted it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// Jobs completed.
    pub completed: u64,
    /// Attempts failed, including panics.
    pub failed: u64,
    /// Handlers that panicked; each is a failed attempt too.
    pub panicked: u64,
    /// Jobs buried by their handler, or because their payload did not decode or their result was
    /// too large.
    pub buried: u64,
    /// Jobs released: by their handler, or because the worker stopped.
    pub released: u64,
    /// Jobs snoozed by their handler.
    pub snoozed: u64,
    /// Deliveries of jobs that had been delivered before, here or elsewhere.
    pub redelivered: u64,
    /// Payloads whose checksum differs from the producer's; each is a failed attempt too.
    pub damaged: u64,
    /// Checkpoints stored.
    pub checkpoints: u64,
    /// Settles, checkpoints and checkpoint queries that a publisher refused with `StaleToken`:
    /// another worker's result counts, or the job had ended.
    pub stale_refused: u64,
    /// Leases that ended while the job was here: lost, cancelled, timed out, gone after a
    /// reconnect, or not renewed in time.
    pub leases_revoked: u64,
    /// Settles without an answer; after the final report these jobs may run again.
    pub unanswered: u64,
    /// Jobs held now: running, waiting for a handler, or settled and not yet sent.
    pub jobs_held: u64,
    /// Handlers running now.
    pub running: u64,
    /// Publishers where the subscription is alive.
    pub publishers_alive: u64,
    /// All publishers of the subscription.
    pub publishers: u64,
}

/// The final counters of a worker.
pub type WorkerReport = WorkerStats;
