//! Trackers against what can be seen: *unchanged* is never said of what changed.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{Change, PathText, Tracker};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, Terms};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::directory::{Client, Directory, Matching, Resolver, Rules};

const TTL: Duration = Duration::from_secs(120);

struct Story {
    now: Instant,
    directory: Directory,
}

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

impl Story {
    fn new() -> Story {
        let rules = Rules {
            writer_ttl: TTL,
            stand_still_max: TTL,
            fresh: true,
            publishers_max: 4,
            paths_max: 1_000,
            watches_max: 4,
        };
        let now = Instant::now();
        let mut story = Story { now, directory: Directory::new(now, Incarnation([5; 16]), rules) };
        (1..4).for_each(|number| story.announce(number, 1));
        story
    }

    fn announce(&mut self, number: u8, epoch: u64) {
        let info = PublisherInfo {
            id: PublisherId([number; 16]),
            epoch: Epoch(epoch),
            name: format!("publisher-{number}"),
            addresses: vec![([127, 0, 0, 1], 4000).into()],
            later: Default::default(),
        };
        let client = Client(number.into());
        let announced = self.directory.announce(self.now, client, &info, &[]);
        drop(announced);
    }

    fn write(&mut self, number: u8, change: Change, terms: &Terms, text: &str) {
        let slot = self.directory.writer(Client(number.into())).unwrap();
        self.directory.write(slot, change, terms, PathText::from(&path(text))).unwrap();
    }

    fn publish(&mut self, text: &str) {
        self.write(1, Change::Publish, &Terms::default(), text);
    }

    /// All that a reader can learn of a path and of what lies below it.
    fn seen(&mut self, of: &str) -> String {
        let glob = if of == "/" { String::from("/**") } else { format!("{of}/**") };
        let mut matching = Matching::new(&[Glob::new(&glob).unwrap()]).unwrap();
        let mut listed = Vec::new();
        while !matching.take(&mut self.directory, 100, &mut listed) {}
        listed.sort();
        let mut told = String::new();
        let asked = listed.iter().map(|listed| listed.path.clone()).chain([path(of)]);
        for path in asked {
            let mut resolver = Resolver::default();
            resolver.answer(&self.directory, PathText::from(&path));
            let mut answer = resolver.finish(&self.directory, 1, true);
            answer.tracker = Tracker { incarnation: Incarnation([0; 16]), revision: 0 };
            told += &format!("{path} {answer:?}\n");
        }
        format!("{told}{listed:?}")
    }

    fn changed(&self, text: &str, tracker: &Tracker) -> bool {
        self.directory.changed_since(&path(text), tracker)
    }
}

#[test]
fn unchanged_is_never_said_of_what_changed() {
    let texts = ["/", "/a", "/a/b", "/a/b/c", "/a/bb", "/d", "/d/e/f"];
    let asked = ["/", "/a", "/a/b", "/a/b/c", "/a/bb/x", "/d", "/d/e", "/d/e/f/g/h", "/z"];
    let (mut unchanged, mut changed) = (0, 0);
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut story = Story::new();
        let mut known: Vec<(&str, Tracker, String)> = Vec::new();
        for _ in 0..60 {
            for text in asked {
                if rng.random_bool(0.1) {
                    let seen = story.seen(text);
                    known.push((text, story.directory.tracker(), seen));
                }
            }
            let (number, text) = (rng.random_range(1..4), texts[rng.random_range(0..7)]);
            let changes = [Change::Publish, Change::Unpublish];
            let defaults = [Change::PublishDefault, Change::UnpublishDefault];
            let terms = Terms { priority: rng.random_range(0..2), ..Terms::default() };
            match rng.random_range(0..100) {
                0 => {
                    story.directory.clear(Client(number.into())).unwrap();
                    story.announce(number, 1);
                }
                1 => story.announce(number, rng.random_range(1..4)),
                2..6 => story.write(number, defaults[rng.random_range(0..2)], &terms, text),
                6..20 => drop(story.directory.sweep(rng.random_range(1..4))),
                _ if text == "/" => {}
                _ => story.write(number, changes[rng.random_range(0..2)], &terms, text),
            }
            for (text, tracker, seen) in &known {
                if story.changed(text, tracker) {
                    changed += 1;
                } else {
                    assert_eq!(story.seen(text), *seen, "{text} has changed, seed {seed}");
                    unchanged += 1;
                }
            }
            if known.len() > 30 {
                known.drain(..15);
            }
        }
    }
    assert!(unchanged > 10_000 && changed > 10_000, "{unchanged} unchanged, {changed} changed");
}

#[test]
fn a_change_elsewhere_is_none_here() {
    let mut story = Story::new();
    ["/a/x", "/a/y", "/b/x"].iter().for_each(|text| story.publish(text));
    let begun = story.directory.tracker();
    story.publish("/b/y");
    assert!(!story.changed("/a", &begun) && !story.changed("/a/x", &begun));
    assert!(!story.changed("/a/not/there", &begun));
    assert!(story.changed("/b", &begun) && story.changed("/", &begun));
    // What is so already is no change.
    let now = story.directory.tracker();
    story.publish("/b/y");
    assert!(!story.changed("/", &now));
    story.write(1, Change::Publish, &Terms { weight: 1, ..Terms::default() }, "/b/y");
    assert!(story.changed("/b/y", &now) && !story.changed("/a", &now));
}

#[test]
fn what_came_and_went_has_changed() {
    let mut story = Story::new();
    story.publish("/a/x");
    let begun = story.directory.tracker();
    story.publish("/a/b/c");
    story.write(1, Change::Unpublish, &Terms::default(), "/a/b/c");
    assert!(story.changed("/a", &begun) && story.changed("/a/b", &begun));
}

#[test]
fn another_incarnation_has_changed() {
    let mut story = Story::new();
    story.publish("/a");
    let tracker = Tracker { incarnation: Incarnation([6; 16]), ..story.directory.tracker() };
    assert!(story.changed("/a", &tracker));
}
