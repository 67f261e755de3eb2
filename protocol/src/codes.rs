//! Why a job or a batch was refused. A refusal changes nothing, and its text suggests what to do.

use crate::fields::{codes, fields};
use crate::id::JobId;

codes! {
    /// Why a publisher refuses a job; nothing has changed there. [`QueueFull`](Refusal::QueueFull),
    /// [`NoSpace`](Refusal::NoSpace), [`MemoryFull`](Refusal::MemoryFull),
    /// [`OverQuota`](Refusal::OverQuota), [`KeysFull`](Refusal::KeysFull),
    /// [`NotUnique`](Refusal::NotUnique) and [`QueueClosed`](Refusal::QueueClosed) are temporary:
    /// try the same job again later. All others persist until the job or the publisher's
    /// configuration changes.
    Refusal, "refusal" {
        /// Another job with a different payload has the same id. Use a new id.
        IdConflict = 1, "IdConflict: the id belongs to a job with another payload; make a new id";
        /// The payload is over 16 MiB or the headers are over 8 KiB. Enqueue a reference instead.
        TooLarge = 2, "TooLarge: the payload is over 16 MiB or the headers over 8 KiB; \
                       enqueue a reference instead";
        /// The publisher has neither the path nor a default for it: its configuration changed, or
        /// the job was sent to the wrong publisher.
        NotHere = 3, "NotHere: this publisher has neither the path nor a default for it; \
                      declare one with --path or --default";
        /// Paths at and below `/sys` are reserved for Longshore. Use another path.
        Reserved = 4, "Reserved: paths below /sys are Longshore's own";
        /// The queue has the maximum of 100,000,000 open jobs. Try again when workers have caught
        /// up.
        QueueFull = 5, "QueueFull: the queue has reached its limit of jobs; \
                        try again once workers have caught up";
        /// The publisher's disk is full. Try again later: the publisher resumes when there is
        /// space.
        NoSpace = 6, "NoSpace: the publisher's disk has no room for it; \
                      free some, and it resumes by itself";
        /// An option is out of range or excluded by another, or the publisher's version does not
        /// know it.
        BadOptions = 7, "BadOptions: an option is out of its range, unknown to this publisher's \
                         version, or excluded by another: batches have no keys, parents or delay, \
                         and are at most 8 deep; jobs with parents have no delay; scheduled jobs \
                         have no parents, batch, delay, expiry or idempotency key";
        /// Another job of the same atomic batch was refused; its refusal is the reason.
        BatchRefused = 8, "BatchRefused: another job of this atomic batch was refused";
        /// The path is malformed, or the root, where no jobs are allowed.
        BadPath = 9, "BadPath: jobs need a path below the root";
        /// The publisher has the maximum of 100,000 queues. Use fewer paths.
        TooManyQueues = 10, "TooManyQueues: the publisher has reached its limit of queues; \
                             use fewer paths";
        /// An operator has closed the queue to new jobs. Try again once the pattern that closes it
        /// is opened.
        QueueClosed = 11, "QueueClosed: the queue takes no new jobs until the pattern that closes \
                           it is opened (longshore stat names it; longshore queue open PATTERN \
                           opens it)";
        /// The publisher has a live value at the path. Use another path, or stop publishing the
        /// value.
        IsValue = 12, "IsValue: this publisher has a live value at the path; \
                       enqueue to another path, or stop publishing the value";
        /// The publisher's jobs have reached the memory limit. Try again when workers have caught
        /// up and ended jobs have been deleted.
        MemoryFull = 13, "MemoryFull: the publisher's jobs have reached their memory limit \
                          (longshore stat has the metrics); let workers catch up, keep fewer ended \
                          jobs (longshore queue set), or start it with a larger --memory-max";
        /// The publisher's policy does not allow the client to enqueue at the path.
        Forbidden = 14, "Forbidden: the publisher's policy does not allow this client to enqueue \
                         at the path (longshore access check names the rule)";
        /// What waits on the path has reached the client's quota. Try again when workers have
        /// caught up; a quota of queues ends only with more of it.
        OverQuota = 15, "OverQuota: `queues`, `waiting_jobs` or `waiting_bytes` of the client's \
                         [[quota]] in the publisher's policy is used up at the path (longshore \
                         access show has the quotas, longshore stat the jobs); let workers catch \
                         up, use fewer paths, or raise it";
        /// The idempotency key belongs to a job of the queue with another payload. Use a new key.
        KeyConflict = 16, "KeyConflict: the idempotency key belongs to a job of this queue with \
                           another payload; make a new key";
        /// The publisher's keys, or the waits of its jobs for others, have reached their limits. Try
        /// again when some have ended.
        KeysFull = 17, "KeysFull: the publisher's keys have reached their memory limit, or its \
                        jobs wait for others 10,000,000 times; use fewer, let them last less long, \
                        and try again once some have ended";
        /// The job has keys, and this publisher declares another one as the home of the path. A
        /// producer resolves the path again and sends the job there.
        NotHome = 18, "NotHome: the job has keys, and this publisher declares another one as the \
                       home of the path (longshore home ls names it); send it there";
        /// Another job of the queue has the unique key, and the job asked to be refused then; or
        /// two jobs of an atomic batch have one unique key. Try again when that job no longer holds
        /// it.
        NotUnique = 19, "NotUnique: another job of this queue, or of this atomic batch, has the \
                         unique key; try again once that job no longer holds it";
        /// The job waits for one that does not exist here, or is a member of a batch that does not:
        /// it was never enqueued, is at another publisher, was removed after its end, or is no
        /// batch. Enqueue parents and batches first, at the same home.
        ParentGone = 20, "ParentGone: this publisher does not have a job that it waits for, or the \
                          batch that it joins; enqueue that first, below the same home, and let it \
                          be kept long enough";
        /// The batch is closed, or has ended: it gets no more members. Enqueue members before.
        BatchClosed = 21, "BatchClosed: the batch is closed or has ended, and gets no more \
                           members; add them before (longshore batch show has its state)";
        /// A parent of the job waits, or may come to wait, for the batch that the job is a member
        /// of. A member waits only for jobs of its batch, or ones from before it.
        Circular = 22, "Circular: the job would wait for a job that may wait for its batch; let \
                        members of a batch wait only for members of it and for jobs enqueued \
                        before the batch";
    }
}

codes! {
    /// Why a publisher refuses a whole batch. None of its jobs was enqueued. The producer handles
    /// most of these itself, by resending or by using another link.
    BatchRefusal, "batch refusal" {
        /// A batch before this one is missing. Batches must arrive in order.
        SequenceGap = 1, "SequenceGap: a batch before this one has not arrived; \
                          send the batches in order";
        /// The publisher has forgotten this producer (an hour without a link), or the batch is
        /// older than the last 64. It is unknown whether the batch was enqueued before.
        UnknownProducer = 2, "UnknownProducer: the publisher no longer knows whether it has this \
                              batch; treat its jobs as unknown";
        /// The bytes could not be decoded as a batch.
        Malformed = 3, "Malformed: the batch does not decode; \
                        client and publisher disagree about the protocol";
        /// The batch is over 10,000 jobs, 16 MiB of payload or 18 MiB encoded. Split it.
        TooLarge = 4, "TooLarge: the batch is over 10,000 jobs, 16 MiB of payload \
                       or 18 MiB encoded; split it";
        /// The publisher is being drained and accepts no new jobs at any path. Send the batch to
        /// another publisher; it used no sequence number.
        Draining = 5, "Draining: the publisher is being drained and takes no new jobs \
                       (longshore publisher drain NAME --undo ends that); \
                       send them to another publisher";
    }
}

fields! {
    /// The result of enqueueing one job of a batch.
    #[derive(Copy)]
    pub enum EnqueueOutcome, "enqueue outcome" {
        /// The job is new, and durable.
        0 = Created,
        /// The publisher already has the job: the same id, the same payload. Or it had the job,
        /// whose idempotency key has outlived it.
        1 = Existing,
        /// The job was refused.
        2 = Refused(refusal: Refusal),
        /// The job with this id has the same idempotency key and the same payload, or the same
        /// unique key. It may have ended, or been deleted, since.
        3 = ExistingKey(id: JobId),
    }
}

codes! {
    /// The result of one settle.
    SettleOutcome, "settle outcome" {
        /// It was applied.
        Accepted = 0, "accepted";
        /// The token no longer has a lease: the job was delivered to another worker, was cancelled,
        /// or has ended.
        StaleToken = 1, "StaleToken: the lease ended; \
                         the job belongs to another worker now or has ended";
        /// The result is over its limit; the lease continues.
        ResultTooLarge = 2, "ResultTooLarge: a result may have 1 MiB";
        /// Disk space is low, and one of the batch's results or errors is over 4 KiB: nothing of
        /// the batch was applied, and every lease continues. Send the small ones again at once, the
        /// others later.
        NoSpace = 3, "NoSpace: the publisher's disk has no room for results over 4 KiB; \
                      send it again later";
    }
}

codes! {
    /// Why a worker lost a lease before it settled.
    Revoked, "revocation" {
        /// The lease was not renewed, or its link was disconnected for too long.
        LeaseLost = 1, "the lease was lost";
        /// A user cancelled the job.
        Cancelled = 2, "the job was cancelled";
        /// The attempt exceeded its run timeout.
        TimedOut = 3, "the attempt ran for longer than its run timeout";
    }
}

codes! {
    /// The flow of a queue that an operator can stop.
    Gate, "gate of a queue" {
        /// Deliveries to workers: a paused queue still accepts jobs.
        Delivery = 1, "delivery";
        /// New jobs: a closed queue still delivers.
        Enqueue = 2, "enqueue";
    }
}

codes! {
    /// How durable an acknowledgement is. It is set when a publisher starts; every receipt includes
    /// it.
    Durability, "durability" {
        /// Synced to the publisher's disk (`fdatasync`) before the acknowledgement: it survives a
        /// power failure. The default.
        Fsync = 1, "fsync";
        /// Written, not synced: a power failure loses what the system had not yet written back.
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
        /// A worker has its lease.
        Running = 3, "running";
        /// Ended successfully.
        Completed = 4, "completed";
        /// In the dead letters.
        Dead = 5, "dead";
        /// Cancelled by a user.
        Cancelled = 6, "cancelled";
        /// Stored, and not run before it is confirmed.
        Prepared = 7, "prepared";
        /// No attempt had begun by its expiry time.
        Expired = 8, "expired";
        /// Due, and waiting for other jobs: for the turn of its order key.
        Blocked = 9, "blocked";
    }
}

impl JobState {
    /// True for a job that will not run again, unless a user revives it.
    pub fn is_end(self) -> bool {
        use JobState::{Cancelled, Completed, Dead, Expired};
        matches!(self, Completed | Dead | Cancelled | Expired)
    }
}

codes! {
    /// Why a job is a dead letter. All of these can be revived.
    DeathReason, "reason" {
        /// Its last attempt failed.
        AttemptsExhausted = 1, "attempts_exhausted";
        /// Three of its attempts, or its last one, lost their worker, which died, hung past its
        /// lease or was disconnected.
        WorkerLost = 2, "worker_lost";
        /// Its worker buried it, because no attempt could succeed.
        Buried = 3, "buried";
        /// It was delivered max(30, 3 × `max_attempts`) times, at most 255, and no attempt ever
        /// began.
        Undeliverable = 4, "undeliverable";
        /// Its payload does not match the checksum of its producer.
        PayloadDamaged = 5, "payload_damaged";
        /// It was prepared, and not confirmed within an hour.
        Unconfirmed = 6, "unconfirmed";
        /// Its last attempt exceeded its run timeout.
        TimedOut = 7, "timed_out";
        /// It is a batch, and members of it are dead.
        MemberDead = 8, "member_dead";
    }
}

codes! {
    /// How an attempt ended. A delivery that is released is not an attempt.
    AttemptOutcome, "outcome of an attempt" {
        /// It completed the job.
        Completed = 1, "completed";
        /// Its worker reported a failure.
        Failed = 2, "failed";
        /// Its worker reported that no attempt could succeed.
        Buried = 3, "buried";
        /// Its lease was lost after it had begun: its worker died, hung, or was disconnected.
        WorkerLost = 4, "worker_lost";
        /// It exceeded its run timeout.
        TimedOut = 5, "timed_out";
        /// A user cancelled the job while it ran.
        Cancelled = 6, "cancelled";
    }
}

codes! {
    /// The result of a checkpoint.
    CheckpointOutcome, "outcome of a checkpoint" {
        /// It is durable, now or from an earlier message with the same number.
        Accepted = 0, "accepted";
        /// A checkpoint before it has not arrived.
        Gap = 1, "Gap: a checkpoint before this one has not arrived; \
                  number them 1, 2, 3 … within an attempt";
        /// The token no longer has a lease.
        StaleToken = 2, "StaleToken: the lease ended; \
                         the job belongs to another worker now or has ended";
        /// It is over its limit.
        TooLarge = 3, "TooLarge: a checkpoint may have 64 KiB";
        /// Disk space is low; the same number may be sent again.
        NoSpace = 4, "NoSpace: the publisher's disk has no room for checkpoints; try again later";
    }
}

codes! {
    /// What happened to a job.
    JobChange, "change" {
        /// A producer enqueued it.
        Created = 1, "created";
        /// It was prepared and is now confirmed.
        Confirmed = 2, "confirmed";
        /// Its due time came.
        CameDue = 3, "came_due";
        /// It was delivered to a worker.
        Delivered = 4, "delivered";
        /// It completed.
        Completed = 5, "completed";
        /// An attempt failed.
        Failed = 6, "failed";
        /// Its worker released it.
        Released = 7, "released";
        /// Its worker snoozed it.
        Snoozed = 8, "snoozed";
        /// Its lease was lost.
        LeaseLost = 9, "lease_lost";
        /// An attempt exceeded its run timeout.
        TimedOut = 10, "timed_out";
        /// Its worker buried it.
        Buried = 11, "buried";
        /// A user cancelled it.
        Cancelled = 12, "cancelled";
        /// No attempt had begun by its expiry time.
        Expired = 13, "expired";
        /// It was not confirmed in time.
        Unconfirmed = 14, "unconfirmed";
        /// A user revived it.
        Revived = 15, "revived";
        /// A user deleted it.
        Dropped = 16, "dropped";
        /// It had ended, and its retention time was over.
        Forgotten = 17, "forgotten";
        /// Its entry could not be read back.
        Damaged = 18, "damaged";
        /// An older job of its order key came due before it was delivered: its turn went back.
        Blocked = 19, "blocked";
        /// The turn of its order key came.
        Unblocked = 20, "unblocked";
        /// A job with the same unique key took its place before it was delivered.
        Replaced = 21, "replaced";
        /// It is a batch, and all its members have ended, some of them dead.
        MemberDead = 22, "member_dead";
    }
}
