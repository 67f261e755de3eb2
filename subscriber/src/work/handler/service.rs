//! A handler as a tower service, so that layers can stand around it: what goes in, what comes out,
//! and what an error of theirs means for the job.

use std::any::{TypeId, type_name};
use std::error::Error;
use std::fmt;

use bytes::Bytes;
use tower_service::Service;

use crate::work::handler::failure::{job_error, with_causes};
use crate::{Job, JobContext, JobFailure, JobOutput};

/// What a layer may fail with, as tower has it.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// An attempt on its way to its handler. The payload is as its producer wrote it: layers stand
/// before it is read, so one layer suits handlers of every type.
#[derive(Clone, Debug)]
pub struct JobRequest {
    /// The job: id, path, headers, and the payload's bytes. A layer may change them; the handler
    /// gets what it leaves.
    pub job: Job<Bytes>,
    /// The lease: attempt, token, cancellation, progress.
    pub context: JobContext,
}

/// An attempt that succeeded: the job is done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// Its result, at most 1 MiB; kept if the job asks for that.
    pub result: Option<Bytes>,
}

impl JobOutput for Completion {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(self.result)
    }
}

/// A [`JobFailure`] inside of tower's boxed error: layers such as a timeout give errors of that
/// type only. What the handler decided is found again in it, or in an error that names it as its
/// source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerFailed(pub JobFailure);

impl fmt::Display for HandlerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            JobFailure::Retry(error) => write!(f, "the attempt failed: {}", error.message),
            JobFailure::Bury(error) => write!(f, "the job was buried: {}", error.message),
            JobFailure::Snooze(wait) => write!(f, "the job was put off for {wait:?}"),
            JobFailure::Release => f.write_str("the job was given back"),
        }
    }
}

impl Error for HandlerFailed {}

impl From<JobFailure> for BoxError {
    fn from(failure: JobFailure) -> BoxError {
        Box::new(HandlerFailed(failure))
    }
}

/// What a handler with its layers has to be; whatever fits is one. Each job that runs at the same
/// time has a clone of its own.
///
/// An error that is no [`JobFailure`] fails the attempt, under the name of its type, or as
/// `LayerError` where it is boxed.
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

/// What becomes of a job whose service failed with that.
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
    fn what_the_handler_decided_is_found_in_whatever_a_layer_makes_of_it() {
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
    fn an_error_of_a_layer_fails_the_attempt_under_its_name() {
        let JobFailure::Retry(error) = failure_of(UsedUp) else { panic!() };
        assert!(error.kind.ends_with("UsedUp"), "{}", error.kind);
        assert_eq!(error.message, "the limit of today is used up");
        let JobFailure::Retry(error) = failure_of(BoxError::from(UsedUp)) else { panic!() };
        assert_eq!(error.kind, "LayerError");
    }
}
