//! Reports how attempts end: metrics, error reporting.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::work::handler::failure::dropped;
use crate::work::handler::panic::{catch, catch_async};
use crate::work::handler::service::failure_of;
use crate::work::kinds::Running;
use crate::{CancelReason, Completion, JobContext, JobFailure, JobRequest, JobService};

/// How an attempt ended, as the layers within [`Observe`] and the handler have decided it. The
/// publisher may still refuse it, with a stale token.
#[derive(Debug)]
pub struct AttemptEnd<'a> {
    /// The job and its lease.
    pub context: &'a JobContext,
    /// The result, or what becomes of the job. A panic is a [`JobFailure::Retry`].
    pub outcome: Result<&'a Completion, &'a JobFailure>,
    /// True if the attempt panicked.
    pub panicked: bool,
    /// How long it ran.
    pub elapsed: Duration,
}

/// A layer that calls a function at the end of each attempt: for metrics, with whichever library
/// the program uses. A handler that does not return after its job was taken away is dropped, which
/// is a [`JobFailure::Retry`] of the kind `Dropped`. Attempts that the end of the run drops have no
/// end, unless their jobs were taken away before.
///
/// The function runs in the handler's task: it must not block. Its own panic is logged, and changes
/// no outcome.
pub struct Observe<F> {
    function: Arc<F>,
}

impl<F: Fn(&AttemptEnd<'_>)> Observe<F> {
    /// Calls `function` at the end of each attempt.
    pub fn new(function: F) -> Observe<F> {
        Observe { function: Arc::new(function) }
    }
}

/// A layer that calls `report` for each attempt that fails or buries its job: for error reporting.
/// Jobs that are snoozed or released are no errors. Otherwise as [`Observe`].
pub fn on_error<F>(report: F) -> Observe<impl Fn(&AttemptEnd<'_>) + Send + Sync + 'static>
where
    F: Fn(&JobContext, &JobFailure) + Send + Sync + 'static,
{
    Observe::new(move |end: &AttemptEnd<'_>| {
        if let Err(failure @ (JobFailure::Retry(_) | JobFailure::Bury(_))) = end.outcome {
            report(end.context, failure);
        }
    })
}

impl<F> Clone for Observe<F> {
    fn clone(&self) -> Observe<F> {
        Observe { function: self.function.clone() }
    }
}

impl<F> fmt::Debug for Observe<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observe").finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for Observe<F> {
    type Service = ObserveService<S, F>;

    fn layer(&self, inner: S) -> ObserveService<S, F> {
        ObserveService { inner, observe: self.clone() }
    }
}

/// The service of [`Observe`].
#[derive(Debug)]
pub struct ObserveService<S, F> {
    inner: S,
    observe: Observe<F>,
}

impl<S: Clone, F> Clone for ObserveService<S, F> {
    fn clone(&self) -> ObserveService<S, F> {
        ObserveService { inner: self.inner.clone(), observe: self.observe.clone() }
    }
}

/// An attempt, from its call to its report.
struct Attempt<F: Fn(&AttemptEnd<'_>)> {
    function: Arc<F>,
    context: JobContext,
    began: Instant,
    reported: bool,
}

impl<F: Fn(&AttemptEnd<'_>)> Attempt<F> {
    fn report(&mut self, outcome: Result<&Completion, &JobFailure>, panicked: bool) {
        self.reported = true;
        let (context, elapsed) = (&self.context, self.began.elapsed());
        let end = AttemptEnd { context, outcome, panicked, elapsed };
        if let Err(panic) = catch(|| (self.function)(&end)) {
            let error = panic.error();
            tracing::error!(kind = error.kind, message = error.message, "an observer panicked");
        }
    }
}

impl<F: Fn(&AttemptEnd<'_>)> Drop for Attempt<F> {
    /// Reports a handler that did not return after its job was taken away.
    fn drop(&mut self) {
        let reason = self.context.cancel_reason();
        if !self.reported && reason.is_some_and(|reason| reason != CancelReason::Shutdown) {
            self.report(Err(&dropped()), false);
        }
    }
}

impl<S, F> Service<JobRequest> for ObserveService<S, F>
where
    S: JobService,
    S::Future: 'static,
    F: Fn(&AttemptEnd<'_>) + Send + Sync + 'static,
{
    type Response = Completion;
    type Error = JobFailure;
    type Future = Running;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        self.inner.poll_ready(context).map_err(failure_of)
    }

    fn call(&mut self, request: JobRequest) -> Running {
        let (context, function) = (request.context.clone(), self.observe.function.clone());
        let mut attempt = Attempt { function, context, began: Instant::now(), reported: false };
        let called = catch(|| self.inner.call(request));
        Box::pin(async move {
            let ended = match called {
                Ok(running) => catch_async(running).await,
                Err(panicked) => Err(panicked),
            };
            match ended {
                Ok(answer) => {
                    let answer = answer.map_err(failure_of);
                    attempt.report(answer.as_ref(), false);
                    answer
                }
                Err(panicked) => {
                    attempt.report(Err(&JobFailure::Retry(panicked.error())), true);
                    // The worker counts it.
                    resume_unwind(Box::new(panicked))
                }
            }
        })
    }
}
