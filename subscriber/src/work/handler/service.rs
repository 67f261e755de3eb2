//! A handler as a tower service, so that layers can wrap it: its request, its response, and what an
//! error of a layer means for the job.

use std::any::{Any, TypeId, type_name};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use bytes::Bytes;
use tower_service::Service;

use crate::work::handler::failure::{job_error, kind_of, with_causes};
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
pub struct HandlerFailed(Decision);

/// The source of [`HandlerFailed`]: an error that wraps it with `#[error(transparent)]` shows only
/// the source.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Decision(JobFailure);

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("decided by the handler")
    }
}

impl Error for Decision {}

impl From<JobFailure> for HandlerFailed {
    fn from(failure: JobFailure) -> HandlerFailed {
        HandlerFailed(Decision(failure))
    }
}

impl fmt::Display for HandlerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

impl Error for HandlerFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl From<JobFailure> for BoxError {
    fn from(failure: JobFailure) -> BoxError {
        Box::new(HandlerFailed::from(failure))
    }
}

/// The bound for a handler with its layers; implemented by every service that fits. Each job that
/// runs concurrently has its own clone.
///
/// An error that is no [`JobFailure`] fails the attempt; [`JobFailure`] has the rules.
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

/// What becomes of a job whose handler or layer returned this error.
pub(crate) fn failure_of<E: Into<BoxError> + 'static>(error: E) -> JobFailure {
    // `BoxError` hides the first error of an `anyhow::Error`, and every context.
    if let Some(error) = (&error as &dyn Any).downcast_ref::<anyhow::Error>() {
        return match error.downcast_ref::<JobFailure>() {
            Some(failure) => failure.clone(),
            None => failure_of_chain(error.as_ref(), None),
        };
    }
    let is_of_any_type = [
        TypeId::of::<BoxError>(),
        TypeId::of::<String>(),
        TypeId::of::<&'static str>(),
        TypeId::of::<Cow<'static, str>>(),
    ];
    let kind = (!is_of_any_type.contains(&TypeId::of::<E>())).then(type_name::<E>);
    failure_of_chain(&*error.into(), kind)
}

/// Most sources of an error to look at: a chain may be a circle.
const SOURCES_READ_MAX: usize = 64;

/// What becomes of the job: the decision in the chain of sources, or a retry. Without a `kind`, the
/// kind is that of the chain's last error.
pub(crate) fn failure_of_chain(error: &(dyn Error + 'static), kind: Option<&str>) -> JobFailure {
    let mut last = error;
    for _ in 0..SOURCES_READ_MAX {
        if let Some(Decision(failure)) = last.downcast_ref() {
            return failure.clone();
        }
        match last.source() {
            Some(source) => last = source,
            None => break,
        }
    }
    let message = with_causes(error);
    JobFailure::Retry(match kind {
        Some(kind) => job_error(kind, message),
        None => job_error(&kind_of(last), message),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("in a wrapper")]
    struct Wrapped(#[source] HandlerFailed);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(#[from] anyhow::Error);

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
            assert_eq!(failure_of(Wrapped(failure.clone().into())), failure);
        }
    }

    /// A program calls `bail!(JobFailure::bury(…))` in a helper, and adds context further up.
    #[test]
    fn a_decision_within_an_anyhow_error_counts_wherever_it_is() {
        let failure = JobFailure::bury("gone").kind("Gone");
        let decide = || -> anyhow::Result<()> { anyhow::bail!(failure.clone()) };
        let decided = || decide().unwrap_err();
        assert_eq!(failure_of(decided()), failure);
        assert_eq!(failure_of(decided().context("while reading").context("page 7")), failure);
        assert_eq!(failure_of(anyhow::Error::new(UsedUp).context(failure.clone())), failure);
        assert_eq!(failure_of(anyhow::Error::new(Wrapped(failure.clone().into()))), failure);
        assert_eq!(failure_of(BoxError::from(decided().context("while reading"))), failure);
        assert_eq!(JobFailure::from(Wrapped(failure.clone().into())), failure);
        let transparent = Transparent(failure.clone().into());
        assert_eq!(JobFailure::from(transparent), failure);
    }

    /// By the kind, operators group dead letters: `anyhow::Error` and `String` would be one group.
    #[test]
    fn the_kind_of_an_error_is_the_type_at_its_root() {
        fn retried<E: Into<BoxError> + 'static>(error: E) -> (String, String) {
            let JobFailure::Retry(error) = failure_of(error) else { panic!() };
            (error.kind, error.message)
        }
        let pair = |kind: &str, message: &str| (kind.to_owned(), message.to_owned());
        let used_up = "the limit of today is used up";
        assert_eq!(retried(UsedUp), pair(type_name::<UsedUp>(), used_up));
        assert_eq!(retried(BoxError::from(UsedUp)), pair("UsedUp", used_up));
        let wrapped = anyhow::Error::new(UsedUp).context("mailing ada");
        assert_eq!(retried(wrapped), pair("UsedUp", &format!("mailing ada: {used_up}")));
        let parsed = anyhow::Error::new("x".parse::<u8>().unwrap_err());
        assert_eq!(retried(parsed).0, "ParseIntError");
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(retried(anyhow::Error::new(missing)).0, "io::NotFound");
        let texts = [retried("no mailbox"), retried("no mailbox".to_owned())];
        let others = [retried(anyhow::anyhow!("no mailbox")), retried(Cow::Borrowed("no mailbox"))];
        for text in texts.into_iter().chain(others) {
            assert_eq!(text, pair("Error", "no mailbox"));
        }
    }
}
