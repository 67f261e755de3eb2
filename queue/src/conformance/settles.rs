//! How workers end leases.

use bytes::Bytes;
use longshore_protocol::limits::RESULT_BYTES_MAX;
use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{DeathReason, JobState, Role, SettleOutcome, Token};

use super::scenario::{DONE, QUEUE, SECOND_MS, Scenario, error, fail, from, id, job};
use JobState::{Completed, Dead, Ready, Running, Scheduled};
use SettleOutcome::{Accepted, ResultTooLarge, StaleToken};

pub(super) async fn each_verdict_leads_where_it_says(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    scenario.create((1..=5).map(job)).await;
    let held = scenario.take(worker);
    let verdicts = [
        DONE,
        fail(),
        NewSettle::Release,
        NewSettle::Snooze { ms: 5 * SECOND_MS },
        NewSettle::Bury(error("Broken", "no such customer")),
    ];
    let settles: Vec<_> = held.iter().map(|held| held.token).zip(verdicts).collect();
    scenario.end(worker, &settles).await;
    assert_eq!(scenario.states(1..=5).await, [Completed, Scheduled, Ready, Scheduled, Dead]);
    let counts = scenario.counts(QUEUE).await;
    let (retrying, scheduled) = (counts.retrying, counts.scheduled);
    assert_eq!((retrying, scheduled), (1, 1), "a snooze is no retry");
    assert_eq!(scenario.kept(id(5)).await.info.death, Some(DeathReason::Buried));
    for (n, attempts) in [(1, 1), (2, 1), (3, 0), (4, 0), (5, 1)] {
        assert_eq!(scenario.kept(id(n)).await.info.attempt, attempts, "job {n}");
    }
    scenario.pass(5 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(4)).await, Some(Scheduled));
    scenario.pass(1).await;
    assert_eq!(scenario.state(id(4)).await, Some(Ready));
    let stat = scenario.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.failed, stat.died), (1, 1, 1));
}

pub(super) async fn a_resent_batch_of_settles_is_answered_again_and_counts_once(
    scenario: &mut Scenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1), job(2)]).await;
    let held = scenario.take(worker);
    let settles = [(held[0].token, DONE), (held[1].token, fail()), (Token(1 << 60), DONE)];
    let first = scenario.settle_as(worker, 1, &settles).await;
    assert_eq!(first.outcomes.iter().collect::<Vec<_>>(), [Accepted, Accepted, StaleToken]);
    assert_eq!(scenario.settle_as(worker, 1, &settles).await, first);
    // On another link of the same session, too.
    let (worker, attached) = scenario.attach(Role::Worker, "w", &[]).await;
    assert_eq!(attached.next_settle, 2);
    assert_eq!(scenario.settle_as(worker, 1, &settles).await, first);
    let stat = scenario.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.failed, stat.counts.completed), (1, 1, 1));
}

pub(super) async fn a_stale_token_is_refused_and_counted(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let other = scenario.worker("other", from("/jobs/**"), 0).await;
    scenario.create([job(1)]).await;
    let token = scenario.take_one(worker).token;
    assert_eq!(scenario.settle(other, &[(token, DONE)]).await, [StaleToken], "another's lease");
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.end(worker, &[(token, DONE)]).await;
    assert_eq!(scenario.settle(worker, &[(token, fail())]).await, [StaleToken], "an ended one");
    assert_eq!(scenario.state(id(1)).await, Some(Completed));
    let now = scenario.now();
    assert_eq!(scenario.store().metrics(now).stale_refused, 2);
}

pub(super) async fn a_result_over_its_limit_is_refused_and_the_lease_runs_on(
    scenario: &mut Scenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let token = scenario.take_one(worker).token;
    let result = |bytes| NewSettle::Complete { result: Some(Bytes::from(vec![1; bytes])) };
    let refused = scenario.settle(worker, &[(token, result(RESULT_BYTES_MAX + 1))]).await;
    assert_eq!(refused, [ResultTooLarge]);
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.end(worker, &[(token, result(RESULT_BYTES_MAX))]).await;
    assert_eq!(scenario.state(id(1)).await, Some(Completed));
}
