//! Random operations: values are published, changed and removed; links attach, read at their own
//! pace, and leave. Each link sees, of each value, an ordered part of what was published that ends
//! in the last update; a link that always has room sees all of it.

use std::collections::BTreeMap;

use longshore_protocol::Value;
use longshore_protocol::messages::values::{Policy, SubscriptionEnd};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::subscriber::{Received, Subscriber, path};
use super::{CoreHarness, SlotKey};
use crate::values::limits::VALUE_QUEUE_BYTES_MAX;

const PATHS: usize = 12;
const STEPS: usize = 400;
const SEEDS: u64 = 400;

struct Published {
    key: SlotKey,
    /// All values that it has had, in order.
    history: Vec<u64>,
}

struct Follower {
    link: Subscriber,
    /// It reads everything at once, and so receives every update.
    quick: bool,
    /// The last update received for each path that it follows.
    seen: BTreeMap<String, u64>,
}

struct Model {
    harness: CoreHarness,
    random: StdRng,
    published: BTreeMap<String, Published>,
    /// Histories of removed values, by each of their values.
    history_of: BTreeMap<u64, (String, Vec<u64>)>,
    followers: Vec<Follower>,
    next: u64,
}

impl Model {
    fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn step(&mut self) {
        let text = format!("/{}", self.random.random_range(0..PATHS));
        match self.random.random_range(0..100) {
            0..10 => self.publish(&text),
            10..15 => self.unpublish(&text),
            15..55 => self.commit(),
            55..60 => self.link_up(),
            60..62 => self.link_down(),
            62..75 => self.subscribe(&text),
            75..80 => self.unsubscribe(),
            _ => self.read_some(),
        }
        self.read_quick();
    }

    fn publish(&mut self, text: &str) {
        if !self.published.contains_key(text) {
            let value = self.value();
            let key = self.harness.core.publish(&path(text), value.into()).unwrap();
            self.published.insert(text.to_owned(), Published { key, history: vec![value] });
        }
    }

    fn unpublish(&mut self, text: &str) {
        if let Some(sent) = self.published.remove(text) {
            assert_eq!(self.harness.core.unpublish(sent.key), Some(path(text)));
            for value in &sent.history {
                self.history_of.insert(*value, (text.to_owned(), sent.history.clone()));
            }
        }
    }

    fn commit(&mut self) {
        let mut updates = Vec::new();
        for _ in 0..self.random.random_range(1..20) {
            let index = self.random.random_range(0..PATHS);
            let value = self.value();
            if let Some(published) = self.published.get_mut(&format!("/{index}")) {
                published.history.push(value);
                updates.push((published.key, Value::U64(value)));
            }
        }
        self.harness.core.commit(&updates);
    }

    fn link_up(&mut self) {
        if self.followers.len() < 6 {
            let quick = self.random.random_bool(0.4);
            let capacity = if quick { VALUE_QUEUE_BYTES_MAX } else { 400 };
            let link = Subscriber::new(capacity);
            link.join(&mut self.harness.core);
            self.followers.push(Follower { link, quick, seen: BTreeMap::new() });
        }
    }

    fn link_down(&mut self) {
        if let Some(index) = self.any_follower() {
            let number = self.followers.swap_remove(index).link.number();
            let (left, _) = self.harness.core.link_down(number);
            // Operations between the chunks of a leave affect no one.
            for some in left.chunks(2) {
                self.commit();
                self.harness.core.leave(number, some);
            }
        }
    }

    fn subscribe(&mut self, text: &str) {
        let Some(index) = self.any_follower() else { return };
        let follower = &self.followers[index];
        if follower.link.subscribed().iter().any(|(_, subscribed)| subscribed == text) {
            return;
        }
        let policies = [Policy::Conflate, Policy::DropOldest, Policy::Disconnect];
        let policy = policies[self.random.random_range(0..policies.len())];
        let (number, now) = (follower.link.free_number(), self.harness.now);
        follower.link.subscribe(&mut self.harness.core, number, text, policy, now).unwrap();
    }

    fn unsubscribe(&mut self) {
        let Some(index) = self.any_follower() else { return };
        let link = &self.followers[index].link;
        let subscribed = link.subscribed();
        if !subscribed.is_empty() {
            let (number, _) = subscribed[self.random.random_range(0..subscribed.len())];
            link.unsubscribe(&mut self.harness.core, &[number]);
        }
    }

    fn read_some(&mut self) {
        if let Some(index) = self.any_follower() {
            let frames = self.random.random_range(1..4);
            self.read(index, frames);
            self.harness.core.pump(self.followers[index].link.number());
        }
    }

    fn read_quick(&mut self) {
        for index in 0..self.followers.len() {
            if self.followers[index].quick {
                self.read(index, usize::MAX);
                // Whatever the other links do, this one is up to date.
                for (text, last) in &self.followers[index].seen {
                    let history = &self.published[text].history;
                    assert_eq!(history.last(), Some(last), "{text}");
                }
            }
        }
    }

    fn any_follower(&mut self) -> Option<usize> {
        let links = self.followers.len();
        (links > 0).then(|| self.random.random_range(0..links))
    }

    /// The history that contains that value, in order.
    fn history(&self, text: &str, value: u64) -> &[u64] {
        if let Some((of, history)) = self.history_of.get(&value) {
            assert_eq!(of, text, "a value of another path");
            return history;
        }
        let published = &self.published[text];
        assert!(published.history.contains(&value), "{text} never was {value}");
        &published.history
    }

    fn read(&mut self, index: usize, frames: usize) {
        let received = self.followers[index].link.received_from(frames);
        for received in received {
            let quick = self.followers[index].quick;
            match received {
                Received::Subscribed(text, value) => {
                    let value = number(&value);
                    self.history(&text, value);
                    let before = self.followers[index].seen.insert(text, value);
                    assert_eq!(before, None, "subscribed twice");
                }
                Received::Update(text, value) => {
                    let value = number(&value);
                    let last = self.followers[index].seen[&text];
                    let history = self.history(&text, value);
                    let at = |value| history.iter().position(|of| *of == value).expect("its own");
                    let (from, to) = (at(last), at(value));
                    assert!(from < to, "{text}: {value} after {last}");
                    assert!(
                        !quick || to == from + 1,
                        "{text}: something is missing before {value}"
                    );
                    self.followers[index].seen.insert(text, value);
                }
                Received::Ended(text, end) => {
                    let last = self.followers[index].seen.remove(&text);
                    if let (Some(last), SubscriptionEnd::Unpublished) = (last, end) {
                        assert_eq!(
                            self.history(&text, last).last(),
                            Some(&last),
                            "the last of {text}"
                        );
                    }
                }
                Received::Refused(text, _) => {
                    assert_eq!(self.followers[index].seen.get(&text), None)
                }
                Received::Written(_) => panic!("nobody wrote"),
            }
        }
    }

    fn finish(&mut self) {
        for index in 0..self.followers.len() {
            for _ in 0..1_000 {
                self.read(index, usize::MAX);
                self.followers[index].link.go_on(&mut self.harness.core);
            }
            self.read(index, usize::MAX);
            let follower = &mut self.followers[index];
            assert_eq!(self.harness.core.backlog_of(&follower.link), (0, 0));
            for (text, last) in &follower.seen {
                let published =
                    self.published.get(text).expect("it received the end of a removed value");
                assert_eq!(published.history.last(), Some(last), "{text}");
            }
            let subscribed = follower.link.subscribed().len();
            assert_eq!(subscribed, follower.seen.len(), "all were answered");
        }
    }
}

fn number(value: &Value) -> u64 {
    match value {
        Value::U64(number) => *number,
        other => panic!("{other}"),
    }
}

#[test]
fn every_link_sees_ordered_updates_that_end_in_the_last() {
    for seed in 0..SEEDS {
        let mut model = Model {
            harness: CoreHarness::new(),
            random: StdRng::seed_from_u64(seed),
            published: BTreeMap::new(),
            history_of: BTreeMap::new(),
            followers: Vec::new(),
            next: 0,
        };
        (0..STEPS).for_each(|_| model.step());
        model.finish();
    }
}
