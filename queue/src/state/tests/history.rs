//! What is remembered of attempts: who made them, when, how they ended, and what was said of them.

use longshore_protocol::limits::ATTEMPTS_MAX;
use longshore_protocol::messages::work::{Action, AttemptInfo, NewSettle};
use longshore_protocol::{
    AttemptOutcome, Backoff, DeathReason, Fingerprint, JobError, JobOptions, JobState, Token,
};

use super::snapshots::replay;
use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::state::State;

fn many_attempts() -> JobOptions {
    let backoff = Some(Backoff::Fixed(0));
    JobOptions { backoff, max_attempts: Some(60), keep_result: true, ..JobOptions::default() }
}

fn attempts(story: &Story, number: u32) -> Vec<AttemptInfo> {
    let view = story.job(number);
    assert_eq!(view.info.attempts.len(), view.attempt_errors.len());
    for (attempt, error) in view.info.attempts.iter().zip(&view.attempt_errors) {
        assert_eq!(attempt.fingerprint.is_some(), error.is_some());
    }
    view.info.attempts
}

#[test]
fn a_job_that_completes_at_once_is_told_whole_and_has_no_side_row() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("ann", QUEUE, 1);
    let delivered = story.now.wall_ms;
    assert_eq!(story.job(1).info.delivered_at, Some(delivered));
    story.later(1_234);
    let running = story.job(1).info;
    assert_eq!(running.delivered_at, Some(delivered));
    assert!(running.attempts.is_empty(), "it has not ended");
    story.complete(a, handed[0].token);
    let expected = AttemptInfo {
        number: 1,
        worker: "ann".to_owned(),
        delivered_at: delivered,
        ended_at: delivered + 1_234,
        outcome: AttemptOutcome::Completed,
        error: None,
        fingerprint: None,
    };
    story.later(5_000);
    assert_eq!(attempts(&story, 1), [expected]);
    assert_eq!(story.job(1).info.delivered_at, None);
    assert_eq!(story.state.sides.len(), 0);
}

#[test]
fn delivery_is_never_reported_before_the_enqueueing() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, many_attempts())]);
    let enqueued = story.now.wall_ms;
    let (a, handed) = story.worker("ann", QUEUE, 3);
    // A tick of the monotonic clock before that of the wall clock.
    story.now.mono_ms += 1;
    assert_eq!(story.job(1).info.delivered_at, Some(enqueued));
    let again = story.settle(a, handed[0].token, &fail()).1.handed;
    assert_eq!(attempts(&story, 1)[0].delivered_at, enqueued);
    story.now.mono_ms += 1;
    story.complete(a, again[0].token);
    assert_eq!(attempts(&story, 1)[1].delivered_at, enqueued);
    // A clock that was set back is reported as it was.
    story.fill(2..=2);
    assert_eq!(story.state_of(2), JobState::Running);
    story.now.wall_ms -= 60_000;
    assert_eq!(story.job(2).info.delivered_at, Some(story.now.wall_ms));
}

#[test]
fn every_way_to_use_an_attempt_up_is_remembered_and_given_back_ones_are_not() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, many_attempts())]);
    let (a, handed) = story.worker("ann", QUEUE, 20);
    let next = |story: &mut Story, token: Token, verdict: &NewSettle| {
        story.later(10);
        story.settle(a, token, verdict).1.handed[0].token
    };
    let token = next(&mut story, handed[0].token, &NewSettle::Release);
    let token = next(&mut story, token, &fail());
    let token = next(&mut story, token, &NewSettle::Snooze { ms: 0 });
    let token = story.later(10).expire(token, false).handed[0].token;
    let token = story.later(10).expire(token, true).handed[0].token;
    story.later(10).complete(a, token);
    let outcomes: Vec<_> = attempts(&story, 1)
        .iter()
        .map(|attempt| (attempt.number, attempt.outcome, attempt.ended_at - attempt.delivered_at))
        .collect();
    let expected = [
        (1, AttemptOutcome::Failed, 10),
        (2, AttemptOutcome::WorkerLost, 10),
        (3, AttemptOutcome::Completed, 10),
    ];
    assert_eq!(outcomes, expected);
    let view = story.job(1);
    assert!(view.attempt_errors[0].is_some() && view.attempt_errors[1].is_none());
    assert_eq!(view.error, view.attempt_errors[0], "what was said last");

    story.fill(2..=3);
    let tokens: Vec<Token> = story.state.running().map(|lease| lease.token).collect();
    story.settle(a, tokens[0], &NewSettle::Bury(error("never")));
    assert_eq!(attempts(&story, 2)[0].outcome, AttemptOutcome::Buried);
    story.act_on(Action::Cancel, 3);
    let cancelled = attempts(&story, 3);
    assert_eq!((cancelled.len(), cancelled[0].number), (1, 1));
    assert_eq!((&*cancelled[0].worker, cancelled[0].outcome), ("ann", AttemptOutcome::Cancelled));
}

#[test]
fn a_job_cancelled_before_it_ran_has_no_attempt() {
    let mut story = Story::begin();
    story.fill(1..=1);
    story.act_on(Action::Cancel, 1);
    assert!(attempts(&story, 1).is_empty());
    assert_eq!(story.job(1).info.attempt, 0);
}

#[test]
fn an_error_is_known_by_its_fingerprint_and_by_where_it_lies() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (a, handed) = story.worker("ann", QUEUE, 2);
    let said = [("Io", "no file /tmp/a1 after 7 s"), ("Other", "¡größer!")]
        .map(|(kind, message)| JobError { kind: kind.to_owned(), message: message.to_owned() });
    let items: Vec<_> = handed
        .iter()
        .zip(&said)
        .map(|(handed, error)| (handed.token, NewSettle::Fail(error.clone())))
        .collect();
    story.send_settles(a, settles(1, &items));
    let (index, _, command) = story.log.last().unwrap();
    let (head, raw) = command.encode();
    let body = [head, raw].concat();
    for (number, error) in (1..).zip(&said) {
        assert_eq!(attempts(&story, number)[0].fingerprint, Some(Fingerprint::of(error)));
        let at = story.job(number).attempt_errors[0].unwrap();
        let mut encoded = longshore_protocol::FrameWriter::with_capacity(64);
        longshore_protocol::Encode::encode(error, &mut encoded);
        let (from, to) = (at.at as usize, (at.at + at.length) as usize);
        assert_eq!((at.index, &body[from..to]), (*index, &*encoded.into_body()));
    }
}

#[test]
fn the_newest_attempts_are_kept_and_numbers_begin_anew_when_a_job_is_revived() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, many_attempts())]);
    let (a, handed) = story.worker("ann", QUEUE, 100);
    let mut token = handed[0].token;
    for _ in 1..40 {
        token = story.settle(a, token, &fail()).1.handed[0].token;
    }
    let numbers = |story: &Story| -> Vec<u16> {
        attempts(story, 1).iter().map(|attempt| attempt.number).collect()
    };
    assert_eq!(numbers(&story), (8..=39).collect::<Vec<_>>());
    story.settle(a, token, &NewSettle::Bury(error("enough")));
    assert_eq!(numbers(&story).len(), ATTEMPTS_MAX);
    let (_, out) =
        story.act(Action::Revive, longshore_protocol::messages::work::Selection::Ids(vec![id(1)]));
    assert_eq!(out.handed[0].attempt, 1);
    story.complete(a, out.handed[0].token);
    let kept = numbers(&story);
    assert_eq!((kept.len(), &kept[..2], &kept[30..]), (ATTEMPTS_MAX, &[10, 11][..], &[40, 1][..]));
    assert_eq!(story.job(1).info.attempt, 1);
}

#[test]
fn a_name_is_kept_while_a_session_or_a_job_remembers_it() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("ann", QUEUE, 1);
    story.complete(a, handed[0].token);
    story.worker("bob", QUEUE, 0);
    let names = |story: &Story| -> Vec<String> {
        story.state.names.table().iter().map(|(_, name)| name.text.to_string()).collect()
    };
    assert_eq!(names(&story), ["filler", "ann", "bob"]);
    for link in [1, 2, 3] {
        story.apply(Command::LinkLost { link: longshore_protocol::LinkId(link) });
    }
    story.later(2 * 3_600_000).apply(Command::Tick);
    assert_eq!(names(&story), ["ann"], "her job remembers her");
    assert_eq!(attempts(&story, 1)[0].worker, "ann");
    story.later(24 * 3_600_000).apply(Command::Tick);
    assert!(names(&story).is_empty());
}

#[test]
fn a_process_that_comes_back_under_another_name_makes_its_attempts_under_that() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (a, handed) = story.worker("ann", QUEUE, 1);
    story.complete(a, handed[0].token);
    let link = story.state.next_link();
    story.apply(Command::LinkUp {
        link,
        role: longshore_protocol::Role::Worker,
        session: session("ann"),
        name: "anna".to_owned(),
        resume: Default::default(),
    });
    story.subscribe(link, 1, QUEUE);
    let handed = story.credit(link, 1, 1);
    assert_eq!(story.job(2).info.worker.as_deref(), Some("anna"));
    story.complete(link, handed[0].token);
    let workers: Vec<_> = (1..=2).map(|n| attempts(&story, n)[0].worker.clone()).collect();
    assert_eq!(workers, ["ann", "anna"]);
}

#[test]
fn over_the_wrap_of_the_clock_s_low_half_a_run_has_its_true_length() {
    let mut story = Story::begin();
    story.now.mono_ms = (3 << 32) - 5;
    story.fill(1..=1);
    let (a, handed) = story.worker("ann", QUEUE, 1);
    story.later(12).complete(a, handed[0].token);
    let attempt = &attempts(&story, 1)[0];
    assert_eq!(attempt.ended_at - attempt.delivered_at, 12);
}

#[test]
fn a_snapshot_keeps_histories_and_names() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[with(1, many_attempts()), plain(2), plain(3)]);
    let (a, handed) = story.worker("ann", QUEUE, 3);
    story.settle(a, handed[0].token, &fail());
    story.complete(a, handed[1].token);
    let bytes = story.state.snapshot_bytes();
    let restored = State::restore(&bytes).unwrap();
    restored.invariant().unwrap();
    assert_eq!(restored.snapshot_bytes(), bytes);
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), bytes);
    for number in 1..=3 {
        assert_eq!(restored.job(&id(number), story.now), Some(story.job(number)));
    }
    assert_eq!(story.death_of(1), None::<DeathReason>);
}
