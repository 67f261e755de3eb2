//! What an attempt leaves for those after it.

use bytes::Bytes;
use longshore_protocol::limits::{CHECKPOINT_BYTES_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::{NewSettle, RequestError};
use longshore_protocol::{Backoff, CheckpointOutcome, JobOptions, NewJob, Role, Token};

use super::story::{DONE, Story, fail, from, id, job};
use crate::Store;
use CheckpointOutcome::{Accepted, Gap, StaleToken, TooLarge};

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A job that is retried at once.
fn eager(n: u32) -> NewJob {
    let backoff = Some(Backoff::Fixed(0));
    NewJob { options: JobOptions { backoff, ..JobOptions::default() }, ..job(n) }
}

pub(super) async fn checkpoints_are_taken_in_order_and_a_duplicate_is_taken_once<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([eager(1)]).await;
    let held = story.take_one(worker);
    assert_eq!(held.handed.checkpoints, 0);
    assert_eq!(story.checkpoint(worker, held.token, 2, &text("b")).await, Gap);
    assert_eq!(story.checkpoint(worker, held.token, 1, &text("a")).await, Accepted);
    assert_eq!(story.checkpoint(worker, held.token, 1, &text("other")).await, Accepted);
    let large = Bytes::from(vec![0; CHECKPOINT_BYTES_MAX + 1]);
    assert_eq!(story.checkpoint(worker, held.token, 2, &large).await, TooLarge);
    assert_eq!(story.checkpoint(worker, held.token, 2, &text("b")).await, Accepted);
    assert_eq!(story.checkpoint(worker, held.token, 4, &text("d")).await, Gap);
    let kept = story.checkpoints(worker, held.token).await;
    assert_eq!(kept, Ok(vec![(1, 1, text("a")), (1, 2, text("b"))]), "the first one stays");
    assert_eq!(story.checkpoint(worker, Token(1 << 60), 1, &text("x")).await, StaleToken);
    let other = story.worker("other", from("/jobs/**"), 0).await;
    assert_eq!(story.checkpoint(other, held.token, 3, &text("x")).await, StaleToken);
    assert_eq!(story.checkpoints(other, held.token).await, Err(RequestError::StaleToken));
    let now = story.now();
    assert_eq!(story.store().figures(now).stale_refused, 2);
}

pub(super) async fn a_later_attempt_reads_what_earlier_ones_left<S: Store>(
    story: &mut Story<'_, S>,
) {
    let first = story.worker("first", from("/jobs/**"), 1).await;
    story.create([eager(1)]).await;
    let held = story.take_one(first);
    story.checkpoint(first, held.token, 1, &text("a")).await;
    story.end(first, &[(held.token, fail())]).await;
    let second = story.worker("second", from("/jobs/**"), 1).await;
    let held = story.take_one(second);
    assert_eq!((held.handed.attempt, held.handed.checkpoints), (2, 1));
    assert_eq!(story.checkpoint(second, held.token, 1, &text("b")).await, Accepted, "anew from 1");
    story.end(second, &[(held.token, NewSettle::Release)]).await;
    story.credit(second, 1).await;
    let held = story.take_one(second);
    assert_eq!(story.checkpoint(second, held.token, 1, &text("c")).await, Accepted);
    let kept = story.checkpoints(second, held.token).await.unwrap();
    assert_eq!(kept, [(1, 1, text("a")), (2, 1, text("b")), (2, 1, text("c"))]);
    story.end(second, &[(held.token, DONE)]).await;
    assert_eq!(story.kept(id(1)).await.checkpoints.len(), 3, "as long as the job is kept");
    assert_eq!(story.kept(id(1)).await.info.checkpoints.len(), 3);
}

pub(super) async fn checkpoints_last_over_a_restart<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([eager(1)]).await;
    let held = story.take_one(worker);
    story.checkpoint(worker, held.token, 1, &text("a")).await;
    story.restart().await;
    let (worker, _) = story.attach(Role::Worker, "w", &[held.token]).await;
    assert_eq!(story.checkpoint(worker, held.token, 1, &text("a")).await, Accepted, "resent");
    assert_eq!(story.checkpoint(worker, held.token, 2, &text("b")).await, Accepted);
    let kept = story.checkpoints(worker, held.token).await;
    assert_eq!(kept, Ok(vec![(1, 1, text("a")), (1, 2, text("b"))]));
}

pub(super) async fn only_the_newest_checkpoints_are_kept<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    story.create([eager(1), eager(2)]).await;
    let held = story.take(worker);
    let most = CHECKPOINTS_MAX as u64;
    for sequence in 1..=most + 6 {
        let bytes = text(&sequence.to_string());
        assert_eq!(story.checkpoint(worker, held[0].token, sequence, &bytes).await, Accepted);
    }
    let kept = story.checkpoints(worker, held[0].token).await.unwrap();
    let numbers: Vec<u64> = kept.iter().map(|checkpoint| checkpoint.1).collect();
    assert_eq!(numbers, Vec::from_iter(7..=most + 6), "contiguous to the last");
    let large = Bytes::from(vec![1; CHECKPOINT_BYTES_MAX]);
    for sequence in 1..=20 {
        story.checkpoint(worker, held[1].token, sequence, &large).await;
    }
    let kept = story.checkpoints(worker, held[1].token).await.unwrap();
    let room = CHECKPOINTS_BYTES_MAX / CHECKPOINT_BYTES_MAX;
    assert_eq!((kept.len(), kept[room - 1].1), (room, 20));
}
