//! `longshore workers quiet` and `longshore workers resume`: stops workers from taking jobs, for
//! example before a deploy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore::protocol::SessionId;
use longshore::{PublisherAnswers, QuietEnd, QuietedWorker, WorkerPattern};
use serde_json::{Value, json};

use super::workers::NO_METRICS;
use super::{Context, missing_json, warn_of_missing, workers};
use crate::arguments::{DryRun, WorkerSelection};
use crate::failure::{AlreadyReported, Interrupted};
use crate::output::{Progress, printable};
use crate::signals::StopSignal;

/// How often `--wait` reads the workers.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Sends the request, and prints each worker's outcome; with `wait`, then waits until the workers
/// hold no jobs.
pub(crate) async fn run(
    arguments: WorkerSelection,
    quiet: bool,
    wait: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let WorkerSelection { workers, all, act: DryRun { dry_run } } = arguments;
    let stop = wait.then(StopSignal::listen).transpose()?;
    let patterns = if all { vec![WorkerPattern::every_worker()] } else { workers };
    let gathered = context.queues().quiet_workers(patterns.clone(), quiet, dry_run).await?;
    let outcomes = WorkerOutcome::of(&gathered);
    let unmatched: Vec<&WorkerPattern> = patterns
        .iter()
        .filter(|pattern| {
            !outcomes.iter().any(|worker| pattern.matches(&worker.name, worker.session))
        })
        .collect();
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "action": if quiet { "quiet" } else { "resume" }, "dry_run": dry_run,
            "workers": outcomes.iter().map(WorkerOutcome::json).collect::<Vec<_>>(),
            "unmatched": unmatched.iter().map(|pattern| pattern.as_str()).collect::<Vec<_>>(),
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        for worker in &outcomes {
            worker.print(quiet, dry_run, &mut context)?;
        }
        for pattern in &unmatched {
            match all {
                true => report_error!("no worker is linked to a publisher that answered"),
                false => report_error!(
                    "no worker has the name or session '{pattern}'; \
                     see: longshore workers ls"
                ),
            }
        }
    }
    let missing = match context.output.is_json() {
        true => !gathered.missing.is_empty(),
        false => warn_of_missing(&gathered.missing, gathered.complete, &gathered.silent_replicas),
    };
    // A worker linked only to an unknown publisher did not get the request.
    let is_complete = outcomes.iter().all(|worker| worker.unconfirmed.is_empty())
        && (gathered.complete || dry_run);
    if missing || !unmatched.is_empty() || !is_complete {
        return Err(AlreadyReported.into());
    }
    let Some(stop) = stop else { return Ok(()) };
    let sessions = outcomes.iter().map(WorkerOutcome::session).collect();
    tokio::select! {
        end = until_they_hold_nothing(&sessions, &context) => end,
        () = stop.requested() => Err(Interrupted(stop.code().unwrap_or(1)).into()),
    }
}

/// A worker without a link for this long holds no jobs: leases do not outlive a publisher's restart
/// by more.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// A publisher whose metrics are missing for this long publishes none. A starting or stopping
/// publisher lacks them briefly.
const METRICS_MISSING_MAX: Duration = Duration::from_secs(10);

/// Waits until the workers have finished their jobs. Also waits for publishers that do not list
/// their workers, and for workers without a link, which may reconnect with jobs.
async fn until_they_hold_nothing(
    sessions: &BTreeSet<String>,
    context: &Context,
) -> anyhow::Result<()> {
    let mut progress = Progress::new("waiting for", "jobs", None, &context.output);
    let mut unlinked_since: BTreeMap<String, Instant> = BTreeMap::new();
    let mut missing_since: Option<Instant> = None;
    loop {
        let listed = workers::read_all(context).await.ok();
        let without_metrics = listed.as_ref().and_then(|listed| listed.without_metrics.first());
        let since = without_metrics.map(|_| *missing_since.get_or_insert_with(Instant::now));
        if let (Some(name), Some(since)) = (without_metrics, since)
            && since.elapsed() >= METRICS_MISSING_MAX
        {
            anyhow::bail!(
                "publisher {name} {NO_METRICS}: the jobs that workers hold there are unknown; \
                 the workers are quiet and finish their running jobs"
            );
        }
        if without_metrics.is_none() {
            missing_since = None;
        }
        let mut unlinked = BTreeSet::new();
        let jobs = listed.and_then(|listed| listed.leases_of(sessions, &mut unlinked));
        let now = Instant::now();
        unlinked_since.retain(|session, _| unlinked.contains(session));
        for session in unlinked {
            unlinked_since.entry(session).or_insert(now);
        }
        let all_gone = unlinked_since.values().all(|since| since.elapsed() >= GONE_AFTER);
        match jobs {
            Some(0) if all_gone => break,
            Some(jobs) => progress.at(jobs),
            None => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    progress.finish();
    Ok(())
}

/// A worker's outcome, merged over publishers.
struct WorkerOutcome {
    name: String,
    session: SessionId,
    /// Publishers where the worker confirmed; in a dry run, those that it is linked to.
    confirmed: Vec<String>,
    /// Publishers where it did not confirm, with its reaction.
    unconfirmed: Vec<(String, QuietEnd)>,
}

impl WorkerOutcome {
    /// Regroups the publishers' answers by worker, ordered by name.
    fn of(gathered: &PublisherAnswers<Vec<QuietedWorker>>) -> Vec<WorkerOutcome> {
        let mut outcomes: BTreeMap<(String, SessionId), WorkerOutcome> = BTreeMap::new();
        for answered in &gathered.answers {
            let publisher = &answered.publisher.name;
            for QuietedWorker { name, session, end } in &answered.answer {
                let worker =
                    outcomes.entry((name.clone(), *session)).or_insert_with(|| WorkerOutcome {
                        name: name.clone(),
                        session: *session,
                        confirmed: Vec::new(),
                        unconfirmed: Vec::new(),
                    });
                match end {
                    QuietEnd::Matched | QuietEnd::Confirmed => {
                        worker.confirmed.push(publisher.clone());
                    }
                    end => worker.unconfirmed.push((publisher.clone(), *end)),
                }
            }
        }
        outcomes.into_values().collect()
    }

    /// The first digits of its session, as `workers ls` shows it.
    fn session(&self) -> String {
        self.session.to_string().chars().take(8).collect()
    }

    fn json(&self) -> Value {
        let at = |wanted: QuietEnd| -> Vec<&str> {
            let unconfirmed = self.unconfirmed.iter().filter(|(_, end)| *end == wanted);
            unconfirmed.map(|(publisher, _)| publisher.as_str()).collect()
        };
        json!({
            "name": self.name, "session": self.session(), "confirmed": self.confirmed,
            "not_answered": at(QuietEnd::NotAnswered), "otherwise": at(QuietEnd::Otherwise),
        })
    }

    fn print(&self, quiet: bool, dry_run: bool, context: &mut Context) -> anyhow::Result<()> {
        let (name, session) = (printable(&self.name), self.session());
        if !self.confirmed.is_empty() {
            let word = if quiet { "quiet" } else { "resumed" };
            let word = if dry_run { format!("would be {word}") } else { word.to_owned() };
            let at = self.confirmed.join(", ");
            let at = printable(&at);
            context.output.line(format!("{word}: {name} {session} at {at}"))?;
        }
        for (publisher, end) in &self.unconfirmed {
            let publisher = printable(publisher);
            match end {
                QuietEnd::Otherwise => report_error!(
                    "worker {name} {session} got the opposite request meanwhile, \
                     at {publisher}"
                ),
                _ => report_error!(
                    "worker {name} {session} has not answered at {publisher}; its \
                     version may not support it"
                ),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longshore::PublisherAnswer;
    use longshore::protocol::{Epoch, PublisherId, PublisherInfo};

    use super::*;

    #[test]
    fn reports_are_merged_per_worker_with_unconfirmed_apart() {
        let publisher = |n: u8| PublisherInfo {
            id: PublisherId([n; 16]),
            epoch: Epoch(1),
            name: format!("p{n}"),
            addresses: Vec::new(),
            tls_name: None,
            later: Default::default(),
        };
        let worker = |session: u8, end| QuietedWorker {
            name: "w".to_owned(),
            session: SessionId([session; 16]),
            end,
        };
        let answers = vec![
            PublisherAnswer {
                publisher: publisher(1),
                answer: vec![worker(1, QuietEnd::Confirmed), worker(2, QuietEnd::NotAnswered)],
            },
            PublisherAnswer {
                publisher: publisher(2),
                answer: vec![worker(1, QuietEnd::Confirmed)],
            },
        ];
        let gathered = PublisherAnswers {
            complete: true,
            answers,
            missing: Vec::new(),
            silent_replicas: Vec::new(),
        };
        let outcomes: Vec<Value> =
            WorkerOutcome::of(&gathered).iter().map(WorkerOutcome::json).collect();
        let none: [&str; 0] = [];
        assert_eq!(
            outcomes,
            [
                json!({ "name": "w", "session": "01010101", "confirmed": ["p1", "p2"],
                        "not_answered": none, "otherwise": none }),
                json!({ "name": "w", "session": "02020202", "confirmed": none,
                        "not_answered": ["p1"], "otherwise": none }),
            ]
        );
    }
}
