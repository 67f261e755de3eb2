//! Jobs that are of no use after a time.

use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{Due, JobChange, JobOptions, JobState, NewJob, SettleOutcome};

use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Outcomes;
use crate::state::State;

fn until(number: u32, at: u64, due: Due) -> NewJob {
    with(number, JobOptions { expires_at: Some(at), due, ..JobOptions::default() })
}

fn changes(out: &Outcomes) -> Vec<JobChange> {
    out.events.iter().map(|event| event.change).collect()
}

/// A publisher with job 1, which expires a second from now.
fn begin(due: Due) -> Story {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let at = story.now.wall_ms + 1_000;
    story.enqueue(producer, &[until(1, at, due)]);
    story
}

#[test]
fn ready_and_scheduled_jobs_expire_on_the_millisecond_by_the_wall_clock() {
    let mut story = begin(Due::Now);
    let producer = story.link("producer");
    let at = story.now.wall_ms + 1_000;
    let waits = [until(2, at, Due::After(5_000)), until(3, at + 1, Due::At(at + 1)), plain(4)];
    story.enqueue(producer, &waits);
    assert_eq!(story.job(1).info.expires_at, Some(at));
    assert_eq!(story.state.next_due(story.now), Some(story.now.mono_ms + 1_000));
    story.later(999).apply(Command::Tick);
    assert_eq!((story.counts().ready, story.counts().expired), (2, 0));
    let out = story.later(1).apply(Command::Tick);
    assert_eq!(changes(&out), [JobChange::Expired; 2]);
    assert_eq!((story.state_of(1), story.state_of(2)), (JobState::Expired, JobState::Expired));
    let out = story.later(1).apply(Command::Tick);
    assert_eq!(changes(&out), [JobChange::Expired], "due and past at once, it only expires");
    assert_eq!(story.counts().ready, 1, "a job without such a time waits on");
    assert_eq!(story.job(3).info.ended_at, Some(story.now.wall_ms));
}

#[test]
fn nothing_is_delivered_past_its_time_also_when_no_tick_came() {
    let mut story = begin(Due::Now);
    story.fill(2..=2);
    story.later(1_000);
    let (_, handed) = story.worker("a", QUEUE, 2);
    assert_eq!(handed.len(), 1);
    assert_eq!((story.state_of(1), story.state_of(2)), (JobState::Expired, JobState::Running));
}

#[test]
fn what_expires_instead_of_being_handed_out_lets_the_most_urgent_of_the_others_go_first() {
    let mut story = begin(Due::Now);
    let producer = story.link("producer");
    let other = |number| NewJob { path: path("/jobs/other"), ..plain(number) };
    story.enqueue(producer, &[other(2), plain(3)]);
    story.later(1_000);
    let (_, handed) = story.worker("a", "/jobs/*", 1);
    assert_eq!(story.state.path(handed[0].queue), &path("/jobs/other"));
}

#[test]
fn once_an_attempt_was_made_a_job_never_expires() {
    let mut story = begin(Due::Now);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.later(2_000).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Running);
    assert_eq!(story.settle(a, handed[0].token, &fail()).0, SettleOutcome::Accepted);
    assert_eq!(story.job(1).info.expires_at, None);
    story.tick_when_due();
    assert_eq!(story.state_of(1), JobState::Ready);
}

#[test]
fn a_delivery_given_back_too_late_expires() {
    let back = |ms: u64, settle: &NewSettle| {
        let mut story = begin(Due::Now);
        let (a, handed) = story.worker("a", QUEUE, 1);
        story.later(ms);
        let (_, out) = story.settle(a, handed[0].token, settle);
        (story, out)
    };
    let (story, out) = back(1_000, &NewSettle::Release);
    assert_eq!(changes(&out), [JobChange::Released, JobChange::Expired]);
    assert_eq!(story.state_of(1), JobState::Expired);
    let (mut story, out) = back(999, &NewSettle::Release);
    assert_eq!(changes(&out), [JobChange::Released]);
    story.tick_when_due();
    assert_eq!(story.state_of(1), JobState::Expired);
    let (mut story, _) = back(999, &NewSettle::Snooze { ms: 60_000 });
    story.later(1).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Expired, "its snooze ends too late");
    let mut story = begin(Due::Now);
    let (_, handed) = story.worker("a", QUEUE, 1);
    story.later(1_000);
    story.expire(handed[0].token, false);
    assert_eq!(story.state_of(1), JobState::Expired, "lost before it began");
}

#[test]
fn a_job_that_comes_too_late_is_taken_and_expires_at_once() {
    let mut story = Story::begin();
    let (producer, _) = (story.link("producer"), story.worker("a", QUEUE, 9));
    let now = story.now.wall_ms;
    let jobs =
        [until(1, now, Due::Now), until(2, 5, Due::After(1_000)), until(3, now + 1, Due::Now)];
    let out = story.send(producer, batch(1, &jobs));
    use JobChange::{Created, Delivered, Expired};
    assert_eq!(changes(&out), [Created, Expired, Created, Expired, Created, Delivered]);
    assert_eq!((story.counts().expired, out.handed.len()), (2, 1));
}

#[test]
fn a_clock_that_is_held_holds_expiry() {
    let mut story = begin(Due::Now);
    story.now.mono_ms += 60_000;
    story.apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Ready);
    story.now.wall_ms += 1_000;
    story.apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Expired);
}

#[test]
fn jobs_expire_in_bounded_steps() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let producer = story.link("producer");
    let at = story.now.wall_ms + 10;
    let jobs: Vec<_> = (1..=8).map(|number| until(number, at, Due::Now)).collect();
    story.enqueue(producer, &jobs);
    story.later(10);
    for expired in [3, 6, 8] {
        assert!(story.state.next_due(story.now).unwrap() <= story.now.mono_ms);
        story.apply(Command::Tick);
        assert_eq!(story.counts().expired, expired);
    }
}

#[test]
fn what_expires_instead_of_being_handed_out_does_so_in_bounded_steps() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let producer = story.link("producer");
    let at = story.now.wall_ms + 10;
    let mut jobs: Vec<_> = (1..=8).map(|number| until(number, at, Due::Now)).collect();
    jobs.push(plain(9));
    story.enqueue(producer, &jobs);
    story.later(10);
    let (_, handed) = story.worker("a", QUEUE, 2);
    assert_eq!((handed.len(), story.counts().expired), (0, 3));
    assert!(story.state.next_due(story.now).unwrap() <= story.now.mono_ms, "a Tick goes on");
    let out = story.apply(Command::Tick);
    assert_eq!((out.handed.len(), story.counts().expired), (1, 8), "three by time, two in turn");
    assert_eq!(story.state_of(9), JobState::Running);
}

#[test]
fn a_worker_that_stood_before_what_is_too_late_gets_what_is_behind_it_in_other_queues() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let producer = story.link("producer");
    let at = story.now.wall_ms + 10;
    let mut jobs: Vec<_> = (1..=4).map(|number| until(number, at, Due::Now)).collect();
    jobs.push(NewJob { path: path("/jobs/other"), ..plain(5) });
    story.enqueue(producer, &jobs);
    story.later(10);
    let (_, handed) = story.worker("a", "/jobs/*", 1);
    assert_eq!((handed.len(), story.counts().expired), (0, 3));
    let bytes = story.state.snapshot_bytes();
    story.state = State::restore(&bytes).unwrap();
    let out = story.apply(Command::Tick);
    assert_eq!(out.handed.len(), 1, "the queue that it stood before is empty now");
    assert_eq!(story.state_of(5), JobState::Running);
}
