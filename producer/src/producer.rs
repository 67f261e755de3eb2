//! The API of producers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longshore_kinds::IntoJob;
use longshore_protocol::limits::BATCH_JOBS_MAX;
use longshore_protocol::{NewJob, Path, PublisherInfo, Refusal, check_name};
use longshore_resolver::{Cluster, ReadClient, ReadError};
use tokio::time::{Instant, timeout_at};

use crate::core::StreamLimits;
use crate::directory::Directory;
use crate::driver::{BatchCompletion, Driver, StreamHandle};
use crate::enqueue::Enqueue;
use crate::enqueue_all::EnqueueAll;
use crate::handle::ProducerHandle;
use crate::ids::{new_id, new_session_id, to_job};
use crate::options::ProducerBuilder;
use crate::outcome::{EnqueueError, EnqueueResult, Receipt};
use crate::pipeline::{Pipeline, Receipts};
use crate::queues::{Queues, deadline_after};

/// Batches of single calls in flight before a batch waits for more callers.
const SINGLE_EAGER_BATCHES: usize = 8;

/// Enqueues jobs at publishers: resolves paths, maintains links, numbers batches, and sends
/// unanswered batches again. Cheap to clone; all clones share links and batches.
///
/// Dropping the last clone, and its pipelines, closes the links: unanswered jobs may or may not
/// have been accepted. Use [`Producer::settled`] to wait for them first.
#[derive(Clone)]
pub struct Producer {
    handle: Arc<ProducerHandle>,
}

impl Producer {
    /// Creates a producer that finds publishers through `cluster`: a [`Cluster`], or its replicas
    /// as `"HOST:PORT,…"`. Waits for nothing, and needs no running replica: links are opened on
    /// demand, so an invalid cluster is reported with the first job, or by [`Producer::ready`].
    /// Needs a tokio runtime.
    pub fn connect(cluster: impl Into<Cluster>) -> Producer {
        Producer::builder().connect(cluster)
    }

    /// Creates a producer for the given publishers, without a resolver: each is assumed to have
    /// every path. Needs a tokio runtime.
    pub fn to_publishers(publishers: impl IntoIterator<Item = PublisherInfo>) -> Producer {
        Producer::builder().to_publishers(publishers)
    }

    /// Starts with the default options, to change some:
    /// `Producer::builder().name("billing").connect("127.0.0.1")`.
    pub fn builder() -> ProducerBuilder {
        ProducerBuilder::default()
    }

    /// Waits until a replica of the resolver has answered: its address, TLS and this producer's
    /// name are right. Not needed before other calls. [`ReadError`] has the failure of each
    /// replica; that can take minutes, so put a deadline of your own around it. A producer for
    /// named publishers only has its name checked. Cancel safe.
    pub async fn ready(&self) -> Result<(), ReadError> {
        check_name(&self.handle.driver.options.name)?;
        self.handle.driver.directory.ready().await
    }

    fn start(directory: Directory, options: ProducerBuilder) -> Producer {
        let single = StreamLimits {
            in_flight_jobs_max: options.in_flight_jobs_max,
            in_flight_bytes_max: options.in_flight_bytes_max,
            eager_batches: SINGLE_EAGER_BATCHES,
            ..StreamLimits::default()
        };
        let driver = Driver::start(directory, new_session_id(), options);
        let [stream, atomic_stream] = [(); 2].map(|()| driver.open_stream(single, None));
        let handle = ProducerHandle { driver, stream, atomic_stream, queues: OnceLock::new() };
        Producer { handle: Arc::new(handle) }
    }

    /// Enqueues one job: a value of a [`JobKind`](longshore_kinds::JobKind), or a [`NewJob`].
    /// Awaited, it returns once a publisher holds the job; until then its options can be changed
    /// ([`Enqueue`]). Concurrent callers share batches.
    ///
    /// Waits for capacity, for the resolver and for the publisher's answer, each for at most
    /// [`answer_timeout`](ProducerBuilder::answer_timeout) (30 s by default, and more for large
    /// batches). [`EnqueueError`] documents what to do about each error.
    ///
    /// Not cancel safe: if the future is dropped after it has waited, the job may have been sent.
    /// Enqueueing the same job (the same id) again at the same publisher is harmless.
    pub fn enqueue<J: IntoJob>(&self, job: J) -> Enqueue<'_, J> {
        Enqueue::new(self, job)
    }

    pub(crate) async fn enqueue_job(&self, job: &NewJob) -> Result<Receipt, EnqueueError> {
        let ProducerHandle { driver, stream, .. } = &*self.handle;
        let pushed = driver.push(stream, 0, job, true).await?;
        // Requested with `want_tag`, so it is present.
        let completion = pushed.tag.ok_or(EnqueueError::Closed)?;
        completion.wait().await.outcome(pushed.index)
    }

    /// Enqueues the jobs of an iterator: values of a kind, or [`NewJob`]s. They go in batches of
    /// 1,000 jobs or 256 KiB, whichever comes first, for each set of publishers; a partial batch is
    /// sent at the end, and after 10 ms of a slow iterator. The iterator is read no faster than
    /// publishers answer: at most
    /// [`in_flight_jobs_max`](ProducerBuilder::in_flight_jobs_max) jobs are in flight.
    ///
    /// Awaited, it returns one result for each job, in order. An error of one job does not affect
    /// the others. For more jobs than fit into memory, read the results one by one instead:
    ///
    /// ```no_run
    /// # use longshore_producer::{Producer, new_job};
    /// # use longshore_protocol::Path;
    /// # async fn run(producer: Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// let path = Path::new("/jobs/square")?;
    /// let jobs = (0..10_000_000).map(|n: u64| new_job(path.clone(), n.to_string()));
    /// let mut results = producer.enqueue_all(jobs);
    /// while let Some(result) = results.next().await {
    ///     if let Err(error) = result.outcome {
    ///         eprintln!("{}: {error}", result.id);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The waits for each job are those of [`Producer::enqueue`]. Not cancel safe: if the future is
    /// dropped, any of the jobs may have been accepted. Enqueueing the same jobs (the same ids)
    /// again at the same publisher is harmless.
    pub fn enqueue_all<J: IntoIterator<Item: IntoJob>>(&self, jobs: J) -> EnqueueAll<J::IntoIter> {
        EnqueueAll::new(self.handle.clone(), jobs.into_iter())
    }

    /// Enqueues all of the jobs or none, as one batch at one publisher, which must have all of
    /// their paths: at most 10,000 jobs, 16 MiB of payload and 18 MiB encoded
    /// ([`EnqueueError::NotAtomic`]). Returns the receipts in order, or the first refusal. Waits
    /// and cancel safety are those of [`Producer::enqueue`].
    pub async fn enqueue_atomic(
        &self,
        jobs: impl IntoIterator<Item: IntoJob>,
    ) -> Result<Vec<Receipt>, EnqueueError> {
        // One too many is enough for the refusal.
        let jobs: Vec<NewJob> = (jobs.into_iter().take(BATCH_JOBS_MAX + 1))
            .map(|job| to_job(job, new_id))
            .collect::<Result<_, _>>()?;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let ProducerHandle { driver, atomic_stream, .. } = &*self.handle;
        let batch = push_atomic(driver, atomic_stream, &jobs).await?;
        let batch = batch.wait().await;
        let receipts: Result<Vec<_>, _> = batch.iter().map(|job| job.outcome).collect();
        receipts.map_err(|first| {
            // The refusals of the other jobs only refer to that of the refused one.
            let is_cause = |error: &EnqueueError| {
                !matches!(error, EnqueueError::Refused { refusal: Refusal::BatchRefused, .. })
            };
            let causes = |job: EnqueueResult| job.outcome.err().filter(is_cause);
            batch.iter().find_map(causes).unwrap_or(first)
        })
    }

    /// Opens a pipeline with default options ([`Pipeline::builder`] has others): jobs enter at one
    /// half, receipts leave at the other, a batch at a time. Built for throughput: a job costs
    /// neither a wait nor a wake-up of its own. Read receipts while sending, best in a task of
    /// their own. Use and drop it within the runtime.
    pub fn pipeline(&self) -> (Pipeline, Receipts) {
        Pipeline::builder().open(self)
    }

    pub(crate) fn handle(&self) -> Arc<ProducerHandle> {
        self.handle.clone()
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        self.handle.driver.options.answer_timeout
    }

    /// The client for requests to publishers.
    pub(crate) fn queues(&self) -> &Queues {
        let driver = &self.handle.driver;
        self.handle.queues.get_or_init(|| {
            let options = &driver.options;
            let queues = Queues::builder().name(&options.name).link(options.link.clone());
            Queues::start(driver.directory.clone(), queues)
        })
    }

    /// Waits until every job of this producer, its clones and its pipelines has a receipt or an
    /// error, including jobs enqueued meanwhile. For calls that wait for a route or for room it
    /// waits for at most the [`answer_timeout`](ProducerBuilder::answer_timeout), as they do; a
    /// call whose future was not polled has not begun. Cancel safe.
    pub async fn settled(&self) {
        let until = deadline_after(self.answer_timeout());
        loop {
            let batch_ended = self.handle.driver.batch_ended();
            tokio::pin!(batch_ended);
            batch_ended.as_mut().enable();
            let driver = &self.handle.driver;
            // In this order: a call has its jobs in a batch before it waits no more.
            let is_waiting = driver.waiting_calls() > 0 && Instant::now() < until;
            if driver.step(|state, _| state.core.in_flight_jobs()) > 0 {
                batch_ended.await;
            } else if is_waiting {
                let _ = timeout_at(until, batch_ended).await;
            } else {
                return;
            }
        }
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("session", &self.handle.driver.session).finish()
    }
}

impl ProducerBuilder {
    /// Creates the producer: see [`Producer::connect`]. Needs a tokio runtime.
    pub fn connect(mut self, cluster: impl Into<Cluster>) -> Producer {
        let cluster = cluster.into();
        self.link = cluster.link_options(self.link);
        let resolver = ReadClient::builder().name(&self.name).connect(cluster);
        Producer::start(Directory::Resolver(resolver), self)
    }

    /// Creates the producer: see [`Producer::to_publishers`]. Needs a tokio runtime.
    pub fn to_publishers(self, publishers: impl IntoIterator<Item = PublisherInfo>) -> Producer {
        Producer::start(Directory::Named(publishers.into_iter().collect()), self)
    }
}

async fn push_atomic(
    driver: &Arc<Driver>,
    stream: &StreamHandle,
    jobs: &[NewJob],
) -> Result<Arc<BatchCompletion>, EnqueueError> {
    check_name(&driver.options.name)?;
    let all: Vec<&NewJob> = one_per_path(jobs);
    let since = driver.now();
    driver
        .wait(stream, since, &all, |state, now| state.core.push_atomic(now, stream.id, jobs))
        .await
}

fn one_per_path(jobs: &[NewJob]) -> Vec<&NewJob> {
    let mut seen: hashbrown::HashSet<(&Path, bool)> = hashbrown::HashSet::new();
    jobs.iter().filter(|job| seen.insert((&job.path, job.has_keys()))).collect()
}
