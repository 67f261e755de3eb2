//! `longshore job`: one job with its payload, attempts, checkpoints, progress and result.

use std::time::Duration;

use longshore::{
    FoundJob, JobEnd, JobLocator, JobLookupError, JobState, Queues, QueuesError, WaitError,
};

use super::job_graph::JobGraph;
use super::waiting_reasons::{self, Reason, keep_reporting};
use super::{Context, job_view, missing_job};
use crate::arguments::Job;
use crate::failure::AlreadyReported;
use crate::output::Progress;

/// How often the progress of an awaited job is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The duration of one wait request. A new one resolves the publisher again.
const WAIT_REQUEST: Duration = Duration::from_secs(600);

pub(crate) async fn run(arguments: Job, mut context: Context) -> anyhow::Result<()> {
    let queues = context.queues();
    let mut found = match arguments.id.publisher {
        // The receipt names the publisher, so wait for its return.
        Some(_) if arguments.wait => job_once_reachable(&queues, &arguments.id).await?,
        _ => match queues.job(&arguments.id).await {
            Err(error) => {
                return Err(missing_job::explain(error, &arguments.id, &queues, &context).await);
            }
            Ok(found) => found,
        },
    };
    if arguments.wait && !found.job.state.is_end() {
        let name = JobLocator::from(found.job_ref());
        let progress = Progress::new("waiting", "%", Some(100), &context.output);
        let at = found.job_ref();
        let mut reported = Vec::new();
        let at_end = async {
            let end = watch(&queues, &name, progress).await?;
            anyhow::Ok(job_at_end(&queues, &name, end).await?)
        };
        let (end, again) = tokio::select! {
            at_end = at_end => at_end?,
            never = keep_reporting(&name, &mut reported, &queues, &context) => match never {},
        };
        found = match again {
            // The job is no longer retained, but its end is known.
            Err(JobLookupError::NotFound { .. }) => {
                job_view::print_gone(&at, &end, &mut context.output)?;
                let completed = matches!(end, JobEnd::Completed { .. });
                return if completed { Ok(()) } else { Err(AlreadyReported.into()) };
            }
            found => found?,
        };
    }
    let completed = found.job.state == JobState::Completed;
    if arguments.result || arguments.payload {
        let bytes = if arguments.result { &found.job.result } else { &found.job.payload };
        match bytes {
            Some(bytes) => context.output.raw(bytes)?,
            None => anyhow::bail!("job {} is {} and has no result", arguments.id, found.job.state),
        }
    } else {
        let publisher = context.queues_of([found.publisher.clone()]);
        let graph = JobGraph::read(&found, &publisher).await;
        show(&found, Some(&graph), &mut context).await?;
    }
    if arguments.wait && !completed { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// Waits until a job has ended, and shows its progress.
async fn watch(
    queues: &Queues,
    name: &JobLocator,
    mut progress: Progress,
) -> anyhow::Result<JobEnd> {
    let polling = async {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if let Ok(found) = queues.job(name).await
                && let Some(reported) = &found.job.progress
            {
                progress.at(u64::from(reported.percent));
            }
        }
    };
    let end = tokio::select! {
        end = ended(queues, name) => end?,
        never = polling => never,
    };
    progress.finish();
    Ok(end)
}

/// Waits until a job has ended, without a limit, also while its publisher is down.
pub(crate) async fn ended(queues: &Queues, name: &JobLocator) -> Result<JobEnd, WaitError> {
    loop {
        match queues.wait(name, WAIT_REQUEST).await {
            Err(WaitError::TimedOut { .. }) => {}
            end => return end,
        }
    }
}

/// Looks up a job that ended with `end`. If it was revived meanwhile, waits for its next end.
pub(crate) async fn job_at_end(
    queues: &Queues,
    name: &JobLocator,
    mut end: JobEnd,
) -> Result<(JobEnd, Result<FoundJob, JobLookupError>), WaitError> {
    loop {
        match job_once_reachable(queues, name).await {
            Ok(found) if !found.job.state.is_end() => end = ended(queues, name).await?,
            found => return Ok((end, found)),
        }
    }
}

/// Looks up a job; retries while its publisher or the resolver is unreachable.
async fn job_once_reachable(
    queues: &Queues,
    name: &JobLocator,
) -> Result<FoundJob, JobLookupError> {
    let mut was_reported = false;
    loop {
        match queues.job(name).await {
            Err(
                why @ (JobLookupError::Unknown { .. }
                | JobLookupError::PublisherAway { .. }
                | JobLookupError::Queues(QueuesError::Resolver(_))),
            ) => {
                if !std::mem::replace(&mut was_reported, true) {
                    report!("waiting: {why}");
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            found => return found,
        }
    }
}

/// Prints one job, why it waits, and what it has to do with others.
pub(crate) async fn show(
    found: &FoundJob,
    graph: Option<&JobGraph>,
    context: &mut Context,
) -> anyhow::Result<()> {
    let at = found.job_ref();
    let reasons = waiting_reasons::of_job(found, context).await;
    let graph = graph.filter(|graph| !graph.is_alone());
    if context.output.is_json() {
        let mut value = job_view::json(&at, &found.job);
        if !reasons.is_empty() {
            value["waits"] = reasons.iter().map(Reason::json).collect();
        }
        if let Some(graph) = graph {
            value["graph"] = graph.json();
        }
        context.output.json_pretty(&value)?;
    } else {
        let name = &found.publisher.name;
        job_view::print(&at, name, &found.job, &reasons, &mut context.output)?;
        if let Some(graph) = graph {
            context.output.line("")?;
            for line in graph.lines(found.job.id) {
                context.output.line(line)?;
            }
        }
    }
    Ok(())
}
