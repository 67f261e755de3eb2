//! A handler as a tower service, so that layers can wrap it: its request, its response, and what an
//! error of a layer means for the job.

use std::any::{TypeId, type_name};
use std::error::Error;
use std::fmt;

use bytes::Bytes;
use tower_service::Service;

use crate::work::handler::failure::{job_error, with_causes};
use crate::{Job, JobContext, JobFailure, JobOutput};

/// The error type of tower's layers.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// An attempt before its handler. The payload is the producer's bytes: layers run before it is
/// decoded, so one layer suits handlers of every type.
#[derive(Clone, Debug)]
pub struct JobRequest {
    /// The job: id, path, headers, and the payload's bytes. The handler receives what the layers
    /// leave.
    pub job: Job<Bytes>,
    /// The lease: attempt, token, cancellation, progress.
    pub context: JobContext,
}

/// A successful attempt: completes the job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// Its result, at most 1 MiB; retained if the job requests it.
    pub result: Option<Bytes>,
}

impl JobOutput for Completion {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(self.result)
    }
}

/// A [`JobFailure`] in tower's boxed error, the only error type of layers such as a timeout. The
/// worker finds the handler's decision in the error or in its chain of sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerFailed(pub JobFailure);

impl fmt::Display for HandlerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            JobFailure::Retry(error) => write!(f, "the attempt failed: {}", error.message),
            JobFailure::Bury(error) => write!(f, "the job was buried: {}", error.message),
            JobFailure::Snooze(wait) => write!(f, "the job was snoozed for {wait:?}"),
            JobFailure::Release => f.write_str("the job was released"),
        }
    }
}

impl Error for HandlerFailed {}

impl From<JobFailure> for BoxError {
    fn from(failure: JobFailure) -> BoxError {
        Box::new(HandlerFailed(failure))
    }
}

/// The bound for a handler with its layers; implemented by every service that fits. Each job that
/// runs concurrently has its own clone.
///
/// An error that is no [`JobFailure`] fails the attempt. Its kind is its type's name, or
/// `LayerError` if it is boxed.
pub trait JobService:
    Service<JobRequest, Response = Completion, Error: Into<BoxError>, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> JobService for S where
    S: Service<JobRequest, Response = Completion, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// The failure of a job whose service returned this error.
pub(crate) fn failure_of<E: Into<BoxError> + 'static>(error: E) -> JobFailure {
    let error = error.into();
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(error) = cause {
        if let Some(HandlerFailed(failure)) = error.downcast_ref() {
            return failure.clone();
        }
        cause = error.source();
    }
    // A boxed error has lost its type's name.
    let is_boxed = TypeId::of::<E>() == TypeId::of::<BoxError>();
    let kind = if is_boxed { "LayerError" } else { type_name::<E>() };
    JobFailure::Retry(job_error(kind, with_causes(&*error)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("in a wrapper")]
    struct Wrapped(#[source] HandlerFailed);

    #[derive(Debug, thiserror::Error)]
    #[error("the limit of today is used up")]
    struct UsedUp;

    #[test]
    fn the_handlers_decision_survives_wrapping_by_layers() {
        let failures = [
            JobFailure::retry("x"),
            JobFailure::bury("y"),
            JobFailure::Snooze(Duration::from_secs(3)),
            JobFailure::Release,
        ];
        for failure in failures {
            assert_eq!(failure_of(failure.clone()), failure);
            assert_eq!(failure_of(BoxError::from(failure.clone())), failure);
            assert_eq!(failure_of(Wrapped(HandlerFailed(failure.clone()))), failure);
        }
    }

    #[test]
    fn a_layer_error_fails_the_attempt_with_its_type() {
        let JobFailure::Retry(error) = failure_of(UsedUp) else { panic!() };
        assert!(error.kind.ends_with("UsedUp"), "{}", error.kind);
        assert_eq!(error.message, "the limit of today is used up");
        let JobFailure::Retry(error) = failure_of(BoxError::from(UsedUp)) else { panic!() };
        assert_eq!(error.kind, "LayerError");
    }
}
