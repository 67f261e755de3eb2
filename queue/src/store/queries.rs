//! Queries of the applied state.

use longshore_protocol::limits::{
    BATCH_JOBS_MAX, PAGE_BYTES_MAX, PAGE_JOBS_MAX, PAGE_PARENTS_MAX, PAGE_QUEUES_MAX,
    PAGE_SCHEDULES_MAX,
};
use longshore_protocol::messages::work::{
    Answer, JobsQuery, QueueStat, QueuesPage, Request, RequestError, ScheduleInfo, SchedulesPage,
    Selection,
};
use longshore_protocol::{JobId, LinkId, PathSet, Token};

use super::PendingAnswer;
use super::reports::ProgressReports;
use crate::state::ParentJobs;
use crate::{JobView, Now, State};

/// Bytes of a job on a page beside its cold parts.
const VIEW_BYTES: usize = 512;
/// Bytes of an attempt beside its error, with the longest worker name.
const ATTEMPT_BYTES: usize = 192;
/// Bytes of a checkpoint beside its content.
const CHECKPOINT_BYTES: usize = 40;
/// Bytes of a queue on a page beside its path and patterns: its numbers, settings and limit's name.
const QUEUE_STAT_BYTES: usize = 512;
/// Bytes of a pattern beside its text.
const GLOB_BYTES: usize = 4;

/// Answers from memory. Jobs of queues that are not `within` are not shown; none for all.
pub(super) fn answer(
    state: &State,
    reports: &ProgressReports,
    now: Now,
    link: LinkId,
    request: Request,
    within: Option<&PathSet>,
) -> PendingAnswer {
    match request {
        Request::Limits => {
            let limits = state
                .limits()
                .filter(|limit| within.is_none_or(|within| within.covers(&limit.pattern)));
            PendingAnswer::Ready(Answer::Limits(limits.cloned().collect()))
        }
        Request::Schedules { limit, .. } if limit as usize > PAGE_SCHEDULES_MAX => {
            PendingAnswer::Refused(RequestError::OverLimit)
        }
        Request::Schedules { name: Some(name), .. } => {
            let sees = |known: &ScheduleInfo| {
                within.is_none_or(|within| within.contains(&known.schedule.path))
            };
            let schedules = state.schedule(&name).into_iter().filter(sees).collect();
            PendingAnswer::Ready(Answer::Schedules(SchedulesPage { schedules, more: false }))
        }
        Request::Schedules { name: None, after, limit } => {
            let page = state.schedules_page(&after, limit as usize, within);
            PendingAnswer::Ready(Answer::Schedules(page))
        }
        Request::Queues { pattern, cursor } => {
            let stats = state.queue_stats(&pattern, within, cursor, now);
            PendingAnswer::Ready(Answer::Queues(queues_page(stats)))
        }
        Request::Jobs(query) if query.limit as usize > PAGE_JOBS_MAX => {
            PendingAnswer::Refused(RequestError::OverLimit)
        }
        Request::Jobs(query) => jobs(state, reports, now, &query, within),
        Request::Job { id } | Request::Await { id } => {
            let is_within =
                |view: &JobView| within.is_none_or(|within| within.contains(&view.info.path));
            let mut view = state.job(&id, now).filter(is_within).map(Box::new);
            view.iter_mut().for_each(|view| reports.add_to(view));
            PendingAnswer::Job(view)
        }
        Request::Act { selection: Selection::Ids(ids), dry_run: true, .. }
            if ids.len() > BATCH_JOBS_MAX =>
        {
            PendingAnswer::Refused(RequestError::OverLimit)
        }
        Request::Act { action, selection, dry_run: true, .. } => {
            PendingAnswer::Ready(Answer::Acted(state.preview(action, &selection, within)))
        }
        Request::DeadGroups { filter } => {
            let (groups, more) = state.dead_groups(&filter, within);
            PendingAnswer::DeadGroups { groups, more }
        }
        Request::Checkpoints { token } => match state.checkpoints(token, link) {
            Ok(views) => PendingAnswer::Checkpoints(views),
            Err(refusal) => PendingAnswer::Refused(refusal),
        },
        Request::ParentJobs { token, parent, cursor } => {
            match state.parent_jobs((token, link), &parent, (cursor, PAGE_PARENTS_MAX), now) {
                Ok(page) => parent_jobs(state, (token, link), parent, (cursor, page), now),
                Err(refusal) => PendingAnswer::Refused(refusal),
            }
        }
        Request::Feed { pattern, after } => PendingAnswer::Feed { pattern, after },
        // The caller adds its own values to metrics; an action that is not a dry run is a command.
        _ => PendingAnswer::Refused(RequestError::Unknown),
    }
}

fn jobs(
    state: &State,
    reports: &ProgressReports,
    now: Now,
    query: &JobsQuery,
    within: Option<&PathSet>,
) -> PendingAnswer {
    let (mut views, mut next) = state.jobs(query, within, now);
    let parents = query.related.is_some();
    let fit = fitting(&views, query.full, parents);
    if fit < views.len() {
        let shorter = JobsQuery { limit: fit as u32, ..query.clone() };
        (views, next) = state.jobs(&shorter, within, now);
    }
    for view in &mut views {
        reports.add_to(view);
        if !query.full {
            retain_last_attempt(view);
        }
    }
    PendingAnswer::Jobs { views, next, full: query.full, parents, index: state.applied() }
}

fn parent_jobs(
    state: &State,
    lease: (Token, LinkId),
    parent: JobId,
    (cursor, page): (u64, ParentJobs),
    now: Now,
) -> PendingAnswer {
    let fit = fitting(&page.views, true, false);
    let shorter = (fit < page.views.len())
        .then(|| state.parent_jobs(lease, &parent, (cursor, fit), now).ok())
        .flatten();
    let ParentJobs { child, views, next } = shorter.unwrap_or(page);
    PendingAnswer::ParentJobs { child, parent, views, next, index: state.applied() }
}

/// A page of states has each job's last attempt, and its error only once, as the job's.
fn retain_last_attempt(view: &mut JobView) {
    let before = view.info.attempts.len().saturating_sub(1);
    view.info.attempts.drain(..before);
    view.attempt_errors.clear();
}

/// A page of the queues; with at least one, unless there is none.
fn queues_page(stats: impl Iterator<Item = (u64, QueueStat)>) -> QueuesPage {
    let mut page = QueuesPage::default();
    let mut bytes = 0;
    for (number, stat) in stats {
        let patterns = stat.paused_by.iter().chain(&stat.closed_by);
        let patterns = patterns.map(|pattern| GLOB_BYTES + pattern.as_str().len());
        bytes += QUEUE_STAT_BYTES + stat.path.as_str().len() + patterns.sum::<usize>();
        let is_full = page.queues.len() == PAGE_QUEUES_MAX || bytes > PAGE_BYTES_MAX;
        if is_full && !page.queues.is_empty() {
            page.next = Some(number);
            break;
        }
        page.queues.push(stat);
    }
    page
}

/// How many of the first jobs fit on a page; at least one.
fn fitting(views: &[JobView], full: bool, parents: bool) -> usize {
    let mut bytes = 0;
    let fits = |view: &JobView| {
        let length = |part: Option<crate::RecordRef>| part.map_or(0, |part| part.length as usize);
        let cold = if full {
            let errors = view.attempt_errors.iter().map(|&error| ATTEMPT_BYTES + length(error));
            view.entry.length as usize + length(view.result) + errors.sum::<usize>()
        } else if parents {
            view.head().length as usize
        } else {
            0
        };
        let checkpoints = view.checkpoints.len() * CHECKPOINT_BYTES;
        bytes += VIEW_BYTES + view.info.path.as_str().len() + cold + length(view.error);
        bytes += checkpoints;
        bytes <= PAGE_BYTES_MAX
    };
    let fit = views.iter().map(fits).take_while(|fits| *fits).count();
    fit.max(1).min(views.len())
}

#[cfg(test)]
mod tests {
    use longshore_protocol::frame::FrameWriter;
    use longshore_protocol::messages::work::FromPublisher;
    use longshore_protocol::{Glob, Path};

    use super::*;

    /// A queue whose path has that many bytes.
    fn stat(number: usize, path_bytes: usize) -> QueueStat {
        let name = format!("{number:0>width$}", width = path_bytes - 1);
        let segments = name.as_bytes().chunks(200).map(|name| String::from_utf8_lossy(name));
        let path = segments.map(|name| format!("/{name}")).collect::<String>();
        QueueStat::empty(Path::new(&path).expect("a path"))
    }

    fn page(stats: &[QueueStat]) -> QueuesPage {
        queues_page((100..).zip(stats.iter().cloned()))
    }

    #[test]
    fn a_page_of_queues_ends_at_its_number_and_at_its_bytes() {
        assert_eq!(page(&[]), QueuesPage::default());
        let short: Vec<QueueStat> = (0..=PAGE_QUEUES_MAX).map(|n| stat(n, 8)).collect();
        let first = page(&short);
        assert!(first.queues == short[..PAGE_QUEUES_MAX]);
        assert_eq!(first.next, Some(100 + PAGE_QUEUES_MAX as u64));
        assert_eq!(page(&short[1..]).next, None);

        let patterns = (0..1_024).map(|n| Glob::new(&format!("/{n:0>250}/**")).expect("a glob"));
        let paused = QueueStat { paused_by: patterns.collect(), ..stat(0, 8) };
        let long: Vec<QueueStat> = (0..PAGE_QUEUES_MAX).map(|n| stat(n, 1_000)).collect();
        for stats in [vec![paused; 20], long] {
            let page = page(&stats);
            assert_eq!(page.next, Some(100 + page.queues.len() as u64));
            let mut frame = FrameWriter::new();
            let answer = Ok(Answer::Queues(page));
            FromPublisher::Answer { id: 1, answer }.encode(&mut frame);
            let bytes = frame.finish().len();
            assert!((PAGE_BYTES_MAX / 4..=PAGE_BYTES_MAX).contains(&bytes), "{bytes} bytes");
        }
    }
}
