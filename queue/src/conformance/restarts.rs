//! What a restart of the publisher preserves.

use longshore_protocol::messages::work::Tokens;
use longshore_protocol::{Due, JobOptions, JobState, NewJob, Role, SettleOutcome};

use super::scenario::{DONE, QUEUE, SECOND_MS, StoreScenario, fail, from, id, job};
use JobState::{Completed, Dead, Ready, Running, Scheduled};

pub(super) async fn restart_preserves_all_jobs_and_counters(scenario: &mut StoreScenario) {
    let options = |options| NewJob { options, ..job(1) };
    let dies = options(JobOptions { max_attempts: Some(1), ..JobOptions::default() });
    let later = options(JobOptions { due: Due::After(60_000), ..JobOptions::default() });
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    scenario.create([job(1), NewJob { id: id(2), ..dies }, job(3)]).await;
    let delivered = scenario.delivered(worker);
    scenario.end(worker, &[(delivered[0].token, DONE), (delivered[1].token, fail())]).await;
    scenario.create([job(4), NewJob { id: id(5), ..later }]).await;
    let before = (scenario.list(super::scenario::filter("/**")).await, scenario.stat(QUEUE).await);
    scenario.restart().await;
    assert_eq!(scenario.states(1..=5).await, [Completed, Dead, Running, Ready, Scheduled]);
    let (jobs, mut stat) =
        (scenario.list(super::scenario::filter("/**")).await, scenario.stat(QUEUE).await);
    assert_eq!(jobs, before.0);
    // Subscriptions belong to links, which have ended.
    (stat.subscriptions, stat.credits) = (before.1.subscriptions, before.1.credits);
    assert_eq!(stat, before.1);
    for n in 1..=5 {
        let entry = scenario.job_view(id(n)).await.entry;
        assert!(
            scenario
                .read(entry)
                .ends_with(format!("payload {}", if n == 2 || n == 5 { 1 } else { n }).as_bytes())
        );
    }
}

pub(super) async fn leases_resumed_within_the_window_continue(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.restart().await;
    scenario.advance(30 * SECOND_MS - 1).await;
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[delivered.token]).await;
    assert_eq!(attached.gone, Tokens::default());
    scenario.advance_renewing(worker, &[delivered.token], 60 * SECOND_MS).await;
    scenario.end(worker, &[(delivered.token, DONE)]).await;
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.attempt, view.info.deliveries), (1, 1));
}

pub(super) async fn unresumed_leases_end_without_costing_an_attempt(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.start(worker, &[delivered.token]);
    scenario.restart().await;
    scenario.advance(30 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
    assert_eq!(scenario.job_view(id(1)).await.info.attempt, 0, "a restart costs no attempt");
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[delivered.token]).await;
    assert_eq!(attached.gone, Tokens(vec![delivered.token]));
    assert_eq!(
        scenario.settle(worker, &[(delivered.token, DONE)]).await,
        [SettleOutcome::StaleToken]
    );
}

pub(super) async fn run_timeout_continues_over_a_restart(scenario: &mut StoreScenario) {
    let options = JobOptions { run_timeout_ms: Some(60_000), ..JobOptions::default() };
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([NewJob { options, ..job(1) }]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.start(worker, &[delivered.token]);
    scenario.advance_renewing(worker, &[delivered.token], 40_000).await;
    scenario.restart().await;
    scenario.advance(5_000).await;
    let (worker, _) = scenario.attach(Role::Worker, "w", &[delivered.token]).await;
    assert_eq!(scenario.started(worker, &[delivered.token], &[45_000]), Tokens::default());
    scenario.advance_renewing(worker, &[delivered.token], 14_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
}

pub(super) async fn settle_receives_its_first_answer_after_a_restart(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let delivered = scenario.delivered_job(worker);
    let first = scenario.settle_as(worker, 1, &[(delivered.token, DONE)]).await;
    scenario.restart().await;
    // The answer was lost: the worker still lists the token.
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[delivered.token]).await;
    assert_eq!(attached.gone, Tokens(vec![delivered.token]));
    assert_eq!(scenario.settle_as(worker, 1, &[(delivered.token, DONE)]).await, first);
    let stat = scenario.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.counts.completed, stat.stale_refused), (1, 1, 0));
}

pub(super) async fn tokens_and_epochs_rise(scenario: &mut StoreScenario) {
    let (mut last, mut epoch) = (None, None);
    let publisher = scenario.store().identity().0;
    for n in 1..=4 {
        scenario.create([job(n)]).await;
        let worker = scenario.worker(&format!("w{n}"), from("/jobs/**"), 1).await;
        let delivered = scenario.delivered_job(worker);
        assert!(Some(delivered.token) > last);
        last = Some(delivered.token);
        scenario.end(worker, &[(delivered.token, DONE)]).await;
        assert!(Some(scenario.epoch()) > epoch);
        epoch = Some(scenario.epoch());
        scenario.restart().await;
        assert_eq!(scenario.store().identity().0, publisher);
    }
}
