//! Leases against a model that scans, and the rules one by one in virtual time.

use proptest::prelude::*;

use super::*;

const TIMING: LeaseTiming = LeaseTiming { reconnect_grace_ms: 5_000, restart_window_ms: 30_000 };
const A: LinkId = LinkId(1);
const B: LinkId = LinkId(2);

fn leases() -> Leases {
    let mut leases = Leases::new(TIMING);
    leases.link_up(A);
    leases.link_up(B);
    leases
}

fn expired(leases: &mut Leases, now_ms: u64) -> Vec<u64> {
    let mut out = Vec::new();
    leases.expired(now_ms, &mut out);
    out.iter().map(|expired| expired.token.0).collect()
}

#[test]
fn a_lease_ends_at_its_length_to_the_millisecond_unless_it_is_renewed() {
    let mut leases = leases();
    leases.granted(100, Token(1), A, 1_000);
    leases.granted(100, Token(2), A, 1_000);
    assert!(leases.renewed(600, Token(1), A));
    assert_eq!(leases.next_deadline(), Some(1_100));
    assert_eq!(expired(&mut leases, 1_099), []);
    assert_eq!(expired(&mut leases, 1_100), [2]);
    assert_eq!(expired(&mut leases, 1_599), []);
    assert_eq!(expired(&mut leases, 1_600), [1]);
}

#[test]
fn a_renewal_on_another_link_is_stale() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 1_000);
    assert!(!leases.renewed(500, Token(1), B) && !leases.started(Token(1), B));
    assert!(!leases.renewed(500, Token(9), A));
    assert_eq!(expired(&mut leases, 1_000), [1]);
}

#[test]
fn leases_of_a_lost_link_end_after_the_grace_or_at_their_own_end() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 3_000);
    leases.granted(0, Token(2), A, 60_000);
    leases.granted(0, Token(3), B, 60_000);
    leases.link_lost(1_000, A);
    assert_eq!(expired(&mut leases, 3_000), [1]);
    assert_eq!(expired(&mut leases, 5_999), []);
    assert_eq!(expired(&mut leases, 6_000), [2]);
    assert_eq!(expired(&mut leases, 59_999), []);
}

#[test]
fn a_delivery_released_to_a_link_that_is_gone_has_the_grace() {
    let mut leases = leases();
    leases.link_lost(0, A);
    leases.granted(1_000, Token(1), A, 60_000);
    assert_eq!(expired(&mut leases, 5_999), []);
    assert_eq!(expired(&mut leases, 6_000), [1]);
}

#[test]
fn a_resumed_lease_leaves_its_lost_link_and_has_its_full_length() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 10_000);
    leases.link_lost(1_000, A);
    assert!(leases.moved(4_000, Token(1), B));
    assert_eq!(expired(&mut leases, 13_999), []);
    assert_eq!(expired(&mut leases, 14_000), [1]);
}

#[test]
fn after_a_restart_leases_have_the_window_and_a_resumed_one_its_own_length() {
    let mut leases = Leases::new(TIMING);
    leases.restarted(0, Token(1), LinkId(7), 1_000);
    leases.restarted(0, Token(2), LinkId(7), 60_000);
    leases.link_up(A);
    assert!(leases.moved(10_000, Token(2), A));
    let mut out = Vec::new();
    leases.expired(29_999, &mut out);
    assert_eq!(out, []);
    leases.expired(30_000, &mut out);
    assert_eq!(out, [Expired { token: Token(1), started: false, restart: true, timed_out: false }]);
    out.clear();
    leases.expired(69_999, &mut out);
    assert_eq!(out, []);
    leases.expired(70_000, &mut out);
    assert_eq!(
        out,
        [Expired { token: Token(2), started: false, restart: false, timed_out: false }]
    );
}

#[test]
fn a_pause_gives_every_lease_its_full_length_and_every_lost_link_its_grace() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 2_000);
    leases.granted(0, Token(2), B, 60_000);
    leases.link_lost(500, B);
    leases.paused(20_000);
    assert_eq!(expired(&mut leases, 21_999), []);
    assert_eq!(expired(&mut leases, 22_000), [1]);
    assert_eq!(expired(&mut leases, 25_000), [2]);
}

#[test]
fn what_expired_cannot_be_renewed_and_is_said_once() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 1_000);
    assert!(leases.started(Token(1), A));
    let mut out = Vec::new();
    leases.expired(1_000, &mut out);
    assert_eq!(out, [Expired { token: Token(1), started: true, restart: false, timed_out: false }]);
    // Its end is not durable yet: nobody is told that it is stale.
    assert!(leases.renewed(1_001, Token(1), A));
    assert_eq!(expired(&mut leases, 100_000), []);
    leases.ended(Token(1));
    assert!(!leases.renewed(1_002, Token(1), A) && leases.is_empty());
}

#[test]
fn one_call_gives_a_bounded_number_and_the_next_one_goes_on() {
    let mut leases = leases();
    let all = EXPIRED_MAX as u64 + 10;
    for token in 0..all {
        leases.granted(0, Token(token), A, 1_000);
    }
    assert_eq!(expired(&mut leases, 1_000).len(), EXPIRED_MAX);
    assert!(leases.next_deadline().is_some_and(|at| at <= 1_000));
    assert_eq!(expired(&mut leases, 1_000).len(), 10);
}

#[test]
fn lengths_that_no_lease_has_any_more_take_no_memory() {
    let mut leases = leases();
    for token in 0..100_000 {
        leases.granted(0, Token(token), A, 1_000 + token as u32);
        leases.ended(Token(token));
    }
    assert!(leases.lengths.len() <= 2 * LENGTHS_KEPT && leases.due.len() <= 2 * LENGTHS_KEPT);
    assert_eq!(leases.rows.len(), 1);
}

/// A lease as the rules say it, with nothing clever.
#[derive(Clone, Debug)]
struct Plain {
    token: u64,
    link: u64,
    length_ms: u64,
    lease_ms: u64,
    renewed_ms: u64,
    restart: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Grant(u64, u32),
    Restart(u32),
    Renew(usize),
    Move(usize, u64),
    End(usize),
    Up,
    Lose(u64),
    Pause,
    Expire,
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        6 => (0..6u64, 0..3u32).prop_map(|(link, length)| Step::Grant(link, length)),
        1 => (0..3u32).prop_map(Step::Restart),
        3 => (0..20usize).prop_map(Step::Renew),
        2 => (0..20usize, 0..6u64).prop_map(|(lease, link)| Step::Move(lease, link)),
        3 => (0..20usize).prop_map(Step::End),
        2 => Just(Step::Up),
        1 => (0..6u64).prop_map(Step::Lose),
        1 => Just(Step::Pause),
        6 => Just(Step::Expire),
    ];
    proptest::collection::vec((0..3_000u64, step), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn leases_end_exactly_when_a_model_that_scans_says_so(steps in steps()) {
        let mut leases = Leases::new(TIMING);
        let mut model: Vec<Plain> = Vec::new();
        // Links as they were made; when they were lost.
        let mut links: Vec<Option<u64>> = Vec::new();
        let (mut now, mut floor, mut next_token) = (0, 0, 1);
        let grace_end = |lost: Option<u64>, floor: u64| lost.map(|at| at.max(floor) + 5_000);
        for (passed, step) in steps {
            now += passed;
            let pick = |model: &[Plain], n: usize| (!model.is_empty()).then(|| n % model.len().max(1));
            match step {
                Step::Grant(link, length) if (link as usize) < links.len() && links[link as usize].is_none() => {
                    let lease_ms = 1_000 * (1 + length);
                    leases.granted(now, Token(next_token), LinkId(link), lease_ms);
                    let lease_ms = u64::from(lease_ms);
                    model.push(Plain { token: next_token, link, length_ms: lease_ms, lease_ms, renewed_ms: now, restart: false });
                    next_token += 1;
                }
                Step::Restart(length) => {
                    let lease_ms = 1_000 * (1 + length);
                    leases.restarted(now, Token(next_token), LinkId(1_000), lease_ms);
                    model.push(Plain { token: next_token, link: 1_000, length_ms: 30_000, lease_ms: u64::from(lease_ms), renewed_ms: now, restart: true });
                    next_token += 1;
                }
                Step::Renew(n) => if let Some(n) = pick(&model, n) {
                    let lease = &mut model[n];
                    prop_assert!(leases.renewed(now, Token(lease.token), LinkId(lease.link)));
                    lease.renewed_ms = now;
                },
                Step::Move(n, link) if (link as usize) < links.len() && links[link as usize].is_none() => {
                    if let Some(n) = pick(&model, n) {
                        let lease = &mut model[n];
                        prop_assert!(leases.moved(now, Token(lease.token), LinkId(link)));
                        (lease.link, lease.renewed_ms, lease.restart) = (link, now, false);
                        lease.length_ms = lease.lease_ms;
                    }
                }
                Step::End(n) => if let Some(n) = pick(&model, n) {
                    leases.ended(Token(model.remove(n).token));
                },
                Step::Up if links.len() < 6 => {
                    leases.link_up(LinkId(links.len() as u64));
                    links.push(None);
                }
                Step::Lose(link) if (link as usize) < links.len() && links[link as usize].is_none() => {
                    leases.link_lost(now, LinkId(link));
                    links[link as usize] = Some(now);
                }
                Step::Pause => {
                    leases.paused(now);
                    floor = now;
                }
                Step::Expire => {
                    let end = |lease: &Plain| {
                        let own = lease.renewed_ms.max(floor) + lease.length_ms;
                        let lost = links.get(lease.link as usize).copied().flatten();
                        grace_end(lost, floor).map_or(own, |grace| own.min(grace))
                    };
                    if let Some(first) = model.iter().map(end).min() {
                        prop_assert!(leases.next_deadline().is_some_and(|at| at <= first));
                    }
                    let mut wanted: Vec<u64> =
                        model.iter().filter(|lease| end(lease) <= now).map(|lease| lease.token).collect();
                    let mut given = expired(&mut leases, now);
                    given.sort_unstable();
                    wanted.sort_unstable();
                    prop_assert_eq!(&given, &wanted);
                    model.retain(|lease| !wanted.contains(&lease.token));
                    given.into_iter().for_each(|token| leases.ended(Token(token)));
                }
                _ => {}
            }
            prop_assert_eq!(leases.len(), model.len());
        }
    }
}
