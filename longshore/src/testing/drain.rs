//! Draining: runs a worker until no job is left at the clock's current time.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use longshore_protocol::SessionId;
use longshore_protocol::messages::work::{JobInfo, WorkerPattern};

use super::{ClockUnused, TestSystem};
use crate::{
    Feed, FeedFrom, FeedUpdate, Filter, Glob, JobId, JobSource, JobState, JobsQuery,
    MissingPublisher, Queues, QueuesError, RunError, Subscription, WorkerReport,
};

/// The outcome of a [`TestSystem::drain`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DrainReport {
    /// Jobs that the worker completed.
    pub completed: u64,
    /// Failed attempts, including panics; attempts that buried their job do not count.
    pub failed: u64,
    /// Jobs that the worker snoozed.
    pub snoozed: u64,
    /// Jobs that became dead letters during the call, each with its cause ([`JobInfo::death`]) and
    /// last error, oldest first.
    pub dead: Vec<JobInfo>,
    /// The worker's report.
    pub worker: WorkerReport,
}

/// Errors of a drain.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum DrainError {
    /// The worker failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The worker was stopped before its queues were empty.
    #[error("the worker was stopped with {ready} jobs ready and {running} running")]
    Stopped {
        /// Ready jobs.
        ready: u64,
        /// Running jobs.
        running: u64,
    },
    /// No progress for longer than [`TestSystem::drain_timeout`]: a handler hangs, or waits for the
    /// clock to be moved.
    #[error("no progress for {waited:?}, with {ready} jobs ready and {running} running")]
    Stuck {
        /// The time without progress, by the machine's clock.
        waited: Duration,
        /// Ready jobs.
        ready: u64,
        /// Running jobs.
        running: u64,
    },
    /// The publisher has stopped.
    #[error(transparent)]
    Clock(#[from] ClockUnused),
    /// The request to the publisher failed.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// The publisher did not answer.
    #[error("the publisher did not answer: {0}")]
    Unanswered(String),
}

/// Jobs that a drain waits for.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct PendingJobs {
    ready: u64,
    running: u64,
}

impl TestSystem {
    /// Runs a worker until none of its jobs is ready, running, or due for another attempt at the
    /// clock's current time; then drains it. This includes jobs that its handlers enqueue into its
    /// queues, but not jobs of paused queues. Jobs scheduled for later remain, as do those that a
    /// rate limit holds back: move the clock, and drain again with another worker.
    ///
    /// `run` is [`Subscription::run`] with the handler, or [`Subscription::run_blocking`]:
    ///
    /// ```
    /// # use longshore::Path;
    /// # use longshore::prelude::*;
    /// # use longshore::testing::TestSystem;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let system = TestSystem::start().await?;
    /// async fn bury(_: Job<String>, _: JobContext) -> Result<(), JobFailure> {
    ///     Err(JobFailure::bury("no such address"))
    /// }
    /// system.producer().enqueue(new_job(Path::new("/jobs/mail")?, "x")).await?;
    /// let worker = system.worker().durable_subscribe("/jobs/**");
    /// let report = system.drain(worker, |jobs| jobs.run(bury)).await?;
    /// let error = report.dead[0].error.as_ref();
    /// assert_eq!(error.map(|error| error.message.as_str()), Some("no such address"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Dropping the future stops the worker at once; its leases end once the clock is moved by 5 s.
    pub async fn drain<L, J: JobSource, F>(
        &self,
        subscription: Subscription<L, J>,
        run: impl FnOnce(Subscription<L, J>) -> F,
    ) -> Result<DrainReport, DrainError>
    where
        F: Future<Output = Result<WorkerReport, RunError>>,
    {
        let patterns = subscription.patterns()?;
        let queues = self.queues();
        let dead_before: HashSet<JobId> =
            dead(&queues, &patterns).await?.map(|job| job.id).collect();
        // Subscribe before the worker starts, so that no change is missed.
        let mut feed = queues.feed(Glob::everything(), FeedFrom::Now);
        self.wait_for_update(&mut feed, PendingJobs::default(), |update| {
            matches!(update, FeedUpdate::Follows { .. })
        })
        .await?;

        let (handle, session) = (subscription.shutdown_handle(), subscription.session());
        let running = run(subscription);
        tokio::pin!(running);
        let worker = tokio::select! {
            biased;
            quiet = self.until_idle(&queues, &patterns, &mut feed) => {
                quiet?;
                handle.drain();
                running.await?
            }
            ended = &mut running => {
                ended?;
                let PendingJobs { ready, running } = self.pending(&queues, &patterns).await?;
                return Err(DrainError::Stopped { ready, running });
            }
        };
        self.until_gone(&queues, session).await?;
        let died = dead(&queues, &patterns).await?.filter(|job| !dead_before.contains(&job.id));
        Ok(DrainReport {
            completed: worker.completed,
            failed: worker.failed,
            snoozed: worker.snoozed,
            dead: died.collect(),
            worker,
        })
    }

    async fn until_idle(
        &self,
        queues: &Queues,
        patterns: &[Glob],
        feed: &mut Feed,
    ) -> Result<(), DrainError> {
        loop {
            let mut pending = self.pending(queues, patterns).await?;
            // Between the timers and the stats the last handler may have failed with a retry that
            // is due at once. Check again when no job is running.
            if pending == PendingJobs::default() {
                pending = self.pending(queues, patterns).await?;
            }
            if pending == PendingJobs::default() {
                return Ok(());
            }
            self.wait_for_update(feed, pending, |update| matches!(update, FeedUpdate::Changes(_)))
                .await?;
        }
    }

    /// Waits until the publisher has seen the end of the worker's link. Otherwise a job that a move
    /// of the clock makes ready could be delivered to it, and its lease would wait for the clock.
    async fn until_gone(&self, queues: &Queues, session: SessionId) -> Result<(), DrainError> {
        let waited = self.drain_timeout;
        let gone = async {
            loop {
                let worker = WorkerPattern::of_session(session);
                let linked = queues.quiet_workers(vec![worker], true, true).await?;
                answered(&linked.missing)?;
                if linked.answers.iter().all(|at| at.answer.is_empty()) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let stuck = |_| DrainError::Stuck { waited, ready: 0, running: 0 };
        tokio::time::timeout(waited, gone).await.map_err(stuck)?
    }

    /// Fires the timers that are due, and returns the remaining jobs.
    async fn pending(&self, queues: &Queues, patterns: &[Glob]) -> Result<PendingJobs, DrainError> {
        self.advance(Duration::ZERO).await?;
        let stats = queues.stats(Glob::everything()).await?;
        answered(&stats.missing)?;
        let mut pending = PendingJobs::default();
        for stat in stats.answers.iter().flat_map(|at| &at.answer) {
            if patterns.iter().any(|pattern| pattern.matches(&stat.path)) {
                let is_paused = !stat.paused_by.is_empty();
                let opens_at = stat.limited_by.as_ref().and_then(|limit| limit.until);
                let is_for_later = opens_at.is_some_and(|at| at > self.now_ms());
                let waits = is_paused || is_for_later;
                pending.ready += if waits { 0 } else { stat.counts.ready };
                pending.running += stat.counts.running;
            }
        }
        Ok(pending)
    }

    /// Waits for update that match `wanted`.
    async fn wait_for_update(
        &self,
        feed: &mut Feed,
        pending: PendingJobs,
        wanted: impl Fn(&FeedUpdate) -> bool,
    ) -> Result<(), DrainError> {
        let waited = self.drain_timeout;
        let update = async {
            while let Some(item) = feed.next().await {
                // After a gap or a new link, changes may have been missed: check again.
                let may_have_gap =
                    matches!(item.update, FeedUpdate::Lost(_) | FeedUpdate::Follows { .. });
                if may_have_gap || wanted(&item.update) {
                    return;
                }
            }
        };
        let PendingJobs { ready, running } = pending;
        let stuck = |_| DrainError::Stuck { waited, ready, running };
        tokio::time::timeout(waited, update).await.map_err(stuck)
    }
}

/// The dead letters of these queues, oldest first.
async fn dead(
    queues: &Queues,
    patterns: &[Glob],
) -> Result<impl Iterator<Item = JobInfo>, DrainError> {
    let filter = Filter::of(Glob::everything()).in_state(JobState::Dead);
    let query = JobsQuery { full: true, ..JobsQuery::of(filter) };
    let mut pages = queues.jobs(query).await?;
    let mut dead = Vec::new();
    while let Some(page) = pages.next().await {
        let takes = |job: &JobInfo| patterns.iter().any(|pattern| pattern.matches(&job.path));
        dead.extend(page.jobs.into_iter().filter(takes));
    }
    answered(pages.missing())?;
    dead.sort_by_key(|job| job.ended_at);
    Ok(dead.into_iter())
}

fn answered(missing: &[MissingPublisher]) -> Result<(), DrainError> {
    match missing.first() {
        Some(missing) => Err(DrainError::Unanswered(missing.why.clone())),
        None => Ok(()),
    }
}
