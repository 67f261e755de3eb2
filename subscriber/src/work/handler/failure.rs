//! How a handler reports that an attempt failed, and what happens to the job.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use longshore_protocol::JobError;
use longshore_protocol::limits::{ERROR_BYTES_MAX, NAME_BYTES_MAX};

use crate::work::handler::service::{HandlerFailed, failure_of_chain};

/// The error of a handler, which decides what happens to the job. `?` converts any
/// `std::error::Error` to [`JobFailure::Retry`].
///
/// A handler may return another error type: an error that contains a `JobFailure`, anywhere in its
/// chain of sources, acts as that failure, so `anyhow::bail!(JobFailure::bury("…"))` works. Any
/// other error is [`JobFailure::Retry`]. Dead letters are grouped by its
/// [kind](JobFailure::kind): the name of the handler's error type; for `anyhow::Error` and boxed
/// errors that of the error at the root; `Error` for texts; for a panic, its place.
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
    /// Not now, like what else has the job's limit key (a remote service, a tenant): for this
    /// duration, in whole milliseconds, no job of the queue with that key is delivered. The attempt
    /// is not used up. Over 7 days counts as 7 days. A job without a limit key is snoozed.
    Throttle(Duration),
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
    /// effect on the others, which have no error.
    pub fn kind(mut self, kind: &str) -> JobFailure {
        if let JobFailure::Retry(error) | JobFailure::Bury(error) = &mut self {
            error.kind = cut(kind.to_owned(), NAME_BYTES_MAX);
        }
        self
    }
}

impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobFailure::Retry(error) => write!(f, "the attempt failed: {}", error.message),
            JobFailure::Bury(error) => write!(f, "the job was buried: {}", error.message),
            JobFailure::Snooze(wait) => write!(f, "the job was snoozed for {wait:?}"),
            JobFailure::Throttle(wait) => write!(f, "the job was throttled for {wait:?}"),
            JobFailure::Release => f.write_str("the job was released"),
        }
    }
}

/// The kind is the error's type; the message is its text with those of its sources.
impl<E: Error + 'static> From<E> for JobFailure {
    fn from(error: E) -> JobFailure {
        failure_of_chain(&error, Some(std::any::type_name::<E>()))
    }
}

/// For `?` and `anyhow::bail!` in handlers that return `anyhow::Result`.
impl From<JobFailure> for anyhow::Error {
    fn from(failure: JobFailure) -> anyhow::Error {
        anyhow::Error::new(HandlerFailed::from(failure))
    }
}

/// The name of an error whose type is not known: of an I/O error its kind, of others the name at
/// the beginning of the `Debug` form, which is the type or the variant. `Error` for texts.
pub(crate) fn kind_of(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return format!("io::{:?}", error.kind());
    }
    let mut name = FirstName(String::new());
    // It stops at the first character after the name.
    let _ = fmt::Write::write_fmt(&mut name, format_args!("{error:?}"));
    match name.0.chars().next() {
        Some(first) if first.is_uppercase() => name.0,
        _ => "Error".to_owned(),
    }
}

/// Collects the identifier at the beginning of what is written, at most 128 bytes of it.
struct FirstName(String);

impl fmt::Write for FirstName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            let is_name = c.is_alphanumeric() || c == '_';
            if !is_name || self.0.len() + c.len_utf8() > NAME_BYTES_MAX {
                return Err(fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}

/// The text of an error with those of its sources, not much longer than its limit.
pub(crate) fn with_causes(error: &dyn Error) -> String {
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

/// The failure of an attempt whose handler was dropped.
pub(crate) fn dropped() -> JobFailure {
    let late = "it did not return after its job was taken away";
    JobFailure::Retry(job_error("Dropped", late))
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

    /// Writes a long name without a break.
    #[derive(thiserror::Error)]
    #[error("it has a long name")]
    struct LongName;

    impl fmt::Debug for LongName {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&("X".to_owned() + &"字".repeat(60)))?;
            f.write_str("Y")
        }
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_boundary() {
        assert_eq!(kind_of(&LongName), "X".to_owned() + &"字".repeat(42));
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
