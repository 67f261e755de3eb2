//! K4, K5: between a settle and its answer, and after.

use longshore_protocol::messages::work::{Action, NewSettle};
use longshore_protocol::{JobState, Token};

use super::super::story::*;
use super::HOUR_MS;
use crate::command::{Command, Expired};
use crate::outcome::{Handed, Outcomes};
use crate::state::Totals;

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
fn k4_what_a_resent_settle_counts_it_counts_once() {
    let lost_answers: [fn(&mut Story, Token); 4] = [
        |_, _| {},
        |story, _| drop(story.start()),
        // The lease's end was on its way when the settle came.
        |story, token| drop(story.expire(token, true)),
        // The worker stood still for longer than its lease.
        |story, _| drop(story.later(20 * 60_000).apply(Command::Tick)),
    ];
    for lose in lost_answers {
        for (verdict, state, completed, failed) in [
            (NewSettle::Complete { result: None }, JobState::Completed, 1, 0),
            (fail(), JobState::Scheduled, 0, 1),
            (NewSettle::Bury(error("no")), JobState::Dead, 0, 0),
            (NewSettle::Snooze { ms: HOUR_MS }, JobState::Scheduled, 0, 0),
        ] {
            let mut story = Story::begin();
            story.fill(1..=1);
            let (a, handed) = story.worker("a", QUEUE, 1);
            let before = story.stat_of(QUEUE);
            let sent = settles(1, &[(handed[0].token, verdict)]);
            let first = settled(&story.send_settles(a, sent.clone()));
            let after = story.stat_of(QUEUE);
            assert_eq!((story.state_of(1), before.counts.running), (state, 1));
            assert_eq!(after.counts.running, 0);
            assert_eq!(after.completed, before.completed + completed);
            assert_eq!(after.failed, before.failed + failed);

            lose(&mut story, handed[0].token);
            let (a, _) = story.attach("a", &[handed[0].token]);
            let since = story.stat_of(QUEUE);
            let out = story.send_settles(a, sent.clone());
            assert_eq!(settled(&out), first);
            assert!(out.ended.is_empty() && out.handed.is_empty() && out.events.is_empty());
            story.send_settles(a, sent);
            assert_eq!(story.stat_of(QUEUE), since, "nothing was counted again");
        }
    }
}

#[test]
fn k4_a_settle_of_which_nobody_heard_the_answer_ends_all_runs() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.complete(a, handed[0].token);
    story.start();
    let (_, again) = story.worker("b", QUEUE, 5);
    let out = story.later(HOUR_MS).apply(Command::Tick);
    assert!(again.is_empty() && out.handed.is_empty());
    assert_eq!(story.job(1).info.attempts.len(), 1);
}

#[test]
fn k5_after_all_a_restart_changes_nothing() {
    let mut story = Story::begin();
    story.fill(1..=4);
    let (a, handed) = story.worker("a", QUEUE, 4);
    story.complete(a, handed[0].token);
    story.settle(a, handed[1].token, &NewSettle::Bury(error("no")));
    story.settle(a, handed[2].token, &fail());
    story.act_on(Action::Cancel, 4);
    story.apply(Command::LinkLost { link: a });
    let seen = |story: &Story| {
        let jobs: Vec<_> = (1..=4).map(|number| story.job(number)).collect();
        (jobs, story.stat_of(QUEUE), Totals { links: 0, ..story.state.totals() })
    };
    let before = seen(&story);
    for _ in 0..3 {
        let out = story.start();
        assert_eq!(out, Outcomes::default());
        let restart =
            |h: &Handed| Expired { token: h.token, started: true, restart: true, timed_out: false };
        let out = story.apply(Command::Expire { leases: handed.iter().map(restart).collect() });
        assert_eq!(out, Outcomes::default());
        assert_eq!(seen(&story), before);
    }
    let tokens: Vec<Token> = handed.iter().map(|handed| handed.token).collect();
    let (a, out) = story.attach("a", &tokens);
    assert!(out.moved.is_empty() && out.ended.is_empty());
    story.subscribe(a, 1, QUEUE);
    assert!(story.credit(a, 1, 10).is_empty());
    assert_eq!(seen(&story).0, before.0);
}
