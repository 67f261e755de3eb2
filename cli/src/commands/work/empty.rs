//! When there is nothing left to do: nothing that matches is ready, running or awaiting a retry, at any publisher.

use std::time::{Duration, Instant};

use longshore::protocol::messages::work::QueueStat;
use longshore::{Gathered, Glob, Queues};

/// How often the publishers are asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How long every replica of the resolver may be away. Each try takes its own time.
const RESOLVER_AWAY_MAX: Duration = Duration::from_secs(30);

/// What is left in queues that are empty for now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Jobs that a user has scheduled for later.
    pub(crate) scheduled: u64,
    /// Jobs that went to the dead letters meanwhile.
    pub(crate) died: u64,
}

/// Waits until the queues that match are empty; tells how many jobs have been completed meanwhile. A publisher that does
/// not answer may hold jobs: it is waited for.
pub(crate) async fn until(
    queues: &Queues,
    pattern: &Glob,
    mut completed: impl FnMut(u64),
) -> anyhow::Result<Left> {
    let mut first: Option<Figures> = None;
    let mut waited_for: Vec<String> = Vec::new();
    let mut answered = Instant::now();
    loop {
        let stats = match queues.stats(pattern.clone()).await {
            Ok(stats) => stats,
            // Workers go on without the resolver; so does this, for a while.
            Err(_) if answered.elapsed() < RESOLVER_AWAY_MAX => {
                tokio::time::sleep(ASK_EVERY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        answered = Instant::now();
        let figures = Figures::of(&stats.merged());
        if stats.is_whole() {
            let first = first.get_or_insert(figures);
            completed(figures.completed.saturating_sub(first.completed));
            if figures.active == 0 {
                let died = figures.dead.saturating_sub(first.dead);
                return Ok(Left { scheduled: figures.scheduled, died });
            }
        }
        tell_once(&stats, &mut waited_for);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

fn tell_once(stats: &Gathered<Vec<QueueStat>>, told: &mut Vec<String>) {
    for missing in &stats.missing {
        let name = missing.publisher.name.clone();
        if !told.contains(&name) {
            eprintln!("publisher {name} does not answer ({}); it is waited for", missing.why);
            told.push(name);
        }
    }
    if stats.is_whole() {
        told.clear();
    }
}

/// Sums over the queues that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    active: u64,
    scheduled: u64,
    dead: u64,
    completed: u64,
}

impl Figures {
    fn of(queues: &[QueueStat]) -> Figures {
        let mut sum = Figures::default();
        for queue in queues {
            sum.active += queue.counts.ready + queue.counts.running + queue.counts.retrying;
            sum.scheduled += queue.counts.scheduled;
            sum.dead += queue.counts.dead;
            sum.completed += queue.completed;
        }
        sum
    }
}
