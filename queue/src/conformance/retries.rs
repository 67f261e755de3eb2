//! The timing of retries.

use longshore_protocol::{Backoff, DeathReason, JobOptions, JobState, NewJob};

use super::scenario::{QUEUE, StoreScenario, fail, from, id, job};
use JobState::{Dead, Ready, Running, Scheduled};

fn retried(n: u32, backoff: Backoff, max_attempts: u16) -> NewJob {
    let options = JobOptions {
        backoff: Some(backoff),
        max_attempts: Some(max_attempts),
        ..JobOptions::default()
    };
    NewJob { options, ..job(n) }
}

pub(super) async fn each_backoff_waits_to_the_millisecond(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let policies = [
        (Backoff::Fixed(1_500), [1_500, 1_500, 1_500]),
        (Backoff::Linear { step_ms: 700, max_ms: 1_500 }, [700, 1_400, 1_500]),
        (Backoff::List(vec![10, 20_000]), [10, 20_000, 20_000]),
    ];
    for (n, (backoff, waits)) in (1..).zip(policies) {
        scenario.create([retried(n, backoff, 4)]).await;
        for (attempt, wait) in (1..).zip(waits) {
            let delivered = scenario.delivered_job(worker);
            assert_eq!((delivered.id, delivered.assignment.attempt), (id(n), attempt));
            scenario.end(worker, &[(delivered.token, fail())]).await;
            scenario.advance(wait - 1).await;
            assert_eq!(scenario.state(id(n)).await, Some(Scheduled), "{attempt} of job {n}");
            scenario.advance(1).await;
            assert_eq!(scenario.state(id(n)).await, Some(Ready), "{attempt} of job {n}");
            scenario.credit(worker, 1).await;
        }
        let delivered = scenario.delivered_job(worker);
        scenario.end(worker, &[(delivered.token, fail())]).await;
        assert_eq!(scenario.state(id(n)).await, Some(Dead));
        scenario.credit(worker, 1).await;
    }
}

pub(super) async fn full_jitter_stays_within_its_bound(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let backoff = Backoff::Exponential { base_ms: 1_000, max_ms: 10_000 };
    scenario.create((0..100).map(|n| retried(n, backoff.clone(), 9))).await;
    let settles: Vec<_> =
        scenario.delivered(worker).iter().map(|delivered| (delivered.token, fail())).collect();
    scenario.end(worker, &settles).await;
    let mut waits = Vec::new();
    for n in 0..100 {
        let due = scenario.job_view(id(n)).await.info.due_at;
        waits.push(due.map_or(0, |due| due - scenario.now().wall_ms));
    }
    assert!(waits.iter().all(|&wait| wait <= 1_000), "{waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 50, "the waits are spread: {waits:?}");
    scenario.advance(1_000).await;
    assert_eq!(scenario.counts(QUEUE).await.ready, 100);
}

pub(super) async fn job_without_attempts_left_is_dead(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried(1, Backoff::Fixed(0), 3)]).await;
    for attempt in 1..=3 {
        let delivered = scenario.delivered_job(worker);
        assert_eq!(delivered.assignment.attempt, attempt);
        scenario.end(worker, &[(delivered.token, fail())]).await;
        scenario.credit(worker, 1).await;
    }
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.state, view.info.attempt), (Dead, 3));
    assert_eq!(view.info.death, Some(DeathReason::AttemptsExhausted));
    assert_eq!(view.info.ended_at, Some(scenario.now().wall_ms));
}

pub(super) async fn jobs_waiting_for_a_retry_are_counted_apart(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried(1, Backoff::Fixed(1_000), 3)]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(delivered.token, fail())]).await;
    let counts = scenario.counts(QUEUE).await;
    assert_eq!((counts.retrying, counts.scheduled), (1, 0));
    assert!(scenario.job_view(id(1)).await.info.retrying);
    scenario.credit(worker, 1).await;
    scenario.restart().await;
    let counts = scenario.counts(QUEUE).await;
    assert_eq!((counts.retrying, counts.scheduled), (1, 0), "over a restart, too");
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.advance(1_000).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    assert_eq!(scenario.delivered_job(worker).assignment.attempt, 2);
    assert_eq!(scenario.counts(QUEUE).await.retrying, 0);
}
