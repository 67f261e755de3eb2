//! Delayed jobs, and jobs that expire.

use longshore_protocol::messages::work::{JobTimes, NewSettle};
use longshore_protocol::{Backoff, Due, JobOptions, JobState, NewJob};

use super::scenario::{HOUR_MS, QUEUE, SECOND_MS, StoreScenario, fail, from, id, job};
use JobState::{Expired, Ready, Running, Scheduled};

fn due(n: u32, due: Due) -> NewJob {
    NewJob { options: JobOptions { due, ..JobOptions::default() }, ..job(n) }
}

fn expiring(n: u32, at: u64) -> NewJob {
    NewJob { options: JobOptions { expires_at: Some(at), ..JobOptions::default() }, ..job(n) }
}

pub(super) async fn delayed_job_is_ready_to_the_millisecond(scenario: &mut StoreScenario) {
    scenario.create([due(1, Due::After(10_000)), due(2, Due::After(20_000)), job(3)]).await;
    assert_eq!(scenario.states(1..=3).await, [Scheduled, Scheduled, Ready]);
    assert_eq!(scenario.job_view(id(1)).await.info.due_at, Some(scenario.now().wall_ms + 10_000));
    scenario.advance(9_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
    scenario.advance(1).await;
    assert_eq!(scenario.states(1..=2).await, [Ready, Scheduled]);
    scenario.restart().await;
    scenario.advance(9_999).await;
    assert_eq!(scenario.state(id(2)).await, Some(Scheduled));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(2)).await, Some(Ready), "over a restart");
    assert_eq!(scenario.counts(QUEUE).await.ready, 3);
}

pub(super) async fn job_for_a_wall_clock_time_is_ready_at_that_time(scenario: &mut StoreScenario) {
    let wall = scenario.now().wall_ms;
    scenario.create([due(1, Due::At(wall + HOUR_MS)), due(2, Due::At(wall - 1))]).await;
    assert_eq!(scenario.states(1..=2).await, [Scheduled, Ready]);
    scenario.advance(HOUR_MS - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
}

pub(super) async fn job_that_was_not_started_in_time_expires(scenario: &mut StoreScenario) {
    let wall = scenario.now().wall_ms;
    let late = JobOptions {
        due: Due::After(20_000),
        expires_at: Some(wall + 10_000),
        ..JobOptions::default()
    };
    let late = NewJob { options: late, ..job(2) };
    scenario.create([expiring(1, wall + 10_000), late, expiring(3, wall + 10_001)]).await;
    assert_eq!(scenario.job_view(id(1)).await.info.expires_at, Some(wall + 10_000));
    scenario.advance(9_999).await;
    assert_eq!(scenario.states(1..=3).await, [Ready, Scheduled, Ready]);
    scenario.advance(1).await;
    assert_eq!(scenario.states(1..=3).await, [Expired, Expired, Ready]);
    assert_eq!(scenario.counts(QUEUE).await.expired, 2);
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    assert_eq!(scenario.delivered(worker).len(), 1);
    scenario.advance(SECOND_MS).await;
    assert_eq!(scenario.state(id(3)).await, Some(Running), "delivered in time");
}

pub(super) async fn job_enqueued_after_its_expiry_expires_at_once(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    let wall = scenario.now().wall_ms;
    scenario.create([expiring(1, wall - 1), expiring(2, wall + 1_000)]).await;
    assert_eq!(scenario.states(1..=2).await, [Expired, Running]);
    assert_eq!(scenario.delivered_job(worker).id, id(2));
}

pub(super) async fn released_job_can_expire_and_one_that_has_begun_cannot(
    scenario: &mut StoreScenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    let wall = scenario.now().wall_ms;
    let options = JobOptions {
        expires_at: Some(wall + 10_000),
        backoff: Some(Backoff::Fixed(20_000)),
        ..JobOptions::default()
    };
    let job_that_expires = |n| NewJob { options: options.clone(), ..job(n) };
    scenario.create([job_that_expires(1), job_that_expires(2), job_that_expires(3)]).await;
    let ends = [NewSettle::Release, fail(), NewSettle::Snooze { ms: 20_000 }];
    let tokens = scenario.delivered(worker).into_iter().map(|job| job.token);
    let settles: Vec<_> = tokens.zip(ends).collect();
    scenario.end(worker, &settles).await;
    scenario.advance(10 * SECOND_MS).await;
    assert_eq!(scenario.states(1..=3).await, [Expired, Scheduled, Scheduled]);
    scenario.advance(10 * SECOND_MS).await;
    assert_eq!(scenario.states(2..=3).await, [Ready, Ready]);
}

pub(super) async fn delivery_has_the_times_of_its_job(scenario: &mut StoreScenario) {
    let begin = scenario.now().wall_ms;
    let retried = JobOptions { backoff: Some(Backoff::Fixed(5_000)), ..JobOptions::default() };
    let retried = NewJob { options: retried, ..job(4) };
    let at = Due::At(begin + 30_000);
    scenario.create([job(1), due(2, Due::After(20_000)), due(3, at)]).await;
    scenario.advance(25_000).await;
    scenario.restart().await;
    scenario.advance(25_000).await;
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    let times = |enqueued, scheduled, waited_ms| JobTimes {
        enqueued_at: begin + enqueued,
        scheduled_at: begin + scheduled,
        waited_ms,
    };
    let delivered = scenario.delivered(worker).into_iter().map(|job| job.assignment.times);
    let expected = [times(0, 0, 50_000), times(0, 20_000, 30_000), times(0, 30_000, 20_000)];
    assert_eq!(delivered.collect::<Vec<_>>(), expected, "a restart changes no times");

    scenario.create([retried]).await;
    scenario.credit(worker, 1).await;
    let first = scenario.delivered_job(worker);
    assert_eq!(first.assignment.times, times(50_000, 50_000, 0));
    scenario.end(worker, &[(first.token, fail())]).await;
    scenario.advance(7_000).await;
    scenario.credit(worker, 1).await;
    assert_eq!(scenario.delivered_job(worker).assignment.times, times(50_000, 55_000, 2_000));
}
