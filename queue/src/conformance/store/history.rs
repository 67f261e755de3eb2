//! What is told of a job's past and present.

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, NewSettle, Progress, ProgressInfo};
use longshore_protocol::{
    AttemptOutcome, Backoff, Decode, Fingerprint, JobError, JobOptions, NewJob, Reader,
};

use super::story::{DONE, SECOND_MS, Story, error, fail, from, id, job};
use crate::Store;

fn eager(n: u32, max_attempts: u16) -> NewJob {
    let options = JobOptions {
        backoff: Some(Backoff::Fixed(0)),
        max_attempts: Some(max_attempts),
        keep_result: true,
        ..JobOptions::default()
    };
    NewJob { options, ..job(n) }
}

pub(super) async fn every_attempt_is_told<S: Store>(story: &mut Story<'_, S>) {
    story.create([eager(1, 10)]).await;
    let begin = story.now().wall_ms;
    let first = story.worker("first", from("/jobs/**"), 1).await;
    let held = story.take_one(first);
    story.pass(1_500).await;
    let view = story.kept(id(1)).await;
    assert_eq!(view.info.worker.as_deref(), Some("first"));
    assert_eq!((view.info.token, view.info.delivered_at), (Some(held.token), Some(begin)));
    story.end(first, &[(held.token, NewSettle::Fail(error("Io", "disk 7 is full")))]).await;
    let second = story.worker("second", from("/jobs/**"), 1).await;
    let held = story.take_one(second);
    story.start(second, &[held.token]);
    story.lose(second).await;
    story.pass(5 * SECOND_MS).await;
    let third = story.worker("third", from("/jobs/**"), 1).await;
    let held = story.take_one(third);
    story.pass(250).await;
    story.end(third, &[(held.token, DONE)]).await;
    let view = story.kept(id(1)).await;
    let told: Vec<_> = view
        .info
        .attempts
        .iter()
        .map(|attempt| {
            let (from, to) = (attempt.delivered_at - begin, attempt.ended_at - begin);
            (attempt.number, attempt.worker.as_str(), from, to, attempt.outcome)
        })
        .collect();
    let wanted = [
        (1, "first", 0, 1_500, AttemptOutcome::Failed),
        (2, "second", 1_500, 6_500, AttemptOutcome::WorkerLost),
        (3, "third", 6_500, 6_750, AttemptOutcome::Completed),
    ];
    assert_eq!(told, wanted);
    let fingerprint = Fingerprint::of_parts("Io", "disk 9 is full");
    assert_eq!(view.info.attempts[0].fingerprint, Some(fingerprint));
    let error_bytes = story.read(view.attempt_errors[0].unwrap());
    let read = JobError::decode(&mut Reader::new(error_bytes)).unwrap();
    assert_eq!(read, error("Io", "disk 7 is full"));
    assert_eq!(view.attempt_errors.len(), 3);
    assert_eq!((view.attempt_errors[1], view.attempt_errors[2]), (None, None));
}

pub(super) async fn a_delivery_given_back_is_no_attempt<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([eager(1, 10)]).await;
    for settle in [NewSettle::Release, NewSettle::Snooze { ms: 0 }] {
        let held = story.take_one(worker);
        story.end(worker, &[(held.token, settle)]).await;
        story.pass(0).await;
        story.credit(worker, 1).await;
    }
    let held = story.take_one(worker);
    assert_eq!((held.handed.attempt, held.handed.deliveries), (1, 3));
    let view = story.kept(id(1)).await;
    assert_eq!((view.info.attempts.len(), view.info.deliveries), (0, 3));
}

pub(super) async fn a_result_is_kept_for_those_who_asked_for_it<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    story.create([eager(1, 1), job(2)]).await;
    let held = story.take(worker);
    let result = |text: &'static str| NewSettle::Complete {
        result: Some(Bytes::from_static(text.as_bytes())),
    };
    story.end(worker, &[(held[0].token, result("42")), (held[1].token, result("43"))]).await;
    story.restart().await;
    let kept = story.kept(id(1)).await.result.unwrap();
    assert_eq!(story.read(kept), Bytes::from_static(b"42"));
    assert_eq!(story.kept(id(2)).await.result, None);
}

pub(super) async fn progress_is_told_while_the_lease_lasts<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([eager(1, 2)]).await;
    let token = story.take_one(worker).token;
    assert_eq!(story.kept(id(1)).await.info.progress, None);
    for (percent, message) in [(10, "reading"), (80, "writing")] {
        story.pass(100).await;
        let (now, message) = (story.now(), message.to_owned());
        let progress = Progress { token, percent, message: message.clone() };
        let stale = story.store().progress(now, worker.link, vec![progress]);
        assert_eq!(stale.0, []);
        let told = ProgressInfo { percent, message, at: now.wall_ms };
        assert_eq!(story.kept(id(1)).await.info.progress, Some(told.clone()));
        let listed = story.list(super::story::filter("/**")).await;
        assert_eq!(listed[0].info.progress, Some(told));
    }
    story.end(worker, &[(token, fail())]).await;
    story.credit(worker, 1).await;
    assert_ne!(story.take_one(worker).token, token);
    assert_eq!(story.kept(id(1)).await.info.progress, None, "another attempt");
}

pub(super) async fn the_history_lasts_over_a_restart_and_a_revival<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([eager(1, 2)]).await;
    for _ in 0..2 {
        let held = story.take_one(worker);
        story.end(worker, &[(held.token, fail())]).await;
        story.credit(worker, 1).await;
    }
    story.act(Action::Revive, &[id(1)]).await;
    let held = story.take_one(worker);
    assert_eq!(held.handed.attempt, 1);
    story.end(worker, &[(held.token, DONE)]).await;
    let before = story.kept(id(1)).await;
    let numbers: Vec<u16> = before.info.attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 1], "counted anew");
    story.restart().await;
    assert_eq!(story.kept(id(1)).await, before);
}
