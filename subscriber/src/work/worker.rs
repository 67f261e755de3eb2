//! The API of workers: `Worker`, its subscription and its run.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use longshore_kinds::ParameterError;
use longshore_protocol::limits::SOURCES_MAX;
use longshore_protocol::messages::work::Source;
use longshore_protocol::{Glob, SessionId, check_name};
use longshore_resolver::{Cluster, PublisherWatch, ReadClient};
use longshore_transport::LinkOptions;
use tower_layer::{Identity, Layer, Stack};

use crate::work::handler::attempts::{Attempts, ServiceAttempts};
use crate::work::kinds::{BlockingHandler, Handler, KindOptions, KindService, Kinds, Router};
use crate::work::link_thread::LinkThread;
use crate::work::middleware::{AttemptEnd, Observe, on_error};
use crate::work::publisher_watches::PublisherWatches;
use crate::work::session::WorkerSession;
use crate::work::state::ready_jobs::SourceLimits;
use crate::work::state::subscriptions::subscribes;
use crate::work::supervisor::{self, RunConfig};
use crate::{
    Blocking, ConnectError, FromPayload, InPlace, Job, JobContext, JobFailure, JobOutput,
    JobService, JobSource, QueuePatterns, QueuePatternsError, ShutdownHandle, StatsWatch,
    WorkerReport,
};

/// The most jobs that one worker may hold, `concurrency + prefetch`. A link can resume twice as
/// many tokens: those of jobs held, and those of settles without an answer.
pub const WORKER_JOBS_MAX: usize = 32_768;
/// The default number of concurrent handlers.
pub const CONCURRENCY: usize = 16;
/// The default time that a draining worker gives its handlers to finish.
pub const GRACE: Duration = Duration::from_secs(25);
/// The default time that handlers have to return once their contexts are cancelled.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// A process that runs jobs. It finds publishers through a cluster of resolver replicas, and has a
/// name and a session id, by which publishers identify it. A program may have several.
#[derive(Clone, Debug)]
pub struct Worker {
    cluster: Cluster,
    options: WorkerBuilder,
}

/// Options of a [`Worker`]: how it identifies itself and dials.
#[derive(Clone, Debug)]
#[must_use = "options take effect with `connect`"]
pub struct WorkerBuilder {
    name: String,
    link: LinkOptions,
}

impl WorkerBuilder {
    /// Sets the name that operators see, 1 to 128 bytes; `worker-` and the process id by default.
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.name = name.into();
        self
    }

    /// Sets the options of links to publishers: timing, buffers; TLS unless it is the cluster's.
    pub fn link(mut self, link: LinkOptions) -> WorkerBuilder {
        self.link = link;
        self
    }

    /// Creates a worker with these options, as [`Worker::connect`] does.
    pub fn connect(self, cluster: impl Into<Cluster>) -> Worker {
        Worker { cluster: cluster.into(), options: self }
    }
}

/// Why a worker did not run: except for [`RunError::Dead`] and [`RunError::Thread`] its
/// configuration is invalid, and a retry fails again. Failures during the run are not errors: they
/// are retried and counted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// The cluster has no replica, or the worker's name is invalid.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The patterns are invalid.
    #[error(transparent)]
    Patterns(#[from] QueuePatternsError),
    /// The path of a kind is invalid.
    #[error("the kind of jobs at {template}: {error}")]
    Kind {
        /// The path as the kind declares it.
        template: &'static str,
        /// What is wrong.
        error: ParameterError,
    },
    /// No publisher of a [`Worker::subscribe`] is left. This is not the configuration: running
    /// again may succeed.
    #[error("the subscription is dead: {0}")]
    Dead(String),
    /// The thread of the worker's links did not start: the process has too many threads or open
    /// files. Running again may succeed.
    #[error("the thread of the worker's links did not start: {0}")]
    Thread(io::ErrorKind),
    /// There is no handler.
    #[error("the worker has no handler; add one with `handle`")]
    NoHandler,
    /// There are more than 64 handlers.
    #[error("{0} handlers are over the limit of {SOURCES_MAX}; use several workers")]
    TooManyHandlers(usize),
    /// Two kinds match the same path, so jobs of one would reach the handler of the other.
    #[error("the kinds at {first} and {second} match the same paths; give one another path")]
    KindsOverlap {
        /// The path of the first kind, as it declares it.
        first: &'static str,
        /// The path of the second kind, as it declares it.
        second: &'static str,
    },
    /// The limits are invalid: concurrency is at least 1, and both together are at most 32,768,
    /// which is what links can resume.
    #[error(
        "concurrency {concurrency} and prefetch {prefetch} are out of range: concurrency is at \
         least 1, and both together are at most {WORKER_JOBS_MAX}"
    )]
    Bound {
        /// Concurrent handlers.
        concurrency: usize,
        /// Further jobs held.
        prefetch: usize,
    },
}

impl Worker {
    /// Creates a worker that finds publishers through `cluster`: a [`Cluster`], or its replicas as
    /// `"HOST:PORT,…"`. Does nothing yet: [`Subscription::run`] connects, waits for a replica, and
    /// keeps its links if all replicas fail. An invalid cluster is [`RunError::Connect`].
    pub fn connect(cluster: impl Into<Cluster>) -> Worker {
        Worker::builder().connect(cluster)
    }

    /// Options for a worker: `Worker::builder().name("mailer").connect("localhost")`.
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder {
            name: format!("worker-{}", std::process::id()),
            link: LinkOptions::default(),
        }
    }

    /// Subscribes to every queue that matches a pattern, or several patterns in an order
    /// ([`QueuePatterns`]), at every publisher that has or could have one, including later ones. A
    /// lost link is retried until the worker stops. An invalid pattern is reported by the run:
    /// [`RunError::Patterns`].
    pub fn durable_subscribe(self, take: impl Into<QueuePatterns>) -> Subscription {
        self.subscription(take.into())
    }

    /// Subscribes like [`durable_subscribe`](Worker::durable_subscribe), but without retries: once
    /// none of the publishers that were found has a link any more, the run ends with
    /// [`RunError::Dead`], also while it drains, and the program decides. Running handlers are
    /// dropped; their jobs run again once their leases have ended. A publisher whose link is lost
    /// while another has one is retried. Before the first publisher is found, the run waits for
    /// one.
    pub fn subscribe(self, take: impl Into<QueuePatterns>) -> Subscription {
        let mut subscription = self.subscription(take.into());
        subscription.settings.durable = false;
        subscription
    }

    /// Sets what the handlers share: a pool of connections, a client, or a struct of several
    /// ([`StatePart`](crate::StatePart)). Each attempt gets a clone of its part.
    /// [`Subscription::handle`] adds handlers.
    pub fn state<S: Send + Sync + 'static>(self, state: S) -> Subscription<Identity, Kinds<S>> {
        self.subscription(Kinds::new(state))
    }

    /// Subscribes to the jobs of a kind, and runs `handler` for each, as [`Subscription::handle`]
    /// does.
    pub fn handle<H: Handler<A, ()>, A>(self, handler: H) -> Subscription<Identity, Kinds<()>> {
        self.state(()).handle(handler)
    }

    /// Like [`handle`](Worker::handle), as [`Subscription::handle_with`] does.
    pub fn handle_with<H: Handler<A, ()>, A, O>(
        self,
        handler: H,
        options: KindOptions<O>,
    ) -> Subscription<Identity, Kinds<()>>
    where
        O: Layer<KindService<H, A, ()>, Service: JobService + Sync>,
    {
        self.state(()).handle_with(handler, options)
    }

    /// Like [`handle`](Worker::handle), as [`Subscription::handle_blocking`] does.
    pub fn handle_blocking<H: BlockingHandler<A, ()>, A>(
        self,
        handler: H,
    ) -> Subscription<Identity, Kinds<()>> {
        self.state(()).handle_blocking(handler)
    }

    fn subscription<J>(self, jobs: J) -> Subscription<Identity, J> {
        Subscription {
            worker: self,
            jobs,
            layer: Identity::new(),
            settings: Settings {
                session: SessionId(rand::random()),
                durable: true,
                concurrency: CONCURRENCY,
                prefetch: None,
                grace: GRACE,
                cancel_grace: CANCEL_GRACE,
                handle: ShutdownHandle::new(),
                shutdown: None,
                stats: StatsWatch::default(),
                limits: Vec::new(),
            },
        }
    }
}

/// A worker with its queues and options. It takes no job before it is `run`. `L` is the stack of
/// layers around its handlers; none by default ([`Subscription::layer`]). `J` is where its jobs
/// come from: patterns of queues, or the kinds of its handlers.
#[must_use = "a subscription takes jobs once it is `run`"]
pub struct Subscription<L = Identity, J = QueuePatterns> {
    worker: Worker,
    jobs: J,
    layer: L,
    settings: Settings,
}

/// The options of a subscription.
struct Settings {
    session: SessionId,
    /// Lost publishers are retried without end.
    durable: bool,
    concurrency: usize,
    prefetch: Option<usize>,
    grace: Duration,
    cancel_grace: Duration,
    handle: ShutdownHandle,
    shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stats: StatsWatch,
    /// One for each source, or none.
    limits: Vec<SourceLimits>,
}

impl<L, J> Subscription<L, J> {
    /// Sets the number of concurrent handlers, from 1; 16 by default. With
    /// [`prefetch`](Subscription::prefetch) at most 32,768, or the run fails with
    /// [`RunError::Bound`].
    pub fn concurrency(mut self, handlers: usize) -> Subscription<L, J> {
        self.settings.concurrency = handlers;
        self
    }

    /// Sets how many jobs are held beside the running ones, so that a handler that returns finds
    /// the next job at once; `concurrency` by default. Use thousands for throughput, and 0 where
    /// jobs are long and should wait where any worker can take them. Jobs run in the order of their
    /// arrival: a more urgent job that arrives later does not overtake them. Jobs with an order key
    /// are not prefetched: they come only while a handler is free.
    pub fn prefetch(mut self, jobs: usize) -> Subscription<L, J> {
        self.settings.prefetch = Some(jobs);
        self
    }

    /// Sets how long a draining worker lets its handlers run; 25 s by default.
    pub fn grace(mut self, grace: Duration) -> Subscription<L, J> {
        self.settings.grace = grace;
        self
    }

    /// Sets how long handlers have to return once their contexts are cancelled: because their jobs
    /// were taken away (cancelled, timed out, or their leases lost), or at the end of the grace.
    /// 1 s by default. Async handlers that have not returned are dropped where they await; jobs that
    /// they still have are released.
    pub fn cancel_grace(mut self, grace: Duration) -> Subscription<L, J> {
        self.settings.cancel_grace = grace;
        self
    }

    /// Drains once `shutdown` completes, as [`ShutdownHandle::drain`] does.
    pub fn shutdown(
        mut self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Subscription<L, J> {
        self.settings.shutdown = Some(Box::pin(shutdown));
        self
    }

    /// Adds a tower layer around the handler: a timeout, a limit, tracing, or one of your own. The
    /// first layer is the outermost, as with `tower::ServiceBuilder`, which is itself a layer. A
    /// layer receives each attempt as a [`JobRequest`](crate::JobRequest), before its payload is
    /// decoded, and its outcome as a [`Completion`](crate::Completion) or an error. An error that
    /// is no [`JobFailure`] fails the attempt, and so does a panic in a layer. An attempt that
    /// waits in a layer counts as a running one.
    ///
    /// Without a layer nothing is boxed or cloned for a job, unless the worker has kinds: they box
    /// the future of each attempt.
    pub fn layer<N>(self, layer: N) -> Subscription<Stack<N, L>, J> {
        Subscription {
            layer: Stack::new(layer, self.layer),
            worker: self.worker,
            jobs: self.jobs,
            settings: self.settings,
        }
    }

    /// Calls `report` for each attempt that fails or buries its job, with the job and the error:
    /// the layer [`on_error`], for error reporting. Failures are logged anyway. What is decided
    /// outside of it is not reported: by layers that were added before it, and for jobs that cannot
    /// be read or whose result is too large.
    pub fn on_error<F>(
        self,
        report: F,
    ) -> Subscription<Stack<Observe<impl Fn(&AttemptEnd<'_>) + Send + Sync + 'static>, L>, J>
    where
        F: Fn(&JobContext, &JobFailure) + Send + Sync + 'static,
    {
        self.layer(on_error(report))
    }

    /// A handle that stops this worker from elsewhere. Otherwise it runs for ever, also while its
    /// queues are empty.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.settings.handle.clone()
    }

    /// The session of this run, as tools show it: [`WorkerPattern`] selects its worker by it.
    ///
    /// [`WorkerPattern`]: longshore_protocol::messages::work::WorkerPattern
    pub fn session(&self) -> SessionId {
        self.settings.session
    }

    /// The worker's counters and publishers, for reading while it runs. Its
    /// [`ready`](StatsWatch::ready) waits for the first publisher.
    pub fn stats(&self) -> StatsWatch {
        self.settings.stats.clone()
    }

    pub(crate) fn layered<S>(&self, service: S) -> L::Service
    where
        L: Layer<S>,
    {
        self.layer.layer(service)
    }
}

impl<L, J: JobSource> Subscription<L, J> {
    /// The patterns of the queues that it takes jobs from.
    pub fn patterns(&self) -> Result<Vec<Glob>, RunError> {
        self.jobs.patterns()
    }
}

impl<L> Subscription<L> {
    /// Runs `handler` for every job until the worker is stopped: up to `concurrency` at a time, on
    /// tokio's threads, each in a `tracing` span `job`. Returns the final counters.
    ///
    /// A job is completed when its handler returns `Ok` and its publisher has accepted the result.
    /// An error decides what happens to the job ([`JobFailure`]). A panic is a failed attempt. A
    /// payload that does not decode buries the job, and so does a result over 1 MiB. Without a
    /// [`shutdown`](Subscription::shutdown) and without use of the
    /// [`shutdown_handle`](Subscription::shutdown_handle), the run never ends: no failure of a
    /// publisher or of the resolver ends it.
    ///
    /// Not cancel safe: dropping the future stops the worker as [`ShutdownHandle::stop_now`] does.
    /// Running jobs run again elsewhere once their leases have ended.
    pub async fn run<T, O, F, Fut>(self, handler: F) -> Result<WorkerReport, RunError>
    where
        T: FromPayload,
        O: JobOutput,
        F: Fn(Job<T>, JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobFailure>> + Send + 'static,
        L: Layer<InPlace<T, O, F>, Service: JobService>,
    {
        let service = self.layered(InPlace::new(handler));
        self.run_service(service).await
    }

    /// Like [`run`](Subscription::run), for a handler that blocks its thread, in the same span.
    /// Handlers run on tokio's blocking pool, up to `concurrency` at a time, and no more than that
    /// pool has threads (512 unless the runtime is configured otherwise). A blocking handler cannot
    /// be dropped: one that does not check [`JobContext::is_cancelled`] runs on after its job was
    /// released, concurrently with the next attempt.
    pub async fn run_blocking<T, O, F>(self, handler: F) -> Result<WorkerReport, RunError>
    where
        T: FromPayload,
        O: JobOutput,
        F: Fn(Job<T>, JobContext) -> Result<O, JobFailure> + Send + Sync + 'static,
        L: Layer<Blocking<T, O, F>, Service: JobService>,
    {
        let service = self.layered(Blocking::new(handler));
        self.run_service(service).await
    }

    async fn run_service(self, service: impl JobService) -> Result<WorkerReport, RunError> {
        let durable = self.settings.durable;
        let parts = self.into_run_parts()?;
        run_parts(durable, parts, Box::new(ServiceAttempts::new(service))).await
    }

    fn into_run_parts(self) -> Result<RunParts, RunError> {
        let Subscription { worker: Worker { cluster, options }, jobs, settings, .. } = self;
        if cluster.replicas.is_empty() {
            return Err(ConnectError::NoReplica.into());
        }
        check_name(&options.name).map_err(ConnectError::Name)?;
        let sources = jobs.into_sources()?;
        let Settings { concurrency, grace, cancel_grace, handle, shutdown, stats, .. } = settings;
        let prefetch = settings.prefetch.unwrap_or(concurrency);
        let bound = concurrency.saturating_add(prefetch);
        if concurrency == 0 || bound > WORKER_JOBS_MAX {
            return Err(RunError::Bound { concurrency, prefetch });
        }
        // All handlers together keep to a cap that is no smaller than their number.
        let below = |cap: &usize| *cap < concurrency;
        let mut limits = settings.limits;
        limits.iter_mut().for_each(|limits| limits.cap = limits.cap.filter(below));
        let subscriptions = subscribes(&sources, &limits, concurrency);
        let patterns = sources.patterns.iter().map(|source| source.pattern.clone());
        let limits = patterns.zip(limits).collect();
        let session = WorkerSession::new(concurrency, bound, limits, cancel_grace, rand::random());
        stats.show(session.clone());
        let link = cluster.link_options(options.link);
        let resolver = ReadClient::builder().name(&options.name).connect(cluster);
        let watch = |source: &Source| resolver.watch_publishers(source.pattern.clone());
        let watches = PublisherWatches::new(sources.patterns.iter().map(watch).collect());
        let config = RunConfig {
            name: options.name,
            session_id: settings.session,
            link,
            link_thread: LinkThread::start().map_err(|error| RunError::Thread(error.kind()))?,
            subscriptions,
            concurrency,
            grace,
            cancel_grace,
            handle,
            shutdown,
        };
        Ok((session, config, watches))
    }
}

impl<L, S: Send + Sync + 'static> Subscription<L, Kinds<S>> {
    /// Takes the jobs of a kind, and runs `handler` for each: an async function whose first
    /// argument is [`Payload<Kind>`](crate::Payload), which names the kind. Its other arguments are
    /// [`FromAttempt`](crate::FromAttempt). All kinds share one session, one link to each
    /// publisher, and the worker's [`concurrency`](Subscription::concurrency): a kind with many
    /// jobs can use all of it. Their jobs run by priority, then age, unless a kind has a cap or a
    /// weight.
    ///
    /// A kind's options are those of its producer: the worker does not need them.
    ///
    /// ```ignore
    /// async fn send(mail: Payload<Welcome>, State(pool): State<Pool>) -> anyhow::Result<()> {
    ///     pool.send(&mail.0.to).await
    /// }
    ///
    /// Worker::connect("localhost").state(pool).handle(send).run().await?;
    /// ```
    pub fn handle<H: Handler<A, S>, A>(mut self, handler: H) -> Subscription<L, Kinds<S>> {
        self.jobs.add(handler);
        self
    }

    /// Like [`handle`](Subscription::handle), with options for this kind alone.
    ///
    /// ```ignore
    /// let slow = KindOptions::new().cap(2).layer(Timeout::after(Duration::from_secs(60)));
    /// worker.handle_with(send, KindOptions::new().weight(3)).handle_with(report, slow)
    /// ```
    pub fn handle_with<H: Handler<A, S>, A, O>(
        mut self,
        handler: H,
        options: KindOptions<O>,
    ) -> Subscription<L, Kinds<S>>
    where
        O: Layer<KindService<H, A, S>, Service: JobService + Sync>,
    {
        self.jobs.add_with(handler, options);
        self
    }

    /// Like [`handle`](Subscription::handle), for a function that blocks its thread: `fn`, not
    /// `async fn`, with the same arguments. It runs on tokio's blocking pool, which has 512 threads
    /// unless the runtime is configured otherwise.
    ///
    /// A thread cannot be stopped from outside. A handler that runs for long checks
    /// [`JobContext::is_cancelled`] between its steps. One that does not runs on after its lease is
    /// lost, after [`cancel_grace`](Subscription::cancel_grace), or after the run was dropped,
    /// concurrently with the next attempt; its result is dropped. A layer that ends the attempt, as
    /// [`Timeout`](crate::middleware::Timeout) does, ends neither: the job fails at once, and until
    /// the function returns it counts as running for `concurrency` and for its kind's cap. The end
    /// of a run does not wait for it, but the end of its tokio runtime does.
    pub fn handle_blocking<H: BlockingHandler<A, S>, A>(
        mut self,
        handler: H,
    ) -> Subscription<L, Kinds<S>> {
        self.jobs.add_blocking(handler);
        self
    }

    /// Like [`handle_blocking`](Subscription::handle_blocking), with options for this kind alone.
    pub fn handle_blocking_with<H: BlockingHandler<A, S>, A, O>(
        mut self,
        handler: H,
        options: KindOptions<O>,
    ) -> Subscription<L, Kinds<S>>
    where
        O: Layer<KindService<H, A, S>, Service: JobService + Sync>,
    {
        self.jobs.add_blocking_with(handler, options);
        self
    }

    /// Takes also the jobs of every queue that matches `pattern` and is of no kind here, and runs
    /// `handler` for each, as [`Worker::durable_subscribe`] and [`Subscription::run`] do. Several
    /// fallbacks count in their order.
    ///
    /// Without a fallback the jobs of other kinds stay in their queues, for other workers. With
    /// one, the handler chooses: [`JobFailure::bury`] for kinds that no worker has,
    /// [`JobFailure::Snooze`] to leave a job to another worker, or to run it.
    ///
    /// ```ignore
    /// worker.handle(send).fallback("/jobs/**", |job: Job<Bytes>, _| async move {
    ///     Err::<(), _>(JobFailure::bury("no program has this kind").kind("UnknownKind"))
    /// })
    /// ```
    pub fn fallback<T, O, F, Fut>(
        mut self,
        pattern: impl ToString,
        handler: F,
    ) -> Subscription<L, Kinds<S>>
    where
        T: FromPayload,
        O: JobOutput,
        F: Fn(Job<T>, JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobFailure>> + Send + 'static,
    {
        self.jobs.add_fallback(&pattern.to_string(), InPlace::new(handler));
        self
    }

    /// Runs until the worker is stopped, each job with the handler of its kind. Kinds
    /// that match the same path are [`RunError::KindsOverlap`]. Everything else is as
    /// [`Subscription::run`] has it for patterns of queues.
    ///
    /// Not cancel safe: dropping the future stops the worker as [`ShutdownHandle::stop_now`] does.
    pub async fn run(self) -> Result<WorkerReport, RunError>
    where
        L: Layer<Router<S>, Service: JobService>,
    {
        let Subscription { worker, jobs, layer, mut settings } = self;
        let (jobs, limits, router) = jobs.build()?;
        settings.limits = limits;
        let subscription = Subscription { worker, jobs, layer, settings };
        let service = subscription.layered(router);
        subscription.run_service(service).await
    }
}

type RunParts = (Arc<WorkerSession>, RunConfig, PublisherWatches<PublisherWatch>);

/// Boxed: see Build in `docs/ARCHITECTURE.md`.
fn run_parts(
    durable: bool,
    (session, config, watches): RunParts,
    attempts: Box<dyn Attempts>,
) -> BoxFuture<'static, Result<WorkerReport, RunError>> {
    Box::pin(async move {
        let run = supervisor::run(session.clone(), config, watches, attempts);
        if durable { Ok(run.await) } else { run_until_dead(&session, run).await }
    })
}

/// Runs until the worker has stopped, or has no link to any publisher that it found.
pub(crate) async fn run_until_dead(
    session: &WorkerSession,
    run: impl Future<Output = WorkerReport>,
) -> Result<WorkerReport, RunError> {
    let mut publishers = session.publishers();
    let all_lost = async {
        loop {
            if let Some(reason) = session.all_lost() {
                return reason;
            }
            // The session holds the sender.
            let _ = publishers.changed().await;
        }
    };
    tokio::select! {
        // A stopped worker loses its links, too.
        biased;
        report = run => Ok(report),
        reason = all_lost => Err(RunError::Dead(reason)),
    }
}
