//! Failing, waiting, dying and coming back, exact in virtual time.

use longshore_protocol::messages::work::{Action, Filter, NewSettle, Selection};
use longshore_protocol::{Backoff, DeathReason, JobOptions, JobState, SettleOutcome};

use super::story::*;
use crate::command::Command;
use crate::state::rows::random_of;

const EXPONENTIAL: Backoff = Backoff::Exponential { base_ms: 2_000, max_ms: 600_000 };

fn policy(backoff: Backoff, max_attempts: u16) -> JobOptions {
    JobOptions { backoff: Some(backoff), max_attempts: Some(max_attempts), ..JobOptions::default() }
}

/// Fails every attempt of a job as soon as it runs; the waits between them, and then it is dead.
fn waits(backoff: Backoff, max_attempts: u16) -> Vec<u64> {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, policy(backoff, max_attempts))]);
    let (a, mut handed) = story.worker("a", QUEUE, u32::from(max_attempts));
    let mut waits = Vec::new();
    for attempt in 1..max_attempts {
        assert_eq!((handed.len(), handed[0].attempt), (1, attempt));
        let (outcome, out) = story.settle(a, handed[0].token, &fail());
        assert_eq!(outcome, SettleOutcome::Accepted);
        let failed_at = story.now.mono_ms;
        handed = out.handed;
        if handed.is_empty() {
            assert_eq!((story.counts().retrying, story.counts().scheduled), (1, 0));
            assert!(story.job(1).info.retrying);
            let due = story.state.next_due(story.now).unwrap();
            story.later(due - story.now.mono_ms - 1);
            assert!(story.apply(Command::Tick).handed.is_empty(), "not a millisecond early");
            handed = story.later(1).apply(Command::Tick).handed;
        }
        waits.push(story.now.mono_ms - failed_at);
    }
    story.settle(a, handed[0].token, &fail());
    assert_eq!(story.death_of(1), Some(DeathReason::AttemptsExhausted));
    assert_eq!(story.job(1).info.attempt, max_attempts);
    assert!(story.job(1).error.is_some());
    waits
}

#[test]
fn waits_follow_their_policy_exactly() {
    assert_eq!(waits(Backoff::Fixed(700), 4), [700, 700, 700]);
    assert_eq!(waits(Backoff::Fixed(0), 3), [0, 0]);
    let linear = Backoff::Linear { step_ms: 100, max_ms: 250 };
    assert_eq!(waits(linear, 5), [100, 200, 250, 250]);
    assert_eq!(waits(Backoff::List(vec![10, 5]), 5), [10, 5, 5, 5]);
    for policy in [Backoff::default(), Backoff::Hangfire, EXPONENTIAL] {
        let expected: Vec<u64> = (1..10).map(|n| policy.wait_ms(n, random_of(&id(1), n))).collect();
        assert_eq!(waits(policy, 10), expected);
    }
}

#[test]
fn jitter_differs_from_job_to_job_and_from_attempt_to_attempt() {
    let randoms: std::collections::BTreeSet<u64> = (1..=1_000)
        .flat_map(|number| (1..=10).map(move |attempt| random_of(&id(number), attempt)))
        .collect();
    assert_eq!(randoms.len(), 10_000);
    let upper = randoms.iter().filter(|&&random| random > u64::MAX / 2).count();
    assert!((4_700..5_300).contains(&upper), "{upper} of 10,000 in the upper half");
    // Old logs replay to the same waits only as long as this number stays.
    assert_eq!(random_of(&id(1), 1), 3_114_907_332_918_154_815);
}

#[test]
fn snooze_gives_the_attempt_back_and_is_no_retry() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 5);
    story.settle(a, handed[0].token, &NewSettle::Snooze { ms: 250 });
    assert_eq!((story.counts().scheduled, story.counts().retrying), (1, 0));
    assert_eq!(story.job(1).info.due_at, Some(story.now.wall_ms + 250));
    let out = story.tick_when_due();
    assert_eq!((out.handed[0].attempt, out.handed[0].deliveries), (1, 2));
    let (_, out) = story.settle(a, out.handed[0].token, &NewSettle::Snooze { ms: 0 });
    assert_eq!(out.handed.len(), 1);
}

#[test]
fn a_job_may_snooze_as_often_as_it_likes() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, mut handed) = story.worker("a", QUEUE, 200);
    for _ in 0..100 {
        story.settle(a, handed[0].token, &NewSettle::Snooze { ms: 1 });
        handed = story.tick_when_due().handed;
    }
    story.expire(handed[0].token, false);
    assert_ne!(story.state_of(1), JobState::Dead);
}

#[test]
fn a_buried_job_is_dead_at_once_and_revived_with_all_its_attempts() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (a, handed) = story.worker("a", QUEUE, 2);
    story.settle(a, handed[0].token, &NewSettle::Bury(error("never")));
    assert_eq!(story.death_of(1), Some(DeathReason::Buried));
    assert_eq!(story.act_on(Action::Revive, 2).refused, 1, "it runs");
    assert_eq!(story.act_on(Action::Drop, 2).refused, 1);
    story.later(40 * 24 * 3_600_000).apply(Command::Tick);
    assert_eq!(story.counts().dead, 1, "dead letters stay");
    assert_eq!(story.act_on(Action::Revive, 1).done, 1);
    assert_eq!(story.act_on(Action::Revive, 1).refused, 1);
    let again = story.credit(a, 1, 1);
    assert_eq!((again[0].attempt, again[0].deliveries), (1, 1));
    story.settle(a, again[0].token, &NewSettle::Bury(error("never")));
    let dead = Selection::Matching(Filter::of(glob("/jobs/**")).in_state(Some(JobState::Dead)));
    let (report, _) = story.act(Action::Drop, dead);
    assert_eq!(report.done, 1);
    assert!(!story.is_kept(1));
}

#[test]
fn an_attempt_is_used_up_by_failing_or_by_losing_a_started_lease_alone() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, policy(Backoff::Fixed(0), 3))]);
    let (a, handed) = story.worker("a", QUEUE, 10);
    let mut token = handed[0].token;
    for (verdict, attempt) in
        [(NewSettle::Release, 1), (fail(), 2), (NewSettle::Snooze { ms: 0 }, 2)]
    {
        let (_, out) = story.settle(a, token, &verdict);
        assert_eq!(out.handed[0].attempt, attempt, "{verdict:?}");
        token = out.handed[0].token;
    }
    token = story.expire(token, false).handed[0].token;
    let handed = story.expire(token, true).handed;
    assert_eq!(handed[0].attempt, 3);
    story.expire(handed[0].token, true);
    assert_eq!(story.death_of(1), Some(DeathReason::WorkerLost));
}

#[test]
fn an_attempt_that_runs_out_of_time_backs_off_and_its_worker_is_told_why() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, policy(Backoff::Fixed(700), 2))]);
    let (a, handed) = story.worker("a", QUEUE, 2);
    let time_out = |story: &mut Story, token| {
        let expired =
            crate::command::Expired { token, started: true, restart: false, timed_out: true };
        story.apply(Command::Expire { leases: vec![expired] })
    };
    let out = time_out(&mut story, handed[0].token);
    let told = (a, longshore_protocol::Revoked::TimedOut, handed[0].token);
    assert_eq!((&out.revoked[..], &out.ended[..]), (&[told][..], &[handed[0].token][..]));
    assert_eq!((story.counts().retrying, story.job(1).info.attempt), (1, 1));
    let late = story.complete(a, handed[0].token);
    assert_eq!(late, SettleOutcome::StaleToken, "too late is too late");
    story.later(699).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Scheduled);
    let handed = story.later(1).apply(Command::Tick).handed;
    story.apply(Command::LinkLost { link: a });
    let out = time_out(&mut story, handed[0].token);
    assert!(out.revoked.is_empty(), "its link is gone");
    assert_eq!(story.death_of(1), Some(DeathReason::TimedOut));
    let stat = &story.state.queue_stats(&glob(QUEUE), story.now)[0];
    assert_eq!((stat.failed, stat.died), (2, 1));
}
