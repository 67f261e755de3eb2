//! How a handler says that an attempt did not succeed, and what is to become of the job.

use std::fmt;
use std::time::Duration;

use longshore_protocol::JobError;
use longshore_protocol::limits::{ERROR_BYTES_MAX, NAME_BYTES_MAX};

/// What a handler returns instead of a result: it decides what becomes of the job. Any
/// `std::error::Error` becomes a [`JobFailure::Retry`] by `?`.
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
    /// The attempt failed, and is used up; the job's back-off decides when the next is made, its
    /// `max_attempts` whether. With none left the job goes to the dead letters.
    Retry(JobError),
    /// No attempt will ever succeed: the job goes to the dead letters.
    Bury(JobError),
    /// Not now: the job comes back after this long, in whole milliseconds, its attempt given back.
    /// Over 100 years counts as 100 years.
    Snooze(Duration),
    /// Not here: the job goes back at once, its attempt given back. It is ready again without a
    /// back-off, and may come back here: whoever cannot go on for a while should snooze.
    Release,
}

impl JobFailure {
    /// A failed attempt, for an error that is not a `std::error::Error` (an `anyhow::Error`, a
    /// text). Its [kind](JobFailure::kind) is `Error` unless told otherwise.
    pub fn retry(error: impl fmt::Display) -> JobFailure {
        JobFailure::Retry(job_error("Error", error))
    }

    /// To the dead letters at once, with the reason. Its [kind](JobFailure::kind) is `Error` unless
    /// told otherwise.
    pub fn bury(reason: impl fmt::Display) -> JobFailure {
        JobFailure::Bury(job_error("Error", reason))
    }

    /// The same failure, its error under the name that operators group dead letters by, cut at 128
    /// bytes. Without effect on [`JobFailure::Snooze`] and [`JobFailure::Release`], which carry no
    /// error.
    pub fn kind(mut self, kind: &str) -> JobFailure {
        if let JobFailure::Retry(error) | JobFailure::Bury(error) = &mut self {
            error.kind = cut(kind.to_owned(), NAME_BYTES_MAX);
        }
        self
    }
}

/// The error's type is its kind, its text with those of its sources the message.
impl<E: std::error::Error> From<E> for JobFailure {
    fn from(error: E) -> JobFailure {
        JobFailure::Retry(job_error(std::any::type_name::<E>(), with_causes(&error)))
    }
}

/// An error's text with those of its sources, not much longer than its limit.
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

/// An error as it goes to the publisher, each part cut to its limit.
pub(crate) fn job_error(kind: &str, message: impl fmt::Display) -> JobError {
    JobError {
        kind: cut(kind.to_owned(), NAME_BYTES_MAX),
        message: cut(message.to_string(), ERROR_BYTES_MAX),
    }
}

/// An error whose parts a handler set itself, cut to the limits that the publisher would refuse it
/// over.
pub(crate) fn within_limits(error: JobError) -> JobError {
    JobError { kind: cut(error.kind, NAME_BYTES_MAX), message: cut(error.message, ERROR_BYTES_MAX) }
}

/// A text cut at a character within its limit.
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
    fn an_error_becomes_a_retry_that_names_its_type_and_its_causes() {
        let cause = "x".parse::<u32>().unwrap_err();
        let JobFailure::Retry(error) = JobFailure::from(Stale(cause)) else { panic!() };
        assert!(error.kind.ends_with("Stale"), "{}", error.kind);
        assert_eq!(error.message, "the index is stale: invalid digit found in string");
    }

    #[test]
    fn a_long_error_is_cut_at_a_character_within_its_limit() {
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
    fn a_kind_of_ones_own_replaces_the_type() {
        let JobFailure::Bury(error) = JobFailure::bury("gone").kind("FileVanished") else {
            panic!()
        };
        assert_eq!(error, JobError { kind: "FileVanished".into(), message: "gone".into() });
        assert_eq!(JobFailure::Release.kind("x"), JobFailure::Release);
    }
}
