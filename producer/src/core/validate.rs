//! Checks jobs for what every publisher would refuse.

use longshore_protocol::limits::{
    HEADERS_BYTES_MAX, HEADERS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, PAYLOAD_BYTES_MAX, RUN_AT_MS_MAX,
    WAIT_MS_MAX,
};
use longshore_protocol::{Backoff, Due, JobOptions, NewJob, Refusal};

use crate::outcome::EnqueueError;

/// Checks a job for what every publisher would refuse.
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

#[cfg(test)]
mod tests {
    use super::*;

    type Set = fn(&mut JobOptions, u64);

    /// Each option with its range; values outside are refused by every publisher.
    const RANGES: [(&str, Set, u64, u64); 8] = [
        ("delay", |o, n| o.due = Due::After(n), 0, WAIT_MS_MAX),
        ("run_at", |o, n| o.due = Due::At(n), 0, RUN_AT_MS_MAX),
        ("expires_at", |o, n| o.expires_at = Some(n), 0, RUN_AT_MS_MAX),
        ("max_attempts", |o, n| o.max_attempts = Some(n as u16), 1, u16::MAX as u64),
        ("lease", |o, n| o.lease_ms = Some(n as u32), LEASE_MS_MIN as u64, LEASE_MS_MAX as u64),
        ("run_timeout", |o, n| o.run_timeout_ms = Some(n), 0, WAIT_MS_MAX),
        ("keep", |o, n| o.keep_ms = Some(n), 0, WAIT_MS_MAX),
        ("backoff", |o, n| o.backoff = Some(Backoff::List(vec![1; n as usize])), 1, 64),
    ];

    #[test]
    fn every_option_is_checked_against_its_range() {
        for (option, set, least, most) in RANGES {
            let fits = |n| {
                let mut options = JobOptions::default();
                set(&mut options, n);
                options_fit(&options)
            };
            assert!(fits(least) && fits(most), "{option}");
            assert!(least == 0 || !fits(least - 1), "{option} below its range");
            // The number of attempts uses the full range of its type.
            assert!(option == "max_attempts" || !fits(most + 1), "{option} above its range");
        }
    }

    #[test]
    fn default_options_are_valid() {
        assert!(options_fit(&JobOptions::default()));
        assert!(options_fit(&JobOptions { prepared: true, ..JobOptions::default() }));
    }
}
