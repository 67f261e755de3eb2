//! What users touch: a worker, its subscription, its run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::Source;
use longshore_protocol::{SessionId, check_name};
use longshore_resolver::{Cluster, PublisherWatch, ReadClient};
use longshore_transport::LinkOptions;
use tower_layer::{Identity, Layer, Stack};

use crate::work::publisher_watches::PublisherWatches;
use crate::work::session::WorkerSession;
use crate::work::supervisor::{self, RunConfig};
use crate::{
    Blocking, ConnectError, FromPayload, InPlace, Job, JobContext, JobFailure, JobOutput,
    JobService, ShutdownHandle, StatsWatch, Take, TakeError, WorkerReport,
};

/// The most jobs that one worker may hold, `concurrency + prefetch`. Twice as many tokens (those
/// held, and those whose end is not yet answered) are what one link can resume.
pub const HELD_MAX: usize = 32_768;
/// Handlers at a time, unless told otherwise.
pub const CONCURRENCY: usize = 16;
/// How long a draining worker lets its handlers run, unless told otherwise.
pub const GRACE: Duration = Duration::from_secs(25);
/// How long handlers have to return once their contexts are cancelled, unless told otherwise.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// A process that runs jobs: the beginning of a subscription. Publishers know each `Worker` by a
/// name and by a session of its own; a program may have several.
#[derive(Debug)]
pub struct Worker {
    options: WorkerOptions,
    session_id: SessionId,
    resolver: ReadClient,
}

/// How a worker presents itself and dials.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// What operators see; 1 to 128 bytes. The default is `worker-` and the process's id.
    pub name: String,
    /// How its links to publishers are dialled. By default as [`LinkOptions`] has it for work
    /// links.
    pub link: LinkOptions,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            name: format!("worker-{}", std::process::id()),
            link: LinkOptions::default(),
        }
    }
}

/// Why a worker did not run: it was set up wrongly, and to try again is no use. What goes wrong
/// while it runs is no error: it is tried again, and counted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// There is nothing to take jobs from.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// No handler could ever run, or more jobs would be held than links can resume: concurrency is
    /// at least 1, both together at most 32,768.
    #[error(
        "concurrency {concurrency} and prefetch {prefetch} are not within their limits: concurrency is at least 1, \
         both together at most {HELD_MAX}"
    )]
    Bound {
        /// Handlers at a time.
        concurrency: usize,
        /// Jobs held beside those that run.
        prefetch: usize,
    },
}

impl Worker {
    /// A worker with default options that finds its publishers through `cluster`: a [`Cluster`], or
    /// its replicas as `"HOST:PORT,…"`. It needs no replica to be up: [`Subscription::run`] waits
    /// for one, and goes on with its links when they all fail. So there is nothing to wait for, and
    /// nothing to cancel.
    pub async fn connect(cluster: impl Into<Cluster>) -> Result<Worker, ConnectError> {
        Worker::connect_with(cluster, WorkerOptions::default()).await
    }

    /// A worker with options of its own. It waits for nothing, and is cancel safe.
    pub async fn connect_with(
        cluster: impl Into<Cluster>,
        options: WorkerOptions,
    ) -> Result<Worker, ConnectError> {
        Worker::new(cluster, options)
    }

    /// The same outside of an async function. Needs a tokio runtime.
    pub fn new(
        cluster: impl Into<Cluster>,
        options: WorkerOptions,
    ) -> Result<Worker, ConnectError> {
        let cluster = cluster.into();
        if cluster.replicas.is_empty() {
            return Err(ConnectError::NoReplica);
        }
        check_name(&options.name)?;
        let session_id = SessionId(rand::random());
        let resolver = ReadClient::new(cluster, session_id, options.name.clone());
        Ok(Worker { options, session_id, resolver })
    }

    /// Takes jobs of every queue that matches a pattern, or several in an order ([`Take`]), at
    /// every publisher that has or could have one, those that appear later included. A disconnect
    /// is tried again until the worker stops. A pattern that is none shows when it is to run:
    /// [`RunError::Take`].
    pub fn durable_subscribe(self, take: impl Into<Take>) -> Subscription {
        Subscription {
            worker: self,
            take: take.into(),
            concurrency: CONCURRENCY,
            prefetch: None,
            grace: GRACE,
            cancel_grace: CANCEL_GRACE,
            handle: ShutdownHandle::new(),
            shutdown: None,
            stats: StatsWatch::default(),
            layer: Identity::new(),
        }
    }
}

/// A worker and what it takes, not yet running. Nothing is taken before [`Subscription::run`]. `L`
/// is what stands around its handler: nothing, unless [`Subscription::layer`] says so.
#[must_use = "a subscription takes jobs once it is `run`"]
pub struct Subscription<L = Identity> {
    worker: Worker,
    take: Take,
    concurrency: usize,
    prefetch: Option<usize>,
    grace: Duration,
    cancel_grace: Duration,
    handle: ShutdownHandle,
    shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stats: StatsWatch,
    layer: L,
}

impl<L> Subscription<L> {
    /// How many handlers run at a time, from 1; 16 unless told otherwise. With
    /// [`prefetch`](Subscription::prefetch) at most 32,768, or [`RunError::Bound`] when it is to
    /// run.
    pub fn concurrency(mut self, handlers: usize) -> Subscription<L> {
        self.concurrency = handlers;
        self
    }

    /// How many jobs are held beside those that run, so that a handler's end finds the next one
    /// here; as many as `concurrency` unless told otherwise. Thousands for throughput, 0 where jobs
    /// are long and should wait where any worker can take them. What is held is run in the order in
    /// which it came: a more urgent job that comes later does not overtake it.
    pub fn prefetch(mut self, jobs: usize) -> Subscription<L> {
        self.prefetch = Some(jobs);
        self
    }

    /// How long a draining worker lets its handlers run; 25 s unless told otherwise.
    pub fn grace(mut self, grace: Duration) -> Subscription<L> {
        self.grace = grace;
        self
    }

    /// How long handlers have to return once their contexts are cancelled at the end of the grace;
    /// 1 s unless told otherwise. Those that have not are dropped, and their jobs given back.
    pub fn cancel_grace(mut self, grace: Duration) -> Subscription<L> {
        self.cancel_grace = grace;
        self
    }

    /// Drains once `shutdown` is done, as [`ShutdownHandle::drain`] does.
    pub fn shutdown(
        mut self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Subscription<L> {
        self.shutdown = Some(Box::pin(shutdown));
        self
    }

    /// Puts a tower layer around the handler: a timeout, a limit, tracing, one of your own. The
    /// first one is the outermost, as with `tower::ServiceBuilder`, which is itself one. A layer
    /// sees each attempt as a [`JobRequest`](crate::JobRequest), before its payload is read, and
    /// its end as a [`Completion`](crate::Completion) or an error; an error that is no
    /// [`JobFailure`] fails the attempt, and so does a panic in a layer. A layer that makes an
    /// attempt wait keeps its place among those that run at a time.
    ///
    /// Without a layer nothing is boxed or cloned for a job.
    pub fn layer<N>(self, layer: N) -> Subscription<Stack<N, L>> {
        Subscription {
            layer: Stack::new(layer, self.layer),
            worker: self.worker,
            take: self.take,
            concurrency: self.concurrency,
            prefetch: self.prefetch,
            grace: self.grace,
            cancel_grace: self.cancel_grace,
            handle: self.handle,
            shutdown: self.shutdown,
            stats: self.stats,
        }
    }

    /// What it takes jobs from.
    pub fn take(&self) -> &Take {
        &self.take
    }

    /// What stops this worker from elsewhere.
    pub fn handle(&self) -> ShutdownHandle {
        self.handle.clone()
    }

    /// What shows this worker's counts and publishers while it runs.
    pub fn stats(&self) -> StatsWatch {
        self.stats.clone()
    }

    /// Runs until told to stop: `handler` for every job, up to `concurrency` at a time, on tokio's
    /// threads, each in a `tracing` span `job`. Gives what it has done.
    ///
    /// A job is done when its handler returns `Ok` and its publisher has taken that. An error
    /// decides what becomes of the job ([`JobFailure`]); a panic is a failed attempt; a payload
    /// that does not decode buries the job, and so does a result over 1 MiB. Without a
    /// [`shutdown`](Subscription::shutdown) and without anybody who uses the
    /// [`handle`](Subscription::handle) it runs for ever: no failure of a publisher or of the
    /// resolver ends it.
    ///
    /// Not cancel safe: dropping the future stops as [`ShutdownHandle::stop_now`] does. What ran
    /// then runs again elsewhere once its lease has ended.
    pub async fn run<T, O, F, Fut>(self, handler: F) -> Result<WorkerReport, RunError>
    where
        T: FromPayload,
        O: JobOutput,
        F: Fn(Job<T>, JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobFailure>> + Send + 'static,
        L: Layer<InPlace<T, O, F>, Service: JobService>,
    {
        let service = self.layered(InPlace::new(handler));
        let (session, config, watches) = self.into_run_parts()?;
        Ok(supervisor::run(session, config, watches, service).await)
    }

    /// The same for a handler that blocks its thread, in the same span: each runs on tokio's pool
    /// for blocking work, up to `concurrency` at a time, and no more than that pool has threads
    /// (512 unless the runtime was told otherwise). It cannot be dropped: one that does not look at
    /// [`JobContext::is_cancelled`] runs on after its job was given back, beside the next attempt.
    pub async fn run_blocking<T, O, F>(self, handler: F) -> Result<WorkerReport, RunError>
    where
        T: FromPayload,
        O: JobOutput,
        F: Fn(Job<T>, JobContext) -> Result<O, JobFailure> + Send + Sync + 'static,
        L: Layer<Blocking<T, O, F>, Service: JobService>,
    {
        let service = self.layered(Blocking::new(handler));
        let (session, config, watches) = self.into_run_parts()?;
        Ok(supervisor::run(session, config, watches, service).await)
    }

    pub(crate) fn layered<S>(&self, service: S) -> L::Service
    where
        L: Layer<S>,
    {
        self.layer.layer(service)
    }

    fn into_run_parts(
        self,
    ) -> Result<(Arc<WorkerSession>, RunConfig, PublisherWatches<PublisherWatch>), RunError> {
        let sources = self.take.into_sources()?;
        let (concurrency, prefetch) = (self.concurrency, self.prefetch.unwrap_or(self.concurrency));
        let bound = concurrency.saturating_add(prefetch);
        if concurrency == 0 || bound > HELD_MAX {
            return Err(RunError::Bound { concurrency, prefetch });
        }
        let session = WorkerSession::new(concurrency, bound, rand::random());
        self.stats.show(session.clone());
        let resolver = &self.worker.resolver;
        let watch = |source: &Source| resolver.watch_publishers(source.pattern.clone());
        let watches = PublisherWatches::new(sources.patterns.iter().map(watch).collect());
        let config = RunConfig {
            name: self.worker.options.name,
            session_id: self.worker.session_id,
            link: self.worker.options.link,
            sources,
            concurrency,
            grace: self.grace,
            cancel_grace: self.cancel_grace,
            handle: self.handle,
            shutdown: self.shutdown,
        };
        Ok((session, config, watches))
    }
}
