//! How long a worker may keep a job, and what becomes of one whose worker is lost.

use longshore_protocol::messages::work::{Progress, RequestError, Tokens};
use longshore_protocol::{
    AttemptOutcome, Backoff, CheckpointOutcome, DeathReason, JobOptions, JobState, NewJob, Revoked,
    Role, SettleOutcome, Token,
};

use super::story::{DONE, MINUTE_MS, QUEUE, SECOND_MS, Story, from, id, job};
use crate::Store;
use JobState::{Completed, Dead, Ready, Running, Scheduled};

fn leased(n: u32, options: JobOptions) -> NewJob {
    NewJob { options, ..job(n) }
}

pub(super) async fn an_unrenewed_lease_ends_to_the_millisecond<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    let lease_ms = Some(4_000);
    story.create([1, 2].map(|n| leased(n, JobOptions { lease_ms, ..JobOptions::default() }))).await;
    let held = story.take(worker);
    story.pass(3_000).await;
    assert_eq!(story.renew(worker, &[held[1].token]), Tokens::default());
    story.pass(999).await;
    assert_eq!(story.states(1..=2).await, [Running, Running]);
    story.pass(1).await;
    assert_eq!(story.states(1..=2).await, [Ready, Running]);
    assert_eq!(story.revoked(worker), [(Revoked::LeaseLost, held[0].token)]);
    story.pass(2_999).await;
    assert_eq!(story.state(id(2)).await, Some(Running));
    story.pass(1).await;
    assert_eq!(story.state(id(2)).await, Some(Ready));
}

pub(super) async fn losing_a_lease_costs_an_attempt_only_once_it_has_begun<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    story.create([job(1), job(2)]).await;
    let held = story.take(worker);
    assert_eq!(story.start(worker, &[held[0].token]), Tokens::default());
    story.pass(30 * SECOND_MS).await;
    assert_eq!(story.states(1..=2).await, [Ready, Ready], "without back-off");
    let [begun, unbegun] = [story.kept(id(1)).await.info, story.kept(id(2)).await.info];
    assert_eq!((begun.attempt, begun.deliveries), (1, 1));
    assert_eq!((unbegun.attempt, unbegun.deliveries), (0, 1));
    story.credit(worker, 2).await;
    let again: Vec<u16> = story.take(worker).iter().map(|held| held.handed.attempt).collect();
    assert_eq!(again, [2, 1]);
}

pub(super) async fn a_job_that_loses_its_workers_is_dead_and_those_beside_it_are_unharmed<
    S: Store,
>(
    story: &mut Story<'_, S>,
) {
    let backoff = Some(Backoff::Fixed(7_000));
    let poison = JobOptions { backoff, priority: 1, ..JobOptions::default() };
    story.create([leased(0, poison)]).await;
    story.create((1..=100).map(job)).await;
    for death in 1..=3 {
        let worker = story.worker(&format!("w{death}"), from("/jobs/**"), 101).await;
        let held = story.take(worker);
        assert_eq!((held.len(), held[0].id), (101, id(0)));
        story.start(worker, &[held[0].token]);
        story.lose(worker).await;
        story.pass(5 * SECOND_MS).await;
        let expected = [Ready, Scheduled, Dead][death - 1];
        assert_eq!(story.state(id(0)).await, Some(expected), "after loss {death}");
        if expected == Scheduled {
            story.pass(6_999).await;
            assert_eq!(story.state(id(0)).await, Some(Scheduled));
            story.pass(1).await;
        }
    }
    let view = story.kept(id(0)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::WorkerLost)));
    assert_eq!(view.info.attempts.len(), 3);
    let worker = story.worker("last", from("/jobs/**"), 101).await;
    let held = story.take(worker);
    assert_eq!(held.len(), 100);
    assert!(held.iter().all(|held| held.handed.attempt == 1), "none has lost an attempt");
    let settles: Vec<_> = held.iter().map(|held| (held.token, DONE)).collect();
    story.end(worker, &settles).await;
    assert_eq!(story.counts(QUEUE).await.completed, 100);
}

pub(super) async fn an_attempt_that_runs_too_long_has_failed<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    let options = JobOptions {
        run_timeout_ms: Some(60_000),
        backoff: Some(Backoff::Fixed(7_000)),
        ..JobOptions::default()
    };
    let forever = JobOptions { run_timeout_ms: Some(0), ..JobOptions::default() };
    story.create([leased(1, options), leased(2, forever)]).await;
    let tokens: Vec<Token> = story.take(worker).iter().map(|held| held.token).collect();
    // The time counts from the beginning of the attempt, not from its delivery.
    story.pass_renewing(worker, &tokens, 10_000).await;
    story.start(worker, &tokens);
    story.pass_renewing(worker, &tokens, 59_999).await;
    assert_eq!(story.states(1..=2).await, [Running, Running]);
    story.pass(1).await;
    assert_eq!(story.states(1..=2).await, [Scheduled, Running]);
    assert_eq!(story.revoked(worker), [(Revoked::TimedOut, tokens[0])]);
    let view = story.kept(id(1)).await;
    assert_eq!(view.info.attempts[0].outcome, AttemptOutcome::TimedOut);
    assert!(view.info.retrying);
    assert_eq!(story.settle(worker, &[(tokens[0], DONE)]).await, [SettleOutcome::StaleToken]);
    story.credit(worker, 1).await;
    story.pass_renewing(worker, &tokens[1..], 6_999).await;
    assert_eq!(story.state(id(1)).await, Some(Scheduled));
    story.pass(1).await;
    let again = story.take_one(worker);
    assert_eq!((again.id, again.handed.attempt), (id(1), 2));
    // By default an attempt may run for an hour: `forever` is still at it.
    story.pass_renewing(worker, &[again.token, tokens[1]], 2 * super::story::HOUR_MS).await;
    assert_eq!(story.states(1..=2).await, [Running, Running], "the second has not begun");
}

pub(super) async fn the_last_attempt_that_runs_too_long_is_the_end<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    let options =
        JobOptions { run_timeout_ms: Some(5_000), max_attempts: Some(1), ..JobOptions::default() };
    story.create([leased(1, options)]).await;
    let token = story.take_one(worker).token;
    story.start(worker, &[token]);
    story.pass(5_000).await;
    let view = story.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::TimedOut)));
}

pub(super) async fn a_worker_that_is_back_within_the_grace_goes_on<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 3).await;
    story.create([job(1), job(2), job(3)]).await;
    let held = story.take(worker);
    story.end(worker, &[(held[2].token, DONE)]).await;
    story.lose(worker).await;
    story.pass(5 * SECOND_MS - 1).await;
    let resume = [held[0].token, held[2].token];
    let (worker, attached) = story.attach(Role::Worker, "w", &resume).await;
    assert_eq!(attached.gone, Tokens(vec![held[2].token]), "what has ended is said");
    assert_eq!(story.states(1..=3).await, [Running, Ready, Completed], "the unlisted go back");
    assert_eq!(story.kept(id(2)).await.info.attempt, 0, "with their attempts");
    story.pass_renewing(worker, &[held[0].token], MINUTE_MS).await;
    story.end(worker, &[(held[0].token, DONE)]).await;
    assert_eq!(story.kept(id(1)).await.info.attempt, 1);
}

pub(super) async fn a_worker_that_stays_away_loses_its_jobs_after_the_grace<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let held = story.take_one(worker);
    story.lose(worker).await;
    story.pass(5 * SECOND_MS - 1).await;
    assert_eq!(story.state(id(1)).await, Some(Running));
    story.pass(1).await;
    assert_eq!(story.state(id(1)).await, Some(Ready));
    let (_, attached) = story.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens(vec![held.token]));
}

pub(super) async fn every_late_verb_of_a_worker_that_lost_its_lease_is_refused<S: Store>(
    story: &mut Story<'_, S>,
) {
    let first = story.worker("first", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let token = story.take_one(first).token;
    story.start(first, &[token]);
    // It stands still, and another takes the job.
    story.pass(30 * SECOND_MS).await;
    let second = story.worker("second", from("/jobs/**"), 1).await;
    let others = story.take_one(second).token;
    assert!(others > token);
    let (stale, now) = (Tokens(vec![token]), story.now());
    assert_eq!(story.store().figures(now).stale_refused, 0);
    assert_eq!(story.renew(first, &[token]), stale);
    assert_eq!(story.start(first, &[token]), stale);
    let progress = Progress { token, percent: 50, message: "late".to_owned() };
    assert_eq!(story.store().progress(now, first.link, vec![progress]), stale);
    let late = story.checkpoint(first, token, 1, &"late".into()).await;
    assert_eq!(late, CheckpointOutcome::StaleToken);
    assert_eq!(story.checkpoints(first, token).await, Err(RequestError::StaleToken));
    assert_eq!(story.settle(first, &[(token, DONE)]).await, [SettleOutcome::StaleToken]);
    // Nor can it use the other's token.
    assert_eq!(story.renew(first, &[others]), Tokens(vec![others]));
    let foreign = story.settle(first, &[(others, DONE)]).await;
    assert_eq!(foreign, [SettleOutcome::StaleToken]);
    assert_eq!(story.store().figures(now).stale_refused, 7, "each verb that would change a thing");
    assert_eq!(story.state(id(1)).await, Some(Running));
    assert_eq!(story.kept(id(1)).await.info.progress, None);
    story.end(second, &[(others, DONE)]).await;
    assert_eq!(story.stat(QUEUE).await.completed, 1);
}

pub(super) async fn a_delivery_that_is_never_begun_ends_in_the_dead_letters<S: Store>(
    story: &mut Story<'_, S>,
) {
    story.create([leased(1, JobOptions { max_attempts: Some(10), ..JobOptions::default() })]).await;
    for delivery in 1..=30 {
        assert_eq!(story.state(id(1)).await, Some(Ready), "{delivery}");
        let worker = story.worker(&format!("w{delivery}"), from("/jobs/**"), 1).await;
        assert_eq!(story.take_one(worker).handed.deliveries, delivery);
        story.lose(worker).await;
        story.pass(5 * SECOND_MS).await;
    }
    let view = story.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::Undeliverable)));
    assert_eq!(view.info.attempt, 0);
}
