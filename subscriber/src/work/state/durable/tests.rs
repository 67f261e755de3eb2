//! The fault-tolerance rules for the crash of a publisher, and the rules of `durable`, in virtual
//! time.

use longshore_protocol::Epoch;
use proptest::prelude::*;

use longshore_transport::RETRY_STEP;

use crate::work::state::subscriptions::bounds;

use super::*;

const A: PublisherId = PublisherId([1; 16]);
const B: PublisherId = PublisherId([2; 16]);

fn info(id: PublisherId, port: u16) -> PublisherInfo {
    let name = format!("p{}", id.0[0]);
    PublisherInfo::new(id, Epoch(1), name, [([127, 0, 0, 1], port)])
}

/// A state machine with a virtual clock.
struct Scenario {
    core: ReconnectingSubscription,
    now: Duration,
}

impl Scenario {
    fn new(bound: u32) -> Scenario {
        Scenario::with_seed(bound, 7)
    }

    fn with_seed(bound: u32, seed: u64) -> Scenario {
        Scenario {
            core: ReconnectingSubscription::new(bound, bounds(bound, &[]), seed),
            now: Duration::from_secs(1_000),
        }
    }

    fn step(&mut self, event: DurableEvent) -> Vec<Action> {
        let mut actions = Vec::new();
        self.core.step(self.now, event, &mut actions);
        actions
    }

    fn watched(&mut self, complete: bool, publishers: &[PublisherInfo]) -> Vec<Action> {
        self.step(DurableEvent::Watched { complete, publishers: publishers.to_vec() })
    }

    fn fails(&mut self, publisher: PublisherId, busy: bool) -> Vec<Action> {
        self.step(DurableEvent::AttemptFailed {
            publisher,
            reason: "connection refused".into(),
            busy,
        })
    }

    fn loses(&mut self, publisher: PublisherId, busy: bool) -> Vec<Action> {
        self.step(DurableEvent::LinkLost {
            publisher,
            reason: "the other side closed the link".into(),
            busy,
        })
    }

    /// Attached and steady.
    fn alive(&mut self, publisher: PublisherInfo) {
        let id = publisher.id;
        self.watched(false, &[publisher]);
        self.step(DurableEvent::Attached(id));
        self.now += STABLE_AFTER;
    }

    /// Advances to the next deadline. Returns the wait and the resulting actions.
    fn next(&mut self) -> (Duration, Vec<Action>) {
        let deadline = self.core.next_deadline().expect("something to wait for");
        let wait = deadline.saturating_sub(self.now);
        self.now = self.now.max(deadline);
        (wait, self.step(DurableEvent::Tick))
    }

    fn status(&self, id: PublisherId) -> Option<SubscriptionStatus> {
        self.core.states().into_iter().find(|state| state.id == id).map(|state| state.status)
    }
}

#[test]
fn every_publisher_of_the_set_is_subscribed() {
    let mut scenario = Scenario::new(8);
    let set = [info(A, 1), info(B, 2)];
    let [a, b] = set.clone();
    assert_eq!(scenario.watched(true, &set), [Action::Connect(a), Action::Connect(b)]);
    assert_eq!(scenario.status(A), Some(SubscriptionStatus::Pending));
}

#[test]
fn a_new_publisher_is_connected_at_once() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    assert_eq!(scenario.watched(true, &[info(A, 1), info(B, 2)]), [Action::Connect(info(B, 2))]);
}

#[test]
fn a_publisher_that_replaces_another_has_its_room() {
    let mut scenario = Scenario::new(8);
    let publisher = |n: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_be_bytes());
        info(PublisherId(id), 1)
    };
    let mut set: Vec<_> = (0..PUBLISHERS_PER_PATH_MAX + 1).map(publisher).collect();
    assert_eq!(scenario.watched(true, &set).len(), PUBLISHERS_PER_PATH_MAX, "one is left out");
    scenario.fails(set[0].id, false);
    let (old, new) = (set.remove(0), set[PUBLISHERS_PER_PATH_MAX - 1].clone());
    let replaced = [Action::Forget(old.id), Action::Connect(new)];
    assert_eq!(scenario.watched(true, &set), replaced);
}

#[test]
fn attempts_are_retried_with_linear_backoff() {
    // Over many runs, the longest wait after attempt n comes close to n × 100 ms, and never exceeds
    // it or 12 s.
    for attempt in [1u32, 2, 3, 10, 119, 120, 121, 200] {
        let limit = (RETRY_STEP * attempt).min(RETRY_WAIT_MAX);
        let mut longest = Duration::ZERO;
        let mut shortest = RETRY_WAIT_MAX;
        for seed in 0..200 {
            let mut scenario = Scenario::with_seed(8, seed);
            scenario.watched(true, &[info(A, 1)]);
            for _ in 1..attempt {
                scenario.fails(A, false);
                assert_eq!(scenario.next().1, [Action::Connect(info(A, 1))]);
            }
            scenario.fails(A, false);
            let (wait, actions) = scenario.next();
            assert_eq!(actions, [Action::Connect(info(A, 1))]);
            assert!(wait <= limit, "attempt {attempt} waited {wait:?}");
            (longest, shortest) = (longest.max(wait), shortest.min(wait));
        }
        assert!(longest > limit * 9 / 10, "attempt {attempt}: at most {longest:?} of {limit:?}");
        assert!(shortest < limit / 10, "attempt {attempt}: at least {shortest:?} of {limit:?}");
    }
    let mut scenario = Scenario::new(8);
    scenario.watched(true, &[info(A, 1)]);
    scenario.fails(A, false);
    scenario.next();
    assert_eq!(
        scenario.step(DurableEvent::Attached(A)),
        [Action::Grant { at: SubscriptionKey { publisher: A, subscription: 0 }, credits: 8 }]
    );
    assert_eq!(scenario.core.next_deadline(), None);
}

#[test]
fn a_disconnect_is_reported_with_reason_time_and_attempt() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    let since = scenario.now;
    scenario.loses(A, false);
    let reason = "the other side closed the link".to_owned();
    assert_eq!(scenario.status(A), Some(SubscriptionStatus::Dead { reason, since, attempt: 1 }));
    scenario.next();
    scenario.fails(A, false);
    let reason = "connection refused".to_owned();
    assert_eq!(scenario.status(A), Some(SubscriptionStatus::Dead { reason, since, attempt: 2 }));
    scenario.next();
    scenario.step(DurableEvent::Attached(A));
    assert_eq!(scenario.status(A), Some(SubscriptionStatus::Alive { since: scenario.now }));
}

#[test]
fn each_attempt_uses_the_latest_address() {
    let mut scenario = Scenario::new(8);
    scenario.watched(true, &[info(A, 1)]);
    scenario.fails(A, false);
    scenario.watched(true, &[info(A, 9)]);
    assert_eq!(scenario.next().1, [Action::Connect(info(A, 9))]);
}

#[test]
fn a_restarted_publisher_is_retried_within_a_random_second() {
    let mut waits = Vec::new();
    for seed in 0..200 {
        let mut scenario = Scenario::with_seed(8, seed);
        scenario.watched(true, &[info(A, 1)]);
        for _ in 0..50 {
            scenario.fails(A, false);
            scenario.next();
        }
        scenario.fails(A, false);
        let restarted = PublisherInfo { epoch: Epoch(2), ..info(A, 5) };
        let mut actions = scenario.watched(true, std::slice::from_ref(&restarted));
        let mut waited = Duration::ZERO;
        if actions.is_empty() {
            (waited, actions) = scenario.next();
        }
        assert_eq!(actions, [Action::Connect(restarted)]);
        waits.push(waited);
    }
    waits.sort_unstable();
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(1)));
    assert!(waits[20] < Duration::from_millis(200) && waits[180] > Duration::from_millis(800));
}

#[test]
fn an_older_epoch_from_a_lagging_replica_is_ignored() {
    let mut scenario = Scenario::new(8);
    let restarted = PublisherInfo { epoch: Epoch(2), ..info(A, 5) };
    scenario.watched(true, std::slice::from_ref(&restarted));
    scenario.watched(true, &[info(A, 1)]);
    scenario.fails(A, false);
    assert_eq!(scenario.next().1, [Action::Connect(restarted)]);
}

#[test]
fn with_leases_the_first_retry_is_immediate() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    let actions = scenario.loses(A, true);
    assert_eq!(actions, [Action::Connect(info(A, 1))], "at the last known address");
    let mut longest = Duration::ZERO;
    for _ in 0..300 {
        scenario.fails(A, true);
        longest = longest.max(scenario.next().0);
    }
    assert!(
        longest <= RETRY_WAIT_BUSY_MAX && longest > RETRY_WAIT_BUSY_MAX * 9 / 10,
        "{longest:?}"
    );
}

#[test]
fn a_short_lived_link_is_retried_with_a_wait() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.loses(A, true);
    let mut waited = Duration::ZERO;
    for _ in 0..100 {
        scenario.step(DurableEvent::Attached(A));
        scenario.now += STABLE_AFTER / 10;
        scenario.loses(A, true);
        waited += scenario.next().0;
    }
    assert!(waited > Duration::from_secs(30), "{waited:?} over 100 tries");
}

#[test]
fn a_live_link_stays_whatever_the_resolver_reports() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    assert_eq!(scenario.watched(true, &[]), []);
    assert_eq!(scenario.watched(false, &[]), []);
    assert!(matches!(scenario.status(A), Some(SubscriptionStatus::Alive { .. })));
}

#[test]
fn only_an_unlisted_publisher_without_a_link_is_forgotten() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.loses(A, false);
    assert_eq!(scenario.watched(false, &[]), [], "a warming replica's set is incomplete");
    assert!(scenario.status(A).is_some());
    assert_eq!(scenario.watched(true, &[]), [Action::Forget(A)]);
    assert_eq!(scenario.status(A), None);

    scenario.alive(info(B, 2));
    assert_eq!(scenario.watched(true, &[]), []);
    assert_eq!(scenario.loses(B, false), [Action::Forget(B)]);
}

#[test]
fn a_publisher_with_leases_is_not_forgotten() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.watched(true, &[]);
    assert_eq!(scenario.loses(A, true), [Action::Connect(info(A, 1))]);
    scenario.fails(A, true);
    assert_eq!(scenario.next().1, [Action::Connect(info(A, 1))]);
    assert_eq!(scenario.fails(A, false), [Action::Forget(A)]);
}

#[test]
fn a_drain_retries_only_publishers_with_unanswered_settles() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.alive(info(B, 2));
    scenario.loses(B, false);
    let actions = scenario.step(DurableEvent::Drain);
    assert_eq!(actions, [Action::Unsubscribe(A), Action::Forget(B)]);
    assert_eq!(scenario.watched(true, &[info(B, 2)]), [], "no new publisher");
    assert_eq!(scenario.loses(A, true), [Action::Connect(info(A, 1))]);
    assert_eq!(scenario.step(DurableEvent::Attached(A)), [], "no credits");
    assert_eq!(scenario.loses(A, false), [Action::Forget(A)]);
}

#[test]
fn the_loss_of_the_last_link_is_recorded_also_in_a_drain() {
    let closed = Some("p1: the other side closed the link");
    for (draining, busy) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut scenario = Scenario::new(8);
        scenario.alive(info(A, 1));
        scenario.alive(info(B, 2));
        if draining {
            scenario.step(DurableEvent::Drain);
        }
        scenario.loses(B, false);
        assert_eq!(scenario.core.all_lost(), None, "A has a link");
        scenario.loses(A, busy);
        let lost = scenario.core.all_lost().map(str::to_owned);
        // A draining worker has forgotten B, which owes it nothing.
        let both = "p1: the other side closed the link; p2: the other side closed the link";
        assert_eq!(lost.as_deref(), if draining { closed } else { Some(both) });
        scenario.step(DurableEvent::Attached(A));
        assert_eq!(scenario.core.all_lost(), lost.as_deref(), "a new link does not hide it");
    }
    let mut scenario = Scenario::new(8);
    scenario.watched(true, &[info(A, 1), info(B, 2)]);
    scenario.fails(A, false);
    assert_eq!(scenario.core.all_lost(), None, "the first attempt at B is in progress");
    scenario.step(DurableEvent::Drain);
    scenario.fails(B, false);
    assert_eq!(scenario.core.all_lost(), Some("p2: connection refused"));
}

proptest! {
    /// The same seed and events give the same actions: nothing here reads a clock or draws
    /// elsewhere.
    #[test]
    fn the_same_events_give_the_same_actions(
        seed: u64,
        losses in proptest::collection::vec(any::<bool>(), 1..40),
    ) {
        let run = || {
            let mut scenario = Scenario::with_seed(8, seed);
            scenario.watched(true, &[info(A, 1)]);
            scenario.fails(A, false);
            let mut again = |busy: &bool| {
                let found = scenario.next();
                scenario.fails(A, *busy);
                found
            };
            losses.iter().map(&mut again).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}
