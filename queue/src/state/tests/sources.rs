//! Workers that take from several sources, in the order that they state.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{Order, Source, Sources, Waiting};
use longshore_protocol::{JobOptions, LinkId, NewJob};
use proptest::prelude::*;

use super::story::*;
use crate::command::Command;
use crate::outcome::{Handed, Outcomes, Reply};
use crate::state::State;
use crate::state::lanes::Lanes;
use crate::state::ready::Head;

const HIGH: &str = "/jobs/high";
const MIDDLE: &str = "/jobs/middle";
const LOW: &str = "/jobs/low";

pub(super) fn sources(order: Order, patterns: &[(&str, u16)]) -> Sources {
    let source = |&(text, weight): &(&str, u16)| Source { pattern: glob(text), weight };
    Sources { order, patterns: patterns.iter().map(source).collect() }
}

fn three(order: Order) -> Sources {
    sources(order, &[(HIGH, 3), (MIDDLE, 2), (LOW, 1)])
}

impl Story {
    /// A worker with so many credits for the sources; and what it is handed at once.
    pub(super) fn taker(
        &mut self,
        name: &str,
        sources: Sources,
        credits: u32,
    ) -> (LinkId, Vec<Handed>) {
        let link = self.link(name);
        self.apply(Command::Subscribe { link, subscription: 1, sources });
        let handed = self.credit(link, 1, credits);
        (link, handed)
    }

    /// Enqueues jobs with those numbers, to that path.
    pub(super) fn fill_path(&mut self, text: &str, numbers: std::ops::RangeInclusive<u32>) {
        self.fill_urgent(text, numbers, 0);
    }

    fn fill_urgent(&mut self, text: &str, numbers: std::ops::RangeInclusive<u32>, priority: i32) {
        let producer = self.link("filler");
        let options = JobOptions { priority, ..JobOptions::default() };
        let at = |n| NewJob { path: path(text), ..with(n, options.clone()) };
        let jobs: Vec<NewJob> = numbers.map(at).collect();
        for jobs in jobs.chunks(10_000) {
            self.enqueue(producer, jobs);
        }
    }

    /// The last parts of the paths that the jobs come from.
    fn from(&self, handed: &[Handed]) -> Vec<String> {
        let name = |handed: &Handed| {
            self.state.path(handed.queue).segments().next_back().unwrap_or_default().to_owned()
        };
        handed.iter().map(name).collect()
    }

    fn shares(&self, handed: &[Handed]) -> BTreeMap<String, usize> {
        let mut shares = BTreeMap::new();
        self.from(handed).into_iter().for_each(|name| *shares.entry(name).or_default() += 1);
        shares
    }
}

fn shares_are(found: &BTreeMap<String, usize>, expected: &[(&str, usize)]) {
    let expected = expected.iter().map(|&(name, jobs)| (name.to_owned(), jobs)).collect();
    assert_eq!(*found, expected);
}

#[test]
fn by_age_several_sources_are_as_one_queue() {
    let mut story = Story::begin();
    story.fill_path(LOW, 1..=2);
    story.fill_urgent(MIDDLE, 3..=4, 5);
    story.fill_path(HIGH, 5..=5);
    story.fill_path(LOW, 6..=6);
    let (_, handed) = story.taker("a", three(Order::Age), 10);
    assert_eq!(numbers(&story, &handed), [3, 4, 1, 2, 5, 6]);
}

#[test]
fn a_strict_order_takes_nothing_of_a_source_while_an_earlier_one_has_a_job() {
    let mut story = Story::begin();
    story.fill_urgent(LOW, 1..=3, 100);
    story.fill_path(MIDDLE, 11..=12);
    story.fill_path(HIGH, 21..=22);
    let (a, mut handed) = story.taker("a", three(Order::Strict), 3);
    assert_eq!(numbers(&story, &handed), [21, 22, 11], "priorities do not cross sources");
    story.fill_path(HIGH, 23..=23);
    handed = story.credit(a, 1, 3);
    assert_eq!(numbers(&story, &handed), [23, 12, 1]);
    handed = story.credit(a, 1, 3);
    assert_eq!(numbers(&story, &handed), [2, 3]);
    story.fill_path(LOW, 4..=4);
    assert_eq!(story.counts_of(LOW).running, 4, "what is left of the credit is for all of them");
}

#[test]
fn within_a_source_jobs_come_by_priority_then_age() {
    for order in [Order::Strict, Order::Weighted] {
        let mut story = Story::begin();
        story.fill_path("/jobs/x/1", 1..=2);
        story.fill_urgent("/jobs/x/2", 3..=4, 1);
        story.fill_path("/jobs/x/1", 5..=5);
        let (_, handed) = story.taker("a", sources(order, &[("/jobs/y", 9), ("/jobs/x/*", 1)]), 9);
        assert_eq!(numbers(&story, &handed), [3, 4, 1, 2, 5], "{order:?}");
    }
}

#[test]
fn weights_hold_exactly_in_every_round_and_are_spread_evenly() {
    let mut story = Story::begin();
    for (text, first) in [(HIGH, 1), (MIDDLE, 10_001), (LOW, 20_001)] {
        story.fill_path(text, first..=first + 9_999);
    }
    let (_, handed) = story.taker("a", three(Order::Weighted), 12_000);
    let names = story.from(&handed);
    assert_eq!(names[..6], ["high", "middle", "high", "low", "middle", "high"]);
    for round in handed.chunks(6) {
        shares_are(&story.shares(round), &[("high", 3), ("middle", 2), ("low", 1)]);
    }
    assert_eq!(handed.len(), 12_000);
}

#[test]
fn weights_hold_whatever_the_size_of_credits_and_over_snapshots() {
    let mut story = Story::begin();
    for (text, first) in [(HIGH, 1), (MIDDLE, 10_001), (LOW, 20_001)] {
        story.fill_path(text, first..=first + 4_999);
    }
    let lanes = sources(Order::Weighted, &[(HIGH, 7), (MIDDLE, 5), (LOW, 1)]);
    let (a, mut handed) = story.taker("a", lanes, 1);
    for step in 0.. {
        let left = 13 * 300 - handed.len() as u32;
        if left == 0 {
            break;
        }
        if step % 7 == 0 {
            story.state = State::restore(&story.state.snapshot_bytes()).unwrap();
        }
        handed.extend(story.credit(a, 1, (1 + step * 5 % 23).min(left)));
    }
    for round in handed.chunks(13) {
        shares_are(&story.shares(round), &[("high", 7), ("middle", 5), ("low", 1)]);
    }
}

#[test]
fn a_source_that_was_empty_has_saved_up_nothing() {
    let mut story = Story::begin();
    story.fill_path(HIGH, 1..=3_000);
    let two = sources(Order::Weighted, &[(HIGH, 1), (LOW, 1)]);
    let (a, handed) = story.taker("a", two, 1_000);
    assert_eq!(handed.len(), 1_000);
    story.fill_path(LOW, 10_001..=10_100);
    let handed = story.credit(a, 1, 10);
    assert_eq!(story.from(&handed), ["high", "low"].repeat(5));
}

#[test]
fn the_least_weight_is_served_once_a_round_however_seldom_it_has_a_job() {
    let mut story = Story::begin();
    story.fill_path(HIGH, 1..=30_000);
    let uneven = sources(Order::Weighted, &[(HIGH, 999), (LOW, 1)]);
    let (a, _) = story.taker("a", uneven, 0);
    for round in 0..10 {
        story.fill_path(LOW, 50_000 + round..=50_000 + round);
        let handed = story.credit(a, 1, 1_000);
        shares_are(&story.shares(&handed), &[("high", 999), ("low", 1)]);
    }
}

#[test]
fn a_queue_that_several_patterns_match_belongs_to_the_first() {
    let mut story = Story::begin();
    let overlapping =
        sources(Order::Weighted, &[(HIGH, 1), ("/jobs/{low,middle}", 2), ("/jobs/**", 3)]);
    // Before the queues are made, and after.
    for name in ["a", "b"] {
        let (a, _) = story.taker(name, overlapping.clone(), 0);
        for (nth, text) in (0..).zip([HIGH, MIDDLE, LOW, "/jobs/other"]) {
            let first = if name == "a" { 1 } else { 100_001 } + nth * 1_000;
            story.fill_path(text, first..=first + 599);
        }
        let handed = story.credit(a, 1, 600);
        let shares = story.shares(&handed);
        let both = shares["middle"] + shares.get("low").unwrap_or(&0);
        assert_eq!((shares["high"], both, shares["other"]), (100, 200, 300));
        assert_eq!(story.stat_of(HIGH).subscriptions, 1, "it is in the group once");
        story.apply(Command::LinkLost { link: a });
        assert_eq!(story.stat_of(HIGH).subscriptions, 0);
    }
}

#[test]
fn credits_are_one_pool_for_all_sources() {
    for order in [Order::Age, Order::Strict, Order::Weighted] {
        let mut story = Story::begin();
        let (a, _) = story.taker("a", three(order), 5);
        story.fill_path(LOW, 1..=2);
        story.fill_path(HIGH, 11..=12);
        story.fill_path(MIDDLE, 21..=22);
        assert_eq!(story.state.totals().running, 5, "{order:?}");
        assert_eq!(story.counts_of(MIDDLE).ready, 1);
        let out = story.apply(Command::Recall { link: a, subscription: 1, count: 9 });
        let Reply::Returned(returned) = &out.replies[0].1 else { panic!("a recall is answered") };
        assert_eq!(returned.count, 0);
    }
}

#[test]
fn a_subscription_without_credit_is_told_of_the_jobs_of_all_its_sources() {
    let mut story = Story::begin();
    story.fill_path(LOW, 1..=2);
    story.fill_path(HIGH, 11..=15);
    let link = story.link("a");
    let sources = three(Order::Strict);
    let out = story.apply(Command::Subscribe { link, subscription: 7, sources });
    assert_eq!(told(&out), [(link, Waiting { subscription: 7, jobs: 7 })]);
}

#[test]
fn subscriptions_with_equal_sources_share_one_order() {
    let mut story = Story::begin();
    for (text, first) in [(HIGH, 1), (MIDDLE, 10_001), (LOW, 20_001)] {
        story.fill_path(text, first..=first + 1_999);
    }
    let (a, _) = story.taker("a", three(Order::Weighted), 0);
    let (b, _) = story.taker("b", three(Order::Weighted), 0);
    assert_eq!(story.state.dispatch.groups.len(), 1);
    let mut handed = Vec::new();
    for step in 0..100 {
        handed.extend(story.credit(if step % 3 == 0 { a } else { b }, 1, 1 + step % 5));
    }
    for round in handed.chunks_exact(6) {
        shares_are(&story.shares(round), &[("high", 3), ("middle", 2), ("low", 1)]);
    }
    story.taker("c", three(Order::Strict), 0);
    assert_eq!(story.state.dispatch.groups.len(), 2, "another order is another group");
}

#[test]
fn groups_that_overlap_take_turns_and_each_keeps_its_own_order() {
    let mut story = Story::begin();
    let (strict, _) = story.taker("strict", three(Order::Strict), 300);
    let (weighted, _) = story.taker("weighted", three(Order::Weighted), 300);
    let (plain, _) = story.taker("plain", Sources::one(glob("/jobs/**")), 300);
    let mut handed = Vec::new();
    let producer = story.link("producer");
    for nth in 1..=90 {
        let text = [HIGH, MIDDLE, LOW][nth as usize % 3];
        let job = NewJob { path: path(text), ..with(nth, JobOptions::default()) };
        handed.extend(story.send(producer, batch(u64::from(nth), &[job])).handed);
    }
    for link in [strict, weighted, plain] {
        assert_eq!(handed.iter().filter(|handed| handed.link == link).count(), 30);
    }
    // What one group takes, the others know to be gone, in whatever lane they had it.
    for link in [strict, weighted, plain] {
        story.apply(Command::Recall { link, subscription: 1, count: 300 });
    }
    for (text, first) in [(LOW, 1_001), (MIDDLE, 2_001), (HIGH, 3_001)] {
        story.fill_path(text, first..=first + 19);
    }
    let (mut of_strict, mut all) = (Vec::new(), 0);
    for _ in 0..10 {
        all += story.credit(weighted, 1, 2).len() + story.credit(plain, 1, 1).len();
        of_strict.extend(story.credit(strict, 1, 3));
    }
    assert_eq!(all + of_strict.len(), 60);
    assert_eq!(story.state.totals().running, 150, "each job was handed out once");
    let names = story.from(&of_strict);
    let place = |name: &String| ["high", "middle", "low"].iter().position(|known| known == name);
    assert!(names.is_sorted_by_key(place), "{names:?}");
}

fn told(out: &Outcomes) -> Vec<(LinkId, Waiting)> {
    let waiting = out.replies.iter().filter_map(|(link, reply)| match reply {
        Reply::Waiting(waiting) => Some((*link, *waiting)),
        _ => None,
    });
    waiting.collect()
}

/// A queue's head of that age.
fn head(age: u32) -> Head {
    Head { priority: std::cmp::Reverse(0), order: (u64::from(age), 0) }
}

proptest! {
    /// Whichever lanes have jobs, and however that changes: how far a lane is ahead or behind stays bounded, and a round in
    /// which all have jobs is exact but for what they were ahead or behind before.
    #[test]
    fn no_lane_gets_far_ahead_or_behind(
        weights in prop::collection::vec(1..=500_u16, 1..8),
        active in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let patterns: Vec<String> = (0..weights.len()).map(|n| format!("/q/{n}")).collect();
        let patterns: Vec<_> =
            patterns.iter().map(String::as_str).zip(weights.iter().copied()).collect();
        let mut lanes = Lanes::of(&sources(Order::Weighted, &patterns));
        for bits in active {
            let with_jobs: Vec<u32> =
                (0..weights.len() as u32).filter(|lane| bits & 1 << lane != 0).collect();
            for &lane in &with_jobs {
                lanes.change(lane, lane, None, Some(head(lane)));
            }
            let next = lanes.next();
            prop_assert_eq!(next.is_some(), !with_jobs.is_empty());
            if let Some(next) = next {
                prop_assert!(with_jobs.contains(&next.lane) && next.queue == next.lane);
                lanes.pay(&next);
            }
            prop_assert!(lanes.balances_hold(), "{:?}", lanes);
            for &lane in &with_jobs {
                lanes.change(lane, lane, Some(head(lane)), None);
            }
        }
        for lane in 0..weights.len() as u32 {
            lanes.change(lane, lane, None, Some(head(lane)));
        }
        let before: Vec<i64> = lanes.balances().collect();
        let round: u32 = weights.iter().map(|&weight| u32::from(weight)).sum();
        let mut taken = vec![0_i64; weights.len()];
        for _ in 0..round {
            let next = lanes.next().expect("all lanes have jobs");
            taken[next.lane as usize] += 1;
            lanes.pay(&next);
        }
        let most = 2 * weights.len() as i64;
        for (lane, &weight) in weights.iter().enumerate() {
            let ahead = taken[lane] - i64::from(weight);
            prop_assert!(ahead.abs() <= most, "lane {}: {} ahead in a round", lane, ahead);
            prop_assert!(ahead == 0 || before[lane] != 0, "lane {}: its round is not exact", lane);
        }
    }
}
