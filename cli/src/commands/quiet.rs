//! `longshore workers quiet` and `longshore workers resume`: workers that begin no job for a while,
//! as before a deploy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore::protocol::SessionId;
use longshore::{Gathered, QuietEnd, QuietedWorker, WorkerPattern};
use serde_json::{Value, json};

use super::workers::NO_METRICS;
use super::{Context, missing_json, warn_of_missing, workers};
use crate::arguments::WhichWorkers;
use crate::failure::{Interrupted, Reported};
use crate::output::{Progress, printable};
use crate::signals::Stop;

/// How often workers that are waited for are read.
const READ_EVERY: Duration = Duration::from_millis(500);

/// Asks the workers, and prints what each publisher reports of them; then waits until they hold no
/// job, if asked to.
pub(crate) async fn run(
    arguments: WhichWorkers,
    quiet: bool,
    wait: bool,
    mut context: Context,
) -> anyhow::Result<()> {
    let WhichWorkers { workers, all, dry_run } = arguments;
    let stop = wait.then(Stop::listen).transpose()?;
    let patterns = if all { vec![WorkerPattern::everyone()] } else { workers };
    let gathered = context.queues().quiet_workers(patterns.clone(), quiet, dry_run).await?;
    let asked = Asked::of(&gathered);
    let unmatched: Vec<&WorkerPattern> = patterns
        .iter()
        .filter(|pattern| !asked.iter().any(|worker| pattern.matches(&worker.name, worker.session)))
        .collect();
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "action": if quiet { "quiet" } else { "resume" }, "dry_run": dry_run,
            "workers": asked.iter().map(Asked::json).collect::<Vec<_>>(),
            "unmatched": unmatched.iter().map(|pattern| pattern.as_str()).collect::<Vec<_>>(),
            "complete": gathered.complete, "missing": missing_json(&gathered.missing),
        }))?;
    } else {
        for worker in &asked {
            worker.say(quiet, dry_run, &mut context)?;
        }
        for pattern in &unmatched {
            match all {
                true => eprintln!("error: no worker is linked to a publisher that answered"),
                false => eprintln!(
                    "error: no worker has the name or session '{pattern}'; see: longshore workers ls"
                ),
            }
        }
    }
    let missing = match context.output.is_json() {
        true => !gathered.missing.is_empty(),
        false => warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered),
    };
    // A worker that is linked only to a publisher that was not asked goes on.
    let whole =
        asked.iter().all(|worker| worker.doubts.is_empty()) && (gathered.complete || dry_run);
    if missing || !unmatched.is_empty() || !whole {
        return Err(Reported.into());
    }
    let Some(stop) = stop else { return Ok(()) };
    let sessions = asked.iter().map(Asked::session).collect();
    tokio::select! {
        end = until_they_hold_nothing(&sessions, &context) => end,
        () = stop.asked() => Err(Interrupted(stop.code().unwrap_or(1)).into()),
    }
}

/// A worker that has had no link for so long holds nothing: leases outlive a publisher's restart by
/// no more.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// A publisher whose metrics are not to be found for so long publishes none. One that starts or
/// stops lacks them for a moment.
const LACKING_FOR: Duration = Duration::from_secs(10);

/// Waits until workers have ended what they run. A publisher that does not list its workers is
/// waited for, too, and so is a worker whose link is away: it may be back with what it holds.
async fn until_they_hold_nothing(
    sessions: &BTreeSet<String>,
    context: &Context,
) -> anyhow::Result<()> {
    let mut progress = Progress::new("waiting for", "jobs", None, &context.output);
    let mut unlinked_since: BTreeMap<String, Instant> = BTreeMap::new();
    let mut lacking_since: Option<Instant> = None;
    loop {
        let listed = workers::listed(context).await.ok();
        let lacking = listed.as_ref().and_then(|listed| listed.without_metrics.first());
        let since = lacking.map(|_| *lacking_since.get_or_insert_with(Instant::now));
        if let (Some(name), Some(since)) = (lacking, since)
            && since.elapsed() >= LACKING_FOR
        {
            anyhow::bail!(
                "publisher {name} {NO_METRICS}: what workers hold there is not known; they are \
                 quiet, and end what they run"
            );
        }
        if lacking.is_none() {
            lacking_since = None;
        }
        let mut unlinked = BTreeSet::new();
        let held = listed.and_then(|listed| listed.held_by(sessions, &mut unlinked));
        let now = Instant::now();
        unlinked_since.retain(|session, _| unlinked.contains(session));
        for session in unlinked {
            unlinked_since.entry(session).or_insert(now);
        }
        let all_gone = unlinked_since.values().all(|since| since.elapsed() >= GONE_AFTER);
        match held {
            Some(0) if all_gone => break,
            Some(held) => progress.at(held),
            None => {}
        }
        tokio::time::sleep(READ_EVERY).await;
    }
    progress.finish();
    Ok(())
}

/// A worker, and what publishers say of it.
struct Asked {
    name: String,
    session: SessionId,
    /// Publishers to which it has said so itself; with a dry run, those that it is linked to.
    confirmed: Vec<String>,
    /// Publishers to which it has not, and what it did instead.
    doubts: Vec<(String, QuietEnd)>,
}

impl Asked {
    /// Publisher by publisher becomes worker by worker, by their names.
    fn of(gathered: &Gathered<Vec<QuietedWorker>>) -> Vec<Asked> {
        let mut asked: BTreeMap<(String, SessionId), Asked> = BTreeMap::new();
        for answered in &gathered.answers {
            let publisher = &answered.publisher.name;
            for QuietedWorker { name, session, end } in &answered.answer {
                let worker = asked.entry((name.clone(), *session)).or_insert_with(|| Asked {
                    name: name.clone(),
                    session: *session,
                    confirmed: Vec::new(),
                    doubts: Vec::new(),
                });
                match end {
                    QuietEnd::Matched | QuietEnd::Confirmed => {
                        worker.confirmed.push(publisher.clone());
                    }
                    end => worker.doubts.push((publisher.clone(), *end)),
                }
            }
        }
        asked.into_values().collect()
    }

    /// The beginning of its session, as `workers ls` shows it.
    fn session(&self) -> String {
        self.session.to_string().chars().take(8).collect()
    }

    fn json(&self) -> Value {
        let at = |wanted: QuietEnd| -> Vec<&str> {
            let doubts = self.doubts.iter().filter(|(_, end)| *end == wanted);
            doubts.map(|(publisher, _)| publisher.as_str()).collect()
        };
        json!({
            "name": self.name, "session": self.session(), "confirmed": self.confirmed,
            "not_answered": at(QuietEnd::NotAnswered), "otherwise": at(QuietEnd::Otherwise),
        })
    }

    fn say(&self, quiet: bool, dry_run: bool, context: &mut Context) -> anyhow::Result<()> {
        let (name, session) = (printable(&self.name), self.session());
        if !self.confirmed.is_empty() {
            let word = if quiet { "quiet" } else { "resumed" };
            let word = if dry_run { format!("would be {word}") } else { word.to_owned() };
            let at = self.confirmed.join(", ");
            let at = printable(&at);
            context.output.line(format!("{word}: {name} {session} at {at}"))?;
        }
        for (publisher, end) in &self.doubts {
            let publisher = printable(publisher);
            match end {
                QuietEnd::Otherwise => eprintln!(
                    "error: worker {name} {session} was asked for the opposite meanwhile, at {publisher}"
                ),
                _ => eprintln!(
                    "error: worker {name} {session} has not answered at {publisher}; its version may not know how to"
                ),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longshore::Answered;
    use longshore::protocol::{Epoch, PublisherId, PublisherInfo};

    use super::*;

    #[test]
    fn a_worker_is_one_whoever_speaks_of_it_and_doubts_are_kept_apart() {
        let publisher = |n: u8| PublisherInfo {
            id: PublisherId([n; 16]),
            epoch: Epoch(1),
            name: format!("p{n}"),
            addresses: Vec::new(),
            later: Default::default(),
        };
        let worker = |session: u8, end| QuietedWorker {
            name: "w".to_owned(),
            session: SessionId([session; 16]),
            end,
        };
        let answers = vec![
            Answered {
                publisher: publisher(1),
                answer: vec![worker(1, QuietEnd::Confirmed), worker(2, QuietEnd::NotAnswered)],
            },
            Answered { publisher: publisher(2), answer: vec![worker(1, QuietEnd::Confirmed)] },
        ];
        let gathered =
            Gathered { complete: true, answers, missing: Vec::new(), unanswered: Vec::new() };
        let asked: Vec<Value> = Asked::of(&gathered).iter().map(Asked::json).collect();
        let nobody: [&str; 0] = [];
        assert_eq!(
            asked,
            [
                json!({ "name": "w", "session": "01010101", "confirmed": ["p1", "p2"],
                        "not_answered": nobody, "otherwise": nobody }),
                json!({ "name": "w", "session": "02020202", "confirmed": nobody,
                        "not_answered": ["p1"], "otherwise": nobody }),
            ]
        );
    }
}
