//! Queue settings.

use longshore_protocol::{Backoff, JobOptions, JobState, NewJob, QueueSettings, Refusal};

use super::scenario::{QUEUE, StoreScenario, fail, from, id, job};

pub(super) async fn queue_settings_apply_where_jobs_have_none(scenario: &mut StoreScenario) {
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
    let reported: Vec<_> = scenario
        .delivered(worker)
        .iter()
        .map(|delivered| (delivered.assignment.lease_ms, delivered.assignment.run_timeout_ms))
        .collect();
    assert_eq!(reported, [(5_000, 7_000), (6_000, 8_000)]);
    assert_eq!(scenario.job_view(id(1)).await.info.max_attempts, 2);
    assert_eq!(scenario.job_view(id(2)).await.info.max_attempts, 3);
    // Changes add up; a reset clears all others.
    let more = QueueSettings { keep_jobs: Some(5), ..QueueSettings::default() };
    let both = QueueSettings { keep_jobs: Some(5), ..settings };
    assert_eq!(scenario.configure(QUEUE, more.clone(), false).await, Ok(both.clone()));
    scenario.restart().await;
    assert_eq!(scenario.stat(QUEUE).await.settings, both);
    assert_eq!(scenario.configure(QUEUE, more.clone(), true).await, Ok(more));
    assert_eq!(scenario.job_view(id(1)).await.info.max_attempts, JobOptions::MAX_ATTEMPTS);
}

pub(super) async fn changed_settings_apply_to_existing_jobs(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let delivered = scenario.delivered_job(worker);
    let settings = QueueSettings {
        backoff: Some(Backoff::Fixed(3_000)),
        max_attempts: Some(2),
        lease_ms: Some(1_000),
        ..QueueSettings::default()
    };
    scenario.configure(QUEUE, settings, false).await.unwrap();
    scenario.end(worker, &[(delivered.token, fail())]).await;
    scenario.advance(2_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(JobState::Scheduled));
    scenario.credit(worker, 1).await;
    scenario.advance(1).await;
    let delivered = scenario.delivered_job(worker);
    assert_eq!(delivered.assignment.lease_ms, 1_000);
    scenario.end(worker, &[(delivered.token, fail())]).await;
    assert_eq!(scenario.state(id(1)).await, Some(JobState::Dead));
}

pub(super) async fn queue_can_be_configured_before_its_first_job(scenario: &mut StoreScenario) {
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
    assert_eq!(scenario.job_view(id(1)).await.info.max_attempts, 1);
}
