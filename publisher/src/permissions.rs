//! What a client's rights allow of its requests. Pure.

use longshore_access::{Action, Rights};
use longshore_protocol::messages::work::{
    Action as JobAction, JobsQuery, Request, RequestError, Selection, Subscribe,
};
use longshore_protocol::{Glob, PathSet};

/// The queues that a request may show or change; none for all. An error if it may do nothing.
///
/// A path that the policy denies is refused whether there is a queue or not, and jobs of other
/// queues are as if they did not exist: a client learns nothing of what it may not see.
pub(crate) fn scope<'a>(
    rights: &'a Rights,
    request: &Request,
) -> Result<Option<&'a PathSet>, RequestError> {
    let action = action_of(request);
    match request {
        Request::Status | Request::ConfirmClock | Request::Drain { .. } | Request::Quiet { .. } => {
            or_forbidden(rights.may_at_server(action))
        }
        Request::Queues { pattern, .. } | Request::Feed { pattern, .. } => {
            within(rights, action, Some(pattern))
        }
        Request::Jobs(JobsQuery { filter, .. })
        | Request::DeadGroups { filter }
        | Request::Act { selection: Selection::Matching(filter), .. } => {
            within(rights, action, Some(&filter.pattern))
        }
        Request::Job { .. }
        | Request::Await { .. }
        | Request::Replace { .. }
        | Request::Act { selection: Selection::Ids(_), .. } => within(rights, action, None),
        // Whoever sees some queue; the answer has those of the queues that the client may see.
        Request::Limits => within(rights, action, None),
        // The caller checks the pattern of a limit that exists.
        Request::RemoveLimit { .. } => within(rights, action, None),
        // The same for schedules.
        Request::Schedules { .. } => within(rights, action, None),
        Request::PreviewSchedule { schedule, .. } => {
            or_forbidden(rights.may(action, &schedule.path))
        }
        Request::RemoveSchedule { .. }
        | Request::PauseSchedule { .. }
        | Request::RunSchedule { .. } => within(rights, action, None),
        // Its jobs are enqueued without the client.
        Request::PutSchedule { schedule, .. } => or_forbidden(
            rights.may(action, &schedule.path) && rights.may(Action::Enqueue, &schedule.path),
        ),
        // These also apply to queues that do not exist yet.
        Request::SetLimit { limit } => or_forbidden(rights.paths(action).covers(&limit.pattern)),
        Request::Pause { pattern, .. } => or_forbidden(rights.paths(action).covers(pattern)),
        Request::Configure { path, .. } => or_forbidden(rights.may(action, path)),
        // Its session holds the lease.
        Request::Checkpoints { .. } | Request::ParentJobs { .. } => Ok(None),
    }
}

/// The action that a request is.
pub(crate) fn action_of(request: &Request) -> Action {
    match request {
        Request::Status
        | Request::Queues { .. }
        | Request::Limits
        | Request::Schedules { .. }
        | Request::Feed { .. }
        | Request::Jobs(_)
        | Request::DeadGroups { .. }
        | Request::Job { .. }
        | Request::Await { .. } => Action::Inspect,
        // A producer's own step, the second half of an enqueue: it knows the ids.
        Request::Act {
            action: JobAction::Confirm | JobAction::CloseBatch,
            selection: Selection::Ids(_),
            ..
        } => Action::Enqueue,
        Request::Act { .. }
        // It takes the owner's time, like the change that it may become.
        | Request::PreviewSchedule { .. }
        | Request::Replace { .. }
        | Request::Pause { .. }
        | Request::SetLimit { .. }
        | Request::RemoveLimit { .. }
        | Request::PutSchedule { .. }
        | Request::RemoveSchedule { .. }
        | Request::PauseSchedule { .. }
        | Request::RunSchedule { .. }
        | Request::Configure { .. } => Action::Act,
        Request::ConfirmClock | Request::Drain { .. } | Request::Quiet { .. } => Action::Operate,
        Request::Checkpoints { .. } | Request::ParentJobs { .. } => Action::Work,
    }
}

/// Why a client may not subscribe; none if it may take jobs of some of the queues.
pub(crate) fn refused_subscription(rights: &Rights, subscribe: &Subscribe) -> Option<String> {
    let work = rights.paths(Action::Work);
    let denied = |glob: &Glob| glob.literal().is_some_and(|path| !work.contains(&path));
    let patterns = || subscribe.sources.patterns.iter().filter(|source| source.weight > 0);
    let denied = match work.is_empty() {
        true => patterns().next(),
        false => patterns().find(|source| denied(&source.pattern)),
    };
    denied.map(|source| {
        format!("the policy does not allow this client to work on {}", source.pattern)
    })
}

/// The queues of an action; none for all.
pub(crate) fn limit(rights: &Rights, action: Action) -> Option<&PathSet> {
    Some(rights.paths(action)).filter(|paths| !paths.is_everything())
}

fn within<'a>(
    rights: &'a Rights,
    action: Action,
    pattern: Option<&Glob>,
) -> Result<Option<&'a PathSet>, RequestError> {
    let Some(paths) = limit(rights, action) else { return Ok(None) };
    let may = match pattern.and_then(Glob::literal) {
        Some(path) => paths.contains(&path),
        None => !paths.is_empty(),
    };
    if may { Ok(Some(paths)) } else { Err(RequestError::Forbidden) }
}

fn or_forbidden<'a>(may: bool) -> Result<Option<&'a PathSet>, RequestError> {
    if may { Ok(None) } else { Err(RequestError::Forbidden) }
}
