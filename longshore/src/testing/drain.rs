//! Draining: a worker runs until there is nothing left to do at the time that the clock says.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use longshore_protocol::messages::work::JobInfo;

use super::{ClockUnused, System};
use crate::{
    Feed, FeedFrom, FeedNews, Filter, Glob, JobId, JobState, JobsQuery, Missing, Queues,
    QueuesError, RunError, Subscription, TakeError, WorkerReport,
};

/// What became of jobs in a [`System::drain`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DrainReport {
    /// Jobs that the worker completed.
    pub completed: u64,
    /// Attempts that failed, panics among them; those that buried their job are not.
    pub failed: u64,
    /// Jobs that the worker put off.
    pub snoozed: u64,
    /// Jobs that have gone to the dead letters meanwhile, each with why ([`JobInfo::death`]) and
    /// its last error, oldest first.
    pub dead: Vec<JobInfo>,
    /// All that the worker counted.
    pub worker: WorkerReport,
}

/// Why a drain did not come to its end.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum DrainError {
    /// There is nothing to take jobs from.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The worker did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The worker came to its end before its queues did: somebody stopped it.
    #[error("the worker was stopped with {ready} jobs ready and {running} running")]
    Stopped {
        /// Jobs that wait for a worker.
        ready: u64,
        /// Jobs held by workers.
        running: u64,
    },
    /// Nothing has happened for longer than [`System::patience`]: a handler hangs, or waits for the
    /// clock to be moved.
    #[error("nothing has happened for {waited:?}, with {ready} jobs ready and {running} running")]
    Stuck {
        /// How long, by the machine's clock.
        waited: Duration,
        /// Jobs that wait for a worker.
        ready: u64,
        /// Jobs held by workers.
        running: u64,
    },
    /// The publisher has stopped.
    #[error(transparent)]
    Clock(#[from] ClockUnused),
    /// The publisher could not be asked.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// The publisher did not answer.
    #[error("the publisher did not answer: {0}")]
    Unanswered(String),
}

/// Jobs that are not at rest.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Busy {
    ready: u64,
    running: u64,
}

impl System {
    /// Runs a worker until none of the jobs that it takes is ready, running, or due for another
    /// attempt at the time that the clock says; then drains it. Jobs that its handlers enqueue are
    /// among them, if it takes those, and jobs of paused queues are not. What waits for later is
    /// left: move the clock, and drain again with another worker.
    ///
    /// `run` is [`Subscription::run`] with the handler, or [`Subscription::run_blocking`]:
    ///
    /// ```
    /// # use longshore::prelude::*;
    /// # use longshore::testing::System;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let system = System::start().await?;
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
    pub async fn drain<L, F>(
        &self,
        subscription: Subscription<L>,
        run: impl FnOnce(Subscription<L>) -> F,
    ) -> Result<DrainReport, DrainError>
    where
        F: Future<Output = Result<WorkerReport, RunError>>,
    {
        let patterns: Vec<Glob> = subscription.take().patterns()?.cloned().collect();
        let queues = self.queues();
        let dead_before: HashSet<JobId> =
            dead(&queues, &patterns).await?.map(|job| job.id).collect();
        // Followed before anything can happen, so that nothing is waited for that was missed.
        let mut feed = queues.feed(Glob::everything(), FeedFrom::Now);
        self.happens(&mut feed, Busy::default(), |news| matches!(news, FeedNews::Follows { .. }))
            .await?;

        let handle = subscription.handle();
        let running = run(subscription);
        tokio::pin!(running);
        let worker = tokio::select! {
            biased;
            quiet = self.until_quiet(&queues, &patterns, &mut feed) => {
                quiet?;
                handle.drain();
                running.await?
            }
            ended = &mut running => {
                ended?;
                let Busy { ready, running } = self.busy(&queues, &patterns).await?;
                return Err(DrainError::Stopped { ready, running });
            }
        };
        let died = dead(&queues, &patterns).await?.filter(|job| !dead_before.contains(&job.id));
        Ok(DrainReport {
            completed: worker.completed,
            failed: worker.failed,
            snoozed: worker.snoozed,
            dead: died.collect(),
            worker,
        })
    }

    async fn until_quiet(
        &self,
        queues: &Queues,
        patterns: &[Glob],
        feed: &mut Feed,
    ) -> Result<(), DrainError> {
        loop {
            let mut busy = self.busy(queues, patterns).await?;
            // Between the turn and the look the last handler may have failed, and be due at once:
            // looked at again once nobody can end.
            if busy == Busy::default() {
                busy = self.busy(queues, patterns).await?;
            }
            if busy == Busy::default() {
                return Ok(());
            }
            self.happens(feed, busy, |news| matches!(news, FeedNews::Changes(_))).await?;
        }
    }

    /// What is still to be done, once all that is due now has come due.
    async fn busy(&self, queues: &Queues, patterns: &[Glob]) -> Result<Busy, DrainError> {
        self.advance(Duration::ZERO).await?;
        let stats = queues.stats(Glob::everything()).await?;
        answered(&stats.missing)?;
        let mut busy = Busy::default();
        for stat in stats.answers.iter().flat_map(|at| &at.answer) {
            if patterns.iter().any(|pattern| pattern.matches(&stat.path)) {
                let is_paused = !stat.paused_by.is_empty();
                busy.ready += if is_paused { 0 } else { stat.counts.ready };
                busy.running += stat.counts.running;
            }
        }
        Ok(busy)
    }

    /// Waits for such news.
    async fn happens(
        &self,
        feed: &mut Feed,
        busy: Busy,
        wanted: impl Fn(&FeedNews) -> bool,
    ) -> Result<(), DrainError> {
        let waited = self.patience;
        let news = async {
            while let Some(item) = feed.next().await {
                // After a loss or a new link nobody knows what was missed: it is looked at.
                let again = matches!(item.news, FeedNews::Lost(_) | FeedNews::Follows { .. });
                if again || wanted(&item.news) {
                    return;
                }
            }
        };
        let Busy { ready, running } = busy;
        let stuck = |_| DrainError::Stuck { waited, ready, running };
        tokio::time::timeout(waited, news).await.map_err(stuck)
    }
}

/// The dead letters of these queues, oldest first.
async fn dead(
    queues: &Queues,
    patterns: &[Glob],
) -> Result<impl Iterator<Item = JobInfo>, DrainError> {
    let filter = Filter::of(Glob::everything()).in_state(JobState::Dead);
    let query = JobsQuery { filter, cursor: 0, limit: 1_000, full: true };
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

fn answered(missing: &[Missing]) -> Result<(), DrainError> {
    match missing.first() {
        Some(missing) => Err(DrainError::Unanswered(missing.why.clone())),
        None => Ok(()),
    }
}
