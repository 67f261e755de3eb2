//! The tasks that run handlers: each takes the next job, runs the handler in place, and settles it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use longshore_protocol::messages::work::{NewSettle, Started, ToPublisher, Tokens};
use longshore_protocol::{Entry, FrameWriter, JobError, TraceContext};
use longshore_transport::{LinkSender, LogLimit};
use parking_lot::Mutex;
use tokio::task::coop::Unconstrained;
use tokio::time::{Instant, Sleep};
use tracing::Span;
use tracing::field::{self, display};

use crate::work::handler::attempts::Attempts;
use crate::work::handler::failure::{dropped, job_error};
use crate::work::handler::output::settle_of;
use crate::work::handler::panic::catch_async;
use crate::work::lease_signal::LeaseSignal;
use crate::work::session::{FinishedJob, HandlerTaskStep, QueuedJob, WorkerSession};
use crate::{Completion, Job, JobContext, JobFailure, JobRequest};

/// The longest that jobs wait for their `Started` messages to leave the send queues, of all links
/// together: a slow link must not delay jobs of other publishers. The messages are advisory, and
/// stay queued.
const ANNOUNCE_WAIT_MAX: Duration = Duration::from_millis(200);

/// The log lines of failed attempts in each period, over all workers of the process.
const FAILURE_LINES_MAX: u32 = 100;
const FAILURE_LOG_PERIOD: Duration = Duration::from_secs(10);
static FAILURE_LOG: Mutex<LogLimit> =
    Mutex::new(LogLimit::new(FAILURE_LINES_MAX, FAILURE_LOG_PERIOD));

/// Runs jobs until the session reports that there are no more.
pub(crate) async fn run(session: Arc<WorkerSession>, mut attempts: Box<dyn Attempts>) {
    let mut signal = Arc::new(LeaseSignal::for_session(Arc::downgrade(&session) as _));
    let clock = session.clock_of_jobs();
    let mut ended = None;
    loop {
        match session.next(ended.take(), &mut signal) {
            HandlerTaskStep::Run(job) => {
                let run = run_job(&clock, &mut *attempts, job, signal.clone());
                let finished = ended.insert(run.await);
                if signal.has_threads() {
                    // A layer has ended the attempt, and could not end its blocking handler.
                    session.settle_early(finished);
                    signal.threads_ended().await;
                }
            }
            HandlerTaskStep::Announce(notices, jobs) => {
                let announced: Vec<LinkSender> = notices.into_iter().filter_map(announce).collect();
                let deadline = Instant::now() + ANNOUNCE_WAIT_MAX;
                for sender in announced {
                    // If the link dies here, the next link reports the running attempts.
                    let _ = tokio::time::timeout_at(deadline, sender.flushed()).await;
                }
                session.announced(jobs);
            }
            HandlerTaskStep::Wait => session.wait().await,
            HandlerTaskStep::Stop => return,
        }
        // A handler that never yields must not starve links and timers.
        tokio::task::coop::consume_budget().await;
    }
}

/// Reports the attempts that begin, before their payloads are read: a job that kills its worker
/// uses up an attempt, and jobs prefetched beside it do not.
fn announce((sender, tokens): (LinkSender, Tokens)) -> Option<LinkSender> {
    let mut out = FrameWriter::new();
    ToPublisher::Started(Started { tokens, running_ms: Vec::new() }).encode(&mut out);
    sender.send(out.finish()).is_ok().then_some(sender)
}

/// What attempts have in common.
pub(crate) struct JobClock {
    /// From when the times of their contexts count.
    pub(crate) started: Instant,
    /// How long a handler has to return once its job was taken away.
    pub(crate) cancel_grace: Duration,
}

/// Runs one attempt.
pub(crate) async fn run_job(
    JobClock { started, cancel_grace }: &JobClock,
    attempts: &mut dyn Attempts,
    job: QueuedJob,
    signal: Arc<LeaseSignal>,
) -> FinishedJob {
    let QueuedJob {
        slot_id,
        subscription,
        source,
        token,
        path,
        attempt,
        deliveries,
        checkpoints,
        times,
        entry,
    } = job;
    let end = |settle, panicked, damaged| FinishedJob {
        slot_id,
        subscription,
        source,
        token,
        settle,
        settled: false,
        panicked,
        damaged,
    };
    let unread = |settle: &NewSettle, id: &dyn fmt::Display| {
        let span = tracing::info_span!("job", %path, %token);
        let now = std::time::Instant::now();
        span.in_scope(|| log_failure(&FAILURE_LOG, now, settle, id, attempt));
    };
    let (entry, parents) = match Entry::read_for_worker(entry) {
        Ok(read) => read,
        Err(error) => {
            let settle = NewSettle::Bury(job_error("EntryNotDecoded", error));
            unread(&settle, &"unknown");
            return end(settle, false, false);
        }
    };
    if !entry.is_intact() {
        let error =
            job_error("PayloadDamaged", "the payload's checksum differs from the producer's");
        let settle = NewSettle::Fail(error);
        unread(&settle, &entry.id);
        return end(settle, false, true);
    }
    let keeps_result = entry.options.keep_result;
    let taken = signal.clone();
    let context = JobContext {
        signal,
        started: *started,
        id: entry.id,
        path: path.clone(),
        slot_id,
        token,
        attempt,
        max_attempts: entry.options.max_attempts,
        keeps_result,
        deliveries,
        earlier: checkpoints,
        times,
        trace: TraceContext::of(&entry.headers),
        parents: (!parents.is_empty()).then(|| parents.into()),
    };
    let span = span_of(&context);
    let Entry { id, headers, payload, .. } = entry;
    let job = Job { id, path, headers, payload };
    let request = JobRequest { job, context };
    let running = unless_hung(attempts, request, &span, &taken, *cancel_grace);
    let ended = catch_async(running).await;
    let (answer, panicked) = match ended {
        Ok(Some(answer)) => (answer, false),
        hung => {
            // What the handler has may panic when it is dropped. A second panic adds nothing.
            match hung.and(attempts.discard()) {
                Err(panicked) => (Err(JobFailure::Retry(panicked.error())), true),
                Ok(()) => (Err(dropped()), false),
            }
        }
    };
    let settle = settle_of(answer, keeps_result);
    if matches!(settle, NewSettle::Fail(_) | NewSettle::Bury(_)) {
        let now = std::time::Instant::now();
        span.in_scope(|| log_failure(&FAILURE_LOG, now, &settle, &id, attempt));
    }
    end(settle, panicked, false)
}

/// The output of a handler; none if it has not returned in time once its job was taken away: it
/// would keep its place for ever.
async fn unless_hung(
    attempts: &mut dyn Attempts,
    request: JobRequest,
    span: &Span,
    signal: &LeaseSignal,
    cancel_grace: Duration,
) -> Option<Result<Completion, JobFailure>> {
    let mut request = Some(request);
    let mut grace: Option<Pin<Box<Unconstrained<Sleep>>>> = None;
    poll_fn(|context| {
        if let Poll::Ready(outcome) = attempts.poll(&mut request, span, context) {
            return Poll::Ready(Some(outcome));
        }
        let waits_for_ever = cancel_grace == Duration::MAX;
        if waits_for_ever || (grace.is_none() && !signal.poll_revoked(context.waker())) {
            return Poll::Pending;
        }
        // The handler may use up the budget of the task each time.
        let grace = grace.get_or_insert_with(|| {
            Box::pin(tokio::task::unconstrained(tokio::time::sleep(cancel_grace)))
        });
        grace.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Logs a failed attempt, unless too many were logged.
pub(crate) fn log_failure(
    limit: &Mutex<LogLimit>,
    now: std::time::Instant,
    settle: &NewSettle,
    job: &dyn fmt::Display,
    attempt: u16,
) {
    let (NewSettle::Fail(error) | NewSettle::Bury(error)) = settle else { return };
    let Some(left_out) = limit.lock().admit(now) else { return };
    if left_out > 0 {
        tracing::warn!(left_out, "more attempts failed than the log shows");
    }
    let JobError { kind, message } = error;
    match settle {
        NewSettle::Bury(_) => {
            tracing::error!(%job, attempt, kind, error = message, "a job was buried");
        }
        _ => tracing::warn!(%job, attempt, kind, error = message, "an attempt failed"),
    }
}

/// The span that a handler runs in. It costs a comparison if no `tracing` subscriber is
/// interested.
fn span_of(context: &JobContext) -> Span {
    let span = tracing::info_span!(
        "job",
        id = %context.id,
        path = %context.path,
        attempt = context.attempt,
        token = %context.token,
        trace_id = field::Empty,
        parent_id = field::Empty,
    );
    if let Some(trace) = context.trace.as_ref().filter(|_| !span.is_disabled()) {
        span.record("trace_id", display(trace.trace_id()));
        span.record("parent_id", display(trace.parent_id()));
    }
    span
}
