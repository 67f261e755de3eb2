//! How workers end leases.

use bytes::Bytes;
use longshore_protocol::limits::RESULT_BYTES_MAX;
use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{DeathReason, JobState, Role, SettleOutcome, Token};

use super::story::{DONE, QUEUE, SECOND_MS, Story, error, fail, from, id, job};
use crate::Store;
use JobState::{Completed, Dead, Ready, Running, Scheduled};
use SettleOutcome::{Accepted, ResultTooLarge, StaleToken};

pub(super) async fn each_verdict_leads_where_it_says<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 5).await;
    story.create((1..=5).map(job)).await;
    let held = story.take(worker);
    let verdicts = [
        DONE,
        fail(),
        NewSettle::Release,
        NewSettle::Snooze { ms: 5 * SECOND_MS },
        NewSettle::Bury(error("Broken", "no such customer")),
    ];
    let settles: Vec<_> = held.iter().map(|held| held.token).zip(verdicts).collect();
    story.end(worker, &settles).await;
    assert_eq!(story.states(1..=5).await, [Completed, Scheduled, Ready, Scheduled, Dead]);
    let counts = story.counts(QUEUE).await;
    let (retrying, scheduled) = (counts.retrying, counts.scheduled);
    assert_eq!((retrying, scheduled), (1, 1), "a snooze is no retry");
    assert_eq!(story.kept(id(5)).await.info.death, Some(DeathReason::Buried));
    for (n, attempts) in [(1, 1), (2, 1), (3, 0), (4, 0), (5, 1)] {
        assert_eq!(story.kept(id(n)).await.info.attempt, attempts, "job {n}");
    }
    story.pass(5 * SECOND_MS - 1).await;
    assert_eq!(story.state(id(4)).await, Some(Scheduled));
    story.pass(1).await;
    assert_eq!(story.state(id(4)).await, Some(Ready));
    let stat = story.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.failed, stat.died), (1, 1, 1));
}

pub(super) async fn a_resent_batch_of_settles_is_answered_again_and_counts_once<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    story.create([job(1), job(2)]).await;
    let held = story.take(worker);
    let settles = [(held[0].token, DONE), (held[1].token, fail()), (Token(1 << 60), DONE)];
    let first = story.settle_as(worker, 1, &settles).await;
    assert_eq!(first.outcomes.iter().collect::<Vec<_>>(), [Accepted, Accepted, StaleToken]);
    assert_eq!(story.settle_as(worker, 1, &settles).await, first);
    // On another link of the same session, too.
    let (worker, attached) = story.attach(Role::Worker, "w", &[]).await;
    assert_eq!(attached.next_settle, 2);
    assert_eq!(story.settle_as(worker, 1, &settles).await, first);
    let stat = story.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.failed, stat.counts.completed), (1, 1, 1));
}

pub(super) async fn a_stale_token_is_refused_and_counted<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    let other = story.worker("other", from("/jobs/**"), 0).await;
    story.create([job(1)]).await;
    let token = story.take_one(worker).token;
    assert_eq!(story.settle(other, &[(token, DONE)]).await, [StaleToken], "another's lease");
    assert_eq!(story.state(id(1)).await, Some(Running));
    story.end(worker, &[(token, DONE)]).await;
    assert_eq!(story.settle(worker, &[(token, fail())]).await, [StaleToken], "an ended one");
    assert_eq!(story.state(id(1)).await, Some(Completed));
    let now = story.now();
    assert_eq!(story.store().figures(now).stale_refused, 2);
}

pub(super) async fn a_result_over_its_limit_is_refused_and_the_lease_runs_on<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let token = story.take_one(worker).token;
    let result = |bytes| NewSettle::Complete { result: Some(Bytes::from(vec![1; bytes])) };
    let refused = story.settle(worker, &[(token, result(RESULT_BYTES_MAX + 1))]).await;
    assert_eq!(refused, [ResultTooLarge]);
    assert_eq!(story.state(id(1)).await, Some(Running));
    story.end(worker, &[(token, result(RESULT_BYTES_MAX))]).await;
    assert_eq!(story.state(id(1)).await, Some(Completed));
}
