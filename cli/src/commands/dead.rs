//! `longshore dead`: the dead letters.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use longshore::protocol::messages::work::{Action, Filter, JobsQuery};
use longshore::{
    ClusterDeadGroup, Due, Glob, Headers, JobLocator, JobOptions, JobState, NewJob, new_id,
};
use serde_json::{Value, json};

use super::act::{self, FilterAct, JobSelection};
use super::known_publishers::note_if_none;
use super::{Context, job, jobs, missing_job, missing_json, warn_of_missing};
use crate::arguments::{Dead, DeadAction, DryRun, Selection};
use crate::failure::{AlreadyReported, UsageError};
use crate::output::{Table, grouped, shown};
use crate::time::show_timestamp;

/// The timeout of a replacement.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(30);
/// Characters of an error in a table.
const ERROR_CHARS: usize = 60;

pub(crate) async fn run(arguments: Dead, mut context: Context) -> anyhow::Result<()> {
    let dead = Some(JobState::Dead);
    let all = |pattern: Option<Glob>| pattern.unwrap_or_else(Glob::everything);
    match arguments.action {
        DeadAction::Ls { pattern, filters, limit } => {
            let query = JobsQuery::of(filters.filter(all(pattern), dead));
            jobs::list(query, None, limit, context).await
        }
        DeadAction::Groups { pattern, filters } => {
            groups(filters.filter(all(pattern), dead), context).await
        }
        DeadAction::Show { id } => {
            let queues = context.queues();
            let found = match queues.job(&id).await {
                Ok(found) => found,
                Err(error) => return Err(missing_job::explain(error, &id, &queues, &context).await),
            };
            if found.job.state != JobState::Dead {
                anyhow::bail!("job {id} is {}, not dead", found.job.state);
            }
            job::show(&found, None, &mut context).await
        }
        DeadAction::Revive { selected, rate, payload, payload_file } => {
            match payload_of(payload, payload_file)? {
                Some(payload) => replace(selected, payload, context).await,
                None => revive(selected, rate, context).await,
            }
        }
        DeadAction::Drop { selected, confirmation } => {
            act::run(Action::Drop, selected, dead, Some(confirmation), context).await
        }
    }
}

async fn revive(selected: Selection, rate: Option<u32>, context: Context) -> anyhow::Result<()> {
    let Some(rate) = rate else {
        return act::run(Action::Revive, selected, Some(JobState::Dead), None, context).await;
    };
    let DryRun { dry_run } = selected.act;
    match act::job_selection(selected, Some(JobState::Dead)).map_err(UsageError)? {
        JobSelection::Filter(filter) => {
            let (action, per_second) = (Action::Revive, Some(rate));
            FilterAct { action, done: "revived", filter, per_second, dry_run }.run(context).await
        }
        JobSelection::Names(_) => {
            Err(UsageError("--rate goes with a pattern, not with ids".into()).into())
        }
    }
}

fn payload_of(text: Option<OsString>, file: Option<PathBuf>) -> anyhow::Result<Option<Bytes>> {
    Ok(match (text, file) {
        (Some(text), _) => Some(text.into_vec().into()),
        (None, Some(file)) => {
            let read = std::fs::read(&file);
            Some(read.with_context(|| format!("cannot read {}", file.display()))?.into())
        }
        (None, None) => None,
    })
}

/// Replaces a job by a new one with its headers and options.
async fn replace(selected: Selection, payload: Bytes, mut context: Context) -> anyhow::Result<()> {
    let DryRun { dry_run } = selected.act;
    let one = match act::job_selection(selected, None).map_err(UsageError)? {
        JobSelection::Names(names) => <[JobLocator; 1]>::try_from(names).ok(),
        JobSelection::Filter(_) => None,
    };
    let Some([name]) = one else {
        return Err(
            UsageError("a payload replaces one job: name it by its receipt or id".into()).into()
        );
    };
    let queues = context.queues();
    let old = queues.job(&name).await?;
    if dry_run {
        if old.job.state != JobState::Dead {
            anyhow::bail!("job {name} is {}; only a dead job can be replaced", old.job.state);
        }
        let replaces = old.job_ref().to_string();
        match context.output.is_json() {
            true => {
                context.output.json_pretty(&json!({ "replaces": replaces, "dry_run": true }))?
            }
            false => context.output.line(format!("{replaces} would be replaced"))?,
        }
        return Ok(());
    }
    let new = NewJob {
        path: old.job.path.clone(),
        id: new_id(),
        payload,
        headers: old.job.headers.clone().unwrap_or_else(Headers::default),
        // The new job runs at once: without a delay, a confirmation or a deadline.
        options: JobOptions {
            due: Due::Now,
            prepared: false,
            expires_at: None,
            ..old.job.options.clone().unwrap_or_default()
        },
        // The request names the job that it replaces: repeating it is safe without a key.
        keys: None,
    };
    let receipt = queues.replace(&JobLocator::from(old.job_ref()), &new, REPLACE_TIMEOUT).await?;
    if context.output.is_json() {
        let (job, replaces) = (receipt.to_string(), old.job_ref().to_string());
        context.output.json_pretty(&json!({ "job": job, "replaces": replaces }))?;
    } else {
        context.output.line(receipt.to_string())?;
    }
    Ok(())
}

async fn groups(filter: Filter, mut context: Context) -> anyhow::Result<()> {
    let gathered = context.queues().dead_groups(filter).await?;
    let merged = gathered.merged();
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "groups": merged.groups.iter().map(group_json).collect::<Vec<_>>(), "more": merged.more,
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        if !merged.groups.is_empty() {
            context.output.table(&groups_table(&merged.groups))?;
        }
        if merged.more {
            report!(
                "groups may be missing, and counts too low: a publisher lists 1,000 groups, and \
                 with a filter by age examines about 100,000 jobs; narrow the pattern"
            );
        }
    }
    if gathered.answers.is_empty() {
        note_if_none(&context).await;
    }
    let missing = warn_of_missing(&gathered.missing, gathered.complete, &gathered.silent_replicas);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// A row per group.
pub(super) fn groups_table(groups: &[ClusterDeadGroup]) -> Table {
    let mut table =
        Table::new(&["jobs", "reason", "error", "queue", "first", "last", "fingerprint"]);
    for ClusterDeadGroup { group, .. } in groups {
        let error = group.error.as_ref().map(|e| format!("{}: {}", e.kind, e.message));
        table.row([
            grouped(group.jobs),
            group.death.to_string(),
            error.map(|error| shown(error.as_bytes(), ERROR_CHARS)).unwrap_or_default(),
            group.path.to_string(),
            show_timestamp(group.first_at),
            show_timestamp(group.last_at),
            group.fingerprint.to_string(),
        ]);
    }
    table
}

fn group_json(at: &ClusterDeadGroup) -> Value {
    let group = &at.group;
    json!({
        "path": group.path.as_str(), "death": group.death.to_string(),
        "fingerprint": group.fingerprint.to_string(), "jobs": group.jobs,
        "first_at": show_timestamp(group.first_at), "last_at": show_timestamp(group.last_at),
        "example": at.example().to_string(),
        "error": group.error.as_ref().map(|e| json!({ "kind": e.kind, "message": e.message })),
    })
}
