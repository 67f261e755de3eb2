//! Records of requests for the audit log. Pure. What a job contains is in none of them.

use std::fmt::Display;

use longshore_access::SERVER_PATH;
use longshore_protocol::messages::work::{Action, JobsQuery, Request, Selection, Sources};
use longshore_protocol::{Gate, JobLimit, Schedule};
use longshore_transport::AuditedAct;

/// Most ids in one record; an act on more has several records.
const IDS_IN_RECORD: usize = 100;

/// Whether a request changes what an operator is responsible for. A dry run changes nothing, and
/// producers confirm their own jobs, and close their own batches, by their ids.
pub(crate) fn is_act(request: &Request) -> bool {
    match request {
        Request::Act {
            action: Action::Confirm | Action::CloseBatch,
            selection: Selection::Ids(_),
            ..
        } => false,
        Request::Act { dry_run, .. } | Request::Quiet { dry_run, .. } => !dry_run,
        Request::Replace { .. }
        | Request::Pause { .. }
        | Request::SetLimit { .. }
        | Request::RemoveLimit { .. }
        | Request::PutSchedule { .. }
        | Request::RemoveSchedule { .. }
        | Request::PauseSchedule { .. }
        | Request::RunSchedule { .. }
        | Request::Configure { .. }
        | Request::ConfirmClock
        | Request::Drain { .. } => true,
        Request::Status
        | Request::Queues { .. }
        | Request::Limits
        | Request::Schedules { .. }
        | Request::PreviewSchedule { .. }
        | Request::Jobs(_)
        | Request::Job { .. }
        | Request::Await { .. }
        | Request::DeadGroups { .. }
        | Request::Checkpoints { .. }
        | Request::ParentJobs { .. }
        | Request::Feed { .. } => false,
    }
}

/// The record of an act, or its records.
pub(crate) fn act_of(request: &Request) -> AuditedAct {
    let detail = match request {
        Request::Act { selection: Selection::Matching(filter), pace, .. } => {
            let mut parts = Vec::new();
            parts.extend(filter.state.map(|state| format!("state {state}")));
            parts.extend(filter.death.map(|reason| format!("reason {reason}")));
            parts.extend(filter.fingerprint.map(|error| format!("fingerprint {error:?}")));
            parts.extend(filter.ended_from.map(|ms| format!("ended from {ms}")));
            parts.extend(filter.ended_before.map(|ms| format!("ended before {ms}")));
            parts.extend(pace.map(|pace| format!("{} a second", pace.per_second)));
            parts.join(", ")
        }
        Request::Configure { changes, reset, .. } => {
            format!("{changes:?}{}", if *reset { ", others are reset" } else { "" })
        }
        Request::SetLimit { limit } => {
            let JobLimit { name, pattern: _, scope, concurrency, rate } = limit;
            format!("{name:?}, scope {scope}, concurrency {concurrency:?}, {rate:?}")
        }
        Request::PutSchedule { schedule, .. } => {
            let Schedule { name, path: _, timing, starts_at, ends_at, .. } = schedule;
            format!("{name:?}, {timing:?}, from {starts_at:?} to {ends_at:?}")
        }
        _ => String::new(),
    };
    let targets = match request {
        Request::Act { selection: Selection::Ids(ids), .. } if ids.len() > IDS_IN_RECORD => {
            ids.chunks(IDS_IN_RECORD).map(listed).collect()
        }
        request => vec![target_of(request)],
    };
    AuditedAct { action: name_of(request), targets, detail }
}

/// A request's name.
pub(crate) fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Act { action, .. } => match action {
            Action::Cancel => "cancel",
            Action::Revive => "revive",
            Action::Drop => "drop",
            Action::Confirm => "confirm",
            Action::CloseBatch => "close batch",
        },
        Request::Replace { .. } => "replace",
        Request::Pause { gate: Gate::Delivery, paused: true, .. } => "pause",
        Request::Pause { gate: Gate::Delivery, .. } => "resume",
        Request::Pause { gate: Gate::Enqueue, paused: true, .. } => "close",
        Request::Pause { gate: Gate::Enqueue, .. } => "open",
        Request::Configure { .. } => "configure",
        Request::SetLimit { .. } => "set limit",
        Request::RemoveLimit { .. } => "remove limit",
        Request::Limits => "limits",
        Request::PutSchedule { .. } => "put schedule",
        Request::RemoveSchedule { .. } => "remove schedule",
        Request::PauseSchedule { paused: true, .. } => "pause schedule",
        Request::PauseSchedule { .. } => "resume schedule",
        Request::RunSchedule { .. } => "run schedule",
        Request::Schedules { .. } => "schedules",
        Request::PreviewSchedule { .. } => "preview schedule",
        Request::ConfirmClock => "confirm clock",
        Request::Drain { draining: true } => "drain",
        Request::Drain { .. } => "end drain",
        Request::Quiet { quiet: true, .. } => "quiet",
        Request::Quiet { .. } => "end quiet",
        Request::Status => "status",
        Request::Queues { .. } => "queues",
        Request::Jobs(_) => "jobs",
        Request::Job { .. } => "job",
        Request::Await { .. } => "await",
        Request::DeadGroups { .. } => "dead groups",
        Request::Checkpoints { .. } => "checkpoints",
        Request::ParentJobs { .. } => "parents",
        Request::Feed { .. } => "feed",
    }
}

/// What a request concerns: a path, patterns or ids.
pub(crate) fn target_of(request: &Request) -> String {
    match request {
        Request::Act { selection: Selection::Ids(ids), .. } => listed(ids),
        Request::Act { selection: Selection::Matching(filter), .. }
        | Request::Jobs(JobsQuery { filter, .. })
        | Request::DeadGroups { filter } => filter.pattern.to_string(),
        Request::Pause { pattern, .. }
        | Request::Queues { pattern, .. }
        | Request::Feed { pattern, .. } => pattern.to_string(),
        Request::Configure { path, .. } => path.to_string(),
        Request::SetLimit { limit } => limit.pattern.to_string(),
        Request::PutSchedule { schedule, .. } => schedule.path.to_string(),
        Request::RemoveLimit { name }
        | Request::RemoveSchedule { name }
        | Request::PauseSchedule { name, .. }
        | Request::RunSchedule { name } => name.clone(),
        Request::Replace { id, .. } | Request::Job { id } | Request::Await { id } => id.to_string(),
        Request::Quiet { workers, .. } => listed(workers),
        Request::Status | Request::ConfirmClock | Request::Drain { .. } => SERVER_PATH.to_owned(),
        Request::Limits | Request::Schedules { .. } | Request::PreviewSchedule { .. } => {
            "/**".to_owned()
        }
        // Its lease is a secret of the worker.
        Request::Checkpoints { .. } | Request::ParentJobs { .. } => String::new(),
    }
}

/// The patterns of a subscription.
pub(crate) fn patterns_of(sources: &Sources) -> String {
    listed(&sources.patterns.iter().map(|source| &source.pattern).collect::<Vec<_>>())
}

fn listed<T: Display>(items: &[T]) -> String {
    let shown = items.iter().take(IDS_IN_RECORD).map(T::to_string);
    let mut text = shown.collect::<Vec<_>>().join(" ");
    if items.len() > IDS_IN_RECORD {
        text += &format!(" and {} more", items.len() - IDS_IN_RECORD);
    }
    text
}

#[cfg(test)]
mod tests {
    use longshore_access::AUDIT_TEXT_BYTES_MAX;
    use longshore_protocol::JobId;

    use super::*;

    #[test]
    fn every_id_of_an_act_is_in_a_record_that_is_not_cut() {
        let ids: Vec<JobId> = (0..10_000u128).map(|number| JobId(number.to_be_bytes())).collect();
        let selection = Selection::Ids(ids.clone());
        let act =
            act_of(&Request::Act { action: Action::Drop, selection, pace: None, dry_run: false });
        assert!(act.targets.iter().all(|target| target.len() <= AUDIT_TEXT_BYTES_MAX));
        let recorded: Vec<&str> = act.targets.iter().flat_map(|target| target.split(' ')).collect();
        assert!(recorded.into_iter().map(str::to_owned).eq(ids.iter().map(JobId::to_string)));
        assert!(act.targets.len() < longshore_transport::AUDIT_RECORDS_QUEUED_MAX / 2);
    }
}
