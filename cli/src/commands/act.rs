//! Actions on jobs: confirm, cancel, revive, drop. Reports jobs in an unsuitable state, the
//! publishers that confirmed, and those that did not answer.

use longshore::protocol::messages::work::{Action, ActionReport, Filter};
use longshore::{
    ActionOutcome, ActionResult, ActionResults, Glob, JobLocator, JobRef, JobState,
    PublisherAnswers,
};
use serde_json::{Value, json};

use super::known_publishers::note_if_none;
use super::{Context, missing_json, require_confirmed, warn_of_missing};
use crate::arguments::{Cancel, Confirm, DryRun, Purge, Selection, State};
use crate::confirmation::{self, Confirmation};
use crate::failure::{AlreadyReported, UsageError};
use crate::output::{grouped, jobs};

/// `longshore confirm`
pub(crate) async fn confirm(arguments: Confirm, context: Context) -> anyhow::Result<()> {
    on_names(Action::Confirm, &arguments.which, arguments.act.dry_run, context).await
}

/// `longshore cancel`
pub(crate) async fn cancel(arguments: Cancel, context: Context) -> anyhow::Result<()> {
    if let Some(State::Retrying) = arguments.state {
        let why = "jobs that wait for a retry are cancelled with --state scheduled, together with \
                   those that are not due yet";
        return Err(UsageError(why.to_owned()).into());
    }
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
    let selected = arguments.selected;
    run(Action::Cancel, selected, state, Some(arguments.confirmation), context).await
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
    let DryRun { dry_run } = arguments.act;
    let act = FilterAct { action: Action::Drop, done: "purged", filter, per_second: None, dry_run };
    act.confirmed(Some(arguments.confirmation), &context).await?.run(context).await
}

/// The jobs selected on the command line: by name, or by filter.
pub(crate) enum JobSelection {
    Names(Vec<JobLocator>),
    Filter(Filter),
}

/// Applies an action to the selected jobs. With a confirmation it asks, if a pattern selects them.
pub(crate) async fn run(
    action: Action,
    selected: Selection,
    state: Option<JobState>,
    confirmation: Option<Confirmation>,
    context: Context,
) -> anyhow::Result<()> {
    let DryRun { dry_run } = selected.act;
    match job_selection(selected, state).map_err(UsageError)? {
        JobSelection::Names(names) => on_names(action, &names, dry_run, context).await,
        JobSelection::Filter(filter) => {
            let done = past_participle(action);
            let act = FilterAct { action, done, filter, per_second: None, dry_run };
            act.confirmed(confirmation, &context).await?.run(context).await
        }
    }
}

/// An action on all jobs that match a filter.
pub(crate) struct FilterAct {
    pub(crate) action: Action,
    /// The action's past participle.
    pub(crate) done: &'static str,
    pub(crate) filter: Filter,
    /// Revive them at this rate.
    pub(crate) per_second: Option<u32>,
    pub(crate) dry_run: bool,
}

impl FilterAct {
    /// Asks, if there is a terminal and any job may match; an error unless the answer is yes. If
    /// every publisher has counted all jobs and none matches, the act stays a dry run: a job that
    /// matches only later was not asked about.
    async fn confirmed(
        mut self,
        confirmation: Option<Confirmation>,
        context: &Context,
    ) -> anyhow::Result<FilterAct> {
        let Some(confirmation) = confirmation else { return Ok(self) };
        let what = match self.action {
            Action::Cancel => "cancel the jobs of a pattern",
            _ => "delete the jobs of a pattern",
        };
        if !confirmation.needs_question(self.dry_run, what)? {
            return Ok(self);
        }
        let counted = context.queues().act(self.action, self.filter.clone(), true).await?;
        warn_of_missing(&counted.missing, counted.complete, &counted.silent_replicas);
        if has_none(&counted) {
            self.dry_run = true;
            return Ok(self);
        }
        let question = self.question(&counted, &context.system());
        confirmation::ask(&question, &context.deadline).await?;
        Ok(self)
    }

    /// The question, from the counts of a dry run.
    fn question(&self, counted: &PublisherAnswers<ActionReport>, system: &str) -> String {
        let total = counted.total();
        let more = total.more || !counted.is_whole();
        let least = if more { "at least " } else { "" };
        let state = self.filter.state.map(|state| format!("{state} ")).unwrap_or_default();
        let jobs = if total.done == 1 && !more { "job" } else { "jobs" };
        let verb = if self.action == Action::Cancel { "cancel" } else { "delete" };
        let queues = match self.filter.pattern.literal() {
            Some(path) => path.to_string(),
            None => format!("queues that match '{}'", self.filter.pattern),
        };
        let count = grouped(total.done);
        format!("{verb} {least}{count} {state}{jobs} of {queues} at {system}?")
    }

    /// Applies it at every publisher.
    pub(crate) async fn run(self, mut context: Context) -> anyhow::Result<()> {
        let FilterAct { action, done, filter, per_second, dry_run } = self;
        let queues = context.queues();
        let gathered = match per_second {
            Some(per_second) if !dry_run => queues.revive(filter, per_second).await?,
            _ => queues.act(action, filter, dry_run).await?,
        };
        let total = gathered.total();
        if context.output.is_json() {
            context.output.json_pretty(&json!({
                "action": action.to_string(), "dry_run": dry_run, "done": total.done,
                "refused": total.refused,
                "more": total.more,
                "confirmed": confirmed_json(&gathered), "complete": gathered.complete,
                "missing": missing_json(&gathered.missing),
            }))?;
        } else {
            let per_publisher = gathered
                .answers
                .iter()
                .map(|answered| (answered.answer.done, answered.publisher.name.as_str()));
            print_done(done, dry_run, total.done, per_publisher, &mut context)?;
            if total.refused > 0 {
                report!(
                    "{} not revived: another job has the unique key; try again once it no longer \
                     holds it",
                    jobs(total.refused)
                );
                if !dry_run && total.more {
                    report_note!(
                        "more jobs match behind these; drop these, or name the others more \
                         narrowly, such as by --fingerprint"
                    );
                }
            }
            if dry_run && total.more {
                report_note!(
                    "more may match: with a filter by age, a publisher examines about 100,000 \
                     jobs in a dry run"
                );
            }
        }
        if gathered.answers.is_empty() {
            note_if_none(&context).await;
        }
        require_confirmed(&gathered, dry_run)?;
        if total.refused == 0 { Ok(()) } else { Err(AlreadyReported.into()) }
    }
}

/// True if every publisher has counted all jobs, and none matches.
fn has_none(counted: &PublisherAnswers<ActionReport>) -> bool {
    let total = counted.total();
    total.done == 0 && !total.more && counted.is_whole()
}

pub(super) async fn on_names(
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
            "refused": count(&acted, |end| {
                matches!(end, ActionOutcome::NotInState { .. } | ActionOutcome::NotUnique { .. })
            }),
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
                    report_error!("job {name} is {state}; {}", applies_to(action));
                }
                ActionOutcome::NotUnique { publisher, holder } => {
                    let holder = JobRef { publisher: *publisher, id: *holder };
                    report_error!(
                        "job {name} cannot be revived: {holder} has its unique key; try again once \
                         that one no longer holds it"
                    );
                }
                ActionOutcome::NotFound => report_error!("no publisher has a job {name}"),
                ActionOutcome::Unknown => {
                    report_error!("job {name} is unknown: not every publisher answered");
                }
            }
        }
        warn_of_missing(&acted.missing, acted.complete, &acted.silent_replicas);
    }
    if acted.answered.is_empty() {
        note_if_none(&context).await;
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
        ActionOutcome::NotUnique { .. } => ("not_unique", None),
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
        Action::CloseBatch => "closed",
    }
}

fn applies_to(action: Action) -> &'static str {
    match action {
        Action::Cancel => "only jobs that have not ended can be cancelled",
        Action::Revive => "only dead jobs can be revived, and batches within which a job has died",
        Action::Drop => "only jobs that have ended can be dropped",
        Action::Confirm => "only prepared jobs can be confirmed",
        Action::CloseBatch => "only batches that have not ended can be closed",
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
    let mut names: Vec<JobLocator> = Vec::new();
    for text in which {
        let name: JobLocator = text.parse().map_err(|error| format!("{error}"))?;
        match names.iter_mut().find(|other| other.id == name.id) {
            None => names.push(name),
            // Publishers would refuse the second mention of a job.
            Some(other) if name.publisher.is_none() => other.publisher = None,
            Some(other) if other.publisher.is_none() || other.publisher == name.publisher => {}
            Some(other) => {
                return Err(format!(
                    "{other} and {name} have the same id, as after a restored copy: act on one of \
                     them at a time, or on the id without a publisher"
                ));
            }
        }
    }
    Ok(JobSelection::Names(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_id_are_one_or_are_refused() {
        let id = longshore::new_id();
        let at = |publisher: &str| format!("{publisher}:{id}");
        let (first, second) = (at("0a0a0a0a"), at("0b0b0b0b"));
        let names = |which: &[&str]| match job_selection(selected(which), None)? {
            JobSelection::Names(names) => Ok(names.iter().map(ToString::to_string).collect()),
            JobSelection::Filter(_) => Err("a filter".to_owned()),
        };
        let bare = id.to_string();
        assert_eq!(names(&[&first, &first]), Ok(vec![first.clone()]));
        assert_eq!(names(&[&first, &bare]), Ok(vec![bare.clone()]));
        assert_eq!(names(&[&bare, &second]), Ok(vec![bare.clone()]));
        let refused = names(&[&first, &second]).unwrap_err();
        assert!(refused.contains(&first) && refused.contains(&second), "{refused}");
    }

    fn selected(which: &[&str]) -> Selection {
        let which = which.iter().map(|text| (*text).to_owned()).collect();
        Selection { which, filters: Default::default(), act: DryRun::default() }
    }

    #[test]
    fn jobs_are_selected_by_ids_or_one_pattern() {
        let id = "01920f3e-5b7a-7fff-bfff-ffffffffffff";
        let receipt = format!("1a2b3c4d:{id}");
        let Ok(JobSelection::Names(names)) = job_selection(selected(&[&receipt, id]), None) else {
            panic!()
        };
        assert_eq!(names.len(), 1, "a receipt and its id are one job");
        assert_eq!(names[0].publisher, None, "wherever it is");
        let dead = Some(JobState::Dead);
        let Ok(JobSelection::Filter(filter)) = job_selection(selected(&["/jobs/**"]), dead) else {
            panic!()
        };
        assert_eq!(filter.state, dead);
        assert!(job_selection(selected(&["jobs"]), None).is_err());
        assert!(job_selection(selected(&["/a[b]"]), None).is_err());
    }

    /// The answers of publishers that counted so many jobs.
    fn counted(jobs: &[u64], more: bool) -> PublisherAnswers<ActionReport> {
        let answer = |&done| longshore::PublisherAnswer {
            publisher: longshore::PublisherInfo {
                id: longshore::PublisherId([1; 16]),
                epoch: longshore::protocol::Epoch(1),
                name: "p".to_owned(),
                addresses: Vec::new(),
                tls_name: None,
                later: Default::default(),
            },
            answer: ActionReport { done, more, ..ActionReport::default() },
        };
        PublisherAnswers {
            complete: true,
            answers: jobs.iter().map(answer).collect(),
            missing: Vec::new(),
            silent_replicas: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_asked_only_where_all_jobs_were_counted_and_none_matches() {
        assert!(has_none(&counted(&[0, 0], false)));
        assert!(!has_none(&counted(&[0, 0], true)), "a publisher has not examined all");
        assert!(!has_none(&counted(&[0, 1], false)));
        assert!(!has_none(&PublisherAnswers { complete: false, ..counted(&[0], false) }));
    }

    #[test]
    fn the_question_states_what_how_many_and_where() {
        let question = |action, pattern, state, jobs: &[u64], more| {
            let filter = Filter::of(Glob::new(pattern).unwrap()).in_state(state);
            let act = FilterAct { action, done: "", filter, per_second: None, dry_run: false };
            act.question(&counted(jobs, more), "context prod (a:1)")
        };
        let dead = Some(JobState::Dead);
        assert_eq!(
            question(Action::Drop, "/jobs/**", dead, &[10_000, 2], true),
            "delete at least 10,002 dead jobs of queues that match '/jobs/**' at context prod \
             (a:1)?"
        );
        assert_eq!(
            question(Action::Cancel, "/a", None, &[1, 0], false),
            "cancel 1 job of /a at context prod (a:1)?"
        );
    }
}
