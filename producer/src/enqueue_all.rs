//! Enqueues the jobs of an iterator; the results come in its order.

use std::collections::VecDeque;
use std::future::{Future, IntoFuture, poll_fn};
use std::iter::Fuse;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use hashbrown::HashMap;
use longshore_kinds::IntoJob;
use longshore_protocol::{JobId, NewJob, Path};

use crate::core::{PushError, StreamLimits, Time};
use crate::driver::StreamHandle;
use crate::handle::ProducerHandle;
use crate::ids::{new_id, to_job};
use crate::outcome::{EnqueueError, EnqueueResult, Receipt};
use crate::receipt_queue::ReceiptQueue;

/// How long a partial batch waits for a slow iterator.
const LINGER: Duration = Duration::from_millis(10);
/// Jobs sent at a time; then other tasks of the runtime have their turn.
const TURN_JOBS: usize = 1_000;
/// Jobs taken ahead of one whose path is not resolved, so that one request resolves all paths.
const AHEAD_JOBS_MAX: usize = 1_000;
/// Bytes of payload of these jobs; the last one may exceed it.
const AHEAD_BYTES_MAX: usize = 1024 * 1024;
/// How long the paths that were forgotten during a long wait may take to be resolved again.
const RESOLVE_AGAIN_WAIT: Duration = Duration::from_secs(15);
/// Most paths without a publisher that are not waited for again.
const UNROUTED_PATHS_MAX: usize = 1_024;

/// Jobs to enqueue ([`Producer::enqueue_all`](crate::Producer::enqueue_all)). Awaited, it returns
/// the results of all; [`next`](EnqueueAll::next), or the [`Stream`], returns one at a time, and
/// needs memory only for the jobs in flight.
///
/// Dropping it sends open batches and takes no more from the iterator: any job of theirs may have
/// been accepted. Up to 1,000 jobs that were read ahead, for paths without a known publisher, are
/// not sent. Enqueueing the same jobs (the same ids) again at the same publisher is harmless.
#[must_use = "jobs are enqueued once this is awaited"]
pub struct EnqueueAll<I> {
    handle: Arc<ProducerHandle>,
    stream: StreamHandle,
    receipts: Arc<ReceiptQueue>,
    jobs: Fuse<I>,
    /// Jobs taken from the iterator and not sent.
    ahead: VecDeque<(JobId, Result<NewJob, EnqueueError>)>,
    /// The push of the last job in `results`, while its path has no route.
    unrouted_push: Option<(Target, PendingPush)>,
    /// When the paths of the jobs in `ahead` were first requested.
    requested_at: Time,
    /// When the wait for these paths began. Later than the request if some were forgotten.
    waits_since: Time,
    /// The errors of paths without a publisher: one wait for each path, not one for each job.
    unrouted: HashMap<Target, EnqueueError>,
    /// Jobs that were sent and whose result was not returned; the index of the first one.
    results: VecDeque<PendingResult>,
    first: u64,
    /// Most jobs in `results`.
    window: usize,
}

type PendingPush = Pin<Box<dyn Future<Output = Result<(), EnqueueError>> + Send>>;

struct PendingResult {
    id: JobId,
    outcome: Option<Result<Receipt, EnqueueError>>,
}

/// Nothing in it is pinned.
impl<I> Unpin for EnqueueAll<I> {}

impl<I: Iterator<Item: IntoJob>> EnqueueAll<I> {
    pub(crate) fn new(handle: Arc<ProducerHandle>, jobs: I) -> EnqueueAll<I> {
        let options = &handle.driver.options;
        let window = options.in_flight_jobs_max;
        let limits = StreamLimits {
            in_flight_jobs_max: window,
            in_flight_bytes_max: options.in_flight_bytes_max,
            linger: LINGER,
            // Only full batches, while the iterator is fast enough.
            eager_batches: 0,
            ..StreamLimits::default()
        };
        let receipts = Arc::new(ReceiptQueue::default());
        let stream = handle.driver.open_stream(limits, Some(receipts.clone()));
        EnqueueAll {
            handle,
            stream,
            receipts,
            jobs: jobs.fuse(),
            ahead: VecDeque::new(),
            unrouted_push: None,
            requested_at: Time::ZERO,
            waits_since: Time::ZERO,
            unrouted: HashMap::new(),
            results: VecDeque::new(),
            first: 0,
            window,
        }
    }

    /// The result of the next job, in the order of the iterator; `None` after the last one. Takes
    /// jobs from the iterator while fewer results than
    /// [`in_flight_jobs_max`](crate::ProducerBuilder::in_flight_jobs_max) were not returned. Cancel
    /// safe.
    pub async fn next(&mut self) -> Option<EnqueueResult> {
        poll_fn(|context| self.poll_result(context)).await
    }

    fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<Option<EnqueueResult>> {
        if let Some(result) = self.pop_result(false) {
            return Poll::Ready(Some(result));
        }
        if self.receive(context) {
            return Poll::Ready(self.pop_result(true));
        }
        let more = self.send(context).is_ready();
        if let Some(result) = self.pop_result(false) {
            return Poll::Ready(Some(result));
        }
        if more {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Stores finished batches. True after the last one; otherwise the next one wakes the task.
    fn receive(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            match self.receipts.poll_next(context) {
                Poll::Ready(Some(batch)) => {
                    for receipt in batch.iter() {
                        let at = receipt.index.checked_sub(self.first);
                        let slot = at.and_then(|at| self.results.get_mut(at as usize));
                        if let Some(slot) = slot {
                            slot.outcome = Some(receipt.outcome);
                        }
                    }
                }
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }

    /// Sends up to [`TURN_JOBS`] jobs. Ready if there may be more; otherwise a batch or a route
    /// wakes the task.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURN_JOBS {
            if let Some((_, push)) = &mut self.unrouted_push {
                let pushed = ready!(push.as_mut().poll(context));
                self.end_unrouted_push(pushed);
            }
            if self.results.len() >= self.window {
                return Poll::Pending;
            }
            if self.ahead.is_empty() {
                // These errors are those of the jobs that were read ahead: later ones wait again.
                self.unrouted.clear();
            }
            let Some((id, job)) = self.ahead.pop_front().or_else(|| self.take()) else {
                self.close();
                return Poll::Pending;
            };
            let job = match job {
                Ok(job) => job,
                Err(error) => {
                    self.results.push_back(PendingResult { id, outcome: Some(Err(error)) });
                    continue;
                }
            };
            let index = self.first + self.results.len() as u64;
            let outcome = match self.handle.driver.try_push(&self.stream, index, &job, false) {
                Ok(_) => None,
                Err(PushError::Never(error)) => Some(Err(error)),
                Err(PushError::Full) => {
                    // Jobs of this stream are in flight; their receipts wake the task.
                    self.ahead.push_front((id, Ok(job)));
                    return Poll::Pending;
                }
                Err(PushError::NoRoute) => {
                    let outdated = self.request_is_outdated();
                    match self.unrouted.get(&target(&job)).filter(|_| !outdated) {
                        Some(error) => Some(Err(error.clone())),
                        None => {
                            self.begin_unrouted_push(index, job, outdated);
                            None
                        }
                    }
                }
            };
            self.results.push_back(PendingResult { id, outcome });
        }
        Poll::Ready(())
    }

    /// Takes a job from the iterator.
    fn take(&mut self) -> Option<(JobId, Result<NewJob, EnqueueError>)> {
        let job = self.jobs.next()?;
        let id = new_id();
        let job = to_job(job, || id);
        Some((job.as_ref().map_or(id, |job| job.id), job))
    }

    /// True if the first request for the jobs in `ahead` ended an answer timeout ago: these jobs
    /// waited for something else meanwhile.
    fn request_is_outdated(&self) -> bool {
        let age = self.handle.driver.now().saturating_sub(self.requested_at);
        age > self.handle.driver.options.answer_timeout.saturating_mul(2)
    }

    /// Waits for a route of the job, and meanwhile resolves the paths of the next jobs.
    fn begin_unrouted_push(&mut self, index: u64, job: NewJob, outdated: bool) {
        let reads_ahead = self.ahead.is_empty();
        if reads_ahead {
            let mut bytes = 0;
            while self.ahead.len() < AHEAD_JOBS_MAX && bytes < AHEAD_BYTES_MAX {
                let Some(next) = self.take() else { break };
                bytes += next.1.as_ref().map_or(0, |job| job.payload.len());
                self.ahead.push_back(next);
            }
        }
        let is_forgotten = !self.handle.driver.is_known(&job.path);
        if reads_ahead || outdated || is_forgotten {
            let ahead = self.ahead.iter().filter_map(|(_, job)| job.as_ref().ok());
            let now = self.handle.driver.request_routes(std::iter::once(&job).chain(ahead));
            if reads_ahead || outdated {
                self.unrouted.clear();
                (self.requested_at, self.waits_since) = (now, now);
            } else {
                // Paths are forgotten while an earlier job waits for long. They have time to be
                // resolved again, but not for another whole wait each.
                let limit = self.handle.driver.options.answer_timeout;
                let again = (now + RESOLVE_AGAIN_WAIT.min(limit)).saturating_sub(limit);
                self.waits_since = self.waits_since.max(again);
            }
        }
        let (handle, stream, path) = (self.handle.clone(), self.stream.clone(), target(&job));
        let since = self.waits_since;
        let push = async move {
            handle.driver.push_later(&stream, since, index, &job, false).await.map(drop)
        };
        self.unrouted_push = Some((path, Box::pin(push)));
    }

    fn end_unrouted_push(&mut self, pushed: Result<(), EnqueueError>) {
        let (Some((path, _)), Err(error)) = (self.unrouted_push.take(), pushed) else { return };
        if error.is_of_the_path() && self.unrouted.len() < UNROUTED_PATHS_MAX {
            self.unrouted.insert(path, error.clone());
        }
        if let Some(last) = self.results.back_mut() {
            last.outcome = Some(Err(error));
        }
    }

    /// The first result, once it is known, or once no more receipts arrive.
    fn pop_result(&mut self, ended: bool) -> Option<EnqueueResult> {
        if !ended && self.results.front()?.outcome.is_none() {
            return None;
        }
        let PendingResult { id, outcome } = self.results.pop_front()?;
        let index = self.first;
        self.first += 1;
        Some(EnqueueResult { index, id, outcome: outcome.unwrap_or(Err(EnqueueError::Closed)) })
    }
}

/// The job's path, and whether only the path's home may get the job.
type Target = (Path, bool);

fn target(job: &NewJob) -> Target {
    (job.path.clone(), job.has_keys())
}

impl<I> EnqueueAll<I> {
    /// Sends what is left in open batches; the receipts end after the last one.
    fn close(&self) {
        self.handle.driver.step(|state, now| state.core.close_stream(now, self.stream.id));
    }
}

impl<I> Drop for EnqueueAll<I> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<I: Iterator<Item: IntoJob>> Stream for EnqueueAll<I> {
    type Item = EnqueueResult;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<EnqueueResult>> {
        self.get_mut().poll_result(context)
    }
}

impl<I: Iterator<Item: IntoJob>> IntoFuture for EnqueueAll<I> {
    type Output = Vec<EnqueueResult>;
    type IntoFuture = AllResults<I>;

    fn into_future(mut self) -> AllResults<I> {
        // All results are retained anyway: a batch without an answer does not stop later ones.
        self.window = usize::MAX;
        AllResults { jobs: self, results: Vec::new() }
    }
}

/// Awaits the results of all jobs ([`EnqueueAll`]).
#[must_use = "jobs are enqueued once this is awaited"]
pub struct AllResults<I> {
    jobs: EnqueueAll<I>,
    results: Vec<EnqueueResult>,
}

impl<I: Iterator<Item: IntoJob>> Future for AllResults<I> {
    type Output = Vec<EnqueueResult>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<EnqueueResult>> {
        let AllResults { jobs, results } = self.get_mut();
        while let Some(result) = ready!(jobs.poll_result(context)) {
            results.push(result);
        }
        Poll::Ready(std::mem::take(results))
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{Epoch, Homes, PublisherId, PublisherInfo, Terms};
    use longshore_resolver::{Cluster, PathAnswer, Publication, Resolution};
    use tokio::time::sleep;

    use super::*;
    use crate::{Producer, new_job};

    /// The paths are forgotten while the job before them waits for a home that is away.
    #[tokio::test(start_paused = true)]
    async fn paths_that_were_forgotten_during_a_long_wait_are_resolved_again() {
        let mut cluster = Cluster::from("127.0.0.1:1");
        // The replica never answers; this test does.
        cluster.timing.tries = u32::MAX;
        let limit = Duration::from_secs(120);
        let producer = Producer::builder().answer_timeout(limit).connect(cluster);
        let [away, healthy, other] =
            ["/away", "/healthy", "/away/other"].map(|text| Path::new(text).expect("a path"));
        let keyed = |path: &Path| new_job(path.clone(), "x").idempotency_key("key");
        let plain = || new_job(healthy.clone(), "x");
        let mut all = producer.enqueue_all([keyed(&away), plain(), keyed(&other), plain()]);

        let homes = ["/away", "/away/other"]
            .map(|text| (text.parse().expect("a pattern"), vec!["other".to_owned()]));
        let homes = Homes::new(homes);
        let terms = Terms { homes: homes.expect("homes"), ..Terms::default() };
        let address = [([127, 0, 0, 1], 1)];
        let publisher = PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "one", address);
        let set: Arc<[Publication]> = [Publication { publisher, terms }].into();
        let driver = all.handle.driver.clone();
        tokio::spawn(async move {
            loop {
                let mut paths = vec![away.clone()];
                // The others are refreshed once. Later no job uses them.
                let seconds = driver.now().as_secs();
                if seconds < 1 || (35..40).contains(&seconds) || seconds >= limit.as_secs() {
                    paths.extend([healthy.clone(), other.clone()]);
                }
                let set = set.clone();
                let answer = PathAnswer::Publishers { set, by_default: false, fallback: None };
                let answers = vec![answer; paths.len()];
                let resolution = Resolution { complete: true, answers };
                driver.step(|state, now| state.core.resolved(now, &paths, Ok(resolution)));
                // More often than the producer asks: no job sees a request without an answer.
                sleep(Duration::from_millis(300)).await;
            }
        });

        let outcome = all.next().await.expect("a result").outcome;
        assert!(matches!(outcome, Err(EnqueueError::HomeAway { .. })), "{outcome:?}");
        let next = tokio::time::timeout(limit / 2, all.next()).await;
        assert!(next.is_err(), "it waits for a link: {next:?}");
        let ended = all.results.iter().map(|result| result.outcome.is_some());
        let ended: Vec<bool> = ended.collect();
        assert_eq!(ended, [false, true, false], "the third waited with the first");
    }
}
