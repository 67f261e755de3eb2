//! Limits of jobs.

use longshore_protocol::{JobLimit, JobRate, LimitScope};

use super::scenario::{DONE, StoreScenario, from, id, job};
use crate::Command;

async fn set(scenario: &mut StoreScenario, concurrency: Option<u32>, rate: Option<JobRate>) {
    let (name, pattern) = ("limit".to_owned(), "/jobs/**".parse().expect("a pattern"));
    let limit = JobLimit { name, pattern, scope: LimitScope::Queue, concurrency, rate };
    let link = scenario.tool().link;
    scenario.submit(Command::SetLimit { link, request: 1, limit }).await;
}

pub(super) async fn a_limit_counts_running_jobs_over_restarts(scenario: &mut StoreScenario) {
    set(scenario, Some(2), None).await;
    scenario.create((1..=4).map(job)).await;
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let given = scenario.delivered(worker);
    assert_eq!(given.len(), 2);
    scenario.end(worker, &[(given[0].token, DONE)]).await;
    assert_eq!(scenario.delivered(worker).len(), 1, "one has ended");
    scenario.restart().await;
    let other = scenario.worker("other", from("/jobs/**"), 100).await;
    assert!(scenario.delivered(other).is_empty(), "the lost worker may still run two");
    // Neither comes back in time.
    scenario.advance(60_000).await;
    assert_eq!(scenario.delivered(other).len(), 2);
}

pub(super) async fn a_rate_starts_jobs_to_the_millisecond_over_restarts(
    scenario: &mut StoreScenario,
) {
    set(scenario, None, Some(JobRate { units: 1, per_ms: 1_000, burst: 2 })).await;
    scenario.create((1..=4).map(job)).await;
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let burst: Vec<_> = scenario.delivered(worker).iter().map(|job| (job.token, DONE)).collect();
    assert_eq!(burst.len(), 2);
    scenario.end(worker, &burst).await;
    scenario.advance(999).await;
    assert!(scenario.delivered(worker).is_empty());
    scenario.advance(1).await;
    let third = scenario.delivered_job(worker).token;
    scenario.end(worker, &[(third, DONE)]).await;
    scenario.restart().await;
    let other = scenario.worker("other", from("/jobs/**"), 100).await;
    scenario.advance(999).await;
    assert!(scenario.delivered(other).is_empty());
    scenario.advance(1).await;
    assert_eq!(scenario.delivered_job(other).id, id(4));
}
