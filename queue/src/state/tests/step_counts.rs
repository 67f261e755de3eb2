//! The number of elements that a command examines does not grow with data that it does not affect.
//! Counts steps, not time.

use longshore_protocol::messages::work::{
    Action, Filter, JobCounts, NewSettle, Order, Pace, Selection, Source, Sources,
};
use longshore_protocol::{Due, EnqueueOutcome, JobOptions, JobState, LinkId, NewJob, Refusal};

use super::scenario::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Reply;
use crate::state::steps;

fn small_steps() -> StateScenario {
    StateScenario::with_rules(Rules { step_jobs: 10, ..Rules::STANDARD })
}

/// Acts on the jobs that ended from then on and before now, step by step; returns the elements
/// examined by each step.
fn act_by_age(
    scenario: &mut StateScenario,
    action: Action,
    state: JobState,
    from: u64,
) -> Vec<u64> {
    let mut filter = Filter::of(glob(QUEUE)).in_state(Some(state));
    (filter.ended_from, filter.ended_before) = (Some(from), Some(scenario.now.wall_ms));
    let mut examined = Vec::new();
    loop {
        let (link, selection) = (LinkId(900), Selection::Matching(filter.clone()));
        let pace = None::<Pace>;
        steps::take();
        let out = scenario.apply(Command::Act {
            link,
            request: 1,
            action,
            selection,
            pace,
            within: None,
        });
        examined.push(steps::take());
        let Some((_, Reply::Acted { report, .. })) = out.replies.last() else {
            panic!("no answer")
        };
        if !report.more {
            return examined;
        }
    }
}

#[test]
fn timers_run_in_bounded_steps() {
    let mut scenario = StateScenario::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let producer = scenario.link("producer");
    let at = scenario.now.wall_ms + 100;
    let keep_ms = Some(100);
    let due = JobOptions { due: Due::After(100), ..JobOptions::default() };
    let expiring = JobOptions { expires_at: Some(at), keep_ms, ..JobOptions::default() };
    scenario.enqueue(producer, &(1..=8).map(|n| with(n, due.clone())).collect::<Vec<_>>());
    scenario.enqueue(producer, &(11..=18).map(|n| with(n, expiring.clone())).collect::<Vec<_>>());
    let ticks = |scenario: &mut StateScenario, counted: fn(&JobCounts) -> u64| {
        scenario.later(100);
        let mut counts = Vec::new();
        while scenario
            .state
            .next_timer_ms(scenario.now)
            .is_some_and(|due| due <= scenario.now.mono_ms)
        {
            scenario.apply(Command::Tick);
            counts.push(counted(&scenario.counts()));
        }
        counts
    };
    assert_eq!(
        ticks(&mut scenario, |c| 100 * c.expired + c.ready - (8 - c.expired)),
        [303, 606, 808]
    );
    assert_eq!(ticks(&mut scenario, |c| c.expired), [5, 2, 0]);
    let (worker, delivered) = scenario.worker("a", QUEUE, 8);
    for delivered in delivered {
        scenario.settle(worker, delivered.token, &NewSettle::Bury(error("of this")));
    }
    scenario.later(180 * 24 * 3_600_000 - 100);
    assert_eq!(ticks(&mut scenario, |c| c.dead), [5, 2, 0]);
}

#[test]
fn jobs_with_a_time_do_not_wait_for_many_delayed_ones() {
    let mut scenario = small_steps();
    let producer = scenario.link("producer");
    let at = Due::At(scenario.now.wall_ms + 100);
    let delayed = JobOptions { due: Due::After(100), ..JobOptions::default() };
    let timed = JobOptions { due: at, ..JobOptions::default() };
    scenario.enqueue(producer, &(1..=30).map(|n| with(n, delayed.clone())).collect::<Vec<_>>());
    scenario.enqueue(producer, &[with(31, timed)]);
    scenario.later(100);
    scenario.apply(Command::Tick);
    assert_eq!(scenario.counts().ready, 11);
    assert_eq!(scenario.job(31).info.state, JobState::Ready);
}

#[test]
fn expiry_at_delivery_runs_in_bounded_steps() {
    let mut scenario = StateScenario::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let producer = scenario.link("producer");
    let expires_at = Some(scenario.now.wall_ms + 10);
    let until = JobOptions { expires_at, ..JobOptions::default() };
    let mut jobs: Vec<_> = (1..=8).map(|number| with(number, until.clone())).collect();
    jobs.push(plain(9));
    scenario.enqueue(producer, &jobs);
    scenario.later(10);
    let (_, delivered) = scenario.worker("a", QUEUE, 2);
    assert_eq!((delivered.len(), scenario.counts().expired), (0, 3));
    assert!(
        scenario.state.next_timer_ms(scenario.now).unwrap() <= scenario.now.mono_ms,
        "to continue"
    );
    let out = scenario.apply(Command::Tick);
    assert_eq!(
        (out.assignments.len(), scenario.counts().expired),
        (1, 8),
        "three by the tick, two at delivery"
    );
}

#[test]
fn act_by_age_skips_older_dead_letters_once() {
    let mut scenario = small_steps();
    scenario.fill(1..=150);
    let (worker, delivered) = scenario.worker("a", QUEUE, 150);
    let bury = |scenario: &mut StateScenario, nth: std::ops::Range<usize>| {
        for delivered in &delivered[nth] {
            scenario.settle(worker, delivered.token, &NewSettle::Bury(error("of this")));
        }
    };
    bury(&mut scenario, 0..100);
    let from = scenario.later(1).now.wall_ms;
    bury(&mut scenario, 100..150);
    scenario.later(1);
    let examined = act_by_age(&mut scenario, Action::Drop, JobState::Dead, from);
    assert_eq!(examined.len(), 5);
    assert!(examined[0] >= 100, "{examined:?}");
    assert!(examined[1..].iter().all(|&rows| rows <= 11), "{examined:?}");
    assert_eq!(scenario.counts().dead, 100, "the older ones stay");
    // A younger age continues from there, an older one starts again, and both find their jobs.
    let younger = act_by_age(&mut scenario, Action::Drop, JobState::Dead, from + 1);
    assert_eq!(younger, [0]);
    let all = act_by_age(&mut scenario, Action::Drop, JobState::Dead, 1);
    assert_eq!((all.len(), scenario.counts().dead), (10, 0));
}

#[test]
fn act_by_age_skips_older_ended_jobs_once() {
    let mut scenario = small_steps();
    scenario.fill(1..=150);
    let cancel = |scenario: &mut StateScenario, numbers: std::ops::RangeInclusive<u32>| {
        scenario.act(Action::Cancel, Selection::Ids(numbers.map(id).collect()));
    };
    cancel(&mut scenario, 1..=100);
    let from = scenario.later(1).now.wall_ms;
    cancel(&mut scenario, 101..=150);
    scenario.later(1);
    let examined = act_by_age(&mut scenario, Action::Drop, JobState::Cancelled, from);
    assert_eq!(examined.len(), 5);
    assert!(examined[0] >= 100, "{examined:?}");
    assert!(examined[1..].iter().all(|&rows| rows <= 11), "{examined:?}");
    assert_eq!(scenario.counts().cancelled, 100);
}

#[test]
fn alternating_acts_by_age_skip_older_jobs_once_each() {
    let mut scenario = small_steps();
    scenario.fill(1..=200);
    let cancel = |scenario: &mut StateScenario, numbers: std::ops::RangeInclusive<u32>| {
        scenario.act(Action::Cancel, Selection::Ids(numbers.map(id).collect()));
    };
    cancel(&mut scenario, 1..=100);
    let older = scenario.later(1).now.wall_ms;
    cancel(&mut scenario, 101..=150);
    let younger = scenario.later(1).now.wall_ms;
    cancel(&mut scenario, 151..=200);
    scenario.later(1);
    let before = scenario.now.wall_ms;
    let mut step = |from| {
        let mut filter = Filter::of(glob(QUEUE)).in_state(Some(JobState::Cancelled));
        (filter.ended_from, filter.ended_before) = (Some(from), Some(before));
        let (link, selection) = (LinkId(900), Selection::Matching(filter));
        steps::take();
        let (action, pace) = (Action::Drop, None::<Pace>);
        scenario.apply(Command::Act { link, request: 1, action, selection, pace, within: None });
        steps::take()
    };
    let examined: Vec<u64> =
        (0..8).map(|n| step(if n % 2 == 0 { younger } else { older })).collect();
    assert!(examined[0] >= 150 && examined[1] >= 100, "{examined:?}");
    assert!(examined[2..].iter().all(|&rows| rows <= 11), "{examined:?}");
    assert_eq!(scenario.counts().cancelled, 120);
}

#[test]
fn losing_a_link_costs_the_same_in_a_large_group() {
    let mut scenario = StateScenario::begin();
    let links: Vec<LinkId> =
        (0..200).map(|n| scenario.worker(&format!("w{n}"), QUEUE, 1).0).collect();
    for (lost, link) in [links[0], links[199], links[100]].into_iter().enumerate() {
        steps::take();
        scenario.apply(Command::LinkLost { link });
        assert!(steps::take() <= 1, "the {lost}th");
    }
    // Turns continue in order, without the links that left.
    scenario.fill(1..=3);
    let holders: Vec<LinkId> = scenario.state.running().map(|lease| lease.link).collect();
    assert_eq!(holders, links[1..4]);
}

#[test]
fn new_session_is_refused_when_answers_exceed_their_memory() {
    let rules = Rules { answer_bytes: 3_000, jobs_per_queue: 1, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    let producer = scenario.link("producer");
    // Every other job is for a path that is not served: no two consecutive outcomes are equal.
    let elsewhere = |number: u32| NewJob { path: path("/elsewhere"), ..plain(number) };
    let jobs: Vec<NewJob> =
        (0..100).map(|n| if n % 2 == 0 { plain(1) } else { elsewhere(1_000 + n) }).collect();
    for _ in 0..64 {
        let outcomes = scenario.enqueue(producer, &jobs);
        assert_eq!(outcomes[1], EnqueueOutcome::Refused(Refusal::NotHere));
    }
    let stored = scenario.state.sessions.answer_bytes;
    assert!((6_400..16_000).contains(&stored), "about a byte per outcome: {stored}");
    let first = receipts(&scenario.send(producer, batch(1, &jobs))).expect("the first is stored");
    assert_eq!((first.len(), first.iter().next()), (100, Some(EnqueueOutcome::Created)));
    let (_, out) = scenario.attach("another", &[]);
    let Some((_, Reply::LinkRefused { reason })) = out.replies.first() else { panic!("{out:?}") };
    assert!(reason.contains("of at most 0 MiB") && reason.contains("an hour"), "{reason}");
    let (_, out) = scenario.attach("producer", &[]);
    assert!(matches!(&out.replies[..], [(_, Reply::Attached(_))]), "a known session may return");
    // An hour after its link it is removed, and there is room.
    let link = scenario.state.next_link();
    scenario.apply(Command::LinkLost { link: LinkId(link.0 - 1) });
    scenario.later(3_600_000).apply(Command::Tick);
    assert_eq!(scenario.state.sessions.answer_bytes, 0);
    let (_, out) = scenario.attach("another", &[]);
    assert!(matches!(&out.replies[..], [(_, Reply::Attached(_))]));
}

/// Whoever works for one tenant of many does not visit the queues of the others.
#[test]
fn a_glob_visits_the_queues_below_its_first_wildcard() {
    let mut scenario = StateScenario::empty();
    scenario.start_at(&[], &["/t"]);
    let producer = scenario.link("producer");
    let at = |(number, text): (u32, String)| NewJob { path: path(&text), ..plain(number) };
    let paths = (1..=500).flat_map(|t| [format!("/t/{t}"), format!("/t/{t}/mail")]);
    scenario.enqueue(producer, &(1..).zip(paths).map(at).collect::<Vec<_>>());
    for (pattern, found, visited) in [
        ("/t/7/**", 2, 2),
        ("/t/{7,8}/mail", 2, 2),
        ("/t/7*", 11, 22),
        ("/t/7?/mail", 10, 22),
        ("/t/9/*", 1, 1),
        ("/t/{9/**,*/mail}", 501, 1_002),
        ("/t/501/**", 0, 0),
        ("/t/9", 1, 1),
        ("/**/mail", 500, 1_000),
        ("/**", 1_000, 1_000),
    ] {
        let (state, pattern) = (&scenario.state, glob(pattern));
        assert_eq!(state.paths.candidates(&pattern).count(), visited, "{pattern}");
        let matching = state.queues_matching(&pattern);
        let all = (0..).zip(&state.queues).filter(|(_, queue)| pattern.matches(&queue.path));
        assert_eq!(matching, all.map(|(number, _)| number).collect::<Vec<u32>>(), "{pattern}");
        assert_eq!(matching.len(), found, "{pattern}");
        let worker = scenario.link(pattern.as_str());
        scenario.subscribe(worker, 1, pattern.as_str());
        steps::take();
        scenario.apply(Command::LinkLost { link: worker });
        assert!(steps::take() <= 3 * visited as u64, "{pattern}");
    }
}

#[test]
fn a_link_with_many_subscriptions_ends_in_one_pass_over_the_queues() {
    let (subscriptions, patterns, queues) = (60, 8, 100);
    let mut scenario = StateScenario::empty();
    scenario.start_at(&[], &["/many"]);
    let producer = scenario.link("producer");
    let at = |number: u32| NewJob { path: path(&format!("/many/{number}")), ..plain(number) };
    let jobs: Vec<NewJob> = (1..=queues).map(at).collect();
    scenario.enqueue(producer, &jobs);
    let (stays, ends) = (scenario.link("stays"), scenario.link("ends"));
    let mut subscribe = |link: LinkId, number: u32| {
        let first = Source { pattern: glob("/many/**"), weight: 1 };
        let others = (1..patterns)
            .map(|other| Source { pattern: glob(&format!("/none/{number}/{other}/*")), weight: 1 });
        let patterns = [first].into_iter().chain(others).collect();
        let sources = Sources { order: Order::Age, patterns };
        scenario.apply(Command::Subscribe { link, subscription: number, sources, handlers: 1 });
    };
    subscribe(stays, 1);
    (1..=subscriptions).for_each(|number| subscribe(ends, number));
    steps::take();
    scenario.apply(Command::LinkLost { link: ends });
    let taken = steps::take();
    // One glob, and each queue with the groups that it is in, the one that stays included.
    assert_eq!(taken, u64::from(queues * (2 + subscriptions)));
    assert_eq!(scenario.credit(stays, 1, 2).len(), 2);
}
