//! What each crash must leave: the crash points by their numbers.

use longshore_protocol::messages::work::{Action, NewSettle};
use longshore_protocol::{
    DeathReason, Due, EnqueueOutcome, JobOptions, JobState, Revoked, SettleOutcome, Token,
};

use super::story::*;
use crate::command::{Command, Expired};
use crate::outcome::Reply;

#[test]
fn k0_a_resent_batch_yields_each_job_once() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let jobs = [plain(1), plain(2)];
    let first = receipts(&story.send(producer, batch(1, &jobs)));
    let producer = story.link("producer");
    let again = receipts(&story.send(producer, batch(1, &jobs)));
    assert_eq!(first, again);
    assert_eq!(first.unwrap().iter().collect::<Vec<_>>(), [EnqueueOutcome::Created; 2]);
    assert_eq!(story.counts().ready, 2);
}

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
fn k3_a_run_whose_settle_was_not_sent_runs_again_as_the_next_attempt() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.apply(Command::LinkLost { link: a });
    story.expire(handed[0].token, true);
    let (b, again) = story.worker("b", QUEUE, 1);
    assert_eq!(again[0].attempt, 2);
    assert_eq!(story.complete(b, again[0].token), SettleOutcome::Accepted);
    assert_eq!(story.counts().completed, 1);
}

#[test]
fn k4_a_resent_settle_gives_the_same_answer_and_counts_once() {
    let mut story = Story::begin();
    story.fill(1..=3);
    let (a, handed) = story.worker("a", QUEUE, 3);
    let stale = Token(handed[2].token.0 + 1_000);
    let done = NewSettle::Complete { result: None };
    let sent = settles(
        1,
        &[(handed[0].token, done.clone()), (stale, done.clone()), (handed[1].token, fail())],
    );
    let first = settled(&story.send_settles(a, sent.clone()));
    let before = story.state.snapshot_bytes();
    story.apply(Command::LinkLost { link: a });
    let (a, _) = story.attach("a", &[handed[2].token]);
    let out = story.send_settles(a, sent);
    assert_eq!(settled(&out), first);
    assert!(out.ended.is_empty() && out.handed.is_empty());
    assert_eq!(story.counts().completed, 1);
    let stat = &story.state.queue_stats(&glob(QUEUE), story.now)[0];
    assert_eq!((stat.completed, stat.failed), (1, 1));
    assert_eq!(story.state.totals().stale_refused, 1);
    assert_ne!(before, story.state.snapshot_bytes(), "the link is another");
}

#[test]
fn k4_answers_to_settles_outlive_a_restart_and_an_hour_without_a_link() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    let sent = settles(1, &[(handed[0].token, NewSettle::Complete { result: None })]);
    let first = settled(&story.send_settles(a, sent.clone()));
    story.start();
    story.later(60 * 60 * 1_000 - 1).apply(Command::Tick);
    let a = story.link("a");
    assert_eq!(settled(&story.send_settles(a, sent)), first);
}

#[test]
fn k6_a_job_cancelled_before_its_start_does_not_run() {
    let mut story = Story::begin();
    story.fill(1..=1);
    assert_eq!(story.act_on(Action::Cancel, 1).done, 1);
    assert_eq!(story.state_of(1), JobState::Cancelled);
    let (_, handed) = story.worker("a", QUEUE, 1);
    assert!(handed.is_empty());
    assert_eq!(story.act_on(Action::Cancel, 1).refused, 1, "it has ended");
    assert_eq!(story.act_on(Action::Cancel, 9).unknown, 1);
}

#[test]
fn k6_cancelling_a_running_job_tells_its_worker_and_refuses_its_settle() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    let token = handed[0].token;
    let ids = longshore_protocol::messages::work::Selection::Ids(vec![id(1)]);
    let (report, out) = story.act(Action::Cancel, ids);
    assert_eq!(report.done, 1);
    assert_eq!(out.revoked, [(a, Revoked::Cancelled, token)]);
    assert_eq!(out.ended, [token]);
    assert_eq!(story.complete(a, token), SettleOutcome::StaleToken);
    assert_eq!(story.state_of(1), JobState::Cancelled);
    assert_eq!(story.state.queue_stats(&glob(QUEUE), story.now)[0].stale_refused, 1);
}

#[test]
fn k7_a_schedule_that_comes_due_runs_once_whatever_restarts() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let later = JobOptions { due: Due::After(5_000), ..JobOptions::default() };
    let at = JobOptions { due: Due::At(story.now.wall_ms + 5_000), ..JobOptions::default() };
    story.enqueue(producer, &[with(1, later), with(2, at)]);
    story.later(4_999);
    assert!(story.apply(Command::Tick).handed.is_empty());
    story.start();
    let (_, handed) = story.worker("a", QUEUE, 5);
    assert!(handed.is_empty());
    story.later(1);
    let out = story.apply(Command::Tick);
    assert_eq!(numbers(&story, &out.handed), [1, 2]);
    story.start();
    assert!(story.apply(Command::Tick).handed.is_empty());
}

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
        assert_eq!(story.state_of(1), JobState::Running);
        assert_eq!(story.complete(b, second.token), SettleOutcome::Accepted);
        assert_eq!(story.settle(a, first[0].token, &late).0, SettleOutcome::StaleToken);
        assert_eq!(story.state_of(1), JobState::Completed);
        let stat = &story.state.queue_stats(&glob(QUEUE), story.now)[0];
        assert_eq!((stat.stale_refused, story.state.totals().stale_refused), (2, 3));
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
        let lost = |(n, h): (usize, &crate::outcome::Handed)| Expired {
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
    let (_, rest) = story.worker("last", QUEUE, 200);
    assert_eq!(rest.len(), 100);
    assert!(rest.iter().all(|handed| handed.attempt == 1 && handed.deliveries == 11));
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

#[test]
fn a_restart_of_the_publisher_costs_no_attempt_and_leases_resume_over_it() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, handed) = story.worker("a", QUEUE, 2);
    story.start();
    let running: Vec<_> = story.state.running().collect();
    assert_eq!(
        running.iter().map(|lease| lease.token).collect::<Vec<_>>(),
        [handed[0].token, handed[1].token]
    );
    let (link, out) = story.attach("a", &[handed[0].token, handed[1].token]);
    assert_eq!(out.moved, [(handed[0].token, link), (handed[1].token, link)]);
    story.start();
    let restart =
        Expired { token: handed[1].token, started: true, restart: true, timed_out: false };
    story.apply(Command::Expire { leases: vec![restart] });
    assert_eq!((story.state_of(2), story.job(2).info.attempt), (JobState::Ready, 0));
}

#[test]
fn tokens_rise_over_every_restart_by_more_than_a_run_can_lose() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, first) = story.worker("a", QUEUE, 1);
    story.start();
    let (_, second) = story.worker("b", QUEUE, 1);
    assert!(second[0].token.0 >= first[0].token.0 + (1 << 32));
}

#[test]
fn a_resumption_names_the_tokens_that_are_gone() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, of_a) = story.worker("a", QUEUE, 1);
    let (_, of_b) = story.worker("b", QUEUE, 1);
    let (_, out) = story.attach("a", &[of_b[0].token, Token(5), of_a[0].token]);
    let attached = out.replies.iter().find_map(|(_, reply)| match reply {
        Reply::Attached(attached) => Some(attached.clone()),
        _ => None,
    });
    assert_eq!(attached.unwrap().gone.0, [of_b[0].token, Token(5)]);
    assert_eq!(out.moved.len(), 1);
}

#[test]
fn deliveries_that_are_never_started_end_in_the_dead_letters() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let once = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let often = JobOptions { max_attempts: Some(20), ..JobOptions::default() };
    story.enqueue(producer, &[with(1, once)]);
    let (link, mut handed) = story.worker("a", QUEUE, 1);
    for _ in 1..30 {
        assert_eq!(story.state_of(1), JobState::Running);
        story.expire(handed[0].token, false);
        handed = story.credit(link, 1, 1);
    }
    story.expire(handed[0].token, false);
    assert_eq!(story.death_of(1), Some(DeathReason::Undeliverable));
    story.enqueue(producer, &[with(2, often)]);
    handed = story.credit(link, 1, 1);
    for _ in 1..60 {
        story.expire(handed[0].token, false);
        handed = story.credit(link, 1, 1);
    }
    assert_eq!(story.job(2).info.deliveries, 60);
    story.expire(handed[0].token, false);
    assert_eq!(story.death_of(2), Some(DeathReason::Undeliverable));
}

#[test]
fn a_job_that_cannot_be_read_back_is_buried_and_the_rest_goes_on() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (a, handed) = story.worker("a", QUEUE, 2);
    let out = story.apply(Command::Damaged { token: handed[0].token });
    assert_eq!(out.ended, [handed[0].token]);
    assert_eq!(story.death_of(1), Some(DeathReason::PayloadDamaged));
    assert_eq!(story.complete(a, handed[1].token), SettleOutcome::Accepted);
}

#[test]
fn commands_of_links_that_are_gone_change_nothing() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.attach("a", &[handed[0].token]);
    let before = story.state.rows.held;
    let done = settles(1, &[(handed[0].token, NewSettle::Complete { result: None })]);
    assert!(story.send_settles(a, done).replies.is_empty());
    assert!(story.send(a, batch(1, &[plain(2)])).replies.is_empty());
    assert!(story.credit(a, 1, 5).is_empty());
    assert!(story.subscribe(a, 2, QUEUE).replies.is_empty());
    story.apply(Command::Unsubscribe { link: a, subscription: 1 });
    story.apply(Command::LinkLost { link: a });
    assert_eq!((story.state.rows.held, story.state_of(1)), (before, JobState::Running));
}
