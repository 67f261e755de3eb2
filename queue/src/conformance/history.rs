//! What a job's info shows of its past and present.

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, NewSettle, Progress, ProgressInfo};
use longshore_protocol::{
    AttemptOutcome, Backoff, Decode, Fingerprint, JobError, JobOptions, NewJob, Reader,
};

use super::scenario::{DONE, SECOND_MS, StoreScenario, error, fail, from, id, job};

fn retried_at_once(n: u32, max_attempts: u16) -> NewJob {
    let options = JobOptions {
        backoff: Some(Backoff::Fixed(0)),
        max_attempts: Some(max_attempts),
        keep_result: true,
        ..JobOptions::default()
    };
    NewJob { options, ..job(n) }
}

pub(super) async fn every_attempt_is_in_the_history(scenario: &mut StoreScenario) {
    scenario.create([retried_at_once(1, 10)]).await;
    let begin = scenario.now().wall_ms;
    let first = scenario.worker("first", from("/jobs/**"), 1).await;
    let delivered = scenario.delivered_job(first);
    scenario.advance(1_500).await;
    let view = scenario.job_view(id(1)).await;
    assert_eq!(view.info.worker.as_deref(), Some("first"));
    assert_eq!((view.info.token, view.info.delivered_at), (Some(delivered.token), Some(begin)));
    scenario.end(first, &[(delivered.token, NewSettle::Fail(error("Io", "disk 7 is full")))]).await;
    let second = scenario.worker("second", from("/jobs/**"), 1).await;
    let delivered = scenario.delivered_job(second);
    scenario.start(second, &[delivered.token]);
    scenario.lose_link(second).await;
    scenario.advance(5 * SECOND_MS).await;
    let third = scenario.worker("third", from("/jobs/**"), 1).await;
    let delivered = scenario.delivered_job(third);
    scenario.advance(250).await;
    scenario.end(third, &[(delivered.token, DONE)]).await;
    let view = scenario.job_view(id(1)).await;
    let reported: Vec<_> = view
        .info
        .attempts
        .iter()
        .map(|attempt| {
            let (from, to) = (attempt.delivered_at - begin, attempt.ended_at - begin);
            (attempt.number, attempt.worker.as_str(), from, to, attempt.outcome)
        })
        .collect();
    let expected = [
        (1, "first", 0, 1_500, AttemptOutcome::Failed),
        (2, "second", 1_500, 6_500, AttemptOutcome::WorkerLost),
        (3, "third", 6_500, 6_750, AttemptOutcome::Completed),
    ];
    assert_eq!(reported, expected);
    let fingerprint = Fingerprint::of_parts("Io", "disk 9 is full");
    assert_eq!(view.info.attempts[0].fingerprint, Some(fingerprint));
    let error_bytes = scenario.read(view.attempt_errors[0].unwrap());
    let read = JobError::decode(&mut Reader::new(error_bytes)).unwrap();
    assert_eq!(read, error("Io", "disk 7 is full"));
    assert_eq!(view.attempt_errors.len(), 3);
    assert_eq!((view.attempt_errors[1], view.attempt_errors[2]), (None, None));
}

pub(super) async fn released_delivery_is_not_an_attempt(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried_at_once(1, 10)]).await;
    for settle in [NewSettle::Release, NewSettle::Snooze { ms: 0 }] {
        let delivered = scenario.delivered_job(worker);
        scenario.end(worker, &[(delivered.token, settle)]).await;
        scenario.advance(0).await;
        scenario.credit(worker, 1).await;
    }
    let delivered = scenario.delivered_job(worker);
    assert_eq!((delivered.assignment.attempt, delivered.assignment.deliveries), (1, 3));
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.attempts.len(), view.info.deliveries), (0, 3));
}

pub(super) async fn result_is_stored_only_on_request(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([retried_at_once(1, 1), job(2)]).await;
    let delivered = scenario.delivered(worker);
    let result = |text: &'static str| NewSettle::Complete {
        result: Some(Bytes::from_static(text.as_bytes())),
    };
    scenario
        .end(worker, &[(delivered[0].token, result("42")), (delivered[1].token, result("43"))])
        .await;
    scenario.restart().await;
    let job_view = scenario.job_view(id(1)).await.result.unwrap();
    assert_eq!(scenario.read(job_view), Bytes::from_static(b"42"));
    assert_eq!(scenario.job_view(id(2)).await.result, None);
}

pub(super) async fn progress_is_visible_while_the_lease_runs(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried_at_once(1, 2)]).await;
    let token = scenario.delivered_job(worker).token;
    assert_eq!(scenario.job_view(id(1)).await.info.progress, None);
    for (percent, message) in [(10, "reading"), (80, "writing")] {
        scenario.advance(100).await;
        let (now, message) = (scenario.now(), message.to_owned());
        let progress = Progress { token, percent, message: message.clone() };
        let stale = scenario.store().progress(now, worker.link, vec![progress]);
        assert_eq!(stale.0, []);
        let reported = ProgressInfo { percent, message, at: now.wall_ms };
        assert_eq!(scenario.job_view(id(1)).await.info.progress, Some(reported.clone()));
        let listed = scenario.list(super::scenario::filter("/**")).await;
        assert_eq!(listed[0].info.progress, Some(reported));
    }
    scenario.end(worker, &[(token, fail())]).await;
    scenario.credit(worker, 1).await;
    assert_ne!(scenario.delivered_job(worker).token, token);
    assert_eq!(
        scenario.job_view(id(1)).await.info.progress,
        None,
        "progress belongs to one attempt"
    );
}

pub(super) async fn history_survives_a_restart_and_a_revival(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([retried_at_once(1, 2)]).await;
    for _ in 0..2 {
        let delivered = scenario.delivered_job(worker);
        scenario.end(worker, &[(delivered.token, fail())]).await;
        scenario.credit(worker, 1).await;
    }
    scenario.act(Action::Revive, &[id(1)]).await;
    let delivered = scenario.delivered_job(worker);
    assert_eq!(delivered.assignment.attempt, 1);
    scenario.end(worker, &[(delivered.token, DONE)]).await;
    let before = scenario.job_view(id(1)).await;
    let numbers: Vec<u16> = before.info.attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 1], "numbered from 1 again");
    scenario.restart().await;
    assert_eq!(scenario.job_view(id(1)).await, before);
}
