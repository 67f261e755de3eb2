//! What is done to jobs: cancel, revive, drop. Names the publishers that confirmed, and those that did not answer.

use longshore::protocol::messages::work::{Action, ActionReport, Selection};
use longshore::{Glob, JobId, JobName, JobState};
use serde_json::json;

use super::{Context, missing_json, warn_of_missing};
use crate::arguments::{Cancel, Selected};
use crate::failure::{Reported, WrongUsage};
use crate::output::grouped;

/// `longshore cancel`
pub(crate) async fn cancel(arguments: Cancel, context: Context) -> anyhow::Result<()> {
    run(Action::Cancel, arguments.selected, arguments.state.map(JobState::from), context).await
}

/// Does one thing to the selected jobs.
pub(crate) async fn run(
    action: Action,
    selected: Selected,
    state: Option<JobState>,
    mut context: Context,
) -> anyhow::Result<()> {
    let (selection, named) = selection(&selected.which, state).map_err(WrongUsage)?;
    let gathered = context.queues().act(action, selection, selected.dry_run).await?;
    let total = gathered.total();
    // Each publisher counts the named jobs that it does not have; nobody has those that all of them count.
    let nowhere = named.saturating_sub(total.done + total.refused);

    if context.output.is_json() {
        let confirmed: Vec<_> = gathered
            .answers
            .iter()
            .map(|answered| {
                json!({
                    "publisher": answered.publisher.id.to_string(),
                    "name": answered.publisher.name, "done": answered.answer.done,
                })
            })
            .collect();
        context.output.json_pretty(&json!({
            "action": action.to_string(), "dry_run": selected.dry_run, "done": total.done,
            "refused": total.refused, "not_found": nowhere, "confirmed": confirmed,
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        let names: Vec<String> = gathered
            .answers
            .iter()
            .filter(|answered| answered.answer.done > 0)
            .map(|answered| {
                format!("{} at {}", grouped(answered.answer.done), answered.publisher.name)
            })
            .collect();
        let at = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        context.output.line(format!(
            "{} {}{at}",
            grouped(total.done),
            done_words(action, selected.dry_run)
        ))?;
        if total.refused > 0 {
            eprintln!("error: {} are in no state for it", grouped(total.refused));
        }
        if nowhere > 0 {
            eprintln!("error: {} were not found", grouped(nowhere));
        }
        warn_of_missing(&gathered.missing, gathered.complete);
    }
    let ActionReport { refused, .. } = total;
    let failed = refused > 0 || nowhere > 0 || !gathered.missing.is_empty();
    if failed { Err(Reported.into()) } else { Ok(()) }
}

fn done_words(action: Action, dry_run: bool) -> &'static str {
    match (action, dry_run) {
        (Action::Cancel, false) => "cancelled",
        (Action::Cancel, true) => "would be cancelled",
        (Action::Revive, false) => "revived",
        (Action::Revive, true) => "would be revived",
        (Action::Drop, false) => "dropped",
        (Action::Drop, true) => "would be dropped",
    }
}

/// Ids, or one pattern; and how many jobs are named.
fn selection(which: &[String], state: Option<JobState>) -> Result<(Selection, u64), String> {
    if let [pattern] = which
        && pattern.starts_with('/')
    {
        let pattern = Glob::new(pattern).map_err(|error| error.to_string())?;
        return Ok((Selection::Matching { pattern, state }, 0));
    }
    let id = |text: &String| -> Result<JobId, String> {
        let name: JobName = text.parse().map_err(|error| format!("{error}"))?;
        Ok(name.id)
    };
    let mut ids = which.iter().map(id).collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    ids.dedup();
    let named = ids.len() as u64;
    Ok((Selection::Ids(ids), named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_selected_by_ids_or_by_one_pattern() {
        let id = "01920f3e-5b7a-7fff-bfff-ffffffffffff";
        let receipt = format!("1a2b3c4d:{id}");
        let (selection, named) = super::selection(&[id.to_owned(), receipt], None).unwrap();
        assert!(matches!(selection, Selection::Ids(ids) if ids.len() == 1));
        assert_eq!(named, 1);
        let (selection, named) =
            super::selection(&["/jobs/**".to_owned()], Some(JobState::Dead)).unwrap();
        assert!(matches!(selection, Selection::Matching { state: Some(JobState::Dead), .. }));
        assert_eq!(named, 0);
        assert!(super::selection(&["jobs".to_owned()], None).is_err());
        assert!(super::selection(&["/a[b]".to_owned()], None).is_err());
    }
}
