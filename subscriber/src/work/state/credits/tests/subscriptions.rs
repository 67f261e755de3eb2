//! Several subscriptions: each gets rid of its jobs, whatever the others do.

use super::*;
use crate::work::state::ready_jobs::SourceLimits;
use crate::work::state::subscriptions::bounds;

/// The shared subscription, and one for each cap with a weight.
pub(super) fn capped(bound: u32, caps: &[(u32, u32)]) -> Vec<SubscriptionBound> {
    let own = |&(cap, weight)| SourceLimits { cap: Some(cap as usize), weight };
    let limits: Vec<SourceLimits> =
        [SourceLimits::default()].into_iter().chain(caps.iter().map(own)).collect();
    bounds(bound, &limits)
}

/// What hinders some subscriptions, and must hinder no other.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Hindrance {
    None,
    /// The first publisher is silent.
    Silent,
    /// The jobs of capped subscriptions never end.
    Stuck,
}

proptest! {
    // Without optimisation a case takes 10 ms.
    #![proptest_config(ProptestConfig::with_cases(match std::env::var_os("LONGSHORE_LONG") {
        Some(_) => 2_000,
        None => 300,
    }))]

    /// However messages and jobs are delayed, every subscription gets rid of its jobs at every
    /// publisher. A silent publisher delays only its own, and stuck jobs only their subscription.
    #[test]
    fn no_subscription_keeps_jobs_without_credit(
        bound in 1u32..120,
        mut caps in proptest::collection::vec((1u32..8, 1u32..4), 0..4),
        publishers in 2usize..4,
        jobs in proptest::collection::vec(0u32..200, 15),
        hindrance in prop_oneof![
            Just(Hindrance::None),
            Just(Hindrance::Silent),
            Just(Hindrance::Stuck),
        ],
        turns in proptest::collection::vec((0usize..16, 0u8..=255), 1..300),
    ) {
        let (bound, silent) = match hindrance {
            Hindrance::None => (bound, 0),
            Hindrance::Silent => {
                // Of one credit there is no share.
                caps.iter_mut().for_each(|(cap, _)| *cap = (*cap).max(2));
                (bound.max(2), 1)
            }
            Hindrance::Stuck => (bound + caps.iter().map(|(cap, _)| cap).sum::<u32>(), 0),
        };
        let bounds = capped(bound, &caps);
        let count = bounds.len();
        let key = |at: usize| SubscriptionKey {
            subscription: (at % count) as u32,
            ..publisher((at / count) as u8)
        };
        let is_stuck = |at: usize| hindrance == Hindrance::Stuck && key(at).subscription > 0;
        let mut credits = Credits::new(bound, bounds.clone());
        let mut messages = Vec::new();
        let mut all: Vec<ModelPublisher> = (0..publishers * count)
            .map(|at| ModelPublisher {
                is_stuck: is_stuck(at),
                ..ModelPublisher::with_jobs(jobs[at % jobs.len()])
            })
            .collect();
        all.iter_mut().enumerate().for_each(|(at, one)| one.serve(key(at)));
        for n in 0..publishers {
            credits.opened(key(n * count).publisher, publishers - n - 1, &mut messages);
        }
        let active = all.len() - silent * count;
        let mut steps = 0;
        for (first, which) in turns.iter().cycle() {
            for one in messages.drain(..) {
                let (CreditMessage::Grant(id, _) | CreditMessage::Recall(id, _)) = one;
                let at = id.publisher.0[0] as usize * count + id.subscription as usize;
                all[at].to.push_back(one);
            }
            let progressed = (0..active).any(|nth| {
                let at = silent * count + (first + nth) % active;
                all[at].step(key(at), *which, &mut credits, &mut messages)
            });
            if !progressed && messages.is_empty() {
                break;
            }
            steps += 1;
            prop_assert!(steps < 100_000, "credits circulate for ever");
        }
        let left: Vec<u32> = all.iter().map(|one| one.jobs).collect();
        for at in silent * count..all.len() {
            prop_assert!(left[at] == 0 || is_stuck(at), "{:?} has jobs: {left:?}", key(at));
        }
    }
}

/// Grants on demand follow the weights, as far as the caps allow.
#[test]
fn subscriptions_share_the_bound_by_weight() {
    for (caps, expected) in [
        (&[(30, 1), (30, 3)][..], [8, 8, 24]),
        (&[(20, 1), (20, 3)], [10, 10, 20]),
        (&[(2, 1), (20, 1)], [19, 2, 19]),
        (&[(2, 9), (1, 9)], [37, 2, 1]),
    ] {
        let mut credits = Credits::new(40, capped(40, caps));
        let mut messages = Vec::new();
        credits.opened(A.publisher, 0, &mut messages);
        let mut granted = [0; 3];
        for one in messages.drain(..) {
            let CreditMessage::Grant(id, n) = one else { panic!("{one:?}") };
            granted[id.subscription as usize] += n;
        }
        assert_eq!(granted, expected, "of {caps:?}");
    }
}

#[test]
fn idle_credits_of_another_subscription_are_recalled_for_one_with_jobs() {
    let mut credits = Credits::new(8, capped(8, &[(4, 1)]));
    let mut messages = Vec::new();
    let own = SubscriptionKey { subscription: 1, ..A };
    credits.opened(A.publisher, 0, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 4), CreditMessage::Grant(own, 4)]);
    credits.delivered(A, 4);
    credits.waiting(A, 100, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Recall(own, 4)]);
    credits.returned(own, 4, &mut messages);
    assert_eq!(take(&mut messages), [CreditMessage::Grant(A, 4)]);
    credits.delivered(A, 4);
    credits.waiting(A, 96, &mut messages);
    credits.waiting(own, 9, &mut messages);
    credits.freed(A, 2, &mut messages);
    let messages = take(&mut messages);
    assert_eq!(
        messages,
        [CreditMessage::Grant(own, 2), CreditMessage::Recall(own, 2)],
        "it has fewer: use them now, or return them"
    );
}
