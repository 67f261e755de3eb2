//! `longshore publisher forget`: stops reporting a publisher that will not return.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore::protocol::PublisherInfo;
use longshore::{KnownPublisher, PublisherId};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Context;
use super::known_publishers::query_all;
use super::remaining_jobs::RemainingJobs;
use crate::arguments::Forget;
use crate::confirmation;
use crate::failure::AlreadyReported;
use crate::output::printable;
use crate::time::show_duration;

/// How long a missing publisher has to report its jobs.
const JOBS_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn run(arguments: Forget, mut context: Context) -> anyhow::Result<()> {
    let Forget { publisher: name, act, confirmation } = arguments;
    let ask = confirmation.needs_question(act.dry_run, "forget a publisher")?;
    let client = context.read_client();
    let replicas = context.cluster().replicas;
    let mut answers = Vec::new();
    let mut failures = Vec::new();
    for (replica, known) in query_all(&client, replicas).await {
        match known {
            Ok(known) => answers.push((replica, known)),
            Err(error) => failures.push((replica, error.to_string())),
        }
    }
    if answers.is_empty() {
        report(&failures);
        return Err(AlreadyReported.into());
    }
    let publisher = find(&name, &answers)?;
    let id = publisher.info.id;
    let jobs = jobs_of(publisher, &context).await;
    if act.dry_run {
        show_plan(publisher, jobs.as_ref(), &answers, &failures, &mut context)?;
        report(&failures);
        return if failures.is_empty() { Ok(()) } else { Err(AlreadyReported.into()) };
    }
    if ask {
        let silent = show_duration(Duration::from_millis(publisher.silent_ms));
        let (name, prefix) = (printable(&publisher.info.name), id.prefix());
        let question = format!(
            "forget publisher {name} ({prefix}) at {}? It has been silent for {silent}. {}",
            context.system(),
            given_up(jobs.as_ref())
        );
        confirmation::ask(&question, &context.deadline).await?;
    }
    let mut forgotten = Vec::new();
    for (replica, known) in &answers {
        let answer = client.forget_publisher(replica, id).await.map_err(|why| why.to_string());
        match removal(answer, known.iter().any(|one| one.info.id == id)) {
            Ok(true) => forgotten.push(replica.clone()),
            Ok(false) => {}
            Err(why) => failures.push((replica.clone(), why)),
        }
    }
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "publisher": id.to_string(), "name": publisher.info.name, "jobs": jobs_json(jobs),
            "forgotten": forgotten, "failed": failed_json(&failures),
        }))?;
    } else if !forgotten.is_empty() {
        context.output.line(format!(
            "publisher {} ({}) is forgotten at {}",
            printable(&publisher.info.name),
            id.prefix(),
            forgotten.join(", ")
        ))?;
        report_note!("{}", given_up(jobs.as_ref()));
    }
    if failures.is_empty() {
        return Ok(());
    }
    report(&failures);
    report!("these replicas may still report it: run the command again");
    Err(AlreadyReported.into())
}

/// The jobs of a publisher that no replica hears from, if it still answers: it may lack only its
/// links to them.
async fn jobs_of(publisher: &KnownPublisher, context: &Context) -> Option<RemainingJobs> {
    let queues = context.queues_of([publisher.info.clone()]);
    let mut jobs = timeout(JOBS_TIMEOUT, RemainingJobs::read(&queues)).await.ok()?.ok()?;
    jobs.remove(&publisher.info.id)
}

/// What is lost with the publisher.
fn given_up(jobs: Option<&RemainingJobs>) -> String {
    match jobs {
        Some(jobs) => format!(
            "It still runs, with {}: they are given up unless it registers again.",
            jobs.all()
        ),
        None => {
            "Jobs and schedules that only its disk has are given up: none if publisher drain found \
                 it empty; otherwise how many is unknown, as it does not answer (longshore journal \
                 dump DIR reads its data directory)."
                .to_owned()
        }
    }
}

fn jobs_json(jobs: Option<RemainingJobs>) -> Value {
    jobs.map_or(Value::Null, |jobs| jobs.json())
}

/// Whether a replica has forgotten the publisher; false if it never knew it.
fn removal(answer: Result<bool, String>, was_known: bool) -> Result<bool, String> {
    match answer {
        Ok(false) if was_known => {
            Err("it removed nothing: the publisher has returned, or was forgotten before".into())
        }
        answer => answer,
    }
}

/// Prints what the command would do.
fn show_plan(
    publisher: &KnownPublisher,
    jobs: Option<&RemainingJobs>,
    answers: &[(String, Vec<KnownPublisher>)],
    failures: &[(String, String)],
    context: &mut Context,
) -> anyhow::Result<()> {
    let (id, name) = (publisher.info.id, &publisher.info.name);
    let knows = |known: &[KnownPublisher]| known.iter().any(|one| one.info.id == id);
    let replicas = answers.iter().filter(|(_, known)| knows(known));
    let replicas: Vec<&str> = replicas.map(|(replica, _)| replica.as_str()).collect();
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "publisher": id.to_string(), "name": name, "dry_run": true, "replicas": replicas,
            "jobs": jobs_json(jobs.copied()), "failed": failed_json(failures),
        }))?;
    } else {
        let (name, prefix) = (printable(name), id.prefix());
        let at = replicas.join(", ");
        context.output.line(format!("publisher {name} ({prefix}) would be forgotten at {at}"))?;
        context.output.line(given_up(jobs))?;
    }
    Ok(())
}

fn report(failures: &[(String, String)]) {
    for (replica, why) in failures {
        report_error!("replica {replica}: {why}");
    }
}

fn failed_json(failures: &[(String, String)]) -> Vec<Value> {
    failures.iter().map(|(at, why)| json!({ "replica": at, "error": why })).collect()
}

/// Whether `name` is the publisher's name, its id, or the id's first eight digits.
pub(super) fn is_named(info: &PublisherInfo, name: &str) -> bool {
    info.name == name || info.id.prefix() == name || info.id.to_string() == name
}

/// Finds the one missing publisher with this name.
fn find<'a>(
    name: &str,
    answers: &'a [(String, Vec<KnownPublisher>)],
) -> anyhow::Result<&'a KnownPublisher> {
    let mut missing: BTreeMap<PublisherId, &KnownPublisher> = BTreeMap::new();
    let mut registered: BTreeMap<PublisherId, &str> = BTreeMap::new();
    for (replica, known) in answers {
        for one in known.iter().filter(|one| is_named(&one.info, name)) {
            match one.departure {
                Some(_) => _ = missing.insert(one.info.id, one),
                None => _ = registered.insert(one.info.id, replica),
            }
        }
    }
    missing.retain(|id, _| !registered.contains_key(id));
    let mut found = missing.values();
    match (found.next(), found.next(), registered.values().next()) {
        (Some(one), None, _) => Ok(*one),
        (Some(_), Some(_), _) => {
            let ids: Vec<String> = missing.keys().map(PublisherId::prefix).collect();
            anyhow::bail!(
                "{} missing publishers are named {name}; name one by its id: {}",
                ids.len(),
                ids.join(", ")
            )
        }
        (None, _, Some(replica)) => anyhow::bail!(
            "publisher {name} is registered at {replica}; only a missing publisher can be \
             forgotten: stop it first"
        ),
        (None, ..) => anyhow::bail!(
            "no replica that answers knows a publisher {name}: \
             longshore resolver status --publishers lists them"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_knew_the_publisher_and_removed_nothing_has_failed() {
        assert_eq!(removal(Ok(true), true), Ok(true));
        assert_eq!(removal(Ok(false), false), Ok(false), "nothing to remove");
        assert!(removal(Ok(false), true).unwrap_err().contains("it removed nothing"));
        assert_eq!(removal(Err("no route".into()), false), Err("no route".into()));
    }
}
