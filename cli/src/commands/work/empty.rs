//! `--until-empty`: waits until no matching job is ready, running or waiting for a retry at any
//! publisher.

use std::time::{Duration, Instant};

use anyhow::bail;
use longshore::protocol::messages::work::QueueStat;
use longshore::{Glob, PublisherAnswers, Queues, QueuesError};

use crate::output::shell_word;

/// How often the publishers are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long all replicas of the resolver may be unreachable.
const RESOLVER_OUTAGE_MAX: Duration = Duration::from_secs(30);

/// The timeout of the initial read.
const INITIAL_TOTALS_TIMEOUT: Duration = Duration::from_secs(2);

/// Jobs left in the queues at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RemainingJobs {
    /// Jobs scheduled for later.
    pub(crate) scheduled: u64,
    /// Jobs that wait for confirmation.
    pub(crate) prepared: u64,
    /// Jobs that wait for others, or for room in a limit.
    pub(crate) blocked: u64,
    /// Jobs that became dead letters during the wait.
    pub(crate) died: u64,
}

/// The totals before any job is taken, if all publishers answer in time: work does not wait for
/// unreachable publishers.
pub(crate) async fn initial_totals(queues: &Queues, patterns: &[Glob]) -> Option<QueueTotals> {
    let read = tokio::time::timeout(INITIAL_TOTALS_TIMEOUT, stats(queues, patterns));
    let stats = read.await.ok()?.ok()?;
    stats.is_whole().then(|| QueueTotals::of(&stats.merged()))
}

/// Waits until the matching queues are empty, and passes the number of jobs completed in the
/// meantime to `completed`. Also waits for publishers that do not answer, which may have jobs.
/// Fails if one does not permit it.
pub(crate) async fn until(
    queues: &Queues,
    patterns: &[Glob],
    mut first: Option<QueueTotals>,
    mut completed: impl FnMut(u64),
    is_quiet: impl Fn() -> bool,
) -> anyhow::Result<RemainingJobs> {
    let mut waited_for: Vec<String> = Vec::new();
    let (mut reported_paused, mut reported_quiet) = (false, false);
    let mut answered = Instant::now();
    let mut last = None;
    loop {
        let stats = match stats(queues, patterns).await {
            Ok(stats) => stats,
            // Workers continue without the resolver; so does this loop, for a while.
            Err(_) if answered.elapsed() < RESOLVER_OUTAGE_MAX => {
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        answered = Instant::now();
        if let Some(forbids) = stats.missing.iter().find(|missing| missing.is_forbidden) {
            bail!(
                "--until-empty needs the right inspect: publisher {} does not list its queues: {}",
                forbids.publisher.name,
                forbids.why
            );
        }
        let merged = stats.merged();
        let sums = QueueTotals::of(&merged);
        if stats.is_whole() {
            let first = first.get_or_insert(sums);
            completed(sums.completed.saturating_sub(first.completed));
            if are_empty(last.replace(sums), sums) {
                let QueueTotals { scheduled, prepared, blocked, .. } = sums;
                let died = sums.died.saturating_sub(first.died);
                return Ok(RemainingJobs { scheduled, prepared, blocked, died });
            }
        }
        report_missing_once(&stats, &mut waited_for);
        // Other workers may run the jobs, so do not end.
        let quiet = is_quiet();
        if quiet && !reported_quiet && sums.active > 0 {
            report!(
                "this worker is quiet; it waits for the remaining jobs: longshore workers resume"
            );
        }
        reported_quiet = quiet;
        let paused =
            merged.iter().find(|queue| queue.counts.ready > 0 && !queue.paused_by.is_empty());
        if let Some(queue) = paused.filter(|_| !std::mem::replace(&mut reported_paused, true)) {
            let resume = queue
                .paused_by
                .iter()
                .map(|by| format!("longshore resume {}", shell_word(by.as_str())));
            let resume = resume.collect::<Vec<_>>().join(" and ");
            report!("{} is paused and has jobs; waiting for them: {resume}", queue.path);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether no job is active, by the last two whole reads. A read asks queues and publishers one
/// after another, so it may miss a job that became ready meanwhile, like the child of one that has
/// ended. But then these sums differ. (Those of delayed and prepared jobs may change all the time.)
fn are_empty(last: Option<QueueTotals>, now: QueueTotals) -> bool {
    let ended = |sums: QueueTotals| (sums.blocked, sums.died, sums.completed);
    now.active == 0 && last.is_some_and(|last| ended(last) == ended(now))
}

/// Stats of the queues that match any pattern, each queue of a publisher once.
async fn stats(
    queues: &Queues,
    patterns: &[Glob],
) -> Result<PublisherAnswers<Vec<QueueStat>>, QueuesError> {
    let mut all: Option<PublisherAnswers<Vec<QueueStat>>> = None;
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
        // Usually the same replicas: their answers are cached for a second.
        all.silent_replicas = more.silent_replicas;
    }
    // The command line requires at least one pattern.
    Ok(all.unwrap_or(PublisherAnswers {
        complete: true,
        answers: Vec::new(),
        missing: Vec::new(),
        silent_replicas: Vec::new(),
    }))
}

fn report_missing_once(stats: &PublisherAnswers<Vec<QueueStat>>, reported: &mut Vec<String>) {
    for missing in &stats.missing {
        let name = missing.publisher.name.clone();
        if !reported.contains(&name) {
            report!("publisher {name} does not answer ({}); waiting for it", missing.why);
            reported.push(name);
        }
    }
    if stats.is_whole() {
        reported.clear();
    }
}

/// Sums over the matching queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueTotals {
    active: u64,
    scheduled: u64,
    prepared: u64,
    blocked: u64,
    died: u64,
    completed: u64,
}

impl QueueTotals {
    fn of(queues: &[QueueStat]) -> QueueTotals {
        let mut sum = QueueTotals::default();
        for queue in queues {
            // Blocked jobs are not counted: they wait for another job, or for a rate, which may
            // take hours.
            sum.active += queue.counts.ready + queue.counts.running + queue.counts.retrying;
            sum.scheduled += queue.counts.scheduled;
            sum.prepared += queue.counts.prepared;
            sum.blocked += queue.counts.blocked;
            sum.died += queue.died;
            sum.completed += queue.completed;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_empty_once_two_reads_find_the_same_and_nothing_active() {
        let parent_runs = QueueTotals { active: 1, blocked: 1, ..QueueTotals::default() };
        // The first queue was read before the parent in the second one ended.
        let child_missed = QueueTotals { blocked: 1, completed: 1, ..QueueTotals::default() };
        let child_ready = QueueTotals { active: 1, completed: 1, ..QueueTotals::default() };
        let all_ended = QueueTotals { completed: 2, ..QueueTotals::default() };
        let reads = [parent_runs, child_missed, child_ready, child_ready, all_ended, all_ended];
        let mut last = None;
        let empty = reads.map(|now| are_empty(last.replace(now), now));
        assert_eq!(empty, [false, false, false, false, false, true]);
    }
}
