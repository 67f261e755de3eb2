//! `enqueue --wait`: waits until every job has ended.

use std::collections::VecDeque;

use longshore::{JobEnd, JobLocator, JobLookupError, JobState};

use super::tally::Tally;
use crate::commands::job::{ended, job_at_end};
use crate::commands::waiting_reasons::keep_reporting;
use crate::commands::{Context, job_view};
use crate::failure::{AlreadyReported, Interrupted};
use crate::signals::StopSignal;

/// Waits that are open at once, as many as a publisher looks up at once for a link. It bounds the
/// results in memory at 64 MiB. A later job with a short `--keep` may be removed before its turn.
const WAITS_MAX: usize = 64;

/// Waits for the jobs of `tally`, and prints the end of each in their order.
pub(crate) async fn until_ended(
    tally: &Tally,
    context: &mut Context,
    stop: &StopSignal,
) -> anyhow::Result<()> {
    let queues = context.queues();
    let (mut failed, mut reported) = (0u64, Vec::new());
    let mut jobs = tally.jobs.iter().flat_map(|jobs| jobs.values().copied());
    let mut waits = VecDeque::new();
    loop {
        let room = WAITS_MAX - waits.len();
        waits.extend(jobs.by_ref().take(room).map(|job| {
            let queues = queues.clone();
            let wait = async move { ended(&queues, &JobLocator::from(job)).await };
            (job, tokio::spawn(wait))
        }));
        let Some((job, wait)) = waits.pop_front() else { break };
        let name = JobLocator::from(job);
        let found = async {
            let end = wait.await??;
            anyhow::Ok(job_at_end(&queues, &name, end).await?)
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
