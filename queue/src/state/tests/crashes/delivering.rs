//! K1, K2, K3: between a delivery and its settle.

use longshore_protocol::{AttemptOutcome, CheckpointOutcome, JobState, Revoked, SettleOutcome};

use super::super::story::*;
use crate::command::Command;
use crate::outcome::Reply;

#[test]
fn k1_a_delivery_that_never_arrived_goes_to_another_worker_with_its_attempt() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.apply(Command::LinkLost { link: a });
    assert_eq!(story.state_of(1), JobState::Running, "a lost link ends credits, not leases");
    story.worker("b", QUEUE, 1);
    let out = story.expire(handed[0].token, false);
    assert_eq!((out.handed[0].attempt, out.handed[0].deliveries), (1, 2));
    assert_eq!(out.ended, [handed[0].token]);
    assert!(out.revoked.is_empty(), "nobody is there to be told");
    assert!(out.handed[0].token > handed[0].token);
}

#[test]
fn k1_a_worker_that_comes_back_without_the_delivery_releases_it_at_once() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, handed) = story.worker("a", QUEUE, 2);
    let (link, out) = story.attach("a", &[handed[1].token]);
    assert_eq!(out.moved, [(handed[1].token, link)]);
    assert_eq!(out.ended, [handed[0].token]);
    assert_eq!(story.state_of(1), JobState::Ready);
    assert_eq!(story.job(1).info.attempt, 0);
    assert!(story.state.holds(handed[1].token, link));
    assert_eq!(story.complete(link, handed[1].token), SettleOutcome::Accepted);
}

#[test]
fn k2_a_delivery_that_was_received_and_not_started_runs_again_as_the_same_attempt() {
    // The worker dies, or stands still past its lease and then goes on.
    for comes_back in [false, true] {
        let mut story = Story::begin();
        story.fill(1..=1);
        let (a, handed) = story.worker("a", QUEUE, 1);
        let lost = handed[0].token;
        if !comes_back {
            story.apply(Command::LinkLost { link: a });
        }
        let (b, none) = story.worker("b", QUEUE, 1);
        assert!(none.is_empty());
        let out = story.later(u64::from(handed[0].lease_ms)).expire(lost, false);
        let again = out.handed[0];
        assert_eq!((again.link, again.attempt, again.deliveries), (b, 1, 2));
        let (a, out) = if comes_back { (a, out) } else { story.attach("a", &[lost]) };
        let gone = out.replies.iter().any(|(link, reply)| {
            *link == a && matches!(reply, Reply::Attached(attached) if attached.gone.0 == [lost])
        });
        let told = out.revoked == [(a, Revoked::LeaseLost, lost)];
        assert!(gone != comes_back && told == comes_back, "it learns that it is not to start");
        assert_eq!(story.complete(a, lost), SettleOutcome::StaleToken);
        assert_eq!(story.complete(b, again.token), SettleOutcome::Accepted);
        let attempts = story.job(1).info.attempts;
        assert_eq!(attempts.len(), 1, "side effects once: nobody else began it");
        assert_eq!((attempts[0].number, &attempts[0].worker[..]), (1, "b"));
        assert_eq!(story.stat_of(QUEUE).completed, 1);
    }
}

#[test]
fn k3_a_run_whose_settle_was_not_sent_runs_again_and_reads_what_the_first_one_left() {
    // The worker dies, or stands still past its lease and then sends its settle after all.
    for comes_back in [false, true] {
        let mut story = Story::begin();
        story.fill(1..=1);
        let (a, handed) = story.worker("a", QUEUE, 1);
        let first = handed[0];
        assert_eq!(first.checkpoints, 0);
        for (sequence, text) in [(1, "one"), (2, "two")] {
            assert_eq!(story.leave(a, first.token, sequence, text), CheckpointOutcome::Accepted);
        }
        if !comes_back {
            story.apply(Command::LinkLost { link: a });
        }
        story.later(u64::from(first.lease_ms)).expire(first.token, true);
        let (b, again) = story.worker("b", QUEUE, 1);
        let second = again[0];
        assert_eq!((second.attempt, second.checkpoints), (2, 2));
        let left = story.state.checkpoints(second.token, b).unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|left| (left.info.attempt, left.info.sequence, left.info.length))
            .collect();
        assert_eq!(left, [(1, 1, 3), (1, 2, 3)]);
        assert_eq!(story.leave(b, second.token, 1, "its own"), CheckpointOutcome::Accepted);
        if comes_back {
            assert_eq!(story.leave(a, first.token, 3, "late"), CheckpointOutcome::StaleToken);
            assert_eq!(story.complete(a, first.token), SettleOutcome::StaleToken);
        }
        assert_eq!(story.complete(b, second.token), SettleOutcome::Accepted);
        assert_eq!(story.stat_of(QUEUE).completed, 1, "one accepted end");
        let info = story.job(1).info;
        let outcomes: Vec<_> = info.attempts.iter().map(|attempt| attempt.outcome).collect();
        assert_eq!(outcomes, [AttemptOutcome::WorkerLost, AttemptOutcome::Completed]);
        assert_eq!(info.checkpoints.len(), 3, "they stay with the job");
    }
}
