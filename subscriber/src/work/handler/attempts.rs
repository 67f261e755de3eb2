//! The attempts that one handler task runs, whatever the type of its handler.

use std::future::poll_fn;
use std::task::{Context, Poll};

use tokio_util::sync::ReusableBoxFuture;
use tracing::{Instrument, Span};

use crate::work::handler::service::failure_of;
use crate::{Completion, JobFailure, JobRequest, JobService};

/// Runs a handler with its layers, one attempt at a time.
///
/// Behind it the worker does not know the handler's type: it is compiled once, in this crate and
/// with its settings, and not in each program for each handler.
pub(crate) trait Attempts: Send {
    /// The same handler, for another task.
    fn for_another_task(&self) -> Box<dyn Attempts>;

    /// Begins an attempt in `span`, in place of the last one. May panic.
    fn begin(&mut self, request: JobRequest, span: Span);

    /// Polls the attempt. After a panic, only [`Attempts::discard`] may follow.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Completion, JobFailure>>;

    /// Drops the attempt and the clone of the handler that ran it, which may panic.
    fn discard(&mut self);
}

/// The attempts of a service.
pub(crate) struct ServiceAttempts<S> {
    template: S,
    /// This task's own clone, made on first use; none while the attempt has it. After a panic, a
    /// failed `poll_ready` and a [`discard`](Attempts::discard) the next attempt gets a fresh one.
    service: Option<S>,
    /// Keeps its allocation from one attempt to the next.
    attempt: ReusableBoxFuture<'static, Attempted<S>>,
}

/// The service, unless it failed, and the outcome.
type Attempted<S> = (Option<S>, Result<Completion, JobFailure>);

impl<S: JobService> ServiceAttempts<S> {
    pub(crate) fn new(template: S) -> ServiceAttempts<S> {
        let attempt = ReusableBoxFuture::new(std::future::pending());
        ServiceAttempts { template, service: None, attempt }
    }
}

impl<S: JobService> Attempts for ServiceAttempts<S> {
    fn for_another_task(&self) -> Box<dyn Attempts> {
        Box::new(ServiceAttempts::new(self.template.clone()))
    }

    fn begin(&mut self, request: JobRequest, span: Span) {
        let service = self.service.take().unwrap_or_else(|| self.template.clone());
        self.attempt.set(run(service, request, span));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Completion, JobFailure>> {
        self.attempt.poll(context).map(|(service, outcome)| {
            self.service = service;
            outcome
        })
    }

    fn discard(&mut self) {
        self.attempt.set(std::future::pending());
    }
}

async fn run<S: JobService>(mut service: S, request: JobRequest, span: Span) -> Attempted<S> {
    let attempt = async {
        if let Err(error) = poll_fn(|context| service.poll_ready(context)).await {
            return (None, Err(failure_of(error)));
        }
        let outcome = service.call(request).await.map_err(failure_of);
        (Some(service), outcome)
    };
    // Within this future: the span closes when it ends, not when the next attempt replaces it.
    attempt.instrument(span).await
}
