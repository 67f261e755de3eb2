//! How long what has ended stays.

use longshore_protocol::messages::work::Action;
use longshore_protocol::{JobOptions, JobState, NewJob, QueueSettings};

use super::scenario::{Client, DONE, HOUR_MS, QUEUE, Scenario, fail, from, id, job};

const DAY_MS: u64 = 24 * HOUR_MS;

fn keeping(n: u32, keep_ms: u64) -> NewJob {
    NewJob { options: JobOptions { keep_ms: Some(keep_ms), ..JobOptions::default() }, ..job(n) }
}

/// Takes and completes all that is ready.
async fn complete_all(scenario: &mut Scenario) -> Client {
    let worker = scenario.worker("w", from("/jobs/**"), 1_000).await;
    let settles: Vec<_> = scenario.take(worker).iter().map(|held| (held.token, DONE)).collect();
    scenario.end(worker, &settles).await;
    worker
}

pub(super) async fn ended_jobs_are_kept_for_a_day_unless_told_otherwise(scenario: &mut Scenario) {
    let at = scenario.now().wall_ms + HOUR_MS;
    let expires = JobOptions { expires_at: Some(at), ..JobOptions::default() };
    scenario.create([job(1), job(2)]).await;
    scenario.act(Action::Cancel, &[id(2)]).await;
    complete_all(scenario).await;
    scenario.attach(longshore_protocol::Role::Worker, "w", &[]).await;
    scenario.create([NewJob { options: expires, ..job(3) }]).await;
    scenario.pass(DAY_MS - 1).await;
    let states = scenario.states(1..=3).await;
    assert_eq!(states, [JobState::Completed, JobState::Cancelled, JobState::Expired]);
    scenario.pass(1).await;
    assert_eq!((scenario.state(id(1)).await, scenario.state(id(2)).await), (None, None));
    scenario.restart().await;
    scenario.pass(HOUR_MS - 1).await;
    assert_eq!(scenario.state(id(3)).await, Some(JobState::Expired));
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(3)).await, None);
}

pub(super) async fn a_jobs_own_time_comes_before_its_queues(scenario: &mut Scenario) {
    let minute = QueueSettings { keep_ms: Some(60_000), ..QueueSettings::default() };
    scenario.create([keeping(1, 10_000), job(2), keeping(3, 90_000)]).await;
    complete_all(scenario).await;
    // The setting holds for jobs that ended before.
    scenario.configure(QUEUE, minute, false).await.unwrap();
    for (passed, kept) in
        [(9_999, [true; 3]), (1, [false, true, true]), (49_999, [false, true, true])]
    {
        scenario.pass(passed).await;
        for (n, kept) in (1..).zip(kept) {
            assert_eq!(scenario.state(id(n)).await.is_some(), kept, "job {n}");
        }
    }
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(2)).await, None);
    scenario.pass(29_999).await;
    assert!(scenario.state(id(3)).await.is_some());
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(3)).await, None);
}

pub(super) async fn the_newest_ended_jobs_are_kept_by_number(scenario: &mut Scenario) {
    let three = QueueSettings { keep_jobs: Some(3), ..QueueSettings::default() };
    scenario.configure(QUEUE, three.clone(), false).await.unwrap();
    scenario.create((1..=5).map(job)).await;
    complete_all(scenario).await;
    for n in 1..=5 {
        assert_eq!(scenario.state(id(n)).await.is_some(), n > 2, "job {n}");
    }
    let one = QueueSettings { keep_jobs: Some(1), ..QueueSettings::default() };
    scenario.configure(QUEUE, one, false).await.unwrap();
    scenario.pass(1).await;
    assert_eq!(scenario.counts(QUEUE).await.completed, 1);
    assert!(scenario.state(id(5)).await.is_some());
}

pub(super) async fn what_is_kept_for_no_time_is_gone_when_it_ends(scenario: &mut Scenario) {
    scenario.create([keeping(1, 0), job(2)]).await;
    complete_all(scenario).await;
    assert_eq!(scenario.state(id(1)).await, None);
    assert_eq!(scenario.stat(QUEUE).await.completed, 2);
    let none = QueueSettings { keep_jobs: Some(0), ..QueueSettings::default() };
    scenario.configure(QUEUE, none, false).await.unwrap();
    scenario.create([job(3)]).await;
    complete_all(scenario).await;
    scenario.pass(1).await;
    assert_eq!((scenario.state(id(2)).await, scenario.state(id(3)).await), (None, None));
    assert_eq!(scenario.stat(QUEUE).await.completed, 3);
}

pub(super) async fn dead_letters_stay(scenario: &mut Scenario) {
    let options =
        JobOptions { max_attempts: Some(1), keep_ms: Some(1_000), ..JobOptions::default() };
    scenario.create([NewJob { options, ..job(1) }]).await;
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let held = scenario.take_one(worker);
    scenario.end(worker, &[(held.token, fail())]).await;
    scenario.pass(10 * DAY_MS).await;
    assert_eq!(scenario.state(id(1)).await, Some(JobState::Dead));
}
