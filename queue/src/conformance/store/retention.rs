//! How long what has ended stays.

use longshore_protocol::messages::work::Action;
use longshore_protocol::{JobOptions, JobState, NewJob, QueueSettings};

use super::story::{Client, DONE, HOUR_MS, QUEUE, Story, fail, from, id, job};
use crate::Store;

const DAY_MS: u64 = 24 * HOUR_MS;

fn keeping(n: u32, keep_ms: u64) -> NewJob {
    NewJob { options: JobOptions { keep_ms: Some(keep_ms), ..JobOptions::default() }, ..job(n) }
}

/// Takes and completes all that is ready.
async fn complete_all<S: Store>(story: &mut Story<'_, S>) -> Client {
    let worker = story.worker("w", from("/jobs/**"), 1_000).await;
    let settles: Vec<_> = story.take(worker).iter().map(|held| (held.token, DONE)).collect();
    story.end(worker, &settles).await;
    worker
}

pub(super) async fn ended_jobs_are_kept_for_a_day_unless_told_otherwise<S: Store>(
    story: &mut Story<'_, S>,
) {
    let at = story.now().wall_ms + HOUR_MS;
    let expires = JobOptions { expires_at: Some(at), ..JobOptions::default() };
    story.create([job(1), job(2)]).await;
    story.act(Action::Cancel, &[id(2)]).await;
    complete_all(story).await;
    story.attach(longshore_protocol::Role::Worker, "w", &[]).await;
    story.create([NewJob { options: expires, ..job(3) }]).await;
    story.pass(DAY_MS - 1).await;
    let states = story.states(1..=3).await;
    assert_eq!(states, [JobState::Completed, JobState::Cancelled, JobState::Expired]);
    story.pass(1).await;
    assert_eq!((story.state(id(1)).await, story.state(id(2)).await), (None, None));
    story.restart().await;
    story.pass(HOUR_MS - 1).await;
    assert_eq!(story.state(id(3)).await, Some(JobState::Expired));
    story.pass(1).await;
    assert_eq!(story.state(id(3)).await, None);
}

pub(super) async fn a_jobs_own_time_comes_before_its_queues<S: Store>(story: &mut Story<'_, S>) {
    let minute = QueueSettings { keep_ms: Some(60_000), ..QueueSettings::default() };
    story.create([keeping(1, 10_000), job(2), keeping(3, 90_000)]).await;
    complete_all(story).await;
    // The setting holds for jobs that ended before.
    story.configure(QUEUE, minute, false).await.unwrap();
    for (passed, kept) in
        [(9_999, [true; 3]), (1, [false, true, true]), (49_999, [false, true, true])]
    {
        story.pass(passed).await;
        for (n, kept) in (1..).zip(kept) {
            assert_eq!(story.state(id(n)).await.is_some(), kept, "job {n}");
        }
    }
    story.pass(1).await;
    assert_eq!(story.state(id(2)).await, None);
    story.pass(29_999).await;
    assert!(story.state(id(3)).await.is_some());
    story.pass(1).await;
    assert_eq!(story.state(id(3)).await, None);
}

pub(super) async fn the_newest_ended_jobs_are_kept_by_number<S: Store>(story: &mut Story<'_, S>) {
    let three = QueueSettings { keep_jobs: Some(3), ..QueueSettings::default() };
    story.configure(QUEUE, three.clone(), false).await.unwrap();
    story.create((1..=5).map(job)).await;
    complete_all(story).await;
    for n in 1..=5 {
        assert_eq!(story.state(id(n)).await.is_some(), n > 2, "job {n}");
    }
    let one = QueueSettings { keep_jobs: Some(1), ..QueueSettings::default() };
    story.configure(QUEUE, one, false).await.unwrap();
    story.pass(1).await;
    assert_eq!(story.counts(QUEUE).await.completed, 1);
    assert!(story.state(id(5)).await.is_some());
}

pub(super) async fn what_is_kept_for_no_time_is_gone_when_it_ends<S: Store>(
    story: &mut Story<'_, S>,
) {
    story.create([keeping(1, 0), job(2)]).await;
    complete_all(story).await;
    assert_eq!(story.state(id(1)).await, None);
    assert_eq!(story.stat(QUEUE).await.completed, 2);
    let none = QueueSettings { keep_jobs: Some(0), ..QueueSettings::default() };
    story.configure(QUEUE, none, false).await.unwrap();
    story.create([job(3)]).await;
    complete_all(story).await;
    story.pass(1).await;
    assert_eq!((story.state(id(2)).await, story.state(id(3)).await), (None, None));
    assert_eq!(story.stat(QUEUE).await.completed, 3);
}

pub(super) async fn dead_letters_stay<S: Store>(story: &mut Story<'_, S>) {
    let options =
        JobOptions { max_attempts: Some(1), keep_ms: Some(1_000), ..JobOptions::default() };
    story.create([NewJob { options, ..job(1) }]).await;
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    let held = story.take_one(worker);
    story.end(worker, &[(held.token, fail())]).await;
    story.pass(10 * DAY_MS).await;
    assert_eq!(story.state(id(1)).await, Some(JobState::Dead));
}
