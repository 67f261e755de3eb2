//! When attempts are made again.

use longshore_protocol::{Backoff, DeathReason, JobOptions, JobState, NewJob};

use super::scenario::{QUEUE, Scenario, fail, from, id, job};
use JobState::{Dead, Ready, Running, Scheduled};

fn retried(n: u32, backoff: Backoff, max_attempts: u16) -> NewJob {
    let options = JobOptions {
        backoff: Some(backoff),
        max_attempts: Some(max_attempts),
        ..JobOptions::default()
    };
    NewJob { options, ..job(n) }
}

pub(super) async fn each_policy_waits_to_the_millisecond(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let policies = [
        (Backoff::Fixed(1_500), [1_500, 1_500, 1_500]),
        (Backoff::Linear { step_ms: 700, max_ms: 1_500 }, [700, 1_400, 1_500]),
        (Backoff::List(vec![10, 20_000]), [10, 20_000, 20_000]),
    ];
    for (n, (backoff, waits)) in (1..).zip(policies) {
        scenario.create([retried(n, backoff, 4)]).await;
        for (attempt, wait) in (1..).zip(waits) {
            let held = scenario.take_one(worker);
            assert_eq!((held.id, held.handed.attempt), (id(n), attempt));
            scenario.end(worker, &[(held.token, fail())]).await;
            scenario.pass(wait - 1).await;
            assert_eq!(scenario.state(id(n)).await, Some(Scheduled), "{attempt} of job {n}");
            scenario.pass(1).await;
            assert_eq!(scenario.state(id(n)).await, Some(Ready), "{attempt} of job {n}");
            scenario.credit(worker, 1).await;
        }
        let held = scenario.take_one(worker);
        scenario.end(worker, &[(held.token, fail())]).await;
        assert_eq!(scenario.state(id(n)).await, Some(Dead));
        scenario.credit(worker, 1).await;
    }
}

pub(super) async fn full_jitter_stays_within_its_bound(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let backoff = Backoff::Exponential { base_ms: 1_000, max_ms: 10_000 };
    scenario.create((0..100).map(|n| retried(n, backoff.clone(), 9))).await;
    let settles: Vec<_> = scenario.take(worker).iter().map(|held| (held.token, fail())).collect();
    scenario.end(worker, &settles).await;
    let mut waits = Vec::new();
    for n in 0..100 {
        let due = scenario.kept(id(n)).await.info.due_at;
        waits.push(due.map_or(0, |due| due - scenario.now().wall_ms));
    }
    assert!(waits.iter().all(|&wait| wait <= 1_000), "{waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 50, "they are spread: {waits:?}");
    scenario.pass(1_000).await;
    assert_eq!(scenario.counts(QUEUE).await.ready, 100);
}

pub(super) async fn a_job_without_attempts_left_is_dead(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried(1, Backoff::Fixed(0), 3)]).await;
    for attempt in 1..=3 {
        let held = scenario.take_one(worker);
        assert_eq!(held.handed.attempt, attempt);
        scenario.end(worker, &[(held.token, fail())]).await;
        scenario.credit(worker, 1).await;
    }
    let view = scenario.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.attempt), (Dead, 3));
    assert_eq!(view.info.death, Some(DeathReason::AttemptsExhausted));
    assert_eq!(view.info.ended_at, Some(scenario.now().wall_ms));
}

pub(super) async fn waiting_for_a_retry_is_counted_apart(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried(1, Backoff::Fixed(1_000), 3)]).await;
    let held = scenario.take_one(worker);
    scenario.end(worker, &[(held.token, fail())]).await;
    let counts = scenario.counts(QUEUE).await;
    assert_eq!((counts.retrying, counts.scheduled), (1, 0));
    assert!(scenario.kept(id(1)).await.info.retrying);
    scenario.credit(worker, 1).await;
    scenario.restart().await;
    let counts = scenario.counts(QUEUE).await;
    assert_eq!((counts.retrying, counts.scheduled), (1, 0), "over a restart, too");
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.pass(1_000).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    assert_eq!(scenario.take_one(worker).handed.attempt, 2);
    assert_eq!(scenario.counts(QUEUE).await.retrying, 0);
}
