//! The order in which jobs are delivered.

use longshore_protocol::messages::work::{NewSettle, Order, Source, Sources};
use longshore_protocol::{JobId, JobOptions, NewJob};

use super::scenario::{Client, StoreScenario, from, id, job, job_of};

fn priority(n: u32, priority: i32) -> NewJob {
    NewJob { options: JobOptions { priority, ..JobOptions::default() }, ..job(n) }
}

fn sources(order: Order, patterns: &[(&str, u16)]) -> Sources {
    let source =
        |&(pattern, weight): &(&str, u16)| Source { pattern: pattern.parse().unwrap(), weight };
    Sources { order, patterns: patterns.iter().map(source).collect() }
}

fn ids(numbers: impl IntoIterator<Item = u32>) -> Vec<JobId> {
    numbers.into_iter().map(id).collect()
}

async fn ids_delivered(scenario: &mut StoreScenario, worker: Client) -> Vec<JobId> {
    scenario.delivered(worker).iter().map(|ids_delivered| ids_delivered.id).collect()
}

pub(super) async fn jobs_are_delivered_by_priority_then_age(scenario: &mut StoreScenario) {
    scenario.create([priority(1, 0), priority(2, 5), priority(3, -1), priority(4, 5)]).await;
    scenario.create([priority(5, 0), priority(6, i32::MAX), priority(7, i32::MIN)]).await;
    let worker = scenario.worker("w", from("/jobs/**"), 4).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([6, 2, 4, 1]));
    scenario.restart().await;
    let worker = scenario.worker("other", from("/jobs/**"), 100).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([5, 3, 7]));
}

pub(super) async fn strict_order_serves_the_first_source_with_jobs(scenario: &mut StoreScenario) {
    scenario
        .create([job_of("/jobs/low", 1), job_of("/jobs/low", 2), job_of("/jobs/high", 3)])
        .await;
    let sources = sources(Order::Strict, &[("/jobs/high", 1), ("/jobs/*", 1)]);
    let worker = scenario.worker("w", sources, 2).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([3, 1]));
    let high = NewJob {
        options: JobOptions { priority: -9, ..JobOptions::default() },
        ..job_of("/jobs/high", 4)
    };
    scenario.create([high]).await;
    scenario.credit(worker, 2).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([4, 2]), "regardless of priorities");
}

pub(super) async fn weighted_order_shares_by_weight_while_all_have_jobs(
    scenario: &mut StoreScenario,
) {
    scenario.create((0..100).map(|n| job_of("/jobs/a", n))).await;
    scenario.create((100..200).map(|n| job_of("/jobs/b", n))).await;
    let sources = sources(Order::Weighted, &[("/jobs/a", 3), ("/jobs/b", 1)]);
    let worker = scenario.worker("w", sources, 8).await;
    let first = ids_delivered(scenario, worker).await;
    let of_a = first.iter().filter(|&&job| job < id(100)).count();
    assert_eq!((first.len(), of_a), (8, 6));
    scenario.credit(worker, 120).await;
    let of_a =
        of_a + ids_delivered(scenario, worker).await.iter().filter(|&&job| job < id(100)).count();
    assert_eq!(of_a, 96, "three of four jobs");
    scenario.credit(worker, 100).await;
    assert_eq!(ids_delivered(scenario, worker).await.len(), 72, "an empty lane blocks no other");
}

pub(super) async fn a_source_of_weight_0_excludes_its_queues(scenario: &mut StoreScenario) {
    scenario.create([job_of("/jobs/capped", 1), job_of("/jobs/free", 2)]).await;
    let rest = sources(Order::Age, &[("/jobs/capped", 0), ("/jobs/**", 1)]);
    let worker = scenario.worker("rest", rest, 9).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([2]));
    let worker = scenario.worker("capped", from("/jobs/capped"), 9).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([1]));
}

pub(super) async fn sources_by_age_are_served_like_one_queue(scenario: &mut StoreScenario) {
    for n in 0..10 {
        let queue = if n % 3 == 0 { "/jobs/a" } else { "/other" };
        scenario.create([job_of(queue, n)]).await;
    }
    let sources = sources(Order::Age, &[("/jobs/**", 1), ("/other", 1)]);
    let worker = scenario.worker("w", sources, 100).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids(0..10));
}

pub(super) async fn released_job_keeps_its_age(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1), job(2), job(3)]).await;
    let delivered = scenario.delivered(worker);
    scenario.end(worker, &[(delivered[0].token, NewSettle::Release)]).await;
    scenario.credit(worker, 2).await;
    assert_eq!(ids_delivered(scenario, worker).await, ids([1, 3]));
}
