//! A job as one line of JSON.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore::protocol::{FairKey, JobKeys};
use longshore::{Due, JobId, NewJob, Unique};
use serde::Deserialize;
use serde_json::Value;

use crate::arguments::parse_job_id;
use crate::backoff::parse_backoff;
use crate::time::{parse_deadline, parse_duration, parse_timestamp};
use crate::unique::{parse_on_conflict, parse_until};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    payload: Value,
    id: Option<String>,
    idempotency_key: Option<String>,
    idempotency_for: Option<String>,
    order_key: Option<String>,
    fair_key: Option<String>,
    fair_weight: Option<u16>,
    limit_key: Option<String>,
    cost: Option<u16>,
    unique: Option<UniqueBy>,
    unique_until: Option<String>,
    on_conflict: Option<String>,
    latest: Option<String>,
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    after_death: Vec<String>,
    #[serde(default)]
    after_end: Vec<String>,
    batch: Option<String>,
    priority: Option<i32>,
    delay: Option<String>,
    at: Option<String>,
    max_attempts: Option<u16>,
    lease: Option<String>,
    run_timeout: Option<String>,
    backoff: Option<String>,
    keep: Option<String>,
    expires: Option<String>,
    prepare: Option<bool>,
    result: Option<bool>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// A unique key.
#[derive(Deserialize)]
#[serde(untagged)]
enum UniqueBy {
    Key(String),
    /// By the payload, or not unique.
    Payload(bool),
}

/// Applies a line to `job`, which has the options of the command line. A string payload is used
/// verbatim; any other stays JSON.
pub(crate) fn read(line: &[u8], mut job: NewJob) -> Result<NewJob, String> {
    if line.trim_ascii().is_empty() {
        return Err("an empty line is not a job".to_owned());
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| {
        // Every job is one line, so only the column is useful.
        format!(
            "not a job as JSON: {}",
            error.to_string().replace(" at line 1 column", " at column")
        )
    })?;
    job.payload = match line.payload {
        Value::String(text) => Bytes::from(text),
        other => Bytes::from(other.to_string()),
    };
    if let Some(id) = line.id {
        job.id = id.parse().map_err(|error| format!("id: {error}"))?;
    }
    let key_for = line.idempotency_for.map(|length| {
        let length = named("idempotency_for", parse_duration(&length))?;
        line.idempotency_key.is_some().then_some(length).ok_or_else(|| {
            "idempotency_for: the job has no idempotency_key; set both or neither".to_owned()
        })
    });
    super::set_idempotency(&mut job, line.idempotency_key, key_for.transpose()?);
    let has_order_key = line.order_key.is_some()
        || job.keys.as_deref().is_some_and(|keys| keys.order.is_some() && !are_of_latest(keys));
    if let Some(key) = line.order_key {
        job.keys_mut().order = Some(key);
    }
    if let Some(key) = line.limit_key {
        job.keys_mut().limit = Some(key);
    }
    if let Some(cost) = line.cost {
        job.keys_mut().cost = Some(cost);
    }
    match (line.fair_key, line.fair_weight) {
        (Some(key), weight) => {
            job.keys_mut().fair = Some(FairKey { key, weight: weight.unwrap_or(1) });
        }
        (None, Some(weight)) => match job.keys.as_mut().and_then(|keys| keys.fair.as_mut()) {
            Some(fair) => fair.weight = weight,
            None => return Err("fair_weight: the job has no fair_key".to_owned()),
        },
        (None, None) => {}
    }
    let has_unique =
        line.unique.is_some() || line.unique_until.is_some() || line.on_conflict.is_some();
    if line.latest.is_some() && (has_unique || has_order_key) {
        return Err("latest: the job has its own unique options or order key; set one".to_owned());
    }
    set_unique(&mut job, line.unique, line.unique_until, line.on_conflict)?;
    if let Some(key) = line.latest {
        job = job.latest(key);
    }
    if let Some(priority) = line.priority {
        job.options.priority = priority;
    }
    job.options.due = match (line.delay, line.at) {
        (None, None) => job.options.due,
        (Some(delay), None) => Due::After(duration(&delay, "delay")?),
        (None, Some(at)) => Due::At(named("at", parse_timestamp(&at))?),
        (Some(_), Some(_)) => return Err("a job has a delay or a time, not both".to_owned()),
    };
    if let Some(expires) = line.expires {
        job.options.expires_at = Some(named("expires", parse_deadline(&expires))?);
    }
    if let Some(attempts) = line.max_attempts {
        job.options.max_attempts = Some(super::attempts(attempts)?);
    }
    if let Some(lease) = line.lease {
        job.options.lease_ms = Some(super::lease_ms(named("lease", parse_duration(&lease))?)?);
    }
    if let Some(run_timeout) = line.run_timeout {
        job.options.run_timeout_ms = Some(duration(&run_timeout, "run_timeout")?);
    }
    if let Some(backoff) = line.backoff {
        job.options.backoff = Some(named("backoff", parse_backoff(&backoff))?);
    }
    if let Some(keep) = line.keep {
        job.options.keep_ms = Some(duration(&keep, "keep")?);
    }
    job.options.prepared = line.prepare.unwrap_or(job.options.prepared);
    job.options.keep_result = line.result.unwrap_or(job.options.keep_result);
    // Of a header that occurs twice, the first would count.
    job.headers.0.retain(|(key, _)| !line.headers.contains_key(key));
    job.headers.0.extend(line.headers);
    if let Some(batch) = line.batch {
        job = job.in_batch(named("batch", parse_job_id(&batch))?);
    }
    let after = [
        parents(&line.after, "after")?,
        parents(&line.after_death, "after_death")?,
        parents(&line.after_end, "after_end")?,
    ];
    super::add_parents(job, after.each_ref().map(Vec::as_slice))
}

/// Whether these are the keys that [`NewJob::latest`] sets. A line may set another latest.
fn are_of_latest(keys: &JobKeys) -> bool {
    let latest = |key: &String| Unique::by_key(key.as_str()).until_start().replace();
    keys.unique.is_some() && keys.unique == keys.order.as_ref().map(latest)
}

fn parents(jobs: &[String], name: &str) -> Result<Vec<JobId>, String> {
    jobs.iter().map(|job| named(name, parse_job_id(job))).collect()
}

fn set_unique(
    job: &mut NewJob,
    by: Option<UniqueBy>,
    until: Option<String>,
    on_conflict: Option<String>,
) -> Result<(), String> {
    let was = job.keys.as_mut().and_then(|keys| keys.unique.take());
    let mut unique = match by {
        None => was,
        Some(UniqueBy::Payload(false)) => None,
        Some(UniqueBy::Payload(true)) => Some(Unique::by_payload()),
        Some(UniqueBy::Key(key)) if key.is_empty() => {
            return Err("unique: the key is empty; true is for one of the payload".to_owned());
        }
        Some(UniqueBy::Key(key)) => Some(Unique::by_key(key)),
    };
    for (name, text) in [("unique_until", until), ("on_conflict", on_conflict)] {
        let (Some(text), unique) = (text, &mut unique) else { continue };
        let unique = unique.as_mut().ok_or_else(|| {
            format!("{name}: the job has no unique key; set \"unique\" to a text, or to true")
        })?;
        match name {
            "on_conflict" => unique.on_conflict = named(name, parse_on_conflict(&text))?,
            _ => unique.until = named(name, parse_until(&text))?,
        }
    }
    if unique.is_some() {
        job.keys_mut().unique = unique;
    }
    Ok(())
}

fn duration(text: &str, what: &str) -> Result<u64, String> {
    super::wait_ms(named(what, parse_duration(text))?, what)
}

fn named<T>(what: &str, read: Result<T, String>) -> Result<T, String> {
    read.map_err(|error| format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use longshore::{JobId, Path};

    use super::*;

    fn job() -> NewJob {
        NewJob::new(Path::new("/jobs").unwrap(), JobId([1; 16]), Bytes::new())
    }

    #[test]
    fn a_json_line_sets_payload_id_and_options() {
        let line =
            br#"{"payload":{"to":"a"},"id":"01920f3e-5b7a-7fff-bfff-ffffffffffff","priority":-2,
            "delay":"5m","max_attempts":3,"lease":"1m","headers":{"a":"b"}}"#;
        let job = read(line, job()).unwrap();
        assert_eq!(&job.payload[..], br#"{"to":"a"}"#);
        assert_eq!(job.id.to_string(), "01920f3e-5b7a-7fff-bfff-ffffffffffff");
        assert_eq!((job.options.priority, job.options.due), (-2, Due::After(300_000)));
        assert_eq!((job.options.max_attempts, job.options.lease_ms), (Some(3), Some(60_000)));
        assert_eq!(job.headers.get("a"), Some("b"));
    }

    #[test]
    fn every_option_has_a_json_field() {
        let line = br#"{"payload":1,"expires":"2026-11-20T21:30:00Z","run_timeout":"0s",
            "backoff":"fixed:5s","keep":"1h","prepare":true,"result":false,
            "idempotency_key":"order-42","idempotency_for":"1h"}"#;
        let job = read(line, job()).unwrap();
        let key = job.keys.unwrap().idempotency.unwrap();
        assert_eq!((&*key.key, key.for_ms), ("order-42", Some(3_600_000)));
        let options = job.options;
        assert_eq!(options.expires_at, Some(1_795_210_200_000));
        assert_eq!((options.run_timeout_ms, options.keep_ms), (Some(0), Some(3_600_000)));
        assert_eq!(options.backoff, Some(longshore::Backoff::Fixed(5_000)));
        assert!(options.prepared && !options.keep_result);
    }

    #[test]
    fn a_line_may_be_unique_by_a_key_or_its_payload() {
        let unique = |line: &str| {
            let job = read(line.as_bytes(), job())?;
            Ok::<_, String>(job.keys.and_then(|keys| keys.unique))
        };
        let by_key = r#"{"payload":1,"unique":"a","unique_until":"start","on_conflict":"refuse"}"#;
        assert_eq!(unique(by_key), Ok(Some(Unique::by_key("a").until_start().refuse())));
        assert_eq!(unique(r#"{"payload":1,"unique":true}"#), Ok(Some(Unique::by_payload())));
        assert_eq!(unique(r#"{"payload":1,"unique":false}"#), Ok(None));
        let latest = Unique::by_key("a").until_start().replace();
        assert_eq!(unique(r#"{"payload":1,"latest":"a"}"#), Ok(Some(latest)));
        for both in [r#""unique":"b""#, r#""order_key":"b""#] {
            let refused = unique(&format!(r#"{{"payload":1,"latest":"a",{both}}}"#)).unwrap_err();
            assert!(refused.starts_with("latest: "), "{refused}");
        }
    }

    #[test]
    fn a_line_takes_precedence_over_the_options_of_the_command() {
        let mut template = job().latest("a");
        template.headers.0.push(("tenant".to_owned(), "default".to_owned()));
        template.headers.0.push(("a".to_owned(), "b".to_owned()));
        template.keys_mut().fair = Some(FairKey { key: "t".to_owned(), weight: 1 });
        let line = br#"{"payload":1,"latest":"b","fair_weight":3,"headers":{"tenant":"acme"}}"#;
        let job = read(line, template.clone()).unwrap();
        assert_eq!(job.headers.get("tenant"), Some("acme"));
        assert_eq!((job.headers.get("a"), job.headers.0.len()), (Some("b"), 2));
        let keys = job.keys.unwrap();
        assert_eq!(keys.fair, Some(FairKey { key: "t".to_owned(), weight: 3 }));
        let latest = Unique::by_key("b").until_start().replace();
        assert_eq!((&keys.unique, keys.order.as_deref()), (&Some(latest), Some("b")));
        for own in [
            r#""order_key":"a""#,
            r#""unique":"a""#,
            r#""unique_until":"end""#,
            r#""on_conflict":"refuse""#,
        ] {
            let line = format!(r#"{{"payload":1,"latest":"b",{own}}}"#);
            assert!(read(line.as_bytes(), template.clone()).unwrap_err().starts_with("latest: "));
        }
    }

    #[test]
    fn a_string_payload_is_used_verbatim_with_default_options() {
        let read = read(br#"{"payload":"a \"b\""}"#, job()).unwrap();
        assert_eq!(&read.payload[..], b"a \"b\"");
        assert_eq!(read.options, job().options);
    }

    #[test]
    fn invalid_lines_report_the_faulty_field() {
        for (line, named) in [
            ("", "an empty line"),
            ("{", "EOF while parsing an object at column 1"),
            ("{}", "payload"),
            (r#"{"payload":1,"prority":2}"#, "prority"),
            (r#"{"payload":1,"id":"7"}"#, "id: "),
            (r#"{"payload":1,"delay":"soon"}"#, "delay: "),
            (r#"{"payload":1,"idempotency_for":"1h"}"#, "no idempotency_key"),
            (r#"{"payload":1,"idempotency_key":"a","idempotency_for":"x"}"#, "idempotency_for: "),
            (r#"{"payload":1,"delay":"1s","at":"2026-11-20T21:30:00Z"}"#, "not both"),
            (r#"{"payload":1,"max_attempts":0}"#, "at least 1"),
            (r#"{"payload":1,"on_conflict":"keep"}"#, "on_conflict: the job has no unique key"),
            (r#"{"payload":1,"unique":true,"unique_until":"x"}"#, "unique_until: 'x'"),
            (r#"{"payload":1,"unique":""}"#, "unique: the key is empty"),
            (r#"{"payload":1,"fair_weight":3}"#, "fair_weight: the job has no fair_key"),
            (r#"{"payload":1,"lease":"1ms"}"#, "12h"),
            (r#"{"payload":1,"backoff":"often"}"#, "backoff: "),
            (r#"{"payload":1,"run_timeout":"40000d"}"#, "run_timeout: "),
            (r#"{"payload":1,"expires":"late"}"#, "expires: "),
        ] {
            let error = read(line.as_bytes(), job()).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
