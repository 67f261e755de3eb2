//! `enqueue --wait`: until every job has ended.

use longshore::{JobEnd, JobLookupError, JobName, JobState};

use super::tally::Tally;
use crate::commands::job::{ended, look_until_answered};
use crate::commands::{Context, job_view};
use crate::failure::{Interrupted, Reported};
use crate::signals::Stop;

/// Waits for the jobs of `tally`, and prints each as it ends.
pub(crate) async fn until_ended(
    tally: &Tally,
    context: &mut Context,
    stop: &Stop,
) -> anyhow::Result<()> {
    let queues = context.queues();
    let mut failed = 0u64;
    for &job in tally.jobs.iter().flat_map(|jobs| jobs.values()) {
        let name = JobName::from(job);
        let end = tokio::select! {
            end = ended(&queues, &name) => end?,
            () = stop.asked() => {
                eprintln!("stopped waiting; the jobs go on");
                return Err(Interrupted(stop.code().unwrap_or(1)).into());
            }
        };
        match look_until_answered(&queues, &name).await {
            Ok(found) => {
                failed += u64::from(found.job.state != JobState::Completed);
                if context.output.is_json() {
                    context.output.json(&job_view::json(&job, &found.job))?;
                } else {
                    job_view::print_end(&job, &found.job, &mut context.output)?;
                }
            }
            // It is not kept any more. Whoever waits is told its end all the same.
            Err(JobLookupError::NotFound { .. }) => {
                failed += u64::from(!matches!(end, JobEnd::Completed { .. }));
                job_view::print_gone(&job, &end, &mut context.output)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if failed > 0 { Err(Reported.into()) } else { Ok(()) }
}
