//! What an attempt leaves for those after it.

use bytes::Bytes;
use longshore_protocol::limits::{CHECKPOINT_BYTES_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::{NewSettle, RequestError};
use longshore_protocol::{Backoff, CheckpointOutcome, JobOptions, NewJob, Role, Token};

use super::scenario::{DONE, Scenario, fail, from, id, job};
use CheckpointOutcome::{Accepted, Gap, StaleToken, TooLarge};

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A job that is retried at once.
fn eager(n: u32) -> NewJob {
    let backoff = Some(Backoff::Fixed(0));
    NewJob { options: JobOptions { backoff, ..JobOptions::default() }, ..job(n) }
}

pub(super) async fn checkpoints_are_taken_in_order_and_a_duplicate_is_taken_once(
    scenario: &mut Scenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([eager(1)]).await;
    let held = scenario.take_one(worker);
    assert_eq!(held.handed.checkpoints, 0);
    assert_eq!(scenario.checkpoint(worker, held.token, 2, &text("b")).await, Gap);
    assert_eq!(scenario.checkpoint(worker, held.token, 1, &text("a")).await, Accepted);
    assert_eq!(scenario.checkpoint(worker, held.token, 1, &text("other")).await, Accepted);
    let large = Bytes::from(vec![0; CHECKPOINT_BYTES_MAX + 1]);
    assert_eq!(scenario.checkpoint(worker, held.token, 2, &large).await, TooLarge);
    assert_eq!(scenario.checkpoint(worker, held.token, 2, &text("b")).await, Accepted);
    assert_eq!(scenario.checkpoint(worker, held.token, 4, &text("d")).await, Gap);
    let kept = scenario.checkpoints(worker, held.token).await;
    assert_eq!(kept, Ok(vec![(1, 1, text("a")), (1, 2, text("b"))]), "the first one stays");
    assert_eq!(scenario.checkpoint(worker, Token(1 << 60), 1, &text("x")).await, StaleToken);
    let other = scenario.worker("other", from("/jobs/**"), 0).await;
    assert_eq!(scenario.checkpoint(other, held.token, 3, &text("x")).await, StaleToken);
    assert_eq!(scenario.checkpoints(other, held.token).await, Err(RequestError::StaleToken));
    let now = scenario.now();
    assert_eq!(scenario.store().metrics(now).stale_refused, 2);
}

pub(super) async fn a_later_attempt_reads_what_earlier_ones_left(scenario: &mut Scenario) {
    let first = scenario.worker("first", from("/jobs/**"), 1).await;
    scenario.create([eager(1)]).await;
    let held = scenario.take_one(first);
    scenario.checkpoint(first, held.token, 1, &text("a")).await;
    scenario.end(first, &[(held.token, fail())]).await;
    let second = scenario.worker("second", from("/jobs/**"), 1).await;
    let held = scenario.take_one(second);
    assert_eq!((held.handed.attempt, held.handed.checkpoints), (2, 1));
    assert_eq!(
        scenario.checkpoint(second, held.token, 1, &text("b")).await,
        Accepted,
        "anew from 1"
    );
    scenario.end(second, &[(held.token, NewSettle::Release)]).await;
    scenario.credit(second, 1).await;
    let held = scenario.take_one(second);
    assert_eq!(scenario.checkpoint(second, held.token, 1, &text("c")).await, Accepted);
    let kept = scenario.checkpoints(second, held.token).await.unwrap();
    assert_eq!(kept, [(1, 1, text("a")), (2, 1, text("b")), (2, 1, text("c"))]);
    scenario.end(second, &[(held.token, DONE)]).await;
    assert_eq!(scenario.kept(id(1)).await.checkpoints.len(), 3, "as long as the job is kept");
    assert_eq!(scenario.kept(id(1)).await.info.checkpoints.len(), 3);
}

pub(super) async fn checkpoints_last_over_a_restart(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([eager(1)]).await;
    let held = scenario.take_one(worker);
    scenario.checkpoint(worker, held.token, 1, &text("a")).await;
    scenario.restart().await;
    let (worker, _) = scenario.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(scenario.checkpoint(worker, held.token, 1, &text("a")).await, Accepted, "resent");
    assert_eq!(scenario.checkpoint(worker, held.token, 2, &text("b")).await, Accepted);
    let kept = scenario.checkpoints(worker, held.token).await;
    assert_eq!(kept, Ok(vec![(1, 1, text("a")), (1, 2, text("b"))]));
}

pub(super) async fn only_the_newest_checkpoints_are_kept(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([eager(1), eager(2)]).await;
    let held = scenario.take(worker);
    let most = CHECKPOINTS_MAX as u64;
    for sequence in 1..=most + 6 {
        let bytes = text(&sequence.to_string());
        assert_eq!(scenario.checkpoint(worker, held[0].token, sequence, &bytes).await, Accepted);
    }
    let kept = scenario.checkpoints(worker, held[0].token).await.unwrap();
    let numbers: Vec<u64> = kept.iter().map(|checkpoint| checkpoint.1).collect();
    assert_eq!(numbers, Vec::from_iter(7..=most + 6), "contiguous to the last");
    let large = Bytes::from(vec![1; CHECKPOINT_BYTES_MAX]);
    for sequence in 1..=20 {
        scenario.checkpoint(worker, held[1].token, sequence, &large).await;
    }
    let kept = scenario.checkpoints(worker, held[1].token).await.unwrap();
    let room = CHECKPOINTS_BYTES_MAX / CHECKPOINT_BYTES_MAX;
    assert_eq!((kept.len(), kept[room - 1].1), (room, 20));
}
