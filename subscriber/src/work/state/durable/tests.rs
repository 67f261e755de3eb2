//! The fault-tolerance chapter's paragraph on the crash of a publisher, sentence by sentence, and
//! the rules of `durable`, all in virtual time.

use longshore_protocol::Epoch;
use proptest::prelude::*;

use longshore_transport::RETRY_STEP;

use super::*;

const A: PublisherId = PublisherId([1; 16]);
const B: PublisherId = PublisherId([2; 16]);

fn info(id: PublisherId, port: u16) -> PublisherInfo {
    let name = format!("p{}", id.0[0]);
    PublisherInfo::new(id, Epoch(1), name, [([127, 0, 0, 1], port)])
}

/// A core, its clock, and what it asked for.
struct Scenario {
    core: DurableSubscription,
    now: Duration,
}

impl Scenario {
    fn new(bound: u32) -> Scenario {
        Scenario::with_seed(bound, 7)
    }

    fn with_seed(bound: u32, seed: u64) -> Scenario {
        Scenario { core: DurableSubscription::new(bound, seed), now: Duration::from_secs(1_000) }
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
        self.step(DurableEvent::TryFailed { publisher, reason: "connection refused".into(), busy })
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
        self.now += STEADY;
    }

    /// Goes to the next deadline, and gives how long that was and what happened then.
    fn next(&mut self) -> (Duration, Vec<Action>) {
        let deadline = self.core.next_deadline().expect("something to wait for");
        let wait = deadline.saturating_sub(self.now);
        self.now = self.now.max(deadline);
        (wait, self.step(DurableEvent::Tick))
    }

    fn standing(&self, id: PublisherId) -> Option<Standing> {
        self.core.states().into_iter().find(|state| state.id == id).map(|state| state.standing)
    }
}

#[test]
fn the_subscription_is_held_at_every_publisher_of_the_set() {
    let mut scenario = Scenario::new(8);
    let set = [info(A, 1), info(B, 2)];
    let [a, b] = set.clone();
    assert_eq!(scenario.watched(true, &set), [Action::Connect(a), Action::Connect(b)]);
    assert_eq!(scenario.standing(A), Some(Standing::Pending));
}

#[test]
fn it_picks_up_a_new_publisher_at_once() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    assert_eq!(scenario.watched(true, &[info(A, 1), info(B, 2)]), [Action::Connect(info(B, 2))]);
}

#[test]
fn it_keeps_trying_with_linear_backoff_until_it_succeeds() {
    // Over many runs, the longest wait after attempt n comes close to n × 100 ms and is never over
    // it, nor over 12 s.
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
        [Action::Grant { publisher: A, credits: 8 }]
    );
    assert_eq!(scenario.core.next_deadline(), None);
}

#[test]
fn a_disconnect_is_told_as_dead_with_its_reason_its_time_and_the_attempt() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    let since = scenario.now;
    scenario.loses(A, false);
    let reason = "the other side closed the link".to_owned();
    assert_eq!(scenario.standing(A), Some(Standing::Dead { reason, since, attempt: 1 }));
    scenario.next();
    scenario.fails(A, false);
    let reason = "connection refused".to_owned();
    assert_eq!(scenario.standing(A), Some(Standing::Dead { reason, since, attempt: 2 }));
    scenario.next();
    scenario.step(DurableEvent::Attached(A));
    assert_eq!(scenario.standing(A), Some(Standing::Alive { since: scenario.now }));
}

#[test]
fn each_try_goes_the_whole_way_again_and_so_finds_where_the_publisher_is_now() {
    let mut scenario = Scenario::new(8);
    scenario.watched(true, &[info(A, 1)]);
    scenario.fails(A, false);
    scenario.watched(true, &[info(A, 9)]);
    assert_eq!(scenario.next().1, [Action::Connect(info(A, 9))]);
}

#[test]
fn a_publisher_that_has_started_again_is_tried_within_a_second_and_not_by_all_at_once() {
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
fn an_older_start_told_by_a_replica_that_lags_changes_nothing() {
    let mut scenario = Scenario::new(8);
    let restarted = PublisherInfo { epoch: Epoch(2), ..info(A, 5) };
    scenario.watched(true, std::slice::from_ref(&restarted));
    scenario.watched(true, &[info(A, 1)]);
    scenario.fails(A, false);
    assert_eq!(scenario.next().1, [Action::Connect(restarted)]);
}

#[test]
fn with_leases_held_the_first_try_is_at_once_and_later_ones_within_two_seconds() {
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
fn a_link_that_dies_as_soon_as_it_stands_is_not_tried_without_a_wait() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.loses(A, true);
    let mut waited = Duration::ZERO;
    for _ in 0..100 {
        scenario.step(DurableEvent::Attached(A));
        scenario.now += STEADY / 10;
        scenario.loses(A, true);
        waited += scenario.next().0;
    }
    assert!(waited > Duration::from_secs(30), "{waited:?} over 100 tries");
}

#[test]
fn a_live_link_is_kept_whatever_the_resolver_says() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    assert_eq!(scenario.watched(true, &[]), []);
    assert_eq!(scenario.watched(false, &[]), []);
    assert!(matches!(scenario.standing(A), Some(Standing::Alive { .. })));
}

#[test]
fn a_publisher_is_given_up_only_when_its_link_is_dead_and_a_complete_set_lacks_it() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.loses(A, false);
    assert_eq!(scenario.watched(false, &[]), [], "a replica that is warming up says nothing");
    assert!(scenario.standing(A).is_some());
    assert_eq!(scenario.watched(true, &[]), [Action::Forget(A)]);
    assert_eq!(scenario.standing(A), None);

    scenario.alive(info(B, 2));
    assert_eq!(scenario.watched(true, &[]), []);
    assert_eq!(scenario.loses(B, false), [Action::Forget(B)]);
}

#[test]
fn a_publisher_whose_leases_are_held_is_not_given_up() {
    let mut scenario = Scenario::new(8);
    scenario.alive(info(A, 1));
    scenario.watched(true, &[]);
    assert_eq!(scenario.loses(A, true), [Action::Connect(info(A, 1))]);
    scenario.fails(A, true);
    assert_eq!(scenario.next().1, [Action::Connect(info(A, 1))]);
    assert_eq!(scenario.fails(A, false), [Action::Forget(A)]);
}

#[test]
fn a_drain_ends_subscriptions_and_goes_on_only_where_ends_of_jobs_are_owed() {
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

proptest! {
    /// The same seed and the same scenario give the same actions: nothing here reads a clock or
    /// draws elsewhere.
    #[test]
    fn the_same_scenario_has_the_same_end(seed: u64, losses in proptest::collection::vec(any::<bool>(), 1..40)) {
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
