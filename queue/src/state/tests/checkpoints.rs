//! What an attempt leaves for later ones.

use bytes::Bytes;
use longshore_protocol::limits::{CHECKPOINT_BYTES_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::{Action, Checkpoint, NewSettle, RequestError};
use longshore_protocol::{CheckpointOutcome, LinkId, Token};

use super::snapshots::replay;
use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::{CheckpointView, Outcomes, Reply};
use crate::state::State;
use CheckpointOutcome::{Accepted, Gap, StaleToken, TooLarge};

fn send(story: &mut Story, link: LinkId, token: Token, sequence: u64, bytes: &str) -> Outcomes {
    let body = Checkpoint::body_of(token, sequence, &Bytes::from(bytes.to_owned()));
    let checkpoint = Checkpoint::decode(body).unwrap();
    story.apply(Command::Checkpoint { link, checkpoint })
}

fn leave(
    story: &mut Story,
    link: LinkId,
    token: Token,
    sequence: u64,
    bytes: &str,
) -> CheckpointOutcome {
    let out = send(story, link, token, sequence, bytes);
    let answered = out.replies.iter().find_map(|(to, reply)| match reply {
        Reply::Checkpointed(answer) if *to == link => Some(*answer),
        _ => None,
    });
    let answer = answered.expect("a checkpoint is answered");
    assert_eq!((answer.token, answer.sequence), (token, sequence));
    answer.outcome
}

/// Attempt and number of each.
fn numbers(views: &[CheckpointView]) -> Vec<(u16, u64)> {
    views.iter().map(|view| (view.info.attempt, view.info.sequence)).collect()
}

/// A worker that runs job 1.
fn running() -> (Story, LinkId, Token) {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("ann", QUEUE, 9);
    assert_eq!(handed[0].checkpoints, 0);
    (story, a, handed[0].token)
}

#[test]
fn the_next_number_alone_is_taken_and_one_said_again_is_acknowledged_and_not_kept_twice() {
    let (mut story, a, token) = running();
    assert_eq!(leave(&mut story, a, token, 2, "b"), Gap);
    assert_eq!(leave(&mut story, a, token, 1, "a"), Accepted);
    assert_eq!(leave(&mut story, a, token, 3, "c"), Gap);
    assert_eq!(leave(&mut story, a, token, 2, "b"), Accepted);
    for sequence in [1, 2] {
        assert_eq!(leave(&mut story, a, token, sequence, "other"), Accepted);
    }
    let kept = story.state.checkpoints(token, a).unwrap();
    assert_eq!(numbers(&kept), [(1, 1), (1, 2)]);
    assert_eq!(kept[1].info.length, 1);
}

#[test]
fn a_checkpoint_leads_to_its_bytes_in_the_log() {
    let (mut story, a, token) = running();
    story.later(77);
    send(&mut story, a, token, 1, "half way");
    let (index, now, command) = story.log.last().unwrap();
    let (head, raw) = command.encode();
    let body = [head, raw].concat();
    let kept = &story.state.checkpoints(token, a).unwrap()[0];
    let at = kept.bytes;
    assert_eq!((at.index, kept.info.at), (*index, now.wall_ms));
    assert_eq!(&body[at.at as usize..(at.at + at.length) as usize], b"half way");
    let view = story.job(1);
    assert_eq!((&view.info.checkpoints[0], view.checkpoints[0]), (&kept.info, at));
}

#[test]
fn a_later_attempt_finds_what_earlier_ones_left_and_numbers_its_own_from_1() {
    let (mut story, a, token) = running();
    leave(&mut story, a, token, 1, "a");
    leave(&mut story, a, token, 2, "b");
    let (_, out) = story.settle(a, token, &NewSettle::Release);
    assert_eq!(out.handed[0].checkpoints, 2);
    let second = out.handed[0].token;
    assert_eq!(leave(&mut story, a, second, 3, "c"), Gap, "a new delivery begins at 1");
    assert_eq!(leave(&mut story, a, second, 1, "c"), Accepted);
    story.settle(a, second, &fail());
    let handed = story.tick_when_due().handed;
    assert_eq!((handed[0].attempt, handed[0].checkpoints), (2, 3));
    leave(&mut story, a, handed[0].token, 1, "d");
    let kept = story.state.checkpoints(handed[0].token, a).unwrap();
    assert_eq!(numbers(&kept), [(1, 1), (1, 2), (1, 1), (2, 1)], "given back: its number again");
    story.complete(a, handed[0].token);
    assert_eq!(story.job(1).info.checkpoints.len(), 4, "as long as the job is kept");
    story.tick_when_due();
    assert_eq!(story.state.sides.len(), 0);
}

#[test]
fn who_does_not_hold_the_lease_leaves_nothing_reads_nothing_and_is_counted() {
    let (mut story, a, token) = running();
    leave(&mut story, a, token, 1, "a");
    let b = story.link("bob");
    assert_eq!(leave(&mut story, b, token, 2, "b"), StaleToken);
    assert_eq!(story.state.checkpoints(token, b), Err(RequestError::StaleToken));
    story.expire(token, true);
    assert_eq!(leave(&mut story, a, token, 2, "b"), StaleToken);
    assert_eq!(leave(&mut story, a, token, 1, "a"), StaleToken);
    assert_eq!(story.state.checkpoints(token, a), Err(RequestError::StaleToken));
    assert_eq!(story.state.totals().stale_refused, 3);
    let stats = story.state.queue_stats(&glob(QUEUE), story.now);
    assert_eq!(stats[0].stale_refused, 2, "of the session that had held it");
    assert_eq!(story.job(1).info.checkpoints.len(), 1);
}

#[test]
fn a_checkpoint_over_its_limit_is_refused_and_its_number_is_still_the_next() {
    let (mut story, a, token) = running();
    let most = "x".repeat(CHECKPOINT_BYTES_MAX);
    assert_eq!(leave(&mut story, a, token, 1, &format!("{most}x")), TooLarge);
    assert_eq!(leave(&mut story, a, token, 2, "b"), Gap);
    assert_eq!(leave(&mut story, a, token, 1, &most), Accepted);
}

#[test]
fn the_newest_are_kept_up_to_a_number_and_up_to_a_size() {
    let (mut story, a, token) = running();
    for sequence in 1..=CHECKPOINTS_MAX as u64 + 3 {
        assert_eq!(leave(&mut story, a, token, sequence, "x"), Accepted);
    }
    let kept = numbers(&story.state.checkpoints(token, a).unwrap());
    assert_eq!((kept.len(), kept[0]), (CHECKPOINTS_MAX, (1, 4)));
    let next = CHECKPOINTS_MAX as u64 + 4;
    let large = "x".repeat(CHECKPOINT_BYTES_MAX);
    for sequence in next..next + 17 {
        leave(&mut story, a, token, sequence, &large);
    }
    let kept = story.state.checkpoints(token, a).unwrap();
    let bytes: u64 = kept.iter().map(|view| view.info.length).sum();
    assert_eq!((kept.len(), bytes), (16, CHECKPOINTS_BYTES_MAX as u64));
    assert_eq!(kept[15].info.sequence, next + 16);
    assert_eq!(leave(&mut story, a, token, 1, "x"), Accepted, "forgotten, and still accepted");
    assert_eq!(story.state.checkpoints(token, a).unwrap().len(), 16);
}

#[test]
fn checkpoints_outlive_death_revival_and_a_snapshot() {
    let (mut story, a, token) = running();
    leave(&mut story, a, token, 1, "a");
    story.settle(a, token, &NewSettle::Bury(error("no")));
    story.act_on(Action::Revive, 1);
    let token = story.state.running().next().unwrap().token;
    leave(&mut story, a, token, 1, "b");
    let bytes = story.state.snapshot_bytes();
    let restored = State::restore(&bytes).unwrap();
    restored.invariant().unwrap();
    assert_eq!(restored.snapshot_bytes(), bytes);
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), bytes);
    story.state = restored;
    assert_eq!(leave(&mut story, a, token, 3, "d"), Gap);
    assert_eq!(leave(&mut story, a, token, 2, "c"), Accepted);
    let kept = story.state.checkpoints(token, a).unwrap();
    assert_eq!(numbers(&kept), [(1, 1), (1, 1), (1, 2)]);
}
