//! Queries of the applied state.

use longshore_protocol::limits::{
    BATCH_JOBS_MAX, PAGE_BYTES_MAX, PAGE_JOBS_MAX, PAGE_PARENTS_MAX, PAGE_SCHEDULES_MAX,
};
use longshore_protocol::messages::work::{
    Answer, JobsQuery, Request, RequestError, ScheduleInfo, SchedulesPage, Selection,
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
        Request::Queues { pattern } => {
            PendingAnswer::Ready(Answer::Queues(state.queue_stats(&pattern, within, now)))
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
