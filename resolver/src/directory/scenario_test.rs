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

struct Scenario {
    now: Instant,
    directory: Directory,
}

impl Scenario {
    fn new(rules: Rules) -> Scenario {
        let now = Instant::now();
        Scenario { now, directory: Directory::new(now, Incarnation([1; 16]), rules) }
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
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let heard = scenario.now + Duration::from_secs(30);
    scenario.directory.heard(Client(1), heard);
    assert_eq!(scenario.directory.next_deadline(), Some(heard + TTL));
    scenario.at(heard + TTL - INSTANT);
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(heard + TTL);
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound);
    assert_eq!(scenario.directory.writer(Client(1)), Err(RequestRefusal::NotAnnounced));
}

#[test]
fn while_the_replica_itself_stood_still_nobody_was_silent() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let begun = scenario.now;
    scenario.directory.stood_still(begun + Duration::from_secs(600), Duration::from_secs(600));
    scenario.at(begun + TTL + Duration::from_secs(599));
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(begun + TTL + Duration::from_secs(600));
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound);
}

#[test]
fn a_replica_that_is_slow_all_the_time_finds_a_silent_publisher_all_the_same() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let began = scenario.now;
    // Each pass takes 200 ms, three quarters of which count as a stand-still.
    while scenario.resolve("/a") == FOUND {
        scenario.now += Duration::from_millis(200);
        scenario.directory.stood_still(scenario.now, Duration::from_millis(150));
        scenario.directory.tick(scenario.now);
        assert!(scenario.now - began <= 3 * TTL, "it is silent for {:?}", scenario.now - began);
    }
    assert!(scenario.now - began > 2 * TTL, "slowness alone is given back for a while");
}

#[test]
fn warming_ends_though_the_replica_stands_still_every_minute() {
    let mut scenario = Scenario::new(Rules { fresh: false, ..rules() });
    let began = scenario.now;
    while !scenario.directory.is_complete() {
        scenario.at(scenario.now + Duration::from_secs(40));
        scenario.now += Duration::from_secs(20);
        scenario.directory.stood_still(scenario.now, Duration::from_secs(20));
        assert!(scenario.now - began <= 2 * TTL + Duration::from_secs(60), "it warms for ever");
        scenario.at(scenario.now);
    }
}

#[test]
fn who_is_heard_after_a_stand_still_and_before_it_is_noticed_is_not_given_the_time_twice() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let noticed = scenario.now + Duration::from_secs(600);
    scenario.directory.heard(Client(1), noticed);
    scenario.directory.stood_still(noticed, Duration::from_secs(600));
    scenario.at(noticed + TTL - INSTANT);
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(noticed + TTL);
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound);
}

#[test]
fn after_the_machine_slept_the_replica_warms_and_nobody_gets_time_for_it() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let woke = scenario.now + INSTANT;
    assert!(!scenario.directory.slept(woke, rules().stand_still_max));
    assert!(scenario.directory.is_complete());
    assert!(scenario.directory.slept(woke, rules().stand_still_max + INSTANT));
    assert!(!scenario.directory.is_complete(), "writers have gone on meanwhile");
    scenario.at(woke + TTL / 2);
    assert!(scenario.directory.is_complete());
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(woke - INSTANT + TTL);
    assert_eq!(
        scenario.resolve("/a"),
        PathAnswer::NotFound,
        "its clock stood still with the others"
    );
}

#[test]
fn watchers_are_told_that_a_replica_warms_again_after_a_long_stand_still() {
    let mut scenario = Scenario::new(rules());
    scenario.directory.watch(Client(9), 1, Glob::new("/**").unwrap()).unwrap();
    assert_eq!(scenario.watched(Client(9)), []);
    let long = rules().stand_still_max;
    scenario.directory.stood_still(scenario.now + long, long);
    assert_eq!(scenario.push(Client(9)), None);
    scenario.directory.stood_still(scenario.now + 2 * long, long + INSTANT);
    assert!(!scenario.push(Client(9)).unwrap().complete);
    scenario.at(scenario.now + 2 * long + TTL / 2);
    assert!(scenario.push(Client(9)).unwrap().complete);
}

#[test]
fn one_bad_path_is_refused_alone() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    for bad in ["a", "/a/", "/a//b", "/a*", "", "/a\n"] {
        let PathAnswer::Refused { reason } = scenario.resolve(bad) else { panic!("{bad:?}") };
        assert!(!reason.is_empty());
    }
    assert_eq!(scenario.resolve("/a"), FOUND);
}

#[test]
fn a_replica_warms_for_one_writer_ttl_and_tells_its_watchers_when_that_is_over() {
    let mut scenario = Scenario::new(Rules { fresh: false, ..rules() });
    let begun = scenario.now;
    scenario.directory.watch(Client(9), 1, Glob::new("/**").unwrap()).unwrap();
    assert_eq!(scenario.watched(Client(9)), []);
    scenario.at(begun + TTL - INSTANT);
    assert!(!scenario.directory.is_complete() && scenario.push(Client(9)).is_none());
    assert_eq!(scenario.directory.next_deadline(), Some(begun + TTL));
    scenario.at(begun + TTL);
    assert!(scenario.directory.is_complete());
    assert!(scenario.push(Client(9)).unwrap().complete);
}

#[test]
fn a_watcher_is_told_of_a_restart_and_once_of_whatever_changed_while_it_did_not_read() {
    let mut scenario = Scenario::new(rules());
    scenario.directory.watch(Client(9), 1, Glob::new("/a/*").unwrap()).unwrap();
    assert_eq!(scenario.watched(Client(9)), []);
    scenario.announce(1, 1).unwrap();
    for n in 0..3 {
        scenario.publish(1, &format!("/a/{n}"));
    }
    assert_eq!(scenario.watched(Client(9)), [publisher(1, 1)]);
    assert_eq!(scenario.push(Client(9)), None, "three paths, one push");
    scenario.announce(1, 2).unwrap();
    assert_eq!(scenario.watched(Client(9)), [publisher(1, 2)]);
    scenario.at(scenario.now + TTL);
    let Push::Tell(FromReplica::PublisherGone(gone)) = scenario.directory.push(Client(9)) else {
        panic!("nobody is told gone");
    };
    assert_eq!(gone.watches, [1]);
    assert_eq!((gone.publisher, gone.departure), (publisher(1, 2).id, Departure::Silent));
    assert_eq!(scenario.push(Client(9)), None, "one departure, one push");
}

#[test]
fn a_new_watcher_is_told_nothing_before_all_that_could_match_has_been_looked_at() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.announce(2, 1).unwrap();
    scenario.publish(1, "/a");
    scenario.publish(2, "/b");
    for client in [8, 9] {
        scenario.directory.watch(Client(client), 1, Glob::new("/*").unwrap()).unwrap();
    }
    // Both go on with the same count.
    for client in [8, 9, 8] {
        assert!(matches!(scenario.directory.push(Client(client)), Push::Working));
        scenario.directory.invariant();
    }
    for client in [8, 9] {
        assert_eq!(scenario.watched(Client(client)), [publisher(1, 1), publisher(2, 1)]);
    }
}

#[test]
fn a_glob_is_counted_from_its_literal_prefix_and_where_it_can_match() {
    const PATHS: usize = 5_000;
    let mut scenario = Scenario::new(Rules { paths_max: 2 * PATHS, ..rules() });
    scenario.announce(1, 1).unwrap();
    let slot = scenario.directory.writer(Client(1)).unwrap();
    for n in 0..PATHS {
        let path = Path::new(&format!("/jobs/{n}/x")).unwrap();
        scenario.directory.change(slot, Change::Publish, &path).unwrap();
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
        scenario.directory.watch(Client(9), 1, Glob::new(glob).unwrap()).unwrap();
        let mut steps = 0;
        let publishers = loop {
            steps += 1;
            assert!(steps < 20, "{glob}: nothing in {steps} steps");
            scenario.directory.sweep(1);
            match scenario.directory.push(Client(9)) {
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
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.announce(2, 1).unwrap();
    assert_eq!(scenario.announce(3, 1), Err(RequestRefusal::TooManyPublishers));
    for path in ["/a", "/b", "/c"] {
        scenario.publish(1, path);
    }
    let full = scenario.change(1, Change::Publish, "/d").unwrap_err();
    assert_eq!(full, "the replica holds 3 paths, as many as it may");
    scenario.change(2, Change::Publish, "/a").unwrap();
    let glob = || Glob::new("/**").unwrap();
    scenario.directory.watch(Client(9), 1, glob()).unwrap();
    scenario.directory.watch(Client(9), 2, glob()).unwrap();
    let refused = scenario.directory.watch(Client(8), 1, glob()).unwrap_err().to_string();
    assert_eq!(refused, "the replica has 2 watches, as many as it may; try another replica");
    // One of the same number takes the place of the one before.
    scenario.directory.watch(Client(9), 1, glob()).unwrap();
    scenario.directory.client_gone(Client(9));
    scenario.directory.watch(Client(8), 1, glob()).unwrap();
    scenario.directory.invariant();
}

#[test]
fn all_watched_globs_together_have_a_limit_and_those_that_go_make_room() {
    let mut scenario = Scenario::new(Rules { watches_max: 1_000, ..rules() });
    // Eight pairs of braces: 256 alternatives, of nine parts and an end.
    let braces = |n: usize| format!("/watch-{n}{}", "/{a,b}".repeat(8));
    let watch = |scenario: &mut Scenario, n: usize| {
        let globs = [Glob::new(&braces(n)).unwrap()];
        scenario.directory.watch_paths(Client(9), n as u32, &globs)
    };
    let fit = WATCHED_PARTS_MAX / (256 * 10);
    (0..fit).for_each(|n| assert_eq!(watch(&mut scenario, n), Ok(()), "{n}"));
    assert_eq!(watch(&mut scenario, fit), Err(WatchRefusal::GlobsFull));
    let glob = Glob::new(&braces(fit)).unwrap();
    assert_eq!(scenario.directory.watch(Client(8), 1, glob), Err(WatchRefusal::GlobsFull));
    scenario.directory.unwatch(Client(9), 0);
    assert_eq!(watch(&mut scenario, fit), Ok(()));
    scenario.directory.invariant();
}

#[test]
fn no_path_is_taken_that_there_is_no_room_to_name() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    scenario.directory.paths.tree.fill();
    let refusal = scenario.change(1, Change::Publish, "/b/c").unwrap_err();
    assert!(refusal.contains("16 GiB"), "{refusal}");
    // What is there stays, and may be written again, and by others.
    scenario.publish(1, "/a");
    scenario.announce(2, 1).unwrap();
    scenario.publish(2, "/a");
    assert_eq!((scenario.resolve("/a"), scenario.resolve("/b/c")), (FOUND, PathAnswer::NotFound));
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
    let mut scenario = Scenario::new(Rules {
        watches_max: 10_000,
        publishers_max: PUBLISHERS.into(),
        paths_max: 1_000,
        ..rules()
    });
    for n in 0..1_500 {
        let glob = Glob::new(&format!("/watched/{n}")).unwrap();
        scenario.directory.watch(Client(100), n, glob).unwrap();
    }
    scenario.directory.watch(Client(101), 1, Glob::new("/p/*").unwrap()).unwrap();
    for number in 0..PUBLISHERS {
        scenario.announce(number, 1).unwrap();
        scenario.publish(number, &format!("/p/{number}"));
    }
    assert_eq!(scenario.watched(Client(101)).len(), PUBLISHERS.into());

    scenario.at(scenario.now + TTL);
    for number in 0..PUBLISHERS {
        assert_eq!(scenario.resolve(&format!("/p/{number}")), PathAnswer::NotFound);
        assert_eq!(
            scenario.directory.writer(Client(number.into())),
            Err(RequestRefusal::NotAnnounced)
        );
    }
    assert_eq!(scenario.directory.untold.len(), usize::from(PUBLISHERS) - 1, "told in parts");
    // One comes back at once; the others stay hidden.
    let back = PUBLISHERS - 1;
    scenario.announce(back, 2).unwrap();
    scenario.publish(back, "/p/back");
    let mut gone = Vec::new();
    let mut seen = Vec::new();
    while scenario.directory.sweep(256) {
        scenario.directory.invariant();
        loop {
            match scenario.directory.push(Client(101)) {
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
    let mut scenario = Scenario::new(Rules { watches_max: 1_000, paths_max: 1_000, ..rules() });
    // Every change below `/a` is compared with a hundred globs.
    for n in 0..100 {
        let globs = [Glob::new(&format!("/a/*x{n}")).unwrap()];
        scenario.directory.watch_paths(Client(9), n, &globs).unwrap();
    }
    let publish_all = |scenario: &mut Scenario| {
        scenario.announce(1, 1).unwrap();
        let slot = scenario.directory.writer(Client(1)).unwrap();
        for n in 0..PATHS {
            let path = Path::new(&format!("/a/{n}")).unwrap();
            scenario.directory.change(slot, Change::Publish, &path).unwrap();
        }
        slot
    };
    let slot = publish_all(&mut scenario);
    scenario.announce(1, 1).unwrap();
    let (mut cursor, mut calls) = (Confirming::default(), 1);
    while !scenario.directory.confirm(slot, &mut cursor, 1_000) {
        scenario.directory.invariant();
        calls += 1;
    }
    assert_eq!(scenario.directory.published_len(), 0);
    assert!(calls >= PATHS / 10, "all confirmed in {calls} calls");

    publish_all(&mut scenario);
    scenario.directory.clear(Client(1)).unwrap();
    let mut calls = 1;
    while scenario.directory.sweep(1_000) {
        calls += 1;
    }
    assert!(calls >= PATHS / 10, "all swept in {calls} calls");
}
