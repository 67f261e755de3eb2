//! What is done to jobs: confirm, cancel, revive, drop. Says which job was not in a state for it,
//! and names the publishers that confirmed and those that did not answer.

use longshore::protocol::messages::work::{Action, ActionReport, Filter};
use longshore::{ActEnd, ActedOn, Gathered, Glob, JobName, JobState, NamedAct};
use serde_json::{Value, json};

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::{Cancel, Named, Purge, Selected};
use crate::failure::{Reported, WrongUsage};
use crate::output::grouped;

/// `longshore confirm`
pub(crate) async fn confirm(arguments: Named, context: Context) -> anyhow::Result<()> {
    on_names(Action::Confirm, &arguments.which, arguments.dry_run, context).await
}

/// `longshore cancel`
pub(crate) async fn cancel(arguments: Cancel, context: Context) -> anyhow::Result<()> {
    let state = arguments.state.map(JobState::from);
    if let Some(state) = state.filter(|state| state.is_end()) {
        let why = format!("jobs that are {state} have ended: there is nothing to cancel");
        return Err(WrongUsage(why).into());
    }
    if !arguments.selected.filters.is_empty() {
        let why = "--reason, --error, --older-than and --younger-than are about jobs that have ended: there is nothing to cancel";
        return Err(WrongUsage(why.to_owned()).into());
    }
    run(Action::Cancel, arguments.selected, state, context).await
}

/// `longshore purge`
pub(crate) async fn purge(arguments: Purge, context: Context) -> anyhow::Result<()> {
    let state = JobState::from(arguments.state);
    if !state.is_end() {
        let why = format!(
            "jobs that are {state} have not ended: cancel them first; purge takes completed, cancelled, expired or dead"
        );
        return Err(WrongUsage(why).into());
    }
    let filter = arguments.filters.filter(arguments.pattern, Some(state));
    on_filter(Action::Drop, "purged", filter, None, arguments.dry_run, context).await
}

/// Which jobs the command line names: some, or all that fit.
pub(crate) enum Which {
    Names(Vec<JobName>),
    Filter(Filter),
}

/// Does one thing to the selected jobs.
pub(crate) async fn run(
    action: Action,
    selected: Selected,
    state: Option<JobState>,
    context: Context,
) -> anyhow::Result<()> {
    let dry_run = selected.dry_run;
    match which(selected, state).map_err(WrongUsage)? {
        Which::Names(names) => on_names(action, &names, dry_run, context).await,
        Which::Filter(filter) => {
            on_filter(action, word(action), filter, None, dry_run, context).await
        }
    }
}

/// Does it to all that fit; with `per_second`, revives so many of them a second. `done` is the word
/// for what was done.
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
        say_done(done, dry_run, total.done, per_publisher, &mut context)?;
        warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered);
    }
    if gathered.missing.is_empty() { Ok(()) } else { Err(Reported.into()) }
}

async fn on_names(
    action: Action,
    names: &[JobName],
    dry_run: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let acted = context.queues().act_on(action, names, dry_run).await?;
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "action": action.to_string(), "dry_run": dry_run,
            "done": done(&acted),
            "refused": count(&acted, |end| matches!(end, ActEnd::NotInState { .. })),
            "not_found": count(&acted, |end| *end == ActEnd::NotFound), "jobs": acted.jobs.iter().map(job_json).collect::<Vec<_>>(),
            "complete": acted.complete, "missing": missing_json(&acted.missing),
        }))?;
    } else {
        let mut per_publisher: Vec<(u64, &str)> = Vec::new();
        for publisher in &acted.answered {
            let is_here = |named: &&NamedAct| matches!(named.end, ActEnd::Done { publisher: p } if p == publisher.id);
            let here = acted.jobs.iter().filter(is_here).count() as u64;
            per_publisher.push((here, publisher.name.as_str()));
        }
        say_done(word(action), dry_run, done(&acted), per_publisher.into_iter(), &mut context)?;
        for NamedAct { name, end } in &acted.jobs {
            match end {
                ActEnd::Done { .. } => {}
                ActEnd::NotInState { state, .. } => {
                    eprintln!("error: job {name} is {state}; {}", applies_to(action));
                }
                ActEnd::NotFound => eprintln!("error: no publisher has a job {name}"),
                ActEnd::Unknown => {
                    eprintln!(
                        "error: unknown whether there is a job {name}: not every publisher answered"
                    );
                }
            }
        }
        warn_of_missing(&acted.missing, acted.complete, &acted.unanswered);
    }
    if acted.is_done() { Ok(()) } else { Err(Reported.into()) }
}

fn done(acted: &ActedOn) -> u64 {
    count(acted, |end| matches!(end, ActEnd::Done { .. }))
}

fn count(acted: &ActedOn, which: impl Fn(&ActEnd) -> bool) -> u64 {
    acted.jobs.iter().filter(|named| which(&named.end)).count() as u64
}

fn job_json(named: &NamedAct) -> Value {
    let (end, state) = match &named.end {
        ActEnd::Done { .. } => ("done", None),
        ActEnd::NotInState { state, .. } => ("not_in_state", Some(state.to_string())),
        ActEnd::NotFound => ("not_found", None),
        ActEnd::Unknown => ("unknown", None),
    };
    json!({ "job": named.name.to_string(), "end": end, "state": state })
}

fn confirmed_json(gathered: &Gathered<ActionReport>) -> Vec<Value> {
    let confirmed = gathered.answers.iter().map(|answered| {
        json!({
            "publisher": answered.publisher.id.to_string(),
            "name": answered.publisher.name, "done": answered.answer.done,
        })
    });
    confirmed.collect()
}

fn say_done<'a>(
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

/// What was done to a job.
pub(crate) fn word(action: Action) -> &'static str {
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

/// Names, or one pattern and what is said of its jobs.
pub(crate) fn which(selected: Selected, state: Option<JobState>) -> Result<Which, String> {
    let Selected { which, filters, .. } = selected;
    if let [pattern] = &which[..]
        && pattern.starts_with('/')
    {
        let pattern = Glob::new(pattern).map_err(|error| error.to_string())?;
        return Ok(Which::Filter(filters.filter(pattern, state)));
    }
    if !filters.is_empty() {
        return Err(
            "--reason, --error, --older-than and --younger-than go with a pattern, not with ids"
                .to_owned(),
        );
    }
    let name = |text: &String| text.parse().map_err(|error| format!("{error}"));
    let mut names = which.iter().map(name).collect::<Result<Vec<JobName>, String>>()?;
    // The same job twice would be refused the second time.
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.id));
    Ok(Which::Names(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(which: &[&str]) -> Selected {
        let which = which.iter().map(|text| (*text).to_owned()).collect();
        Selected { which, filters: Default::default(), dry_run: false }
    }

    #[test]
    fn jobs_are_selected_by_names_or_by_one_pattern() {
        let id = "01920f3e-5b7a-7fff-bfff-ffffffffffff";
        let receipt = format!("1a2b3c4d:{id}");
        let Ok(Which::Names(names)) = which(selected(&[&receipt, id]), None) else { panic!() };
        assert_eq!(names.len(), 1, "a receipt and its id are one job");
        assert_eq!(names[0].publisher.as_deref(), Some("1a2b3c4d"));
        let dead = Some(JobState::Dead);
        let Ok(Which::Filter(filter)) = which(selected(&["/jobs/**"]), dead) else { panic!() };
        assert_eq!(filter.state, dead);
        assert!(which(selected(&["jobs"]), None).is_err());
        assert!(which(selected(&["/a[b]"]), None).is_err());
    }
}
