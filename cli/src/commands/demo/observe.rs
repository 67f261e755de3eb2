//! Watches the results come in, from the publishers' durable counters; kills when it is time, and
//! sets the pace.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use longshore::protocol::messages::work::QueueStat;
use longshore::{Glob, PublisherId, Queues};
use tokio::sync::watch;

use super::BELOW;
use super::pace::Pace;
use super::system::System;
use crate::output::Progress;

/// How often the publishers are asked.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How long nothing may happen before the run is given up. Longer than leases, back-offs and
/// timeouts together.
const STALLED_AFTER: Duration = Duration::from_secs(120);

/// Sums over all publishers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) ended: u64,
    pub(crate) redelivered: u64,
    pub(crate) stale_refused: u64,
}

impl Seen {
    fn of(queues: &[QueueStat]) -> Seen {
        let mut seen = Seen::default();
        for queue in queues {
            seen.ended += queue.completed + queue.counts.dead;
            seen.redelivered += queue.redelivered;
            seen.stale_refused += queue.stale_refused;
        }
        seen
    }
}

/// Watches until every job has ended. What was seen last, and the names of those that were killed.
pub(crate) async fn until_ended(
    system: &mut System,
    queues: &Queues,
    mut pace: Pace,
    allow: watch::Sender<u64>,
    progress: &mut Progress,
) -> anyhow::Result<(Seen, Vec<String>)> {
    let pattern = Glob::new(&format!("{BELOW}/**"))?;
    // A publisher that is away has what it had: its word is kept until it is back.
    let mut latest: HashMap<PublisherId, Seen> = HashMap::new();
    let mut killed = Vec::new();
    let mut changed = (0, Instant::now());
    loop {
        if let Ok(stats) = queues.stats(pattern.clone()).await {
            for answered in &stats.answers {
                latest.insert(answered.publisher.id, Seen::of(&answered.answer));
            }
        }
        let seen = latest.values().fold(Seen::default(), |sum, one| Seen {
            ended: sum.ended + one.ended,
            redelivered: sum.redelivered + one.redelivered,
            stale_refused: sum.stale_refused + one.stale_refused,
        });
        progress.at(seen.ended);
        while let Some(victim) = pace.due(seen.ended) {
            let name = system.kill_and_restart(victim).await?;
            progress.say(&format!(
                "killed {name} at {} of {} results, and started it again",
                seen.ended,
                pace.total()
            ));
            killed.push(name);
        }
        allow.send_replace(pace.may_enqueue(seen.ended));
        if pace.is_done() && seen.ended >= pace.total() {
            return Ok((
                Seen { stale_refused: stale_refused(queues, &seen).await, ..seen },
                killed,
            ));
        }
        if seen.ended != changed.0 {
            changed = (seen.ended, Instant::now());
        }
        if changed.1.elapsed() > STALLED_AFTER {
            bail!("{} of {} jobs ended, and none for {STALLED_AFTER:?}", seen.ended, pace.total());
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// What the publishers count themselves: queues leave out late results whose queue is no longer
/// known.
async fn stale_refused(queues: &Queues, seen: &Seen) -> u64 {
    let Ok(statuses) = queues.status().await else { return seen.stale_refused };
    let counted =
        statuses.answers.iter().map(|answered| answered.answer.stale_refused).sum::<u64>();
    counted.max(seen.stale_refused)
}
