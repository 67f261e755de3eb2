//! K10, K11, K12: workers that stand still, die of a job, or are told to go.

use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{CheckpointOutcome, DeathReason, JobState, Revoked, SettleOutcome};

use super::super::story::*;
use crate::command::{Command, Expired};
use crate::outcome::Handed;

#[test]
fn k10_every_late_verb_of_a_worker_that_lost_its_lease_is_refused() {
    for late in [
        NewSettle::Complete { result: None },
        fail(),
        NewSettle::Release,
        NewSettle::Snooze { ms: 10 },
        NewSettle::Bury(error("late")),
    ] {
        let mut story = Story::begin();
        story.fill(1..=1);
        let (a, first) = story.worker("a", QUEUE, 1);
        let (b, _) = story.worker("b", QUEUE, 1);
        let out = story.expire(first[0].token, true);
        assert_eq!(out.revoked, [(a, Revoked::LeaseLost, first[0].token)]);
        let second = out.handed[0];
        assert_eq!(second.link, b);
        assert!(!story.state.holds(first[0].token, a), "its renewals are refused, too");
        assert_eq!(story.settle(a, first[0].token, &late).0, SettleOutcome::StaleToken);
        assert_eq!(story.settle(a, second.token, &late).0, SettleOutcome::StaleToken);
        let stale = CheckpointOutcome::StaleToken;
        assert_eq!(story.leave(a, first[0].token, 1, "late"), stale);
        assert_eq!(story.leave(a, second.token, 1, "not its own"), stale);
        assert!(story.state.checkpoints(first[0].token, a).is_err());
        assert!(story.state.checkpoints(second.token, a).is_err());
        assert_eq!(story.state_of(1), JobState::Running);
        assert_eq!(story.complete(b, second.token), SettleOutcome::Accepted);
        assert_eq!(story.settle(a, first[0].token, &late).0, SettleOutcome::StaleToken);
        assert_eq!(story.state_of(1), JobState::Completed);
        let stat = &story.state.queue_stats(&glob(QUEUE), story.now)[0];
        assert_eq!((stat.stale_refused, story.state.totals().stale_refused), (3, 5));
    }
}

#[test]
fn k10_a_completion_that_came_first_wins_over_its_expiry() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    assert_eq!(story.complete(a, handed[0].token), SettleOutcome::Accepted);
    let out = story.expire(handed[0].token, true);
    assert!(out.ended.is_empty() && out.revoked.is_empty());
    assert_eq!(story.state_of(1), JobState::Completed);
}

#[test]
fn k11_a_job_that_kills_its_worker_dies_and_the_jobs_beside_it_are_unharmed() {
    let mut story = Story::begin();
    story.fill(1..=101);
    for round in 1..=10 {
        let (link, handed) = story.worker(&format!("w{round}"), QUEUE, 101);
        let poison = handed[0];
        assert_eq!(numbers(&story, &[poison]), [1], "the oldest comes first, each time");
        assert_eq!(poison.attempt, round);
        story.apply(Command::LinkLost { link });
        let lost = |(n, h): (usize, &Handed)| Expired {
            token: h.token,
            started: n == 0,
            restart: false,
            timed_out: false,
        };
        let leases = handed.iter().enumerate().map(lost).collect();
        story.apply(Command::Expire { leases });
    }
    assert_eq!(story.death_of(1), Some(DeathReason::WorkerLost));
    assert_eq!(story.counts().ready, 100);
    let (last, rest) = story.worker("last", QUEUE, 200);
    assert_eq!(rest.len(), 100);
    assert!(rest.iter().all(|handed| handed.attempt == 1 && handed.deliveries == 11));
    for handed in &rest {
        assert_eq!(story.complete(last, handed.token), SettleOutcome::Accepted);
    }
    assert_eq!((story.counts().completed, story.counts().dead), (100, 1));
    for number in 2..=101 {
        let attempts = story.job(number).info.attempts;
        assert_eq!((attempts.len(), &attempts[0].worker[..]), (1, "last"), "none lost an attempt");
    }
    let killed: Vec<String> =
        story.job(1).info.attempts.into_iter().map(|attempt| attempt.worker).collect();
    assert_eq!(killed, (1..=10).map(|round| format!("w{round}")).collect::<Vec<_>>());
}

#[test]
fn k12_a_drained_worker_gives_its_jobs_back_with_their_attempts_and_their_places() {
    let mut story = Story::begin();
    story.fill(1..=3);
    let (a, handed) = story.worker("a", QUEUE, 2);
    story.apply(Command::Recall { link: a, subscription: 1, count: 5 });
    for handed in &handed {
        let (outcome, _) = story.settle(a, handed.token, &NewSettle::Release);
        assert_eq!(outcome, SettleOutcome::Accepted);
    }
    let (_, again) = story.worker("b", QUEUE, 3);
    assert_eq!(numbers(&story, &again), [1, 2, 3]);
    assert!(again.iter().all(|handed| handed.attempt == 1));
}
