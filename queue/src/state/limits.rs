//! How much a publisher's queues may hold. Each limit has a refusal of its own.

use longshore_protocol::QueueSettings;
use longshore_protocol::limits::SUBSCRIPTIONS_MAX;

/// How much the state may hold. The same in every run over one log, or replay would decide otherwise than the first run did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most jobs of one queue that have not ended; the next one is `QueueFull`.
    pub(super) jobs_per_queue: u64,
    /// Most jobs in all, ended ones too: a job's place is a `u32`. The next one is `QueueFull`.
    pub(super) jobs: u32,
    /// Most queues; a job for one more is `TooManyQueues`.
    pub(super) queues: usize,
    /// Most sessions known, those of the last hour too; one more link is refused.
    pub(super) sessions: usize,
    /// Most bytes of memory that the answers which sessions may ask for again take; beyond it no new session is accepted.
    pub(super) answer_bytes: u64,
    /// Most subscriptions on one link; one more is refused.
    pub(super) subscriptions_per_link: usize,
    /// Most completed, cancelled and expired jobs that a queue keeps where it does not say otherwise.
    pub(super) ended_per_queue: u64,
    /// Most jobs that one `Tick` makes due, expires and forgets, of each; most that expire in one command instead of being
    /// handed out; and most that an action by filter is done to.
    pub(super) step_jobs: usize,
}

impl Limits {
    pub(super) const STANDARD: Limits = Limits {
        jobs_per_queue: 100_000_000,
        jobs: 4_000_000_000,
        queues: 100_000,
        sessions: 100_000,
        answer_bytes: 512 * 1024 * 1024,
        subscriptions_per_link: SUBSCRIPTIONS_MAX,
        ended_per_queue: QueueSettings::KEEP_JOBS,
        step_jobs: 10_000,
    };
}

/// How long a prepared job waits to be confirmed, in milliseconds of monotonic time: an hour.
pub(super) const PREPARED_KEPT_MS: u64 = 60 * 60 * 1_000;
/// How long a session is known after its link has gone, in milliseconds of monotonic time: an hour.
pub(super) const SESSION_KEPT_MS: u64 = 60 * 60 * 1_000;
/// Batches of each kind whose answers a session's row keeps.
pub(super) const ANSWERS_KEPT: usize = 64;
/// Leases that a session lost and may still try to settle: its row keeps the queues of so many, to count refusals where
/// they belong.
pub(super) const LOST_KEPT: usize = 4_096;
/// Deliveries that a job may lose before its worker starts it: this, or three for each attempt if that is more; never over 255.
pub(super) const LOST_DELIVERIES_MAX: u32 = 30;
/// Attempts of a job that may lose their worker: with the last of them it is dead. Each may have killed a worker, so they are
/// counted since the job was enqueued or revived, whatever came between them.
pub(super) const WORKER_LOSSES_MAX: u8 = 3;
/// By how much each start raises the tokens: more than any run loses when its log is not synced.
pub(super) const TOKENS_PER_START: u64 = 1 << 32;
/// Most jobs that one subscription is handed in its turn while others wait for theirs.
pub(super) const TURN_JOBS_MAX: u64 = 64;
/// Rows that one page of a listing may pass over, so that a rare match does not stall the queues.
pub(super) const PAGE_ROWS_MAX: u32 = 100_000;
