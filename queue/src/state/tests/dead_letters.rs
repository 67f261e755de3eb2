//! Dead letters by what they died of: counted, listed and acted on kind by kind.

use longshore_protocol::messages::work::{Action, DeadGroup, Filter, NewSettle, Selection};
use longshore_protocol::{DeathReason, Fingerprint, JobError, JobOptions, JobState, NewJob};

use super::snapshots::replay;
use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::DeadGroupView;
use crate::state::State;

const OTHER: &str = "/jobs/other";

fn said(message: &str) -> JobError {
    JobError { kind: "Io".to_owned(), message: message.to_owned() }
}

fn nothing() -> Fingerprint {
    Fingerprint::of_parts("", "")
}

fn all() -> Filter {
    Filter::of(glob("/**"))
}

/// A publisher whose worker has buried jobs with these messages, from job 1 on, a second apart.
fn buried(messages: &[&str]) -> Story {
    let mut story = Story::begin();
    bury(&mut story, 1, messages);
    story
}

fn bury(story: &mut Story, first: u32, messages: &[&str]) {
    story.fill(first..=first + messages.len() as u32 - 1);
    let (a, handed) = story.worker("ann", QUEUE, messages.len() as u32);
    for (handed, message) in handed.iter().zip(messages) {
        story.later(1_000);
        story.settle(a, handed.token, &NewSettle::Bury(said(message)));
    }
    story.apply(Command::LinkLost { link: a });
}

fn groups(story: &Story, filter: &Filter) -> Vec<DeadGroup> {
    let (views, more) = story.state.dead_groups(filter);
    assert!(!more);
    views.into_iter().map(|DeadGroupView { group, .. }| group).collect()
}

fn of_kind(message: &str) -> Filter {
    Filter { fingerprint: Some(Fingerprint::of(&said(message))), ..all() }
}

#[test]
fn errors_of_one_shape_are_one_group_with_its_first_its_last_and_an_example() {
    let story = buried(&["no file /a", "disk full", "no file /b", "no file /c"]);
    let found = groups(&story, &all());
    let (missing, full) = (&found[0], &found[1]);
    assert_eq!(found.len(), 2);
    assert_eq!((missing.jobs, full.jobs), (3, 1));
    assert_eq!(missing.path, path(QUEUE));
    assert_eq!(missing.death, DeathReason::Buried);
    assert_eq!(missing.fingerprint, Fingerprint::of(&said("no file /elsewhere")));
    let died = |number: u32| story.job(number).info.ended_at.unwrap();
    assert_eq!((missing.first_at, missing.last_at), (died(1), died(4)));
    assert_eq!((missing.example, full.example), (id(4), id(2)));
    let (views, _) = story.state.dead_groups(&all());
    assert_eq!(views[0].error, story.job(4).attempt_errors[0]);
}

#[test]
fn deaths_that_nobody_explained_are_groups_of_the_empty_error() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let once = JobOptions { max_attempts: Some(2), ..JobOptions::default() };
    let jobs: Vec<NewJob> = (1..=2).map(|number| with(number, once.clone())).collect();
    story.enqueue(producer, &jobs);
    let (a, handed) = story.worker("ann", QUEUE, 9);
    for handed in &handed {
        story.settle(a, handed.token, &NewSettle::Fail(said("first")));
    }
    let mut again = story.tick_when_due().handed;
    again.extend(story.tick_when_due().handed);
    story.expire(again[0].token, true);
    story.apply(Command::Damaged { token: again[1].token });
    let found: Vec<_> =
        groups(&story, &all()).iter().map(|group| (group.death, group.fingerprint)).collect();
    let expected = [(DeathReason::WorkerLost, nothing()), (DeathReason::PayloadDamaged, nothing())];
    assert_eq!(found, expected);
    assert!(story.state.dead_groups(&all()).0.iter().all(|view| view.error.is_none()));
}

#[test]
fn groups_come_with_most_jobs_first_then_by_path_reason_and_fingerprint() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let elsewhere = |number: u32| NewJob { path: path(OTHER), ..plain(number) };
    story.enqueue(producer, &[elsewhere(11), elsewhere(12)]);
    let (a, handed) = story.worker("ann", OTHER, 2);
    for handed in handed {
        story.settle(a, handed.token, &NewSettle::Bury(said("x")));
    }
    bury(&mut story, 1, &["a", "b", "b", "c", "c", "c"]);
    let found: Vec<_> = groups(&story, &all())
        .into_iter()
        .map(|group| (group.jobs, group.path, group.fingerprint))
        .collect();
    let of = |text: &str| Fingerprint::of(&said(text));
    let expected = [
        (3, path(QUEUE), of("c")),
        (2, path(QUEUE), of("b")),
        (2, path(OTHER), of("x")),
        (1, path(QUEUE), of("a")),
    ];
    assert_eq!(found, expected);
    let here = groups(&story, &Filter { pattern: glob(OTHER), ..all() });
    assert_eq!((here.len(), here[0].jobs), (1, 2));
    assert!(groups(&story, &Filter { death: Some(DeathReason::TimedOut), ..all() }).is_empty());
}

#[test]
fn one_kind_is_revived_or_dropped_and_the_others_stay() {
    let mut story = buried(&["no file /a", "disk full", "no file /b"]);
    let (report, _) = story.act(Action::Revive, Selection::Matching(of_kind("no file /x")));
    assert_eq!(report.done, 2);
    let states: Vec<_> = (1..=3).map(|number| story.state_of(number)).collect();
    assert_eq!(states, [JobState::Ready, JobState::Dead, JobState::Ready]);
    let wrong = Filter { death: Some(DeathReason::AttemptsExhausted), ..of_kind("disk full") };
    assert_eq!(story.act(Action::Drop, Selection::Matching(wrong)).0.done, 0, "all must fit");
    let (report, _) = story.act(Action::Drop, Selection::Matching(of_kind("disk full")));
    assert_eq!((report.done, groups(&story, &all()).len()), (1, 0));
}

#[test]
fn the_old_are_a_run_from_the_oldest_and_the_young_up_to_the_newest() {
    let story = buried(&["x"; 5]);
    let died = |number: u32| story.job(number).info.ended_at.unwrap();
    let slots = |filter: &Filter| -> Vec<u32> {
        let (slots, more) = story.state.dead_matching(filter, 100);
        assert!(!more);
        slots
            .iter()
            .map(|&slot| (1..=5).find(|&n| story.state.rows.find(&id(n)) == Some(slot)).unwrap())
            .collect()
    };
    let old = Filter { ended_before: Some(died(3)), ..all() };
    let young = Filter { ended_from: Some(died(3)), ..all() };
    let between = Filter { ended_from: Some(died(2)), ended_before: Some(died(4)), ..all() };
    assert_eq!(slots(&old), [1, 2]);
    assert_eq!(slots(&young), [5, 4, 3]);
    assert_eq!(slots(&between), [2, 3]);
    for (filter, jobs, first, last) in [(&old, 2, 1, 2), (&young, 3, 3, 5), (&between, 2, 2, 3)] {
        let group = &groups(&story, filter)[0];
        assert_eq!((group.jobs, group.first_at, group.last_at), (jobs, died(first), died(last)));
        assert_eq!(group.example, id(last));
        assert_eq!(story.state.count_dead(filter), (jobs, false));
    }
    let never = Filter { ended_before: Some(died(1)), ..all() };
    assert!(slots(&never).is_empty() && groups(&story, &never).is_empty());
}

#[test]
fn a_run_ends_where_the_wall_clock_fell() {
    let mut story = buried(&["x", "x"]);
    let noon = story.now.wall_ms;
    story.now.wall_ms -= 600_000;
    bury(&mut story, 3, &["x"]);
    let old = Filter { ended_before: Some(noon), ..all() };
    assert_eq!(story.state.count_dead(&old), (1, false), "the third is behind the second");
    let (report, _) = story.act(Action::Drop, Selection::Matching(old));
    assert_eq!(report.done, 1);
    assert!(!story.is_kept(1) && story.is_kept(2) && story.is_kept(3));
}

#[test]
fn an_action_takes_so_many_at_a_time_and_says_that_there_are_more() {
    let rules = Rules { step_jobs: 3, ..Rules::STANDARD };
    let mut story = Story::with_rules(rules);
    bury(&mut story, 1, &["x", "y", "x", "y", "z"]);
    let dead = || Selection::Matching(all().in_state(JobState::Dead));
    assert_eq!(story.state.preview(Action::Drop, &dead()).done, 5);
    let (report, _) = story.act(Action::Drop, dead());
    assert_eq!((report.done, report.more), (3, true));
    let (report, _) = story.act(Action::Drop, dead());
    assert_eq!((report.done, report.more), (2, false));
}

#[test]
fn a_snapshot_keeps_the_order_of_death() {
    let mut story = buried(&["x", "y", "x", "x"]);
    story.act_on(Action::Drop, 1);
    let bytes = story.state.snapshot_bytes();
    let restored = State::restore(&bytes).unwrap();
    restored.invariant().unwrap();
    assert_eq!(restored.snapshot_bytes(), bytes);
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), bytes);
    assert_eq!(restored.dead_groups(&all()), story.state.dead_groups(&all()));
    assert_eq!(restored.dead_matching(&all(), 9), story.state.dead_matching(&all(), 9));
}
