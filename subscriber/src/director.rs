//! The run of a worker, from its first look at the resolver to its report: it starts lanes and
//! links, passes on what the resolver says and that time has passed, and stops everything in order.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::SessionId;
use longshore_protocol::messages::work::Sources;
use longshore_transport::LinkOptions;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::desk::Desk;
use crate::lane;
use crate::link::{self, LinkPlan};
use crate::publishers::{Sets, Watches};
use crate::shutdown::Stop;
use crate::standstill::TICK;
use crate::{JobService, ShutdownHandle, WorkerReport};

/// How long a stopping worker waits for the answers to the ends of its jobs, at least. What is left
/// of its grace is added: handlers that finished early have results that a slow disk may still
/// take.
const ANSWERS_WAIT_MIN: Duration = Duration::from_secs(5);

/// The longest that a stopping worker waits for the handlers that it drops, before it gives back
/// their jobs: one that blocks its thread cannot be dropped.
pub(crate) const DROP_WAIT_MAX: Duration = Duration::from_millis(250);

/// What counts as for ever: a clock cannot count to any end.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// What a run is to do.
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) session: SessionId,
    pub(crate) link: LinkOptions,
    pub(crate) sources: Sources,
    pub(crate) concurrency: usize,
    pub(crate) grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) handle: ShutdownHandle,
    pub(crate) shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Closes links however the run ends: whoever watches the counts keeps the desk.
struct CloseAtEnd(Arc<Desk>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How far the stopping has come.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Working,
    /// Handlers finish, until then.
    Finishing(Instant),
    /// Handlers were told to stop, and may return until then.
    Cancelling(Instant),
    /// Handlers that have not returned are dropped, and their jobs given back.
    Dropping,
    /// The ends of jobs are sent and answered, until then.
    Answering(Instant),
    Over,
}

/// Runs until it is told to stop. Dropped, it ends at once: its tasks end with it.
pub(crate) async fn run(
    desk: Arc<Desk>,
    plan: Plan,
    mut sets: Watches<impl Sets>,
    service: impl JobService,
) -> WorkerReport {
    let _links_end_with_the_run = CloseAtEnd(desk.clone());
    let mut ticks = JoinSet::new();
    ticks.spawn({
        let desk = desk.clone();
        async move {
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
                desk.beat();
            }
        }
    });
    let mut lanes = JoinSet::new();
    for _ in 0..plan.concurrency {
        lanes.spawn(lane::run(desk.clone(), service.clone()));
    }
    let link = Arc::new(LinkPlan {
        name: plan.name,
        session: plan.session,
        options: plan.link,
        sources: plan.sources,
    });
    let mut shutdown = plan.shutdown.unwrap_or_else(|| Box::pin(std::future::pending()));
    let mut shutdown_is_over = false;
    let mut links = JoinSet::new();
    let mut stage = Stage::Working;
    let mut grace_ends = None;
    loop {
        for connect in desk.connects() {
            links.spawn(link::run(desk.clone(), link.clone(), connect));
        }
        let stop = plan.handle.stop();
        if stop == Stop::Drain {
            grace_ends.get_or_insert_with(|| Instant::now() + plan.grace.min(FOR_EVER));
        }
        stage = next_stage(stage, &desk, stop, grace_ends, plan.cancel_grace);
        if stage == Stage::Dropping {
            // Before their jobs go back: nobody else is to run a job that still runs here.
            lanes.abort_all();
            let dropped = async { while lanes.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(DROP_WAIT_MAX, dropped).await;
            desk.give_back();
            stage = Stage::Answering(answers_until(Instant::now(), grace_ends));
            continue;
        }
        let until = match stage {
            Stage::Over => break,
            Stage::Working | Stage::Dropping => None,
            Stage::Finishing(at) | Stage::Cancelling(at) | Stage::Answering(at) => Some(at),
        };
        let tick = desk.next_deadline().map(|at| desk.started + at);
        let wake = until.into_iter().chain(tick).min();
        let next_stop = if stage == Stage::Working { Stop::Drain } else { Stop::Now };
        tokio::select! {
            (complete, publishers) = sets.changed() => desk.watched(complete, publishers),
            () = desk.director.notified() => {}
            () = sleep_until(wake), if wake.is_some() => desk.tick(),
            () = plan.handle.reached(next_stop) => {}
            () = &mut shutdown, if !shutdown_is_over => {
                shutdown_is_over = true;
                plan.handle.drain();
            }
            Some(_) = links.join_next(), if !links.is_empty() => {}
        }
    }
    lanes.abort_all();
    links.abort_all();
    desk.report()
}

/// Every wait has an end: the grace, the time to return after a cancellation, and that for answers.
fn next_stage(
    stage: Stage,
    desk: &Desk,
    stop: Stop,
    grace_ends: Option<Instant>,
    cancel_grace: Duration,
) -> Stage {
    let now = Instant::now();
    let mut stage = stage;
    if stop == Stop::Now {
        return Stage::Over;
    }
    if stage == Stage::Working && stop == Stop::Drain {
        desk.drain();
        stage = Stage::Finishing(grace_ends.unwrap_or(now));
    }
    if let Stage::Finishing(until) = stage
        && (now >= until || desk.running() == 0)
    {
        desk.cancel_all();
        stage = Stage::Cancelling(now + cancel_grace.min(FOR_EVER));
    }
    if let Stage::Cancelling(until) = stage
        && (now >= until || desk.running() == 0)
    {
        stage = Stage::Dropping;
    }
    if let Stage::Answering(until) = stage
        && (now >= until || desk.unanswered() == 0)
    {
        stage = Stage::Over;
    }
    stage
}

/// Until when the ends of jobs may be answered.
fn answers_until(now: Instant, grace_ends: Option<Instant>) -> Instant {
    grace_ends.map_or(now, |ends| ends.max(now)) + ANSWERS_WAIT_MIN
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_handlers_that_finished_early_have_the_rest_of_the_grace_to_be_answered() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(answers_until(now, Some(after(25))), after(30));
        assert_eq!(answers_until(after(25), Some(after(25))), after(30));
        assert_eq!(answers_until(after(40), Some(after(25))), after(45), "5 s at least");
        assert_eq!(answers_until(now, None), after(5));
    }
}
