//! Credits move to the publishers with jobs, and never exceed the bound.

mod model_publisher;
mod subscriptions;

use std::time::Duration;

use longshore_protocol::LinkTiming;
use proptest::prelude::*;

use super::*;
use model_publisher::ModelPublisher;

const fn publisher(n: u8) -> SubscriptionKey {
    SubscriptionKey { publisher: PublisherId([n; 16]), subscription: 0 }
}

const A: SubscriptionKey = publisher(1);
const B: SubscriptionKey = publisher(2);
const C: SubscriptionKey = publisher(3);

fn one_subscription(bound: u32) -> Credits {
    Credits::new(bound, vec![SubscriptionBound { most: bound, weight: 1 }])
}

/// An empty `Credits` and a buffer for its messages.
fn credits(bound: u32) -> (Credits, Vec<CreditMessage>) {
    (one_subscription(bound), Vec::new())
}

fn take(messages: &mut Vec<CreditMessage>) -> Vec<CreditMessage> {
    std::mem::take(messages)
}

#[test]
fn a_lone_publisher_gets_the_whole_bound() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 0, &mut messages);
    assert_eq!(messages, [CreditMessage::Grant(A, 10)]);
}

#[test]
fn the_first_split_is_even_over_expected_publishers() {
    let (mut credits, mut messages) = credits(10);
    credits.expect(3, &mut messages);
    credits.opened(A.publisher, 2, &mut messages);
    credits.opened(B.publisher, 1, &mut messages);
    credits.opened(C.publisher, 0, &mut messages);
    assert_eq!(
        messages,
        [CreditMessage::Grant(A, 4), CreditMessage::Grant(B, 3), CreditMessage::Grant(C, 3)]
    );
}

#[test]
fn the_share_of_an_absent_publisher_goes_to_the_others() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 5)]);
    credits.expect(0, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 5)]);
}

#[test]
fn a_new_publisher_gets_its_share_after_it_was_returned() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 0, &mut messages);
    take(&mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(A, 5)]);
    credits.returned(A, 5, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(B, 5)]);
}

#[test]
fn idle_credits_move_to_a_waiting_publisher_once_returned() {
    let (mut credits, mut messages) = credits(4);
    credits.opened(A.publisher, 1, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    let given = credits.of_publisher(&A.publisher).0;
    credits.returned(A, given.saturating_sub(2), &mut messages);
    take(&mut messages);
    credits.delivered(A, 2);
    credits.waiting(A, 100, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(B, 2)]);
    credits.waiting(A, 100, &mut messages);
    assert_eq!(take(&mut messages), [], "one recall");
    credits.returned(B, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 1)]);
}

#[test]
fn a_backlog_collects_nearly_all_credits_in_one_round() {
    let (mut credits, mut messages) = credits(64);
    credits.expect(3, &mut messages);
    for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
        credits.opened(id.publisher, expected, &mut messages);
    }
    assert_eq!(
        take(&mut messages),
        [CreditMessage::Grant(A, 22), CreditMessage::Grant(B, 21), CreditMessage::Grant(C, 21)]
    );
    credits.delivered(A, 22);
    credits.waiting(A, 10_000, &mut messages);
    let recalls = take(&mut messages);
    assert_eq!(
        recalls,
        [CreditMessage::Recall(C, 20), CreditMessage::Recall(B, 20)],
        "both at once, all but one"
    );
    for one in recalls {
        let CreditMessage::Recall(id, back) = one else { panic!() };
        credits.returned(id, back, &mut messages);
    }
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 20), CreditMessage::Grant(A, 20)]);
    credits.delivered(A, 40);
    assert_eq!(credits.of_publisher(&A.publisher).1, 62);
    // A fourth publisher gets its share as jobs end, before publishers that have waited for longer.
    credits.waiting(A, 9_938, &mut messages);
    let d = publisher(4);
    credits.opened(d.publisher, 0, &mut messages);
    assert_eq!(
        take(&mut messages),
        [CreditMessage::Recall(C, 1), CreditMessage::Recall(B, 1)],
        "it has none: the idle ones spare their last"
    );
    credits.freed(A, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(d, 1)], "the first that is free");
}

#[test]
fn credits_of_a_dead_link_move_and_its_jobs_stay() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 1, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    take(&mut messages);
    credits.delivered(A, 2);
    credits.lost(A.publisher, &mut messages);
    let granted: u32 =
        messages.iter().map(|m| if let CreditMessage::Grant(B, n) = m { *n } else { 0 }).sum();
    assert_eq!(credits.of_publisher(&A.publisher).1, 2);
    assert_eq!(credits.of_publisher(&B.publisher).0, 8);
    assert!(granted > 0);
}

#[test]
fn a_freed_credit_returns_to_its_publisher_unless_another_waits() {
    let (mut credits, mut messages) = credits(2);
    credits.opened(A.publisher, 1, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    take(&mut messages);
    credits.delivered(A, 1);
    credits.freed(A, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 1)]);
    credits.delivered(A, 1);
    credits.delivered(B, 1);
    credits.waiting(B, 3, &mut messages);
    assert_eq!(take(&mut messages), [], "A has no idle credit to give");
    credits.freed(A, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(B, 1)]);
}

#[test]
fn an_idle_new_publisher_yields_its_share_to_others() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 0, &mut messages);
    credits.delivered(A, 10);
    credits.opened(B.publisher, 0, &mut messages);
    take(&mut messages);
    credits.freed(A, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(B, 1)], "the first share of a new one");
    credits.waiting(A, 100, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(B, 1)], "which has no work");
    credits.returned(B, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 1)]);
    credits.delivered(A, 1);
    credits.waiting(A, 100, &mut messages);
    credits.freed(A, 10, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(B, 1), CreditMessage::Grant(A, 9)]);
}

#[test]
fn with_more_publishers_than_credits_waiting_ones_take_turns() {
    let (mut credits, mut messages) = credits(1);
    credits.opened(A.publisher, 0, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    credits.waiting(B, 9, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 1), CreditMessage::Recall(A, 1)]);
    credits.delivered(A, 1);
    credits.returned(A, 0, &mut messages);
    credits.waiting(A, 9, &mut messages);
    let mut turns = Vec::new();
    let mut running = A;
    for _ in 0..6 {
        credits.freed(running, 1, &mut messages);
        let Some(CreditMessage::Grant(next, 1)) = take(&mut messages).first().copied() else {
            panic!()
        };
        // It uses the credit, answers the recall that followed it, and waits again.
        credits.delivered(next, 1);
        credits.returned(next, 0, &mut messages);
        credits.waiting(next, 9, &mut messages);
        turns.push(next);
        running = next;
    }
    assert_eq!(turns, [B, A, B, A, B, A]);
}

#[test]
fn an_unneeded_credit_goes_to_another_waiting_publisher() {
    let (mut credits, mut messages) = credits(1);
    credits.opened(A.publisher, 0, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    credits.delivered(A, 1);
    credits.waiting(A, 1, &mut messages);
    credits.waiting(B, 1, &mut messages);
    take(&mut messages);
    credits.freed(A, 1, &mut messages);
    let turn = take(&mut messages);
    assert_eq!(
        turn,
        [CreditMessage::Grant(B, 1), CreditMessage::Recall(B, 1)],
        "use it now, or return it"
    );
    // Another worker took B's job in the meantime.
    credits.returned(B, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 1)]);
}

#[test]
fn credits_that_were_used_up_are_recalled_from_another() {
    let (mut credits, mut messages) = credits(6);
    credits.expect(3, &mut messages);
    for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
        credits.opened(id.publisher, expected, &mut messages);
    }
    credits.delivered(C, 2);
    take(&mut messages);
    credits.waiting(C, 2, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(B, 2)]);
    credits.delivered(B, 2);
    credits.returned(B, 0, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(A, 2)], "whose credits are idle");
    credits.returned(A, 2, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(C, 2)]);
}

#[test]
fn a_late_credit_is_recalled_for_a_waiting_publisher() {
    let (mut credits, mut messages) = credits(2);
    credits.opened(A.publisher, 1, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    credits.delivered(A, 1);
    credits.delivered(B, 1);
    credits.waiting(A, 9, &mut messages);
    take(&mut messages);
    credits.freed(A, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 1)], "half of what it has work for");
    // Another worker took A's jobs in the meantime: A is silent, and keeps the credit.
    credits.waiting(B, 9, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(A, 1)]);
    credits.returned(A, 1, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(B, 1)]);
}

#[test]
fn a_recalled_publisher_with_jobs_in_flight_still_waits() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 1, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 5), CreditMessage::Grant(B, 5)]);
    // Both have used up their credits; the jobs arrive after the messages.
    credits.waiting(A, 90, &mut messages);
    credits.waiting(B, 90, &mut messages);
    let recalls = take(&mut messages);
    assert!(recalls.iter().any(|one| matches!(one, CreditMessage::Recall(A, _))), "{recalls:?}");
    for id in [A, B] {
        credits.delivered(id, 5);
    }
    for one in recalls {
        if let CreditMessage::Recall(id, _) = one {
            credits.returned(id, 0, &mut messages);
        }
    }
    credits.freed(A, 5, &mut messages);
    credits.freed(B, 5, &mut messages);
    let granted = |id| {
        let to = |one: &CreditMessage| matches!(*one, CreditMessage::Grant(to, _) if to == id);
        messages.iter().any(to)
    };
    assert!(granted(A) && granted(B), "{messages:?}");
}

#[test]
fn publishers_with_jobs_in_flight_are_recalled_once() {
    let (mut credits, mut messages) = credits(12);
    credits.expect(2, &mut messages);
    credits.opened(A.publisher, 1, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    take(&mut messages);
    // Both have used up all their credits, and none of their jobs has arrived.
    for id in [A, B] {
        credits.waiting(id, 50, &mut messages);
    }
    let mut recalls = 0;
    while let Some(CreditMessage::Recall(id, _)) =
        (!messages.is_empty()).then(|| messages.remove(0))
    {
        recalls += 1;
        assert!(recalls <= 2, "recalled for ever");
        credits.returned(id, 0, &mut messages);
    }
    assert_eq!(recalls, 2);
    credits.delivered(A, 6);
    credits.freed(A, 6, &mut messages);
    assert!(matches!(messages.first(), Some(CreditMessage::Grant(..))), "{messages:?}");
}

#[test]
fn nothing_is_granted_after_a_stop() {
    let (mut credits, mut messages) = credits(4);
    credits.opened(A.publisher, 0, &mut messages);
    credits.delivered(A, 4);
    credits.stop();
    take(&mut messages);
    credits.freed(A, 4, &mut messages);
    credits.waiting(A, 4, &mut messages);
    assert_eq!(messages, []);
}

#[test]
fn a_quiet_worker_recalls_everything_and_grants_nothing() {
    let (mut credits, mut messages) = credits(9);
    for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
        credits.opened(id.publisher, expected, &mut messages);
    }
    credits.delivered(A, 3);
    credits.delivered(B, 1);
    take(&mut messages);
    credits.set_quiet(true, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(B, 2), CreditMessage::Recall(C, 3)]);
    assert!(credits.all_returned(&A.publisher) && !credits.all_returned(&B.publisher));
    credits.waiting(A, 50, &mut messages);
    credits.freed(A, 3, &mut messages);
    credits.returned(B, 2, &mut messages);
    credits.lost(C.publisher, &mut messages);
    credits.opened(C.publisher, 0, &mut messages);
    assert_eq!(take(&mut messages), []);
    assert!([A, B, C].iter().all(|id| credits.all_returned(&id.publisher)));
    credits.set_quiet(false, &mut messages);
    let granted: u32 = take(&mut messages)
        .into_iter()
        .map(|one| match one {
            CreditMessage::Grant(B, _) => panic!("B has no work"),
            CreditMessage::Grant(_, n) => n,
            CreditMessage::Recall(id, _) => {
                assert_eq!(id, C, "A has reported a backlog");
                0
            }
        })
        .sum();
    assert_eq!(granted, 8, "all but the job that B's worker still runs");
}

#[test]
fn grants_after_a_recall_are_recalled_after_its_answer() {
    let (mut credits, mut messages) = credits(10);
    credits.opened(A.publisher, 0, &mut messages);
    credits.opened(B.publisher, 0, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 10), CreditMessage::Recall(A, 5)]);
    credits.set_quiet(true, &mut messages);
    assert_eq!(take(&mut messages), [], "A has a pending recall");
    credits.returned(A, 5, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(A, 5)]);
    assert!(!credits.all_returned(&A.publisher));
    credits.returned(A, 5, &mut messages);
    assert!(credits.all_returned(&A.publisher));
    credits.set_quiet(false, &mut messages);
    assert_eq!(messages.len(), 2, "{messages:?}");
}

#[test]
fn a_withdrawn_grant_can_be_granted_again() {
    let (mut credits, mut messages) = credits(4);
    credits.opened(A.publisher, 0, &mut messages);
    take(&mut messages);
    credits.grant_withdrawn(A, 4);
    credits.set_quiet(true, &mut messages);
    assert_eq!(take(&mut messages), []);
    assert!(credits.all_returned(&A.publisher));
    credits.set_quiet(false, &mut messages);
    assert_eq!(messages, [CreditMessage::Grant(A, 4)]);
}

/// Runs a burst of jobs at the first of several publishers, and then stops that publisher. Returns
/// how long the jobs of the last publisher wait for a credit: the recall is not answered, and
/// the link to the first is dead after the hang timeout.
fn wait_beside_stopped_publisher(bound: u32, publishers: u8) -> Duration {
    let (mut credits, mut messages) = credits(bound);
    let mut all = vec![ModelPublisher::with_jobs(0); usize::from(publishers)];
    for n in 0..publishers {
        credits.opened(publisher(n).publisher, usize::from(publishers - n) - 1, &mut messages);
    }
    all[0].jobs = 10 * bound;
    let deliver = |all: &mut Vec<ModelPublisher>, messages: &mut Vec<CreditMessage>| {
        for one in messages.drain(..) {
            let (CreditMessage::Grant(id, _) | CreditMessage::Recall(id, _)) = one;
            all[usize::from(id.publisher.0[0])].to.push_back(one);
        }
    };
    // Lets all publishers take turns until nothing is left to do.
    let rest = |all: &mut Vec<ModelPublisher>, credits: &mut Credits, from: u8| {
        let (mut messages, mut progressed) = (Vec::new(), true);
        while std::mem::take(&mut progressed) {
            for n in from..publishers {
                progressed |= all[usize::from(n)].step(publisher(n), 0, credits, &mut messages);
                deliver(all, &mut messages);
            }
        }
    };
    deliver(&mut all, &mut messages);
    rest(&mut all, &mut credits, 0);
    assert_eq!((all[0].jobs, all[0].running), (0, 0));
    let last = publishers - 1;
    let one = &mut all[usize::from(last)];
    (one.jobs, one.wait_unreported) = (3 * bound, one.credits == 0);
    one.serve(publisher(last));
    rest(&mut all, &mut credits, 1);
    if all[usize::from(last)].jobs == 0 {
        return Duration::ZERO;
    }
    credits.lost(publisher(0).publisher, &mut messages);
    deliver(&mut all, &mut messages);
    rest(&mut all, &mut credits, 1);
    assert_eq!(all[usize::from(last)].jobs, 0);
    LinkTiming::WORK.hang
}

#[test]
fn a_stopped_publisher_delays_no_other() {
    for publishers in [2, 3, 5, 8, 16] {
        let waits = |bound: &u32| !wait_beside_stopped_publisher(*bound, publishers).is_zero();
        let longest = (1..=40).chain([64, 100]).filter(waits).max();
        assert_eq!(longest, Some(1), "over {publishers}: of one credit there is no share");
    }
}

#[derive(Clone, Copy, Debug)]
enum CreditEvent {
    Expect(usize),
    Open(u8, usize),
    Lose(u8),
    Deliver(usize, u32),
    Free(usize, u32),
    Return(usize, u32),
    Wait(usize, u64),
    Quiet(bool),
}

fn credit_event() -> impl Strategy<Value = CreditEvent> {
    let p = 0u8..4;
    let account = 0usize..12;
    prop_oneof![
        (0usize..4).prop_map(CreditEvent::Expect),
        (p.clone(), 0usize..4).prop_map(|(p, n)| CreditEvent::Open(p, n)),
        p.prop_map(CreditEvent::Lose),
        (account.clone(), 1u32..20).prop_map(|(at, n)| CreditEvent::Deliver(at, n)),
        (account.clone(), 1u32..20).prop_map(|(at, n)| CreditEvent::Free(at, n)),
        (account.clone(), 0u32..20).prop_map(|(at, n)| CreditEvent::Return(at, n)),
        (account, 0u64..50).prop_map(|(at, n)| CreditEvent::Wait(at, n)),
        any::<bool>().prop_map(CreditEvent::Quiet),
    ]
}

/// One publisher's account, computed independently of `Credits`.
#[derive(Clone, Copy, Default)]
struct ModelAccount {
    alive: bool,
    credits: u32,
    recalled: Option<u32>,
    jobs_held: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A worker that is quiet now and then, with any delays: once its recalls are answered, no
    /// publisher has a credit, and after it resumes every publisher gets rid of its jobs.
    #[test]
    fn a_quiet_worker_gets_all_credits_and_resumes(
        bound in 1u32..120,
        jobs in proptest::collection::vec(0u32..400, 2..4),
        turns in proptest::collection::vec(
            (0usize..4, 0u8..=255, proptest::bool::weighted(0.05)),
            1..300,
        ),
    ) {
        let mut credits = one_subscription(bound);
        let mut messages = Vec::new();
        let mut all: Vec<ModelPublisher> = jobs
            .iter()
            .map(|&jobs| ModelPublisher::with_jobs(jobs))
            .collect();
        for (n, one) in all.iter_mut().enumerate() {
            one.serve(publisher(n as u8));
            credits.opened(publisher(n as u8).publisher, jobs.len() - n - 1, &mut messages);
        }
        let (mut quiet, mut steps, mut again) = (false, 0, 1);
        for (first, which, turn) in turns.iter().cycle() {
            for one in messages.drain(..) {
                let (CreditMessage::Grant(id, _) | CreditMessage::Recall(id, _)) = one;
                let is_recall = matches!(one, CreditMessage::Recall(..));
                prop_assert!(!quiet || is_recall, "{one:?} while quiet");
                all[id.publisher.0[0] as usize].to.push_back(one);
            }
            if *turn && again < 20 {
                quiet = !quiet;
                again += 1;
                for (n, one) in all.iter_mut().enumerate().filter(|_| quiet) {
                    // Pending grants are withdrawn.
                    while which % 2 == 0
                        && let Some(&CreditMessage::Grant(_, unsaid)) = one.to.back()
                    {
                        one.to.pop_back();
                        credits.grant_withdrawn(publisher(n as u8), unsaid);
                    }
                }
                credits.set_quiet(quiet, &mut messages);
            }
            let count = all.len();
            let progressed = (0..count).any(|nth| {
                let n = (first + nth) % count;
                let (one, id) = (&mut all[n], publisher(n as u8));
                let progressed = one.step(id, *which, &mut credits, &mut messages);
                if quiet && one.running > 0 {
                    // Arriving jobs are released, and running ones may be, too.
                    let back = std::mem::take(&mut one.running);
                    credits.freed(id, back, &mut messages);
                    one.jobs += back;
                    one.serve(id);
                }
                progressed
            });
            if !progressed && messages.is_empty() {
                if !quiet {
                    break;
                }
                prop_assert!(all.iter().all(|one| one.credits == 0), "a publisher has credits");
                let all_returned = |n| credits.all_returned(&publisher(n as u8).publisher);
                prop_assert!((0..count).all(all_returned));
                quiet = false;
                credits.set_quiet(false, &mut messages);
            }
            steps += 1;
            prop_assert!(steps < 100_000, "credits circulate for ever");
        }
        prop_assert!(all.iter().all(|one| one.jobs == 0), "jobs are left");
    }

    /// However publishers come, go, push, wait and return: unused grants and jobs held never exceed
    /// the bound, those of a subscription never its own, and no credit is lost for good.
    #[test]
    fn credits_and_jobs_never_exceed_the_bounds(
        bound in 1u32..40,
        caps in proptest::collection::vec((1u32..9, 1u32..4), 0..3),
        events in proptest::collection::vec(credit_event(), 1..200),
    ) {
        let bounds = subscriptions::capped(bound, &caps);
        let count = bounds.len();
        let mut credits = Credits::new(bound, bounds.clone());
        let mut accounts = vec![ModelAccount::default(); 4 * count];
        let mut messages = Vec::new();
        let mut quiet = false;
        let key = |at: usize| SubscriptionKey {
            subscription: (at % count) as u32,
            ..publisher((at / count) as u8)
        };
        let index =
            |id: SubscriptionKey| id.publisher.0[0] as usize * count + id.subscription as usize;
        let of = |p: u8| usize::from(p) * count..(usize::from(p) + 1) * count;
        let out = |account: &ModelAccount| account.credits + account.jobs_held;
        for event in events {
            match event {
                CreditEvent::Expect(n) => credits.expect(n, &mut messages),
                CreditEvent::Open(p, n) if !accounts[of(p).start].alive => {
                    accounts[of(p)].iter_mut().for_each(|account| account.alive = true);
                    credits.opened(key(of(p).start).publisher, n, &mut messages);
                }
                CreditEvent::Lose(p) if accounts[of(p).start].alive => {
                    for account in &mut accounts[of(p)] {
                        let jobs_held = account.jobs_held;
                        *account = ModelAccount { jobs_held, ..ModelAccount::default() };
                    }
                    credits.lost(key(of(p).start).publisher, &mut messages);
                }
                CreditEvent::Deliver(at, n) if accounts[at % accounts.len()].credits > 0 => {
                    let at = at % accounts.len();
                    let account = &mut accounts[at];
                    let n = n.min(account.credits);
                    account.credits -= n;
                    account.jobs_held += n;
                    credits.delivered(key(at), n);
                }
                CreditEvent::Free(at, n) if accounts[at % accounts.len()].jobs_held > 0 => {
                    let at = at % accounts.len();
                    let n = n.min(accounts[at].jobs_held);
                    accounts[at].jobs_held -= n;
                    credits.freed(key(at), n, &mut messages);
                }
                CreditEvent::Return(at, n) => {
                    let at = at % accounts.len();
                    let account = &mut accounts[at];
                    if let Some(recalled) = account.recalled.take() {
                        let n = n.min(recalled).min(account.credits);
                        account.credits -= n;
                        credits.returned(key(at), n, &mut messages);
                    }
                }
                CreditEvent::Wait(at, n) if accounts[at % accounts.len()].alive => {
                    credits.waiting(key(at % accounts.len()), n, &mut messages);
                }
                CreditEvent::Quiet(is) => {
                    quiet = is;
                    credits.set_quiet(is, &mut messages);
                }
                _ => {}
            }
            for one in messages.drain(..) {
                match one {
                    CreditMessage::Grant(id, n) => {
                        let account = &mut accounts[index(id)];
                        prop_assert!(account.alive && n > 0 && !quiet);
                        account.credits += n;
                        let alive = accounts.iter().filter(|account| account.alive).count() / count;
                        let at_one = accounts[of(id.publisher.0[0])].iter();
                        let (at_one, own) =
                            (at_one.map(|a| a.credits).sum::<u32>(), accounts[index(id)].credits);
                        let most = bounds[id.subscription as usize].most;
                        prop_assert!(
                            alive == 1
                                || (bound == 1 || at_one < bound) && (most == 1 || own < most),
                            "all credits at one of {alive} publishers"
                        );
                    }
                    CreditMessage::Recall(id, n) => {
                        let account = &mut accounts[index(id)];
                        prop_assert!(account.alive && n > 0 && account.recalled.is_none());
                        account.recalled = Some(n);
                    }
                }
            }
            let all: u32 = accounts.iter().map(out).sum();
            prop_assert!(all <= bound, "{all} are out, {bound} may be");
            for (number, own) in bounds.iter().enumerate() {
                let all: u32 = accounts.iter().skip(number).step_by(count).map(out).sum();
                prop_assert!(all <= own.most, "{all} of {number} are out, {own:?} may be");
            }
        }
        credits.expect(0, &mut messages);
        credits.set_quiet(false, &mut messages);
        for one in messages {
            if let CreditMessage::Grant(id, n) = one {
                accounts[index(id)].credits += n;
            }
        }
        if accounts.iter().any(|account| account.alive) {
            let all: u32 = accounts.iter().map(out).sum();
            let credits = |p: u8| accounts[of(p)].iter().map(|a| a.credits).sum::<u32>();
            let at_one = (0..4).any(|p| credits(p) == bound - 1);
            let is_pending = accounts.iter().any(|account| account.recalled.is_some());
            prop_assert!(
                all == bound || (all == bound - 1 && at_one) || is_pending && count > 1,
                "{} are out of {}: with a publisher alive, the rest stays in the pool only so that \
                 no publisher has it all", all, bound
            );
        }
    }
}
