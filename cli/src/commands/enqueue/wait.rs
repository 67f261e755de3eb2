//! `enqueue --wait`: waits until every job has ended.

use longshore::{JobEnd, JobLocator, JobLookupError, JobState};

use super::tally::Tally;
use crate::commands::job::{ended, job_once_reachable};
use crate::commands::waiting_reasons::keep_reporting;
use crate::commands::{Context, job_view};
use crate::failure::{AlreadyReported, Interrupted};
use crate::signals::StopSignal;

/// Waits for the jobs of `tally`, and prints each as it ends.
pub(crate) async fn until_ended(
    tally: &Tally,
    context: &mut Context,
    stop: &StopSignal,
) -> anyhow::Result<()> {
    let queues = context.queues();
    let (mut failed, mut reported) = (0u64, Vec::new());
    for &job in tally.jobs.iter().flat_map(|jobs| jobs.values()) {
        let name = JobLocator::from(job);
        let found = async {
            let end = ended(&queues, &name).await?;
            anyhow::Ok((end, job_once_reachable(&queues, &name).await))
        };
        let (end, found) = tokio::select! {
            found = found => found?,
            never = keep_reporting(&name, &mut reported, &queues, context) => match never {},
            () = stop.requested() => {
                report!("stopped waiting; the jobs continue");
                return Err(Interrupted(stop.code().unwrap_or(1)).into());
            }
        };
        match found {
            Ok(found) => {
                failed += u64::from(found.job.state != JobState::Completed);
                if context.output.is_json() {
                    context.output.json(&job_view::json(&job, &found.job))?;
                } else {
                    job_view::print_end(&job, &found.job, &mut context.output)?;
                }
            }
            // The job is no longer retained, but its end is known.
            Err(JobLookupError::NotFound { .. }) => {
                failed += u64::from(!matches!(end, JobEnd::Completed { .. }));
                job_view::print_gone(&job, &end, &mut context.output)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if failed > 0 { Err(AlreadyReported.into()) } else { Ok(()) }
}
