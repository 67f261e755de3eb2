//! `longshore limit ls`, `set` and `rm`: limits of the jobs that run at once, or start in a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::ensure;
use longshore::{JobLimit, JobRate, LimitScope, PublisherAnswer, PublisherAnswers};
use serde_json::{Value, json};

use super::known_publishers::note_if_none;
use super::{Context, missing_json, require_confirmed, require_whole, warn_of_missing};
use crate::arguments::{Limit, LimitAction, SetLimit};
use crate::failure::AlreadyReported;
use crate::output::{Table, shell_word};
use crate::time::show_duration;

pub(super) async fn run(arguments: Limit, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        LimitAction::Ls => list(context).await,
        LimitAction::Set(arguments) => set(arguments, context).await,
        LimitAction::Rm { name, act } => remove(&name, act.dry_run, context).await,
    }
}

async fn list(mut context: Context) -> anyhow::Result<()> {
    let gathered = context.queues().limits().await?;
    let mut limits: BTreeMap<(&str, String), (&JobLimit, Vec<&str>)> = BTreeMap::new();
    for answered in &gathered.answers {
        for limit in &answered.answer {
            // Publishers may have different limits of one name.
            let key = (limit.name.as_str(), limit_json(limit).to_string());
            let publishers = &mut limits.entry(key).or_insert((limit, Vec::new())).1;
            publishers.push(&answered.publisher.name);
        }
    }
    if context.output.is_json() {
        let limit = |(limit, publishers): &(&JobLimit, Vec<&str>)| {
            let mut value = limit_json(limit);
            value["publishers"] = json!(publishers);
            value
        };
        let limits: Vec<Value> = limits.values().map(limit).collect();
        context.output.json_pretty(&json!({
            "limits": limits, "complete": gathered.complete,
            "missing": missing_json(&gathered.missing),
        }))?;
    } else if !limits.is_empty() {
        let columns = ["name", "queues", "scope", "concurrency", "rate", "burst", "publishers"];
        let mut table = Table::new(&columns);
        for (limit, publishers) in limits.values() {
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            table.row([
                limit.name.clone(),
                limit.pattern.to_string(),
                limit.scope.to_string(),
                or_dash(limit.concurrency.map(|units| units.to_string())),
                or_dash(limit.rate.map(show_rate)),
                or_dash(limit.rate.map(|rate| rate.burst.to_string())),
                publishers.join(","),
            ]);
        }
        context.output.table(&table)?;
    }
    let missing = warn_of_missing(&gathered.missing, gathered.complete, &gathered.silent_replicas);
    if missing { Err(AlreadyReported.into()) } else { Ok(()) }
}

async fn set(arguments: SetLimit, mut context: Context) -> anyhow::Result<()> {
    let SetLimit { name, pattern, scope, concurrency, rate, burst, act } = arguments;
    let rate = rate.map(|rate| {
        let burst = burst.unwrap_or(JobRate::default_burst(rate.units));
        JobRate { units: rate.units, per_ms: rate.per_ms, burst }
    });
    let limit = JobLimit { name, pattern, scope, concurrency, rate };
    ensure!(
        limit.is_valid(),
        "the name has 1 to 80 bytes, and the rate fills the burst again within 366 days: give the \
         limit another name, or a lower --burst"
    );
    let stats = context.queues().stats(limit.pattern.clone()).await?;
    let answered = stats.answers.iter().map(|answered| answered.publisher.name.as_str());
    let missing = stats.missing.iter().map(|missing| missing.publisher.name.as_str());
    let publishers: Vec<&str> = answered.chain(missing).collect();
    if publishers.len() > 1 {
        let (count, names) = (publishers.len(), publishers.join(", "));
        ensure!(
            limit.scope != LimitScope::Shared,
            "{count} publishers may have queues of '{}' ({names}), and a shared limit is exact at \
             one: let one publisher serve the pattern, or limit patterns that one of them serves",
            limit.pattern
        );
        report_warning!(
            "{count} publishers may have queues of '{}' ({names}): each applies the limit to its \
             own jobs",
            limit.pattern
        );
    }
    let before = context.queues().limits().await?;
    let before = before.answers.iter().flat_map(|answered| &answered.answer);
    let replaced: BTreeSet<String> = before
        .filter(|known| known.name == limit.name && **known != limit)
        .map(show_limit)
        .collect();
    let gathered = match act.dry_run {
        true => unchanged(&context, |limits| !limits.contains(&limit)).await?,
        false => context.queues().set_limit(limit.clone()).await?,
    };
    if context.output.is_json() {
        let mut value = limit_json(&limit);
        value["dry_run"] = act.dry_run.into();
        value["confirmed"] = confirmed(&gathered);
        value["complete"] = gathered.complete.into();
        value["missing"] = missing_json(&gathered.missing).into();
        context.output.json_pretty(&value)?;
    } else {
        for answered in &gathered.answers {
            let done = match (answered.answer, act.dry_run) {
                (false, _) => "is set already",
                (true, false) => "set",
                (true, true) => "would be set",
            };
            let name = &answered.publisher.name;
            context.output.line(format!("{}  {done} at {name}", limit.name))?;
        }
        for replaced in replaced {
            context.output.line(format!("it replaces {replaced}"))?;
        }
    }
    if gathered.answers.is_empty() {
        require_whole(&gathered)?;
        note_if_none(&context).await;
        anyhow::bail!("there is no publisher that could have the limit '{}'", limit.name);
    }
    require_confirmed(&gathered, act.dry_run)
}

async fn remove(name: &str, dry_run: bool, mut context: Context) -> anyhow::Result<()> {
    let gathered = match dry_run {
        true => {
            let has_it = |limits: &[JobLimit]| limits.iter().any(|limit| limit.name == name);
            unchanged(&context, has_it).await?
        }
        false => context.queues().remove_limit(name).await?,
    };
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "name": name, "dry_run": dry_run, "confirmed": confirmed(&gathered),
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        let done = if dry_run { "would be removed" } else { "removed" };
        for answered in gathered.answers.iter().filter(|answered| answered.answer) {
            context.output.line(format!("{name}  {done} at {}", answered.publisher.name))?;
        }
    }
    if gathered.answers.iter().all(|answered| !answered.answer) {
        require_whole(&gathered)?;
        note_if_none(&context).await;
        anyhow::bail!("there is no limit '{name}': longshore limit ls lists them");
    }
    require_confirmed(&gathered, dry_run)
}

/// What each publisher would answer, by its limits.
async fn unchanged(
    context: &Context,
    would_change: impl Fn(&[JobLimit]) -> bool,
) -> anyhow::Result<PublisherAnswers<bool>> {
    let PublisherAnswers { complete, answers, missing, silent_replicas } =
        context.queues().limits().await?;
    let answers = answers.into_iter().map(|answered| PublisherAnswer {
        answer: would_change(&answered.answer),
        publisher: answered.publisher,
    });
    Ok(PublisherAnswers { complete, answers: answers.collect(), missing, silent_replicas })
}

fn confirmed(gathered: &PublisherAnswers<bool>) -> Value {
    let one = |answered: &PublisherAnswer<bool>| {
        json!({
            "publisher": answered.publisher.id.to_string(), "name": answered.publisher.name,
            "changed": answered.answer,
        })
    };
    gathered.answers.iter().map(one).collect()
}

fn show_limit(limit: &JobLimit) -> String {
    let concurrency = limit.concurrency.map(|units| format!(" --concurrency {units}"));
    let rate = limit.rate.map(|rate| format!(" --rate {} --burst {}", show_rate(rate), rate.burst));
    let [concurrency, rate] = [concurrency, rate].map(Option::unwrap_or_default);
    let pattern = shell_word(limit.pattern.as_str());
    format!("{pattern} --scope {}{concurrency}{rate}", limit.scope)
}

fn show_rate(rate: JobRate) -> String {
    format!("{}/{}", rate.units, show_duration(Duration::from_millis(rate.per_ms)))
}

/// A limit as JSON.
pub(super) fn limit_json(limit: &JobLimit) -> Value {
    let JobLimit { name, pattern, scope, concurrency, rate } = limit;
    json!({
        "name": name, "pattern": pattern.as_str(), "scope": scope.to_string(),
        "concurrency": concurrency, "rate": rate.map(|rate| json!({
            "units": rate.units, "per_ms": rate.per_ms, "burst": rate.burst,
        })),
    })
}
