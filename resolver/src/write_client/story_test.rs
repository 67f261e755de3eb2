//! The sentences of the fault-tolerance chapter about write connections, each as a test in virtual time; the replica is a real
//! directory without a socket.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Announced, Change, Digest, FromReplica, RefusedPath, RequestRefusal, Written,
};
use longshore_protocol::{Epoch, Incarnation, Path, PublisherId, PublisherInfo, ResolverTiming};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::directory::{Client, Directory, Rules};
use crate::write_client::ReplicaStanding;
use crate::write_client::core::{Action, CONFIRM_QUIET, Input, WRITE_PATHS_MAX, WriteCore};
use crate::write_client::wanted::{Key, Wanted};

const INSTANT: Duration = Duration::from_nanos(1);
const HALF_TTL: Duration = Duration::from_secs(60);

/// A client of one replica, and a clock that moves when it is told to.
struct Story {
    now: Instant,
    wanted: Wanted,
    core: WriteCore,
    /// The replica; none while it is down.
    replica: Option<Directory>,
    /// It takes links and requests, and answers none.
    hangs: bool,
    epoch: u64,
    link: Client,
    linked: bool,
    /// What was said on the link and not taken in yet.
    inbox: VecDeque<FromReplica>,
    tries: Vec<Instant>,
    failures: Vec<(bool, Duration)>,
    sent: Vec<Sent>,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Sent {
    Announce,
    Write(usize),
    Confirm,
    Clear,
}

fn directory(now: Instant) -> Directory {
    let rules = Rules {
        writer_ttl: 2 * HALF_TTL,
        stand_still_max: Duration::from_secs(15),
        fresh: true,
        publishers_max: 16,
        paths_max: 2_000_000,
        watches_max: 16,
    };
    Directory::new(now, Incarnation([1; 16]), rules)
}

fn key(path: &str) -> Key {
    Key { path: Path::new(path).unwrap(), default: false }
}

fn keys(count: usize) -> BTreeSet<Key> {
    (0..count).map(|n| key(&format!("/jobs/{n}"))).collect()
}

impl Story {
    /// A replica that is up, and a client that has just started.
    fn new(seed: u64) -> Story {
        let now = Instant::now();
        Story {
            core: WriteCore::new(now, ResolverTiming::default(), seed),
            replica: Some(directory(now)),
            ..Story::down(seed)
        }
    }

    /// The same publisher, started again while the replica goes on.
    fn restarted(before: &mut Story) -> Story {
        Story {
            now: before.now,
            epoch: 2,
            link: Client(1_000),
            core: WriteCore::new(before.now, ResolverTiming::default(), 8),
            replica: before.replica.take(),
            ..Story::down(8)
        }
    }

    /// A replica that is down, and a client that has just started.
    fn down(seed: u64) -> Story {
        let now = Instant::now();
        Story {
            now,
            wanted: Wanted::default(),
            core: WriteCore::new(now, ResolverTiming::default(), seed),
            replica: None,
            hangs: false,
            epoch: 1,
            link: Client(0),
            linked: false,
            inbox: VecDeque::new(),
            tries: Vec::new(),
            failures: Vec::new(),
            sent: Vec::new(),
            closed: false,
        }
    }

    /// A client that has published `count` paths.
    fn published(count: usize) -> Story {
        let mut story = Story::new(7);
        story.want(keys(count), true);
        story.settle();
        assert!(story.core.is_whole());
        story.sent.clear();
        story
    }

    fn want(&mut self, keys: BTreeSet<Key>, wanted: bool) {
        let changed: BTreeSet<Key> =
            keys.into_iter().filter(|key| self.wanted.set(key, wanted)).collect();
        self.step(Input::Changed(changed));
    }

    fn step(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for action in self.core.step(self.now, &self.wanted, input) {
                match action {
                    Action::Dial => {
                        self.tries.push(self.now);
                        self.linked = self.replica.is_some();
                        self.link.0 += 1;
                        inputs.push_back(match self.linked {
                            true => Input::Linked,
                            false => Input::Unlinked { why: "refused".into() },
                        });
                    }
                    Action::Hangup => self.unlink(),
                    Action::Failed { degraded, again, .. } => {
                        self.failures.push((degraded, again - self.now));
                    }
                    Action::Closed => self.closed = true,
                    Action::PathRefused { .. } => {}
                    request => self.serve(request),
                }
            }
        }
    }

    fn unlink(&mut self) {
        self.linked = false;
        self.inbox.clear();
        if let Some(directory) = &mut self.replica {
            directory.client_gone(self.link);
        }
    }

    /// What the replica does with a request; its answer waits in the inbox.
    fn serve(&mut self, request: Action) {
        let Some(directory) = &mut self.replica else { return };
        self.sent.push(match &request {
            Action::Announce { .. } => Sent::Announce,
            Action::Write { groups, .. } => {
                Sent::Write(groups.iter().map(|(_, paths)| paths.len()).sum())
            }
            Action::Confirm { .. } => Sent::Confirm,
            _ => Sent::Clear,
        });
        if self.hangs {
            return;
        }
        directory.tick(self.now);
        directory.heard(self.link, self.now);
        let refused =
            |id, code: RequestRefusal| FromReplica::Refused { id, code, reason: code.to_string() };
        let written =
            |id, done, refused| FromReplica::Written(Written { id, last: true, done, refused });
        self.inbox.push_back(match request {
            Action::Announce { request: id, wanted } => {
                let info = PublisherInfo {
                    id: PublisherId([1; 16]),
                    epoch: Epoch(self.epoch),
                    name: "left".into(),
                    addresses: vec![([127, 0, 0, 1], 4000).into()],
                };
                match directory.announce(self.now, self.link, &info, &[wanted]) {
                    Ok(held) => FromReplica::Announced(Announced {
                        id,
                        held,
                        writer_ttl_ms: directory.writer_ttl().as_millis() as u64,
                    }),
                    Err(code) => refused(id, code),
                }
            }
            Action::Write { request: id, groups } => match directory.writer(self.link) {
                Ok(slot) => {
                    let (mut done, mut refusals) = (0, Vec::new());
                    for (change, paths) in groups {
                        for path in paths {
                            if let Err(reason) = directory.change(slot, change, &path) {
                                refusals.push(RefusedPath { place: done, reason });
                            }
                            done += 1;
                        }
                    }
                    written(id, u64::from(done), refusals)
                }
                Err(code) => refused(id, code),
            },
            Action::Confirm { request: id } => match directory.writer(self.link) {
                Ok(slot) => {
                    let mut cursor = None;
                    while !directory.confirm(slot, &mut cursor, 3) {}
                    written(id, 0, Vec::new())
                }
                Err(code) => refused(id, code),
            },
            Action::Clear { request: id } => match directory.clear(self.link) {
                Ok(()) => written(id, 0, Vec::new()),
                Err(code) => refused(id, code),
            },
            other => panic!("{other:?} is no request"),
        });
    }

    /// Takes in everything that the replica has said.
    fn settle(&mut self) {
        self.step(Input::Tick);
        while let Some(message) = self.inbox.pop_front() {
            self.step(Input::Told(message));
        }
    }

    /// Lets time pass up to `end`, doing what is due when it is due.
    fn pass_until(&mut self, end: Instant) {
        self.settle();
        while let Some(deadline) = self.core.next_deadline().filter(|&deadline| deadline <= end) {
            assert!(deadline >= self.now, "it is late, and does nothing about it");
            self.now = deadline;
            self.settle();
        }
        self.now = end;
        if let Some(directory) = &mut self.replica {
            directory.tick(end);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.pass_until(self.now + time);
    }

    fn crash(&mut self) {
        self.replica = None;
        if std::mem::take(&mut self.linked) {
            self.inbox.clear();
            self.step(Input::Unlinked { why: "it crashed".into() });
        }
    }

    fn returns(&mut self) {
        self.replica = Some(directory(self.now));
    }

    /// What the replica holds of the publisher.
    fn held(&mut self) -> Digest {
        let directory = self.replica.as_mut().expect("the replica is down");
        directory.invariant();
        directory.held_by(PublisherId([1; 16]))
    }

    fn holds_all(&mut self) -> bool {
        self.held() == self.wanted.digest()
    }

    fn is_degraded(&self) -> bool {
        matches!(self.core.standing(), ReplicaStanding::Degraded { .. })
    }
}

#[test]
fn an_answer_may_take_15_s_or_100_us_for_each_write_whichever_is_longer() {
    for (writes, allowed) in [
        (1, Duration::from_secs(15)),
        (1_000, Duration::from_secs(15)),
        (150_001, Duration::from_nanos(15_000_100_000)),
        (1_000_000, Duration::from_secs(100)),
    ] {
        let mut story = Story::published(0);
        story.hangs = true;
        story.want(keys(writes), true);
        let deadline = story.now + allowed;
        assert!(story.core.next_deadline() >= Some(deadline.min(story.now + HALF_TTL)));
        story.pass_until(deadline - INSTANT);
        assert!(story.failures.is_empty(), "{writes} writes: too early");
        story.pass_until(deadline);
        assert_eq!(story.failures.len(), 1, "{writes} writes: too late");
    }
}

#[test]
fn the_timeout_is_to_get_an_answer_not_to_finish_the_batch() {
    let mut story = Story::published(0);
    story.hangs = true;
    story.want(keys(100), true);
    story.hangs = false;
    // One path every 14.9 s: 25 minutes in all, and never a hang.
    let first = 2;
    for done in 1..=100u64 {
        story.now += Duration::from_millis(14_900);
        let (last, refused) = (done == 100, Vec::new());
        story.step(Input::Told(FromReplica::Written(Written { id: first, last, done, refused })));
    }
    assert!(story.failures.is_empty());
    assert!(story.core.lacking() == 0);
}

#[test]
fn each_server_is_tried_3_times_1_to_12_s_apart_and_is_then_degraded() {
    let mut waits = Vec::new();
    for seed in 0..300 {
        let mut story = Story::down(seed);
        story.want(keys(10), true);
        story.settle();
        assert!(!story.is_degraded());
        story.pass(Duration::from_secs(24));
        let tries = &story.tries;
        assert_eq!(tries.len(), 3, "after that it waits for longer");
        waits.extend([tries[1] - tries[0], tries[2] - tries[1]]);
        assert!(story.is_degraded());
        assert_eq!(story.core.standing(), ReplicaStanding::Degraded { since: tries[2] });
        assert_eq!(story.failures.iter().filter(|(degraded, _)| *degraded).count(), 1);
    }
    waits.sort();
    let s = Duration::from_secs_f64;
    let (shortest, longest) = (waits[0], waits[waits.len() - 1]);
    assert!(s(1.0) <= shortest && shortest < s(1.2), "{shortest:?}");
    assert!(s(11.8) < longest && longest <= s(12.0), "{longest:?}");
}

#[test]
fn a_degraded_server_is_tried_again_every_half_writer_ttl() {
    let mut story = Story::down(7);
    story.pass(Duration::from_secs(24));
    let third = story.tries[2];
    story.pass_until(third + 10 * HALF_TTL);
    let later: Vec<Duration> = story.tries[3..].iter().map(|&at| at - third).collect();
    assert_eq!(later, (1..=10).map(|n| n * HALF_TTL).collect::<Vec<_>>());
    story.returns();
    story.pass(HALF_TTL);
    assert!(!story.is_degraded());
}

#[test]
fn a_server_that_answers_announces_and_no_writes_is_degraded_too() {
    let mut story = Story::published(0);
    // The announce of each new link is answered; nothing else is.
    story.hangs = true;
    story.want(keys(3), true);
    for _ in 0..200 {
        story.now += Duration::from_secs(1);
        let announces = story.sent.len();
        story.step(Input::Tick);
        if story.sent.len() > announces && story.sent.last() == Some(&Sent::Announce) {
            let id = story.core_request();
            let held = vec![Digest::default()];
            let answer = Announced { id, held, writer_ttl_ms: 120_000 };
            story.step(Input::Told(FromReplica::Announced(answer)));
        }
    }
    assert!(story.is_degraded());
    assert_eq!(story.core.lacking(), 3);
}

impl Story {
    /// The number of the newest request: they are numbered from 1, in the order in which they are sent.
    fn core_request(&self) -> u64 {
        self.sent.len() as u64 + 1
    }
}

#[test]
fn a_batch_never_fails_what_was_published_while_the_server_was_away_arrives_when_it_is_back() {
    let mut story = Story::down(7);
    story.want(keys(5), true);
    story.pass(Duration::from_secs(3_600));
    story.want([key("/while/away")].into(), true);
    story.want([key("/jobs/0")].into(), false);
    assert!(story.core.lacking() >= 6);
    story.returns();
    story.pass(HALF_TTL);
    assert!(story.core.is_whole() && story.holds_all());
    assert_eq!(story.held().count, 5);
}

#[test]
fn when_all_servers_crash_and_come_back_all_is_republished_within_half_writer_ttl() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut replicas = [Story::new(seed), Story::new(seed + 1_000), Story::new(seed + 2_000)];
        let away = Duration::from_millis(random.random_range(0..400_000));
        for story in &mut replicas {
            story.want(keys(20), true);
            story.pass(Duration::from_millis(random.random_range(0..200_000)));
            story.crash();
            story.pass(away);
            story.want([key("/while/away")].into(), true);
            story.returns();
            story.pass(HALF_TTL);
            assert!(story.holds_all(), "seed {seed}");
        }
    }
}

#[test]
fn a_heartbeat_every_half_writer_ttl_keeps_the_publisher_in_sight() {
    let mut story = Story::published(3);
    story.pass(20 * HALF_TTL);
    assert_eq!(story.sent, [vec![Sent::Confirm], vec![Sent::Announce; 20]].concat());
    assert!(story.holds_all());
    assert_eq!(story.tries.len(), 1, "over the link that is open");
}

/// A queue is made every second, and its write answered before the next.
#[test]
fn digests_are_compared_under_steady_writes_too() {
    let mut story = Story::published(3);
    story.pass(CONFIRM_QUIET);
    story.sent.clear();
    for minute in 1..=5 {
        let replica = story.replica.as_mut().unwrap();
        let slot = replica.writer(story.link).unwrap();
        replica.change(slot, Change::Unpublish, &key("/jobs/1").path).unwrap();
        for second in 0..60 {
            story.want([key(&format!("/steady/{minute}/{second}"))].into(), true);
            story.settle();
            story.pass(Duration::from_secs(1));
        }
        assert!(story.holds_all(), "minute {minute}: what a replica has lost is found out");
        story.pass(CONFIRM_QUIET);
    }
    let announces = story.sent.iter().filter(|sent| **sent == Sent::Announce).count();
    assert!((5..=6).contains(&announces), "{announces} in five minutes");
    assert_eq!(story.tries.len(), 1);
}

#[test]
fn what_an_earlier_start_held_goes_within_half_a_writer_ttl_though_writes_go_on() {
    let mut before = Story::published(50);
    let mut after = Story::restarted(&mut before);
    after.want(keys(49), true);
    after.settle();
    let begun = after.now;
    for n in 0.. {
        if after.now > begun + HALF_TTL {
            break;
        }
        assert!(after.held().count >= 49 + n, "what is wanted stays");
        after.want([key(&format!("/steady/{n}"))].into(), true);
        after.pass(CONFIRM_QUIET - Duration::from_millis(1));
    }
    after.want([key("/last")].into(), true);
    after.settle();
    assert!(after.holds_all());
}

#[test]
fn a_path_refused_just_before_digests_are_compared_makes_no_difference() {
    let mut story = Story::published(3);
    story.pass(CONFIRM_QUIET);
    story.pass(HALF_TTL - CONFIRM_QUIET - INSTANT);
    story.sent.clear();
    story.now += INSTANT;
    story.want([key("/")].into(), true);
    assert_eq!(story.sent, [Sent::Write(1), Sent::Announce], "behind what is under way");
    story.settle();
    // What is refused is tried again, and nothing else is written.
    assert_eq!(story.sent, [Sent::Write(1), Sent::Announce, Sent::Write(1)]);
    assert_eq!((story.core.refused(), story.core.lacking()), (1, 0));
}

#[test]
fn a_server_with_a_shorter_writer_ttl_gets_its_heartbeats_accordingly() {
    let mut story = Story::published(0);
    let answer = Announced { id: 2, held: vec![Digest::default()], writer_ttl_ms: 10_000 };
    story.hangs = true;
    story.pass(HALF_TTL);
    assert_eq!(story.sent, [Sent::Announce]);
    story.step(Input::Told(FromReplica::Announced(answer)));
    assert_eq!(story.core.next_deadline(), Some(story.now + Duration::from_secs(5)));
}

#[test]
fn a_server_that_stays_busy_with_writes_for_long_hears_a_heartbeat_meanwhile() {
    let mut story = Story::published(0);
    story.hangs = true;
    story.want(keys(1_000_000), true);
    let sent = story.sent.len();
    story.pass(HALF_TTL);
    assert_eq!(story.sent[sent..], [Sent::Write(0)]);
}

#[test]
fn after_a_dropped_link_equal_digests_mean_that_nothing_is_sent_again() {
    let mut story = Story::published(1_000);
    story.pass(CONFIRM_QUIET);
    story.unlink();
    story.sent.clear();
    story.step(Input::Unlinked { why: "a cable".into() });
    assert!(story.holds_all(), "a dropped connection removes nothing");
    story.pass(Duration::from_secs(12));
    assert_eq!(story.sent, [Sent::Announce]);
    assert!(story.core.is_whole());
}

#[test]
fn a_link_lost_before_its_confirm_removes_nothing() {
    let mut story = Story::published(3);
    assert!(story.sent.is_empty(), "it has written everything, and confirmed nothing");
    story.unlink();
    story.step(Input::Unlinked { why: "a cable".into() });
    story.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(story.holds_all(), "what the replica held is not stale because a link was");
    assert_eq!(story.sent, [Sent::Announce], "equal digests: there is nothing to confirm");
    assert!(story.core.is_whole());
}

/// The replica stays, links come and go in the middle of anything, the wanted set only grows: so does what is held.
#[test]
fn links_that_drop_at_any_moment_remove_nothing() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut story, mut held) = (Story::new(seed), 0);
        for _ in 0..80 {
            match random.random_range(0..8) {
                0 | 1 if story.linked => {
                    story.unlink();
                    story.step(Input::Unlinked { why: "a cable".into() });
                }
                2 => story.pass(Duration::from_millis(random.random_range(0..90_000))),
                3 | 4 if !story.inbox.is_empty() => {
                    let message = story.inbox.pop_front().unwrap();
                    story.step(Input::Told(message));
                }
                5 => story.settle(),
                6 => story.pass(Duration::from_millis(random.random_range(0..3_000))),
                _ => story.want([key(&format!("/q/{}", random.random_range(0..40)))].into(), true),
            }
            let now = story.held().count;
            assert!(now >= held, "seed {seed}: {held} paths were held, {now} are left");
            held = now;
        }
    }
}

#[test]
fn after_a_dropped_link_only_what_changed_meanwhile_makes_a_difference() {
    let mut story = Story::published(100);
    story.unlink();
    story.step(Input::Unlinked { why: "a cable".into() });
    story.want([key("/jobs/7")].into(), false);
    story.want([key("/new")].into(), true);
    story.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(story.holds_all());
    assert_eq!(story.core.lacking(), 0);
}

#[test]
fn a_huge_publish_goes_out_in_requests_of_bounded_size() {
    let mut story = Story::published(0);
    story.want(keys(WRITE_PATHS_MAX * 12 + 5), true);
    assert_eq!(story.sent, [const { Sent::Write(WRITE_PATHS_MAX) }; 8]);
    story.settle();
    assert!(story.core.is_whole() && story.holds_all());
}

#[test]
fn a_restart_with_the_same_paths_removes_none_of_them_for_a_moment() {
    let mut before = Story::published(50);
    before.pass(Duration::from_secs(5));
    // The same data directory, a higher epoch; the paths come one by one, with some time between them.
    let mut after = Story::restarted(&mut before);
    after.settle();
    for key in keys(50) {
        assert!(after.held().count >= 50, "a path is gone");
        after.want([key].into(), true);
        after.settle();
        after.pass(Duration::from_millis(100));
    }
    // Not wanted before, nor now.
    after.pass(HALF_TTL);
    assert!(after.holds_all());
}

#[test]
fn a_restart_without_a_path_has_it_removed_once_the_wanted_set_is_still() {
    let mut before = Story::published(50);
    let mut after = Story::restarted(&mut before);
    after.want(keys(49), true);
    after.pass(CONFIRM_QUIET - INSTANT);
    assert_eq!(after.held().count, 50);
    after.pass(INSTANT);
    assert_eq!(after.held().count, 49);
    assert!(after.holds_all());
}

#[test]
fn a_publisher_that_was_forgotten_announces_itself_again_at_once() {
    let mut story = Story::published(10);
    // It was stopped for so long that the replica has hidden it, and yet its link stands.
    let silent = story.now + 3 * HALF_TTL;
    story.replica.as_mut().unwrap().tick(silent);
    while story.replica.as_mut().unwrap().sweep(100) {}
    story.now = silent;
    story.want([key("/new")].into(), true);
    story.settle();
    assert!(story.core.is_whole() && story.holds_all());
    assert_eq!(story.tries.len(), 1);
}

#[test]
fn a_path_that_is_refused_costs_the_others_nothing_and_is_tried_again_with_the_heartbeat() {
    let mut story = Story::published(10);
    story.pass(CONFIRM_QUIET);
    story.want([key("/")].into(), true);
    story.settle();
    assert_eq!((story.core.refused(), story.core.lacking()), (1, 0));
    assert!(story.core.is_whole());
    story.sent.clear();
    story.pass(3 * HALF_TTL);
    assert_eq!(story.sent, [Sent::Announce, Sent::Write(1)].repeat(3));
    story.want([key("/")].into(), false);
    story.settle();
    assert_eq!(story.core.refused(), 0);
    assert!(story.holds_all());
}

#[test]
fn closing_removes_the_publisher_at_once() {
    let mut story = Story::published(10);
    story.step(Input::Close);
    story.settle();
    assert!(story.closed);
    assert_eq!(story.held().count, 0);
    assert_eq!(story.core.next_deadline(), None);
}

#[test]
fn closing_tries_a_server_that_is_away_once_more_and_does_not_wait_for_it() {
    let mut away = Story::down(7);
    away.pass(Duration::from_secs(24));
    away.step(Input::Close);
    assert!(away.closed);
    assert_eq!(away.tries.len(), 4);

    let mut back = Story::published(10);
    back.unlink();
    back.step(Input::Unlinked { why: "a cable".into() });
    back.step(Input::Close);
    back.settle();
    assert!(back.closed);
    assert_eq!(back.held().count, 0);
}

#[test]
fn a_superseded_publisher_goes_on_trying_and_takes_nothing_back() {
    let mut story = Story::published(10);
    let newer = PublisherInfo {
        id: PublisherId([1; 16]),
        epoch: Epoch(2),
        name: "left".into(),
        addresses: vec![([127, 0, 0, 1], 4001).into()],
    };
    let now = story.now;
    story.replica.as_mut().unwrap().announce(now, Client(500), &newer, &[]).unwrap();
    story.want([key("/new")].into(), true);
    story.pass(Duration::from_secs(40));
    assert!(story.is_degraded());
    assert!(story.core.last_error().unwrap().contains("Superseded"));
    assert_eq!(story.held().count, 10);
}

/// Whatever goes wrong, in the end the replica holds what is wanted.
#[test]
fn after_any_series_of_faults_and_changes_the_replica_ends_up_with_what_is_wanted() {
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut story = Story::new(seed);
        for _ in 0..60 {
            match random.random_range(0..12) {
                0 => story.crash(),
                1 if story.replica.is_none() => story.returns(),
                2 if story.linked => {
                    story.unlink();
                    story.step(Input::Unlinked { why: "a cable".into() });
                }
                3 => story.hangs = random.random_bool(0.3),
                4 | 5 => story.pass(Duration::from_millis(random.random_range(0..90_000))),
                6 if !story.inbox.is_empty() => {
                    let message = story.inbox.pop_front().unwrap();
                    story.step(Input::Told(message));
                }
                7 => story.settle(),
                _ => {
                    let some: BTreeSet<Key> = (0..random.random_range(1..6))
                        .map(|_| Key {
                            path: Path::new(&format!("/q/{}", random.random_range(0..20))).unwrap(),
                            default: random.random_bool(0.2),
                        })
                        .collect();
                    story.want(some, random.random_bool(0.6));
                }
            }
        }
        story.hangs = false;
        if story.replica.is_none() {
            story.returns();
        }
        // The longest timeout, the longest wait, and the removal of what is not wanted any more.
        story.pass(Duration::from_secs(15) + HALF_TTL + 2 * CONFIRM_QUIET + HALF_TTL);
        assert!(story.core.is_whole(), "seed {seed}: {:?}", story.core);
        assert!(story.holds_all(), "seed {seed}");
    }
}

#[test]
fn after_a_try_that_went_well_there_are_three_again() {
    let mut story = Story::published(3);
    for _ in 0..6 {
        story.unlink();
        story.step(Input::Unlinked { why: "a cable".into() });
        assert!(!story.is_degraded());
        story.pass(Duration::from_secs(12));
        assert!(story.core.is_whole() && story.holds_all());
    }
    assert!(story.failures.iter().all(|(degraded, _)| !degraded));
}
