//! Jobs that wait to be confirmed.

use longshore_protocol::messages::work::{Action, Filter, Selection};
use longshore_protocol::{DeathReason, Due, EnqueueOutcome, JobOptions, JobState, Refusal};

use super::story::*;
use crate::Rules;
use crate::command::Command;

const HOUR_MS: u64 = 60 * 60 * 1_000;

fn prepared(number: u32, due: Due) -> longshore_protocol::NewJob {
    with(number, JobOptions { prepared: true, due, ..JobOptions::default() })
}

/// A publisher with one prepared job, number 1.
fn begin(due: Due) -> Story {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[prepared(1, due)]);
    story
}

#[test]
fn a_prepared_job_goes_to_no_worker_until_it_is_confirmed() {
    let mut story = begin(Due::Now);
    let (_, handed) = story.worker("a", QUEUE, 1);
    assert!(handed.is_empty());
    assert_eq!((story.state_of(1), story.counts().prepared), (JobState::Prepared, 1));
    story.later(HOUR_MS - 1).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Prepared);
    let (report, out) = story.act(Action::Confirm, Selection::Ids(vec![id(1)]));
    assert_eq!((report.done, out.handed.len()), (1, 1));
    assert_eq!((story.counts().prepared, story.counts().running), (0, 1));
}

#[test]
fn nobody_confirms_it_for_an_hour_and_it_is_buried_as_unconfirmed() {
    let mut story = begin(Due::After(5));
    story.later(HOUR_MS - 1).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Prepared);
    assert_eq!(story.state.next_due(story.now), Some(story.now.mono_ms + 1));
    story.later(1).apply(Command::Tick);
    assert_eq!(story.death_of(1), Some(DeathReason::Unconfirmed));
    let refused = story.act_on(Action::Confirm, 1);
    assert_eq!((refused.done, refused.refused), (0, 1), "too late");
    assert_eq!(story.act_on(Action::Revive, 1).done, 1);
    assert_eq!(story.state_of(1), JobState::Ready, "whoever revives it wants it to run");
    assert_eq!(story.state.queue_stats(&glob(QUEUE), story.now)[0].died, 1);
}

#[test]
fn a_delay_counts_from_the_confirmation_and_a_time_that_has_passed_is_now() {
    let mut story = begin(Due::After(1_000));
    let producer = story.link("producer");
    let wall = story.now.wall_ms;
    let jobs = [prepared(2, Due::At(wall + 9_000)), prepared(3, Due::At(wall + 700))];
    story.enqueue(producer, &jobs);
    assert_eq!(story.job(2).info.due_at, None, "it is not scheduled yet");
    story.later(700);
    (1..=3).for_each(|number| assert_eq!(story.act_on(Action::Confirm, number).done, 1));
    assert_eq!(story.job(1).info.due_at, Some(story.now.wall_ms + 1_000));
    assert_eq!(story.job(2).info.due_at, Some(wall + 9_000));
    assert_eq!(story.state_of(3), JobState::Ready);
    story.later(999).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Scheduled);
    story.later(1).apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Ready);
}

#[test]
fn prepared_jobs_count_against_the_limit_are_listed_and_can_be_cancelled() {
    let mut story = Story::with_rules(Rules { jobs_per_queue: 2, ..Rules::STANDARD });
    let producer = story.link("producer");
    let jobs: Vec<_> = (1..=3).map(|number| prepared(number, Due::Now)).collect();
    let outcomes = story.enqueue(producer, &jobs);
    assert_eq!(outcomes[2], EnqueueOutcome::Refused(Refusal::QueueFull));
    let only_prepared = Filter::of(glob(QUEUE)).in_state(JobState::Prepared);
    let report = story.act(Action::Cancel, Selection::Matching(only_prepared)).0;
    assert_eq!((report.done, story.counts().cancelled), (2, 2));
    assert_eq!(story.state.next_due(story.now).map(|due| due > story.now.mono_ms), Some(true));
}

#[test]
fn plain_jobs_and_prepared_ones_share_a_profile_and_a_cancelled_one_is_confirmed_by_nobody() {
    let mut story = begin(Due::After(17));
    assert_eq!(story.state.profiles.table().len(), 1, "what is each job's own is no profile's");
    assert_eq!(story.act_on(Action::Cancel, 1).done, 1);
    assert_eq!(story.act_on(Action::Confirm, 1).refused, 1);
}
