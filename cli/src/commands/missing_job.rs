//! A job that no publisher has: whether another one has replaced it, and otherwise what may have
//! become of it.

use std::time::Duration;

use longshore::protocol::limits::PAGE_JOBS_MAX;
use longshore::protocol::messages::work::{Filter, JobsQuery};
use longshore::{Glob, JobId, JobLocator, JobLookupError, JobRef, Queues};
use tokio::time::timeout;

use super::Context;
use super::known_publishers::note_if_none;
use crate::failure::{Failure, FailureKind};

/// Most pages of jobs that are searched for the replacement, and for how long: no publisher has an
/// index of what jobs replaced.
const PAGES_MAX: usize = 20;
const SEARCH_MAX: Duration = Duration::from_secs(3);

/// The error for a failed lookup; for a job that is nowhere, with what is known of it.
pub(super) async fn explain(
    error: JobLookupError,
    name: &JobLocator,
    queues: &Queues,
    context: &Context,
) -> anyhow::Error {
    if let JobLookupError::PublisherAway { .. } = &error {
        // A publisher that was restored from a copy has another id.
        let anywhere = JobLocator { publisher: None, id: name.id };
        let found = timeout(SEARCH_MAX, queues.job(&anywhere)).await;
        let Ok(Ok(found)) = found else { return error.into() };
        let message = format!("{error}, or publisher {} has a copy", found.publisher.name);
        let hint = format!("longshore job {}", found.job_ref());
        return Failure::new(FailureKind::NotFound, message).with_hint(hint).into();
    }
    let JobLookupError::NotFound { id, asked } = &error else { return error.into() };
    if asked.is_empty() {
        note_if_none(context).await;
        return error.into();
    }
    let found = timeout(SEARCH_MAX, replacement_of(*id, queues)).await.ok().flatten();
    let (message, hint) = match found {
        Some(new) => (
            format!("job {id} was replaced by {new}, with another payload"),
            format!("longshore job {new}"),
        ),
        None => (
            error.to_string(),
            format!(
                "it was never enqueued; or it has ended, and was dropped or retained no longer; or \
                 it was replaced: longshore jobs --json | grep '\"replaces\":\"{id}\"'"
            ),
        ),
    };
    Failure::new(FailureKind::NotFound, message).with_hint(hint).into()
}

/// The job that has replaced a dead one.
async fn replacement_of(id: JobId, queues: &Queues) -> Option<JobRef> {
    let filter = Filter::of(Glob::everything());
    let limit = u32::try_from(PAGE_JOBS_MAX).unwrap_or(u32::MAX);
    let mut pages = queues.jobs(JobsQuery { limit, ..JobsQuery::of(filter) }).await.ok()?;
    for _ in 0..PAGES_MAX {
        let page = pages.next().await?;
        if let Some(job) = page.jobs.iter().find(|job| job.replaces == Some(id)) {
            return Some(JobRef { publisher: page.publisher.id, id: job.id });
        }
    }
    None
}
