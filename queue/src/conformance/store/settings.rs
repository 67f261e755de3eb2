//! What queues say of their jobs.

use longshore_protocol::{Backoff, JobOptions, JobState, NewJob, QueueSettings, Refusal};

use super::story::{QUEUE, Story, fail, from, id, job};
use crate::Store;

pub(super) async fn a_queues_settings_hold_where_its_jobs_say_nothing<S: Store>(
    story: &mut Story<'_, S>,
) {
    let settings = QueueSettings {
        lease_ms: Some(5_000),
        max_attempts: Some(2),
        run_timeout_ms: Some(7_000),
        ..QueueSettings::default()
    };
    assert_eq!(story.configure(QUEUE, settings.clone(), false).await, Ok(settings.clone()));
    let own = JobOptions {
        lease_ms: Some(6_000),
        max_attempts: Some(3),
        run_timeout_ms: Some(8_000),
        ..JobOptions::default()
    };
    let worker = story.worker("w", from("/jobs/**"), 5).await;
    story.create([job(1), NewJob { options: own, ..job(2) }]).await;
    let told: Vec<_> = story
        .take(worker)
        .iter()
        .map(|held| (held.handed.lease_ms, held.handed.run_timeout_ms))
        .collect();
    assert_eq!(told, [(5_000, 7_000), (6_000, 8_000)]);
    assert_eq!(story.kept(id(1)).await.info.max_attempts, 2);
    assert_eq!(story.kept(id(2)).await.info.max_attempts, 3);
    // Changes add up; a reset takes all of them back.
    let more = QueueSettings { keep_jobs: Some(5), ..QueueSettings::default() };
    let both = QueueSettings { keep_jobs: Some(5), ..settings };
    assert_eq!(story.configure(QUEUE, more.clone(), false).await, Ok(both.clone()));
    story.restart().await;
    assert_eq!(story.stat(QUEUE).await.settings, both);
    assert_eq!(story.configure(QUEUE, more.clone(), true).await, Ok(more));
    assert_eq!(story.kept(id(1)).await.info.max_attempts, JobOptions::MAX_ATTEMPTS);
}

pub(super) async fn changed_settings_hold_for_jobs_that_are_there<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let held = story.take_one(worker);
    let settings = QueueSettings {
        backoff: Some(Backoff::Fixed(3_000)),
        max_attempts: Some(2),
        lease_ms: Some(1_000),
        ..QueueSettings::default()
    };
    story.configure(QUEUE, settings, false).await.unwrap();
    story.end(worker, &[(held.token, fail())]).await;
    story.pass(2_999).await;
    assert_eq!(story.state(id(1)).await, Some(JobState::Scheduled));
    story.credit(worker, 1).await;
    story.pass(1).await;
    let held = story.take_one(worker);
    assert_eq!(held.handed.lease_ms, 1_000);
    story.end(worker, &[(held.token, fail())]).await;
    assert_eq!(story.state(id(1)).await, Some(JobState::Dead));
}

pub(super) async fn a_queue_can_be_set_before_its_first_job<S: Store>(story: &mut Story<'_, S>) {
    story.serve(&[], &["/jobs"]).await;
    let settings = QueueSettings { max_attempts: Some(1), ..QueueSettings::default() };
    assert_eq!(story.configure(QUEUE, settings.clone(), false).await, Ok(settings.clone()));
    assert_eq!(story.stat(QUEUE).await.settings, settings);
    for (queue, refusal) in
        [("/mail", Refusal::NotHere), ("/sys/x", Refusal::Reserved), ("/", Refusal::BadPath)]
    {
        let refused = story.configure(queue, settings.clone(), false).await;
        assert_eq!(refused, Err(refusal), "{queue}");
    }
    story.create([job(1)]).await;
    assert_eq!(story.kept(id(1)).await.info.max_attempts, 1);
}
