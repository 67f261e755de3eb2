//! What queues say of their jobs.

use longshore_protocol::{Backoff, JobOptions, JobState, NewJob, QueueSettings, Refusal};

use super::scenario::{QUEUE, Scenario, fail, from, id, job};

pub(super) async fn a_queues_settings_hold_where_its_jobs_say_nothing(scenario: &mut Scenario) {
    let settings = QueueSettings {
        lease_ms: Some(5_000),
        max_attempts: Some(2),
        run_timeout_ms: Some(7_000),
        ..QueueSettings::default()
    };
    assert_eq!(scenario.configure(QUEUE, settings.clone(), false).await, Ok(settings.clone()));
    let own = JobOptions {
        lease_ms: Some(6_000),
        max_attempts: Some(3),
        run_timeout_ms: Some(8_000),
        ..JobOptions::default()
    };
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    scenario.create([job(1), NewJob { options: own, ..job(2) }]).await;
    let told: Vec<_> = scenario
        .take(worker)
        .iter()
        .map(|held| (held.handed.lease_ms, held.handed.run_timeout_ms))
        .collect();
    assert_eq!(told, [(5_000, 7_000), (6_000, 8_000)]);
    assert_eq!(scenario.kept(id(1)).await.info.max_attempts, 2);
    assert_eq!(scenario.kept(id(2)).await.info.max_attempts, 3);
    // Changes add up; a reset takes all of them back.
    let more = QueueSettings { keep_jobs: Some(5), ..QueueSettings::default() };
    let both = QueueSettings { keep_jobs: Some(5), ..settings };
    assert_eq!(scenario.configure(QUEUE, more.clone(), false).await, Ok(both.clone()));
    scenario.restart().await;
    assert_eq!(scenario.stat(QUEUE).await.settings, both);
    assert_eq!(scenario.configure(QUEUE, more.clone(), true).await, Ok(more));
    assert_eq!(scenario.kept(id(1)).await.info.max_attempts, JobOptions::MAX_ATTEMPTS);
}

pub(super) async fn changed_settings_hold_for_jobs_that_are_there(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let held = scenario.take_one(worker);
    let settings = QueueSettings {
        backoff: Some(Backoff::Fixed(3_000)),
        max_attempts: Some(2),
        lease_ms: Some(1_000),
        ..QueueSettings::default()
    };
    scenario.configure(QUEUE, settings, false).await.unwrap();
    scenario.end(worker, &[(held.token, fail())]).await;
    scenario.pass(2_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(JobState::Scheduled));
    scenario.credit(worker, 1).await;
    scenario.pass(1).await;
    let held = scenario.take_one(worker);
    assert_eq!(held.handed.lease_ms, 1_000);
    scenario.end(worker, &[(held.token, fail())]).await;
    assert_eq!(scenario.state(id(1)).await, Some(JobState::Dead));
}

pub(super) async fn a_queue_can_be_set_before_its_first_job(scenario: &mut Scenario) {
    scenario.serve(&[], &["/jobs"]).await;
    let settings = QueueSettings { max_attempts: Some(1), ..QueueSettings::default() };
    assert_eq!(scenario.configure(QUEUE, settings.clone(), false).await, Ok(settings.clone()));
    assert_eq!(scenario.stat(QUEUE).await.settings, settings);
    for (queue, refusal) in
        [("/mail", Refusal::NotHere), ("/sys/x", Refusal::Reserved), ("/", Refusal::BadPath)]
    {
        let refused = scenario.configure(queue, settings.clone(), false).await;
        assert_eq!(refused, Err(refusal), "{queue}");
    }
    scenario.create([job(1)]).await;
    assert_eq!(scenario.kept(id(1)).await.info.max_attempts, 1);
}
