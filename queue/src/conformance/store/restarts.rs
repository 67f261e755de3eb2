//! What a restart of the publisher leaves.

use longshore_protocol::messages::work::Tokens;
use longshore_protocol::{Due, JobOptions, JobState, NewJob, Role, SettleOutcome};

use super::story::{DONE, QUEUE, SECOND_MS, Story, fail, from, id, job};
use crate::Store;
use JobState::{Completed, Dead, Ready, Running, Scheduled};

pub(super) async fn everything_is_there_after_a_restart<S: Store>(story: &mut Story<'_, S>) {
    let options = |options| NewJob { options, ..job(1) };
    let dies = options(JobOptions { max_attempts: Some(1), ..JobOptions::default() });
    let later = options(JobOptions { due: Due::After(60_000), ..JobOptions::default() });
    let worker = story.worker("w", from("/jobs/**"), 3).await;
    story.create([job(1), NewJob { id: id(2), ..dies }, job(3)]).await;
    let held = story.take(worker);
    story.end(worker, &[(held[0].token, DONE), (held[1].token, fail())]).await;
    story.create([job(4), NewJob { id: id(5), ..later }]).await;
    let before = (story.list(super::story::filter("/**")).await, story.stat(QUEUE).await);
    story.restart().await;
    assert_eq!(story.states(1..=5).await, [Completed, Dead, Running, Ready, Scheduled]);
    let (jobs, mut stat) = (story.list(super::story::filter("/**")).await, story.stat(QUEUE).await);
    assert_eq!(jobs, before.0);
    // Subscriptions are of links, and those are gone.
    (stat.subscriptions, stat.credits) = (before.1.subscriptions, before.1.credits);
    assert_eq!(stat, before.1);
    for n in 1..=5 {
        let entry = story.kept(id(n)).await.entry;
        assert!(
            story
                .read(entry)
                .ends_with(format!("payload {}", if n == 2 || n == 5 { 1 } else { n }).as_bytes())
        );
    }
}

pub(super) async fn leases_resumed_within_the_window_go_on<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let held = story.take_one(worker);
    story.restart().await;
    story.pass(30 * SECOND_MS - 1).await;
    let (worker, attached) = story.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens::default());
    story.pass_renewing(worker, &[held.token], 60 * SECOND_MS).await;
    story.end(worker, &[(held.token, DONE)]).await;
    let view = story.kept(id(1)).await;
    assert_eq!((view.info.attempt, view.info.deliveries), (1, 1));
}

pub(super) async fn leases_that_nobody_resumes_go_back_with_their_attempt<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let held = story.take_one(worker);
    story.start(worker, &[held.token]);
    story.restart().await;
    story.pass(30 * SECOND_MS - 1).await;
    assert_eq!(story.state(id(1)).await, Some(Running));
    story.pass(1).await;
    assert_eq!(story.state(id(1)).await, Some(Ready));
    assert_eq!(story.kept(id(1)).await.info.attempt, 0, "a restart costs no attempt");
    let (worker, attached) = story.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens(vec![held.token]));
    assert_eq!(story.settle(worker, &[(held.token, DONE)]).await, [SettleOutcome::StaleToken]);
}

pub(super) async fn the_time_of_an_attempt_runs_on_over_a_restart<S: Store>(
    story: &mut Story<'_, S>,
) {
    let options = JobOptions { run_timeout_ms: Some(60_000), ..JobOptions::default() };
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([NewJob { options, ..job(1) }]).await;
    let held = story.take_one(worker);
    story.start(worker, &[held.token]);
    story.pass_renewing(worker, &[held.token], 40_000).await;
    story.restart().await;
    story.pass(5_000).await;
    let (worker, _) = story.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(story.started(worker, &[held.token], &[45_000]), Tokens::default());
    story.pass_renewing(worker, &[held.token], 14_999).await;
    assert_eq!(story.state(id(1)).await, Some(Running));
    story.pass(1).await;
    assert_eq!(story.state(id(1)).await, Some(Scheduled));
}

pub(super) async fn a_settle_is_answered_again_after_a_restart<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let held = story.take_one(worker);
    let first = story.settle_as(worker, 1, &[(held.token, DONE)]).await;
    story.restart().await;
    // The answer was lost: the worker still lists the token.
    let (worker, attached) = story.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(attached.gone, Tokens(vec![held.token]));
    assert_eq!(story.settle_as(worker, 1, &[(held.token, DONE)]).await, first);
    let stat = story.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.counts.completed, stat.stale_refused), (1, 1, 0));
}

pub(super) async fn tokens_and_starts_rise<S: Store>(story: &mut Story<'_, S>) {
    let (mut last, mut epoch) = (None, None);
    let publisher = story.store().identity().0;
    for n in 1..=4 {
        story.create([job(n)]).await;
        let worker = story.worker(&format!("w{n}"), from("/jobs/**"), 1).await;
        let held = story.take_one(worker);
        assert!(Some(held.token) > last);
        last = Some(held.token);
        story.end(worker, &[(held.token, DONE)]).await;
        assert!(Some(story.epoch()) > epoch);
        epoch = Some(story.epoch());
        story.restart().await;
        assert_eq!(story.store().identity().0, publisher);
    }
}
