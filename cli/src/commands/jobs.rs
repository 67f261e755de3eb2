//! `longshore jobs`: lists jobs, with payloads and results.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore::protocol::limits::PAGE_JOBS_MAX;
use longshore::protocol::messages::work::{JobInfo, JobsQuery};
use longshore::{Glob, JobRef, JobState, Path, PublisherId};
use tokio::time::timeout;

use super::known_publishers::note_if_none;
use super::waiting_reasons::of_queue;
use super::workers::read_all;
use super::{Context, job_view, warn_of_missing};
use crate::arguments::{Jobs, State};
use crate::failure::AlreadyReported;
use crate::output::Table;

/// The default limit of the table.
const LIMIT: u64 = 100;
/// Most queues whose reasons to wait are noted.
const NOTED_MAX: usize = 8;
/// The longest time to find them.
const NOTES_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn run(arguments: Jobs, context: Context) -> anyhow::Result<()> {
    let state = arguments.state.map(JobState::from);
    let pattern = arguments.pattern.unwrap_or_else(Glob::everything);
    let retrying = arguments.state.and_then(State::retrying);
    let filter = arguments.filters.filter(pattern, state);
    let related = arguments.relation.related();
    let query = JobsQuery { related, ..JobsQuery::of(filter) };
    list(query, retrying, arguments.limit, context).await
}

/// Lists jobs: as JSON one per line as they arrive, otherwise as a table. For a publisher a job
/// that waits for a retry is scheduled: `retrying` tells them apart.
pub(crate) async fn list(
    query: JobsQuery,
    retrying: Option<bool>,
    limit: Option<u64>,
    mut context: Context,
) -> anyhow::Result<()> {
    let default = if context.output.is_json() { 0 } else { LIMIT };
    let limit = match limit.unwrap_or(default) {
        0 => u64::MAX,
        limit => limit,
    };
    let literal = query.filter.pattern.literal();
    let query = JobsQuery { limit: page_of(limit, retrying), full: true, ..query };
    let mut pages = context.queues().jobs(query).await?;
    let mut table = Table::new(&job_view::HEADINGS);
    let mut left = limit;
    let mut is_cut = false;
    let mut waiting = BTreeSet::new();
    'pages: while let Some(page) = pages.next().await {
        let wanted = |job: &&JobInfo| retrying.is_none_or(|retrying| job.retrying == retrying);
        for job in page.jobs.iter().filter(wanted) {
            if left == 0 {
                is_cut = true;
                break 'pages;
            }
            left -= 1;
            let at = JobRef { publisher: page.publisher.id, id: job.id };
            if job.state == JobState::Ready && waiting.len() < NOTED_MAX {
                waiting.insert((page.publisher.id, job.path.clone()));
            }
            if context.output.is_json() {
                context.output.json_row(&job_view::json(&at, job))?;
            } else {
                table.row(job_view::row(&at, job));
            }
        }
    }
    context.output.flush()?;
    if !table.is_empty() {
        context.output.table(&table)?;
    }
    if !waiting.is_empty() && !context.output.is_json() {
        note_why_jobs_wait(&waiting, &context).await;
    }
    if is_cut && !context.output.is_json() {
        report!("the first {limit}; --limit 0 shows all");
    }
    let missing = warn_of_missing(pages.missing(), pages.is_complete(), pages.silent_replicas());
    if left == limit && pages.answered().is_empty() {
        note_if_none(&context).await;
    }
    if let (Some(path), true) = (literal, left == limit) {
        let stats = context.queues().stats(Glob::new(path.as_str())?).await?;
        if stats.merged().is_empty() && stats.is_whole() {
            anyhow::bail!("there is no queue {path}");
        }
    }
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// The jobs of a page: one more than is shown, to report whether there are more. Where only some of
/// a page are shown, a small one may have none of these.
fn page_of(limit: u64, retrying: Option<bool>) -> u32 {
    let most = PAGE_JOBS_MAX as u32;
    match retrying {
        Some(_) => most,
        None => u32::try_from(limit.saturating_add(1)).map_or(most, |page| page.min(most)),
    }
}

/// Notes why listed jobs of these queues wait, if somebody should act.
async fn note_why_jobs_wait(waiting: &BTreeSet<(PublisherId, Path)>, context: &Context) {
    let client = context.queues();
    let reading = async {
        tokio::join!(client.stats(Glob::everything()), client.status(), read_all(context))
    };
    let Ok((Ok(stats), Ok(status), workers)) = timeout(NOTES_MAX, reading).await else { return };
    let workers = workers.unwrap_or_default();
    for answered in &stats.answers {
        let id = answered.publisher.id;
        let status = status.answers.iter().find(|one| one.publisher.id == id);
        for queue in &answered.answer {
            if !waiting.contains(&(id, queue.path.clone())) {
                continue;
            }
            let of_queue = of_queue(queue, status.map(|one| &one.answer), &workers);
            for reason in of_queue.iter().filter(|reason| reason.cause.needs_action()) {
                let (path, name) = (&queue.path, &answered.publisher.name);
                report_note!("ready jobs of {path} at {name} wait: {reason}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_which_only_some_jobs_are_shown_are_whole() {
        let most = PAGE_JOBS_MAX as u32;
        for (limit, retrying, page) in [
            (1, None, 2),
            (u64::from(most), None, most),
            (u64::MAX, None, most),
            (1, Some(true), most),
            (1, Some(false), most),
        ] {
            assert_eq!(page_of(limit, retrying), page, "{limit} {retrying:?}");
        }
    }
}
