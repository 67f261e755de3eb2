//! Settling leases.

use bytes::Bytes;
use longshore_protocol::limits::RESULT_BYTES_MAX;
use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{DeathReason, JobState, Role, SettleOutcome, Token};

use super::scenario::{DONE, QUEUE, SECOND_MS, StoreScenario, error, fail, from, id, job};
use JobState::{Completed, Dead, Ready, Running, Scheduled};
use SettleOutcome::{Accepted, ResultTooLarge, StaleToken};

pub(super) async fn each_verdict_leads_to_its_state(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    scenario.create((1..=5).map(job)).await;
    let delivered = scenario.delivered(worker);
    let verdicts = [
        DONE,
        fail(),
        NewSettle::Release,
        NewSettle::Snooze { ms: 5 * SECOND_MS },
        NewSettle::Bury(error("Broken", "no such customer")),
    ];
    let settles: Vec<_> = delivered.iter().map(|delivered| delivered.token).zip(verdicts).collect();
    scenario.end(worker, &settles).await;
    assert_eq!(scenario.states(1..=5).await, [Completed, Scheduled, Ready, Scheduled, Dead]);
    let counts = scenario.counts(QUEUE).await;
    let (retrying, scheduled) = (counts.retrying, counts.scheduled);
    assert_eq!((retrying, scheduled), (1, 1), "a snooze is not a retry");
    assert_eq!(scenario.job_view(id(5)).await.info.death, Some(DeathReason::Buried));
    for (n, attempts) in [(1, 1), (2, 1), (3, 0), (4, 0), (5, 1)] {
        assert_eq!(scenario.job_view(id(n)).await.info.attempt, attempts, "job {n}");
    }
    scenario.advance(5 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(4)).await, Some(Scheduled));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(4)).await, Some(Ready));
    let stat = scenario.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.failed, stat.died), (1, 1, 1));
}

pub(super) async fn resent_settles_receive_their_first_answer_and_count_once(
    scenario: &mut StoreScenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1), job(2)]).await;
    let delivered = scenario.delivered(worker);
    let settles =
        [(delivered[0].token, DONE), (delivered[1].token, fail()), (Token(1 << 60), DONE)];
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

pub(super) async fn stale_token_is_refused_and_counted(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let other = scenario.worker("other", from("/jobs/**"), 0).await;
    scenario.create([job(1)]).await;
    let token = scenario.delivered_job(worker).token;
    assert_eq!(
        scenario.settle(other, &[(token, DONE)]).await,
        [StaleToken],
        "another session's lease"
    );
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.end(worker, &[(token, DONE)]).await;
    assert_eq!(scenario.settle(worker, &[(token, fail())]).await, [StaleToken], "an ended lease");
    assert_eq!(scenario.state(id(1)).await, Some(Completed));
    let now = scenario.now();
    assert_eq!(scenario.store().metrics(now).stale_refused, 2);
}

pub(super) async fn oversized_result_is_refused_and_the_lease_runs_on(
    scenario: &mut StoreScenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let token = scenario.delivered_job(worker).token;
    let result = |bytes| NewSettle::Complete { result: Some(Bytes::from(vec![1; bytes])) };
    let refused = scenario.settle(worker, &[(token, result(RESULT_BYTES_MAX + 1))]).await;
    assert_eq!(refused, [ResultTooLarge]);
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    scenario.end(worker, &[(token, result(RESULT_BYTES_MAX))]).await;
    assert_eq!(scenario.state(id(1)).await, Some(Completed));
}
