//! Which job goes to which credit.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{Action, Filter, NewSettle, Selection, Sources, Waiting};
use longshore_protocol::{JobOptions, LinkId, NewJob};

use super::story::*;
use crate::command::Command;
use crate::outcome::{Handed, Outcomes, Reply};

fn urgent(number: u32, priority: i32) -> NewJob {
    with(number, JobOptions { priority, ..JobOptions::default() })
}

fn per_link(handed: &[Handed]) -> Vec<usize> {
    let mut counts: BTreeMap<LinkId, usize> = BTreeMap::new();
    handed.iter().for_each(|handed| *counts.entry(handed.link).or_default() += 1);
    counts.into_values().collect()
}

fn waiting(out: &Outcomes) -> Vec<(LinkId, Waiting)> {
    let told = out.replies.iter().filter_map(|(link, reply)| match reply {
        Reply::Waiting(waiting) => Some((*link, *waiting)),
        _ => None,
    });
    told.collect()
}

#[test]
fn higher_priorities_first_then_the_order_of_enqueuing() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let priorities = [0, 5, -3, 5, i32::MAX, 0, i32::MIN];
    let jobs: Vec<_> = (1..).zip(priorities).map(|(n, p)| urgent(n, p)).collect();
    story.enqueue(producer, &jobs);
    let (_, handed) = story.worker("a", QUEUE, 10);
    assert_eq!(numbers(&story, &handed), [5, 2, 4, 1, 6, 3, 7]);
}

#[test]
fn jobs_that_come_back_take_the_place_that_their_age_gives_them() {
    let mut story = Story::begin();
    story.fill(1..=5);
    let (a, handed) = story.worker("a", QUEUE, 3);
    for nth in [2, 0, 1] {
        story.settle(a, handed[nth].token, &NewSettle::Release);
    }
    let again = story.credit(a, 1, 10);
    assert_eq!(numbers(&story, &again), [1, 2, 3, 4, 5]);
}

#[test]
fn a_pattern_takes_the_most_urgent_job_of_all_its_queues_then_the_oldest() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let at = |number, priority, text: &str| NewJob { path: path(text), ..urgent(number, priority) };
    let jobs = [
        at(1, 0, "/jobs/a"),
        at(2, 0, "/jobs/b"),
        at(3, 1, "/jobs/c"),
        at(4, 0, "/jobs/a"),
        at(5, 1, "/jobs/b"),
        at(6, 9, "/jobs/hidden/x"),
    ];
    story.enqueue(producer, &jobs);
    let (_, handed) = story.worker("a", "/jobs/*", 10);
    assert_eq!(numbers(&story, &handed), [3, 5, 1, 2, 4]);
}

#[test]
fn a_new_queue_joins_the_patterns_that_match_it() {
    let mut story = Story::begin();
    let (a, _) = story.worker("a", "/jobs/**", 2);
    story.worker("b", "/jobs/other", 2);
    let producer = story.link("producer");
    let out = story.send(producer, batch(1, &[plain(1)]));
    assert_eq!(out.queues_made, [path(QUEUE)]);
    assert_eq!(out.handed.iter().map(|h| h.link).collect::<Vec<_>>(), [a]);
    assert_eq!(story.state.path(out.handed[0].queue), &path(QUEUE));
}

#[test]
fn waiting_workers_share_what_comes_evenly() {
    let mut story = Story::begin();
    for worker in ["a", "b", "c", "d"] {
        story.worker(worker, QUEUE, 200);
    }
    let producer = story.link("producer");
    let jobs: Vec<_> = (1..=100).map(plain).collect();
    let out = story.send(producer, batch(1, &jobs));
    assert_eq!(per_link(&out.handed), [25; 4]);
    let jobs: Vec<_> = (101..=700).map(plain).collect();
    let out = story.send(producer, batch(2, &jobs));
    assert_eq!(per_link(&out.handed).iter().sum::<usize>(), 600);
    assert!(per_link(&out.handed).iter().all(|&jobs| (128..=175).contains(&jobs)));
}

#[test]
fn single_jobs_go_round_the_workers_in_turn() {
    let mut story = Story::begin();
    for worker in ["a", "b", "c"] {
        story.worker(worker, QUEUE, 5);
    }
    let producer = story.link("producer");
    let links: Vec<_> = (1..=6)
        .map(|n| story.send(producer, batch(u64::from(n), &[plain(n)])).handed[0].link.0)
        .collect();
    assert_eq!(links[..3], links[3..]);
    assert_eq!(links[..3].iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
}

#[test]
fn patterns_that_overlap_take_turns() {
    let mut story = Story::begin();
    story.worker("a", QUEUE, 50);
    story.worker("b", "/jobs/*", 50);
    story.worker("c", "/jobs/**", 50);
    let producer = story.link("producer");
    let mut handed = Vec::new();
    for n in 1..=30 {
        handed.extend(story.send(producer, batch(u64::from(n), &[plain(n)])).handed);
    }
    assert_eq!(per_link(&handed), [10; 3]);
}

#[test]
fn a_subscription_without_credit_is_told_once_until_it_had_some() {
    let mut story = Story::begin();
    story.fill(1..=3);
    let a = story.link("a");
    let told = |jobs| [(a, Waiting { subscription: 1, jobs })];
    assert_eq!(waiting(&story.subscribe(a, 1, QUEUE)), told(3));
    let producer = story.link("producer");
    assert!(waiting(&story.send(producer, batch(1, &[plain(4)]))).is_empty());
    let out = story.apply(Command::Credit { link: a, subscription: 1, count: 2 });
    assert_eq!(out.handed.len(), 2);
    assert_eq!(waiting(&out), told(2));
    let out = story.apply(Command::Credit { link: a, subscription: 1, count: 5 });
    assert_eq!((out.handed.len(), waiting(&out).len()), (2, 0));
    let out = story.apply(Command::Recall { link: a, subscription: 1, count: 9 });
    let Reply::Returned(returned) = &out.replies[0].1 else { panic!("a recall is answered") };
    assert_eq!(returned.count, 3);
    assert_eq!(waiting(&story.send(producer, batch(2, &[plain(5)]))), told(1));
}

#[test]
fn credits_end_with_their_link_and_their_subscription() {
    let mut story = Story::begin();
    let (a, _) = story.worker("a", QUEUE, 5);
    story.apply(Command::LinkLost { link: a });
    let (b, _) = story.worker("b", QUEUE, 5);
    story.apply(Command::Unsubscribe { link: b, subscription: 1 });
    let (c, _) = story.worker("c", QUEUE, 5);
    story.link("c");
    let producer = story.link("producer");
    let out = story.send(producer, batch(1, &[plain(1)]));
    assert!(out.handed.is_empty(), "{c:?} has been replaced by another link of its session");
    story.worker("d", QUEUE, 5);
    assert_eq!(story.counts().running, 1);
}

#[test]
fn credits_are_bounded_by_what_a_session_may_hold() {
    let mut story = Story::begin();
    let (a, _) = story.worker("a", QUEUE, 60_000);
    story.subscribe(a, 2, "/jobs/other");
    story.credit(a, 2, 60_000);
    let credits = |text: &str| {
        let (_, group) = story
            .state
            .dispatch
            .groups
            .iter()
            .find(|(_, g)| g.sources == Sources::one(glob(text)))?;
        Some(group.credits)
    };
    assert_eq!((credits(QUEUE), credits("/jobs/other")), (Some(60_000), Some(5_536)));
}

#[test]
fn subscriptions_over_the_limit_or_twice_under_a_number_are_refused() {
    let mut story = Story::begin();
    let a = story.link("a");
    for number in 0..1_024 {
        assert!(story.apply(subscribe(a, number)).replies.is_empty());
    }
    for number in [5, 2_000] {
        let out = story.apply(subscribe(a, number));
        assert!(matches!(out.replies[0].1, Reply::SubscribeRefused { .. }));
    }
}

fn subscribe(link: LinkId, subscription: u32) -> Command {
    Command::Subscribe { link, subscription, sources: Sources::one(glob(QUEUE)) }
}

#[test]
fn actions_by_filter_go_on_in_bounded_steps() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let mut sequence = 0;
    for first in (1..=12_000).step_by(6_000) {
        sequence += 1;
        let jobs: Vec<_> = (first..first + 6_000).map(plain).collect();
        story.send(producer, batch(sequence, &jobs));
    }
    let all = || Selection::Matching(Filter::of(glob("/jobs/**")).in_state(None));
    assert_eq!(story.state.preview(Action::Cancel, &all()).done, 12_000);
    let (first, _) = story.act(Action::Cancel, all());
    assert_eq!((first.done, first.more), (10_000, true));
    let (rest, _) = story.act(Action::Cancel, all());
    assert_eq!((rest.done, rest.more), (2_000, false));
    assert_eq!(story.counts().cancelled, 12_000);
}

#[test]
fn listings_page_through_all_jobs_of_a_state() {
    use longshore_protocol::JobState;
    use longshore_protocol::messages::work::JobsQuery;
    let mut story = Story::begin();
    story.fill(1..=2_500);
    let mut query = JobsQuery {
        filter: Filter::of(glob(QUEUE)).in_state(JobState::Ready),
        cursor: 0,
        limit: 5_000,
        full: false,
    };
    let mut found = Vec::new();
    loop {
        let (page, next) = story.state.jobs(&query, story.now);
        assert!(page.len() <= 1_000);
        found.extend(page.into_iter().map(|view| view.info.id));
        let Some(next) = next else { break };
        query.cursor = next;
    }
    assert_eq!(found, (1..=2_500).map(id).collect::<Vec<_>>());
    let filter = Filter::of(glob(QUEUE)).in_state(JobState::Dead);
    query = JobsQuery { filter, cursor: 0, ..query };
    assert_eq!(story.state.jobs(&query, story.now), (Vec::new(), None));
}
