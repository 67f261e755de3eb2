//! What every publisher would refuse, refused before it is sent.

use longshore_protocol::limits::{
    HEADERS_BYTES_MAX, HEADERS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, PAYLOAD_BYTES_MAX, RUN_AT_MS_MAX,
    WAIT_MS_MAX,
};
use longshore_protocol::{Backoff, Due, JobOptions, NewJob, Refusal};

use crate::outcome::EnqueueError;

/// Refuses here what every publisher would refuse.
pub(crate) fn check(job: &NewJob) -> Result<(), EnqueueError> {
    let payload = job.payload.len();
    if payload > PAYLOAD_BYTES_MAX {
        let (what, limit) = ("payload", PAYLOAD_BYTES_MAX);
        return Err(EnqueueError::TooLarge { what, bytes: payload, limit });
    }
    let headers = job.headers.bytes();
    if headers > HEADERS_BYTES_MAX {
        let (what, limit) = ("headers", HEADERS_BYTES_MAX);
        return Err(EnqueueError::TooLarge { what, bytes: headers, limit });
    }
    if job.path.is_root() {
        return Err(EnqueueError::Invalid(Refusal::BadPath));
    }
    if job.path.is_reserved() {
        return Err(EnqueueError::Invalid(Refusal::Reserved));
    }
    if !options_fit(&job.options) || job.headers.0.len() > HEADERS_MAX {
        return Err(EnqueueError::Invalid(Refusal::BadOptions));
    }
    Ok(())
}

fn options_fit(options: &JobOptions) -> bool {
    let due_fits = match options.due {
        Due::Now => true,
        Due::After(ms) => ms <= WAIT_MS_MAX,
        Due::At(ms) => ms <= RUN_AT_MS_MAX,
    };
    let backoff_fits = match &options.backoff {
        Some(Backoff::List(list)) => (1..=Backoff::LIST_MAX).contains(&list.len()),
        _ => true,
    };
    let lease = LEASE_MS_MIN..=LEASE_MS_MAX;
    due_fits
        && backoff_fits
        && options.max_attempts != Some(0)
        && options.lease_ms.is_none_or(|ms| lease.contains(&ms))
        && options.expires_at.is_none_or(|at| at <= RUN_AT_MS_MAX)
        && options.run_timeout_ms.is_none_or(|ms| ms <= WAIT_MS_MAX)
        && options.keep_ms.is_none_or(|ms| ms <= WAIT_MS_MAX)
}
