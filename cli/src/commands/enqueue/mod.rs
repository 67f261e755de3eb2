//! `longshore enqueue`: enqueues jobs, and says honestly what became of them.

mod jsonl;
mod ranges;
pub(in crate::commands) mod source;
mod tally;
mod wait;

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use longshore::protocol::limits::{LEASE_MS_MAX, LEASE_MS_MIN, WAIT_MS_MAX};
use longshore::{
    Due, Glob, Headers, JobOptions, NewJob, PathAnswer, Pipeline, PipelineOptions, Producer,
    ProducerOptions, Receipts, new_id,
};
use serde_json::json;

pub(crate) use ranges::Ranges;

use super::Context;
use crate::arguments::Enqueue;
use crate::failure::{Interrupted, Reported, WrongUsage};
use crate::output::{Progress, grouped, jobs, shell_word};
use crate::signals::Stop;
use crate::time::{show_moment, wall_ms};
use source::{Item, Source};
use tally::{Reason, Tally, is_about_one_job};

/// How long the resolver may take to tell whether the queue is new; after it nothing is said of
/// that.
const IS_NEW_WITHIN: Duration = Duration::from_millis(1_500);

/// Most jobs that `--wait` waits for: as many ended ones as a queue keeps, and what bounds the
/// receipts held meanwhile.
const WAIT_JOBS_MAX: usize = 100_000;

pub(crate) async fn run(arguments: Enqueue, mut context: Context) -> anyhow::Result<()> {
    let template = template(&arguments).map_err(WrongUsage)?;
    let stop = Stop::listen()?;
    let is_new = is_new_queue(&template, &context);
    // Only a note hangs on it: without a resolver it is the producer that waits.
    let is_new = tokio::time::timeout(IS_NEW_WITHIN, is_new).await.unwrap_or(false);
    let options = ProducerOptions {
        name: format!("enqueue-{}", std::process::id()),
        ..ProducerOptions::default()
    };
    let producer = Producer::connect(context.cluster(), options);
    let mut progress = Progress::new("enqueueing", "jobs", None, &context.output);
    let (pipeline, receipts) = producer.pipeline(PipelineOptions::default());
    let tally = RefCell::new(Tally::new(arguments.wait));
    let going = Cell::new(true);
    let (read, ()) = tokio::join!(
        send(&arguments, &template, pipeline, &tally, &going, &stop),
        receive(receipts, &tally, &going, &mut progress),
    );
    progress.finish();
    let tally = tally.into_inner();
    say(&tally, &arguments, &mut context)?;
    if let (Reading::Interrupted, Some(code)) = (read?, stop.code()) {
        return Err(Interrupted(code).into());
    }
    if is_new && tally.created > 0 {
        warn_without_worker(&template, &context).await;
    }
    if arguments.wait {
        wait::until_ended(&tally, &mut context, &stop).await?;
    }
    if tally.is_complete() { Ok(()) } else { Err(Reported.into()) }
}

/// The job that every line begins from.
fn template(arguments: &Enqueue) -> Result<NewJob, String> {
    let id = arguments.id.unwrap_or_else(new_id);
    let mut job = NewJob::new(arguments.path.clone(), id, Bytes::new());
    job.headers = Headers(arguments.header.clone());
    job.options = JobOptions {
        priority: arguments.priority,
        due: match (arguments.delay, arguments.at) {
            (Some(delay), _) => Due::After(wait_ms(delay, "delay")?),
            (None, Some(at)) => Due::At(at),
            (None, None) => Due::Now,
        },
        prepared: arguments.prepare,
        expires_at: arguments.expires,
        max_attempts: arguments.max_attempts,
        lease_ms: arguments.lease.map(lease_ms).transpose()?,
        run_timeout_ms: arguments.run_timeout.map(|ms| wait_ms(ms, "run-timeout")).transpose()?,
        backoff: arguments.backoff.clone(),
        keep_ms: arguments.keep.map(|ms| wait_ms(ms, "keep")).transpose()?,
        // Who enqueues by hand wants to see what came of it.
        keep_result: !arguments.no_result,
    };
    if !arguments.jsonl {
        // With JSON each line may have another time.
        check_runs(&job.options)?;
    }
    Ok(job)
}

/// Checks a number of attempts.
fn attempts(most: u16) -> Result<u16, String> {
    if most == 0 { Err("max_attempts: 0 is out of range; at least 1".to_owned()) } else { Ok(most) }
}

/// Checks the length of a lease.
pub(crate) fn lease_ms(lease: Duration) -> Result<u32, String> {
    u32::try_from(lease.as_millis())
        .ok()
        .filter(|ms| (LEASE_MS_MIN..=LEASE_MS_MAX).contains(ms))
        .ok_or_else(|| {
            format!("lease: {} is out of range; 1s to 12h", crate::time::show_length(lease))
        })
}

/// Checks a length of time that may be up to 100 years.
pub(crate) fn wait_ms(length: Duration, what: &str) -> Result<u64, String> {
    u64::try_from(length.as_millis()).ok().filter(|ms| *ms <= WAIT_MS_MAX).ok_or_else(|| {
        format!("{what}: {} is out of range; at most 36500d", crate::time::show_length(length))
    })
}

/// True when nobody publishes the path yet: a default will make the queue.
async fn is_new_queue(template: &NewJob, context: &Context) -> bool {
    let client = context.read_client();
    let resolution = client.resolve(vec![template.path.clone()]).await;
    // Trouble with the resolver is told by the producer, which has more to say about it.
    resolution.is_ok_and(|resolution| {
        matches!(resolution.answers.first(), Some(PathAnswer::Publishers { by_default: true, .. }))
    })
}

async fn warn_without_worker(template: &NewJob, context: &Context) {
    let path = &template.path;
    let Ok(glob) = Glob::new(path.as_str()) else { return };
    let Ok(found) = context.queues().stats(glob).await else { return };
    let subscriptions: u64 = found.merged().iter().map(|queue| queue.subscriptions).sum();
    if subscriptions == 0 {
        eprintln!(
            "note: {path} is a new queue, and no worker takes from it: longshore work {} -- COMMAND",
            shell_word(path.as_str())
        );
    }
}

/// How the reading of payloads ended.
enum Reading {
    /// All was read, or no more is worth sending.
    Ended,
    /// A signal came first.
    Interrupted,
}

/// Sends what is read until it ends, or until it is wise to stop.
async fn send(
    arguments: &Enqueue,
    template: &NewJob,
    mut pipeline: Pipeline,
    tally: &RefCell<Tally>,
    going: &Cell<bool>,
    stop: &Stop,
) -> anyhow::Result<Reading> {
    let mut reading = Reading::Ended;
    let is_single = arguments.is_one_job();
    let source = if !arguments.file.is_empty() {
        Source::Files(arguments.file.clone())
    } else if arguments.lines || arguments.jsonl {
        Source::Lines
    } else if let Some(text) = &arguments.text {
        Source::One(text.clone().into_vec().into())
    } else {
        Source::Input
    };
    let mut batches = source::read(source, arguments.only.clone());
    let mut next = 1;
    let mut sent = 0;
    loop {
        let batch = tokio::select! {
            batch = batches.recv() => batch,
            () = stop.asked() => {
                going.set(false);
                reading = Reading::Interrupted;
                None
            }
        };
        let Some(batch) = batch else { break };
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                tally.borrow_mut().not_read_from(next);
                bail!("cannot read standard input: {error}");
            }
        };
        for item in batch {
            next = item.number + 1;
            let number = item.number;
            if !going.get() {
                tally.borrow_mut().not_read_from(number);
                return Ok(Reading::Ended);
            }
            if arguments.wait && sent == WAIT_JOBS_MAX {
                tally.borrow_mut().not_read_from(number);
                bail!("--wait waits for at most {WAIT_JOBS_MAX} jobs; enqueue more without it");
            }
            sent += 1;
            let id = if is_single { template.id } else { new_id() };
            match job_of(item, NewJob { id, ..template.clone() }, arguments.jsonl) {
                Err(why) => tally.borrow_mut().not_sent(number, why),
                Ok(job) => match pipeline.send(job).await {
                    Ok(ticket) => tally.borrow_mut().sent(ticket.0, number),
                    Err(error) => {
                        going.set(is_about_one_job(&error));
                        tally.borrow_mut().not_sent(number, error.to_string());
                    }
                },
            }
        }
        if !going.get() {
            break;
        }
    }
    if !going.get() && !is_single {
        tally.borrow_mut().not_read_from(next);
    }
    Ok(reading)
}

fn job_of(item: Item, job: NewJob, is_json: bool) -> Result<NewJob, String> {
    let payload = item.payload?;
    if !is_json {
        return Ok(NewJob { payload, ..job });
    }
    let job = jsonl::read(&payload, job)?;
    check_runs(&job.options)?;
    Ok(job)
}

/// Refuses a job that would expire before it is due: it could never run.
fn check_runs(options: &JobOptions) -> Result<(), String> {
    let due = match options.due {
        Due::Now => return Ok(()),
        Due::After(ms) => wall_ms().saturating_add(ms),
        Due::At(at) => at,
    };
    match options.expires_at {
        Some(expires) if expires <= due => Err(format!(
            "it would expire at {}, before it is due at {}, and never run; let it expire later, or without it",
            show_moment(expires),
            show_moment(due)
        )),
        _ => Ok(()),
    }
}

async fn receive(
    mut receipts: Receipts,
    tally: &RefCell<Tally>,
    going: &Cell<bool>,
    progress: &mut Progress,
) {
    while let Some(batch) = receipts.next().await {
        let mut tally = tally.borrow_mut();
        if !tally.answered(&batch) {
            going.set(false);
        }
        progress.at(tally.held());
    }
}

fn say(tally: &Tally, arguments: &Enqueue, context: &mut Context) -> anyhow::Result<()> {
    let is_single = arguments.is_one_job();
    let of_lines = arguments.lines || arguments.jsonl;
    let held = tally.held();
    if context.output.is_json() {
        let mut value = json!({
            "acknowledged": held, "created": tally.created, "existing": tally.existing,
            "not_acknowledged": tally.missing.to_string(), "unknown": tally.unknown.to_string(),
            "errors": tally.reasons().into_iter().map(|reason| json!({
                "lines": reason.lines.to_string(), "error": reason.why, "count": reason.count,
            })).collect::<Vec<_>>(),
        });
        if let Some(first) = &tally.first {
            value["durability"] = first.durability.to_string().into();
        }
        if let (1, Some(first)) = (held, &tally.first) {
            value["job"] = first.job.to_string().into();
            value["publisher"] = first.job.publisher.to_string().into();
            value["id"] = first.job.id.to_string().into();
        }
        context.output.json(&value)?;
    } else if let (1, true, Some(first)) = (held, tally.is_complete(), &tally.first) {
        let known = if first.existing { " (it was there already)" } else { "" };
        context.output.line(format!("{first}{known}"))?;
    } else if held > 0 {
        let durability = tally.first.map(|first| first.durability.to_string()).unwrap_or_default();
        let known = match tally.existing {
            0 => String::new(),
            existing => format!(", {} of them there already", grouped(existing)),
        };
        context.output.line(format!("{} acknowledged ({durability}){known}", jobs(held)))?;
    }
    for Reason { why, count, lines } in tally.reasons() {
        let at = match (of_lines, count) {
            (false, _) => String::new(),
            (true, 1) => format!("line {lines}: "),
            (true, _) => format!("lines {lines}: "),
        };
        match count {
            1 => eprintln!("error: {at}{why}"),
            _ => eprintln!("error: {at}{why} ({} times)", grouped(*count)),
        }
    }
    if is_single {
        // The reason has said it all.
        return Ok(());
    }
    if !tally.missing.is_empty() {
        eprintln!("not acknowledged: hand them in again with --only {}", tally.missing);
    }
    if !tally.unknown.is_empty() {
        eprintln!(
            "unknown, they may be there or not: look before you hand them in with --only {}",
            tally.unknown
        );
    }
    Ok(())
}
