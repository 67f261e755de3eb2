//! The API of producers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longshore_kinds::IntoJob;
use longshore_protocol::{NewJob, Path, PublisherInfo, check_name};
use longshore_resolver::{Cluster, ReadClient, ReadError};

use crate::core::StreamLimits;
use crate::directory::Directory;
use crate::driver::{BatchCompletion, Driver, StreamHandle};
use crate::enqueue::Enqueue;
use crate::handle::ProducerHandle;
use crate::ids::new_session_id;
use crate::options::{BatchOptions, PipelineOptions, ProducerBuilder};
use crate::outcome::{EnqueueError, JobReceipt, JobTicket, Receipt};
use crate::pipeline::{Pipeline, Receipts};
use crate::queues::Queues;
use crate::receipt_queue::ReceiptQueue;

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
            ..StreamLimits::from(&PipelineOptions::default())
        };
        let driver = Driver::start(directory, new_session_id(), options);
        let stream = driver.open_stream(single, None);
        Producer { handle: Arc::new(ProducerHandle { driver, stream, queues: OnceLock::new() }) }
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

    /// Enqueues many jobs, in batches of at most 1,000 jobs and 256 KiB, filling the next batch
    /// while earlier ones are in flight, and waits for all outcomes. Returns one receipt per job,
    /// in order; the ticket is the index. An error of one job does not affect the others, unless
    /// the call is [`atomic`](BatchOptions::atomic). The waits for each job are those of
    /// [`Producer::enqueue`].
    ///
    /// Not cancel safe: if the future is dropped, any of the jobs may have been accepted.
    /// Enqueueing the same jobs (the same ids) again at the same publisher is harmless.
    pub async fn enqueue_all(&self, jobs: Vec<NewJob>, options: BatchOptions) -> Vec<JobReceipt> {
        let driver = &self.handle.driver;
        let bounds = PipelineOptions {
            in_flight_jobs_max: driver.options.in_flight_jobs_max,
            in_flight_bytes_max: driver.options.in_flight_bytes_max,
            ..PipelineOptions::default()
        };
        let stream =
            CallStream { stream: driver.open_stream(StreamLimits::from(&bounds), None), driver };
        let mut receipts = vec![None; jobs.len()];
        let mut completions: Vec<Arc<BatchCompletion>> = Vec::new();
        if options.atomic {
            match push_atomic(driver, &stream.stream, &jobs).await {
                Ok(completion) => completions.push(completion),
                Err(error) => receipts.fill(Some(Err(error))),
            }
        } else {
            resolve_paths(driver, &jobs);
            // Waits once for a path without a publisher, not once for each of its jobs.
            let mut unrouted: hashbrown::HashMap<&Path, EnqueueError> = hashbrown::HashMap::new();
            for (ticket, job) in jobs.iter().enumerate() {
                let pushed = match unrouted.get(&job.path) {
                    Some(why) => (driver.push_if_routed(&stream.stream, ticket as u64, job).await)
                        .unwrap_or_else(|| Err(why.clone())),
                    None => driver.push(&stream.stream, ticket as u64, job, false).await,
                };
                match pushed {
                    Ok(pushed) => completions.extend(pushed.tag),
                    Err(error) => {
                        if is_path_error(&error) {
                            unrouted.insert(&job.path, error.clone());
                        }
                        receipts[ticket] = Some(Err(error));
                    }
                }
            }
        }
        stream.close();
        for completion in completions {
            for receipt in completion.wait().await.iter() {
                if let Some(slot) = receipts.get_mut(receipt.ticket.0 as usize) {
                    *slot = Some(receipt.outcome);
                }
            }
        }
        let with_ids = jobs.iter().zip(receipts).enumerate();
        with_ids
            .map(|(ticket, (job, outcome))| JobReceipt {
                ticket: JobTicket(ticket as u64),
                id: job.id,
                outcome: outcome.unwrap_or(Err(EnqueueError::Closed)),
            })
            .collect()
    }

    /// Creates a pipeline: jobs enter at one half, receipts leave at the other, a batch at a time.
    /// Built for throughput: a job costs neither a wait nor a wake-up of its own. Read receipts
    /// while sending, best in a task of their own. Use and drop it within the runtime.
    pub fn pipeline(&self, options: PipelineOptions) -> (Pipeline, Receipts) {
        let receipts = Arc::new(ReceiptQueue::default());
        let stream =
            self.handle.driver.open_stream(StreamLimits::from(&options), Some(receipts.clone()));
        Pipeline::new(self.handle.clone(), stream, options, receipts)
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
    /// error, including jobs enqueued meanwhile. Cancel safe.
    pub async fn settled(&self) {
        loop {
            let batch_ended = self.handle.driver.batch_ended();
            tokio::pin!(batch_ended);
            batch_ended.as_mut().enable();
            if self.handle.driver.step(|state, _| state.core.in_flight_jobs()) == 0 {
                return;
            }
            batch_ended.await;
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
    pub fn connect(self, cluster: impl Into<Cluster>) -> Producer {
        let resolver = ReadClient::builder().name(&self.name).connect(cluster);
        Producer::start(Directory::Resolver(resolver), self)
    }

    /// Creates the producer: see [`Producer::to_publishers`]. Needs a tokio runtime.
    pub fn to_publishers(self, publishers: impl IntoIterator<Item = PublisherInfo>) -> Producer {
        Producer::start(Directory::Named(publishers.into_iter().collect()), self)
    }
}

/// The stream of one call, closed at the end of the call or when it is dropped.
struct CallStream<'a> {
    stream: StreamHandle,
    driver: &'a Arc<Driver>,
}

impl CallStream<'_> {
    fn close(&self) {
        self.driver.step(|state, now| state.core.close_stream(now, self.stream.id));
    }
}

impl Drop for CallStream<'_> {
    fn drop(&mut self) {
        self.close();
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

/// True if the error applies to all jobs of the path, as long as it has no route.
fn is_path_error(error: &EnqueueError) -> bool {
    matches!(
        error,
        EnqueueError::NoPublisher { .. }
            | EnqueueError::IsValue { .. }
            | EnqueueError::PathRefused { .. }
            | EnqueueError::Resolver { .. }
            | EnqueueError::NotSent { .. }
    )
}

/// Resolves all paths in one request, not one after another.
fn resolve_paths(driver: &Arc<Driver>, jobs: &[NewJob]) {
    driver.step(|state, now| {
        for job in one_per_path(jobs) {
            state.core.route(now, &job.path, now);
        }
    });
}

fn one_per_path(jobs: &[NewJob]) -> Vec<&NewJob> {
    let mut seen: hashbrown::HashSet<&Path> = hashbrown::HashSet::new();
    jobs.iter().filter(|job| seen.insert(&job.path)).collect()
}
