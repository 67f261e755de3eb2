//! How a handler reports that an attempt failed, and what happens to the job.

use std::fmt;
use std::time::Duration;

use longshore_protocol::JobError;
use longshore_protocol::limits::{ERROR_BYTES_MAX, NAME_BYTES_MAX};

/// The error of a handler, which decides what happens to the job. `?` converts any
/// `std::error::Error` to [`JobFailure::Retry`].
///
/// ```
/// # mod longshore { pub use longshore_subscriber::*; }
/// use longshore::JobFailure;
///
/// fn parse(text: &str) -> Result<u32, JobFailure> {
///     if text.is_empty() {
///         return Err(JobFailure::bury("an empty text is never a number"));
///     }
///     Ok(text.parse::<u32>()?)
/// }
/// assert!(matches!(parse(""), Err(JobFailure::Bury(_))));
/// assert!(matches!(parse("x"), Err(JobFailure::Retry(_))));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobFailure {
    /// The attempt failed, and is used up. The job's back-off sets the time of the next attempt,
    /// and `max_attempts` limits their number; then the job goes to the dead letters.
    Retry(JobError),
    /// No attempt will ever succeed: the job goes to the dead letters.
    Bury(JobError),
    /// Not now: the job is delivered again after this duration, in whole milliseconds, and the
    /// attempt is not used up. Over 100 years counts as 100 years.
    Snooze(Duration),
    /// Not here: the job is ready again at once, without a back-off, and the attempt is not used
    /// up. It may return to this worker: a handler that cannot proceed for a while should snooze.
    Release,
}

impl JobFailure {
    /// A failed attempt, for an error that is not a `std::error::Error` (an `anyhow::Error`, a
    /// text). Its [kind](JobFailure::kind) is `Error` by default.
    pub fn retry(error: impl fmt::Display) -> JobFailure {
        JobFailure::Retry(job_error("Error", error))
    }

    /// Sends the job to the dead letters, with the reason. Its [kind](JobFailure::kind) is `Error`
    /// by default.
    pub fn bury(reason: impl fmt::Display) -> JobFailure {
        JobFailure::Bury(job_error("Error", reason))
    }

    /// Sets the kind of the error, by which operators group dead letters, cut at 128 bytes. Has no
    /// effect on [`JobFailure::Snooze`] and [`JobFailure::Release`], which have no error.
    pub fn kind(mut self, kind: &str) -> JobFailure {
        if let JobFailure::Retry(error) | JobFailure::Bury(error) = &mut self {
            error.kind = cut(kind.to_owned(), NAME_BYTES_MAX);
        }
        self
    }
}

/// The kind is the error's type; the message is its text with those of its sources.
impl<E: std::error::Error> From<E> for JobFailure {
    fn from(error: E) -> JobFailure {
        JobFailure::Retry(job_error(std::any::type_name::<E>(), with_causes(&error)))
    }
}

/// The text of an error with those of its sources, not much longer than its limit.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        if message.len() >= ERROR_BYTES_MAX {
            break;
        }
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}

/// An error for the publisher, each part cut to its limit.
pub(crate) fn job_error(kind: &str, message: impl fmt::Display) -> JobError {
    JobError {
        kind: cut(kind.to_owned(), NAME_BYTES_MAX),
        message: cut(message.to_string(), ERROR_BYTES_MAX),
    }
}

/// Cuts the parts of an error to the publisher's limits.
pub(crate) fn within_limits(error: JobError) -> JobError {
    JobError { kind: cut(error.kind, NAME_BYTES_MAX), message: cut(error.message, ERROR_BYTES_MAX) }
}

/// Cuts a text at a character boundary within its limit.
pub(crate) fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let mut end = bytes_max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the index is stale")]
    struct Stale(#[source] std::num::ParseIntError);

    #[test]
    fn an_error_becomes_a_retry_with_type_and_causes() {
        let cause = "x".parse::<u32>().unwrap_err();
        let JobFailure::Retry(error) = JobFailure::from(Stale(cause)) else { panic!() };
        assert!(error.kind.ends_with("Stale"), "{}", error.kind);
        assert_eq!(error.message, "the index is stale: invalid digit found in string");
    }

    #[test]
    fn a_long_error_is_cut_at_a_character_boundary() {
        let JobFailure::Bury(error) = JobFailure::bury("é".repeat(ERROR_BYTES_MAX)) else {
            panic!()
        };
        assert_eq!(error.message.len(), ERROR_BYTES_MAX);
        let JobFailure::Bury(error) =
            JobFailure::bury("x".to_owned() + &"é".repeat(ERROR_BYTES_MAX))
        else {
            panic!()
        };
        assert_eq!(error.message.len(), ERROR_BYTES_MAX - 1);
    }

    #[test]
    fn a_custom_kind_replaces_the_type() {
        let JobFailure::Bury(error) = JobFailure::bury("gone").kind("FileVanished") else {
            panic!()
        };
        assert_eq!(error, JobError { kind: "FileVanished".into(), message: "gone".into() });
        assert_eq!(JobFailure::Release.kind("x"), JobFailure::Release);
    }
}
