//! A limit on how long an attempt may run.

use std::task::{Context, Poll};
use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use crate::work::handler::failure::job_error;
use crate::work::handler::service::failure_of;
use crate::work::kinds::Running;
use crate::{CancelReason, Completion, JobFailure, JobRequest, JobService};

/// A layer that fails an attempt that runs for too long; the kind of its error is `Timeout`. It
/// drops the handler's future, and cancels its context
/// ([`CancelReason::TimedOut`]), which blocking handlers should check: they run on, and take no
/// other job until they return.
///
/// The publisher enforces a job's own limit (`timeout` of its kind). This one is the worker's: it
/// may be shorter, and is for handlers whose producer sets none.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    limit: Duration,
}

impl Timeout {
    /// A limit of `limit`.
    pub fn after(limit: Duration) -> Timeout {
        Timeout { limit }
    }
}

impl<S> Layer<S> for Timeout {
    type Service = TimeoutService<S>;

    fn layer(&self, inner: S) -> TimeoutService<S> {
        TimeoutService { inner, limit: self.limit }
    }
}

/// The service of [`Timeout`].
#[derive(Clone, Debug)]
pub struct TimeoutService<S> {
    inner: S,
    limit: Duration,
}

impl<S: JobService> Service<JobRequest> for TimeoutService<S>
where
    S::Future: 'static,
{
    type Response = Completion;
    type Error = JobFailure;
    type Future = Running;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        self.inner.poll_ready(context).map_err(failure_of)
    }

    fn call(&mut self, request: JobRequest) -> Running {
        let (limit, context) = (self.limit, request.context.clone());
        let attempt = self.inner.call(request);
        Box::pin(async move {
            match tokio::time::timeout(limit, attempt).await {
                Ok(ended) => ended.map_err(failure_of),
                Err(_) => {
                    context.signal.cancel(CancelReason::TimedOut);
                    let message = format_args!("the attempt ran for longer than {limit:?}");
                    Err(JobFailure::Retry(job_error("Timeout", message)))
                }
            }
        })
    }
}
