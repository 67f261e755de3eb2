//! Anything in any order: values that come, change and go, links that come, read as they like, and
//! go. Whatever happens, each link sees of each value an ordered part of what was published, which
//! ends in the last; and all of it, if it was never without room.

use std::collections::BTreeMap;

use longshore_protocol::Value;
use longshore_protocol::messages::values::{Policy, SubscriptionEnd};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::subscriber::{Heard, Subscriber, path};
use super::{SlotKey, World};
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
    /// It reads everything at once, and so hears everything.
    quick: bool,
    /// What it was told last of each path that it follows.
    seen: BTreeMap<String, u64>,
}

struct Model {
    world: World,
    random: StdRng,
    published: BTreeMap<String, Published>,
    /// Histories of values that are gone, with those that are not.
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
            let key = self.world.core.publish(&path(text), value.into()).unwrap();
            self.published.insert(text.to_owned(), Published { key, history: vec![value] });
        }
    }

    fn unpublish(&mut self, text: &str) {
        if let Some(gone) = self.published.remove(text) {
            assert_eq!(self.world.core.unpublish(gone.key), Some(path(text)));
            for value in &gone.history {
                self.history_of.insert(*value, (text.to_owned(), gone.history.clone()));
            }
        }
    }

    fn commit(&mut self) {
        let mut updates = Vec::new();
        for _ in 0..self.random.random_range(1..20) {
            let place = self.random.random_range(0..PATHS);
            let value = self.value();
            if let Some(published) = self.published.get_mut(&format!("/{place}")) {
                published.history.push(value);
                updates.push((published.key, Value::U64(value)));
            }
        }
        self.world.core.commit(&updates);
    }

    fn link_up(&mut self) {
        if self.followers.len() < 6 {
            let quick = self.random.random_bool(0.4);
            let capacity = if quick { VALUE_QUEUE_BYTES_MAX } else { 400 };
            let link = Subscriber::new(capacity);
            link.join(&mut self.world.core);
            self.followers.push(Follower { link, quick, seen: BTreeMap::new() });
        }
    }

    fn link_down(&mut self) {
        if let Some(place) = self.any_follower() {
            let number = self.followers.swap_remove(place).link.number();
            let left = self.world.core.link_down(number);
            // What happens between the parts of a leave matters to nobody.
            for some in left.chunks(2) {
                self.commit();
                self.world.core.leave(number, some);
            }
        }
    }

    fn subscribe(&mut self, text: &str) {
        let Some(place) = self.any_follower() else { return };
        let follower = &self.followers[place];
        if follower.link.wanted().iter().any(|(_, wanted)| wanted == text) {
            return;
        }
        let policies = [Policy::Conflate, Policy::DropOldest, Policy::Disconnect];
        let policy = policies[self.random.random_range(0..policies.len())];
        let (number, now) = (follower.link.free_number(), self.world.now);
        follower.link.subscribe(&mut self.world.core, number, text, policy, now).unwrap();
    }

    fn unsubscribe(&mut self) {
        let Some(place) = self.any_follower() else { return };
        let link = &self.followers[place].link;
        let wanted = link.wanted();
        if !wanted.is_empty() {
            let (number, _) = wanted[self.random.random_range(0..wanted.len())];
            link.unsubscribe(&mut self.world.core, &[number]);
        }
    }

    fn read_some(&mut self) {
        if let Some(place) = self.any_follower() {
            let frames = self.random.random_range(1..4);
            self.read(place, frames);
            self.world.core.pump(self.followers[place].link.number());
        }
    }

    fn read_quick(&mut self) {
        for place in 0..self.followers.len() {
            if self.followers[place].quick {
                self.read(place, usize::MAX);
                // Whatever the other links do, this one has everything by now.
                for (text, last) in &self.followers[place].seen {
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

    /// What the path with that value in its history has had, in order.
    fn history(&self, text: &str, value: u64) -> &[u64] {
        if let Some((of, history)) = self.history_of.get(&value) {
            assert_eq!(of, text, "a value of another path");
            return history;
        }
        let published = &self.published[text];
        assert!(published.history.contains(&value), "{text} never was {value}");
        &published.history
    }

    fn read(&mut self, place: usize, frames: usize) {
        let heard = self.followers[place].link.heard_of(frames);
        for heard in heard {
            let quick = self.followers[place].quick;
            match heard {
                Heard::Subscribed(text, value) => {
                    let value = number(&value);
                    self.history(&text, value);
                    let before = self.followers[place].seen.insert(text, value);
                    assert_eq!(before, None, "subscribed twice");
                }
                Heard::Update(text, value) => {
                    let value = number(&value);
                    let last = self.followers[place].seen[&text];
                    let history = self.history(&text, value);
                    let at = |value| history.iter().position(|of| *of == value).expect("its own");
                    let (from, to) = (at(last), at(value));
                    assert!(from < to, "{text}: {value} after {last}");
                    assert!(
                        !quick || to == from + 1,
                        "{text}: something is missing before {value}"
                    );
                    self.followers[place].seen.insert(text, value);
                }
                Heard::Ended(text, end) => {
                    let last = self.followers[place].seen.remove(&text);
                    if let (Some(last), SubscriptionEnd::Unpublished) = (last, end) {
                        assert_eq!(
                            self.history(&text, last).last(),
                            Some(&last),
                            "the last of {text}"
                        );
                    }
                }
                Heard::Refused(text, _) => {
                    assert_eq!(self.followers[place].seen.get(&text), None)
                }
                Heard::Written(_) => panic!("nobody wrote"),
            }
        }
    }

    fn finish(&mut self) {
        for place in 0..self.followers.len() {
            for _ in 0..1_000 {
                self.read(place, usize::MAX);
                self.followers[place].link.go_on(&mut self.world.core);
            }
            self.read(place, usize::MAX);
            let follower = &mut self.followers[place];
            assert_eq!(self.world.core.backlog_of(&follower.link), (0, 0));
            for (text, last) in &follower.seen {
                let published = self.published.get(text).expect("of one that is gone it was told");
                assert_eq!(published.history.last(), Some(last), "{text}");
            }
            let wanted = follower.link.wanted().len();
            assert_eq!(wanted, follower.seen.len(), "all were answered");
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
fn every_link_sees_of_every_value_an_ordered_part_that_ends_in_the_last() {
    for seed in 0..SEEDS {
        let mut model = Model {
            world: World::new(),
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
