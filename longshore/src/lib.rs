//! Longshore moves jobs from the programs that produce them to the workers that run them, over
//! plain TCP. Programs depend on this crate only; it has everything that they need.
//!
//! A **publisher** stores queues on its disk and pushes jobs to workers; a small replicated
//! **resolver** maps paths to publishers. A queue is named by its [`Path`], such as `/jobs/mail`,
//! and is created with its first job. `longshore up` starts a publisher and a resolver in one
//! process; the programs below find it at `127.0.0.1`.
//!
//! # Three promises
//!
//! 1. **Nothing acknowledged is lost.** An acknowledgement names its durability; by default that is
//!    fsync on the publisher that stores the job.
//! 2. **One owner at a time.** Every delivery has a fencing token; a result with a stale token is
//!    refused with an error. Execution is at-least-once; acceptance is exactly-once, by the
//!    publisher that stores the job.
//! 3. **A hang becomes a crash, and a crash becomes a retry.** Heartbeats, leases, flush timeouts
//!    and batch-sized request timeouts detect a peer that has stopped answering, and disconnect it.
//!
//! A handler may therefore run more than once for one job. Make it idempotent, or pass
//! [`JobContext::token`] to the store that it writes to: the token rises with every delivery, so
//! the store can refuse a late write ([`fence`]).
//!
//! # A first kind of job
//!
//! A payload's type declares the queue of its jobs and how they are retried
//! ([`#[derive(JobKind)]`](derive@JobKind) has all attributes). [`Producer::enqueue`] returns when
//! a publisher has the job on its disk. Its error says whether the job was certainly not enqueued,
//! or may be: [`EnqueueError`] lists what to do in each case.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use longshore::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, JobKind)]
//! #[job(path = "/jobs/mail/welcome", max_attempts = 5, timeout = "30s")]
//! struct Welcome {
//!     to: String,
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let producer = Producer::connect("127.0.0.1");
//!     let welcome = Welcome { to: "ada@example.com".to_owned() };
//!     let receipt = producer.enqueue(welcome).delay(Duration::from_secs(60)).await?;
//!     println!("{receipt} is on disk");
//!     Ok(())
//! }
//! ```
//!
//! # A first worker
//!
//! A handler is an async function. Its first argument is the payload, which names the kind of job.
//! One worker can have a handler for each of up to 64 kinds, and runs 16 jobs at a time by default.
//! A job is completed when its handler returns `Ok`. An error is a failed attempt, and the job is
//! retried until it has no attempts left ([`JobFailure`] has the other outcomes).
//!
//! ```no_run
//! use longshore::prelude::*;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize, JobKind)]
//! # #[job(path = "/jobs/mail/welcome")]
//! # struct Welcome {
//! #     to: String,
//! # }
//!
//! async fn welcome(Payload(mail): Payload<Welcome>, job: JobContext) -> anyhow::Result<()> {
//!     println!("attempt {}: a welcome to {}", job.attempt(), mail.to);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let worker = Worker::connect("127.0.0.1").handle(welcome);
//!     let report = worker.shutdown(async { drop(tokio::signal::ctrl_c().await) }).run().await?;
//!     println!("{} completed", report.completed);
//!     Ok(())
//! }
//! ```
//!
//! # State, failures, results
//!
//! Handlers of a worker share a state, such as a pool of connections. Any error fails the attempt,
//! and is logged with `tracing`: a program sees it once it installs a subscriber, such as
//! `tracing_subscriber::fmt`. A [`JobFailure`] decides otherwise: *bury* if no attempt can succeed,
//! *snooze* or *release* without using up the attempt. What a handler returns is its kind's
//! `output`, for programs that wait for it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use longshore::State;
//! use longshore::prelude::*;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Clone)]
//! # struct Pool;
//! # impl Pool { async fn balance(&self, _: u64) -> std::io::Result<Option<i64>> { Ok(None) } }
//!
//! #[derive(Serialize, Deserialize, JobKind)]
//! #[job(path = "/jobs/statement", backoff = "exponential:1s..10m", output = i64)]
//! struct Statement {
//!     account: u64,
//! }
//!
//! async fn state(job: Payload<Statement>, pool: State<Pool>) -> Result<i64, JobFailure> {
//!     // An error of the database is retried.
//!     let balance = pool.0.balance(job.0.account).await?;
//!     balance.ok_or_else(|| JobFailure::bury("no such account").kind("NoAccount"))
//! }
//!
//! # async fn run(pool: Pool) -> anyhow::Result<()> {
//! let worker = Worker::connect("127.0.0.1").state(pool).handle(state);
//! # let _ = worker;
//!
//! let producer = Producer::connect("127.0.0.1");
//! let job = Statement { account: 17 };
//! let balance = producer.enqueue(job).result(Duration::from_secs(60)).await?;
//! println!("{balance}");
//! # Ok(())
//! # }
//! ```
//!
//! # Tests of your own code
//!
//! With the feature `testing`, a whole system runs inside a test, and the test moves its clock: an
//! hour's back-off passes at once. See [`testing`](testing/index.html), whose pages need
//! `cargo doc --features testing`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use longshore::prelude::*;
//! use longshore::testing::TestSystem;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize, JobKind)]
//! # #[job(path = "/jobs/reminder")]
//! # struct Reminder;
//! # async fn remind(_: Payload<Reminder>) -> anyhow::Result<()> { Ok(()) }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let (system, day) = (TestSystem::start().await?, Duration::from_secs(86_400));
//! system.producer().enqueue(Reminder).delay(day).await?;
//! system.advance(day).await?;
//! let report = system.drain(system.worker().handle(remind), |worker| worker.run()).await?;
//! assert_eq!(report.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! [`Torture`](testing/struct.Torture.html) runs a handler with every fault at each of its awaits.
//!
//! # Deploys
//!
//! A worker that is asked to stop ([`Subscription::shutdown`], [`ShutdownHandle`]) finishes its
//! running jobs within its [`grace`](Subscription::grace), and releases the others to the workers
//! of the new version. Options of a kind are stored with each job, so a new version does not change
//! those of jobs that wait. [`recipes`] has payloads that change, monitoring, dead letters, sizes.
//!
//! # Jobs without a type
//!
//! A job is bytes at a path: [`new_job`] creates one, [`JobOptions`] has its options, and
//! [`Worker::durable_subscribe`] takes the jobs of any pattern of queues.
//!
//! ```no_run
//! use longshore::Path;
//! use longshore::prelude::*;
//!
//! # async fn run() -> anyhow::Result<()> {
//! let producer = Producer::connect("127.0.0.1");
//! producer.enqueue(new_job(Path::new("/jobs/mail/plain")?, "ada@example.com")).await?;
//!
//! let worker = Worker::connect("127.0.0.1").durable_subscribe("/jobs/mail/**");
//! let print = |job: Job<String>, _: JobContext| async move {
//!     println!("{}", job.payload);
//!     Ok(())
//! };
//! worker.run(print).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Queues`] reads queues and acts on them.
//!
//! # A first value
//!
//! A live value is not a job: it is the current state of something, only in memory, and every
//! subscriber receives it. This program publishes a value, and subscribes to it as any other
//! program would.
//!
//! ```no_run
//! use longshore::Path;
//! use longshore::prelude::*;
//! use longshore::values::{Event, Subscriber, ValuePublisher};
//!
//! # async fn run() -> anyhow::Result<()> {
//! let publisher = ValuePublisher::connect("127.0.0.1").await?;
//! let temperature = publisher.values().publish(Path::new("/hall/temperature")?, 20.5)?;
//!
//! let subscriber = Subscriber::connect("127.0.0.1");
//! let mut followed = subscriber.durable_subscribe(Path::new("/hall/temperature")?);
//! temperature.set(20.7)?;
//! while let Some(event) = followed.next().await {
//!     match event {
//!         Event::Update(value) => println!("{value}"),
//!         Event::Dead(reason) => eprintln!("lost, and tried again: {reason}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # A publisher in your own process
//!
//! The queue runs in your program, with its journal in your folder. Without a resolver, clients
//! need its address; with `options.cluster` set, workers and producers find it by its paths.
//! [`embedded::System`] adds a resolver.
//!
//! ```no_run
//! use longshore::PublisherOptions;
//! use longshore::embedded::RunningPublisher;
//! use longshore::Path;
//! use longshore::prelude::*;
//!
//! # async fn run() -> anyhow::Result<()> {
//! let options = PublisherOptions::new("/var/lib/my-program/queue");
//! let publisher = RunningPublisher::start(options).await?;
//! let job = new_job(Path::new("/jobs/a")?, "payload");
//! let receipt = publisher.producer().enqueue(job).await?;
//! println!("{receipt} is on disk");
//! publisher.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How to read these pages
//!
//! - **Clients.** `X::connect(cluster)` creates a client: it waits for nothing, cannot fail, and
//!   opens links on demand. `X::builder()` is for options: `Producer::builder().name("billing")
//!   .connect(cluster)`. `ready().await` waits for a replica's answer: use it to find out early
//!   whether the cluster can be reached.
//! - **Units.** A field that ends in `_ms` is in milliseconds. A timestamp (`at`, `ended_at`,
//!   `expires_at`) is in milliseconds since 1970. Sizes and lengths are in bytes. Other times are a
//!   `Duration`. Limits are named constants, most of them in `protocol::limits`.
//! - **Errors.** A refused request has changed nothing. An error of a request that may have taken
//!   effect is called `Unknown` or `Away`, and its page says so.
//! - **Cancel safe** means that dropping a future before it is ready loses nothing and has no
//!   effect: call again, also in a `tokio::select!`. The page of any other call says what may have
//!   happened.
//! - **Blocking.** Functions that are not `async` return at once: they take a short lock, and do
//!   not wait for disk or network. The exceptions are the functions of [`journal`], which read
//!   files; `from_pem` of [`TlsAcceptor`] and [`TlsDialer`], and [`TokenSource::read`]; and the two
//!   of [`JobContext`] that end in `_blocking`.
//! - **Panics.** Two mistakes panic: creating a client or opening a publisher outside of a tokio
//!   runtime, where a page says *Needs a tokio runtime* (with its time and io drivers enabled), and
//!   calling a function that ends in `_blocking` inside of an async handler.
//! - **Durability.** *Durable* refers to the [`Durability`] with which the publisher was started.
//!
//! Timeouts, retries and hang detection of links and resolvers follow the chapter on fault
//! tolerance of netidx's book, and the page of each number says so ([`ResolverTiming`],
//! [`LinkTiming`]). [`Backoff::Hangfire`] is Hangfire's curve.
//!
//! # Further reading
//!
//! - [`recipes`]: a few lines for each need: retries, scheduled and unique jobs, transactions,
//!   tenants, timeouts, progress, middleware, dead letters, monitoring, tests, live values.
//! - [`Worker`], [`Subscription`], [`JobContext`]: running jobs. [`middleware`]: tower layers
//!   around a handler.
//! - [`Producer`], [`Pipeline`]: enqueueing jobs, one by one or many. [`Queues`], [`Feed`]: reading
//!   queues, acting on jobs, following transitions.
//! - [`values`]: live values. [`Publisher`]: queues in your process. [`journal`]: inspection of its
//!   files.
//! - [`ReadClient`], [`WriteClient`], [`ResolverServer`]: the directory.
//! - `protocol`: the messages, documented in the crate `longshore-protocol`. It has the types of
//!   errors and answers: `RequestError`, `AttemptInfo`,
//!   `CheckpointInfo` and `ProgressInfo` in `messages::work`, `WriteRefused` in `messages::values`,
//!   and every limit by its name in `limits`.
//!
//! `docs/JOBS.md` specifies the guarantees for jobs; `docs/OPERATING.md` is for operators;
//! `docs/ARCHITECTURE.md` is the map of the code; `docs/PROTOCOL.md` specifies the bytes on the
//! wire.
//!
//! | Feature | Default | Contents |
//! |---|---|---|
//! | `producer` | yes | [`Producer`], [`Queues`] and their types |
//! | `worker` | yes | [`Worker`], [`Job`], [`JobContext`], [`middleware`]; [`Subscriber`] |
//! | `publisher` | yes | [`Publisher`], [`ValuePublisher`], [`embedded`], [`journal`] |
//! | `testing` | no | [`testing`](testing/index.html); needs the other three |
//!
//! Paths, jobs, ids and the resolver's clients are always available.

#[cfg(feature = "publisher")]
pub mod embedded;
#[cfg(feature = "worker")]
pub mod fence;
pub mod prelude;
pub mod recipes;
#[cfg(feature = "testing")]
pub mod testing;
pub mod workflows;

/// The wire protocol: paths, ids, jobs, messages, and their limits. Most of it is for authors of
/// clients; other programs need the types of errors and answers: `messages::work` has
/// `RequestError`, `AttemptInfo`, `CheckpointInfo` and `ProgressInfo`, `messages::values` has
/// `WriteRefused`, `limits` every limit by its name.
pub use longshore_protocol as protocol;

/// Inspecting a publisher's data directory from outside: stats, verification, records, a copy.
///
/// [`stat`](journal::stat), [`Dump`](journal::Dump) and [`copy`](journal::copy) work while a
/// publisher runs; [`verify`](journal::verify) requires a directory that is not in use. None of
/// them writes to the inspected directory.
///
/// All functions read files on the calling thread, a large journal for minutes: in an async
/// program, call them within `tokio::task::spawn_blocking`.
///
/// Terms: a *command* is one change of the queues, a *record* is a command as written to the
/// journal, and an *index* is a command's number, rising by one. The *commit watermark* is the last
/// command known to be committed. Offsets and lengths are in bytes. `docs/JOURNAL.md` specifies the
/// files byte by byte.
#[cfg(feature = "publisher")]
pub mod journal {
    pub use longshore_queue::inspect::*;
    pub use longshore_queue::{Command, LeaseEnd, Now, Occurrence, RunOfOccurrence, Start};
}

/// Live values. A [`ValuePublisher`] or a [`Publisher`] publishes them; a [`Subscriber`] receives
/// their updates, and may write to them.
///
/// A [`Value`] has a path, and is published until its handle ([`Published`](values::Published)) is
/// dropped. It is only in memory. [`Policy`](values::Policy) sets which updates a slow subscriber
/// receives. Longshore's own metrics are values below `/sys`.
pub mod values {
    pub use longshore_protocol::messages::values::{Policy, WriteRefused};
    pub use longshore_protocol::{ConvertError, Text, Value, ValueError, ValueMap};
    /// Longshore's own metrics, below `/sys`.
    #[cfg(feature = "publisher")]
    #[doc(hidden)]
    pub mod metrics {
        pub use longshore_publisher::{
            METRICS_EVERY, METRICS_MAX, MetricSample, MetricSource, metrics_path, serve_metrics,
        };
    }
    #[cfg(feature = "publisher")]
    pub use longshore_publisher::{
        Batch, FlushReport, Procedure, PublishError, Published, UpdateError, ValueDefault,
        ValueOptions, ValuePublisher, ValuePublisherBuilder, ValuePublisherError, ValueRequest,
        Values, Write, Writes, value_limits as limits,
    };
    #[cfg(feature = "worker")]
    pub use longshore_subscriber::{
        CallError, DurableValue, Event, KeyedEvent, MATCHING_UPDATES_MAX, MatchEvent,
        MatchingValues, SubscribeError, SubscribeOptions, Subscriber, SubscriberBuilder,
        SubscriptionKey, UPDATES_MAX, Updates, UpdatesSink, ValueState, ValueSubscription,
        WriteError,
    };
}

/// Tower layers around a worker's handlers, for [`Subscription::layer`] and
/// [`KindOptions::layer`]: a timeout, concurrency by key, metrics, error reporting. Any other tower
/// layer fits. [`recipes`] shows how to write one.
#[cfg(feature = "worker")]
pub mod middleware {
    pub use longshore_subscriber::middleware::*;
    pub use longshore_subscriber::{
        Blocking, Completion, HandlerFailed, InPlace, JobRequest, JobService,
    };
    pub use tower_layer::{Identity, Layer, layer_fn};
    pub use tower_service::Service;
}

pub use longshore_derive::JobKind;
/// What `#[derive(JobKind)]` calls.
#[doc(hidden)]
pub use longshore_kinds::fill as __fill;
pub use longshore_kinds::{
    After, BadPayload, Codec, CodecError, IntoJob, JobKind, JsonCodec, ParameterError,
};
#[cfg(feature = "producer")]
pub use longshore_producer::{
    ActionOutcome, ActionResult, ActionResults, AllResults, BatchReceipt, ClusterDeadGroup,
    ClusterDeadGroups, ConfirmError, Enqueue, EnqueueAll, EnqueueError, EnqueueResult, Failover,
    Feed, FeedFrom, FeedItem, FeedLoss, FeedPositions, FeedUpdate, FoundJob, JobEnd, JobLocator,
    JobLocatorError, JobLookupError, JobPage, JobPages, MissingPublisher, NewSchedule, Pipeline,
    Producer, ProducerBuilder, PublisherAnswer, PublisherAnswers, Queues, QueuesBuilder,
    QueuesError, Receipt, Receipts, ReplaceError, ResultError, ScheduleError, Step, WaitError,
    Workflow, new_id, new_job,
};
#[cfg(feature = "producer")]
pub use longshore_producer::{Both, FanOut};
// Arguments and results of `Queues`. No doc comment: rustdoc would prepend it to the page of each
// type.
/// Who a client of a server is, and what it may do: policies, tokens, identities.
#[doc(inline)]
pub use longshore_access as access;
pub use longshore_protocol::messages::work::{
    Action, ActionReport, BatchInfo, DeadGroup, DeadGroups, FeedEvent, FeedEvents, FeedPosition,
    Filter, JobCounts, JobInfo, JobsQuery, NextOccurrence, PauseReport, PublisherStatus, QueueStat,
    QuietEnd, QuietedWorker, Related, ReplaceOutcome, Room, ScheduleInfo, ScheduleOutcome,
    WorkerPattern, WorkerPatternError,
};
pub use longshore_protocol::{
    Address, AddressError, AttemptOutcome, Backoff, BatchRefusal, DeathReason, Due, Durability,
    FairKey, Fingerprint, FingerprintError, Glob, GlobError, Headers, Idempotency, JobChange,
    JobError, JobId, JobKeys, JobLimit, JobOptions, JobRate, JobRef, JobState, LimitScope,
    LinkTiming, Missed, NameError, NewBatch, NewJob, OnConflict, Overlap, Parent, ParentEnd, Path,
    PathError, PublicationKind, PublisherId, PublisherInfo, QueueSettings, Refusal, ResolverTiming,
    Schedule, Terms, Timing, Token, TraceContext, Unique, UniqueUntil,
};
#[cfg(feature = "publisher")]
pub use longshore_publisher::{
    HealthHandle, OpenError, Publisher, PublisherFailed, PublisherHealth, PublisherOptions,
};
#[cfg(feature = "publisher")]
pub use longshore_queue::{CutTail, Dropped, LeaseTiming, Opened, RecoveredSnapshot};
pub use longshore_resolver::{
    BindError, CheckedTerms, Cluster, ClusterPublishers, Column, Declared, Departure,
    KnownPublisher, Limits, LimitsHandle, Listing, PathAnswer, PathEvent, PathListed, PathTable,
    PathWatch, Publication, PublicationStatus, PublisherSet, PublisherWatch, ReadClient,
    ReadClientBuilder, ReadError, ReplicaError, ReplicaFailure, ReplicaHealth, ReplicaStartError,
    ReplicaStatus, ReplicaStopped, RequestCounts, Resolution, ResolverServer, ServerOptions,
    StatusHandle, TermsTooLong, WATCHED_PATHS_MAX, WatchEnded, WriteClient,
};
#[cfg(feature = "worker")]
pub use longshore_subscriber::{
    Attempt, AttemptParts, BlockingHandler, CancelReason, Checkpoint, CheckpointError,
    CheckpointsError, ConnectError, FromAttempt, FromPayload, Handler, Job, JobContext, JobFailure,
    JobOutput, JobSource, Json, KindOptions, KindService, Kinds, PARENT_JOBS_MAX,
    PARENT_RESULTS_BYTES_MAX, ParentJob, ParentPage, Parents, ParentsError, Payload, PayloadError,
    PublisherState, QueuePatterns, QueuePatternsError, Router, RunError, ShutdownHandle, State,
    StatePart, StatsWatch, Subscription, SubscriptionStatus, WORKER_JOBS_MAX, Worker,
    WorkerBuilder, WorkerReport, WorkerStats,
};
pub use longshore_transport::{
    Access, AuditLog, AuditOpenError, DialError, FrameBudget, LinkOptions, MemoryBounds,
    TlsAcceptor, TlsDialer, TlsError, TokenError, TokenSource,
};
#[cfg(feature = "worker")]
pub use values::Subscriber;
pub use values::Value;
#[cfg(feature = "publisher")]
pub use values::ValuePublisher;
