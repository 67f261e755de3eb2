//! Checkpoints of earlier attempts.

use bytes::Bytes;
use longshore_protocol::limits::{CHECKPOINT_BYTES_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::{NewSettle, RequestError};
use longshore_protocol::{Backoff, CheckpointOutcome, JobOptions, NewJob, Role, Token};

use super::scenario::{DONE, StoreScenario, fail, from, id, job};
use CheckpointOutcome::{Accepted, Gap, StaleToken, TooLarge};

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A job that is retried at once.
fn retried_at_once(n: u32) -> NewJob {
    let backoff = Some(Backoff::Fixed(0));
    NewJob { options: JobOptions { backoff, ..JobOptions::default() }, ..job(n) }
}

pub(super) async fn checkpoints_are_accepted_in_order_and_duplicates_once(
    scenario: &mut StoreScenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried_at_once(1)]).await;
    let delivered = scenario.delivered_job(worker);
    assert_eq!(delivered.assignment.checkpoints, 0);
    assert_eq!(scenario.checkpoint(worker, delivered.token, 2, &text("b")).await, Gap);
    assert_eq!(scenario.checkpoint(worker, delivered.token, 1, &text("a")).await, Accepted);
    assert_eq!(scenario.checkpoint(worker, delivered.token, 1, &text("other")).await, Accepted);
    let large = Bytes::from(vec![0; CHECKPOINT_BYTES_MAX + 1]);
    assert_eq!(scenario.checkpoint(worker, delivered.token, 2, &large).await, TooLarge);
    assert_eq!(scenario.checkpoint(worker, delivered.token, 2, &text("b")).await, Accepted);
    assert_eq!(scenario.checkpoint(worker, delivered.token, 4, &text("d")).await, Gap);
    let job_view = scenario.checkpoints(worker, delivered.token).await;
    assert_eq!(job_view, Ok(vec![(1, 1, text("a")), (1, 2, text("b"))]), "the first value stays");
    assert_eq!(scenario.checkpoint(worker, Token(1 << 60), 1, &text("x")).await, StaleToken);
    let other = scenario.worker("other", from("/jobs/**"), 0).await;
    assert_eq!(scenario.checkpoint(other, delivered.token, 3, &text("x")).await, StaleToken);
    assert_eq!(scenario.checkpoints(other, delivered.token).await, Err(RequestError::StaleToken));
    let now = scenario.now();
    assert_eq!(scenario.store().metrics(now).stale_refused, 2);
}

pub(super) async fn later_attempt_reads_earlier_checkpoints(scenario: &mut StoreScenario) {
    let first = scenario.worker("first", from("/jobs/**"), 1).await;
    scenario.create([retried_at_once(1)]).await;
    let delivered = scenario.delivered_job(first);
    scenario.checkpoint(first, delivered.token, 1, &text("a")).await;
    scenario.end(first, &[(delivered.token, fail())]).await;
    let second = scenario.worker("second", from("/jobs/**"), 1).await;
    let delivered = scenario.delivered_job(second);
    assert_eq!((delivered.assignment.attempt, delivered.assignment.checkpoints), (2, 1));
    assert_eq!(
        scenario.checkpoint(second, delivered.token, 1, &text("b")).await,
        Accepted,
        "numbered from 1 again"
    );
    scenario.end(second, &[(delivered.token, NewSettle::Release)]).await;
    scenario.credit(second, 1).await;
    let delivered = scenario.delivered_job(second);
    assert_eq!(scenario.checkpoint(second, delivered.token, 1, &text("c")).await, Accepted);
    let job_view = scenario.checkpoints(second, delivered.token).await.unwrap();
    assert_eq!(job_view, [(1, 1, text("a")), (2, 1, text("b")), (2, 1, text("c"))]);
    scenario.end(second, &[(delivered.token, DONE)]).await;
    assert_eq!(scenario.job_view(id(1)).await.checkpoints.len(), 3, "stored as long as the job");
    assert_eq!(scenario.job_view(id(1)).await.info.checkpoints.len(), 3);
}

pub(super) async fn checkpoints_survive_a_restart(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried_at_once(1)]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.checkpoint(worker, delivered.token, 1, &text("a")).await;
    scenario.restart().await;
    let (worker, _) = scenario.attach(Role::Worker, "w", &[delivered.token]).await;
    assert_eq!(
        scenario.checkpoint(worker, delivered.token, 1, &text("a")).await,
        Accepted,
        "resent"
    );
    assert_eq!(scenario.checkpoint(worker, delivered.token, 2, &text("b")).await, Accepted);
    let job_view = scenario.checkpoints(worker, delivered.token).await;
    assert_eq!(job_view, Ok(vec![(1, 1, text("a")), (1, 2, text("b"))]));
}

pub(super) async fn only_the_newest_checkpoints_are_stored(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([retried_at_once(1), retried_at_once(2)]).await;
    let delivered = scenario.delivered(worker);
    let most = CHECKPOINTS_MAX as u64;
    for sequence in 1..=most + 6 {
        let bytes = text(&sequence.to_string());
        assert_eq!(
            scenario.checkpoint(worker, delivered[0].token, sequence, &bytes).await,
            Accepted
        );
    }
    let job_view = scenario.checkpoints(worker, delivered[0].token).await.unwrap();
    let numbers: Vec<u64> = job_view.iter().map(|checkpoint| checkpoint.1).collect();
    assert_eq!(numbers, Vec::from_iter(7..=most + 6), "contiguous to the last");
    let large = Bytes::from(vec![1; CHECKPOINT_BYTES_MAX]);
    for sequence in 1..=20 {
        scenario.checkpoint(worker, delivered[1].token, sequence, &large).await;
    }
    let job_view = scenario.checkpoints(worker, delivered[1].token).await.unwrap();
    let room = CHECKPOINTS_BYTES_MAX / CHECKPOINT_BYTES_MAX;
    assert_eq!((job_view.len(), job_view[room - 1].1), (room, 20));
}
