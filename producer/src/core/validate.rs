//! Checks jobs for what every publisher would refuse.

use longshore_protocol::limits::{
    FAIR_WEIGHT_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, IDEMPOTENCY_MS_MAX, KEY_BYTES_MAX,
    LEASE_MS_MAX, LEASE_MS_MIN, LIMIT_COST_MAX, PARENTS_MAX, PAYLOAD_BYTES_MAX, RUN_AT_MS_MAX,
    UNIQUE_MS_MAX, WAIT_MS_MAX,
};
use longshore_protocol::{
    Backoff, Due, Idempotency, JobKeys, JobOptions, NewJob, Refusal, UniqueUntil,
};

use crate::outcome::{BadOption, EnqueueError};

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
    within("number of headers", job.headers.0.len() as u64, 0, HEADERS_MAX as u64)?;
    if let Some(keys) = &job.keys {
        check_keys(keys)?;
    }
    Ok(check_options(&job.options)?)
}

/// Checks the job of a schedule for what a job of its own may have, and this one may not.
pub(crate) fn check_template(job: &NewJob) -> Result<(), EnqueueError> {
    let JobOptions { due, prepared, expires_at, .. } = &job.options;
    let is_timed = *due != Due::Now || *prepared || expires_at.is_some();
    let is_related = job.keys.as_ref().is_some_and(|keys| {
        let JobKeys { idempotency, after, batch, member_of, .. } = &**keys;
        idempotency.is_some() || !after.is_empty() || batch.is_some() || member_of.is_some()
    });
    match is_timed || is_related {
        true => Err(EnqueueError::Invalid(Refusal::BadOptions)),
        false => Ok(()),
    }
}

fn check_keys(keys: &JobKeys) -> Result<(), BadOption> {
    if let Some(idempotency) = &keys.idempotency {
        check_idempotency(idempotency)?;
    }
    if let Some(unique) = &keys.unique {
        check_key("unique_key (length in bytes)", &unique.key)?;
        if let UniqueUntil::For(ms) = unique.until {
            within("unique key (for, in ms)", ms, 1, UNIQUE_MS_MAX)?;
        }
    }
    if let Some(order) = &keys.order {
        check_key("order_key (length in bytes)", order)?;
    }
    if let Some(limit) = &keys.limit {
        check_key("limit_key (length in bytes)", limit)?;
    }
    if let Some(cost) = keys.cost {
        within("cost", cost.into(), 1, LIMIT_COST_MAX.into())?;
    }
    if let Some(fair) = &keys.fair {
        check_key("fair_key (length in bytes)", &fair.key)?;
        within("fair_weight", fair.weight.into(), 1, FAIR_WEIGHT_MAX.into())?;
    }
    within("after (number of jobs)", keys.after.len() as u64, 0, PARENTS_MAX as u64)
}

fn check_key(option: &'static str, key: &str) -> Result<(), BadOption> {
    within(option, key.len() as u64, 1, KEY_BYTES_MAX as u64)
}

fn check_idempotency(idempotency: &Idempotency) -> Result<(), BadOption> {
    check_key("idempotency_key (length in bytes)", &idempotency.key)?;
    let for_ms = idempotency.for_ms.unwrap_or(Idempotency::FOR_MS);
    within("idempotency (for, in ms)", for_ms, 1, IDEMPOTENCY_MS_MAX)
}

fn check_options(options: &JobOptions) -> Result<(), BadOption> {
    match options.due {
        Due::Now => {}
        Due::After(ms) => within("due (delay)", ms, 0, WAIT_MS_MAX)?,
        Due::At(ms) => within("due (run_at)", ms, 0, RUN_AT_MS_MAX)?,
    }
    if let Some(Backoff::List(list)) = &options.backoff {
        within("backoff (length of the list)", list.len() as u64, 1, Backoff::LIST_MAX as u64)?;
    }
    // Not in a loop over a table of them, which cost 2 % of all instructions of a job.
    let check = |option, value: Option<u64>, least, most| {
        value.map_or(Ok(()), |value| within(option, value, least, most))
    };
    check("max_attempts", options.max_attempts.map(u64::from), 1, u16::MAX.into())?;
    let lease_ms = options.lease_ms.map(u64::from);
    check("lease_ms", lease_ms, LEASE_MS_MIN.into(), LEASE_MS_MAX.into())?;
    check("expires_at", options.expires_at, 0, RUN_AT_MS_MAX)?;
    check("run_timeout_ms", options.run_timeout_ms, 0, WAIT_MS_MAX)?;
    check("keep_ms", options.keep_ms, 0, WAIT_MS_MAX)
}

fn within(option: &'static str, value: u64, least: u64, most: u64) -> Result<(), BadOption> {
    let fits = (least..=most).contains(&value);
    if fits { Ok(()) } else { Err(BadOption { option, value, least, most }) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_protocol::{JobId, Unique};

    use super::*;

    type Set = fn(&mut JobOptions, u64);

    /// Each option with its range; values outside are refused by every publisher.
    const RANGES: [(&str, Set, u64, u64); 8] = [
        ("due (delay)", |o, n| o.due = Due::After(n), 0, WAIT_MS_MAX),
        ("due (run_at)", |o, n| o.due = Due::At(n), 0, RUN_AT_MS_MAX),
        ("expires_at", |o, n| o.expires_at = Some(n), 0, RUN_AT_MS_MAX),
        ("max_attempts", |o, n| o.max_attempts = Some(n as u16), 1, u16::MAX as u64),
        ("lease_ms", |o, n| o.lease_ms = Some(n as u32), LEASE_MS_MIN as u64, LEASE_MS_MAX as u64),
        ("run_timeout_ms", |o, n| o.run_timeout_ms = Some(n), 0, WAIT_MS_MAX),
        ("keep_ms", |o, n| o.keep_ms = Some(n), 0, WAIT_MS_MAX),
        (
            "backoff (length of the list)",
            |o, n| o.backoff = Some(Backoff::List(vec![1; n as usize])),
            1,
            64,
        ),
    ];

    #[test]
    fn too_many_parents_are_refused() {
        let new = || NewJob::new("/jobs".parse().unwrap(), JobId([1; 16]), "");
        let after = |number| (0..number).fold(new(), |job, _| job.after(JobId([2; 16])));
        assert!(check(&after(PARENTS_MAX)).is_ok());
        assert!(check(&after(PARENTS_MAX + 1)).is_err());
    }

    #[test]
    fn a_template_has_no_time_parents_or_idempotency_key() {
        let new = || NewJob::new("/jobs".parse().unwrap(), JobId([1; 16]), "");
        assert!(check_template(&new().order_key("a")).is_ok());
        let with = |set: fn(&mut JobOptions)| {
            let mut job = new();
            set(&mut job.options);
            job
        };
        for refused in [
            with(|options| options.due = Due::After(1)),
            with(|options| options.prepared = true),
            with(|options| options.expires_at = Some(1)),
            new().idempotency_key("a"),
            new().after(JobId([2; 16])),
            new().batch(longshore_protocol::NewBatch::Open),
            new().in_batch(JobId([2; 16])),
        ] {
            let refusal = Err(EnqueueError::Invalid(Refusal::BadOptions));
            assert_eq!(check_template(&refused), refusal, "{refused:?}");
        }
    }

    #[test]
    fn option_outside_its_range_is_named_with_value_and_limits() {
        for (option, set, least, most) in RANGES {
            let check = |n| {
                let mut options = JobOptions::default();
                set(&mut options, n);
                check_options(&options)
            };
            assert_eq!((check(least), check(most)), (Ok(()), Ok(())), "{option}");
            // The number of attempts uses the full range of its type.
            let above = (option != "max_attempts").then_some(most + 1);
            for value in least.checked_sub(1).into_iter().chain(above) {
                assert_eq!(check(value), Err(BadOption { option, value, least, most }));
            }
        }
    }

    #[test]
    fn idempotency_keys_have_1_to_80_bytes_and_last_up_to_30_days() {
        let check = |length, for_ms| {
            let key = "k".repeat(length);
            check_idempotency(&Idempotency { key, for_ms }).map_err(|bad| bad.to_string())
        };
        let most = IDEMPOTENCY_MS_MAX;
        for (length, for_ms) in [(1, None), (80, Some(1)), (1, Some(most))] {
            assert_eq!(check(length, for_ms), Ok(()));
        }
        for (length, for_ms, text) in [
            (0, None, "idempotency_key (length in bytes) is 0, outside 1 to 80"),
            (81, None, "idempotency_key (length in bytes) is 81, outside 1 to 80"),
            (1, Some(0), "idempotency (for, in ms) is 0, outside 1 to 2592000000"),
            (1, Some(most + 1), "(for, in ms) is 2592000001, outside 1 to 2592000000"),
        ] {
            let refused = check(length, for_ms).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn unique_keys_have_1_to_80_bytes_and_periods_up_to_30_days() {
        let check = |unique: Unique| {
            let job = NewJob::new("/a".parse().unwrap(), Default::default(), Vec::new());
            super::check(&job.unique(unique)).map_err(|bad| bad.to_string())
        };
        let during = |ms| Unique::by_key("a").during(Duration::from_millis(ms));
        for unique in [Unique::by_payload(), Unique::by_key("k".repeat(80)), during(UNIQUE_MS_MAX)]
        {
            assert_eq!(check(unique), Ok(()));
        }
        for (unique, text) in [
            (Unique::by_key("k".repeat(81)), "unique_key (length in bytes) is 81, outside 1 to 80"),
            (during(0), "unique key (for, in ms) is 0, outside 1 to 2592000000"),
            (during(UNIQUE_MS_MAX + 1), "(for, in ms) is 2592000001, outside 1 to 2592000000"),
        ] {
            let refused = check(unique).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn too_many_headers_are_counted() {
        let mut job = NewJob::new("/a".parse().unwrap(), Default::default(), Vec::new());
        job.headers.0 = vec![("a".into(), String::new()); HEADERS_MAX + 1];
        let text = check(&job).unwrap_err().to_string();
        let expected =
            format!("number of headers is {}, outside 0 to {HEADERS_MAX}", HEADERS_MAX + 1);
        assert!(text.contains(&expected), "{text}");
    }

    #[test]
    fn default_options_are_valid() {
        assert_eq!(check_options(&JobOptions::default()), Ok(()));
        let prepared = JobOptions { prepared: true, ..JobOptions::default() };
        assert_eq!(check_options(&prepared), Ok(()));
    }
}
