//! The guarantees of a replica, one by one.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Change, Departure, FromReplica, PathAnswer, PathText, Publishers, RequestRefusal,
};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, Terms};

use crate::directory::pushes::{WATCHED_PARTS_MAX, WatchRefusal};
use crate::directory::{AnswerBuilder, Client, ConfirmProgress, Directory, Push, Rules};

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
        let mut builder = AnswerBuilder::default();
        let text = PathText::new(text.as_bytes());
        builder.answer_text(&self.directory, text);
        builder.finish(&self.directory, 1, true).answers.remove(0)
    }

    fn at(&mut self, now: Instant) {
        self.now = now;
        self.directory.tick(now);
        self.directory.invariant();
    }

    fn push(&mut self, client: Client) -> Option<Publishers> {
        loop {
            return match self.directory.push(client) {
                Push::Send(FromReplica::Publishers(all)) => Some(all),
                Push::Working => continue,
                Push::Done => None,
                other => panic!("{other:?}"),
            };
        }
    }

    fn watched(&mut self, client: Client) -> Vec<PublisherInfo> {
        self.push(client).expect("nothing is pending").publishers
    }
}

const FOUND: PathAnswer = PathAnswer::Published { set: 0, default: None };

#[test]
fn a_publisher_is_hidden_exactly_at_its_deadline() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let last_active = scenario.now + Duration::from_secs(30);
    scenario.directory.record_activity(Client(1), last_active);
    assert_eq!(scenario.directory.next_deadline(), Some(last_active + TTL));
    scenario.at(last_active + TTL - INSTANT);
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(last_active + TTL);
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound);
    assert_eq!(scenario.directory.writer(Client(1)), Err(RequestRefusal::NotAnnounced));
}

#[test]
fn during_a_stall_of_the_replica_no_publisher_is_silent() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let begun = scenario.now;
    scenario.directory.stalled(begun + Duration::from_secs(600), Duration::from_secs(600));
    scenario.at(begun + TTL + Duration::from_secs(599));
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(begun + TTL + Duration::from_secs(600));
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound);
}

#[test]
fn a_replica_that_always_stalls_still_detects_a_silent_publisher() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let began = scenario.now;
    // Each pass takes 200 ms, three quarters of which count as a stall.
    while scenario.resolve("/a") == FOUND {
        scenario.now += Duration::from_millis(200);
        scenario.directory.stalled(scenario.now, Duration::from_millis(150));
        scenario.directory.tick(scenario.now);
        assert!(scenario.now - began <= 3 * TTL, "it is silent for {:?}", scenario.now - began);
    }
    assert!(scenario.now - began > 2 * TTL, "stalls are compensated for a while");
}

#[test]
fn warming_ends_though_the_replica_stalls_every_minute() {
    let mut scenario = Scenario::new(Rules { fresh: false, ..rules() });
    let began = scenario.now;
    while !scenario.directory.is_complete() {
        scenario.at(scenario.now + Duration::from_secs(40));
        scenario.now += Duration::from_secs(20);
        scenario.directory.stalled(scenario.now, Duration::from_secs(20));
        assert!(scenario.now - began <= 2 * TTL + Duration::from_secs(60), "it warms for ever");
        scenario.at(scenario.now);
    }
}

#[test]
fn a_publisher_heard_before_a_stall_is_noticed_gets_no_extra_time() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let noticed = scenario.now + Duration::from_secs(600);
    scenario.directory.record_activity(Client(1), noticed);
    scenario.directory.stalled(noticed, Duration::from_secs(600));
    scenario.at(noticed + TTL - INSTANT);
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(noticed + TTL);
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound);
}

#[test]
fn after_sleep_the_replica_warms_and_deadlines_are_not_extended() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    let woke = scenario.now + INSTANT;
    assert!(!scenario.directory.slept(woke, rules().stall_max));
    assert!(scenario.directory.is_complete());
    assert!(scenario.directory.slept(woke, rules().stall_max + INSTANT));
    assert!(!scenario.directory.is_complete(), "writers have gone on meanwhile");
    scenario.at(woke + TTL / 2);
    assert!(scenario.directory.is_complete());
    assert_eq!(scenario.resolve("/a"), FOUND);
    scenario.at(woke - INSTANT + TTL);
    assert_eq!(scenario.resolve("/a"), PathAnswer::NotFound, "its clock stopped with the others");
}

#[test]
fn watchers_are_notified_when_a_replica_warms_again_after_a_long_stall() {
    let mut scenario = Scenario::new(rules());
    scenario.directory.watch(Client(9), 1, Glob::new("/**").unwrap()).unwrap();
    assert_eq!(scenario.watched(Client(9)), []);
    let long = rules().stall_max;
    scenario.directory.stalled(scenario.now + long, long);
    assert_eq!(scenario.push(Client(9)), None);
    scenario.directory.stalled(scenario.now + 2 * long, long + INSTANT);
    assert!(!scenario.push(Client(9)).unwrap().complete);
    scenario.at(scenario.now + 2 * long + TTL / 2);
    assert!(scenario.push(Client(9)).unwrap().complete);
}

#[test]
fn an_invalid_path_is_refused_alone() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    for bad in ["a", "/a/", "/a//b", "/a*", "", "/a\n"] {
        let PathAnswer::Refused { reason } = scenario.resolve(bad) else { panic!("{bad:?}") };
        assert!(!reason.is_empty());
    }
    assert_eq!(scenario.resolve("/a"), FOUND);
}

/// Unused sets, and the terms that only they use, are collected when there are over 1,024.
#[test]
fn digests_stay_exact_while_a_path_changes_its_terms_again_and_again() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    let slot = scenario.directory.writer(Client(1)).unwrap();
    for flags in 0..1_100 {
        let terms = Terms { flags, ..Terms::default() };
        let text = PathText::new(b"/a");
        scenario.directory.write_text(slot, Change::Publish, &terms, text).unwrap();
    }
    scenario.directory.invariant();
}

#[test]
fn a_replica_warms_for_one_writer_ttl_and_then_notifies_watchers() {
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
fn a_slow_watcher_gets_a_restart_and_the_latest_state_once() {
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
    let Push::Send(FromReplica::PublisherGone(gone)) = scenario.directory.push(Client(9)) else {
        panic!("no departure was sent");
    };
    assert_eq!(gone.watches, [1]);
    assert_eq!((gone.publisher, gone.departure), (publisher(1, 2).id, Departure::Silent));
    assert_eq!(scenario.push(Client(9)), None, "one departure, one push");
}

#[test]
fn a_new_watcher_is_sent_nothing_before_its_count_is_complete() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.announce(2, 1).unwrap();
    scenario.publish(1, "/a");
    scenario.publish(2, "/b");
    for client in [8, 9] {
        scenario.directory.watch(Client(client), 1, Glob::new("/*").unwrap()).unwrap();
    }
    // Both continue the same count.
    for client in [8, 9, 8] {
        assert!(matches!(scenario.directory.push(Client(client)), Push::Working));
        scenario.directory.invariant();
    }
    for client in [8, 9] {
        assert_eq!(scenario.watched(Client(client)), [publisher(1, 1), publisher(2, 1)]);
    }
}

#[test]
fn a_count_walks_only_where_its_glob_can_match() {
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
                Push::Send(FromReplica::Publishers(all)) => break all.publishers,
                Push::Send(other) => panic!("{other:?}"),
                Push::Working | Push::Done => {}
            }
        };
        assert_eq!(publishers.len(), usize::from(found), "{glob}");
    }
}

#[test]
fn every_limit_is_refused_with_its_name() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.announce(2, 1).unwrap();
    assert_eq!(scenario.announce(3, 1), Err(RequestRefusal::TooManyPublishers));
    for path in ["/a", "/b", "/c"] {
        scenario.publish(1, path);
    }
    let full = scenario.change(1, Change::Publish, "/d").unwrap_err();
    assert_eq!(full, "the replica has reached its limit of 3 paths");
    scenario.change(2, Change::Publish, "/a").unwrap();
    let glob = || Glob::new("/**").unwrap();
    scenario.directory.watch(Client(9), 1, glob()).unwrap();
    scenario.directory.watch(Client(9), 2, glob()).unwrap();
    let refused = scenario.directory.watch(Client(8), 1, glob()).unwrap_err().to_string();
    assert_eq!(refused, "the replica has reached its limit of 2 watches; try another replica");
    // A watch of the same number is replaced.
    scenario.directory.watch(Client(9), 1, glob()).unwrap();
    scenario.directory.client_gone(Client(9));
    scenario.directory.watch(Client(8), 1, glob()).unwrap();
    scenario.directory.invariant();
}

#[test]
fn all_watched_globs_share_a_limit_and_removed_ones_make_room() {
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
fn paths_are_refused_when_their_texts_do_not_fit() {
    let mut scenario = Scenario::new(rules());
    scenario.announce(1, 1).unwrap();
    scenario.publish(1, "/a");
    scenario.directory.paths.tree.fill();
    let refusal = scenario.change(1, Change::Publish, "/b/c").unwrap_err();
    assert!(refusal.contains("16 GiB"), "{refusal}");
    // Existing paths stay, and may be written again, and by others.
    scenario.publish(1, "/a");
    scenario.announce(2, 1).unwrap();
    scenario.publish(2, "/a");
    assert_eq!((scenario.resolve("/a"), scenario.resolve("/b/c")), (FOUND, PathAnswer::NotFound));
}

#[test]
fn paths_are_hashed_with_the_secret_and_not_the_incarnation() {
    let hash = |incarnation: u8, secret: u8| {
        let (now, incarnation) = (Instant::now(), Incarnation([incarnation; 16]));
        let directory = Directory::keyed(now, incarnation, [secret; 16], rules());
        directory.paths.tree.short_hash("/jobs/mail")
    };
    assert_eq!(hash(1, 3), hash(2, 3));
    assert_ne!(hash(1, 3), hash(1, 4));
}

#[test]
fn silent_publishers_are_hidden_at_the_deadline_and_reported_in_parts() {
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
    assert_eq!(scenario.watched(Client(101)).len(), usize::from(PUBLISHERS));

    scenario.at(scenario.now + TTL);
    for number in 0..PUBLISHERS {
        assert_eq!(scenario.resolve(&format!("/p/{number}")), PathAnswer::NotFound);
        assert_eq!(
            scenario.directory.writer(Client(number.into())),
            Err(RequestRefusal::NotAnnounced)
        );
    }
    assert_eq!(
        scenario.directory.unreported.len(),
        usize::from(PUBLISHERS) - 1,
        "reported in parts"
    );
    // One returns at once; the others stay hidden.
    let back = PUBLISHERS - 1;
    scenario.announce(back, 2).unwrap();
    scenario.publish(back, "/p/back");
    let mut gone = Vec::new();
    let mut seen = Vec::new();
    let mut sweeps = 0;
    while scenario.directory.sweep(256) {
        sweeps += 1;
        // With 1,501 watches this takes long.
        if sweeps % 16 == 1 {
            scenario.directory.invariant();
        }
        loop {
            match scenario.directory.push(Client(101)) {
                Push::Send(FromReplica::PublisherGone(one)) => gone.push(one.publisher.0[0]),
                Push::Send(FromReplica::Publishers(all)) => seen.push((gone.len(), all.publishers)),
                Push::Working => {}
                Push::Done => break,
                other => panic!("{other:?}"),
            }
        }
    }
    scenario.directory.invariant();
    // Numbers 0 and 1 went before the whole set was sent, which omits them.
    assert_eq!(seen, [(0, vec![publisher(back, 2)])], "{gone:?}");
    assert!(gone.iter().copied().eq(2..back), "each once: {gone:?}");
}

#[test]
fn the_cost_of_watches_counts_towards_sweeping_and_confirming() {
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
    let (mut cursor, mut calls) = (ConfirmProgress::default(), 1);
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
