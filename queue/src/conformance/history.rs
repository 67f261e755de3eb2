//! What is told of a job's past and present.

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, NewSettle, Progress, ProgressInfo};
use longshore_protocol::{
    AttemptOutcome, Backoff, Decode, Fingerprint, JobError, JobOptions, NewJob, Reader,
};

use super::scenario::{DONE, SECOND_MS, Scenario, error, fail, from, id, job};

fn eager(n: u32, max_attempts: u16) -> NewJob {
    let options = JobOptions {
        backoff: Some(Backoff::Fixed(0)),
        max_attempts: Some(max_attempts),
        keep_result: true,
        ..JobOptions::default()
    };
    NewJob { options, ..job(n) }
}

pub(super) async fn every_attempt_is_told(scenario: &mut Scenario) {
    scenario.create([eager(1, 10)]).await;
    let begin = scenario.now().wall_ms;
    let first = scenario.worker("first", from("/jobs/**"), 1).await;
    let held = scenario.take_one(first);
    scenario.pass(1_500).await;
    let view = scenario.kept(id(1)).await;
    assert_eq!(view.info.worker.as_deref(), Some("first"));
    assert_eq!((view.info.token, view.info.delivered_at), (Some(held.token), Some(begin)));
    scenario.end(first, &[(held.token, NewSettle::Fail(error("Io", "disk 7 is full")))]).await;
    let second = scenario.worker("second", from("/jobs/**"), 1).await;
    let held = scenario.take_one(second);
    scenario.start(second, &[held.token]);
    scenario.lose(second).await;
    scenario.pass(5 * SECOND_MS).await;
    let third = scenario.worker("third", from("/jobs/**"), 1).await;
    let held = scenario.take_one(third);
    scenario.pass(250).await;
    scenario.end(third, &[(held.token, DONE)]).await;
    let view = scenario.kept(id(1)).await;
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
    let error_bytes = scenario.read(view.attempt_errors[0].unwrap());
    let read = JobError::decode(&mut Reader::new(error_bytes)).unwrap();
    assert_eq!(read, error("Io", "disk 7 is full"));
    assert_eq!(view.attempt_errors.len(), 3);
    assert_eq!((view.attempt_errors[1], view.attempt_errors[2]), (None, None));
}

pub(super) async fn a_delivery_given_back_is_no_attempt(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([eager(1, 10)]).await;
    for settle in [NewSettle::Release, NewSettle::Snooze { ms: 0 }] {
        let held = scenario.take_one(worker);
        scenario.end(worker, &[(held.token, settle)]).await;
        scenario.pass(0).await;
        scenario.credit(worker, 1).await;
    }
    let held = scenario.take_one(worker);
    assert_eq!((held.handed.attempt, held.handed.deliveries), (1, 3));
    let view = scenario.kept(id(1)).await;
    assert_eq!((view.info.attempts.len(), view.info.deliveries), (0, 3));
}

pub(super) async fn a_result_is_kept_for_those_who_asked_for_it(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([eager(1, 1), job(2)]).await;
    let held = scenario.take(worker);
    let result = |text: &'static str| NewSettle::Complete {
        result: Some(Bytes::from_static(text.as_bytes())),
    };
    scenario.end(worker, &[(held[0].token, result("42")), (held[1].token, result("43"))]).await;
    scenario.restart().await;
    let kept = scenario.kept(id(1)).await.result.unwrap();
    assert_eq!(scenario.read(kept), Bytes::from_static(b"42"));
    assert_eq!(scenario.kept(id(2)).await.result, None);
}

pub(super) async fn progress_is_told_while_the_lease_lasts(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([eager(1, 2)]).await;
    let token = scenario.take_one(worker).token;
    assert_eq!(scenario.kept(id(1)).await.info.progress, None);
    for (percent, message) in [(10, "reading"), (80, "writing")] {
        scenario.pass(100).await;
        let (now, message) = (scenario.now(), message.to_owned());
        let progress = Progress { token, percent, message: message.clone() };
        let stale = scenario.store().progress(now, worker.link, vec![progress]);
        assert_eq!(stale.0, []);
        let told = ProgressInfo { percent, message, at: now.wall_ms };
        assert_eq!(scenario.kept(id(1)).await.info.progress, Some(told.clone()));
        let listed = scenario.list(super::scenario::filter("/**")).await;
        assert_eq!(listed[0].info.progress, Some(told));
    }
    scenario.end(worker, &[(token, fail())]).await;
    scenario.credit(worker, 1).await;
    assert_ne!(scenario.take_one(worker).token, token);
    assert_eq!(scenario.kept(id(1)).await.info.progress, None, "another attempt");
}

pub(super) async fn the_history_lasts_over_a_restart_and_a_revival(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([eager(1, 2)]).await;
    for _ in 0..2 {
        let held = scenario.take_one(worker);
        scenario.end(worker, &[(held.token, fail())]).await;
        scenario.credit(worker, 1).await;
    }
    scenario.act(Action::Revive, &[id(1)]).await;
    let held = scenario.take_one(worker);
    assert_eq!(held.handed.attempt, 1);
    scenario.end(worker, &[(held.token, DONE)]).await;
    let before = scenario.kept(id(1)).await;
    let numbers: Vec<u16> = before.info.attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 1], "counted anew");
    scenario.restart().await;
    assert_eq!(scenario.kept(id(1)).await, before);
}
