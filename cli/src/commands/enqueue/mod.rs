//! `longshore enqueue`: enqueues jobs, and reports which were acknowledged, refused or left
//! unknown.

pub(in crate::commands) mod jsonl;
mod ranges;
pub(in crate::commands) mod source;
mod tally;
mod wait;

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use longshore::protocol::limits::{LEASE_MS_MAX, LEASE_MS_MIN, PARENTS_MAX, WAIT_MS_MAX};
use longshore::protocol::{FairKey, Idempotency, ParentEnd};
use longshore::{
    Due, Glob, Headers, JobId, JobOptions, NewJob, PathAnswer, Pipeline, Producer, Receipts,
    Unique, new_id,
};
use serde_json::json;

pub(crate) use ranges::Ranges;

use super::{Context, TIMEOUT_HINT, timed_out};
use crate::arguments::Enqueue;
use crate::deadline::Deadline;
use crate::failure::{AlreadyReported, Failure, FailureKind, Interrupted, UsageError};
use crate::output::{Progress, grouped, jobs, shell_word};
use crate::signals::StopSignal;
use crate::time::{show_timestamp, wall_ms};
use source::{Item, Source};
use tally::{Reason, Tally};

/// The longest wait for the resolver's answer whether the queue is new; after it, no note is
/// printed.
const IS_NEW_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The most jobs that `--wait` accepts: by default a queue retains as many ended jobs, and it
/// bounds the receipts in memory.
const WAIT_JOBS_MAX: usize = 100_000;

pub(crate) async fn run(arguments: Enqueue, mut context: Context) -> anyhow::Result<()> {
    let template = template(&arguments).map_err(UsageError)?;
    check_files(&arguments)?;
    let stop = StopSignal::listen()?;
    let is_new = is_new_queue(&template, &context);
    // Only a note depends on it; the producer itself waits for the resolver.
    let limit = context.deadline.limit().map_or(IS_NEW_TIMEOUT, |limit| limit / 2);
    let is_new = tokio::time::timeout(IS_NEW_TIMEOUT.min(limit), is_new).await.unwrap_or(false);
    let mut options = Producer::builder().name(format!("enqueue-{}", std::process::id()));
    if let Some(limit) = context.deadline.limit() {
        options = options.answer_timeout(limit);
    }
    let producer = options.connect(context.cluster());
    let mut progress = Progress::new("enqueueing", "jobs", None, &context.output);
    let (pipeline, receipts) = producer.pipeline();
    let tally = RefCell::new(Tally::new(arguments.wait, arguments.only.clone()));
    let keep_sending = Cell::new(true);
    let (read, ()) = tokio::join!(
        send(&arguments, &template, pipeline, &tally, &keep_sending, (&stop, &context.deadline)),
        receive(receipts, &tally, &keep_sending, &mut progress),
    );
    progress.finish();
    let tally = tally.into_inner();
    print_summary(&tally, &arguments, &mut context)?;
    match (read?, stop.code()) {
        (Reading::Interrupted, Some(code)) => return Err(Interrupted(code).into()),
        (Reading::TimedOut(limit), _) => return Err(timed_out(limit, true).into()),
        _ => {}
    }
    if is_new && tally.created > 0 {
        warn_without_worker(&template, &context).await;
    }
    if arguments.wait {
        let deadline = context.deadline.clone();
        tokio::select! {
            ended = wait::until_ended(&tally, &mut context, &stop) => ended?,
            limit = deadline.passed() => {
                report!("stopped waiting; the jobs continue");
                return Err(timed_out(limit, true).into());
            }
        }
    }
    if tally.is_unanswered() {
        return Err(unanswered().into());
    }
    if tally.is_complete() { Ok(()) } else { Err(AlreadyReported.into()) }
}

fn unanswered() -> Failure {
    Failure::new(FailureKind::TimedOut, "there was no answer in time").with_hint(TIMEOUT_HINT)
}

/// An error if a folder is named as a file. Nothing is enqueued then.
fn check_files(arguments: &Enqueue) -> Result<(), UsageError> {
    let Some(folder) = arguments.file.iter().find(|file| file.is_dir()) else { return Ok(()) };
    let (path, folder) = (arguments.path.as_str(), folder.to_string_lossy());
    Err(UsageError(format!(
        "{folder} is a folder; a job for each of its files: find {} -type f -exec longshore enqueue \
         {} --file {{}} +",
        shell_word(&folder),
        shell_word(path),
    )))
}

/// The job with the options of the command line.
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
        // Jobs enqueued by hand retain their result by default.
        keep_result: !arguments.no_result,
    };
    set_idempotency(&mut job, arguments.idempotency_key.clone(), arguments.idempotency_for);
    if let Some(key) = arguments.order_key.clone() {
        job.keys_mut().order = Some(key);
    }
    if let Some(key) = arguments.limit_key.clone() {
        job.keys_mut().limit = Some(key);
    }
    if let Some(cost) = arguments.cost {
        job.keys_mut().cost = Some(cost);
    }
    if let Some(key) = arguments.fair_key.clone() {
        job.keys_mut().fair = Some(FairKey { key, weight: arguments.fair_weight });
    }
    if let Some(key) = arguments.unique.clone() {
        let Unique { key, .. } = key.map_or_else(Unique::by_payload, Unique::by_key);
        let until = arguments.unique_until.unwrap_or_default();
        let on_conflict = arguments.on_conflict.unwrap_or_default();
        job.keys_mut().unique = Some(Unique { key, until, on_conflict });
    }
    if let Some(key) = &arguments.latest {
        job = job.latest(key);
    }
    let after = [&arguments.after, &arguments.after_death, &arguments.after_end];
    job = add_parents(job, after.map(Vec::as_slice))?;
    if let Some(batch) = arguments.batch {
        job = job.in_batch(batch);
    }
    if !arguments.jsonl {
        // With --jsonl each line may set other times.
        check_runs(&job.options)?;
    }
    Ok(job)
}

/// Lets the job wait for the success, the death and any end of these.
fn add_parents(mut job: NewJob, after: [&[JobId]; 3]) -> Result<NewJob, String> {
    let ends = [ParentEnd::Success, ParentEnd::Death, ParentEnd::Any];
    for (&parent, end) in
        after.into_iter().zip(ends).flat_map(|(all, end)| all.iter().map(move |job| (job, end)))
    {
        job = job.after_end(parent, end);
    }
    let parents = job.keys.as_ref().map_or(0, |keys| keys.after.len());
    if parents > PARENTS_MAX {
        return Err(format!("after: {parents} jobs; one job waits for at most {PARENTS_MAX}"));
    }
    let has_time = job.options.prepared || job.options.due != Due::Now;
    if parents > 0 && has_time {
        return Err("after: a job that waits for others has no delay or time of its own, and is \
                    not prepared"
            .to_owned());
    }
    Ok(job)
}

/// Sets the idempotency key of a job; the producer checks its limits.
fn set_idempotency(job: &mut NewJob, key: Option<String>, duration: Option<Duration>) {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if let Some(key) = key {
        job.keys_mut().idempotency = Some(Idempotency { key, for_ms: duration.map(ms) });
    }
}

/// Validates a number of attempts.
fn attempts(most: u16) -> Result<u16, String> {
    if most == 0 { Err("max_attempts: 0 is out of range; at least 1".to_owned()) } else { Ok(most) }
}

/// Validates a lease.
pub(crate) fn lease_ms(lease: Duration) -> Result<u32, String> {
    u32::try_from(lease.as_millis())
        .ok()
        .filter(|ms| (LEASE_MS_MIN..=LEASE_MS_MAX).contains(ms))
        .ok_or_else(|| {
            format!("lease: {} is out of range; 1s to 12h", crate::time::show_duration(lease))
        })
}

/// Validates a duration of at most 100 years.
pub(crate) fn wait_ms(duration: Duration, what: &str) -> Result<u64, String> {
    u64::try_from(duration.as_millis()).ok().filter(|ms| *ms <= WAIT_MS_MAX).ok_or_else(|| {
        format!("{what}: {} is out of range; at most 36500d", crate::time::show_duration(duration))
    })
}

/// True if the path is not published yet, so that a default will create the queue.
async fn is_new_queue(template: &NewJob, context: &Context) -> bool {
    let client = context.read_client();
    let resolution = client.resolve(vec![template.path.clone()]).await;
    // The producer reports errors of the resolver.
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
        report_note!(
            "{path} is a new queue, and no worker takes from it: \
             longshore work {} -- COMMAND",
            shell_word(path.as_str())
        );
    }
}

/// How the reading of payloads ended.
enum Reading {
    /// The input ended, or an error made further jobs pointless.
    Ended,
    /// A signal interrupted it.
    Interrupted,
    /// The time for it has passed.
    TimedOut(Duration),
}

/// Reads and sends jobs until the input ends, a signal arrives, or an error affects all jobs.
async fn send(
    arguments: &Enqueue,
    template: &NewJob,
    mut pipeline: Pipeline,
    tally: &RefCell<Tally>,
    keep_sending: &Cell<bool>,
    (stop, deadline): (&StopSignal, &Deadline),
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
        Source::Stdin
    };
    let mut batches = source::read(source, arguments.only.clone());
    let mut next = 1;
    let mut sent = 0;
    let mut stopped = pin!(stop.requested());
    loop {
        let batch = tokio::select! {
            batch = batches.recv() => batch,
            () = &mut stopped => {
                keep_sending.set(false);
                reading = Reading::Interrupted;
                None
            }
            limit = deadline.passed() => {
                keep_sending.set(false);
                reading = Reading::TimedOut(limit);
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
            if !keep_sending.get() {
                tally.borrow_mut().not_read_from(number);
                return Ok(Reading::Ended);
            }
            // A batch may be 100,000 jobs. A send that waits has the same limit itself, and reports
            // why it waited.
            if let Some(limit) = deadline.expired() {
                tally.borrow_mut().not_read_from(number);
                return Ok(Reading::TimedOut(limit));
            }
            if arguments.wait && sent == WAIT_JOBS_MAX {
                tally.borrow_mut().not_read_from(number);
                bail!("--wait waits for at most {WAIT_JOBS_MAX} jobs; enqueue more without it");
            }
            sent += 1;
            let id = if is_single { template.id } else { new_id() };
            match job_of(item, NewJob { id, ..template.clone() }, arguments) {
                Err(why) => tally.borrow_mut().not_sent(number, why),
                Ok(job) => tokio::select! {
                    biased;
                    () = &mut stopped => {
                        tally.borrow_mut().not_read_from(number);
                        return Ok(Reading::Interrupted);
                    }
                    sent = pipeline.send(job) => match sent {
                        Ok(index) => tally.borrow_mut().sent(index, number),
                        Err(error) => {
                            // Never set again: a receipt may have cleared it during the send.
                            if !tally.borrow_mut().failed(number, &error) {
                                keep_sending.set(false);
                            }
                        }
                    },
                },
            }
        }
        if !keep_sending.get() {
            break;
        }
    }
    if !keep_sending.get() && !is_single {
        tally.borrow_mut().not_read_from(next);
    }
    Ok(reading)
}

fn job_of(item: Item, job: NewJob, arguments: &Enqueue) -> Result<NewJob, String> {
    let payload = item.payload?;
    if !arguments.jsonl {
        return Ok(with_unique_payload(NewJob { payload, ..job }));
    }
    let job = jsonl::read(&payload, job)?;
    if arguments.wait && job.options.prepared {
        return Err("prepare: --wait would wait for its confirmation".to_owned());
    }
    check_runs(&job.options)?;
    Ok(with_unique_payload(job))
}

/// A unique key without a text is the payload's, which is known only now.
fn with_unique_payload(mut job: NewJob) -> NewJob {
    let unique = job.keys.as_mut().and_then(|keys| keys.unique.take());
    match unique {
        Some(unique) => job.unique(unique),
        None => job,
    }
}

/// Refuses a job that would expire before it is due, and so never run.
fn check_runs(options: &JobOptions) -> Result<(), String> {
    let due = match options.due {
        Due::Now => return Ok(()),
        Due::After(ms) => wall_ms().saturating_add(ms),
        Due::At(at) => at,
    };
    match options.expires_at {
        Some(expires) if expires <= due => Err(format!(
            "it would expire at {}, before it is due at {}, and never run; set a later \
             expiry, or none",
            show_timestamp(expires),
            show_timestamp(due)
        )),
        _ => Ok(()),
    }
}

async fn receive(
    mut receipts: Receipts,
    tally: &RefCell<Tally>,
    keep_sending: &Cell<bool>,
    progress: &mut Progress,
) {
    while let Some(batch) = receipts.next().await {
        let mut tally = tally.borrow_mut();
        if !tally.answered(&batch) {
            keep_sending.set(false);
        }
        progress.at(tally.acknowledged());
    }
}

fn print_summary(tally: &Tally, arguments: &Enqueue, context: &mut Context) -> anyhow::Result<()> {
    let is_single = arguments.is_one_job();
    let from_lines = arguments.lines || arguments.jsonl;
    let acknowledged = tally.acknowledged();
    if context.output.is_json() {
        let mut value = json!({
            "acknowledged": acknowledged, "created": tally.created, "existing": tally.existing,
            "not_acknowledged": tally.missing.to_string(), "unknown": tally.unknown.to_string(),
            "errors": tally.reasons().into_iter().map(|reason| json!({
                "lines": reason.lines.to_string(), "error": reason.why, "count": reason.count,
            })).collect::<Vec<_>>(),
        });
        if let Some(first) = &tally.first {
            value["durability"] = first.durability.to_string().into();
        }
        if let (1, Some(first)) = (acknowledged, &tally.first) {
            value["job"] = first.job.to_string().into();
            value["publisher"] = first.job.publisher.to_string().into();
            value["id"] = first.job.id.to_string().into();
        }
        context.output.json(&value)?;
    } else if let (1, true, Some(first)) = (acknowledged, tally.is_complete(), &tally.first) {
        let known = if first.existing { " (it existed already)" } else { "" };
        context.output.line(format!("{first}{known}"))?;
    } else if acknowledged > 0 {
        let durability = tally.first.map(|first| first.durability.to_string()).unwrap_or_default();
        let known = match tally.existing {
            0 => String::new(),
            existing => format!(", {} of them existed already", grouped(existing)),
        };
        context
            .output
            .line(format!("{} acknowledged ({durability}){known}", jobs(acknowledged)))?;
    }
    for Reason { why, count, lines } in tally.reasons() {
        let at = match (from_lines, count) {
            (false, _) => String::new(),
            (true, 1) => format!("line {lines}: "),
            (true, _) => format!("lines {lines}: "),
        };
        match count {
            1 => report_error!("{at}{why}"),
            _ => report_error!("{at}{why} ({} times)", grouped(*count)),
        }
    }
    if is_single {
        // The reason is already printed.
        return Ok(());
    }
    if !tally.missing.is_empty() {
        report!("not acknowledged: enqueue them again with --only {}", tally.missing);
    }
    if !tally.unknown.is_empty() {
        report!(
            "unknown, they may or may not be enqueued: check before you repeat them with --only {}",
            tally.unknown
        );
    }
    Ok(())
}
