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
/// It hides the handler's type from the worker. So rustc compiles the worker once, with the
/// settings of this crate, and not again in each program for each handler.
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

    /// Drops an attempt that has not ended, and the clone of the handler that ran it. An error
    /// means that the attempt panicked when it was dropped.
    fn discard(&mut self) -> Result<(), Panicked>;
}

/// The attempts of a service.
pub(crate) struct ServiceAttempts<S> {
    /// Keeps its allocation from one attempt to the next. Dropped before the handler.
    attempt: ReusableBoxFuture<'static, Outcome>,
    /// This task's own clone of the handler, made on first use. After a panic, a failed
    /// `poll_ready` and a [`discard`](Attempts::discard) the next attempt gets a fresh one. Not
    /// within the attempt: if both panicked when they are discarded, the process would end.
    service: Option<S>,
    template: S,
}

impl<S: JobService> ServiceAttempts<S> {
    pub(crate) fn new(template: S) -> ServiceAttempts<S> {
        ServiceAttempts { attempt: ReusableBoxFuture::new(pending()), service: None, template }
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
            let _entered = span.enter();
            let service = self.service.get_or_insert_with(|| self.template.clone());
            if let Err(error) = ready!(service.poll_ready(context)) {
                self.service = None;
                return Poll::Ready(Err(failure_of(error)));
            }
            if let Some(request) = request.take() {
                let call = service.call(request);
                let span = span.clone();
                // Within the future: the span closes when it ends, not when the next replaces it.
                self.attempt.set(async move {
                    async { call.await.map_err(failure_of) }.instrument(span).await
                });
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
