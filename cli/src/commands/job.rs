//! `longshore job`: one job, with its payload, attempts, checkpoints, progress and result.

use std::time::Duration;

use longshore::{JobAt, JobEnd, JobLookupError, JobName, JobState, Queues, QueuesError, WaitError};

use super::{Context, job_view};
use crate::arguments::Job;
use crate::failure::Reported;
use crate::output::Progress;

/// How often a job that is waited for is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long one wait may take before it is begun anew: publishers come and go, and the resolver is
/// asked again.
const WAIT_AT_A_TIME: Duration = Duration::from_secs(600);

pub(crate) async fn run(arguments: Job, mut context: Context) -> anyhow::Result<()> {
    let queues = context.queues();
    let mut found = match arguments.id.publisher {
        // Where it is, is known: it can be waited for until that publisher is back.
        Some(_) if arguments.wait => look_until_answered(&queues, &arguments.id).await?,
        _ => queues.job(&arguments.id).await?,
    };
    if arguments.wait && !found.job.state.is_end() {
        let name = JobName::from(found.job_ref());
        let progress = Progress::new("waiting", "%", Some(100), &context.output);
        let at = found.job_ref();
        let end = watch(&queues, &name, progress).await?;
        found = match look_until_answered(&queues, &name).await {
            // It is not kept any more. Whoever waits is told its end all the same.
            Err(JobLookupError::NotFound { .. }) => {
                job_view::print_gone(&at, &end, &mut context.output)?;
                let completed = matches!(end, JobEnd::Completed { .. });
                return if completed { Ok(()) } else { Err(Reported.into()) };
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
        show(&found, &mut context)?;
    }
    if arguments.wait && !completed { Err(Reported.into()) } else { Ok(()) }
}

/// Waits until a job has ended, and shows meanwhile how far it is.
async fn watch(queues: &Queues, name: &JobName, mut progress: Progress) -> anyhow::Result<JobEnd> {
    let looked_at = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Ok(found) = queues.job(name).await
                && let Some(said) = &found.job.progress
            {
                progress.at(u64::from(said.percent));
            }
        }
    };
    let end = tokio::select! {
        end = ended(queues, name) => end?,
        never = looked_at => never,
    };
    progress.finish();
    Ok(end)
}

/// Waits until a job has ended, for as long as that takes. Its publisher may be away meanwhile.
pub(crate) async fn ended(queues: &Queues, name: &JobName) -> Result<JobEnd, WaitError> {
    loop {
        match queues.wait(name, WAIT_AT_A_TIME).await {
            Err(WaitError::TimedOut { .. }) => {}
            end => return end,
        }
    }
}

/// Looks for a job until its publisher can be asked: that, or the resolver, may be away.
pub(crate) async fn look_until_answered(
    queues: &Queues,
    name: &JobName,
) -> Result<JobAt, JobLookupError> {
    let mut is_told = false;
    loop {
        match queues.job(name).await {
            Err(
                why @ (JobLookupError::Unknown { .. }
                | JobLookupError::PublisherAway { .. }
                | JobLookupError::Queues(QueuesError::Resolver(_))),
            ) => {
                if !std::mem::replace(&mut is_told, true) {
                    eprintln!("waiting: {why}");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            found => return found,
        }
    }
}

/// Prints one job.
pub(crate) fn show(found: &JobAt, context: &mut Context) -> anyhow::Result<()> {
    let at = found.job_ref();
    if context.output.is_json() {
        context.output.json_pretty(&job_view::json(&at, &found.job))?;
    } else {
        job_view::print(&at, &found.publisher.name, &found.job, &mut context.output)?;
    }
    Ok(())
}
