//! Workers share new jobs evenly, and lanes share by their weights.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{Order, Source, Sources};
use longshore_protocol::{JobOptions, LinkId, NewJob};
use proptest::prelude::*;

use super::scenario::*;
use crate::command::Command;
use crate::outcome::Assignment;
use crate::state::lanes::Lanes;
use crate::state::ready::Head;

fn per_link(delivered: &[Assignment]) -> Vec<usize> {
    let mut counts: BTreeMap<LinkId, usize> = BTreeMap::new();
    delivered.iter().for_each(|delivered| *counts.entry(delivered.link).or_default() += 1);
    counts.into_values().collect()
}

pub(super) fn sources(order: Order, patterns: &[(&str, u16)]) -> Sources {
    let source = |&(text, weight): &(&str, u16)| Source { pattern: glob(text), weight };
    Sources { order, patterns: patterns.iter().map(source).collect() }
}

#[test]
fn waiting_workers_share_new_jobs_evenly() {
    let mut scenario = StateScenario::begin();
    for worker in ["a", "b", "c", "d"] {
        scenario.worker(worker, QUEUE, 200);
    }
    let producer = scenario.link("producer");
    let jobs: Vec<_> = (1..=100).map(plain).collect();
    let out = scenario.send(producer, batch(1, &jobs));
    assert_eq!(per_link(&out.assignments), [25; 4]);
    let jobs: Vec<_> = (101..=700).map(plain).collect();
    let out = scenario.send(producer, batch(2, &jobs));
    assert_eq!(per_link(&out.assignments).iter().sum::<usize>(), 600);
    assert!(per_link(&out.assignments).iter().all(|&jobs| (128..=175).contains(&jobs)));
}

#[test]
fn single_jobs_rotate_over_the_workers() {
    let mut scenario = StateScenario::begin();
    for worker in ["a", "b", "c"] {
        scenario.worker(worker, QUEUE, 5);
    }
    let producer = scenario.link("producer");
    let links: Vec<_> = (1..=6)
        .map(|n| scenario.send(producer, batch(u64::from(n), &[plain(n)])).assignments[0].link.0)
        .collect();
    assert_eq!(links[..3], links[3..]);
    assert_eq!(links[..3].iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
}

#[test]
fn overlapping_patterns_take_turns() {
    let mut scenario = StateScenario::begin();
    scenario.worker("a", QUEUE, 50);
    scenario.worker("b", "/jobs/*", 50);
    scenario.worker("c", "/jobs/**", 50);
    let producer = scenario.link("producer");
    let mut delivered = Vec::new();
    for n in 1..=30 {
        delivered.extend(scenario.send(producer, batch(u64::from(n), &[plain(n)])).assignments);
    }
    assert_eq!(per_link(&delivered), [10; 3]);
}

#[test]
fn overlapping_groups_take_turns_in_any_order() {
    let mut scenario = StateScenario::begin();
    let three = |order| sources(order, &[("/jobs/a", 3), ("/jobs/b", 2), ("/jobs/c", 1)]);
    let plain = Sources::one(glob("/jobs/**"));
    for (name, sources) in
        [("strict", three(Order::Strict)), ("weighted", three(Order::Weighted)), ("plain", plain)]
    {
        let link = scenario.link(name);
        scenario.apply(Command::Subscribe { link, subscription: 1, sources, handlers: 1_000 });
        scenario.credit(link, 1, 300);
    }
    let producer = scenario.link("producer");
    let mut delivered = Vec::new();
    for nth in 1..=90 {
        let text = ["/jobs/a", "/jobs/b", "/jobs/c"][nth as usize % 3];
        let job = NewJob { path: path(text), ..with(nth, JobOptions::default()) };
        delivered.extend(scenario.send(producer, batch(u64::from(nth), &[job])).assignments);
    }
    assert_eq!(per_link(&delivered), [30; 3]);
}

/// A queue's head of that age.
fn head(age: u32) -> Head {
    Head { priority: std::cmp::Reverse(0), order: (u64::from(age), 0) }
}

proptest! {
    /// With any changing set of lanes with jobs: a lane's lead or lag stays bounded, and a round in
    /// which all have jobs is exact except for earlier leads and lags.
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
                lanes.charge(&next);
            }
            prop_assert!(lanes.balances_are_valid(), "{:?}", lanes);
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
            lanes.charge(&next);
        }
        let most = 2 * weights.len() as i64;
        for (lane, &weight) in weights.iter().enumerate() {
            let ahead = taken[lane] - i64::from(weight);
            prop_assert!(ahead.abs() <= most, "lane {}: {} ahead in a round", lane, ahead);
            prop_assert!(ahead == 0 || before[lane] != 0, "lane {}: its round is not exact", lane);
        }
    }
}
