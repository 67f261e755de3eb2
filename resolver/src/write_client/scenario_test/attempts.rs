//! When a replica is tried, how long its answer may take, and when it is degraded.

use longshore_protocol::messages::resolver::{Announced, Digest};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

#[test]
fn an_answer_may_take_15_s_or_100_us_for_each_write() {
    for (writes, allowed) in [
        (1, Duration::from_secs(15)),
        (1_000, Duration::from_secs(15)),
        (150_001, Duration::from_nanos(15_000_100_000)),
        (1_000_000, Duration::from_secs(100)),
    ] {
        let mut scenario = Scenario::published(0);
        scenario.hangs = true;
        scenario.set_desired(keys(writes), true);
        let deadline = scenario.now + allowed;
        assert!(scenario.core.next_deadline() >= Some(deadline.min(scenario.now + HALF_TTL)));
        scenario.pass_until(deadline - INSTANT);
        assert!(scenario.failures.is_empty(), "{writes} writes: too early");
        scenario.pass_until(deadline);
        assert_eq!(scenario.failures.len(), 1, "{writes} writes: too late");
    }
}

/// Ten days at a thousand changes a second are 864 million; here are half a million, of ten keys.
#[test]
fn an_announce_may_take_15_s_however_much_has_changed() {
    let mut scenario = Scenario::down(7);
    scenario.pass(HALF_TTL);
    for n in 0..500_000_usize {
        let on = terms((n % 7) as u16);
        scenario.desired.set_one(key(&format!("/jobs/{}", n % 10)), Some(&on));
    }
    scenario.step(Event::Tick);
    assert_eq!(scenario.core.pending(), 10, "there are no more keys");
    scenario.restart_replica();
    scenario.hangs = true;
    scenario.now = scenario.core.next_deadline().unwrap();
    scenario.step(Event::Tick);
    assert_eq!(scenario.sent, [Sent::Announce]);
    assert_eq!(scenario.core.next_deadline(), Some(scenario.now + Duration::from_secs(15)));
    assert_eq!(scenario.core.pending(), 10);
    // The batch written then has as many keys as there are.
    scenario.hangs = false;
    scenario.lose_link();
    scenario.set_desired(keys(200_000), true);
    scenario.now = scenario.core.next_deadline().unwrap();
    scenario.step(Event::Tick);
    assert_eq!(scenario.core.next_deadline(), Some(scenario.now + Duration::from_secs(15)));
    while scenario.written() == 0 {
        let answer = scenario.inbox.pop_front().unwrap();
        scenario.step(Event::Received(answer));
    }
    assert_eq!(scenario.core.pending(), 200_000);
    assert_eq!(scenario.core.next_deadline(), Some(scenario.now + Duration::from_secs(20)));
}

#[test]
fn the_timeout_is_for_the_next_answer_not_for_the_batch() {
    let mut scenario = Scenario::published(0);
    scenario.hangs = true;
    scenario.set_desired(keys(100), true);
    scenario.hangs = false;
    // One path every 14.9 s: 25 minutes in all, and never a hang.
    let first = 2;
    for done in 1..=100u64 {
        scenario.now += Duration::from_millis(14_900);
        let (last, refused) = (done == 100, Vec::new());
        scenario.step(Event::Received(FromReplica::Written(Written {
            id: first,
            last,
            done,
            refused,
        })));
    }
    assert!(scenario.failures.is_empty());
    assert!(scenario.core.pending() == 0);
}

#[test]
fn a_replica_may_check_what_a_publisher_holds_before_it_answers_an_announce() {
    let mut scenario = Scenario::new(7);
    scenario.set_desired(keys(10), true);
    let id = scenario.newest_request();
    let answer = scenario.inbox.pop_front().unwrap();
    for _ in 0..10 {
        scenario.now += Duration::from_millis(14_900);
        let (last, done, refused) = (false, 0, Vec::new());
        scenario.step(Event::Received(FromReplica::Written(Written { id, last, done, refused })));
    }
    assert_eq!((scenario.failures.len(), scenario.count(Sent::Announce)), (0, 1));
    scenario.step(Event::Received(answer));
    scenario.settle();
    assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
}

#[test]
fn a_replica_is_tried_3_times_1_to_12_s_apart_and_then_degraded() {
    let mut waits = Vec::new();
    for seed in 0..300 {
        let mut scenario = Scenario::down(seed);
        scenario.set_desired(keys(10), true);
        scenario.settle();
        assert!(!scenario.is_degraded());
        scenario.pass(Duration::from_secs(24));
        let attempts = &scenario.attempts;
        assert_eq!(attempts.len(), 3, "after that it waits for longer");
        waits.extend([attempts[1] - attempts[0], attempts[2] - attempts[1]]);
        assert!(scenario.is_degraded());
        assert_eq!(scenario.core.health(), ReplicaHealth::Degraded { since: attempts[2] });
        assert_eq!(scenario.failures.iter().filter(|(degraded, _)| *degraded).count(), 1);
    }
    waits.sort();
    let s = Duration::from_secs_f64;
    let (shortest, longest) = (waits[0], waits[waits.len() - 1]);
    assert!(s(1.0) <= shortest && shortest < s(1.2), "{shortest:?}");
    assert!(s(11.8) < longest && longest <= s(12.0), "{longest:?}");
}

#[test]
fn a_degraded_replica_is_tried_again_every_half_writer_ttl() {
    let mut scenario = Scenario::down(7);
    scenario.pass(Duration::from_secs(24));
    let third = scenario.attempts[2];
    scenario.pass_until(third + 10 * HALF_TTL);
    let later: Vec<Duration> = scenario.attempts[3..].iter().map(|&at| at - third).collect();
    assert_eq!(later, (1..=10).map(|n| n * HALF_TTL).collect::<Vec<_>>());
    scenario.restart_replica();
    scenario.pass(HALF_TTL);
    assert!(!scenario.is_degraded());
}

#[test]
fn a_replica_that_answers_announces_but_no_writes_is_degraded() {
    let mut scenario = Scenario::published(0);
    // The announce of each new link is answered; nothing else is.
    scenario.hangs = true;
    scenario.set_desired(keys(3), true);
    for _ in 0..200 {
        scenario.now += Duration::from_secs(1);
        let announces = scenario.sent.len();
        scenario.step(Event::Tick);
        if scenario.sent.len() > announces && scenario.sent.last() == Some(&Sent::Announce) {
            let id = scenario.newest_request();
            let stored = vec![Digest::default()];
            let answer = Announced { id, stored, writer_ttl_ms: 120_000 };
            scenario.step(Event::Received(FromReplica::Announced(answer)));
        }
    }
    assert!(scenario.is_degraded());
    assert_eq!(scenario.core.pending(), 3);
}

#[test]
fn after_a_success_three_attempts_are_available_again() {
    let mut scenario = Scenario::published(3);
    for _ in 0..6 {
        scenario.lose_link();
        assert!(!scenario.is_degraded());
        scenario.pass(Duration::from_secs(12));
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    }
    assert!(scenario.failures.iter().all(|(degraded, _)| !degraded));
}

#[test]
fn after_a_crash_of_all_replicas_all_is_republished_within_half_writer_ttl() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut replicas =
            [Scenario::new(seed), Scenario::new(seed + 1_000), Scenario::new(seed + 2_000)];
        let away = Duration::from_millis(random.random_range(0..400_000));
        for scenario in &mut replicas {
            scenario.set_desired(keys(20), true);
            scenario.pass(Duration::from_millis(random.random_range(0..200_000)));
            scenario.crash();
            scenario.pass(away);
            scenario.set_desired([key("/while/away")], true);
            scenario.restart_replica();
            scenario.pass(HALF_TTL);
            assert!(scenario.is_in_sync(), "seed {seed}");
        }
    }
}

#[test]
fn a_heartbeat_every_half_writer_ttl_keeps_the_publisher_visible() {
    let mut scenario = Scenario::published(3);
    scenario.pass(20 * HALF_TTL);
    assert_eq!(scenario.sent, [vec![Sent::Confirm], vec![Sent::Announce; 20]].concat());
    assert!(scenario.is_in_sync());
    assert_eq!(scenario.attempts.len(), 1, "over the link that is open");
}

#[test]
fn a_replica_with_a_shorter_writer_ttl_gets_heartbeats_accordingly() {
    let mut scenario = Scenario::published(0);
    let answer = Announced { id: 2, stored: vec![Digest::default()], writer_ttl_ms: 10_000 };
    scenario.hangs = true;
    scenario.pass(HALF_TTL);
    assert_eq!(scenario.sent, [Sent::Announce]);
    scenario.step(Event::Received(FromReplica::Announced(answer)));
    assert_eq!(scenario.core.next_deadline(), Some(scenario.now + Duration::from_secs(5)));
}

#[test]
fn a_replica_busy_with_writes_for_long_gets_a_heartbeat_meanwhile() {
    let mut scenario = Scenario::published(0);
    scenario.hangs = true;
    scenario.set_desired(keys(1_000_000), true);
    let sent = scenario.sent.len();
    scenario.pass(HALF_TTL);
    assert_eq!(scenario.sent[sent..], [Sent::Write(0)]);
}

#[test]
fn a_superseded_publisher_keeps_trying_and_removes_nothing() {
    let mut scenario = Scenario::published(10);
    let now = scenario.now;
    let digests = [Digest::default()];
    scenario.replica.as_mut().unwrap().announce(now, Client(500), 2, &digests).unwrap();
    scenario.set_desired([key("/new")], true);
    scenario.pass(Duration::from_secs(40));
    assert!(scenario.is_degraded());
    assert!(scenario.core.last_error().unwrap().contains("Superseded"));
    assert_eq!(scenario.registered().count, 10);
}

#[test]
fn closing_removes_the_publisher_at_once() {
    let mut scenario = Scenario::published(10);
    scenario.step(Event::Close);
    scenario.settle();
    assert!(scenario.closed);
    assert_eq!(scenario.registered().count, 0);
    assert_eq!(scenario.core.next_deadline(), None);
}

#[test]
fn closing_tries_a_disconnected_replica_once_more_without_waiting() {
    let mut away = Scenario::down(7);
    away.pass(Duration::from_secs(24));
    away.step(Event::Close);
    assert!(away.closed);
    assert_eq!(away.attempts.len(), 4);

    let mut back = Scenario::published(10);
    back.lose_link();
    back.step(Event::Close);
    back.settle();
    assert!(back.closed);
    assert_eq!(back.registered().count, 0);
}
