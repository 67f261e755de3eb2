//! Leases against a scanning model, and the cases that the model does not cover: stale verbs, lost
//! links, bounds.

use proptest::prelude::*;

use super::by_length::IDLE_LENGTHS_MAX;
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
    leases.take_ended(now_ms, &mut out);
    out.iter().map(|expired| expired.token.0).collect()
}

#[test]
fn renewal_on_another_link_is_stale() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 1_000, 0);
    assert!(!leases.renewed(500, Token(1), B) && !leases.started(500, Token(1), B, 0));
    assert!(!leases.renewed(500, Token(9), A));
    assert_eq!(expired(&mut leases, 1_000), [1]);
}

#[test]
fn delivery_to_a_lost_link_gets_the_reconnect_grace() {
    let mut leases = leases();
    leases.link_lost(0, A);
    leases.granted(1_000, Token(1), A, 60_000, 0);
    assert_eq!(expired(&mut leases, 5_999), []);
    assert_eq!(expired(&mut leases, 6_000), [1]);
}

#[test]
fn expired_lease_is_reported_once_and_not_renewable() {
    let mut leases = leases();
    leases.granted(0, Token(1), A, 1_000, 0);
    assert!(leases.started(500, Token(1), A, 0));
    let mut out = Vec::new();
    leases.take_ended(1_000, &mut out);
    assert_eq!(
        out,
        [LeaseEnd { token: Token(1), started: true, uncounted: false, timed_out: false }]
    );
    // Its end is not durable yet: the worker is not yet refused.
    assert!(leases.renewed(1_001, Token(1), A));
    assert_eq!(expired(&mut leases, 100_000), []);
    leases.ended(Token(1));
    assert!(!leases.renewed(1_002, Token(1), A) && leases.is_empty());
}

#[test]
fn one_call_returns_a_bounded_number_of_expired_leases() {
    let mut leases = leases();
    let all = LEASE_ENDS_MAX as u64 + 10;
    for token in 0..all {
        leases.granted(0, Token(token), A, 1_000, 0);
    }
    assert_eq!(expired(&mut leases, 1_000).len(), LEASE_ENDS_MAX);
    assert!(leases.next_deadline().is_some_and(|at| at <= 1_000));
    assert_eq!(expired(&mut leases, 1_000).len(), 10);
}

#[test]
fn unused_lease_lengths_are_forgotten() {
    let mut leases = leases();
    for token in 0..100_000 {
        leases.granted(0, Token(token), A, 1_000 + token as u32, 0);
        leases.ended(Token(token));
    }
    assert!(leases.lengths.allocated() <= 2 * IDLE_LENGTHS_MAX);
    assert_eq!(leases.rows.len(), 1);
}

/// A lease in the simplest form.
#[derive(Clone, Debug)]
struct ModelLease {
    token: u64,
    link: u64,
    length_ms: u64,
    lease_ms: u64,
    renewed_ms: u64,
    restart: bool,
    run_timeout_ms: u64,
    /// When its run timeout ends.
    run_end: Option<u64>,
    started: bool,
    unsent: bool,
}

#[derive(Clone, Debug)]
enum LeaseStep {
    Grant(u64, u32, u64),
    Restart(u32, u64),
    Renew(usize),
    Start(usize, u64),
    Move(usize, u64),
    End(usize),
    Waits(usize),
    Sent(usize),
    HangEnds,
    Up,
    Lose(u64),
    Pause,
    Expire,
}

fn steps() -> impl Strategy<Value = Vec<(u64, LeaseStep)>> {
    let step = prop_oneof![
        6 => (0..6u64, 0..3u32, 0..4u64)
            .prop_map(|(link, length, run)| LeaseStep::Grant(link, length, run)),
        1 => (0..3u32, 0..4u64).prop_map(|(length, run)| LeaseStep::Restart(length, run)),
        4 => (0..20usize, 0..10u64)
            .prop_map(|(lease, running)| LeaseStep::Start(lease, 500 * running)),
        3 => (0..20usize).prop_map(LeaseStep::Renew),
        2 => (0..20usize, 0..6u64).prop_map(|(lease, link)| LeaseStep::Move(lease, link)),
        3 => (0..20usize).prop_map(LeaseStep::End),
        2 => (0..20usize).prop_map(LeaseStep::Waits),
        2 => (0..20usize).prop_map(LeaseStep::Sent),
        1 => Just(LeaseStep::HangEnds),
        2 => Just(LeaseStep::Up),
        1 => (0..6u64).prop_map(LeaseStep::Lose),
        1 => Just(LeaseStep::Pause),
        6 => Just(LeaseStep::Expire),
    ];
    // Mostly steps that divide every length, so that ends coincide on the millisecond.
    let passed = prop_oneof![3 => (0..6u64).prop_map(|n| 500 * n), 1 => 0..3_000u64];
    proptest::collection::vec((passed, step), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn leases_end_exactly_when_the_scanning_model_says(steps in steps()) {
        let mut leases = Leases::new(TIMING);
        let mut model: Vec<ModelLease> = Vec::new();
        // Links in order of creation, with the time of their loss.
        let mut links: Vec<Option<u64>> = Vec::new();
        let (mut now, mut floor, mut grace_floor, mut next_token) = (0, 0, 0, 1);
        let grace_end = |lost: Option<u64>, floor: u64| lost.map(|at| at.max(floor) + 5_000);
        for (passed, step) in steps {
            now += passed;
            let pick = |model: &[ModelLease], n: usize| {
                (!model.is_empty()).then(|| n % model.len().max(1))
            };
            match step {
                LeaseStep::Grant(link, length, run)
                    if (link as usize) < links.len() && links[link as usize].is_none() =>
                {
                    let lease_ms = 1_000 * (1 + length);
                    let run_timeout_ms = 1_500 * run;
                    leases.granted(now, Token(next_token), LinkId(link), lease_ms, run_timeout_ms);
                    let lease_ms = u64::from(lease_ms);
                    model.push(ModelLease {
                        token: next_token,
                        link,
                        length_ms: lease_ms,
                        lease_ms,
                        renewed_ms: now,
                        restart: false,
                        run_timeout_ms,
                        run_end: None,
                        started: false,
                        unsent: false,
                    });
                    next_token += 1;
                }
                LeaseStep::Restart(length, run) => {
                    let lease_ms = 1_000 * (1 + length);
                    let run_timeout_ms = 1_500 * run;
                    leases.restarted(
                        now,
                        Token(next_token),
                        LinkId(1_000),
                        lease_ms,
                        run_timeout_ms,
                    );
                    model.push(ModelLease {
                        token: next_token,
                        link: 1_000,
                        length_ms: 30_000,
                        lease_ms: u64::from(lease_ms),
                        renewed_ms: now,
                        restart: true,
                        run_timeout_ms,
                        run_end: None,
                        started: false,
                        unsent: false,
                    });
                    next_token += 1;
                }
                LeaseStep::Renew(n) => {
                    if let Some(n) = pick(&model, n) {
                        let lease = &mut model[n];
                        prop_assert!(leases.renewed(now, Token(lease.token), LinkId(lease.link)));
                        lease.renewed_ms = now;
                    }
                }
                LeaseStep::Start(n, running) => {
                    if let Some(n) = pick(&model, n) {
                        let lease = &mut model[n];
                        // Some start now; some started so long ago that their run timeout is over.
                        let running = running.saturating_sub(1_500);
                        prop_assert!(leases.started(
                            now,
                            Token(lease.token),
                            LinkId(lease.link),
                            running
                        ));
                        lease.started = true;
                        if lease.run_timeout_ms > 0 {
                            let end = now + lease.run_timeout_ms.saturating_sub(running);
                            lease.run_end =
                                Some(lease.run_end.map_or(end, |before| before.min(end)));
                        }
                    }
                }
                LeaseStep::Move(n, link)
                    if (link as usize) < links.len() && links[link as usize].is_none() =>
                {
                    if let Some(n) = pick(&model, n) {
                        let lease = &mut model[n];
                        prop_assert!(leases.moved(now, Token(lease.token), LinkId(link)));
                        (lease.link, lease.renewed_ms, lease.restart) = (link, now, false);
                        lease.length_ms = lease.lease_ms;
                    }
                }
                LeaseStep::End(n) => {
                    if let Some(n) = pick(&model, n) {
                        leases.ended(Token(model.remove(n).token));
                    }
                }
                LeaseStep::Waits(n) => {
                    if let Some(n) = pick(&model, n) {
                        model[n].unsent = true;
                        leases.waits(Token(model[n].token), LinkId(model[n].link));
                    }
                }
                LeaseStep::Sent(n) => {
                    if let Some(n) = pick(&model, n) {
                        (model[n].unsent, model[n].renewed_ms) = (false, now);
                        leases.sent(now, Token(model[n].token), LinkId(model[n].link));
                    }
                }
                LeaseStep::HangEnds => {
                    leases.hang_ended(now);
                    (floor, grace_floor) = (floor.max(now + 25_000), grace_floor.max(now + 25_000));
                }
                LeaseStep::Up if links.len() < 6 => {
                    leases.link_up(LinkId(links.len() as u64));
                    links.push(None);
                }
                LeaseStep::Lose(link)
                    if (link as usize) < links.len() && links[link as usize].is_none() =>
                {
                    leases.link_lost(now, LinkId(link));
                    links[link as usize] = Some(now);
                }
                LeaseStep::Pause => {
                    leases.paused(now);
                    (floor, grace_floor) = (floor.max(now), grace_floor.max(now));
                }
                LeaseStep::Expire => {
                    let end = |lease: &ModelLease| {
                        let own = lease.renewed_ms.max(floor) + lease.length_ms;
                        let lost = links.get(lease.link as usize).copied().flatten();
                        grace_end(lost, grace_floor).map_or(own, |grace| own.min(grace))
                    };
                    let first = |lease: &ModelLease| {
                        lease.run_end.map_or(end(lease), |run| run.min(end(lease)))
                    };
                    if let Some(first) = model.iter().map(first).min() {
                        prop_assert!(leases.next_deadline().is_some_and(|at| at <= first));
                    }
                    let mut expected: Vec<LeaseEnd> = model
                        .iter()
                        .filter(|lease| first(lease) <= now)
                        .map(|lease| LeaseEnd {
                            token: Token(lease.token),
                            started: lease.started,
                            uncounted: lease.restart || lease.unsent,
                            timed_out: lease.run_end.is_some_and(|run| run <= end(lease)),
                        })
                        .collect();
                    let mut returned = Vec::new();
                    leases.take_ended(now, &mut returned);
                    returned.sort_unstable_by_key(|expired| expired.token);
                    expected.sort_unstable_by_key(|expired| expired.token);
                    prop_assert_eq!(&returned, &expected);
                    model.retain(|lease| {
                        expected.iter().all(|expired| expired.token.0 != lease.token)
                    });
                    returned.into_iter().for_each(|expired| leases.ended(expired.token));
                }
                _ => {}
            }
            prop_assert_eq!(leases.len(), model.len());
        }
    }
}
