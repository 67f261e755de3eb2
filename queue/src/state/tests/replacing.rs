//! A dead job goes and a new one comes, in one command.

use bytes::Bytes;
use longshore_protocol::limits::PAYLOAD_BYTES_MAX;
use longshore_protocol::messages::work::{NewSettle, ReplaceOutcome};
use longshore_protocol::{FrameWriter, JobChange, JobState, NewJob};

use super::snapshots::replay;
use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::{Outcomes, Reply};
use crate::state::State;

pub(super) fn entry(job: &NewJob) -> Bytes {
    let mut out = FrameWriter::with_capacity(64);
    job.encode_entry_head(&mut out);
    out.put_shared(job.payload.clone());
    out.into_body()
}

fn replace(story: &mut Story, dead: u32, entry: Bytes) -> (ReplaceOutcome, Outcomes) {
    let link = story.state.next_link();
    let out = story.apply(Command::Replace { link, request: 3, id: id(dead), entry });
    let answer = out.replies.iter().find_map(|(to, reply)| match reply {
        Reply::Replaced { request: 3, outcome } if *to == link => Some(*outcome),
        _ => None,
    });
    (answer.expect("a replacement is answered"), out)
}

/// A publisher where job 1 is dead and job 2 waits.
fn dead() -> Story {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("ann", QUEUE, 1);
    story.settle(a, handed[0].token, &NewSettle::Bury(error("bad payload")));
    story.fill(2..=2);
    story
}

#[test]
fn the_new_job_has_its_own_id_payload_and_options_in_the_same_queue() {
    let mut story = dead();
    let options = longshore_protocol::JobOptions { priority: 7, ..Default::default() };
    let new = NewJob { payload: Bytes::from("better"), ..with(9, options) };
    let (outcome, out) = replace(&mut story, 1, entry(&new));
    assert_eq!(outcome, ReplaceOutcome::Replaced);
    assert!(!story.is_kept(1));
    let view = story.job(9);
    assert_eq!((view.info.replaces, view.info.priority), (Some(id(1)), 7));
    assert_eq!((view.info.path, view.info.state), (path(QUEUE), JobState::Ready));
    let told: Vec<_> = out.events.iter().map(|event| (event.job, event.change)).collect();
    assert_eq!(told, [(id(1), JobChange::Dropped), (id(9), JobChange::Created)]);
    let (index, _, command) = story.log.last().unwrap();
    let (head, raw) = command.encode();
    let body = [head, raw].concat();
    let (from, to) = (view.entry.at as usize, (view.entry.at + view.entry.length) as usize);
    assert_eq!((view.entry.index, &body[from..to]), (*index, &*entry(&new)));
    assert_eq!(view.info.payload_len, 6);
}

#[test]
fn said_again_after_a_lost_answer_it_is_said_again() {
    let mut story = dead();
    replace(&mut story, 1, entry(&plain(9)));
    let (outcome, out) = replace(&mut story, 1, entry(&plain(9)));
    assert_eq!((outcome, out.events.len()), (ReplaceOutcome::Replaced, 0));
    let other = NewJob { payload: Bytes::from("another"), ..plain(9) };
    assert_eq!(replace(&mut story, 1, entry(&other)).0, ReplaceOutcome::Unknown);
    assert_eq!(replace(&mut story, 2, entry(&plain(9))).0, ReplaceOutcome::NotDead);
}

#[test]
fn what_is_wrong_is_told_and_changes_nothing() {
    let mut story = dead();
    let before = story.state.queue_stats(&glob("/**"), story.now);
    let large = NewJob { payload: Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]), ..plain(9) };
    let mut wrong = entry(&plain(9)).to_vec();
    wrong[16] = 0xff;
    for (number, entry, expected) in [
        (5, entry(&plain(9)), ReplaceOutcome::Unknown),
        (2, entry(&plain(9)), ReplaceOutcome::NotDead),
        (1, entry(&plain(2)), ReplaceOutcome::IdConflict),
        (1, entry(&plain(1)), ReplaceOutcome::IdConflict),
        (1, entry(&large), ReplaceOutcome::TooLarge),
        (1, Bytes::from(wrong), ReplaceOutcome::BadOptions),
        (1, Bytes::from_static(b"short"), ReplaceOutcome::BadOptions),
    ] {
        let (outcome, out) = replace(&mut story, number, entry);
        assert_eq!((outcome, out.events.len()), (expected, 0));
    }
    assert_eq!(story.state.queue_stats(&glob("/**"), story.now), before);
}

#[test]
fn a_full_queue_takes_no_replacement() {
    let mut story = Story::with_rules(Rules { jobs_per_queue: 1, ..Rules::STANDARD });
    story.fill(1..=1);
    let (a, handed) = story.worker("ann", QUEUE, 1);
    story.settle(a, handed[0].token, &NewSettle::Bury(error("no")));
    story.fill(2..=2);
    assert_eq!(replace(&mut story, 1, entry(&plain(9))).0, ReplaceOutcome::QueueFull);
    assert_eq!(story.state_of(1), JobState::Dead);
}

#[test]
fn a_queue_that_takes_no_new_jobs_takes_a_replacement_and_a_waiting_worker_gets_it() {
    let mut story = dead();
    story.start_at(&["/elsewhere"], &[]);
    let (_, handed) = story.worker("bob", QUEUE, 2);
    assert_eq!(handed.len(), 1);
    let (outcome, out) = replace(&mut story, 1, entry(&plain(9)));
    assert_eq!(outcome, ReplaceOutcome::Replaced);
    assert_eq!(super::story::numbers(&story, &out.handed), [9]);
}

#[test]
fn a_snapshot_keeps_what_was_replaced() {
    let mut story = dead();
    replace(&mut story, 1, entry(&plain(9)));
    let bytes = story.state.snapshot_bytes();
    story.state = State::restore(&bytes).unwrap();
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), bytes);
    assert_eq!(story.job(9).info.replaces, Some(id(1)));
    assert_eq!(replace(&mut story, 1, entry(&plain(9))).0, ReplaceOutcome::Replaced);
}
