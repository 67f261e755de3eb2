//! Actions on jobs: confirm, cancel, revive, drop. Reports jobs in an unsuitable state, the
//! publishers that confirmed, and those that did not answer.

use longshore::protocol::messages::work::{Action, ActionReport, Filter};
use longshore::{
    ActionOutcome, ActionResult, ActionResults, Glob, JobLocator, JobState, PublisherAnswers,
};
use serde_json::{Value, json};

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::{Cancel, Confirm, Purge, Selection};
use crate::failure::{AlreadyReported, UsageError};
use crate::output::grouped;

/// `longshore confirm`
pub(crate) async fn confirm(arguments: Confirm, context: Context) -> anyhow::Result<()> {
    on_names(Action::Confirm, &arguments.which, arguments.dry_run, context).await
}

/// `longshore cancel`
pub(crate) async fn cancel(arguments: Cancel, context: Context) -> anyhow::Result<()> {
    let state = arguments.state.map(JobState::from);
    if let Some(state) = state.filter(|state| state.is_end()) {
        let why = format!("jobs that are {state} have ended: there is nothing to cancel");
        return Err(UsageError(why).into());
    }
    if !arguments.selected.filters.is_empty() {
        let why = "--reason, --error, --older-than and --younger-than select jobs that have \
                   ended: there is nothing to cancel";
        return Err(UsageError(why.to_owned()).into());
    }
    run(Action::Cancel, arguments.selected, state, context).await
}

/// `longshore purge`
pub(crate) async fn purge(arguments: Purge, context: Context) -> anyhow::Result<()> {
    let state = JobState::from(arguments.state);
    if !state.is_end() {
        let why = format!(
            "jobs that are {state} have not ended: cancel them first; purge takes completed, \
             cancelled, expired or dead"
        );
        return Err(UsageError(why).into());
    }
    let filter = arguments.filters.filter(arguments.pattern, Some(state));
    on_filter(Action::Drop, "purged", filter, None, arguments.dry_run, context).await
}

/// The jobs selected on the command line: by name, or by filter.
pub(crate) enum JobSelection {
    Names(Vec<JobLocator>),
    Filter(Filter),
}

/// Applies an action to the selected jobs.
pub(crate) async fn run(
    action: Action,
    selected: Selection,
    state: Option<JobState>,
    context: Context,
) -> anyhow::Result<()> {
    let dry_run = selected.dry_run;
    match job_selection(selected, state).map_err(UsageError)? {
        JobSelection::Names(names) => on_names(action, &names, dry_run, context).await,
        JobSelection::Filter(filter) => {
            on_filter(action, past_participle(action), filter, None, dry_run, context).await
        }
    }
}

/// Applies an action to all jobs that match the filter; with `per_second`, revives them at that
/// rate. `done` is the action's past participle.
pub(crate) async fn on_filter(
    action: Action,
    done: &str,
    filter: Filter,
    per_second: Option<u32>,
    dry_run: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let queues = context.queues();
    let gathered = match per_second {
        Some(per_second) if !dry_run => queues.revive(filter, per_second).await?,
        _ => queues.act(action, filter, dry_run).await?,
    };
    let total = gathered.total();
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "action": action.to_string(), "dry_run": dry_run, "done": total.done,
            "confirmed": confirmed_json(&gathered), "complete": gathered.complete,
            "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        let per_publisher = gathered
            .answers
            .iter()
            .map(|answered| (answered.answer.done, answered.publisher.name.as_str()));
        print_done(done, dry_run, total.done, per_publisher, &mut context)?;
        warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered);
    }
    if gathered.missing.is_empty() { Ok(()) } else { Err(AlreadyReported.into()) }
}

async fn on_names(
    action: Action,
    names: &[JobLocator],
    dry_run: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let acted = context.queues().act_on(action, names, dry_run).await?;
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "action": action.to_string(), "dry_run": dry_run,
            "done": done(&acted),
            "refused": count(&acted, |end| matches!(end, ActionOutcome::NotInState { .. })),
            "not_found": count(&acted, |end| *end == ActionOutcome::NotFound),
            "jobs": acted.jobs.iter().map(job_json).collect::<Vec<_>>(),
            "complete": acted.complete, "missing": missing_json(&acted.missing),
        }))?;
    } else {
        let mut per_publisher: Vec<(u64, &str)> = Vec::new();
        for publisher in &acted.answered {
            let is_done_here = |named: &&ActionResult| match named.end {
                ActionOutcome::Done { publisher: at } => at == publisher.id,
                _ => false,
            };
            let count = acted.jobs.iter().filter(is_done_here).count() as u64;
            per_publisher.push((count, publisher.name.as_str()));
        }
        print_done(
            past_participle(action),
            dry_run,
            done(&acted),
            per_publisher.into_iter(),
            &mut context,
        )?;
        for ActionResult { name, end } in &acted.jobs {
            match end {
                ActionOutcome::Done { .. } => {}
                ActionOutcome::NotInState { state, .. } => {
                    eprintln!("error: job {name} is {state}; {}", applies_to(action));
                }
                ActionOutcome::NotFound => eprintln!("error: no publisher has a job {name}"),
                ActionOutcome::Unknown => {
                    eprintln!("error: job {name} is unknown: not every publisher answered");
                }
            }
        }
        warn_of_missing(&acted.missing, acted.complete, &acted.unanswered);
    }
    if acted.is_done() { Ok(()) } else { Err(AlreadyReported.into()) }
}

fn done(acted: &ActionResults) -> u64 {
    count(acted, |end| matches!(end, ActionOutcome::Done { .. }))
}

fn count(acted: &ActionResults, which: impl Fn(&ActionOutcome) -> bool) -> u64 {
    acted.jobs.iter().filter(|named| which(&named.end)).count() as u64
}

fn job_json(named: &ActionResult) -> Value {
    let (end, state) = match &named.end {
        ActionOutcome::Done { .. } => ("done", None),
        ActionOutcome::NotInState { state, .. } => ("not_in_state", Some(state.to_string())),
        ActionOutcome::NotFound => ("not_found", None),
        ActionOutcome::Unknown => ("unknown", None),
    };
    json!({ "job": named.name.to_string(), "end": end, "state": state })
}

fn confirmed_json(gathered: &PublisherAnswers<ActionReport>) -> Vec<Value> {
    let confirmed = gathered.answers.iter().map(|answered| {
        json!({
            "publisher": answered.publisher.id.to_string(),
            "name": answered.publisher.name, "done": answered.answer.done,
        })
    });
    confirmed.collect()
}

fn print_done<'a>(
    word: &str,
    dry_run: bool,
    total: u64,
    per_publisher: impl Iterator<Item = (u64, &'a str)>,
    context: &mut Context,
) -> anyhow::Result<()> {
    let names: Vec<String> = per_publisher
        .filter(|&(done, _)| done > 0)
        .map(|(done, name)| format!("{} at {name}", grouped(done)))
        .collect();
    let at = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let would = if dry_run { "would be " } else { "" };
    context.output.line(format!("{} {would}{word}{at}", grouped(total)))?;
    Ok(())
}

/// The action's past participle.
pub(crate) fn past_participle(action: Action) -> &'static str {
    match action {
        Action::Cancel => "cancelled",
        Action::Revive => "revived",
        Action::Drop => "dropped",
        Action::Confirm => "confirmed",
    }
}

fn applies_to(action: Action) -> &'static str {
    match action {
        Action::Cancel => "only jobs that have not ended can be cancelled",
        Action::Revive => "only dead jobs can be revived",
        Action::Drop => "only jobs that have ended can be dropped",
        Action::Confirm => "only prepared jobs can be confirmed",
    }
}

/// Parses a selection: job names, or one pattern with filters.
pub(crate) fn job_selection(
    selected: Selection,
    state: Option<JobState>,
) -> Result<JobSelection, String> {
    let Selection { which, filters, .. } = selected;
    if let [pattern] = &which[..]
        && pattern.starts_with('/')
    {
        let pattern = Glob::new(pattern).map_err(|error| error.to_string())?;
        return Ok(JobSelection::Filter(filters.filter(pattern, state)));
    }
    if !filters.is_empty() {
        return Err(
            "--reason, --error, --older-than and --younger-than go with a pattern, not with ids"
                .to_owned(),
        );
    }
    let name = |text: &String| text.parse().map_err(|error| format!("{error}"));
    let mut names = which.iter().map(name).collect::<Result<Vec<JobLocator>, String>>()?;
    // Publishers would refuse the second mention of a job.
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.id));
    Ok(JobSelection::Names(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(which: &[&str]) -> Selection {
        let which = which.iter().map(|text| (*text).to_owned()).collect();
        Selection { which, filters: Default::default(), dry_run: false }
    }

    #[test]
    fn jobs_are_selected_by_ids_or_one_pattern() {
        let id = "01920f3e-5b7a-7fff-bfff-ffffffffffff";
        let receipt = format!("1a2b3c4d:{id}");
        let Ok(JobSelection::Names(names)) = job_selection(selected(&[&receipt, id]), None) else {
            panic!()
        };
        assert_eq!(names.len(), 1, "a receipt and its id are one job");
        assert_eq!(names[0].publisher.as_deref(), Some("1a2b3c4d"));
        let dead = Some(JobState::Dead);
        let Ok(JobSelection::Filter(filter)) = job_selection(selected(&["/jobs/**"]), dead) else {
            panic!()
        };
        assert_eq!(filter.state, dead);
        assert!(job_selection(selected(&["jobs"]), None).is_err());
        assert!(job_selection(selected(&["/a[b]"]), None).is_err());
    }
}
