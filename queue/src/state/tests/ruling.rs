//! Limits and defaults are what the log says, not what the program that replays it has.

use longshore_protocol::{EnqueueOutcome, JobState, Refusal, SettleOutcome};

use super::snapshots::replay;
use super::story::*;
use crate::Rules;
use crate::command::{Command, Start};

fn start_with(story: &mut Story, rules: Rules) {
    let start = Start { rules: Box::new(rules), ..story.this_start() };
    story.apply(Command::Start(start));
}

/// Numbers that nobody has chosen.
fn other() -> Rules {
    Rules {
        jobs_per_queue: 1,
        queues: 1,
        sessions: 1,
        step_jobs: 1,
        max_attempts: 1,
        keep_ms: 5,
        keep_dead_ms: 5,
        worker_losses: 1,
        lost_deliveries: 1,
        answers_kept: 1,
        ..Rules::STANDARD
    }
}

#[test]
fn replay_under_other_constants_gives_the_same_bytes() {
    let mut story = Story::begin();
    story.fill(1..=6);
    let (a, handed) = story.worker("a", QUEUE, 6);
    story.complete(a, handed[0].token);
    story.settle(a, handed[1].token, &fail());
    let token = story.expire(handed[2].token, true).ended[0];
    assert_eq!(token, handed[2].token);
    story.expire(handed[3].token, false);
    start_with(&mut story, Rules { max_attempts: 3, keep_ms: 60_000, ..Rules::STANDARD });
    story.later(30_000).apply(Command::Tick);
    story.later(40_000).apply(Command::Tick);
    let bytes = story.state.snapshot_bytes();
    assert_eq!(replay(&story, other()).snapshot_bytes(), bytes);
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), bytes);
    let restored = crate::State::restore(&bytes).unwrap();
    assert_eq!(restored.rules(), story.state.rules());
    assert_eq!(restored.rules().max_attempts, 3);
}

#[test]
fn a_lower_limit_refuses_what_comes_and_unmakes_nothing() {
    let mut story = Story::begin();
    story.fill(1..=50);
    start_with(&mut story, Rules { jobs_per_queue: 10, ..Rules::STANDARD });
    let producer = story.link("producer");
    let full = EnqueueOutcome::Refused(Refusal::QueueFull);
    assert_eq!(story.enqueue(producer, &[plain(50), plain(51)]), [EnqueueOutcome::Existing, full]);
    story.state = replay(&story, other());
    assert_eq!(story.counts().ready, 50, "what was acknowledged is there");
    let (a, handed) = story.worker("a", QUEUE, 41);
    for handed in &handed {
        assert_eq!(story.complete(a, handed.token), SettleOutcome::Accepted);
    }
    assert_eq!(story.enqueue(producer, &[plain(51)]), [EnqueueOutcome::Created]);
    assert_eq!(story.state_of(50), JobState::Ready);
}

#[test]
fn new_defaults_hold_from_their_start_on() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.complete(a, handed[0].token);
    start_with(&mut story, Rules { keep_ms: 1_000, ..Rules::STANDARD });
    story.later(999).apply(Command::Tick);
    assert!(story.is_kept(1));
    story.later(1).apply(Command::Tick);
    assert!(!story.is_kept(1));
}
