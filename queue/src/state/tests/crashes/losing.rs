//! K10, K11, K12: workers that stand still, die of a job, or are told to go.

use longshore_protocol::messages::work::{Action, NewSettle};
use longshore_protocol::{
    Backoff, CheckpointOutcome, DeathReason, JobOptions, JobState, LinkId, Revoked, SettleOutcome,
};

use super::super::story::*;
use crate::command::{Command, Expired};
use crate::outcome::{Handed, Outcomes};
use crate::state::State;

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

/// The worker dies while it runs the oldest of its jobs; those prefetched beside it never began.
fn kill(story: &mut Story, link: LinkId, handed: &[Handed]) -> Outcomes {
    story.apply(Command::LinkLost { link });
    let lost = |(n, h): (usize, &Handed)| Expired {
        token: h.token,
        started: n == 0,
        restart: false,
        timed_out: false,
    };
    let leases = handed.iter().enumerate().map(lost).collect();
    story.apply(Command::Expire { leases })
}

#[test]
fn k11_a_job_that_kills_its_worker_dies_and_the_jobs_beside_it_are_unharmed() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let backoff = Some(Backoff::Fixed(7_000));
    story.enqueue(producer, &[with(1, JobOptions { backoff, ..JobOptions::default() })]);
    story.fill(2..=101);
    for round in 1..=3 {
        let (link, handed) = story.worker(&format!("w{round}"), QUEUE, 101);
        let poison = handed[0];
        assert_eq!(numbers(&story, &[poison]), [1], "the oldest comes first, each time");
        assert_eq!(poison.attempt, round);
        kill(&mut story, link, &handed);
        let c = story.counts();
        let expected = [(101, 0, 0), (100, 1, 0), (100, 0, 1)][usize::from(round) - 1];
        assert_eq!((c.ready, c.retrying, c.dead), expected, "after loss {round}");
        if round == 2 {
            story.later(6_999).apply(Command::Tick);
            assert_eq!(story.counts().retrying, 1, "not a millisecond early");
            story.later(1).apply(Command::Tick);
            assert_eq!(story.counts().ready, 101);
        }
    }
    assert_eq!(story.death_of(1), Some(DeathReason::WorkerLost));
    let (last, rest) = story.worker("last", QUEUE, 200);
    assert_eq!(rest.len(), 100);
    assert!(rest.iter().all(|handed| handed.attempt == 1 && handed.deliveries == 4));
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
    assert_eq!(killed, ["w1", "w2", "w3"]);
}

#[test]
fn k11_failures_and_restarts_between_worker_losses_neither_count_nor_forgive() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let backoff = Some(Backoff::Fixed(0));
    story.enqueue(producer, &[with(1, JobOptions { backoff, ..JobOptions::default() })]);
    let (a, handed) = story.worker("a", QUEUE, 50);
    let mut token = handed[0].token;
    let expired = |token, restart, timed_out| Expired { token, started: true, restart, timed_out };
    for _ in 0..2 {
        token = story.expire(token, true).handed[0].token;
        for (restart, timed_out) in [(true, false), (false, true), (true, false), (false, true)] {
            let leases = vec![expired(token, restart, timed_out)];
            token = story.apply(Command::Expire { leases }).handed[0].token;
        }
        token = story.settle(a, token, &fail()).1.handed[0].token;
        token = story.expire(token, false).handed[0].token;
    }
    assert_eq!(story.state_of(1), JobState::Running, "two losses");
    let bytes = story.state.snapshot_bytes();
    story.state = State::restore(&bytes).unwrap();
    story.expire(token, true);
    assert_eq!(story.death_of(1), Some(DeathReason::WorkerLost));

    assert_eq!(story.act_on(Action::Revive, 1).done, 1);
    for losses in 1..=3 {
        let token = story.state.running().next().expect("it runs again").token;
        story.expire(token, true);
        assert_eq!(story.state_of(1) == JobState::Dead, losses == 3, "revived, after {losses}");
    }
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
