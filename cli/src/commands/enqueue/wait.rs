//! `enqueue --wait`: until every job has ended.

use std::time::Duration;

use anyhow::bail;
use longshore::protocol::messages::work::JobInfo;
use longshore::{JobLookupError, JobName, JobRef, JobState, Queues};

use super::tally::Tally;
use crate::commands::{Context, job_view};
use crate::failure::Reported;
use crate::signals::Stop;

/// How often jobs that have not ended are asked for.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Waits for the jobs of `tally`, and prints each as it ends.
pub(crate) async fn until_ended(
    tally: &Tally,
    context: &mut Context,
    stop: &Stop,
) -> anyhow::Result<()> {
    let queues = context.queues();
    let jobs = tally.jobs.as_deref().unwrap_or_default();
    let mut failed = 0u64;
    for &job in jobs {
        let ended = tokio::select! {
            ended = ended(&queues, job) => ended?,
            () = stop.asked() => bail!("stopped waiting; the jobs go on"),
        };
        failed += u64::from(ended.state != JobState::Completed);
        if context.output.is_json() {
            context.output.json(&job_view::json(&job, &ended))?;
        } else {
            job_view::print_end(&job, &ended, &mut context.output)?;
        }
    }
    if failed > 0 { Err(Reported.into()) } else { Ok(()) }
}

/// Waits until one job has ended. Its publisher may be away meanwhile.
pub(crate) async fn ended(queues: &Queues, job: JobRef) -> anyhow::Result<JobInfo> {
    loop {
        match queues.job(&JobName::from(job)).await {
            Ok(found) if job_view::has_ended(found.job.state) => return Ok(found.job),
            Ok(_) | Err(JobLookupError::Unknown { .. } | JobLookupError::PublisherAway { .. }) => {
                tokio::time::sleep(ASK_EVERY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
