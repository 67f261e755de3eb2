//! What a replica promises, told one by one.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Change, Departure, FromReplica, PathAnswer, PathText, Publishers, RequestRefusal,
};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo};

use crate::directory::pushes::{WATCHED_PARTS_MAX, WatchRefusal};
use crate::directory::{Client, Confirming, Directory, Push, Resolver, Rules};

const TTL: Duration = Duration::from_secs(120);
const INSTANT: Duration = Duration::from_nanos(1);

fn rules() -> Rules {
    Rules { publishers_max: 2, paths_max: 3, watches_max: 2, ..Rules::small(TTL) }
}

fn publisher(number: u8, epoch: u64) -> PublisherInfo {
    PublisherInfo::new(
        PublisherId([number; 16]),
        Epoch(epoch),
        format!("publisher-{number}"),
        [([127, 0, 0, 1], 4000 + u16::from(number))],
    )
}

struct Story {
    now: Instant,
    directory: Directory,
}

impl Story {
    fn new(rules: Rules) -> Story {
        let now = Instant::now();
        Story { now, directory: Directory::new(now, Incarnation([1; 16]), rules) }
    }

    fn announce(&mut self, number: u8, epoch: u64) -> Result<(), RequestRefusal> {
        let client = Client(number.into());
        self.directory.announce(self.now, client, &publisher(number, epoch), &[]).map(|_| ())
    }

    fn change(&mut self, number: u8, change: Change, path: &str) -> Result<(), String> {
        let slot = self.directory.writer(Client(number.into())).unwrap();
        let done = self.directory.change(slot, change, &Path::new(path).unwrap());
        self.directory.invariant();
        done
    }

    fn publish(&mut self, number: u8, path: &str) {
        self.change(number, Change::Publish, path).unwrap();
    }

    fn resolve(&self, text: &str) -> PathAnswer {
        let mut resolver = Resolver::default();
        let text = PathText::new(text.as_bytes());
        resolver.answer(&self.directory, text);
        resolver.finish(&self.directory, 1, true).answers.remove(0)
    }

    fn at(&mut self, now: Instant) {
        self.now = now;
        self.directory.tick(now);
        self.directory.invariant();
    }

    fn push(&mut self, client: Client) -> Option<Publishers> {
        loop {
            return match self.directory.push(client) {
                Push::Tell(FromReplica::Publishers(all)) => Some(all),
                Push::Working => continue,
                Push::Done => None,
                other => panic!("{other:?}"),
            };
        }
    }

    fn watched(&mut self, client: Client) -> Vec<PublisherInfo> {
        self.push(client).expect("there is no news").publishers
    }
}

const FOUND: PathAnswer = PathAnswer::Published { set: 0, default: None };

#[test]
fn a_publisher_is_hidden_at_the_very_deadline_and_not_before() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    let heard = story.now + Duration::from_secs(30);
    story.directory.heard(Client(1), heard);
    assert_eq!(story.directory.next_deadline(), Some(heard + TTL));
    story.at(heard + TTL - INSTANT);
    assert_eq!(story.resolve("/a"), FOUND);
    story.at(heard + TTL);
    assert_eq!(story.resolve("/a"), PathAnswer::NotFound);
    assert_eq!(story.directory.writer(Client(1)), Err(RequestRefusal::NotAnnounced));
}

#[test]
fn while_the_replica_itself_stood_still_nobody_was_silent() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    let begun = story.now;
    story.directory.stood_still(begun + Duration::from_secs(600), Duration::from_secs(600));
    story.at(begun + TTL + Duration::from_secs(599));
    assert_eq!(story.resolve("/a"), FOUND);
    story.at(begun + TTL + Duration::from_secs(600));
    assert_eq!(story.resolve("/a"), PathAnswer::NotFound);
}

#[test]
fn a_replica_that_is_slow_all_the_time_finds_a_silent_publisher_all_the_same() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    let began = story.now;
    // Each pass takes 200 ms, three quarters of which count as a stand-still.
    while story.resolve("/a") == FOUND {
        story.now += Duration::from_millis(200);
        story.directory.stood_still(story.now, Duration::from_millis(150));
        story.directory.tick(story.now);
        assert!(story.now - began <= 3 * TTL, "it is silent for {:?}", story.now - began);
    }
    assert!(story.now - began > 2 * TTL, "slowness alone is given back for a while");
}

#[test]
fn warming_ends_though_the_replica_stands_still_every_minute() {
    let mut story = Story::new(Rules { fresh: false, ..rules() });
    let began = story.now;
    while !story.directory.is_complete() {
        story.at(story.now + Duration::from_secs(40));
        story.now += Duration::from_secs(20);
        story.directory.stood_still(story.now, Duration::from_secs(20));
        assert!(story.now - began <= 2 * TTL + Duration::from_secs(60), "it warms for ever");
        story.at(story.now);
    }
}

#[test]
fn who_is_heard_after_a_stand_still_and_before_it_is_noticed_is_not_given_the_time_twice() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    let noticed = story.now + Duration::from_secs(600);
    story.directory.heard(Client(1), noticed);
    story.directory.stood_still(noticed, Duration::from_secs(600));
    story.at(noticed + TTL - INSTANT);
    assert_eq!(story.resolve("/a"), FOUND);
    story.at(noticed + TTL);
    assert_eq!(story.resolve("/a"), PathAnswer::NotFound);
}

#[test]
fn after_the_machine_slept_the_replica_warms_and_nobody_gets_time_for_it() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    let woke = story.now + INSTANT;
    assert!(!story.directory.slept(woke, rules().stand_still_max));
    assert!(story.directory.is_complete());
    assert!(story.directory.slept(woke, rules().stand_still_max + INSTANT));
    assert!(!story.directory.is_complete(), "writers have gone on meanwhile");
    story.at(woke + TTL / 2);
    assert!(story.directory.is_complete());
    assert_eq!(story.resolve("/a"), FOUND);
    story.at(woke - INSTANT + TTL);
    assert_eq!(story.resolve("/a"), PathAnswer::NotFound, "its clock stood still with the others");
}

#[test]
fn watchers_are_told_that_a_replica_warms_again_after_a_long_stand_still() {
    let mut story = Story::new(rules());
    story.directory.watch(Client(9), 1, Glob::new("/**").unwrap()).unwrap();
    assert_eq!(story.watched(Client(9)), []);
    let long = rules().stand_still_max;
    story.directory.stood_still(story.now + long, long);
    assert_eq!(story.push(Client(9)), None);
    story.directory.stood_still(story.now + 2 * long, long + INSTANT);
    assert!(!story.push(Client(9)).unwrap().complete);
    story.at(story.now + 2 * long + TTL / 2);
    assert!(story.push(Client(9)).unwrap().complete);
}

#[test]
fn one_bad_path_is_refused_alone() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    for bad in ["a", "/a/", "/a//b", "/a*", "", "/a\n"] {
        let PathAnswer::Refused { reason } = story.resolve(bad) else { panic!("{bad:?}") };
        assert!(!reason.is_empty());
    }
    assert_eq!(story.resolve("/a"), FOUND);
}

#[test]
fn a_replica_warms_for_one_writer_ttl_and_tells_its_watchers_when_that_is_over() {
    let mut story = Story::new(Rules { fresh: false, ..rules() });
    let begun = story.now;
    story.directory.watch(Client(9), 1, Glob::new("/**").unwrap()).unwrap();
    assert_eq!(story.watched(Client(9)), []);
    story.at(begun + TTL - INSTANT);
    assert!(!story.directory.is_complete() && story.push(Client(9)).is_none());
    assert_eq!(story.directory.next_deadline(), Some(begun + TTL));
    story.at(begun + TTL);
    assert!(story.directory.is_complete());
    assert!(story.push(Client(9)).unwrap().complete);
}

#[test]
fn a_watcher_is_told_of_a_restart_and_once_of_whatever_changed_while_it_did_not_read() {
    let mut story = Story::new(rules());
    story.directory.watch(Client(9), 1, Glob::new("/a/*").unwrap()).unwrap();
    assert_eq!(story.watched(Client(9)), []);
    story.announce(1, 1).unwrap();
    for n in 0..3 {
        story.publish(1, &format!("/a/{n}"));
    }
    assert_eq!(story.watched(Client(9)), [publisher(1, 1)]);
    assert_eq!(story.push(Client(9)), None, "three paths, one push");
    story.announce(1, 2).unwrap();
    assert_eq!(story.watched(Client(9)), [publisher(1, 2)]);
    story.at(story.now + TTL);
    let Push::Tell(FromReplica::PublisherGone(gone)) = story.directory.push(Client(9)) else {
        panic!("nobody is told gone");
    };
    assert_eq!(gone.watches, [1]);
    assert_eq!((gone.publisher, gone.departure), (publisher(1, 2).id, Departure::Silent));
    assert_eq!(story.push(Client(9)), None, "one departure, one push");
}

#[test]
fn a_new_watcher_is_told_nothing_before_all_that_could_match_has_been_looked_at() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.announce(2, 1).unwrap();
    story.publish(1, "/a");
    story.publish(2, "/b");
    for client in [8, 9] {
        story.directory.watch(Client(client), 1, Glob::new("/*").unwrap()).unwrap();
    }
    // Both go on with the same count.
    for client in [8, 9, 8] {
        assert!(matches!(story.directory.push(Client(client)), Push::Working));
        story.directory.invariant();
    }
    for client in [8, 9] {
        assert_eq!(story.watched(Client(client)), [publisher(1, 1), publisher(2, 1)]);
    }
}

#[test]
fn a_glob_is_counted_from_its_literal_prefix_and_where_it_can_match() {
    const PATHS: usize = 5_000;
    let mut story = Story::new(Rules { paths_max: 2 * PATHS, ..rules() });
    story.announce(1, 1).unwrap();
    let slot = story.directory.writer(Client(1)).unwrap();
    for n in 0..PATHS {
        let path = Path::new(&format!("/jobs/{n}/x")).unwrap();
        story.directory.change(slot, Change::Publish, &path).unwrap();
    }
    for (glob, found) in [
        ("/**", true),
        ("/jobs", false),
        ("/jobs/7/x", true),
        ("/jobs/7/**", true),
        ("/jobs/{7,8}/*", true),
        ("/none/**/x", false),
        ("/*/7", false),
    ] {
        story.directory.watch(Client(9), 1, Glob::new(glob).unwrap()).unwrap();
        let mut steps = 0;
        let publishers = loop {
            steps += 1;
            assert!(steps < 20, "{glob}: nothing in {steps} steps");
            story.directory.sweep(1);
            match story.directory.push(Client(9)) {
                Push::Tell(FromReplica::Publishers(all)) => break all.publishers,
                Push::Tell(other) => panic!("{other:?}"),
                Push::Working | Push::Done => {}
            }
        };
        assert_eq!(publishers.len(), usize::from(found), "{glob}");
    }
}

#[test]
fn every_limit_is_refused_by_its_name() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.announce(2, 1).unwrap();
    assert_eq!(story.announce(3, 1), Err(RequestRefusal::TooManyPublishers));
    for path in ["/a", "/b", "/c"] {
        story.publish(1, path);
    }
    let full = story.change(1, Change::Publish, "/d").unwrap_err();
    assert_eq!(full, "the replica holds 3 paths, as many as it may");
    story.change(2, Change::Publish, "/a").unwrap();
    let glob = || Glob::new("/**").unwrap();
    story.directory.watch(Client(9), 1, glob()).unwrap();
    story.directory.watch(Client(9), 2, glob()).unwrap();
    let refused = story.directory.watch(Client(8), 1, glob()).unwrap_err().to_string();
    assert_eq!(refused, "the replica has 2 watches, as many as it may; try another replica");
    // One of the same number takes the place of the one before.
    story.directory.watch(Client(9), 1, glob()).unwrap();
    story.directory.client_gone(Client(9));
    story.directory.watch(Client(8), 1, glob()).unwrap();
    story.directory.invariant();
}

#[test]
fn all_watched_globs_together_have_a_limit_and_those_that_go_make_room() {
    let mut story = Story::new(Rules { watches_max: 1_000, ..rules() });
    // Eight pairs of braces: 256 alternatives, of nine parts and an end.
    let braces = |n: usize| format!("/watch-{n}{}", "/{a,b}".repeat(8));
    let watch = |story: &mut Story, n: usize| {
        let globs = [Glob::new(&braces(n)).unwrap()];
        story.directory.watch_paths(Client(9), n as u32, &globs)
    };
    let fit = WATCHED_PARTS_MAX / (256 * 10);
    (0..fit).for_each(|n| assert_eq!(watch(&mut story, n), Ok(()), "{n}"));
    assert_eq!(watch(&mut story, fit), Err(WatchRefusal::GlobsFull));
    let glob = Glob::new(&braces(fit)).unwrap();
    assert_eq!(story.directory.watch(Client(8), 1, glob), Err(WatchRefusal::GlobsFull));
    story.directory.unwatch(Client(9), 0);
    assert_eq!(watch(&mut story, fit), Ok(()));
    story.directory.invariant();
}

#[test]
fn no_path_is_taken_that_there_is_no_room_to_name() {
    let mut story = Story::new(rules());
    story.announce(1, 1).unwrap();
    story.publish(1, "/a");
    story.directory.paths.tree.fill();
    let refusal = story.change(1, Change::Publish, "/b/c").unwrap_err();
    assert!(refusal.contains("16 GiB"), "{refusal}");
    // What is there stays, and may be written again, and by others.
    story.publish(1, "/a");
    story.announce(2, 1).unwrap();
    story.publish(2, "/a");
    assert_eq!((story.resolve("/a"), story.resolve("/b/c")), (FOUND, PathAnswer::NotFound));
}

#[test]
fn paths_are_hashed_with_the_secret_and_not_with_the_incarnation_that_clients_are_told() {
    let hash = |incarnation: u8, secret: u8| {
        let (now, incarnation) = (Instant::now(), Incarnation([incarnation; 16]));
        let directory = Directory::keyed(now, incarnation, [secret; 16], rules());
        directory.paths.tree.short_hash("/jobs/mail")
    };
    assert_eq!(hash(1, 3), hash(2, 3));
    assert_ne!(hash(1, 3), hash(1, 4));
}

#[test]
fn all_that_are_silent_are_hidden_at_the_deadline_and_their_watchers_told_in_parts() {
    const PUBLISHERS: u8 = 40;
    let mut story = Story::new(Rules {
        watches_max: 10_000,
        publishers_max: PUBLISHERS.into(),
        paths_max: 1_000,
        ..rules()
    });
    for n in 0..1_500 {
        let glob = Glob::new(&format!("/watched/{n}")).unwrap();
        story.directory.watch(Client(100), n, glob).unwrap();
    }
    story.directory.watch(Client(101), 1, Glob::new("/p/*").unwrap()).unwrap();
    for number in 0..PUBLISHERS {
        story.announce(number, 1).unwrap();
        story.publish(number, &format!("/p/{number}"));
    }
    assert_eq!(story.watched(Client(101)).len(), PUBLISHERS.into());

    story.at(story.now + TTL);
    for number in 0..PUBLISHERS {
        assert_eq!(story.resolve(&format!("/p/{number}")), PathAnswer::NotFound);
        assert_eq!(
            story.directory.writer(Client(number.into())),
            Err(RequestRefusal::NotAnnounced)
        );
    }
    assert_eq!(story.directory.untold.len(), usize::from(PUBLISHERS) - 1, "told in parts");
    // One comes back at once; the others stay hidden.
    let back = PUBLISHERS - 1;
    story.announce(back, 2).unwrap();
    story.publish(back, "/p/back");
    let mut gone = Vec::new();
    let mut seen = Vec::new();
    while story.directory.sweep(256) {
        story.directory.invariant();
        loop {
            match story.directory.push(Client(101)) {
                Push::Tell(FromReplica::PublisherGone(one)) => gone.push(one.publisher.0[0]),
                Push::Tell(FromReplica::Publishers(all)) => seen.push((gone.len(), all.publishers)),
                Push::Working => {}
                Push::Done => break,
                other => panic!("{other:?}"),
            }
        }
    }
    // Numbers 0 and 1 went while the whole set was still to be told, which says so.
    assert_eq!(seen, [(0, vec![publisher(back, 2)])], "{gone:?}");
    assert!(gone.iter().copied().eq(2..back), "each once: {gone:?}");
}

#[test]
fn what_watches_cost_is_taken_from_the_budget_of_sweeping_and_of_confirming() {
    const PATHS: usize = 300;
    let mut story = Story::new(Rules { watches_max: 1_000, paths_max: 1_000, ..rules() });
    // Every change below `/a` is compared with a hundred globs.
    for n in 0..100 {
        let globs = [Glob::new(&format!("/a/*x{n}")).unwrap()];
        story.directory.watch_paths(Client(9), n, &globs).unwrap();
    }
    let publish_all = |story: &mut Story| {
        story.announce(1, 1).unwrap();
        let slot = story.directory.writer(Client(1)).unwrap();
        for n in 0..PATHS {
            let path = Path::new(&format!("/a/{n}")).unwrap();
            story.directory.change(slot, Change::Publish, &path).unwrap();
        }
        slot
    };
    let slot = publish_all(&mut story);
    story.announce(1, 1).unwrap();
    let (mut cursor, mut calls) = (Confirming::default(), 1);
    while !story.directory.confirm(slot, &mut cursor, 1_000) {
        story.directory.invariant();
        calls += 1;
    }
    assert_eq!(story.directory.published_len(), 0);
    assert!(calls >= PATHS / 10, "all confirmed in {calls} calls");

    publish_all(&mut story);
    story.directory.clear(Client(1)).unwrap();
    let mut calls = 1;
    while story.directory.sweep(1_000) {
        calls += 1;
    }
    assert!(calls >= PATHS / 10, "all swept in {calls} calls");
}
