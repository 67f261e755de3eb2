//! `longshore job`: one job, with its payload, error and result.

use longshore::{JobAt, JobState};

use super::enqueue::ended;
use super::{Context, job_view};
use crate::arguments::Job;
use crate::failure::Reported;

pub(crate) async fn run(arguments: Job, mut context: Context) -> anyhow::Result<()> {
    let queues = context.queues();
    let mut found = queues.job(&arguments.id).await?;
    if arguments.wait && !job_view::has_ended(found.job.state) {
        found.job = ended(&queues, found.job_ref()).await?;
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
