//! In which order jobs go out.

use longshore_protocol::messages::work::{NewSettle, Order, Source, Sources};
use longshore_protocol::{JobId, JobOptions, NewJob};

use super::scenario::{Client, Scenario, from, id, job, job_of};

fn priority(n: u32, priority: i32) -> NewJob {
    NewJob { options: JobOptions { priority, ..JobOptions::default() }, ..job(n) }
}

fn several(order: Order, patterns: &[(&str, u16)]) -> Sources {
    let source =
        |&(pattern, weight): &(&str, u16)| Source { pattern: pattern.parse().unwrap(), weight };
    Sources { order, patterns: patterns.iter().map(source).collect() }
}

fn ids(numbers: impl IntoIterator<Item = u32>) -> Vec<JobId> {
    numbers.into_iter().map(id).collect()
}

async fn taken(scenario: &mut Scenario, worker: Client) -> Vec<JobId> {
    scenario.take(worker).iter().map(|taken| taken.id).collect()
}

pub(super) async fn higher_priorities_come_first_and_older_jobs_before_younger_ones(
    scenario: &mut Scenario,
) {
    scenario.create([priority(1, 0), priority(2, 5), priority(3, -1), priority(4, 5)]).await;
    scenario.create([priority(5, 0), priority(6, i32::MAX), priority(7, i32::MIN)]).await;
    let worker = scenario.worker("w", from("/jobs/**"), 4).await;
    assert_eq!(taken(scenario, worker).await, ids([6, 2, 4, 1]));
    scenario.restart().await;
    let worker = scenario.worker("other", from("/jobs/**"), 100).await;
    assert_eq!(taken(scenario, worker).await, ids([5, 3, 7]));
}

pub(super) async fn a_strict_order_takes_from_the_first_source_that_has_jobs(
    scenario: &mut Scenario,
) {
    scenario
        .create([job_of("/jobs/low", 1), job_of("/jobs/low", 2), job_of("/jobs/high", 3)])
        .await;
    let sources = several(Order::Strict, &[("/jobs/high", 1), ("/jobs/*", 1)]);
    let worker = scenario.worker("w", sources, 2).await;
    assert_eq!(taken(scenario, worker).await, ids([3, 1]));
    let high = NewJob {
        options: JobOptions { priority: -9, ..JobOptions::default() },
        ..job_of("/jobs/high", 4)
    };
    scenario.create([high]).await;
    scenario.credit(worker, 2).await;
    assert_eq!(taken(scenario, worker).await, ids([4, 2]), "whatever the priorities say");
}

pub(super) async fn a_weighted_order_shares_by_weight_while_all_have_jobs(scenario: &mut Scenario) {
    scenario.create((0..100).map(|n| job_of("/jobs/a", n))).await;
    scenario.create((100..200).map(|n| job_of("/jobs/b", n))).await;
    let sources = several(Order::Weighted, &[("/jobs/a", 3), ("/jobs/b", 1)]);
    let worker = scenario.worker("w", sources, 8).await;
    let first = taken(scenario, worker).await;
    let of_a = first.iter().filter(|&&job| job < id(100)).count();
    assert_eq!((first.len(), of_a), (8, 6));
    scenario.credit(worker, 120).await;
    let of_a = of_a + taken(scenario, worker).await.iter().filter(|&&job| job < id(100)).count();
    assert_eq!(of_a, 96, "three of four");
    scenario.credit(worker, 100).await;
    assert_eq!(taken(scenario, worker).await.len(), 72, "one that is empty holds up no other");
}

pub(super) async fn without_an_order_several_sources_are_as_one_queue(scenario: &mut Scenario) {
    for n in 0..10 {
        let queue = if n % 3 == 0 { "/jobs/a" } else { "/other" };
        scenario.create([job_of(queue, n)]).await;
    }
    let sources = several(Order::Age, &[("/jobs/**", 1), ("/other", 1)]);
    let worker = scenario.worker("w", sources, 100).await;
    assert_eq!(taken(scenario, worker).await, ids(0..10));
}

pub(super) async fn a_job_given_back_keeps_its_age(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1), job(2), job(3)]).await;
    let held = scenario.take(worker);
    scenario.end(worker, &[(held[0].token, NewSettle::Release)]).await;
    scenario.credit(worker, 2).await;
    assert_eq!(taken(scenario, worker).await, ids([1, 3]));
}
