//! Leases: their end by time, by lost workers and by run timeouts.

use longshore_protocol::messages::work::{Progress, RequestError, Tokens};
use longshore_protocol::{
    AttemptOutcome, Backoff, CheckpointOutcome, DeathReason, JobOptions, JobState, NewJob, Revoked,
    Role, SettleOutcome, Token,
};

use super::scenario::{DONE, MINUTE_MS, QUEUE, SECOND_MS, StoreScenario, from, id, job};
use JobState::{Completed, Dead, Ready, Running, Scheduled};

fn leased(n: u32, options: JobOptions) -> NewJob {
    NewJob { options, ..job(n) }
}

pub(super) async fn unrenewed_lease_ends_to_the_millisecond(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let lease_ms = Some(4_000);
    scenario
        .create([1, 2].map(|n| leased(n, JobOptions { lease_ms, ..JobOptions::default() })))
        .await;
    let delivered = scenario.delivered(worker);
    scenario.advance(3_000).await;
    assert_eq!(scenario.renew(worker, &[delivered[1].token]), Tokens::default());
    scenario.advance(999).await;
    assert_eq!(scenario.states(1..=2).await, [Running, Running]);
    scenario.advance(1).await;
    assert_eq!(scenario.states(1..=2).await, [Ready, Running]);
    assert_eq!(scenario.revoked(worker), [(Revoked::LeaseLost, delivered[0].token)]);
    scenario.advance(2_999).await;
    assert_eq!(scenario.state(id(2)).await, Some(Running));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(2)).await, Some(Ready));
}

pub(super) async fn lost_lease_costs_an_attempt_only_once_started(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1), job(2)]).await;
    let delivered = scenario.delivered(worker);
    assert_eq!(scenario.start(worker, &[delivered[0].token]), Tokens::default());
    scenario.advance(30 * SECOND_MS).await;
    assert_eq!(scenario.states(1..=2).await, [Ready, Ready], "ready at once");
    let [begun, unbegun] =
        [scenario.job_view(id(1)).await.info, scenario.job_view(id(2)).await.info];
    assert_eq!((begun.attempt, begun.deliveries), (1, 1));
    assert_eq!((unbegun.attempt, unbegun.deliveries), (0, 1));
    scenario.credit(worker, 2).await;
    let again: Vec<u16> =
        scenario.delivered(worker).iter().map(|delivered| delivered.assignment.attempt).collect();
    assert_eq!(again, [2, 1]);
}

pub(super) async fn job_that_loses_three_workers_is_dead_and_harms_no_other(
    scenario: &mut StoreScenario,
) {
    let backoff = Some(Backoff::Fixed(7_000));
    let poison = JobOptions { backoff, priority: 1, ..JobOptions::default() };
    scenario.create([leased(0, poison)]).await;
    scenario.create((1..=100).map(job)).await;
    for death in 1..=3 {
        let worker = scenario.worker(&format!("w{death}"), from("/jobs/**"), 101).await;
        let delivered = scenario.delivered(worker);
        assert_eq!((delivered.len(), delivered[0].id), (101, id(0)));
        scenario.start(worker, &[delivered[0].token]);
        scenario.lose_link(worker).await;
        scenario.advance(5 * SECOND_MS).await;
        let expected = [Ready, Scheduled, Dead][death - 1];
        assert_eq!(scenario.state(id(0)).await, Some(expected), "after loss {death}");
        if expected == Scheduled {
            scenario.advance(6_999).await;
            assert_eq!(scenario.state(id(0)).await, Some(Scheduled));
            scenario.advance(1).await;
        }
    }
    let view = scenario.job_view(id(0)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::WorkerLost)));
    assert_eq!(view.info.attempts.len(), 3);
    let worker = scenario.worker("last", from("/jobs/**"), 101).await;
    let delivered = scenario.delivered(worker);
    assert_eq!(delivered.len(), 100);
    assert!(
        delivered.iter().all(|delivered| delivered.assignment.attempt == 1),
        "no other job has lost an attempt"
    );
    let settles: Vec<_> = delivered.iter().map(|delivered| (delivered.token, DONE)).collect();
    scenario.end(worker, &settles).await;
    assert_eq!(scenario.counts(QUEUE).await.completed, 100);
}

pub(super) async fn attempt_over_its_run_timeout_has_failed(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let options = JobOptions {
        run_timeout_ms: Some(60_000),
        backoff: Some(Backoff::Fixed(7_000)),
        ..JobOptions::default()
    };
    let forever = JobOptions { run_timeout_ms: Some(0), ..JobOptions::default() };
    scenario.create([leased(1, options), leased(2, forever)]).await;
    let tokens: Vec<Token> =
        scenario.delivered(worker).iter().map(|delivered| delivered.token).collect();
    // The time counts from the start of the attempt, not from its delivery.
    scenario.advance_renewing(worker, &tokens, 10_000).await;
    scenario.start(worker, &tokens);
    scenario.advance_renewing(worker, &tokens, 59_999).await;
    assert_eq!(scenario.states(1..=2).await, [Running, Running]);
    scenario.advance(1).await;
    assert_eq!(scenario.states(1..=2).await, [Scheduled, Running]);
    assert_eq!(scenario.revoked(worker), [(Revoked::TimedOut, tokens[0])]);
    let view = scenario.job_view(id(1)).await;
    assert_eq!(view.info.attempts[0].outcome, AttemptOutcome::TimedOut);
    assert!(view.info.retrying);
    assert_eq!(scenario.settle(worker, &[(tokens[0], DONE)]).await, [SettleOutcome::StaleToken]);
    scenario.credit(worker, 1).await;
    scenario.advance_renewing(worker, &tokens[1..], 6_999).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
    scenario.advance(1).await;
    let again = scenario.delivered_job(worker);
    assert_eq!((again.id, again.assignment.attempt), (id(1), 2));
    // By default an attempt may run for an hour; `forever` still runs.
    scenario
        .advance_renewing(worker, &[again.token, tokens[1]], 2 * super::scenario::HOUR_MS)
        .await;
    assert_eq!(
        scenario.states(1..=2).await,
        [Running, Running],
        "the second attempt was not started"
    );
}

pub(super) async fn last_attempt_over_its_run_timeout_kills_the_job(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let options =
        JobOptions { run_timeout_ms: Some(5_000), max_attempts: Some(1), ..JobOptions::default() };
    scenario.create([leased(1, options)]).await;
    let token = scenario.delivered_job(worker).token;
    scenario.start(worker, &[token]);
    scenario.advance(5_000).await;
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::TimedOut)));
}

pub(super) async fn worker_that_returns_within_the_grace_continues(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    scenario.create([job(1), job(2), job(3)]).await;
    let delivered = scenario.delivered(worker);
    scenario.end(worker, &[(delivered[2].token, DONE)]).await;
    scenario.lose_link(worker).await;
    scenario.advance(5 * SECOND_MS - 1).await;
    let resume = [delivered[0].token, delivered[2].token];
    let (worker, attached) = scenario.attach(Role::Worker, "w", &resume).await;
    assert_eq!(attached.gone, Tokens(vec![delivered[2].token]), "ended leases are reported");
    assert_eq!(
        scenario.states(1..=3).await,
        [Running, Ready, Completed],
        "unlisted leases are released"
    );
    assert_eq!(scenario.job_view(id(2)).await.info.attempt, 0, "without counting the attempt");
    scenario.advance_renewing(worker, &[delivered[0].token], MINUTE_MS).await;
    scenario.end(worker, &[(delivered[0].token, DONE)]).await;
    assert_eq!(scenario.job_view(id(1)).await.info.attempt, 1);
}

pub(super) async fn worker_that_stays_away_loses_its_jobs_after_the_grace(
    scenario: &mut StoreScenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.lose_link(worker).await;
    scenario.advance(5 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
    let (_, attached) = scenario.attach(Role::Worker, "w", &[delivered.token]).await;
    assert_eq!(attached.gone, Tokens(vec![delivered.token]));
}

pub(super) async fn every_message_about_a_lost_lease_is_refused(scenario: &mut StoreScenario) {
    let first = scenario.worker("first", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let token = scenario.delivered_job(first).token;
    scenario.start(first, &[token]);
    // The worker hangs, and another takes the job.
    scenario.advance(30 * SECOND_MS).await;
    let second = scenario.worker("second", from("/jobs/**"), 1).await;
    let others = scenario.delivered_job(second).token;
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
    // It cannot use the other's token either.
    assert_eq!(scenario.renew(first, &[others]), Tokens(vec![others]));
    let foreign = scenario.settle(first, &[(others, DONE)]).await;
    assert_eq!(foreign, [SettleOutcome::StaleToken]);
    assert_eq!(
        scenario.store().metrics(now).stale_refused,
        7,
        "each message that would change something"
    );
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    assert_eq!(scenario.job_view(id(1)).await.info.progress, None);
    scenario.end(second, &[(others, DONE)]).await;
    assert_eq!(scenario.stat(QUEUE).await.completed, 1);
}

pub(super) async fn job_that_is_never_started_goes_to_the_dead_letters(
    scenario: &mut StoreScenario,
) {
    scenario
        .create([leased(1, JobOptions { max_attempts: Some(10), ..JobOptions::default() })])
        .await;
    for delivery in 1..=30 {
        assert_eq!(scenario.state(id(1)).await, Some(Ready), "{delivery}");
        let worker = scenario.worker(&format!("w{delivery}"), from("/jobs/**"), 1).await;
        assert_eq!(scenario.delivered_job(worker).assignment.deliveries, delivery);
        scenario.lose_link(worker).await;
        scenario.advance(5 * SECOND_MS).await;
    }
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::Undeliverable)));
    assert_eq!(view.info.attempt, 0);
}
