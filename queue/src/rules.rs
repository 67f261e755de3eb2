//! The limits and defaults that decide outcomes. A [`Start`](crate::Start) records them in the log
//! and in snapshots, so replay decides by the numbers of the original run, whatever the version of
//! the program.
//!
//! Only values change between versions. A new binary's values apply from its first start on. The
//! limits of messages are no rules: a longer message never decodes.

use longshore_protocol::limits::{
    BATCH_PAYLOAD_BYTES_MAX, CHECKPOINT_BYTES_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX,
    CREDITS_MAX, LIMITS_MAX, LINK_PATTERNS_MAX, PAUSES_MAX, RESULT_BYTES_MAX, SCHEDULES_MAX,
    TOKENS_MAX,
};
use longshore_protocol::{
    Backoff, Decode, Encode, FrameWriter, Idempotency, JobOptions, QueueSettings, Reader, WireError,
};

const HOUR_MS: u64 = 60 * 60 * 1_000;

macro_rules! rules {
    ($($(#[doc = $doc:literal])* $name:ident = $value:expr;)*) => {
        /// The limits and defaults that decide outcomes.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Rules {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// The wait after a failed attempt, where neither job nor queue sets it.
            pub backoff: Backoff,
        }

        impl Rules {
            /// Those of this version.
            pub const STANDARD: Rules = Rules { $($name: $value,)* backoff: Backoff::Quartic };
        }

        impl Encode for Rules {
            fn encode(&self, out: &mut FrameWriter) {
                $(out.u64(self.$name);)*
                self.backoff.encode(out);
            }
        }

        impl Decode for Rules {
            fn decode(r: &mut Reader) -> Result<Rules, WireError> {
                Ok(Rules { $($name: r.u64()?,)* backoff: Backoff::decode(r)? })
            }
        }
    };
}

rules! {
    /// Most jobs of one queue that have not ended; the next one is `QueueFull`.
    jobs_per_queue = 100_000_000;
    /// Most jobs in all, ended ones too, at most 2³² − 2; the next one is `QueueFull`.
    jobs = 4_000_000_000;
    /// Most queues; a job for one more is `TooManyQueues`.
    queues = 100_000;
    /// Most known sessions, including those of the last hour; one more link is refused.
    sessions = 100_000;
    /// Most bytes of memory for answers that sessions may request again; beyond it no new session
    /// is accepted.
    answer_bytes = 512 * 1024 * 1024;
    /// Most bytes of memory for idempotency keys, of which each takes 160: 1,677,721 keys. A job
    /// with one more is `KeysFull`.
    key_bytes = 256 * 1024 * 1024;
    /// Most order keys of jobs that exist; a job with one more is `KeysFull`.
    order_keys = 1_000_000;
    /// Most fair keys of jobs that exist, a key counted at each of its priorities; a job with one
    /// more is `KeysFull`.
    fair_keys = 1_000_000;
    /// Most limit keys of jobs that exist, or whose rates remember them; a job with one more is
    /// `KeysFull`.
    limit_keys = 1_000_000;
    /// Most waits of jobs for parents; a job with one more is `KeysFull`.
    parents = 10_000_000;
    /// Most limits; one more is refused.
    limits = LIMITS_MAX as u64;
    /// Most schedules; one more is refused.
    schedules = SCHEDULES_MAX as u64;
    /// Most patterns of all subscriptions on one link; a subscription with more is refused.
    patterns_per_link = LINK_PATTERNS_MAX as u64;
    /// Most patterns that are paused, and most that are closed.
    pauses = PAUSES_MAX as u64;
    /// Most credits of one subscription; those beyond are not counted.
    credits = CREDITS_MAX as u64;
    /// Most leases and credits of one session; credits beyond are not counted.
    leases_per_session = TOKENS_MAX as u64;
    /// Most payload bytes of a batch.
    batch_payload_bytes = BATCH_PAYLOAD_BYTES_MAX as u64;
    /// Most bytes of a result.
    result_bytes = RESULT_BYTES_MAX as u64;
    /// Most bytes of a checkpoint.
    checkpoint_bytes = CHECKPOINT_BYTES_MAX as u64;
    /// Most checkpoints of a job; the oldest go.
    checkpoints = CHECKPOINTS_MAX as u64;
    /// Most bytes of all checkpoints of a job; the oldest go.
    checkpoints_bytes = CHECKPOINTS_BYTES_MAX as u64;
    /// Attempts retained in a job's history; the oldest go.
    attempts_retained = longshore_protocol::limits::ATTEMPTS_MAX as u64;
    /// Most jobs that one `Tick` makes ready, expires and deletes, of each; most that expire, or
    /// wait on, in one command instead of being delivered; most that one command moves into or out
    /// of the room of limit keys; and most that one step of an action by filter changes.
    step_jobs = 10_000;
    /// Most jobs that one subscription receives in its turn while others wait for theirs.
    turn_jobs = 64;
    /// Jobs that one step of an action by filter may skip after its first match.
    step_rows = 100_000;
    /// Batches of each kind whose answers a session retains.
    answers_retained = 64;
    /// Lost leases of which a session retains the queue, so that refused settles are counted for
    /// the right queue.
    revoked_leases_retained = 4_096;
    /// Deliveries that a job may lose before its worker starts it: this, or three for each attempt
    /// if that is more; never over 255.
    unstarted_deliveries_max = 30;
    /// Attempts of a job that may lose their worker: with the last of them it is dead. Each may
    /// have killed a worker, so all are counted since the job was enqueued or revived.
    worker_losses = 3;
    /// How much each start raises the tokens: more than any run loses if its log is not synced.
    tokens_per_start = 1 << 32;
    /// How long a prepared job waits to be confirmed, in milliseconds of monotonic time.
    prepared_ttl_ms = HOUR_MS;
    /// How long a session is known after its link has gone, in milliseconds of monotonic time.
    session_ttl_ms = HOUR_MS;
    /// How long an idempotency key lasts, in milliseconds of wall time, where its job does not set
    /// it.
    idempotency_ms = Idempotency::FOR_MS;
    /// Attempts of a job, where neither job nor queue sets them.
    max_attempts = JobOptions::MAX_ATTEMPTS as u64;
    /// A lease's length in milliseconds, where neither job nor queue sets it.
    lease_ms = JobOptions::LEASE_MS as u64;
    /// How long an attempt may run, in milliseconds, where neither job nor queue sets it.
    run_timeout_ms = JobOptions::RUN_TIMEOUT_MS;
    /// How long ended jobs stay readable, in milliseconds, where neither job nor queue sets it.
    keep_ms = JobOptions::KEEP_MS;
    /// Most completed, cancelled and expired jobs that a queue keeps where it does not set another
    /// number.
    ended_per_queue = QueueSettings::KEEP_JOBS;
    /// How long dead letters stay, in milliseconds, where their queue does not set it.
    keep_dead_ms = QueueSettings::KEEP_DEAD_MS;
}
