//! Longshore moves jobs from the programs that produce them to the workers that run them, over
//! plain TCP. This crate is the one to depend on: it holds everything that a program needs.
//!
//! A **publisher** holds queues on its disk and pushes jobs to workers; a small replicated
//! **resolver** knows which publisher holds which path. A queue is named by its [`Path`], such as
//! `/jobs/mail`, and is made when its first job comes. `longshore up` starts a publisher and a
//! resolver in one process; the programs below find it at `127.0.0.1`.
//!
//! # Three promises
//!
//! 1. **Nothing acknowledged is lost.** An acknowledgement names the durability that it stands for;
//!    by default that is fsync on the publisher that holds the job.
//! 2. **One owner at a time.** Every delivery carries a lease token; a result with a stale token is
//!    refused, and its sender is told. Execution is at-least-once; acceptance is exactly-once, by
//!    the publisher that holds the job.
//! 3. **A hang becomes a crash, and a crash becomes a retry.** Heartbeats, leases, flush timeouts
//!    and batch-sized request timeouts turn whatever stops answering into something that is
//!    disconnected and recovered from.
//!
//! So a handler may run more than once for one job. Make it idempotent, or hand
//! [`JobContext::token`] to the store that it writes to: the token rises with every delivery, so
//! the store can refuse the late one.
//!
//! # A first worker
//!
//! It takes the jobs of all queues below `/jobs/mail`, 16 at a time unless told otherwise, and runs
//! until Ctrl-C. A job is done when the handler returns `Ok`; an error is a failed attempt, and the
//! job is tried again, ten times in all ([`JobFailure`] has the other ends).
//!
//! ```no_run
//! use longshore::prelude::*;
//!
//! #[derive(serde::Deserialize)]
//! struct Welcome {
//!     to: String,
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let report = Worker::connect("127.0.0.1")
//!         .await?
//!         .durable_subscribe("/jobs/mail/**")
//!         .shutdown(async { drop(tokio::signal::ctrl_c().await) })
//!         .run(|job: Job<Welcome>, context: JobContext| async move {
//!             println!("attempt {}: a welcome to {}", context.attempt(), job.payload.to);
//!             Ok(())
//!         })
//!         .await?;
//!     println!("{} completed", report.completed);
//!     Ok(())
//! }
//! ```
//!
//! # A first producer
//!
//! [`Producer::enqueue`] returns when a publisher has the job on its disk. Its error says whether
//! the job is nowhere, or may be somewhere all the same: [`EnqueueError`] lists what to do about
//! each.
//!
//! ```no_run
//! use longshore::prelude::*;
//!
//! #[derive(serde::Serialize)]
//! struct Welcome {
//!     to: String,
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let producer = Producer::connect("127.0.0.1", ProducerOptions::default());
//!     let welcome = Welcome { to: "ada@example.com".to_owned() };
//!     let job = new_job(Path::new("/jobs/mail/welcome")?, serde_json::to_vec(&welcome)?);
//!     let receipt = producer.enqueue(job).await?;
//!     println!("{receipt} is on disk");
//!     Ok(())
//! }
//! ```
//!
//! [`JobOptions`] says what else a job may ask for: a delay, a priority, a number of attempts, a
//! back-off, a result that is kept. [`Queues`] looks into queues and acts on them.
//!
//! # A first value
//!
//! A live value is not a job: it is the newest of something, it is not on any disk, and everybody
//! who follows it has it. This program publishes one, and follows it as any other program would.
//!
//! ```no_run
//! use longshore::prelude::*;
//! use longshore::values::{Event, Subscriber, ValuePublisher, ValuePublisherOptions};
//!
//! # async fn run() -> anyhow::Result<()> {
//! let cluster = Some(Cluster::from("127.0.0.1"));
//! let publisher = ValuePublisher::open(ValuePublisherOptions { cluster, ..Default::default() }).await?;
//! let temperature = publisher.values().publish(Path::new("/hall/temperature")?, 20.5)?;
//!
//! let subscriber = Subscriber::connect("127.0.0.1").await?;
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
//! The queue is in your program, its journal in a folder of yours. Without a resolver it is found
//! by those who are told its address; with `options.cluster` set, workers and producers find it
//! too. [`embedded::System`] has a resolver beside it.
//!
//! ```no_run
//! use longshore::PublisherOptions;
//! use longshore::embedded::RunningPublisher;
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
//! # Tests of your own code
//!
//! With the feature `testing`, a whole system runs inside a test, whose clock the test moves: an
//! hour's back-off passes at once. See [`testing`](testing/index.html).
//!
//! ```no_run
//! use longshore::prelude::*;
//! use longshore::testing::System;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let system = System::start().await?;
//! system.producer().enqueue(new_job(Path::new("/jobs/report")?, "monday")).await?;
//!
//! let print = |job: Job<String>, _: JobContext| async move { Ok(job.payload.to_uppercase()) };
//! let worker = system.worker().durable_subscribe("/jobs/**");
//! let report = system.drain(worker, |jobs| jobs.run(print)).await?;
//! assert_eq!(report.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # How to read these pages
//!
//! - **Units.** A field that ends in `_ms` is in milliseconds. A moment that is a bare number
//!   (`at`, `ended_at`, `expires_at`) is in milliseconds since 1970. Sizes and lengths are bytes.
//!   Everything else is a `Duration`. Limits are constants with a name, most of them in
//!   `protocol::limits`.
//! - **Errors.** What was refused has changed nothing. What may have been done all the same is
//!   called `Unknown` or `Away`, and is said to be so.
//! - **Cancel safe** means that nothing is lost or done when a future is dropped before it is
//!   ready: call again, also in a `tokio::select!`. Where a call is not, its page says what may
//!   have happened.
//! - **Blocking.** Functions that are not `async` return at once: they take a short lock, and wait
//!   for no disk and no network. The exceptions are the functions of [`journal`], which read files;
//!   `from_pem` of [`TlsAcceptor`] and [`TlsDialer`], which read certificates; and the two of
//!   [`JobContext`] that end in `_blocking`.
//! - **Panics.** Two mistakes panic: to make a client or open a publisher outside of a tokio
//!   runtime, where a page says *Needs a tokio runtime* (its time and io drivers have to be
//!   enabled), and to call what ends in `_blocking` inside of an async handler.
//! - **Durability.** *Durable* means what [`Durability`] says that the publisher was started with.
//!
//! How long to wait, how often to try again, when something counts as hung: links and resolvers
//! take that from the chapter on fault tolerance of netidx's book, and the page of each number says
//! so ([`ResolverTiming`], [`LinkTiming`]). [`Backoff::Hangfire`] is Hangfire's curve.
//!
//! # Where to go on
//!
//! - [`recipes`]: a short program for each need: errors that decide, several queues in order,
//!   progress, checkpoints, middleware, tracing, a graceful shutdown, results, an outbox, values.
//! - [`Worker`], [`Subscription`], [`JobContext`]: running jobs. [`middleware`]: tower layers
//!   around a handler.
//! - [`Producer`], [`Pipeline`]: enqueueing jobs, one by one or many. [`Queues`], [`Feed`]:
//!   looking, acting, following.
//! - [`values`]: live values. [`Publisher`]: queues in your process. [`journal`]: its files, from
//!   outside.
//! - [`ReadClient`], [`WriteClient`], [`ResolverServer`]: the directory.
//! - `protocol`: the messages, whose pages are those of the crate `longshore-protocol`. A program
//!   finds there what errors and answers are made of: `RequestError`, `AttemptInfo`,
//!   `CheckpointInfo` and `ProgressInfo` in `messages::work`, `WriteRefused` in `messages::values`,
//!   and every limit by its name in `limits`.
//!
//! `docs/JOBS.md` says what is promised of jobs, in exact words; `docs/OPERATING.md` is for those
//! who run it; `docs/ARCHITECTURE.md` has the map of the code, `docs/PROTOCOL.md` the bytes on the
//! wire.
//!
//! | Feature | Default | What is there |
//! |---|---|---|
//! | `producer` | yes | [`Producer`], [`Queues`] and what they take and give |
//! | `worker` | yes | [`Worker`], [`Job`], [`JobContext`], [`middleware`]; [`Subscriber`] |
//! | `publisher` | yes | [`Publisher`], [`ValuePublisher`], [`embedded`], [`journal`] |
//! | `testing` | no | [`testing`](testing/index.html); needs the other three |
//!
//! Paths, jobs, ids and the resolver's clients are always there.

#[cfg(feature = "publisher")]
pub mod embedded;
pub mod prelude;
pub mod recipes;
#[cfg(feature = "testing")]
pub mod testing;

/// What travels between processes: paths, ids, jobs, messages, and their limits. Most of it is for
/// those who write a client; a program needs from it what errors and answers are made of:
/// `messages::work` has `RequestError`, `AttemptInfo`, `CheckpointInfo` and `ProgressInfo`,
/// `messages::values` has `WriteRefused`, `limits` every limit by its name.
pub use longshore_protocol as protocol;

/// Looking at a publisher's data directory from outside: what it holds, whether it is whole, its
/// records, a copy of it.
///
/// [`stat`](journal::stat), [`Dump`](journal::Dump) and [`copy`](journal::copy) may be used while a
/// publisher runs; [`verify`](journal::verify) needs the directory at rest. Nothing here writes to
/// the directory that is looked at.
///
/// All of it reads files on the thread that calls, a large journal for minutes: in an async
/// program, call it within `tokio::task::spawn_blocking`.
///
/// Words: a *command* is one thing that happened to the queues, a *record* is a command as it is
/// written, and an index is a command's number, one more for each. The *mark* is the last command
/// that is known to be committed. Offsets and lengths are bytes. `docs/JOURNAL.md` has the files,
/// byte by byte.
#[cfg(feature = "publisher")]
pub mod journal {
    pub use longshore_queue::inspect::*;
    pub use longshore_queue::{Command, Expired, Now, Start};
}

/// Live values: a [`ValuePublisher`], or a [`Publisher`] beside its queues, publishes them; a
/// [`Subscriber`] follows them, and may write to them.
///
/// A [`Value`] has a path, and is there for as long as the handle that publishing it gave
/// ([`Published`](values::Published)) is held. It is not on any disk: what counts is the newest,
/// and [`Policy`](values::Policy) says what a subscriber that is slower than the updates gets. The
/// `longshore` program's own metrics are values below `/sys`.
pub mod values {
    pub use longshore_protocol::messages::values::{Policy, WriteRefused};
    pub use longshore_protocol::{Text, Value, ValueError, ValueMap};
    /// Longshore's own metrics, below `/sys`.
    #[cfg(feature = "publisher")]
    #[doc(hidden)]
    pub mod metrics {
        pub use longshore_publisher::{
            METRICS_EVERY, METRICS_MAX, MetricSource, Taken, metrics_path, serve_metrics,
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
        SubscriberOptions, SubscriptionKey, UPDATES_MAX, Updates, UpdatesSink, ValueState,
        ValueSubscription, WriteError,
    };
}

/// What stands around a worker's handler: tower layers, for [`Subscription::layer`], and what they
/// see. Whatever is written for tower (`tower::ServiceBuilder`, its timeout, its limits) fits.
/// [`recipes`] has one of your own.
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
// How jobs are chosen, what is done to them, and what publishers answer: what `Queues` takes and
// gives. No doc comment: it would be put before the page of each of them.
pub use longshore_protocol::messages::work::{
    Action, ActionReport, DeadGroup, DeadGroups, FeedEvent, FeedEvents, FeedPosition, Filter,
    JobCounts, JobInfo, JobsQuery, PauseReport, PublisherStatus, QueueStat, QuietEnd,
    QuietedWorker, ReplaceOutcome, Room, WorkerPattern, WorkerPatternError,
};
pub use longshore_protocol::{
    Address, AddressError, AttemptOutcome, Backoff, BatchRefusal, DeathReason, Due, Durability,
    Fingerprint, FingerprintError, Glob, GlobError, Headers, JobChange, JobError, JobId,
    JobOptions, JobRef, JobState, LinkTiming, NameError, NewJob, Path, PathError, PublicationKind,
    PublisherId, PublisherInfo, QueueSettings, Refusal, ResolverTiming, Terms, Token, TraceContext,
};
#[cfg(feature = "publisher")]
pub use longshore_publisher::{OpenError, Publisher, PublisherFailed, PublisherOptions};
#[cfg(feature = "publisher")]
pub use longshore_queue::{CutTail, Dropped, LeaseTiming, Opened, RecoveredSnapshot};
pub use longshore_resolver::{
    BindError, Cluster, Column, Declared, Departure, DirectoryStopped, KnownPublisher, Limits,
    LimitsHandle, Listing, PathAnswer, PathEvent, PathListed, PathTable, PathWatch, Publication,
    PublicationTerms, PublisherRoll, PublisherSet, PublisherWatch, ReadClient, ReadError,
    ReplicaFailure, ReplicaStanding, ReplicaStartError, ReplicaState, ReplicaStatus, RequestCounts,
    Resolution, ResolverServer, ServerOptions, StandingHandle, TermsError, WATCHED_PATHS_MAX,
    WatchEnded, WriteClient,
};
#[cfg(feature = "worker")]
pub use longshore_subscriber::{
    CancelReason, Checkpoint, CheckpointError, CheckpointsError, ConnectError, FromPayload,
    HELD_MAX, Job, JobContext, JobFailure, JobOutput, Json, PayloadError, PublisherState, RunError,
    ShutdownHandle, Standing, StatsWatch, Subscription, Take, TakeError, Worker, WorkerOptions,
    WorkerReport, WorkerStats,
};
pub use longshore_transport::{
    FrameBudget, LinkOptions, MemoryBounds, TlsAcceptor, TlsDialer, TlsError,
};
#[cfg(feature = "worker")]
pub use values::Subscriber;
pub use values::Value;
#[cfg(feature = "publisher")]
pub use values::ValuePublisher;
