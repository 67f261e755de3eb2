//! K6, K7: a user's cancellation and the clock, at any moment of a run.

use longshore_protocol::messages::work::{Action, Selection};
use longshore_protocol::{Due, JobOptions, JobState, Revoked, SettleOutcome};

use super::super::story::*;
use crate::command::Command;

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
    let ids = Selection::Ids(vec![id(1)]);
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
