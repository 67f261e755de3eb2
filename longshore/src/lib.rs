//! Longshore moves jobs from the programs that produce them to the workers that run them, over plain TCP. This crate is the
//! one to depend on: it holds everything that a program needs.
//!
//! A **publisher** holds queues on its disk and pushes jobs to workers; a small replicated **resolver** knows which publisher
//! holds which path. `longshore up` starts both in one process. Then:
//!
//! - hand in jobs with a [`Producer`],
//! - run them with a [`Worker`],
//! - follow live values with a [`Subscriber`],
//! - look into queues and act on them with [`Queues`],
//! - publish and follow live [`values`],
//! - hold queues inside a program of yours with a [`Publisher`], and find publishers with a [`ReadClient`].
//!
//! Three promises:
//!
//! 1. **Nothing acknowledged is lost.** An acknowledgement names the durability that it stands for; by default that is fsync
//!    on the publisher that holds the job.
//! 2. **One owner at a time.** Every delivery carries a lease token; a result with a stale token is refused, and its sender is told.
//!    Execution is at-least-once; acceptance is exactly-once, by the publisher that holds the job.
//! 3. **A hang becomes a crash, and a crash becomes a retry.** Heartbeats, leases, flush timeouts and batch-sized request timeouts
//!    turn whatever stops answering into something that is disconnected and recovered from.
//!
//! [`recipes`] has short programs to copy, [`testing`] a whole system in one process for your tests, whose clock they move.
//!
//! | Feature | Default | What is there |
//! |---|---|---|
//! | `producer` | yes | [`Producer`], [`Queues`] and what they take and give |
//! | `worker` | yes | [`Worker`], [`Job`], [`JobContext`], [`middleware`]; [`Subscriber`] |
//! | `publisher` | yes | [`Publisher`], [`ValuePublisher`], [`journal`] |
//! | `testing` | no | [`testing`]; needs the other three |
//!
//! Paths, jobs, ids and the resolver's clients are always there.
//!
//! `docs/ARCHITECTURE.md` has the map of the code, `docs/PROTOCOL.md` the bytes on the wire.

pub mod prelude;
pub mod recipes;
#[cfg(feature = "testing")]
pub mod testing;

/// What travels between processes: paths, ids, jobs, messages, and their limits.
pub use longshore_protocol as protocol;

/// Looking at a publisher's data directory from outside: what it holds, whether it is whole, its records, a copy of it.
#[cfg(feature = "publisher")]
pub mod journal {
    pub use longshore_queue::inspect::*;
    pub use longshore_queue::{Command, Expired, Now, Start};
}

/// Live values: a [`ValuePublisher`], or a [`Publisher`] beside its queues, publishes them; a [`Subscriber`] follows them, and may write to them.
pub mod values {
    pub use longshore_protocol::messages::values::Policy;
    pub use longshore_protocol::{Text, Value, ValueError, ValueMap};
    /// Longshore's own figures, below `/sys`.
    #[cfg(feature = "publisher")]
    #[doc(hidden)]
    pub mod figures {
        pub use longshore_publisher::{
            FIGURES_EVERY, FIGURES_MAX, FigureSource, Taken, figures_path, serve_figures,
        };
    }
    #[cfg(feature = "publisher")]
    pub use longshore_publisher::{
        Batch, FlushReport, PublishError, Published, Requested, UpdateError, ValueDefault,
        ValueOptions, ValuePublisher, ValuePublisherError, ValuePublisherOptions, Values, Write,
        Writes, value_limits as limits,
    };
    #[cfg(feature = "worker")]
    pub use longshore_subscriber::{
        CallError, DurableValue, Event, KeyedEvent, SubscribeError, SubscribeOptions, Subscriber,
        SubscriberOptions, SubscriptionKey, Updates, UpdatesSink, ValueState, ValueSubscription,
        WriteError,
    };
}

/// What stands around a worker's handler: tower layers, for [`Subscription::layer`], and what they see. Whatever is written for
/// tower (`tower::ServiceBuilder`, its timeout, its limits) fits.
#[cfg(feature = "worker")]
pub mod middleware {
    pub use longshore_subscriber::{
        Blocking, Completion, HandlerFailed, InPlace, JobRequest, JobService,
    };
    pub use tower_layer::{Layer, layer_fn};
    pub use tower_service::Service;
}

#[cfg(feature = "producer")]
pub use longshore_producer::{
    ActEnd, ActedOn, Answered, BatchOptions, BatchReceipt, ConfirmError, DeadGroupAt, DeadGroupsAt,
    EnqueueError, Failover, Feed, FeedFrom, FeedItem, FeedLoss, FeedNews, FeedPositions, Gathered,
    JobAt, JobEnd, JobLookupError, JobName, JobNameError, JobPage, JobPages, JobReceipt, JobTicket,
    Missing, NamedAct, Pipeline, PipelineOptions, Producer, ProducerOptions, Queues, QueuesError,
    QueuesOptions, Receipt, Receipts, ReplaceError, WaitError, new_id, new_job,
};
/// How jobs are chosen, what is done to them, and what publishers answer: the types that [`Queues`] takes and gives.
pub use longshore_protocol::messages::work::{
    Action, ActionReport, DeadGroup, DeadGroups, FeedEvent, FeedEvents, FeedPosition, Filter,
    JobCounts, JobInfo, JobsQuery, PauseReport, PublisherStatus, QueueStat, QuietEnd,
    QuietedWorker, ReplaceOutcome, Room, WorkerPattern, WorkerPatternError,
};
pub use longshore_protocol::{
    AttemptOutcome, Backoff, DeathReason, Due, Durability, Fingerprint, FingerprintError, Glob,
    GlobError, Headers, JobChange, JobError, JobId, JobOptions, JobRef, JobState, LinkTiming,
    NewJob, Path, PathError, PublicationKind, PublisherId, PublisherInfo, QueueSettings, Refusal,
    ResolverTiming, Terms, Token, TraceContext,
};
#[cfg(feature = "publisher")]
pub use longshore_publisher::{OpenError, Publisher, PublisherFailed, PublisherOptions};
#[cfg(feature = "publisher")]
pub use longshore_queue::{LeaseTiming, Opened};
pub use longshore_resolver::{
    BindError, ChangedSince, Cluster, Column, Departure, DirectoryStopped, KnownPublisher, Limits,
    LimitsHandle, Listing, PathAnswer, PathEvent, PathListed, PathTable, PathWatch, Publication,
    PublicationTerms, PublisherSet, PublisherWatch, ReadClient, ReadError, ReplicaStanding,
    ReplicaState, ReplicaStatus, RequestCounts, Resolution, ResolverServer, ServerOptions,
    StandingHandle, TermsError, Tracked, Tracker, WATCHED_PATHS_MAX, WatchEnded, WriteClient,
};
#[cfg(feature = "worker")]
pub use longshore_subscriber::{
    CancelReason, Checkpoint, CheckpointError, CheckpointsError, ConnectError, FromPayload, Job,
    JobContext, JobFailure, JobOutput, Json, PayloadError, RunError, ShutdownHandle, StatsWatch,
    Subscription, Take, TakeError, Worker, WorkerOptions, WorkerReport, WorkerStats,
};
pub use longshore_transport::{LinkOptions, TlsAcceptor, TlsDialer};
#[cfg(feature = "worker")]
pub use values::Subscriber;
pub use values::Value;
#[cfg(feature = "publisher")]
pub use values::ValuePublisher;
