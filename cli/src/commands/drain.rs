//! `longshore publisher drain`: a publisher takes no new jobs, so that it can be removed once it
//! holds none.

use std::time::Duration;

use longshore::protocol::{PublisherId, PublisherInfo};
use longshore::{Glob, JobCounts, Queues, QueuesOptions};
use serde_json::json;

use super::forget::is_named;
use super::{Context, missing_json, warn_of_missing};
use crate::arguments::Drain;
use crate::failure::Reported;
use crate::output::{counted, jobs};

/// How often `--wait` looks at what is left.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(asked: Drain, mut context: Context) -> anyhow::Result<()> {
    let (_, publishers) = context.queues().publishers(&Glob::everything()).await?;
    let PublisherInfo { id, name, .. } = find(&asked.name, &publishers)?.clone();
    if !asked.undo && publishers.len() == 1 {
        eprintln!(
            "note: no other publisher is registered: producers wait, and give up, until one is"
        );
    }
    let gathered = alone(publishers, id).drain(!asked.undo).await?;
    if gathered.answers.is_empty() {
        if context.output.is_json() {
            context.output.json(&json!({ "missing": missing_json(&gathered.missing) }))?;
        }
        warn_of_missing(&gathered.missing, gathered.complete, &gathered.unanswered);
        return Err(Reported.into());
    }
    if asked.undo {
        match context.output.is_json() {
            true => context
                .output
                .json(&json!({ "publisher": id.to_string(), "name": name, "draining": false }))?,
            false => context.output.line(format!("publisher {name} takes new jobs"))?,
        }
        return Ok(());
    }
    let (mut is_first, mut was_silent) = (true, false);
    loop {
        match look(&context, id).await {
            Some(left) if !left.draining => {
                anyhow::bail!("publisher {name} takes new jobs again: somebody has ended its drain")
            }
            Some(left) => {
                let is_last = !asked.wait || left.open() == 0;
                if is_first || is_last {
                    left.show(&name, id, &mut context)?;
                }
                if is_last {
                    return Ok(());
                }
                (is_first, was_silent) = (false, false);
            }
            None if !asked.wait => {
                anyhow::bail!("publisher {name} is being drained, and does not say what is left")
            }
            None => {
                if !std::mem::replace(&mut was_silent, true) {
                    eprintln!("publisher {name} does not answer; waiting for it");
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn alone(publishers: Vec<PublisherInfo>, id: PublisherId) -> Queues {
    let one = publishers.into_iter().filter(|one| one.id == id).collect();
    Queues::to_publishers(one, QueuesOptions::default())
}

/// What a publisher still has.
struct Left {
    draining: bool,
    counts: JobCounts,
}

/// None while it does not answer: it may be away for a restart, and return at another address.
async fn look(context: &Context, id: PublisherId) -> Option<Left> {
    let (_, publishers) = context.queues().publishers(&Glob::everything()).await.ok()?;
    let queues = alone(publishers, id);
    let status = queues.status().await.ok()?.answers.pop()?.answer;
    let mut counts = JobCounts::default();
    for queue in queues.stats(Glob::everything()).await.ok()?.answers.pop()?.answer {
        counts += queue.counts;
    }
    Some(Left { draining: status.draining, counts })
}

/// The one registered publisher that `name` means.
fn find<'a>(name: &str, publishers: &'a [PublisherInfo]) -> anyhow::Result<&'a PublisherInfo> {
    let found: Vec<_> = publishers.iter().filter(|one| is_named(one, name)).collect();
    match found[..] {
        [one] => Ok(one),
        [_, ..] => {
            let ids: Vec<String> = found.iter().map(|one| one.id.prefix()).collect();
            anyhow::bail!(
                "{} publishers are named {name}; name one by its id: {}",
                ids.len(),
                ids.join(", ")
            )
        }
        [] => anyhow::bail!(
            "no publisher {name} is registered: longshore resolver status --publishers lists them"
        ),
    }
}

impl Left {
    /// Jobs that have not ended.
    fn open(&self) -> u64 {
        self.counts.total() - self.counts.dead - self.kept()
    }

    /// Jobs that have ended, and are no dead letters.
    fn kept(&self) -> u64 {
        self.counts.completed + self.counts.cancelled + self.counts.expired
    }

    fn show(&self, name: &str, id: PublisherId, context: &mut Context) -> anyhow::Result<()> {
        let (open, kept) = (self.open(), self.kept());
        let JobCounts { dead, prepared, .. } = self.counts;
        if context.output.is_json() {
            context.output.json(&json!({
                "publisher": id.to_string(), "name": name, "draining": true,
                "open": open, "prepared": prepared, "dead": dead, "kept": kept,
            }))?;
            return Ok(());
        }
        if open == 0 {
            context.output.line(format!(
                "publisher {name} is empty: stop it, then: longshore publisher forget {name}"
            ))?;
            if dead + kept > 0 {
                let (dead, kept) = (counted(dead, "dead letter"), counted(kept, "ended job"));
                eprintln!("note: its data directory still keeps {dead} and {kept}");
            }
            return Ok(());
        }
        let (jobs, have) = (jobs(open), if open == 1 { "has" } else { "have" });
        context
            .output
            .line(format!("publisher {name} takes no new jobs; {jobs} {have} not ended yet"))?;
        if prepared > 0 {
            let wait = if prepared == 1 { "waits" } else { "wait" };
            eprintln!(
                "note: {prepared} of them {wait} to be confirmed: \
                 longshore jobs '/**' --state prepared"
            );
        }
        Ok(())
    }
}
