//! The attempts that one handler task runs, whatever the type of its handler.

use std::future::pending;
use std::task::{Context, Poll, ready};

use tokio_util::sync::ReusableBoxFuture;
use tracing::{Instrument, Span};

use crate::work::handler::panic::{Panicked, catch};
use crate::work::handler::service::failure_of;
use crate::{Completion, JobFailure, JobRequest, JobService};

type Outcome = Result<Completion, JobFailure>;

/// Runs a handler with its layers, one attempt at a time.
///
/// Behind it the worker does not know the handler's type: it is compiled once, in this crate and
/// with its settings, and not in each program for each handler.
pub(crate) trait Attempts: Send {
    /// The same handler, for another task.
    fn for_another_task(&self) -> Box<dyn Attempts>;

    /// Polls an attempt, in `span`. It takes the request once the handler's layers are ready. May
    /// panic; then only [`Attempts::discard`] may follow.
    fn poll(
        &mut self,
        request: &mut Option<JobRequest>,
        span: &Span,
        context: &mut Context<'_>,
    ) -> Poll<Outcome>;

    /// Drops an attempt that has not ended, and the clone of the handler that ran it. The error is
    /// the attempt's panic when it was dropped.
    fn discard(&mut self) -> Result<(), Panicked>;
}

/// The attempts of a service.
pub(crate) struct ServiceAttempts<S> {
    template: S,
    /// This task's own clone, made on first use. After a panic, a failed `poll_ready` and a
    /// [`discard`](Attempts::discard) the next attempt gets a fresh one. Beside the attempt, not in
    /// it: each may panic when it is dropped, and two panics at once end the process.
    service: Option<S>,
    /// Keeps its allocation from one attempt to the next.
    attempt: ReusableBoxFuture<'static, Outcome>,
}

impl<S: JobService> ServiceAttempts<S> {
    pub(crate) fn new(template: S) -> ServiceAttempts<S> {
        ServiceAttempts { template, service: None, attempt: ReusableBoxFuture::new(pending()) }
    }
}

impl<S: JobService> Attempts for ServiceAttempts<S> {
    fn for_another_task(&self) -> Box<dyn Attempts> {
        Box::new(ServiceAttempts::new(self.template.clone()))
    }

    fn poll(
        &mut self,
        request: &mut Option<JobRequest>,
        span: &Span,
        context: &mut Context<'_>,
    ) -> Poll<Outcome> {
        if request.is_some() {
            let service = self.service.get_or_insert_with(|| self.template.clone());
            if let Err(error) = ready!(span.in_scope(|| service.poll_ready(context))) {
                self.service = None;
                return Poll::Ready(Err(failure_of(error)));
            }
            if let Some(request) = request.take() {
                let call = span.in_scope(|| service.call(request));
                let span = span.clone();
                // Within the future: the span closes when it ends, not when the next replaces it.
                self.attempt.set(async move { call.instrument(span).await.map_err(failure_of) });
            }
        }
        self.attempt.poll(context)
    }

    fn discard(&mut self) -> Result<(), Panicked> {
        let dropped = catch(|| self.attempt.set(pending()));
        // A second panic adds nothing.
        let _ = catch(|| self.service = None);
        dropped
    }
}
