//! Schedules as arguments and files declare them.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::Path as FilePath;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use longshore::{JobId, NewJob, NewSchedule, Path};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use super::super::enqueue::jsonl;
use crate::arguments::AddSchedule;
use crate::schedule::{parse_missed, parse_overlap};
use crate::time::{parse_duration, parse_timestamp};

/// The schedule of the command line.
pub(super) fn of_arguments(arguments: &AddSchedule) -> Result<NewSchedule, String> {
    let name = arguments.name.clone().ok_or("a schedule has a name")?;
    let path = arguments.path.clone().ok_or("a schedule has a queue")?;
    let payload = Bytes::from(arguments.text.clone().unwrap_or_default().into_vec());
    let mut job = NewJob::new(path, JobId::default(), payload);
    // As enqueued by hand.
    job.options.keep_result = true;
    job.options.priority = arguments.priority.unwrap_or_default();
    job.options.max_attempts = arguments.max_attempts;
    job.options.backoff = arguments.backoff.clone();
    if let Some(timeout) = arguments.run_timeout {
        job.options.run_timeout_ms = Some(super::super::enqueue::wait_ms(timeout, "run-timeout")?);
    }
    let mut schedule = match (&arguments.cron, arguments.every) {
        (Some(expression), _) => {
            let zone = arguments.zone.as_deref().unwrap_or("UTC");
            NewSchedule::cron(name, expression, job).zone(zone)
        }
        (None, Some(period)) => NewSchedule::every(name, period, job),
        (None, None) => return Err("a schedule has --cron or --every".to_owned()),
    };
    if let Some(at) = arguments.start {
        schedule = schedule.starts(UNIX_EPOCH + Duration::from_millis(at));
    }
    if let Some(at) = arguments.end {
        schedule = schedule.ends(UNIX_EPOCH + Duration::from_millis(at));
    }
    if let Some(most) = arguments.jitter {
        schedule = schedule.jitter(most);
    }
    if let Some(missed) = arguments.missed {
        schedule = schedule.missed(missed);
    }
    if let Some(overlap) = arguments.overlap {
        schedule = schedule.overlap(overlap);
    }
    if let Some(version) = arguments.version {
        schedule = schedule.version(version);
    }
    Ok(schedule)
}

/// A file of schedules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Of all its schedules.
    version: Option<u64>,
    #[serde(default)]
    schedule: BTreeMap<String, Entry>,
}

/// A schedule of a file. What else it has are fields of its job, as `enqueue --jsonl` has them.
#[derive(Deserialize)]
struct Entry {
    path: String,
    cron: Option<String>,
    zone: Option<String>,
    every: Option<String>,
    start: Option<toml::Value>,
    end: Option<toml::Value>,
    jitter: Option<String>,
    missed: Option<String>,
    overlap: Option<String>,
    #[serde(flatten)]
    job: BTreeMap<String, toml::Value>,
}

/// The version and the schedules of a file: with `--prune` it may have none, once the last of a
/// service is gone.
pub(super) fn of_file(
    file: &FilePath,
    prunes: bool,
) -> Result<(Option<u64>, Vec<NewSchedule>), String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|why| format!("{name}: {why}"))?;
    let File { version, schedule } =
        toml::from_str(&text).map_err(|why| format!("{name}: {why}"))?;
    if schedule.is_empty() && !prunes {
        return Err(format!("{name}: no schedule: each has a table, like [schedule.nightly]"));
    }
    let schedules = schedule.into_iter().map(|(key, entry)| {
        let schedule = of_entry(&key, entry).map_err(|why| format!("{name}: {key}: {why}"))?;
        Ok(match version {
            Some(version) => schedule.version(version),
            None => schedule,
        })
    });
    Ok((version, schedules.collect::<Result<_, String>>()?))
}

fn of_entry(name: &str, entry: Entry) -> Result<NewSchedule, String> {
    let Entry { path, cron, zone, every, start, end, jitter, missed, overlap, job: fields } = entry;
    let path: Path = path.parse().map_err(|why| format!("path: {why}"))?;
    let mut job = NewJob::new(path, JobId::default(), Bytes::new());
    job.options.keep_result = true;
    let mut fields = json_fields(fields)?;
    fields.entry("payload").or_insert_with(|| "".into());
    let fields = serde_json::to_vec(&fields).map_err(|why| why.to_string())?;
    let job = jsonl::read(&fields, job)?;
    let mut schedule = match (cron, every) {
        (Some(expression), None) => {
            NewSchedule::cron(name, expression, job).zone(zone.unwrap_or_else(|| "UTC".to_owned()))
        }
        (None, Some(_)) if zone.is_some() => return Err("zone: only cron has one".to_owned()),
        (None, Some(period)) => {
            let period = parse_duration(&period).map_err(|why| format!("every: {why}"))?;
            NewSchedule::every(name, period, job)
        }
        _ => return Err("set either cron or every".to_owned()),
    };
    let time = |what: &str, value: Option<toml::Value>| {
        let text = match value {
            None => return Ok(None),
            Some(toml::Value::String(text)) => text,
            Some(toml::Value::Datetime(at)) => at.to_string(),
            Some(_) => return Err(format!("{what}: a time, like 2026-12-01T00:00:00Z")),
        };
        let at = parse_timestamp(&text).map_err(|why| format!("{what}: {why}"))?;
        Ok(Some(UNIX_EPOCH + Duration::from_millis(at)))
    };
    if let Some(at) = time("start", start)? {
        schedule = schedule.starts(at);
    }
    if let Some(at) = time("end", end)? {
        schedule = schedule.ends(at);
    }
    if let Some(most) = jitter {
        schedule = schedule.jitter(parse_duration(&most).map_err(|why| format!("jitter: {why}"))?);
    }
    if let Some(missed) = missed {
        schedule = schedule.missed(parse_missed(&missed).map_err(|why| format!("missed: {why}"))?);
    }
    if let Some(overlap) = overlap {
        let overlap = parse_overlap(&overlap).map_err(|why| format!("overlap: {why}"))?;
        schedule = schedule.overlap(overlap);
    }
    Ok(schedule)
}

fn json_fields(
    fields: impl IntoIterator<Item = (String, toml::Value)>,
) -> Result<Map<String, Value>, String> {
    let fields = fields.into_iter().map(|(key, value)| {
        let value = json(value).map_err(|why| format!("{key}: {why}"))?;
        Ok((key, value))
    });
    fields.collect()
}

/// A value of a file as JSON. A date or time, which JSON has not, becomes its text.
fn json(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => {
            Number::from_f64(number).ok_or_else(|| format!("JSON has no number {number}"))?.into()
        }
        toml::Value::Boolean(is_so) => is_so.into(),
        toml::Value::Datetime(at) => at.to_string().into(),
        toml::Value::Array(all) => all.into_iter().map(json).collect::<Result<_, _>>()?,
        toml::Value::Table(fields) => json_fields(fields)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<NewSchedule>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        of_file(file.path(), false).map(|(_, schedules)| schedules)
    }

    #[test]
    fn a_file_declares_schedules_with_the_fields_of_jobs() {
        let schedules = read(
            "version = 7\n\
             [schedule.nightly]\n\
             path = \"/reports\"\n\
             cron = \"30 3 * * *\"\n\
             zone = \"Europe/Berlin\"\n\
             payload = { day = \"yesterday\" }\n\
             start = 2026-12-01T00:00:00Z\n\
             max_attempts = 3\n\
             [schedule.poll]\n\
             path = \"/poll\"\n\
             every = \"5m\"\n\
             overlap = \"buffer\"\n",
        )
        .unwrap();
        let names: Vec<&str> = schedules.iter().map(NewSchedule::name).collect();
        assert_eq!(names, ["nightly", "poll"]);
    }

    #[test]
    fn a_date_in_a_field_of_a_job_is_its_text() {
        let file = "[schedule.a]\n\
                    path = \"/a\"\n\
                    every = \"5m\"\n\
                    expires = 2027-01-01T00:00:00Z\n\
                    payload = { day = 2026-12-01, at = [07:30:00, 1.5, { on = true }] }\n";
        let mut file: File = toml::from_str(file).unwrap();
        let fields = json_fields(file.schedule.remove("a").unwrap().job).unwrap();
        assert_eq!(fields["expires"], "2027-01-01T00:00:00Z");
        let payload = r#"{"at":["07:30:00",1.5,{"on":true}],"day":"2026-12-01"}"#;
        assert_eq!(fields["payload"].to_string(), payload);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        let entry = |more: &str| read(&format!("[schedule.a]\npath = \"/a\"\n{more}")).unwrap_err();
        for (more, named) in [
            ("", "a: set either cron or every"),
            ("every = \"5m\"\ncron = \"* * * * *\"", "set either cron or every"),
            ("every = \"soon\"", "every: 'soon'"),
            ("every = \"5m\"\nzone = \"UTC\"", "zone: only cron"),
            ("every = \"5m\"\nmissed = \"some\"", "missed: 'some'"),
            ("every = \"5m\"\nattempts = 3", "unknown field `attempts`"),
            ("every = \"5m\"\nstart = \"today\"", "start: 'today'"),
            ("every = \"5m\"\npayload = { a = nan }", "payload: a: JSON has no number NaN"),
        ] {
            assert!(entry(more).contains(named), "{more}: {}", entry(more));
        }
        assert!(read("schedules = 1").unwrap_err().contains("unknown field `schedules`"));
        assert!(read("version = 1").unwrap_err().contains("no schedule"));
    }
}
