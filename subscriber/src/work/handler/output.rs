//! Conversion of a handler's return value to the job's result.

use bytes::Bytes;
use longshore_protocol::limits::RESULT_BYTES_MAX;
use longshore_protocol::messages::work::NewSettle;
use serde::Serialize;

use crate::JobFailure;
use crate::work::handler::failure::{job_error, within_limits};

/// What a handler may return on success: `()` for no result; `Bytes`, `Vec<u8>`, `String` or
/// `&'static str` as they are; [`Json`] for any `Serialize`; an `Option` of these. At most 1 MiB: a
/// larger result buries its job. The result is retained only if the job requests it
/// (`JobOptions::keep_result`).
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}` as its job's result",
    note = "it may return `()`, text, bytes, or `longshore::Json` of a type with \
            `serde::Serialize`; a kind's handler returns the kind's `Output` as it is"
)]
pub trait JobOutput: Send + 'static {
    /// The result's bytes, if any. An error ends the attempt accordingly.
    fn into_result(self) -> Result<Option<Bytes>, JobFailure>;
}

/// A result to be stored as JSON. A serialization error fails the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Json<T>(pub T);

impl JobOutput for () {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(None)
    }
}

impl JobOutput for Bytes {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(Some(self))
    }
}

impl JobOutput for Vec<u8> {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(Some(self.into()))
    }
}

impl JobOutput for String {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(Some(self.into()))
    }
}

impl JobOutput for &'static str {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(Some(Bytes::from_static(self.as_bytes())))
    }
}

impl<T: Serialize + Send + 'static> JobOutput for Json<T> {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        Ok(Some(serde_json::to_vec(&self.0)?.into()))
    }
}

impl<T: JobOutput> JobOutput for Option<T> {
    fn into_result(self) -> Result<Option<Bytes>, JobFailure> {
        self.map_or(Ok(None), T::into_result)
    }
}

/// The settle for a handler's return value. The result of a job that retains none is not sent.
pub(crate) fn settle_of<O: JobOutput>(
    answer: Result<O, JobFailure>,
    keeps_result: bool,
) -> NewSettle {
    match answer.and_then(O::into_result) {
        Ok(_) if !keeps_result => NewSettle::Complete { result: None },
        Ok(Some(result)) if result.len() > RESULT_BYTES_MAX => NewSettle::Bury(job_error(
            "ResultTooLarge",
            format_args!(
                "a result of {} bytes is over the limit of {RESULT_BYTES_MAX}",
                result.len()
            ),
        )),
        Ok(result) => NewSettle::Complete { result },
        Err(JobFailure::Retry(error)) => NewSettle::Fail(within_limits(error)),
        Err(JobFailure::Bury(error)) => NewSettle::Bury(within_limits(error)),
        Err(JobFailure::Snooze(wait)) => {
            NewSettle::Snooze { ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) }
        }
        Err(JobFailure::Throttle(wait)) => {
            NewSettle::Throttle { ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) }
        }
        Err(JobFailure::Release) => NewSettle::Release,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settled<O: JobOutput>(answer: Result<O, JobFailure>) -> NewSettle {
        settle_of(answer, true)
    }

    #[test]
    fn a_result_that_is_not_retained_is_discarded() {
        for result in [vec![0u8; 3], vec![0; RESULT_BYTES_MAX + 1]] {
            assert_eq!(settle_of(Ok(result), false), NewSettle::Complete { result: None });
        }
        assert!(matches!(settle_of::<()>(Err(JobFailure::retry("x")), false), NewSettle::Fail(_)));
    }

    #[test]
    fn each_outcome_maps_to_its_settle() {
        assert_eq!(settled(Ok(())), NewSettle::Complete { result: None });
        assert_eq!(settled(Ok("ab")), NewSettle::Complete { result: Some("ab".into()) });
        assert_eq!(settled(Ok(Json([1, 2]))), NewSettle::Complete { result: Some("[1,2]".into()) });
        assert_eq!(settled(Ok(None::<Bytes>)), NewSettle::Complete { result: None });
        assert_eq!(settled::<()>(Err(JobFailure::Release)), NewSettle::Release);
        let snooze = JobFailure::Snooze(Duration::from_millis(1_500));
        assert_eq!(settled::<()>(Err(snooze)), NewSettle::Snooze { ms: 1_500 });
        let throttle = JobFailure::Throttle(Duration::from_secs(2));
        assert_eq!(settled::<()>(Err(throttle)), NewSettle::Throttle { ms: 2_000 });
        assert!(matches!(settled::<()>(Err(JobFailure::retry("x"))), NewSettle::Fail(_)));
        assert!(matches!(settled::<()>(Err(JobFailure::bury("x"))), NewSettle::Bury(_)));
    }

    #[test]
    fn a_result_over_its_limit_buries_the_job() {
        let at_limit = settled(Ok(vec![0u8; RESULT_BYTES_MAX]));
        assert!(matches!(at_limit, NewSettle::Complete { result: Some(_) }));
        let NewSettle::Bury(error) = settled(Ok(vec![0u8; RESULT_BYTES_MAX + 1])) else { panic!() };
        assert_eq!(error.kind, "ResultTooLarge");
        assert!(error.message.contains("1048577") && error.message.contains("1048576"));
    }
}
