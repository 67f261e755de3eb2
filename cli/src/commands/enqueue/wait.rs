//! `enqueue --wait`: until every job has ended.

use anyhow::bail;
use longshore::{JobEnd, JobName, JobState};

use super::tally::Tally;
use crate::commands::job::ended;
use crate::commands::{Context, job_view};
use crate::failure::Reported;
use crate::signals::Stop;

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
        let name = JobName::from(job);
        let end = tokio::select! {
            end = ended(&queues, &name) => end?,
            () = stop.asked() => bail!("stopped waiting; the jobs go on"),
        };
        if end == JobEnd::Gone {
            failed += 1;
            eprintln!("error: job {job} has ended and is no longer kept");
            continue;
        }
        let ended = queues.job(&name).await?.job;
        failed += u64::from(ended.state != JobState::Completed);
        if context.output.is_json() {
            context.output.json(&job_view::json(&job, &ended))?;
        } else {
            job_view::print_end(&job, &ended, &mut context.output)?;
        }
    }
    if failed > 0 { Err(Reported.into()) } else { Ok(()) }
}
