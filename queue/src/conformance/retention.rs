//! How long ended jobs are retained.

use longshore_protocol::messages::work::Action;
use longshore_protocol::{JobOptions, JobState, NewJob, QueueSettings};

use super::scenario::{Client, DONE, HOUR_MS, QUEUE, StoreScenario, fail, from, id, job};

const DAY_MS: u64 = 24 * HOUR_MS;

fn keeping(n: u32, keep_ms: u64) -> NewJob {
    NewJob { options: JobOptions { keep_ms: Some(keep_ms), ..JobOptions::default() }, ..job(n) }
}

/// Receives and completes all ready jobs.
async fn complete_all(scenario: &mut StoreScenario) -> Client {
    let worker = scenario.worker("w", from("/jobs/**"), 1_000).await;
    let settles: Vec<_> =
        scenario.delivered(worker).iter().map(|delivered| (delivered.token, DONE)).collect();
    scenario.end(worker, &settles).await;
    worker
}

pub(super) async fn ended_jobs_are_retained_for_a_day_by_default(scenario: &mut StoreScenario) {
    let at = scenario.now().wall_ms + HOUR_MS;
    let expires = JobOptions { expires_at: Some(at), ..JobOptions::default() };
    scenario.create([job(1), job(2)]).await;
    scenario.act(Action::Cancel, &[id(2)]).await;
    complete_all(scenario).await;
    scenario.attach(longshore_protocol::Role::Worker, "w", &[]).await;
    scenario.create([NewJob { options: expires, ..job(3) }]).await;
    scenario.advance(DAY_MS - 1).await;
    let states = scenario.states(1..=3).await;
    assert_eq!(states, [JobState::Completed, JobState::Cancelled, JobState::Expired]);
    scenario.advance(1).await;
    assert_eq!((scenario.state(id(1)).await, scenario.state(id(2)).await), (None, None));
    scenario.restart().await;
    scenario.advance(HOUR_MS - 1).await;
    assert_eq!(scenario.state(id(3)).await, Some(JobState::Expired));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(3)).await, None);
}

pub(super) async fn own_retention_of_a_job_overrides_that_of_its_queue(
    scenario: &mut StoreScenario,
) {
    let minute = QueueSettings { keep_ms: Some(60_000), ..QueueSettings::default() };
    scenario.create([keeping(1, 10_000), job(2), keeping(3, 90_000)]).await;
    complete_all(scenario).await;
    // The setting applies to jobs that ended before.
    scenario.configure(QUEUE, minute, false).await.unwrap();
    for (passed, job_view) in
        [(9_999, [true; 3]), (1, [false, true, true]), (49_999, [false, true, true])]
    {
        scenario.advance(passed).await;
        for (n, job_view) in (1..).zip(job_view) {
            assert_eq!(scenario.state(id(n)).await.is_some(), job_view, "job {n}");
        }
    }
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(2)).await, None);
    scenario.advance(29_999).await;
    assert!(scenario.state(id(3)).await.is_some());
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(3)).await, None);
}

pub(super) async fn ended_jobs_are_retained_up_to_a_number(scenario: &mut StoreScenario) {
    let three = QueueSettings { keep_jobs: Some(3), ..QueueSettings::default() };
    scenario.configure(QUEUE, three.clone(), false).await.unwrap();
    scenario.create((1..=5).map(job)).await;
    complete_all(scenario).await;
    for n in 1..=5 {
        assert_eq!(scenario.state(id(n)).await.is_some(), n > 2, "job {n}");
    }
    let one = QueueSettings { keep_jobs: Some(1), ..QueueSettings::default() };
    scenario.configure(QUEUE, one, false).await.unwrap();
    scenario.advance(1).await;
    assert_eq!(scenario.counts(QUEUE).await.completed, 1);
    assert!(scenario.state(id(5)).await.is_some());
}

pub(super) async fn zero_retention_removes_a_job_at_its_end(scenario: &mut StoreScenario) {
    scenario.create([keeping(1, 0), job(2)]).await;
    complete_all(scenario).await;
    assert_eq!(scenario.state(id(1)).await, None);
    assert_eq!(scenario.stat(QUEUE).await.completed, 2);
    let none = QueueSettings { keep_jobs: Some(0), ..QueueSettings::default() };
    scenario.configure(QUEUE, none, false).await.unwrap();
    scenario.create([job(3)]).await;
    complete_all(scenario).await;
    scenario.advance(1).await;
    assert_eq!((scenario.state(id(2)).await, scenario.state(id(3)).await), (None, None));
    assert_eq!(scenario.stat(QUEUE).await.completed, 3);
}

pub(super) async fn dead_letters_outlive_other_ended_jobs(scenario: &mut StoreScenario) {
    let options =
        JobOptions { max_attempts: Some(1), keep_ms: Some(1_000), ..JobOptions::default() };
    scenario.create([NewJob { options, ..job(1) }]).await;
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(delivered.token, fail())]).await;
    scenario.advance(10 * DAY_MS).await;
    assert_eq!(scenario.state(id(1)).await, Some(JobState::Dead));
}
