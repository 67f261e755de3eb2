//! When there is nothing left to do: nothing that matches is ready, running or awaiting a retry, at
//! any publisher.

use std::time::{Duration, Instant};

use longshore::protocol::messages::work::QueueStat;
use longshore::{Gathered, Glob, Queues, QueuesError};

use crate::output::shell_word;

/// How often the publishers are asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How long every replica of the resolver may be away. Each try takes its own time.
const RESOLVER_AWAY_MAX: Duration = Duration::from_secs(30);

/// How long the first look may take.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);

/// What is left in queues that are empty for now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Jobs that a user has scheduled for later.
    pub(crate) scheduled: u64,
    /// Jobs that wait to be confirmed.
    pub(crate) prepared: u64,
    /// Jobs that went to the dead letters meanwhile.
    pub(crate) died: u64,
}

/// The stats before anything is done, if all publishers tell them soon: work does not wait for
/// those that are away.
pub(crate) async fn first_look(queues: &Queues, patterns: &[Glob]) -> Option<Stats> {
    let looked = tokio::time::timeout(FIRST_LOOK_MAX, stats(queues, patterns)).await.ok()?.ok()?;
    looked.is_whole().then(|| Stats::of(&looked.merged()))
}

/// Waits until the queues that match are empty; tells how many jobs have been completed meanwhile.
/// A publisher that does not answer may hold jobs: it is waited for.
pub(crate) async fn until(
    queues: &Queues,
    patterns: &[Glob],
    mut first: Option<Stats>,
    mut completed: impl FnMut(u64),
    is_quiet: impl Fn() -> bool,
) -> anyhow::Result<Left> {
    let mut waited_for: Vec<String> = Vec::new();
    let (mut told_paused, mut told_quiet) = (false, false);
    let mut answered = Instant::now();
    loop {
        let stats = match stats(queues, patterns).await {
            Ok(stats) => stats,
            // Workers go on without the resolver; so does this, for a while.
            Err(_) if answered.elapsed() < RESOLVER_AWAY_MAX => {
                tokio::time::sleep(ASK_EVERY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        answered = Instant::now();
        let merged = stats.merged();
        let sums = Stats::of(&merged);
        if stats.is_whole() {
            let first = first.get_or_insert(sums);
            completed(sums.completed.saturating_sub(first.completed));
            if sums.active == 0 {
                let died = sums.died.saturating_sub(first.died);
                let (scheduled, prepared) = (sums.scheduled, sums.prepared);
                return Ok(Left { scheduled, prepared, died });
            }
        }
        tell_once(&stats, &mut waited_for);
        // Others may do them; this worker was not asked to end.
        let quiet = is_quiet();
        if quiet && !told_quiet && sums.active > 0 {
            eprintln!("this worker is quiet; jobs are waited for: longshore workers resume");
        }
        told_quiet = quiet;
        let paused =
            merged.iter().find(|queue| queue.counts.ready > 0 && !queue.paused_by.is_empty());
        if let Some(queue) = paused.filter(|_| !std::mem::replace(&mut told_paused, true)) {
            let resume = queue
                .paused_by
                .iter()
                .map(|by| format!("longshore resume {}", shell_word(by.as_str())));
            let resume = resume.collect::<Vec<_>>().join(" and ");
            eprintln!("{} is paused and has jobs; they are waited for: {resume}", queue.path);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Stats of the queues that match any of the patterns, each queue of a publisher once.
async fn stats(
    queues: &Queues,
    patterns: &[Glob],
) -> Result<Gathered<Vec<QueueStat>>, QueuesError> {
    let mut all: Option<Gathered<Vec<QueueStat>>> = None;
    for pattern in patterns {
        let more = queues.stats(pattern.clone()).await?;
        let Some(all) = &mut all else {
            all = Some(more);
            continue;
        };
        all.complete &= more.complete;
        for answered in more.answers {
            let known = all.answers.iter_mut().find(|a| a.publisher.id == answered.publisher.id);
            match known {
                Some(known) => {
                    let is_new =
                        |stat: &QueueStat| known.answer.iter().all(|s| s.path != stat.path);
                    let new: Vec<_> = answered.answer.into_iter().filter(is_new).collect();
                    known.answer.extend(new);
                }
                None => all.answers.push(answered),
            }
        }
        all.missing.extend(more.missing);
        // The same answers, as a rule: they serve a second.
        all.unanswered = more.unanswered;
    }
    // The command line asks for at least one pattern.
    Ok(all.unwrap_or(Gathered {
        complete: true,
        answers: Vec::new(),
        missing: Vec::new(),
        unanswered: Vec::new(),
    }))
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
pub(crate) struct Stats {
    active: u64,
    scheduled: u64,
    prepared: u64,
    died: u64,
    completed: u64,
}

impl Stats {
    fn of(queues: &[QueueStat]) -> Stats {
        let mut sum = Stats::default();
        for queue in queues {
            sum.active += queue.counts.ready + queue.counts.running + queue.counts.retrying;
            sum.scheduled += queue.counts.scheduled;
            sum.prepared += queue.counts.prepared;
            sum.died += queue.died;
            sum.completed += queue.completed;
        }
        sum
    }
}
