//! `longshore work`: a command for each job.

mod empty;
mod process;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use longshore::{Job, JobContext, JobFailure, Take, Worker, WorkerOptions, WorkerReport};
use parking_lot::Mutex;
use serde_json::json;

use super::{Context, job_view};
use crate::arguments::{Take as Order, Work};
use crate::failure::{Reported, WrongUsage};
use crate::output::{Progress, grouped, jobs};
use crate::signals::Stop;
use process::Ended;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long commands have to end once they were told to: SIGTERM, 10 s, SIGKILL, and a second to be
/// reaped.
const COMMAND_GRACE: Duration = Duration::from_secs(11);

pub(crate) async fn run(arguments: Work, mut context: Context) -> anyhow::Result<()> {
    check_command(&arguments.command)?;
    let take = take(&arguments).map_err(WrongUsage)?;
    let stop = Stop::listen()?;
    let name = arguments.name.clone().unwrap_or_else(|| format!("work-{}", std::process::id()));
    let options = WorkerOptions { name, ..WorkerOptions::default() };
    let concurrency = usize::from(arguments.concurrency);
    let subscription = Worker::connect_with(context.cluster(), options)
        .await?
        .durable_subscribe(take)
        .concurrency(concurrency)
        // A waiting job is better off at whoever is free first: commands take long compared with a
        // hand-over.
        .prefetch(0)
        .grace(arguments.grace)
        .cancel_grace(COMMAND_GRACE)
        .shutdown(stop.asked());

    let queues = context.queues();
    // Before a job is taken: whatever dies from here on has died meanwhile.
    let first = match arguments.until_empty {
        true => empty::first_look(&queues, &arguments.patterns).await,
        false => None,
    };
    let broken = Arc::new(Mutex::new(None));
    let handle = subscription.handle();
    let stats = subscription.stats();
    let runner = Runner { command: arguments.command.into(), broken: broken.clone() };
    let (now, at_once) = (handle.clone(), stop.asked_twice());
    tokio::spawn(async move {
        at_once.await;
        now.stop_now();
    });
    let mut ending = {
        let (handle, runner) = (handle.clone(), Arc::new(runner));
        let run = subscription.run(move |job: Job<Bytes>, job_context| {
            let (runner, handle) = (runner.clone(), handle.clone());
            async move {
                let ended = runner.run(job, job_context).await;
                if runner.is_broken() {
                    handle.drain();
                }
                ended
            }
        });
        tokio::spawn(run)
    };

    let mut left = None;
    let mut progress = Progress::new("working", "jobs", None, &context.output);
    let shown = async {
        if arguments.until_empty {
            let (patterns, done) = (&arguments.patterns, |done| progress.at(done));
            return empty::until(&queues, patterns, first, done, || stats.is_quiet()).await;
        }
        loop {
            progress.at(stats.now().completed);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    // The worker ends first when it is told to stop, or when its command cannot be run.
    let ended = tokio::select! {
        ended = &mut ending => Some(ended),
        empty = shown => {
            left = Some(empty?);
            handle.drain();
            None
        }
    };
    let report = match ended {
        Some(ended) => ended??,
        None => ending.await??,
    };
    if let Some(left) = &mut left {
        // What it buried itself it knows, also when no first look was to be had.
        left.died = left.died.max(report.buried);
    }
    progress.finish();
    say(&report, left.as_ref(), &mut context)?;
    if let Some(error) = broken.lock().take() {
        bail!("{error}");
    }
    match left {
        Some(left) if left.died > 0 => Err(Reported.into()),
        _ => Ok(()),
    }
}

/// Which queues, in which order.
fn take(arguments: &Work) -> Result<Take, String> {
    let patterns = &arguments.patterns;
    let weights = arguments.weights.len();
    match arguments.order {
        Order::Weighted if weights != patterns.len() => Err(format!(
            "--weights has {weights} numbers for {} patterns; give each pattern one",
            patterns.len()
        )),
        Order::Weighted => {
            Ok(Take::weighted(patterns.iter().zip(arguments.weights.iter().copied())))
        }
        _ if weights > 0 => Err("--weights needs --order weighted".to_owned()),
        Order::Strict => Ok(Take::strict(patterns)),
        Order::Age => Ok(Take::any(patterns)),
    }
}

/// A command that cannot be started at all is found before a job is taken.
fn check_command(command: &[OsString]) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let Some(program) = command.first() else { bail!("no command") };
    let is_program = |file: &std::path::Path| {
        file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let found = if program.to_string_lossy().contains('/') {
        is_program(std::path::Path::new(program))
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).any(|folder| is_program(&folder.join(program)))
    };
    if !found {
        bail!("there is no program {}", program.display());
    }
    Ok(())
}

struct Runner {
    command: Arc<[OsString]>,
    /// Why no command can be run here any more.
    broken: Arc<Mutex<Option<String>>>,
}

impl Runner {
    fn is_broken(&self) -> bool {
        self.broken.lock().is_some()
    }

    async fn run(&self, job: Job<Bytes>, context: JobContext) -> Result<Bytes, JobFailure> {
        let environment = [
            ("LONGSHORE_JOB_ID", job.id.to_string()),
            ("LONGSHORE_JOB_TOKEN", context.token().to_string()),
            ("LONGSHORE_JOB_ATTEMPT", context.attempt().to_string()),
            ("LONGSHORE_JOB_PATH", job.path.to_string()),
        ];
        let cancelled = async {
            context.cancelled().await;
        };
        let keeps = context.keeps_result();
        match process::run(&self.command, &environment, job.payload, keeps, cancelled).await {
            Ok(Ended::Completed { result, stderr }) => {
                if keeps && !stderr.is_empty() {
                    let left = context.checkpoint(job_view::stderr_checkpoint(&stderr)).await;
                    if let Err(why) = left {
                        tracing::warn!(job = %job.id, %why, "the command's standard error is not kept");
                    }
                }
                Ok(result)
            }
            Ok(Ended::Released | Ended::Stopped) => Err(JobFailure::Release),
            Ok(Ended::Buried { kind, message }) => Err(JobFailure::bury(message).kind(&kind)),
            Ok(Ended::Failed { kind, message }) => Err(JobFailure::retry(message).kind(&kind)),
            Err(error) => {
                // The job has done nothing wrong: it goes back, and this worker ends.
                let program = self.command.first().map(|p| p.display().to_string());
                let program = program.unwrap_or_default();
                *self.broken.lock() = Some(format!("cannot run {program}: {error}"));
                Err(JobFailure::Release)
            }
        }
    }
}

fn say(
    report: &WorkerReport,
    left: Option<&empty::Left>,
    context: &mut Context,
) -> anyhow::Result<()> {
    if context.output.is_json() {
        let mut value = json!({
            "completed": report.completed, "failed": report.failed, "buried": report.buried,
            "released": report.released, "redelivered": report.redelivered,
            "stale_refused": report.stale_refused, "leases_lost": report.leases_lost,
            "unanswered": report.unanswered,
        });
        if let Some(left) = left {
            value["scheduled_left"] = left.scheduled.into();
            value["prepared_left"] = left.prepared.into();
            value["died"] = left.died.into();
        }
        context.output.json(&value)?;
        return Ok(());
    }
    let mut text = format!("{} completed", grouped(report.completed));
    for (count, what) in [
        (report.failed, if report.failed == 1 { "attempt failed" } else { "attempts failed" }),
        (report.buried, "buried"),
        (report.released, "given back"),
        (report.leases_lost, "taken away"),
        (report.stale_refused, "refused: their lease had ended"),
        (report.unanswered, "without an answer: they may run again"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {} {what}", grouped(count)));
        }
    }
    context.output.line(text)?;
    if let Some(left) = left {
        if left.died > 0 {
            eprintln!(
                "error: {} went to the dead letters; see: longshore dead ls",
                jobs(left.died)
            );
        }
        if left.scheduled > 0 {
            eprintln!("left for later, as scheduled: {}", jobs(left.scheduled));
        }
        if left.prepared > 0 {
            eprintln!("left, to be confirmed: {}", jobs(left.prepared));
        }
    }
    Ok(())
}
