//! Why a job or a batch was refused. A refusal changes nothing and says what to do.

use crate::fields::{codes, fields};

codes! {
    /// Why a publisher does not take a job. Nothing was changed. [`QueueFull`](Refusal::QueueFull),
    /// [`NoSpace`](Refusal::NoSpace), [`MemoryFull`](Refusal::MemoryFull) and
    /// [`QueueClosed`](Refusal::QueueClosed) pass: try the same job again later. All others stay
    /// until the job or the publisher is set up otherwise.
    Refusal, "refusal" {
        /// The job's id is taken by a job with another payload. Make a new id.
        IdConflict = 1, "IdConflict: the id belongs to a job with another payload; make a new id";
        /// The payload is over 16 MiB or the headers are over 8 KiB. Enqueue a reference instead.
        TooLarge = 2, "TooLarge: the payload is over 16 MiB or the headers over 8 KiB; enqueue a reference instead";
        /// The publisher has neither the path nor a default for it: it was set up otherwise, or the
        /// wrong one was asked.
        NotHere = 3, "NotHere: this publisher has neither the path nor a default for it; declare one with --path or --default";
        /// Paths at and below `/sys` are Longshore's own. Use another path.
        Reserved = 4, "Reserved: paths below /sys are Longshore's own";
        /// The queue holds as many open jobs as it may: 100,000,000. Try again once workers have
        /// caught up.
        QueueFull = 5, "QueueFull: the queue holds as many jobs as it may; try again once workers have caught up";
        /// The publisher's disk has no room for it. Try again later: once there is room, it resumes
        /// by itself.
        NoSpace = 6, "NoSpace: the publisher's disk has no room for it; free some, and it resumes by itself";
        /// An option is out of its range, or the publisher's version does not know it.
        BadOptions = 7, "BadOptions: an option is out of its range, or this publisher's version does not know it";
        /// Another job of the same atomic batch was refused; that one says why.
        BatchRefused = 8, "BatchRefused: another job of this atomic batch was refused";
        /// The path is the root, which holds no jobs, or malformed.
        BadPath = 9, "BadPath: jobs need a path below the root";
        /// The publisher holds as many queues as it may: 100,000. Use fewer paths.
        TooManyQueues = 10, "TooManyQueues: the publisher holds as many queues as it may; use fewer paths";
        /// Somebody has closed the queue to new jobs. Try again once the pattern that closes it is
        /// opened.
        QueueClosed = 11, "QueueClosed: the queue takes no new jobs until the pattern that closes it is opened (longshore stat names it; longshore queue open PATTERN opens it)";
        /// The publisher has a live value at the path. Use another path, or stop publishing the
        /// value.
        IsValue = 12, "IsValue: this publisher has a live value at the path; enqueue to another path, or stop publishing the value";
        /// The publisher's jobs take all the memory that they may. Try again once workers have
        /// caught up, and what is kept of ended jobs has gone.
        MemoryFull = 13, "MemoryFull: the publisher's jobs take all the memory that they may (longshore stat has the metrics); let workers catch up, keep fewer ended jobs (longshore queue set), or start it with a larger --memory-max";
    }
}

codes! {
    /// Why a publisher does not take a whole batch. None of its jobs was taken. The producer meets
    /// most of these itself: by resending, by another link.
    BatchRefusal, "batch refusal" {
        /// A batch before this one is missing. Batches are to come in order.
        SequenceGap = 1, "SequenceGap: a batch before this one has not arrived; send the batches in order";
        /// The publisher has forgotten this producer (an hour without a link), or its batch is
        /// older than the last 64. Whether the batch was taken before is not known.
        UnknownProducer = 2, "UnknownProducer: the publisher no longer knows whether it has this batch; treat its jobs as unknown";
        /// The batch's bytes are not a batch.
        Malformed = 3, "Malformed: the batch does not decode; client and publisher disagree about the protocol";
        /// The batch is over 10,000 jobs, 16 MiB of payload or 18 MiB encoded. Split it.
        TooLarge = 4, "TooLarge: the batch is over 10,000 jobs, 16 MiB of payload or 18 MiB encoded; split it";
        /// The publisher is being drained: whatever the path, it takes no new jobs. Send the batch
        /// to another one; it used up no number.
        Draining = 5, "Draining: the publisher is being drained and takes no new jobs (longshore publisher drain NAME --undo ends that); send them to another publisher";
    }
}

fields! {
    /// What became of one job of a batch.
    #[derive(Copy)]
    pub enum EnqueueOutcome, "enqueue outcome" {
        /// It is new, and durable.
        0 = Created,
        /// The publisher has it already: the same id, the same payload.
        1 = Existing,
        /// It was not taken.
        2 = Refused(refusal: Refusal),
    }
}

codes! {
    /// What became of one settle.
    SettleOutcome, "settle outcome" {
        /// It counted.
        Accepted = 0, "accepted";
        /// The token no longer holds a lease: the job was given to another worker, cancelled, or
        /// has ended.
        StaleToken = 1, "StaleToken: the lease ended; the job belongs to another worker now or has ended";
        /// The result is over its limit; the lease still runs.
        ResultTooLarge = 2, "ResultTooLarge: a result may have 1 MiB";
        /// The disk is short of room, and one of the batch's results or errors is over 4 KiB: none
        /// of the batch counted, and every lease still runs. Send the small ones again at once, the
        /// others later.
        NoSpace = 3, "NoSpace: the publisher's disk has no room for results over 4 KiB; send it again later";
    }
}

codes! {
    /// Why a lease was taken from a worker while it ran.
    Revoked, "revocation" {
        /// The lease went unrenewed, or its link was away for too long.
        LeaseLost = 1, "the lease was lost";
        /// A user cancelled the job.
        Cancelled = 2, "the job was cancelled";
        /// The attempt ran for longer than it may.
        TimedOut = 3, "the attempt ran for longer than its run timeout";
    }
}

codes! {
    /// What of a queue can be stopped.
    Gate, "gate of a queue" {
        /// Jobs to workers: a paused queue goes on accepting.
        Delivery = 1, "delivery";
        /// New jobs: a closed queue goes on delivering.
        Enqueue = 2, "enqueue";
    }
}

codes! {
    /// How durable an acknowledgement is. A publisher is started with one or the other; every
    /// receipt says which.
    Durability, "durability" {
        /// Synced to the publisher's disk (`fdatasync`) before the acknowledgement: it outlives a
        /// power cut. The default.
        Fsync = 1, "fsync";
        /// Written, not synced: a power cut loses what the system had not yet written back.
        None = 2, "none";
    }
}

codes! {
    /// The state of a job.
    JobState, "job state" {
        /// Not due yet, or waiting for a retry.
        Scheduled = 1, "scheduled";
        /// Waiting for a worker.
        Ready = 2, "ready";
        /// A worker holds its lease.
        Running = 3, "running";
        /// Ended well.
        Completed = 4, "completed";
        /// In the dead letters.
        Dead = 5, "dead";
        /// Cancelled by a user.
        Cancelled = 6, "cancelled";
        /// Written, and not to be run until it is confirmed.
        Prepared = 7, "prepared";
        /// No attempt had begun by the time it was to expire.
        Expired = 8, "expired";
    }
}

impl JobState {
    /// True of a job that will not run any more, unless somebody revives it.
    pub fn is_end(self) -> bool {
        use JobState::{Cancelled, Completed, Dead, Expired};
        matches!(self, Completed | Dead | Cancelled | Expired)
    }
}

codes! {
    /// Why a job is in the dead letters. All of these can be revived.
    DeathReason, "reason" {
        /// Its last attempt failed, with none left.
        AttemptsExhausted = 1, "attempts_exhausted";
        /// Three of its attempts lost their worker, which died, hung past its lease or was cut off;
        /// or its last attempt did.
        WorkerLost = 2, "worker_lost";
        /// Its worker said that no attempt will ever succeed.
        Buried = 3, "buried";
        /// It was delivered max(30, 3 × `max_attempts`) times, at most 255, and no attempt ever
        /// began.
        Undeliverable = 4, "undeliverable";
        /// Its payload is not what its producer wrote.
        PayloadDamaged = 5, "payload_damaged";
        /// It was prepared, and nobody confirmed it within an hour.
        Unconfirmed = 6, "unconfirmed";
        /// Its last attempt ran for longer than its run timeout.
        TimedOut = 7, "timed_out";
    }
}

codes! {
    /// How an attempt ended. Deliveries that were given back are not attempts.
    AttemptOutcome, "outcome of an attempt" {
        /// It did the job.
        Completed = 1, "completed";
        /// Its worker said that it failed.
        Failed = 2, "failed";
        /// Its worker said that no attempt would ever succeed.
        Buried = 3, "buried";
        /// Its lease was lost after it had begun: its worker died, hung, or was cut off.
        WorkerLost = 4, "worker_lost";
        /// It ran for longer than it may.
        TimedOut = 5, "timed_out";
        /// A user cancelled the job while it ran.
        Cancelled = 6, "cancelled";
    }
}

codes! {
    /// What became of a checkpoint.
    CheckpointOutcome, "outcome of a checkpoint" {
        /// It is durable; or it was before: the same number again.
        Accepted = 0, "accepted";
        /// A checkpoint before it has not arrived.
        Gap = 1, "Gap: a checkpoint before this one has not arrived; number them 1, 2, 3 … within an attempt";
        /// The token no longer holds a lease.
        StaleToken = 2, "StaleToken: the lease ended; the job belongs to another worker now or has ended";
        /// It is over its limit.
        TooLarge = 3, "TooLarge: a checkpoint may have 64 KiB";
        /// The disk is short of room; the same number may be sent again.
        NoSpace = 4, "NoSpace: the publisher's disk has no room for checkpoints; try again later";
    }
}

codes! {
    /// What happened to a job.
    JobChange, "change" {
        /// A producer handed it in.
        Created = 1, "created";
        /// A prepared one was confirmed.
        Confirmed = 2, "confirmed";
        /// Its time came.
        CameDue = 3, "came_due";
        /// It was handed to a worker.
        Delivered = 4, "delivered";
        /// It was done.
        Completed = 5, "completed";
        /// An attempt failed.
        Failed = 6, "failed";
        /// Its worker gave it back.
        Released = 7, "released";
        /// Its worker put it off.
        Snoozed = 8, "snoozed";
        /// Its lease was lost.
        LeaseLost = 9, "lease_lost";
        /// An attempt ran for longer than it may.
        TimedOut = 10, "timed_out";
        /// Its worker buried it.
        Buried = 11, "buried";
        /// A user cancelled it.
        Cancelled = 12, "cancelled";
        /// Nobody had begun it by the time it was to expire.
        Expired = 13, "expired";
        /// Nobody had confirmed it in time.
        Unconfirmed = 14, "unconfirmed";
        /// A user revived it.
        Revived = 15, "revived";
        /// A user deleted it.
        Dropped = 16, "dropped";
        /// It had been kept for as long as it was to be.
        Forgotten = 17, "forgotten";
        /// Its entry could not be read back.
        Damaged = 18, "damaged";
    }
}
