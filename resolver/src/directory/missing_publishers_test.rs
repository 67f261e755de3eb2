//! What a replica knows across restarts, in virtual time.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Change, Departure, Digest, KeyHash, KnownPublisher, PathAnswer, PathText, RequestRefusal,
};
use longshore_protocol::{
    Epoch, Incarnation, Path, PublicationKind, PublisherId, PublisherInfo, Terms,
};

use crate::directory::{
    AnswerBuilder, Client, ConfirmProgress, Directory, PublisherListing, Rules, Scope, Wait,
};

const TTL: Duration = Duration::from_secs(120);
/// The longest wait of a restarted replica.
const WAIT: Duration = Duration::from_secs(15);
/// A short downtime.
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

/// A replica across its runs, in virtual time.
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

    /// Stops the replica, and restarts it after `away` with its records.
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

    /// A publisher registers with one desired default.
    fn announce(&mut self, number: u8, default: &str) {
        let mut desired = Digest::default();
        desired.add(KeyHash::of(default, true), Terms::default().digest());
        let client = Client(number.into());
        self.directory.announce(self.now, client, &info(number), &[desired]).unwrap();
    }

    fn write(&mut self, number: u8, change: Change, path: &str) {
        let slot = self.directory.writer(Client(number.into())).unwrap();
        self.directory.change(slot, change, &Path::new(path).unwrap()).unwrap();
    }

    fn confirm(&mut self, number: u8) {
        let slot = self.directory.writer(Client(number.into())).unwrap();
        let mut cursor = ConfirmProgress::default();
        while !self.directory.confirm(slot, &mut cursor, 10) {}
        self.directory.tick(self.now);
    }

    /// It registers and writes everything.
    fn register(&mut self, number: u8, default: &str) {
        self.announce(number, default);
        self.write(number, Change::PublishDefault, default);
        self.confirm(number);
    }

    /// Whether a reader of a new queue below the default gets a usable answer.
    fn serves(&self, path: &str) -> bool {
        let mut resolver = AnswerBuilder::default();
        resolver.answer_text(&self.directory, PathText::new(path.as_bytes()));
        let answer = resolver.finish(&self.directory, 1, true);
        answer.complete && matches!(answer.answers[0], PathAnswer::ByDefault { .. })
    }

    fn listed(&self) -> Vec<KnownPublisher> {
        let (mut known, mut listed) = (PublisherListing::default(), Vec::new());
        while !known.take(&self.directory, &Scope::default(), self.now, 1, &mut listed) {}
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
fn after_a_restart_new_queues_are_served_once_all_publishers_confirmed() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.register(2, "/other");
    scenario.restart(secs(2));
    assert!(!scenario.serves("/jobs/new"), "no publisher has returned");
    scenario.pass(secs(3));
    scenario.announce(1, "/jobs");
    scenario.write(1, Change::PublishDefault, "/jobs");
    scenario.pass(secs(1));
    assert!(!scenario.directory.is_complete(), "neither has confirmed");
    scenario.confirm(1);
    assert!(!scenario.serves("/jobs/new"), "the other one is awaited, too");
    scenario.register(2, "/other");
    assert!(scenario.serves("/jobs/new"), "{:?} after the restart", secs(4));
}

#[test]
fn a_long_downtime_leaves_new_publishers_the_time_to_register() {
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
    assert!(!scenario.directory.is_complete(), "publishers of the last run are awaited for longer");
    scenario.register(1, "/jobs");
    scenario.register(2, "/jobs/new");
    assert!(scenario.directory.is_complete());
}

#[test]
fn the_wait_after_a_long_downtime_survives_another_restart() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.restart(SHORT + secs(1));
    scenario.pass(secs(3));
    scenario.restart(secs(1));
    scenario.register(1, "/jobs");
    scenario.pass(WAIT);
    assert!(!scenario.directory.is_complete(), "publishers that appeared meanwhile are unknown");
    scenario.pass(TTL - WAIT);
    assert!(scenario.directory.is_complete());
}

#[test]
fn a_publisher_that_does_not_return_is_awaited_and_then_missing() {
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
    assert!(scenario.directory.is_complete(), "a missing one is not awaited again");
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
    assert_eq!(listed.len(), 1, "its paths are removed, and it is known");
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

/// Whether it could hold jobs of that queue, by its listed declarations.
fn could_hold(scenario: &Scenario, number: u8, queue: &str) -> bool {
    let queue = longshore_protocol::Glob::new(queue).unwrap();
    let of_it = |one: &KnownPublisher| one.info.id == PublisherId([number; 16]);
    scenario.listed().iter().filter(|one| of_it(one)).any(|one| one.declared.could_match(&queue))
}

#[test]
fn a_publisher_that_withdrew_everything_and_died_is_missing() {
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
fn a_publisher_that_withdrew_a_default_may_hold_queues_below_it() {
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
fn earlier_declarations_count_until_the_current_ones_are_confirmed() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.pass(TTL);
    // It returns, and ends before its first write.
    scenario.announce(1, "/jobs");
    assert_eq!(scenario.missing(), []);
    assert!(could_hold(&scenario, 1, "/jobs/a"));
    let known = scenario.directory.known(scenario.now);
    assert_eq!(known.len(), 1, "it is recorded");
    scenario.directory.clear(Client(1)).unwrap();
    assert_eq!(scenario.missing(), [("p1".to_owned(), Departure::Stopped)]);
    assert!(could_hold(&scenario, 1, "/jobs/a"), "also while its paths are removed");
    scenario.sweep();
    assert!(could_hold(&scenario, 1, "/jobs/a") && !could_hold(&scenario, 1, "/other"));
    // Its new declarations replace the earlier ones.
    scenario.register(1, "/other");
    assert!(could_hold(&scenario, 1, "/other") && !could_hold(&scenario, 1, "/jobs/a"));
}

#[test]
fn a_publisher_whose_paths_are_still_being_removed_is_missing() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    (0..50).for_each(|n| scenario.write(1, Change::Publish, &format!("/jobs/{n}")));
    scenario.pass(TTL);
    assert_eq!(scenario.missing().len(), 1);
    assert!(could_hold(&scenario, 1, "/jobs/7"));
}

#[test]
fn a_replica_without_records_waits_for_a_whole_writer_ttl() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.directory = Directory::new(scenario.now, Incarnation([2; 16]), rules(false));
    scenario.register(1, "/jobs");
    scenario.pass(TTL / 2);
    assert!(!scenario.directory.is_complete());
    // It stops before it knew all publishers: its next run does not know all either.
    scenario.restart(secs(1));
    scenario.register(1, "/jobs");
    assert!(!scenario.directory.is_complete());
    scenario.pass(TTL);
    assert!(scenario.directory.is_complete());
}

#[test]
fn an_announce_without_registrations_confirms_nothing() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    scenario.restart(secs(2));
    let client = Client(1);
    scenario.directory.announce(scenario.now, client, &info(1), &[Digest::default()]).unwrap();
    scenario.pass(secs(1));
    assert!(!scenario.directory.is_complete(), "it has a default, but has not written it yet");
}

#[test]
fn declarations_are_bounded_and_omit_what_a_default_covers() {
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
fn publishers_of_metrics_alone_are_not_awaited() {
    let mut scenario = Scenario::fresh();
    scenario.register(1, "/jobs");
    let metrics = "/sys/replicas/a";
    scenario.announce(2, metrics);
    let slot = scenario.directory.writer(Client(2)).unwrap();
    let terms = Terms { kind: PublicationKind::Value, ..Terms::default() };
    let path = Path::new(metrics).unwrap();
    let change = Change::PublishDefault;
    scenario.directory.write_text(slot, change, &terms, PathText::from(&path)).unwrap();
    scenario.restart(secs(2));
    scenario.register(1, "/jobs");
    assert!(scenario.directory.is_complete(), "the other ended with the replica's process");
}
