//! Credits move to where the work is, and never beyond the bound.

mod truthful;

use std::time::Duration;

use longshore_protocol::LinkTiming;
use proptest::prelude::*;

use super::*;
use truthful::Truthful;

fn publisher(n: u8) -> PublisherId {
    PublisherId([n; 16])
}

const A: PublisherId = PublisherId([1; 16]);
const B: PublisherId = PublisherId([2; 16]);
const C: PublisherId = PublisherId([3; 16]);

/// Credits, and the moves that they make.
fn credits(bound: u32) -> (Credits, Vec<Move>) {
    (Credits::new(bound), Vec::new())
}

fn taken(moves: &mut Vec<Move>) -> Vec<Move> {
    std::mem::take(moves)
}

#[test]
fn a_lone_publisher_gets_the_whole_bound() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 0, &mut moves);
    assert_eq!(moves, [Move::Grant(A, 10)]);
}

#[test]
fn the_first_split_is_even_over_those_that_are_expected() {
    let (mut credits, mut moves) = credits(10);
    credits.expect(3, &mut moves);
    credits.opened(A, 2, &mut moves);
    credits.opened(B, 1, &mut moves);
    credits.opened(C, 0, &mut moves);
    assert_eq!(moves, [Move::Grant(A, 4), Move::Grant(B, 3), Move::Grant(C, 3)]);
}

#[test]
fn what_was_kept_for_one_that_does_not_come_goes_to_the_others() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 5)]);
    credits.expect(0, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 5)]);
}

#[test]
fn a_new_publisher_gets_its_share_only_after_it_was_returned() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 0, &mut moves);
    taken(&mut moves);
    credits.opened(B, 0, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(A, 5)]);
    credits.returned(A, 5, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(B, 5)]);
}

#[test]
fn idle_credits_go_to_a_publisher_with_work_and_no_credit_after_they_are_returned() {
    let (mut credits, mut moves) = credits(4);
    credits.opened(A, 1, &mut moves);
    credits.opened(B, 0, &mut moves);
    let given = credits.account(&A).credits;
    credits.returned(A, given.saturating_sub(2), &mut moves);
    taken(&mut moves);
    credits.delivered(A, 2);
    credits.waiting(A, 100, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(B, 2)]);
    credits.waiting(A, 100, &mut moves);
    assert_eq!(taken(&mut moves), [], "asked once");
    credits.returned(B, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
}

#[test]
fn of_three_publishers_the_one_with_all_the_backlog_has_all_but_two_credits_after_one_round() {
    let (mut credits, mut moves) = credits(64);
    credits.expect(3, &mut moves);
    for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
        credits.opened(id, expected, &mut moves);
    }
    assert_eq!(taken(&mut moves), [Move::Grant(A, 22), Move::Grant(B, 21), Move::Grant(C, 21)]);
    credits.delivered(A, 22);
    credits.waiting(A, 10_000, &mut moves);
    let asked = taken(&mut moves);
    assert_eq!(asked, [Move::Recall(C, 20), Move::Recall(B, 20)], "both at once, all but one");
    for one in asked {
        let Move::Recall(id, back) = one else { panic!() };
        credits.returned(id, back, &mut moves);
    }
    assert_eq!(taken(&mut moves), [Move::Grant(A, 20), Move::Grant(A, 20)]);
    credits.delivered(A, 40);
    assert_eq!(credits.account(&A).held, 62);
    // A fourth comes, and has its share as jobs end, before those that have waited for longer.
    credits.waiting(A, 9_938, &mut moves);
    let d = publisher(4);
    credits.opened(d, 0, &mut moves);
    assert_eq!(taken(&mut moves), [], "nothing is idle");
    credits.freed(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(d, 1)], "the first that is free");
}

#[test]
fn the_credits_of_a_dead_link_go_to_the_others_and_its_jobs_do_not() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 1, &mut moves);
    credits.opened(B, 0, &mut moves);
    taken(&mut moves);
    credits.delivered(A, 2);
    credits.lost(A, &mut moves);
    let granted: u32 = moves.iter().map(|m| if let Move::Grant(B, n) = m { *n } else { 0 }).sum();
    assert_eq!(credits.account(&A).held, 2);
    assert_eq!(credits.account(&B).credits, 8);
    assert!(granted > 0);
}

#[test]
fn a_freed_job_gives_its_credit_back_to_where_it_came_from_unless_another_waits() {
    let (mut credits, mut moves) = credits(2);
    credits.opened(A, 1, &mut moves);
    credits.opened(B, 0, &mut moves);
    taken(&mut moves);
    credits.delivered(A, 1);
    credits.freed(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
    credits.delivered(A, 1);
    credits.delivered(B, 1);
    credits.waiting(B, 3, &mut moves);
    assert_eq!(taken(&mut moves), [], "A has no idle credit to give");
    credits.freed(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(B, 1)]);
}

#[test]
fn a_new_publisher_without_work_does_not_keep_its_share_from_one_that_waits() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 0, &mut moves);
    credits.delivered(A, 10);
    credits.opened(B, 0, &mut moves);
    taken(&mut moves);
    credits.freed(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(B, 1)], "the first share of a new one");
    credits.waiting(A, 100, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(B, 1)], "which has no work");
    credits.returned(B, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
    credits.delivered(A, 1);
    credits.waiting(A, 100, &mut moves);
    credits.freed(A, 10, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 10)]);
}

#[test]
fn with_more_publishers_than_credits_each_that_waits_has_its_turn() {
    let (mut credits, mut moves) = credits(1);
    credits.opened(A, 0, &mut moves);
    credits.opened(B, 0, &mut moves);
    credits.waiting(B, 9, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 1), Move::Recall(A, 1)]);
    credits.delivered(A, 1);
    credits.returned(A, 0, &mut moves);
    credits.waiting(A, 9, &mut moves);
    let mut turns = Vec::new();
    let mut running = A;
    for _ in 0..6 {
        credits.freed(running, 1, &mut moves);
        let Some(Move::Grant(next, 1)) = taken(&mut moves).first().copied() else { panic!() };
        // It uses the credit, answers the recall that followed it, and waits again.
        credits.delivered(next, 1);
        credits.returned(next, 0, &mut moves);
        credits.waiting(next, 9, &mut moves);
        turns.push(next);
        running = next;
    }
    assert_eq!(turns, [B, A, B, A, B, A]);
}

#[test]
fn a_credit_that_a_publisher_no_longer_needs_goes_to_the_other_that_waits() {
    let (mut credits, mut moves) = credits(1);
    credits.opened(A, 0, &mut moves);
    credits.opened(B, 0, &mut moves);
    credits.delivered(A, 1);
    credits.waiting(A, 1, &mut moves);
    credits.waiting(B, 1, &mut moves);
    taken(&mut moves);
    credits.freed(A, 1, &mut moves);
    let turn = taken(&mut moves);
    assert_eq!(turn, [Move::Grant(B, 1), Move::Recall(B, 1)], "use it now, or give it back");
    // Another worker took B's job in the meantime.
    credits.returned(B, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
}

#[test]
fn what_one_that_was_asked_has_used_up_is_asked_of_another() {
    let (mut credits, mut moves) = credits(6);
    credits.expect(3, &mut moves);
    for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
        credits.opened(id, expected, &mut moves);
    }
    credits.delivered(C, 2);
    taken(&mut moves);
    credits.waiting(C, 2, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(B, 2)]);
    credits.delivered(B, 2);
    credits.returned(B, 0, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(A, 2)], "whose credits are idle");
    credits.returned(A, 2, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(C, 2)]);
}

#[test]
fn a_credit_that_came_when_the_work_had_gone_is_not_kept_from_another_that_waits() {
    let (mut credits, mut moves) = credits(2);
    credits.opened(A, 1, &mut moves);
    credits.opened(B, 0, &mut moves);
    credits.delivered(A, 1);
    credits.delivered(B, 1);
    credits.waiting(A, 9, &mut moves);
    taken(&mut moves);
    credits.freed(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 1)], "half of what it has work for");
    // Another worker took A's jobs in the meantime: it is silent, and keeps the credit.
    credits.waiting(B, 9, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(A, 1)]);
    credits.returned(A, 1, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(B, 1)]);
}

#[test]
fn one_that_waits_and_is_asked_while_its_jobs_are_on_their_way_still_waits() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 1, &mut moves);
    credits.opened(B, 0, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 5), Move::Grant(B, 5)]);
    // Both have used up their credits. The jobs come after the words.
    credits.waiting(A, 90, &mut moves);
    credits.waiting(B, 90, &mut moves);
    let asked = taken(&mut moves);
    assert!(asked.iter().any(|one| matches!(one, Move::Recall(A, _))), "{asked:?}");
    for id in [A, B] {
        credits.delivered(id, 5);
    }
    for one in asked {
        if let Move::Recall(id, _) = one {
            credits.returned(id, 0, &mut moves);
        }
    }
    credits.freed(A, 5, &mut moves);
    credits.freed(B, 5, &mut moves);
    let granted = |id| {
        let to = |one: &Move| matches!(*one, Move::Grant(to, _) if to == id);
        moves.iter().any(to)
    };
    assert!(granted(A) && granted(B), "{moves:?}");
}

#[test]
fn those_whose_jobs_are_on_their_way_are_asked_once() {
    let (mut credits, mut moves) = credits(12);
    credits.expect(2, &mut moves);
    credits.opened(A, 1, &mut moves);
    credits.opened(B, 0, &mut moves);
    taken(&mut moves);
    // Both have used up all that they have, and no job of them has come.
    for id in [A, B] {
        credits.waiting(id, 50, &mut moves);
    }
    let mut asked = 0;
    while let Some(Move::Recall(id, _)) = (!moves.is_empty()).then(|| moves.remove(0)) {
        asked += 1;
        assert!(asked <= 2, "asked for ever");
        credits.returned(id, 0, &mut moves);
    }
    assert_eq!(asked, 2);
    credits.delivered(A, 6);
    credits.freed(A, 6, &mut moves);
    assert!(matches!(moves.first(), Some(Move::Grant(..))), "{moves:?}");
}

#[test]
fn nothing_is_granted_after_a_stop() {
    let (mut credits, mut moves) = credits(4);
    credits.opened(A, 0, &mut moves);
    credits.delivered(A, 4);
    credits.stop();
    taken(&mut moves);
    credits.freed(A, 4, &mut moves);
    credits.waiting(A, 4, &mut moves);
    assert_eq!(moves, []);
}

#[test]
fn a_quiet_worker_asks_everybody_for_everything_and_grants_nothing() {
    let (mut credits, mut moves) = credits(9);
    for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
        credits.opened(id, expected, &mut moves);
    }
    credits.delivered(A, 3);
    credits.delivered(B, 1);
    taken(&mut moves);
    credits.be_quiet(true, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(B, 2), Move::Recall(C, 3)]);
    assert!(credits.are_back(&A) && !credits.are_back(&B));
    credits.waiting(A, 50, &mut moves);
    credits.freed(A, 3, &mut moves);
    credits.returned(B, 2, &mut moves);
    credits.lost(C, &mut moves);
    credits.opened(C, 0, &mut moves);
    assert_eq!(taken(&mut moves), []);
    assert!([A, B, C].iter().all(|id| credits.are_back(id)));
    credits.be_quiet(false, &mut moves);
    let granted: u32 = taken(&mut moves)
        .into_iter()
        .map(|one| match one {
            Move::Grant(B, _) => panic!("B has no work"),
            Move::Grant(_, n) => n,
            Move::Recall(id, _) => {
                assert_eq!(id, C, "A has said that it waits");
                0
            }
        })
        .sum();
    assert_eq!(granted, 8, "all but the job that B's worker still runs");
}

#[test]
fn what_is_granted_after_a_recall_is_asked_back_once_that_is_answered() {
    let (mut credits, mut moves) = credits(10);
    credits.opened(A, 0, &mut moves);
    credits.opened(B, 0, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Grant(A, 10), Move::Recall(A, 5)]);
    credits.be_quiet(true, &mut moves);
    assert_eq!(taken(&mut moves), [], "A is asked already");
    credits.returned(A, 5, &mut moves);
    assert_eq!(taken(&mut moves), [Move::Recall(A, 5)]);
    assert!(!credits.are_back(&A));
    credits.returned(A, 5, &mut moves);
    assert!(credits.are_back(&A));
    credits.be_quiet(false, &mut moves);
    assert_eq!(moves.len(), 2, "{moves:?}");
}

#[test]
fn a_grant_that_was_not_said_is_there_to_be_granted_again() {
    let (mut credits, mut moves) = credits(4);
    credits.opened(A, 0, &mut moves);
    taken(&mut moves);
    credits.ungranted(A, 4);
    credits.be_quiet(true, &mut moves);
    assert_eq!(taken(&mut moves), []);
    assert!(credits.are_back(&A));
    credits.be_quiet(false, &mut moves);
    assert_eq!(moves, [Move::Grant(A, 4)]);
}

/// So many publishers, the first of which had a burst of jobs; they have run, and it is stopped.
/// How long the first job of the last then waits for a credit: a recall is not answered, and the
/// link to the first is dead after the hang timeout.
fn wait_beside_one_that_is_stopped(bound: u32, publishers: u8) -> Duration {
    let (mut credits, mut moves) = credits(bound);
    let mut all = vec![Truthful { untold: true, ..Truthful::default() }; usize::from(publishers)];
    for n in 0..publishers {
        credits.opened(publisher(n), usize::from(publishers - n) - 1, &mut moves);
    }
    all[0].jobs = 10 * bound;
    let tell = |all: &mut Vec<Truthful>, moves: &mut Vec<Move>| {
        for one in moves.drain(..) {
            let (Move::Grant(id, _) | Move::Recall(id, _)) = one;
            all[usize::from(id.0[0])].to.push_back(one);
        }
    };
    // Everybody goes on, by turns, until nothing is left to be done.
    let rest = |all: &mut Vec<Truthful>, credits: &mut Credits, from: u8| {
        let (mut moves, mut went_on) = (Vec::new(), true);
        while std::mem::take(&mut went_on) {
            for n in from..publishers {
                went_on |= all[usize::from(n)].step(publisher(n), 0, credits, &mut moves);
                tell(all, &mut moves);
            }
        }
    };
    tell(&mut all, &mut moves);
    rest(&mut all, &mut credits, 0);
    assert_eq!((all[0].jobs, all[0].running), (0, 0));
    let last = publishers - 1;
    let one = &mut all[usize::from(last)];
    (one.jobs, one.untold) = (1, one.credits == 0);
    one.serve(publisher(last));
    rest(&mut all, &mut credits, 1);
    if all[usize::from(last)].jobs == 0 {
        return Duration::ZERO;
    }
    credits.lost(publisher(0), &mut moves);
    tell(&mut all, &mut moves);
    rest(&mut all, &mut credits, 1);
    assert_eq!(all[usize::from(last)].jobs, 0);
    LinkTiming::WORK.hang
}

#[test]
fn the_first_job_beside_a_publisher_that_is_stopped_waits_for_it_only_where_shares_are_small() {
    for publishers in 2..6 {
        let waits = |bound: &u32| !wait_beside_one_that_is_stopped(*bound, publishers).is_zero();
        let longest = (1..=100).filter(waits).max();
        let small = IDLE_KEEPS_FROM * u32::from(publishers) - 1;
        assert_eq!(longest, Some(small), "over {publishers}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Expect(usize),
    Open(u8, usize),
    Lose(u8),
    Deliver(u8, u32),
    Free(u8, u32),
    Return(u8, u32),
    Wait(u8, u64),
    Quiet(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let p = 0u8..4;
    prop_oneof![
        (0usize..4).prop_map(Event::Expect),
        (p.clone(), 0usize..4).prop_map(|(p, n)| Event::Open(p, n)),
        p.clone().prop_map(Event::Lose),
        (p.clone(), 1u32..20).prop_map(|(p, n)| Event::Deliver(p, n)),
        (p.clone(), 1u32..20).prop_map(|(p, n)| Event::Free(p, n)),
        (p.clone(), 0u32..20).prop_map(|(p, n)| Event::Return(p, n)),
        (p, 0u64..50).prop_map(|(p, n)| Event::Wait(p, n)),
        any::<bool>().prop_map(Event::Quiet),
    ]
}

/// One publisher's side, kept apart from `Credits`: what it has been told and has done.
#[derive(Clone, Copy, Default)]
struct Side {
    alive: bool,
    credits: u32,
    recalled: Option<u32>,
    held: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// However words and jobs are delayed on their way: every publisher is rid of its jobs.
    #[test]
    fn no_publisher_is_left_with_jobs_and_without_credit(
        bound in 1u32..120,
        jobs in proptest::collection::vec(0u32..400, 2..4),
        turns in proptest::collection::vec((0usize..4, 0u8..=255), 1..300),
    ) {
        let mut credits = Credits::new(bound);
        let mut moves = Vec::new();
        let mut all: Vec<Truthful> = jobs
            .iter()
            .map(|&jobs| Truthful { jobs, untold: true, ..Truthful::default() })
            .collect();
        for (n, one) in all.iter_mut().enumerate() {
            one.serve(publisher(n as u8));
            credits.opened(publisher(n as u8), jobs.len() - n - 1, &mut moves);
        }
        let mut steps = 0;
        for (first, which) in turns.iter().cycle() {
            for one in moves.drain(..) {
                let (Move::Grant(id, _) | Move::Recall(id, _)) = one;
                all[id.0[0] as usize].to.push_back(one);
            }
            let count = all.len();
            let went_on = (0..count).any(|nth| {
                let n = (first + nth) % count;
                all[n].step(publisher(n as u8), *which, &mut credits, &mut moves)
            });
            if !went_on && moves.is_empty() {
                break;
            }
            steps += 1;
            prop_assert!(steps < 100_000, "asked and given for ever");
        }
        let left: Vec<u32> = all.iter().map(|one| one.jobs).collect();
        prop_assert!(left.iter().all(|jobs| *jobs == 0), "{left:?} of {jobs:?} are left");
    }

    /// A worker that is quiet now and then, whatever is on its way: once it has its answers, no
    /// publisher has a credit, and after the last time every publisher is rid of its jobs.
    #[test]
    fn a_quiet_worker_has_all_credits_back_and_goes_on_when_it_is_resumed(
        bound in 1u32..120,
        jobs in proptest::collection::vec(0u32..400, 2..4),
        turns in proptest::collection::vec((0usize..4, 0u8..=255, proptest::bool::weighted(0.05)), 1..300),
    ) {
        let mut credits = Credits::new(bound);
        let mut moves = Vec::new();
        let mut all: Vec<Truthful> = jobs
            .iter()
            .map(|&jobs| Truthful { jobs, untold: true, ..Truthful::default() })
            .collect();
        for (n, one) in all.iter_mut().enumerate() {
            one.serve(publisher(n as u8));
            credits.opened(publisher(n as u8), jobs.len() - n - 1, &mut moves);
        }
        let (mut quiet, mut steps, mut again) = (false, 0, 1);
        for (first, which, turn) in turns.iter().cycle() {
            for one in moves.drain(..) {
                let (Move::Grant(id, _) | Move::Recall(id, _)) = one;
                prop_assert!(!quiet || matches!(one, Move::Recall(..)), "{one:?} while quiet");
                all[id.0[0] as usize].to.push_back(one);
            }
            if *turn && again < 20 {
                quiet = !quiet;
                again += 1;
                for (n, one) in all.iter_mut().enumerate().filter(|_| quiet) {
                    // Those that wait to be sent are not sent.
                    while which % 2 == 0
                        && let Some(&Move::Grant(_, unsaid)) = one.to.back()
                    {
                        one.to.pop_back();
                        credits.ungranted(publisher(n as u8), unsaid);
                    }
                }
                credits.be_quiet(quiet, &mut moves);
            }
            let count = all.len();
            let went_on = (0..count).any(|nth| {
                let n = (first + nth) % count;
                let (one, id) = (&mut all[n], publisher(n as u8));
                let went_on = one.step(id, *which, &mut credits, &mut moves);
                if quiet && one.running > 0 {
                    // What comes is given back, and what runs may be, too.
                    let back = std::mem::take(&mut one.running);
                    credits.freed(id, back, &mut moves);
                    one.jobs += back;
                    one.serve(id);
                }
                went_on
            });
            if !went_on && moves.is_empty() {
                if !quiet {
                    break;
                }
                prop_assert!(all.iter().all(|one| one.credits == 0), "a publisher has credits");
                prop_assert!((0..count).all(|n| credits.are_back(&publisher(n as u8))));
                quiet = false;
                credits.be_quiet(false, &mut moves);
            }
            steps += 1;
            prop_assert!(steps < 100_000, "asked and given for ever");
        }
        prop_assert!(all.iter().all(|one| one.jobs == 0), "jobs are left");
    }

    /// However publishers come, go, push, wait and give back: what they were granted and have not
    /// used or returned, and what is held of them, never exceeds the bound; and no credit is lost
    /// for good.
    #[test]
    fn credits_and_jobs_never_exceed_the_bound(
        bound in 1u32..40,
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut credits = Credits::new(bound);
        let mut sides = [Side::default(); 4];
        let mut moves = Vec::new();
        let mut quiet = false;
        for event in events {
            match event {
                Event::Expect(n) => credits.expect(n, &mut moves),
                Event::Open(p, n) if !sides[p as usize].alive => {
                    sides[p as usize].alive = true;
                    credits.opened(publisher(p), n, &mut moves);
                }
                Event::Lose(p) if sides[p as usize].alive => {
                    let side = &mut sides[p as usize];
                    *side = Side { held: side.held, ..Side::default() };
                    credits.lost(publisher(p), &mut moves);
                }
                Event::Deliver(p, n) if sides[p as usize].credits > 0 => {
                    let side = &mut sides[p as usize];
                    let n = n.min(side.credits);
                    side.credits -= n;
                    side.held += n;
                    credits.delivered(publisher(p), n);
                }
                Event::Free(p, n) if sides[p as usize].held > 0 => {
                    let n = n.min(sides[p as usize].held);
                    sides[p as usize].held -= n;
                    credits.freed(publisher(p), n, &mut moves);
                }
                Event::Return(p, n) => {
                    let side = &mut sides[p as usize];
                    if let Some(asked) = side.recalled.take() {
                        let n = n.min(asked).min(side.credits);
                        side.credits -= n;
                        credits.returned(publisher(p), n, &mut moves);
                    }
                }
                Event::Wait(p, n) if sides[p as usize].alive => {
                    credits.waiting(publisher(p), n, &mut moves);
                }
                Event::Quiet(is) => {
                    quiet = is;
                    credits.be_quiet(is, &mut moves);
                }
                _ => {}
            }
            for one in moves.drain(..) {
                match one {
                    Move::Grant(id, n) => {
                        let side = &mut sides[id.0[0] as usize];
                        prop_assert!(side.alive && n > 0 && !quiet);
                        side.credits += n;
                    }
                    Move::Recall(id, n) => {
                        let side = &mut sides[id.0[0] as usize];
                        prop_assert!(side.alive && n > 0 && side.recalled.is_none());
                        side.recalled = Some(n);
                    }
                }
            }
            let out: u32 = sides.iter().map(|side| side.credits + side.held).sum();
            prop_assert!(out <= bound, "{out} are out, {bound} may be");
        }
        credits.expect(0, &mut moves);
        credits.be_quiet(false, &mut moves);
        for one in moves {
            if let Move::Grant(id, n) = one {
                sides[id.0[0] as usize].credits += n;
            }
        }
        if sides.iter().any(|side| side.alive) {
            let out: u32 = sides.iter().map(|side| side.credits + side.held).sum();
            prop_assert_eq!(out, bound, "with a publisher alive, nothing stays in the pool");
        }
    }
}
