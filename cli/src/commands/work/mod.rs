//! `longshore work`: runs a command for each job.

mod empty;
mod process;

use std::ffi::OsString;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use longshore::{
    Job, JobContext, JobFailure, QueuePatterns, StatsWatch, SubscriptionStatus, Worker,
    WorkerReport,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::timeout;

use super::{Context, job_view};
use crate::arguments::{TakeOrder, Work};
use crate::failure::{AlreadyReported, UsageError};
use crate::output::{Progress, grouped, jobs};
use crate::service_manager::{self, Health};
use crate::signals::StopSignal;
use process::CommandOutcome;

/// How often progress is shown.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a service waits for a publisher before it reports that it is ready. It works as soon as
/// there is one.
const READY_WAIT: Duration = Duration::from_secs(10);
/// The thread of the links runs four times a second, so it hangs after this time without.
const LINKS_SILENT_MAX: Duration = Duration::from_secs(10);
/// The time for a command to end: 10 s from SIGTERM to SIGKILL, a second for its output, and one to
/// spare.
const COMMAND_GRACE: Duration = process::TERM_GRACE
    .saturating_add(process::OUTPUT_GRACE)
    .saturating_add(Duration::from_secs(1));

pub(crate) async fn run(arguments: Work, mut context: Context) -> anyhow::Result<()> {
    check_command(&arguments.command)?;
    let take = take(&arguments).map_err(UsageError)?;
    let stop = StopSignal::listen_with_hangup()?;
    let name = arguments.name.clone().unwrap_or_else(|| format!("work-{}", std::process::id()));
    let concurrency = usize::from(arguments.concurrency);
    let subscription = Worker::builder()
        .name(name)
        .connect(context.cluster())
        .durable_subscribe(take)
        .concurrency(concurrency)
        // 0 by default: commands take long compared with a delivery, so do not bind jobs to a busy
        // worker.
        .prefetch(usize::from(arguments.prefetch))
        .grace(arguments.grace)
        .cancel_grace(COMMAND_GRACE);
    let stats = subscription.stats();
    let checked = stats.clone();
    let checks = service_manager::keep_checking(move || ready(check(&checked)));
    let requested = stop.requested();
    let subscription = subscription.shutdown(async move {
        requested.await;
        service_manager::stopping(&checks, "draining: no more jobs begin").await;
    });

    let queues = context.queues();
    // Read before any job is taken, so that every job that dies from here on is counted.
    let initial = match arguments.until_empty {
        true => empty::initial_totals(&queues, &arguments.patterns).await,
        false => None,
    };
    let until_empty = arguments.until_empty;
    let launch_error = Arc::new(Mutex::new(None));
    let handle = subscription.shutdown_handle();
    let runner = Runner { command: arguments.command.into(), launch_error: launch_error.clone() };
    let (worker, forced) = (handle.clone(), stop.forced());
    tokio::spawn(async move {
        forced.await;
        worker.stop_now();
    });
    let ending = {
        let (handle, runner) = (handle.clone(), Arc::new(runner));
        let run = subscription.run(move |job: Job<Bytes>, job_context| {
            let (runner, handle) = (runner.clone(), handle.clone());
            async move {
                let ended = runner.run(job, job_context).await;
                if runner.has_failed() {
                    handle.drain();
                }
                ended
            }
        });
        tokio::spawn(run)
    };

    let linked = stats.clone();
    tokio::spawn(async move {
        let _ = timeout(READY_WAIT, linked.ready()).await;
        service_manager::ready(status(&linked));
    });

    let mut progress = Progress::new("working", "jobs", None, &context.output);
    let shown = async {
        if arguments.until_empty {
            let (patterns, done) = (&arguments.patterns, |done| progress.at(done));
            let left = empty::until(&queues, patterns, initial, done, || stats.is_quiet()).await;
            return left.inspect_err(|why| report!("{why:#}; waiting for the running commands"));
        }
        loop {
            progress.at(stats.now().completed);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let (ended, left) = drained_after(shown, ending, || handle.drain()).await;
    let report = ended??;
    let (mut left, unknown) = match left.transpose() {
        Ok(left) => (left, None),
        Err(why) => (None, Some(why)),
    };
    if let Some(left) = &mut left {
        // Without initial totals, count at least the jobs that this worker buried.
        left.died = left.died.max(report.buried);
    }
    progress.finish();
    print_report(&report, left.as_ref(), &mut context)?;
    if let Some(error) = launch_error.lock().take() {
        bail!("{error}");
    }
    if let Some(why) = unknown {
        return Err(why);
    }
    match left {
        Some(left) if left.died > 0 => Err(AlreadyReported.into()),
        Some(_) => Ok(()),
        // Stopped before the queues were empty.
        None if until_empty && report.buried > 0 => Err(AlreadyReported.into()),
        None => stop.ended(until_empty),
    }
}

/// The end of a worker, which is drained once `watched` has ended, however that ended: its commands
/// must end before this process. On a stop signal, or if its command cannot be run, the worker ends
/// first.
async fn drained_after<W, E>(
    watched: impl Future<Output = W>,
    ending: impl Future<Output = E>,
    drain: impl FnOnce(),
) -> (E, Option<W>) {
    let mut ending = pin!(ending);
    let watched = tokio::select! {
        ended = &mut ending => return (ended, None),
        watched = watched => watched,
    };
    drain();
    (ending.await, Some(watched))
}

/// Whether the worker's links are served, with its state.
fn check(stats: &StatsWatch) -> Health {
    let silent = stats.links_silent_for();
    match silent > LINKS_SILENT_MAX {
        true => Health::Hung(format!("its links hang for {} s", silent.as_secs())),
        false => Health::Alive(status(stats)),
    }
}

fn status(stats: &StatsWatch) -> String {
    let now = stats.now();
    if now.publishers_alive > 0 {
        let (linked, running) = (now.publishers_alive, now.running);
        return format!("publishers: {linked}; commands running: {running}");
    }
    let lost = stats.publishers().into_iter().find_map(|publisher| match publisher.status {
        SubscriptionStatus::Dead { reason, .. } => {
            Some(format!("not linked to publisher {}: {reason}", publisher.name))
        }
        _ => None,
    });
    lost.unwrap_or_else(|| "waiting for a publisher of these queues".to_owned())
}

/// The queues to take jobs from, and in which order.
fn take(arguments: &Work) -> Result<QueuePatterns, String> {
    let patterns = &arguments.patterns;
    let weights = arguments.weights.len();
    match arguments.order {
        TakeOrder::Weighted if weights != patterns.len() => Err(format!(
            "--weights has {weights} numbers for {} patterns; give each pattern one",
            patterns.len()
        )),
        TakeOrder::Weighted => {
            Ok(QueuePatterns::weighted(patterns.iter().zip(arguments.weights.iter().copied())))
        }
        _ if weights > 0 => Err("--weights needs --order weighted".to_owned()),
        TakeOrder::Strict => Ok(QueuePatterns::strict(patterns)),
        TakeOrder::Age => Ok(QueuePatterns::any(patterns)),
    }
}

/// Checks before any job is taken that the program exists and is executable.
fn check_command(command: &[OsString]) -> anyhow::Result<()> {
    let Some(program) = command.first() else { bail!("no command") };
    if which::which(program).is_err() {
        bail!("there is no program {}", program.display());
    }
    Ok(())
}

struct Runner {
    command: Arc<[OsString]>,
    /// Why the command cannot be run.
    launch_error: Arc<Mutex<Option<String>>>,
}

impl Runner {
    fn has_failed(&self) -> bool {
        self.launch_error.lock().is_some()
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
        let keep_result = context.keeps_result();
        match process::run(&self.command, &environment, job.payload, keep_result, cancelled).await {
            Ok(CommandOutcome::Completed { result, stderr }) => {
                if keep_result && !stderr.is_empty() {
                    let stored = context.checkpoint(job_view::stderr_checkpoint(&stderr)).await;
                    if let Err(why) = stored {
                        tracing::warn!(job = %job.id, %why, "cannot store the command's stderr");
                    }
                }
                Ok(result)
            }
            Ok(CommandOutcome::Released | CommandOutcome::Stopped) => Err(JobFailure::Release),
            Ok(CommandOutcome::Buried { kind, message }) => {
                Err(JobFailure::bury(message).kind(&kind))
            }
            Ok(CommandOutcome::Failed { kind, message }) => {
                Err(JobFailure::retry(message).kind(&kind))
            }
            Err(error) => {
                // The job is not at fault: release it, and end this worker.
                let program = self.command.first().map(|p| p.display().to_string());
                let program = program.unwrap_or_default();
                *self.launch_error.lock() = Some(format!("cannot run {program}: {error}"));
                Err(JobFailure::Release)
            }
        }
    }
}

fn print_report(
    report: &WorkerReport,
    left: Option<&empty::RemainingJobs>,
    context: &mut Context,
) -> anyhow::Result<()> {
    if context.output.is_json() {
        let mut value = json!({
            "completed": report.completed, "failed": report.failed, "buried": report.buried,
            "released": report.released, "redelivered": report.redelivered,
            "stale_refused": report.stale_refused, "leases_revoked": report.leases_revoked,
            "unanswered": report.unanswered,
        });
        if let Some(left) = left {
            value["scheduled_left"] = left.scheduled.into();
            value["prepared_left"] = left.prepared.into();
            value["blocked_left"] = left.blocked.into();
            value["died"] = left.died.into();
        }
        context.output.json(&value)?;
        return Ok(());
    }
    let mut text = format!("{} completed", grouped(report.completed));
    for (count, what) in [
        (report.failed, if report.failed == 1 { "attempt failed" } else { "attempts failed" }),
        (report.buried, "buried"),
        (report.released, "released"),
        (report.leases_revoked, "revoked"),
        (report.stale_refused, "refused: their lease had ended"),
        (report.unanswered, "unanswered: they may run again"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {} {what}", grouped(count)));
        }
    }
    context.output.line(text)?;
    if let Some(left) = left {
        if left.died > 0 {
            report_error!("{} went to the dead letters; see: longshore dead ls", jobs(left.died));
        }
        if left.scheduled > 0 {
            report!("left, scheduled for later: {}", jobs(left.scheduled));
        }
        if left.prepared > 0 {
            report!("left, waiting to be confirmed: {}", jobs(left.prepared));
        }
        if left.blocked > 0 {
            report!("left, blocked: {}", jobs(left.blocked));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_is_drained_also_if_its_queues_cannot_be_read() {
        let (drain, drained) = tokio::sync::oneshot::channel();
        let unread = ready(Err::<(), _>("no resolver"));
        let ended = drained_after(unread, drained, || drain.send("report").unwrap()).await;
        assert_eq!(ended, (Ok("report"), Some(Err("no resolver"))));
        let stopped = drained_after(std::future::pending::<()>(), ready("report"), || panic!());
        assert_eq!(stopped.await, ("report", None));
    }
}
