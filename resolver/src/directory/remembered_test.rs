//! What a replica knows across restarts, in virtual time.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Change, Departure, Digest, KeyHash, KnownPublisher, PathAnswer, PathText, RequestRefusal,
};
use longshore_protocol::{
    Epoch, Incarnation, Path, PublicationKind, PublisherId, PublisherInfo, Terms,
};

use crate::directory::{Client, Confirming, Directory, Known, Resolver, Rules, Wait};

const TTL: Duration = Duration::from_secs(120);
/// A restarted replica waits so long at most.
const WAIT: Duration = Duration::from_secs(15);
/// It was away for a short time.
const SHORT: Duration = Duration::from_secs(5);

fn rules(fresh: bool) -> Rules {
    Rules { fresh, ..Rules::small(TTL) }
}

fn info(number: u8) -> PublisherInfo {
    PublisherInfo::new(
        PublisherId([number; 16]),
        Epoch(1),
        format!("p{number}"),
        [([127, 0, 0, 1], 4000 + u16::from(number))],
    )
}

/// A replica, its runs and its time.
struct Scenario {
    now: Instant,
    directory: Directory,
}

impl Scenario {
    /// A new cluster.
    fn fresh() -> Scenario {
        let now = Instant::now();
        Scenario { now, directory: Directory::new(now, Incarnation([1; 16]), rules(true)) }
    }

    /// The replica stops, and starts again that much later with what it wrote down.
    fn restart(&mut self, away: Duration) {
        let mut known = self.directory.known(self.now);
        let all = self.directory.knows_all();
        self.now += away;
        for one in &mut known {
            one.silent_ms += u64::try_from(away.as_millis()).unwrap();
        }
        self.directory = Directory::new(self.now, Incarnation([2; 16]), rules(false));
        let wait = match away <= SHORT {
            true => Wait { least: Duration::ZERO, most: WAIT },
            false => Wait { least: WAIT, most: TTL / 2 },
        };
        self.directory.restore(self.now, known, all, wait);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.directory.tick(self.now);
        self.directory.invariant();
    }

    /// A publisher registers: it wants that default.
    fn announce(&mut self, number: u8, default: &str) {
        let mut wanted = Digest::default();
        wanted.add(KeyHash::of(default, true), Terms::default().digest());
        let client = Client(number.into());
        self.directory.announce(self.now, client, &info(number), &[wanted]).unwrap();
    }

    fn write(&mut self, number: u8, change: Change, path: &str) {
        let slot = self.directory.writer(Client(number.into())).unwrap();
        self.directory.change(slot, change, &Path::new(path).unwrap()).unwrap();
    }

    fn confirm(&mut self, number: u8) {
        let slot = self.directory.writer(Client(number.into())).unwrap();
        let mut cursor = Confirming::default();
        while !self.directory.confirm(slot, &mut cursor, 10) {}
        self.directory.tick(self.now);
    }

    /// It registers and writes all it wants.
    fn register(&mut self, number: u8, default: &str) {
        self.announce(number, default);
        self.write(number, Change::PublishDefault, default);
        self.confirm(number);
    }

    /// What a reader of a new queue below the default learns: whether it may use the answer.
    fn serves(&self, path: &str) -> bool {
        let mut resolver = Resolver::default();
        resolver.answer(&self.directory, PathText::new(path.as_bytes()));
        let answer = resolver.finish(&self.directory, 1, true);
        answer.complete && matches!(answer.answers[0], PathAnswer::ByDefault { .. })
    }

    fn listed(&self) -> Vec<KnownPublisher> {
        let (mut known, mut listed) = (Known::default(), Vec::new());
        while !known.take(&self.directory, self.now, 1, &mut listed) {}
        listed
    }

    fn missing(&self) -> Vec<(String, Departure)> {
        let gone = |one: KnownPublisher| Some((one.info.name, one.departure?));
        self.listed().into_iter().filter_map(gone).collect()
    }

    fn sweep(&mut self) {
        while self.directory.sweep(100) {}
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn a_new_queue_below_a_default_is_served_as_soon_as_all_have_confirmed_after_a_restart() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.register(2, "/other");
    scenario.restart(secs(2));
    assert!(!scenario.serves("/jobs/new"), "nobody is back");
    scenario.pass(secs(3));
    scenario.announce(1, "/jobs");
    scenario.write(1, Change::PublishDefault, "/jobs");
    scenario.pass(secs(1));
    assert!(!scenario.directory.is_complete(), "neither has confirmed");
    scenario.confirm(1);
    assert!(!scenario.serves("/jobs/new"), "the other was there, too");
    scenario.register(2, "/other");
    assert!(scenario.serves("/jobs/new"), "{:?} after the restart", secs(4));
}

#[test]
fn a_long_absence_leaves_new_publishers_the_time_to_find_the_replica() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.restart(SHORT + secs(1));
    scenario.register(1, "/jobs");
    assert!(!scenario.directory.is_complete(), "others may have appeared meanwhile");
    assert_eq!(scenario.directory.next_deadline(), Some(scenario.now + WAIT));
    scenario.pass(WAIT - Duration::from_nanos(1));
    assert!(!scenario.directory.is_complete());
    scenario.register(2, "/jobs/new");
    scenario.pass(Duration::from_nanos(1));
    assert!(scenario.directory.is_complete());
    scenario.restart(SHORT + secs(1));
    scenario.pass(WAIT);
    assert!(!scenario.directory.is_complete(), "those that were there are waited for longer");
    scenario.register(1, "/jobs");
    scenario.register(2, "/jobs/new");
    assert!(scenario.directory.is_complete());
}

#[test]
fn a_long_absence_is_waited_for_though_the_replica_restarts_meanwhile() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.restart(SHORT + secs(1));
    scenario.pass(secs(3));
    scenario.restart(secs(1));
    scenario.register(1, "/jobs");
    scenario.pass(WAIT);
    assert!(!scenario.directory.is_complete(), "who has appeared meanwhile is not known");
    scenario.pass(TTL - WAIT);
    assert!(scenario.directory.is_complete());
}

#[test]
fn a_publisher_that_does_not_return_is_waited_for_for_so_long_and_then_missing() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.register(2, "/other");
    scenario.restart(secs(2));
    scenario.register(1, "/jobs");
    assert_eq!(scenario.missing(), [("p2".to_owned(), Departure::NotBack)]);
    scenario.pass(WAIT - Duration::from_nanos(1));
    assert!(!scenario.directory.is_complete());
    scenario.pass(Duration::from_nanos(1));
    assert!(scenario.serves("/jobs/new"));
    assert_eq!(scenario.missing(), [("p2".to_owned(), Departure::Silent)]);
    let silent = scenario.listed().iter().find(|one| one.departure.is_some()).unwrap().silent_ms;
    assert_eq!(silent, 17_000);
    scenario.restart(secs(1));
    scenario.register(1, "/jobs");
    assert!(scenario.directory.is_complete(), "one that was missing is not waited for again");
    assert_eq!(scenario.missing(), [("p2".to_owned(), Departure::Silent)]);
}

#[test]
fn a_silent_publisher_is_missing_until_it_returns_or_is_forgotten() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.pass(TTL);
    assert_eq!(scenario.missing(), [("p1".to_owned(), Departure::Silent)]);
    scenario.sweep();
    let listed = scenario.listed();
    assert_eq!(listed.len(), 1, "its paths are taken out, and it is known");
    assert_eq!(listed[0].declared.defaults, [Path::new("/jobs").unwrap()]);
    scenario.register(1, "/jobs");
    assert_eq!(scenario.missing(), []);
    let id = PublisherId([1; 16]);
    assert_eq!(scenario.directory.forget(id), Err(RequestRefusal::StillThere));
    scenario.directory.clear(Client(1)).unwrap();
    scenario.sweep();
    assert_eq!(scenario.missing(), [("p1".to_owned(), Departure::Stopped)]);
    assert_eq!(scenario.directory.forget(id), Ok(true));
    assert_eq!(scenario.directory.forget(id), Ok(false));
    assert_eq!(scenario.missing(), []);
    scenario.register(1, "/jobs");
    scenario.pass(TTL);
    assert_eq!(scenario.missing().len(), 1, "it returned, and is known again");
}

/// Whether it could hold jobs of that queue, by what is listed of it.
fn could_hold(scenario: &Scenario, number: u8, queue: &str) -> bool {
    let queue = longshore_protocol::Glob::new(queue).unwrap();
    let of_it = |one: &KnownPublisher| one.info.id == PublisherId([number; 16]);
    scenario.listed().iter().filter(|one| of_it(one)).any(|one| one.declared.could_match(&queue))
}

#[test]
fn a_publisher_that_took_everything_back_and_died_is_missing_all_the_same() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    // Its disk hangs.
    scenario.write(1, Change::UnpublishDefault, "/jobs");
    assert!(could_hold(&scenario, 1, "/jobs/a"), "it keeps its jobs");
    scenario.pass(TTL);
    assert_eq!(scenario.missing().len(), 1);
    assert!(could_hold(&scenario, 1, "/jobs/a"));
    scenario.restart(secs(1));
    scenario.pass(TTL);
    assert_eq!(scenario.missing().len(), 1);
}

#[test]
fn a_publisher_that_gave_up_a_default_may_hold_queues_below_it() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.write(1, Change::PublishDefault, "/other");
    scenario.write(1, Change::Publish, "/third/a");
    scenario.write(1, Change::Unpublish, "/third/a");
    assert!(!could_hold(&scenario, 1, "/third/a"), "an idle queue beside its defaults is gone");
    scenario.write(1, Change::Publish, "/jobs/mail");
    scenario.write(1, Change::UnpublishDefault, "/jobs");
    assert!(could_hold(&scenario, 1, "/jobs/mail"));
}

#[test]
fn what_was_declared_before_counts_until_what_is_declared_now_is_confirmed() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.pass(TTL);
    // It comes back, and ends before its first write.
    scenario.announce(1, "/jobs");
    assert_eq!(scenario.missing(), []);
    assert!(could_hold(&scenario, 1, "/jobs/a"));
    let known = scenario.directory.known(scenario.now);
    assert_eq!(known.len(), 1, "it is written down");
    scenario.directory.clear(Client(1)).unwrap();
    assert_eq!(scenario.missing(), [("p1".to_owned(), Departure::Stopped)]);
    assert!(could_hold(&scenario, 1, "/jobs/a"), "also while its paths are taken out");
    scenario.sweep();
    assert!(could_hold(&scenario, 1, "/jobs/a") && !could_hold(&scenario, 1, "/other"));
    // What it declares from now on replaces that.
    scenario.register(1, "/other");
    assert!(could_hold(&scenario, 1, "/other") && !could_hold(&scenario, 1, "/jobs/a"));
}

#[test]
fn a_publisher_whose_many_paths_are_still_taken_out_is_missing() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    (0..50).for_each(|n| scenario.write(1, Change::Publish, &format!("/jobs/{n}")));
    scenario.pass(TTL);
    assert_eq!(scenario.missing().len(), 1);
    assert!(could_hold(&scenario, 1, "/jobs/7"));
}

#[test]
fn a_replica_that_never_knew_any_waits_for_a_whole_writer_ttl() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.directory = Directory::new(scenario.now, Incarnation([2; 16]), rules(false));
    scenario.register(1, "/jobs");
    scenario.pass(TTL / 2);
    assert!(!scenario.directory.is_complete());
    // It stops before it knew all: its next run does not, either.
    scenario.restart(secs(1));
    scenario.register(1, "/jobs");
    assert!(!scenario.directory.is_complete());
    scenario.pass(TTL);
    assert!(scenario.directory.is_complete());
}

#[test]
fn an_announce_before_anything_is_written_confirms_nothing() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.restart(secs(2));
    let client = Client(1);
    scenario.directory.announce(scenario.now, client, &info(1), &[Digest::default()]).unwrap();
    scenario.pass(secs(1));
    assert!(!scenario.directory.is_complete(), "it has a default, and has not said so yet");
}

#[test]
fn what_was_declared_is_bounded_and_what_a_default_covers_is_not_listed() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    for n in 0..100 {
        scenario.write(1, Change::Publish, &format!("/jobs/{n}"));
        scenario.write(1, Change::Publish, &format!("/other/{n}"));
    }
    let declared = scenario.listed().remove(0).declared;
    assert_eq!((declared.defaults.len(), declared.queues.len(), declared.more), (1, 64, true));
    assert!(declared.queues.iter().all(|path| path.as_str().starts_with("/other/")));
}

#[test]
fn publishers_of_metrics_alone_are_not_waited_for() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    let metrics = "/sys/replicas/a";
    scenario.announce(2, metrics);
    let slot = scenario.directory.writer(Client(2)).unwrap();
    let terms = Terms { kind: PublicationKind::Value, ..Terms::default() };
    let path = Path::new(metrics).unwrap();
    let change = Change::PublishDefault;
    scenario.directory.write(slot, change, &terms, PathText::from(&path)).unwrap();
    scenario.restart(secs(2));
    scenario.register(1, "/jobs");
    assert!(scenario.directory.is_complete(), "the other ended with the replica's process");
}
