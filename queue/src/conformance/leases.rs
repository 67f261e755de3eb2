//! How long a worker may keep a job, and what becomes of one whose worker is lost.

use longshore_protocol::messages::work::{Progress, RequestError, Tokens};
use longshore_protocol::{
    AttemptOutcome, Backoff, CheckpointOutcome, DeathReason, JobOptions, JobState, NewJob, Revoked,
    Role, SettleOutcome, Token,
};

use super::scenario::{DONE, MINUTE_MS, QUEUE, SECOND_MS, Scenario, from, id, job};
use JobState::{Completed, Dead, Ready, Running, Scheduled};

fn leased(n: u32, options: JobOptions) -> NewJob {
    NewJob { options, ..job(n) }
}

pub(super) async fn an_unrenewed_lease_ends_to_the_millisecond(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let lease_ms = Some(4_000);
    scenario
        .create([1, 2].map(|n| leased(n, JobOptions { lease_ms, ..JobOptions::default() })))
        .await;
    let held = scenario.take(worker);
    scenario.pass(3_000).await;
    assert_eq!(scenario.renew(worker, &[held[1].token]), Tokens::default());
    scenario.pass(999).await;
    assert_eq!(scenario.states(1..=2).await, [Running, Running]);
    scenario.pass(1).await;
    assert_eq!(scenario.states(1..=2).await, [Ready, Running]);
    assert_eq!(scenario.revoked(worker), [(Revoked::LeaseLost, held[0].token)]);
    scenario.pass(2_999).await;
    assert_eq!(scenario.state(id(2)).await, Some(Running));
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(2)).await, Some(Ready));
}

pub(super) async fn losing_a_lease_costs_an_attempt_only_once_it_has_begun(
    scenario: &mut Scenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1), job(2)]).await;
    let held = scenario.take(worker);
    assert_eq!(scenario.start(worker, &[held[0].token]), Tokens::default());
    scenario.pass(30 * SECOND_MS).await;
    assert_eq!(scenario.states(1..=2).await, [Ready, Ready], "without back-off");
    let [begun, unbegun] = [scenario.kept(id(1)).await.info, scenario.kept(id(2)).await.info];
    assert_eq!((begun.attempt, begun.deliveries), (1, 1));
    assert_eq!((unbegun.attempt, unbegun.deliveries), (0, 1));
    scenario.credit(worker, 2).await;
    let again: Vec<u16> = scenario.take(worker).iter().map(|held| held.handed.attempt).collect();
    assert_eq!(again, [2, 1]);
}

pub(super) async fn a_job_that_loses_its_workers_is_dead_and_those_beside_it_are_unharmed(
    scenario: &mut Scenario,
) {
    let backoff = Some(Backoff::Fixed(7_000));
    let poison = JobOptions { backoff, priority: 1, ..JobOptions::default() };
    scenario.create([leased(0, poison)]).await;
    scenario.create((1..=100).map(job)).await;
    for death in 1..=3 {
        let worker = scenario.worker(&format!("w{death}"), from("/jobs/**"), 101).await;
        let held = scenario.take(worker);
        assert_eq!((held.len(), held[0].id), (101, id(0)));
        scenario.start(worker, &[held[0].token]);
        scenario.lose(worker).await;
        scenario.pass(5 * SECOND_MS).await;
        let expected = [Ready, Scheduled, Dead][death - 1];
        assert_eq!(scenario.state(id(0)).await, Some(expected), "after loss {death}");
        if expected == Scheduled {
            scenario.pass(6_999).await;
            assert_eq!(scenario.state(id(0)).await, Some(Scheduled));
            scenario.pass(1).await;
        }
    }
    let view = scenario.kept(id(0)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::WorkerLost)));
    assert_eq!(view.info.attempts.len(), 3);
    let worker = scenario.worker("last", from("/jobs/**"), 101).await;
    let held = scenario.take(worker);
    assert_eq!(held.len(), 100);
    assert!(held.iter().all(|held| held.handed.attempt == 1), "none has lost an attempt");
    let settles: Vec<_> = held.iter().map(|held| (held.token, DONE)).collect();
    scenario.end(worker, &settles).await;
    assert_eq!(scenario.counts(QUEUE).await.completed, 100);
}

pub(super) async fn an_attempt_that_runs_too_long_has_failed(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let options = JobOptions {
        run_timeout_ms: Some(60_000),
        backoff: Some(Backoff::Fixed(7_000)),
        ..JobOptions::default()
    };
    let forever = JobOptions { run_timeout_ms: Some(0), ..JobOptions::default() };
    scenario.create([leased(1, options), leased(2, forever)]).await;
    let tokens: Vec<Token> = scenario.take(worker).iter().map(|held| held.token).collect();
    // The time counts from the beginning of the attempt, not from its delivery.
    scenario.pass_renewing(worker, &tokens, 10_000).await;
    scenario.start(worker, &tokens);
    scenario.pass_renewing(worker, &tokens, 59_999).await;
    assert_eq!(scenario.states(1..=2).await, [Running, Running]);
    scenario.pass(1).await;
    assert_eq!(scenario.states(1..=2).await, [Scheduled, Running]);
    assert_eq!(scenario.revoked(worker), [(Revoked::TimedOut, tokens[0])]);
    let view = scenario.kept(id(1)).await;
    assert_eq!(view.info.attempts[0].outcome, AttemptOutcome::TimedOut);
    assert!(view.info.retrying);
    assert_eq!(scenario.settle(worker, &[(tokens[0], DONE)]).await, [SettleOutcome::StaleToken]);
    scenario.credit(worker, 1).await;
    scenario.pass_renewing(worker, &tokens[1..], 6_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
    scenario.pass(1).await;
    let again = scenario.take_one(worker);
    assert_eq!((again.id, again.handed.attempt), (id(1), 2));
    // By default an attempt may run for an hour: `forever` is still at it.
    scenario.pass_renewing(worker, &[again.token, tokens[1]], 2 * super::scenario::HOUR_MS).await;
    assert_eq!(scenario.states(1..=2).await, [Running, Running], "the second has not begun");
}

pub(super) async fn the_last_attempt_that_runs_too_long_is_the_end(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let options =
        JobOptions { run_timeout_ms: Some(5_000), max_attempts: Some(1), ..JobOptions::default() };
    scenario.create([leased(1, options)]).await;
    let token = scenario.take_one(worker).token;
    scenario.start(worker, &[token]);
    scenario.pass(5_000).await;
    let view = scenario.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::TimedOut)));
}

pub(super) async fn a_worker_that_is_back_within_the_grace_goes_on(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    scenario.create([job(1), job(2), job(3)]).await;
    let held = scenario.take(worker);
    scenario.end(worker, &[(held[2].token, DONE)]).await;
    scenario.lose(worker).await;
    scenario.pass(5 * SECOND_MS - 1).await;
    let resume = [held[0].token, held[2].token];
    let (worker, attached) = scenario.attach(Role::Worker, "w", &resume).await;
    assert_eq!(attached.gone, Tokens(vec![held[2].token]), "what has ended is said");
    assert_eq!(scenario.states(1..=3).await, [Running, Ready, Completed], "the unlisted go back");
    assert_eq!(scenario.kept(id(2)).await.info.attempt, 0, "with their attempts");
    scenario.pass_renewing(worker, &[held[0].token], MINUTE_MS).await;
    scenario.end(worker, &[(held[0].token, DONE)]).await;
    assert_eq!(scenario.kept(id(1)).await.info.attempt, 1);
}

pub(super) async fn a_worker_that_stays_away_loses_its_jobs_after_the_grace(
    scenario: &mut Scenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let held = scenario.take_one(worker);
    scenario.lose(worker).await;
    scenario.pass(5 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
    let (_, attached) = scenario.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens(vec![held.token]));
}

pub(super) async fn every_late_verb_of_a_worker_that_lost_its_lease_is_refused(
    scenario: &mut Scenario,
) {
    let first = scenario.worker("first", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let token = scenario.take_one(first).token;
    scenario.start(first, &[token]);
    // It stands still, and another takes the job.
    scenario.pass(30 * SECOND_MS).await;
    let second = scenario.worker("second", from("/jobs/**"), 1).await;
    let others = scenario.take_one(second).token;
    assert!(others > token);
    let (stale, now) = (Tokens(vec![token]), scenario.now());
    assert_eq!(scenario.store().metrics(now).stale_refused, 0);
    assert_eq!(scenario.renew(first, &[token]), stale);
    assert_eq!(scenario.start(first, &[token]), stale);
    let progress = Progress { token, percent: 50, message: "late".to_owned() };
    assert_eq!(scenario.store().progress(now, first.link, vec![progress]), stale);
    let late = scenario.checkpoint(first, token, 1, &"late".into()).await;
    assert_eq!(late, CheckpointOutcome::StaleToken);
    assert_eq!(scenario.checkpoints(first, token).await, Err(RequestError::StaleToken));
    assert_eq!(scenario.settle(first, &[(token, DONE)]).await, [SettleOutcome::StaleToken]);
    // Nor can it use the other's token.
    assert_eq!(scenario.renew(first, &[others]), Tokens(vec![others]));
    let foreign = scenario.settle(first, &[(others, DONE)]).await;
    assert_eq!(foreign, [SettleOutcome::StaleToken]);
    assert_eq!(
        scenario.store().metrics(now).stale_refused,
        7,
        "each verb that would change a thing"
    );
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    assert_eq!(scenario.kept(id(1)).await.info.progress, None);
    scenario.end(second, &[(others, DONE)]).await;
    assert_eq!(scenario.stat(QUEUE).await.completed, 1);
}

pub(super) async fn a_delivery_that_is_never_begun_ends_in_the_dead_letters(
    scenario: &mut Scenario,
) {
    scenario
        .create([leased(1, JobOptions { max_attempts: Some(10), ..JobOptions::default() })])
        .await;
    for delivery in 1..=30 {
        assert_eq!(scenario.state(id(1)).await, Some(Ready), "{delivery}");
        let worker = scenario.worker(&format!("w{delivery}"), from("/jobs/**"), 1).await;
        assert_eq!(scenario.take_one(worker).handed.deliveries, delivery);
        scenario.lose(worker).await;
        scenario.pass(5 * SECOND_MS).await;
    }
    let view = scenario.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::Undeliverable)));
    assert_eq!(view.info.attempt, 0);
}
