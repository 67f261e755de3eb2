//! What a restart of the publisher leaves.

use longshore_protocol::messages::work::Tokens;
use longshore_protocol::{Due, JobOptions, JobState, NewJob, Role, SettleOutcome};

use super::scenario::{DONE, QUEUE, SECOND_MS, Scenario, fail, from, id, job};
use JobState::{Completed, Dead, Ready, Running, Scheduled};

pub(super) async fn everything_is_there_after_a_restart(scenario: &mut Scenario) {
    let options = |options| NewJob { options, ..job(1) };
    let dies = options(JobOptions { max_attempts: Some(1), ..JobOptions::default() });
    let later = options(JobOptions { due: Due::After(60_000), ..JobOptions::default() });
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    scenario.create([job(1), NewJob { id: id(2), ..dies }, job(3)]).await;
    let held = scenario.take(worker);
    scenario.end(worker, &[(held[0].token, DONE), (held[1].token, fail())]).await;
    scenario.create([job(4), NewJob { id: id(5), ..later }]).await;
    let before = (scenario.list(super::scenario::filter("/**")).await, scenario.stat(QUEUE).await);
    scenario.restart().await;
    assert_eq!(scenario.states(1..=5).await, [Completed, Dead, Running, Ready, Scheduled]);
    let (jobs, mut stat) =
        (scenario.list(super::scenario::filter("/**")).await, scenario.stat(QUEUE).await);
    assert_eq!(jobs, before.0);
    // Subscriptions are of links, and those are gone.
    (stat.subscriptions, stat.credits) = (before.1.subscriptions, before.1.credits);
    assert_eq!(stat, before.1);
    for n in 1..=5 {
        let entry = scenario.kept(id(n)).await.entry;
        assert!(
            scenario
                .read(entry)
                .ends_with(format!("payload {}", if n == 2 || n == 5 { 1 } else { n }).as_bytes())
        );
    }
}

pub(super) async fn leases_resumed_within_the_window_go_on(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let held = scenario.take_one(worker);
    scenario.restart().await;
    scenario.pass(30 * SECOND_MS - 1).await;
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens::default());
    scenario.pass_renewing(worker, &[held.token], 60 * SECOND_MS).await;
    scenario.end(worker, &[(held.token, DONE)]).await;
    let view = scenario.kept(id(1)).await;
    assert_eq!((view.info.attempt, view.info.deliveries), (1, 1));
}

pub(super) async fn leases_that_nobody_resumes_go_back_with_their_attempt(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let held = scenario.take_one(worker);
    scenario.start(worker, &[held.token]);
    scenario.restart().await;
    scenario.pass(30 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
    assert_eq!(scenario.kept(id(1)).await.info.attempt, 0, "a restart costs no attempt");
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens(vec![held.token]));
    assert_eq!(scenario.settle(worker, &[(held.token, DONE)]).await, [SettleOutcome::StaleToken]);
}

pub(super) async fn the_time_of_an_attempt_runs_on_over_a_restart(scenario: &mut Scenario) {
    let options = JobOptions { run_timeout_ms: Some(60_000), ..JobOptions::default() };
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([NewJob { options, ..job(1) }]).await;
    let held = scenario.take_one(worker);
    scenario.start(worker, &[held.token]);
    scenario.pass_renewing(worker, &[held.token], 40_000).await;
    scenario.restart().await;
    scenario.pass(5_000).await;
    let (worker, _) = scenario.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(scenario.started(worker, &[held.token], &[45_000]), Tokens::default());
    scenario.pass_renewing(worker, &[held.token], 14_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
}

pub(super) async fn a_settle_is_answered_again_after_a_restart(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let held = scenario.take_one(worker);
    let first = scenario.settle_as(worker, 1, &[(held.token, DONE)]).await;
    scenario.restart().await;
    // The answer was lost: the worker still lists the token.
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens(vec![held.token]));
    assert_eq!(scenario.settle_as(worker, 1, &[(held.token, DONE)]).await, first);
    let stat = scenario.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.counts.completed, stat.stale_refused), (1, 1, 0));
}

pub(super) async fn tokens_and_starts_rise(scenario: &mut Scenario) {
    let (mut last, mut epoch) = (None, None);
    let publisher = scenario.store().identity().0;
    for n in 1..=4 {
        scenario.create([job(n)]).await;
        let worker = scenario.worker(&format!("w{n}"), from("/jobs/**"), 1).await;
        let held = scenario.take_one(worker);
        assert!(Some(held.token) > last);
        last = Some(held.token);
        scenario.end(worker, &[(held.token, DONE)]).await;
        assert!(Some(scenario.epoch()) > epoch);
        epoch = Some(scenario.epoch());
        scenario.restart().await;
        assert_eq!(scenario.store().identity().0, publisher);
    }
}
