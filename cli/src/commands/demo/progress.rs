//! Follows the results by the publishers' durable counters, kills processes on schedule, and limits
//! the enqueueing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use longshore::protocol::messages::work::QueueStat;
use longshore::{Glob, PublisherId, Queues};
use tokio::sync::watch;

use super::PARENT;
use super::pace::Pace;
use super::system::DemoSystem;
use crate::output::Progress;

/// How often the publishers are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time without an ended job after which the run fails: longer than leases, back-offs and
/// timeouts together.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Sums over all publishers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) ended: u64,
    pub(crate) redelivered: u64,
    pub(crate) stale_refused: u64,
}

impl Counters {
    fn of(queues: &[QueueStat]) -> Counters {
        let mut counters = Counters::default();
        for queue in queues {
            counters.ended += queue.completed + queue.counts.dead;
            counters.redelivered += queue.redelivered;
            counters.stale_refused += queue.stale_refused;
        }
        counters
    }
}

/// Observes until every job has ended. Returns the last counters and the names of the killed
/// processes.
pub(crate) async fn until_ended(
    system: &mut DemoSystem,
    queues: &Queues,
    mut pace: Pace,
    allow: watch::Sender<u64>,
    progress: &mut Progress,
) -> anyhow::Result<(Counters, Vec<String>)> {
    let pattern = Glob::new(&format!("{PARENT}/**"))?;
    // While a publisher is down, its last counters are used.
    let mut latest: HashMap<PublisherId, Counters> = HashMap::new();
    let mut killed = Vec::new();
    let mut changed = (0, Instant::now());
    loop {
        if let Ok(stats) = queues.stats(pattern.clone()).await {
            for answered in &stats.answers {
                latest.insert(answered.publisher.id, Counters::of(&answered.answer));
            }
        }
        let counters = latest.values().fold(Counters::default(), |sum, one| Counters {
            ended: sum.ended + one.ended,
            redelivered: sum.redelivered + one.redelivered,
            stale_refused: sum.stale_refused + one.stale_refused,
        });
        progress.at(counters.ended);
        while let Some(victim) = pace.next_victim(counters.ended) {
            let name = system.kill_and_restart(victim).await?;
            progress.print(&format!(
                "killed {name} at {} of {} results, and started it again",
                counters.ended,
                pace.total()
            ));
            killed.push(name);
        }
        allow.send_replace(pace.may_enqueue(counters.ended));
        if pace.is_done() && counters.ended >= pace.total() {
            return Ok((
                Counters { stale_refused: stale_refused(queues, &counters).await, ..counters },
                killed,
            ));
        }
        if counters.ended != changed.0 {
            changed = (counters.ended, Instant::now());
        }
        if changed.1.elapsed() > STALL_TIMEOUT {
            bail!(
                "{} of {} jobs ended, and none for {STALL_TIMEOUT:?}",
                counters.ended,
                pace.total()
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Stale results by the publishers' own counters, which include those of queues that no longer
/// exist.
async fn stale_refused(queues: &Queues, counters: &Counters) -> u64 {
    let Ok(statuses) = queues.status().await else { return counters.stale_refused };
    let counted =
        statuses.answers.iter().map(|answered| answered.answer.stale_refused).sum::<u64>();
    counted.max(counters.stale_refused)
}
