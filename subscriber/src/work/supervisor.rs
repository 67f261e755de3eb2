//! The main task of a worker's run: starts handler tasks and links, forwards publisher sets and
//! timers to the session, and stops everything in order.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::SessionId;
use longshore_protocol::messages::work::Subscribe;
use longshore_transport::LinkOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::connect::FAR_FUTURE;
use crate::work::handler::attempts::Attempts;
use crate::work::handler::panic::install_hook;
use crate::work::handler_task;
use crate::work::link::{self, LinkConfig};
use crate::work::link_thread::LinkThread;
use crate::work::publisher_watches::{PublisherSource, PublisherWatches};
use crate::work::session::WorkerSession;
use crate::work::shutdown::Stop;
use crate::work::state::pause::TICK_INTERVAL;
use crate::{ShutdownHandle, WorkerReport};

/// The least time that a stopping worker waits for answers to its settles. The rest of the grace is
/// added: results of handlers that finished early may still be waiting for a slow disk.
const ANSWER_WAIT_MIN: Duration = Duration::from_secs(5);

/// The longest that a stopping worker waits for dropped handlers before it releases their jobs, or
/// ends: a handler that blocks its thread cannot be dropped.
pub(crate) const DROP_WAIT_MAX: Duration = Duration::from_millis(250);

/// The configuration of a run.
pub(crate) struct RunConfig {
    pub(crate) name: String,
    pub(crate) session_id: SessionId,
    pub(crate) link: LinkOptions,
    pub(crate) link_thread: LinkThread,
    pub(crate) subscriptions: Vec<Subscribe>,
    pub(crate) concurrency: usize,
    pub(crate) grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) handle: ShutdownHandle,
    pub(crate) shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Closes all links when the run ends in any way: a `StatsWatch` may keep the session alive.
struct CloseLinksOnDrop(Arc<WorkerSession>);

impl Drop for CloseLinksOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The phase of a shutdown.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ShutdownPhase {
    Working,
    /// Handlers may finish until this time.
    Finishing(Instant),
    /// Handlers are cancelled, and may return until this time.
    Cancelling(Instant),
    /// Handlers that have not returned are dropped, and their jobs released.
    Dropping,
    /// Settles may be answered until this time.
    AwaitingAnswers(Instant),
    Finished,
}

/// Runs until it is stopped. Dropping the future ends all its tasks at once.
pub(crate) async fn run(
    session: Arc<WorkerSession>,
    config: RunConfig,
    mut watches: PublisherWatches<impl PublisherSource>,
    attempts: Box<dyn Attempts>,
) -> WorkerReport {
    let _close_links = CloseLinksOnDrop(session.clone());
    install_hook();
    let mut ticks = JoinSet::new();
    ticks.spawn_on(
        each_tick(session.clone(), WorkerSession::record_tick),
        config.link_thread.runtime(),
    );
    ticks.spawn(each_tick(session.clone(), WorkerSession::record_handlers_tick));
    let mut handler_tasks = JoinSet::new();
    for _ in 0..config.concurrency {
        handler_tasks.spawn(handler_task::run(session.clone(), attempts.for_another_task()));
    }
    let link = Arc::new(LinkConfig {
        name: config.name,
        session_id: config.session_id,
        options: config.link,
        subscriptions: config.subscriptions,
    });
    let mut shutdown = config.shutdown.unwrap_or_else(|| Box::pin(std::future::pending()));
    let mut shutdown_done = false;
    let mut links = JoinSet::new();
    let mut phase = ShutdownPhase::Working;
    let mut grace_ends = None;
    loop {
        for connect in session.take_connects() {
            let serving = link::run(session.clone(), link.clone(), connect);
            links.spawn_on(serving, config.link_thread.runtime());
        }
        let stop = config.handle.stop();
        if stop == Stop::Drain {
            grace_ends.get_or_insert_with(|| Instant::now() + config.grace.min(FAR_FUTURE));
        }
        phase = next_phase(phase, &session, stop, grace_ends, config.cancel_grace);
        if phase == ShutdownPhase::Dropping {
            // Drop handlers before their jobs are released: another worker must not run a job that
            // still runs here.
            drop_handlers(&mut handler_tasks).await;
            session.release_running();
            phase = ShutdownPhase::AwaitingAnswers(answer_deadline(Instant::now(), grace_ends));
            continue;
        }
        let until = match phase {
            ShutdownPhase::Finished => break,
            ShutdownPhase::Working | ShutdownPhase::Dropping => None,
            ShutdownPhase::Finishing(at)
            | ShutdownPhase::Cancelling(at)
            | ShutdownPhase::AwaitingAnswers(at) => Some(at),
        };
        let tick = session.next_deadline().map(|at| session.started + at);
        let wake = until.into_iter().chain(tick).min();
        let next_stop = if phase == ShutdownPhase::Working { Stop::Drain } else { Stop::Now };
        tokio::select! {
            (complete, publishers) = watches.changed() => session.watched(complete, publishers),
            () = session.supervisor.notified() => {}
            () = sleep_until(wake), if wake.is_some() => session.tick(),
            () = config.handle.reached(next_stop) => {}
            () = &mut shutdown, if !shutdown_done => {
                shutdown_done = true;
                config.handle.drain();
            }
            Some(_) = links.join_next(), if !links.is_empty() => {}
        }
    }
    // The process may exit once this returns. A handler that is not dropped by then leaves what it
    // started, for example a command.
    drop_handlers(&mut handler_tasks).await;
    links.abort_all();
    session.report()
}

/// Drops handlers, and waits until that is done.
async fn drop_handlers(handler_tasks: &mut JoinSet<()>) {
    let _ = tokio::time::timeout(DROP_WAIT_MAX, handler_tasks.shutdown()).await;
    // Those that are left block their threads: do not wait for them again.
    handler_tasks.detach_all();
}

/// Calls `tick` every [`TICK_INTERVAL`], on the runtime that polls it.
async fn each_tick(session: Arc<WorkerSession>, tick: impl Fn(&WorkerSession)) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    // After a pause of the process, ticks in a burst would look like a blocked runtime.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tick(&session);
    }
}

/// Every wait has an end: the grace, the cancel grace, and the wait for answers.
fn next_phase(
    phase: ShutdownPhase,
    session: &WorkerSession,
    stop: Stop,
    grace_ends: Option<Instant>,
    cancel_grace: Duration,
) -> ShutdownPhase {
    let now = Instant::now();
    let mut phase = phase;
    if stop == Stop::Now {
        return ShutdownPhase::Finished;
    }
    if phase == ShutdownPhase::Working && stop == Stop::Drain {
        session.drain();
        phase = ShutdownPhase::Finishing(grace_ends.unwrap_or(now));
    }
    if let ShutdownPhase::Finishing(until) = phase
        && (now >= until || session.running() == 0)
    {
        session.cancel_all();
        phase = ShutdownPhase::Cancelling(now + cancel_grace.min(FAR_FUTURE));
    }
    if let ShutdownPhase::Cancelling(until) = phase
        && (now >= until || session.running() == 0)
    {
        phase = ShutdownPhase::Dropping;
    }
    if let ShutdownPhase::AwaitingAnswers(until) = phase
        && (now >= until || session.is_finished())
    {
        phase = ShutdownPhase::Finished;
    }
    phase
}

/// The deadline for answers to settles.
fn answer_deadline(now: Instant, grace_ends: Option<Instant>) -> Instant {
    grace_ends.map_or(now, |ends| ends.max(now)) + ANSWER_WAIT_MIN
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
    fn answers_may_use_the_rest_of_the_grace() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(answer_deadline(now, Some(after(25))), after(30));
        assert_eq!(answer_deadline(after(25), Some(after(25))), after(30));
        assert_eq!(answer_deadline(after(40), Some(after(25))), after(45), "5 s at least");
        assert_eq!(answer_deadline(now, None), after(5));
    }
}
