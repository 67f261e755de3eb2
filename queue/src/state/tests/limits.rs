//! Limits of queues, of limit keys, and shared ones.

use longshore_protocol::messages::work::{
    Action, BlockedBy, LimitedBy, NewSettle, RequestError, Selection, Waiting,
};
use longshore_protocol::{
    EnqueueOutcome, Gate, JobLimit, JobOptions, JobRate, JobState, LimitScope, LinkId, NewJob,
    Refusal,
};

use super::scenario::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::{Assignment, Outcomes, Reply};
use crate::state::{State, steps};

fn limit(scope: LimitScope, pattern: &str) -> JobLimit {
    let name = format!("{scope} {pattern}");
    JobLimit { name, pattern: glob(pattern), scope, concurrency: Some(1), rate: None }
}

fn rated(scope: LimitScope, pattern: &str, rate: (u32, u64, u32)) -> JobLimit {
    let (units, per_ms, burst) = rate;
    let rate = Some(JobRate { units, per_ms, burst });
    JobLimit { concurrency: None, rate, ..limit(scope, pattern) }
}

fn set(scenario: &mut StateScenario, limit: &JobLimit) -> Result<bool, RequestError> {
    let command = Command::SetLimit { link: LinkId(1), request: 1, limit: limit.clone() };
    answer(&scenario.apply(command).replies)
}

fn remove(scenario: &mut StateScenario, limit: &JobLimit) -> Result<bool, RequestError> {
    let name = limit.name.clone();
    answer(&scenario.apply(Command::RemoveLimit { link: LinkId(1), request: 1, name }).replies)
}

fn answer(replies: &[(LinkId, Reply)]) -> Result<bool, RequestError> {
    let answers = replies.iter().find_map(|(_, reply)| match reply {
        Reply::LimitSet { result, .. } => Some(*result),
        _ => None,
    });
    answers.expect("it is answered")
}

fn to(number: u32, queue: &str) -> NewJob {
    NewJob { path: path(queue), ..plain(number) }
}

fn keyed(number: u32, key: &str) -> NewJob {
    plain(number).limit_key(key)
}

fn restored(scenario: &mut StateScenario) {
    let bytes = scenario.state.snapshot_bytes();
    scenario.state = State::restore(&bytes).expect("it was written");
    assert!(scenario.state.snapshot_bytes() == bytes, "restoring changes the bytes");
}

fn numbers(delivered: &[Assignment], scenario: &StateScenario) -> Vec<u32> {
    let number = |delivered: &Assignment| {
        let is_it = |n: &u32| {
            let job = scenario.state.job(&id(*n), scenario.now);
            job.is_some_and(|job| job.info.token == Some(delivered.token))
        };
        (0..1_000).find(is_it).expect("a job of the test")
    };
    delivered.iter().map(number).collect()
}

/// Takes back one credit.
fn recall(scenario: &mut StateScenario, link: LinkId) -> Outcomes {
    scenario.apply(Command::Recall { link, subscription: 1, count: 1 })
}

/// How many jobs each notice of a subscription without credit counts.
fn notices(out: &Outcomes) -> Vec<u64> {
    let jobs = |(_, reply): &(LinkId, Reply)| match reply {
        Reply::Waiting(Waiting { subscription: 1, jobs }) => Some(*jobs),
        _ => None,
    };
    out.replies.iter().filter_map(jobs).collect()
}

fn states(scenario: &StateScenario, jobs: std::ops::RangeInclusive<u32>) -> Vec<JobState> {
    jobs.map(|number| scenario.job(number).info.state).collect()
}

#[test]
fn queue_at_its_limit_is_held_back_and_leaves_credits_to_others() {
    let mut scenario = StateScenario::begin();
    let mail = limit(LimitScope::Queue, "/jobs/mail");
    assert_eq!(set(&mut scenario, &mail), Ok(true));
    assert_eq!(set(&mut scenario, &mail), Ok(false), "it is as it was");
    scenario.fill(1..=3);
    let producer = scenario.link("p");
    scenario.enqueue(producer, &[to(11, "/jobs/other"), to(12, "/jobs/other")]);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 10);
    assert_eq!(numbers(&delivered, &scenario), [1, 11, 12]);
    let by = LimitedBy { limit: mail.name.clone(), until: None };
    assert_eq!(scenario.stat_of(QUEUE).limited_by, Some(by.clone()));
    assert_eq!((scenario.counts().ready, scenario.counts().running), (2, 1));
    let blocked = scenario.job(2).info.blocked;
    assert_eq!(blocked, Some(BlockedBy::Limit { by, key: None }));
    restored(&mut scenario);
    let (_, out) =
        scenario.settle(worker, delivered[0].token, &NewSettle::Complete { result: None });
    assert_eq!(numbers(&out.assignments, &scenario), [2]);
    let higher = JobLimit { concurrency: Some(2), ..mail.clone() };
    assert_eq!(set(&mut scenario, &higher), Ok(true));
    assert_eq!(scenario.counts().running, 2);
    assert_eq!((remove(&mut scenario, &mail), remove(&mut scenario, &mail)), (Ok(true), Ok(false)));
}

#[test]
fn queues_that_share_a_limit_take_turns() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Shared, "/jobs/*")).expect("a limit");
    let (worker, _) = scenario.worker("w", "/jobs/*", 100);
    let producer = scenario.link("p");
    let queues = ["/jobs/a", "/jobs/b", "/jobs/c"];
    for (n, queue) in (0u32..).zip(queues) {
        let jobs: Vec<NewJob> = (0..4).map(|nth| to(10 * n + nth, queue)).collect();
        scenario.enqueue(producer, &jobs);
    }
    let mut order = Vec::new();
    loop {
        let lease = scenario.state.running().next();
        let Some(lease) = lease else { break };
        restored(&mut scenario);
        let job = (0..30).find(|n| {
            let job = scenario.state.job(&id(*n), scenario.now);
            job.is_some_and(|job| job.info.token == Some(lease.token))
        });
        order.push(job.expect("it runs") / 10);
        assert_eq!(scenario.state.running().count(), 1);
        scenario.complete(worker, lease.token);
    }
    // The first queue's second job stood in the line before the others were created.
    assert_eq!(order, [0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2]);
}

/// The backlog comes to the same workers, and is younger.
#[test]
fn a_backlog_without_limits_does_not_delay_a_queue_that_waits_for_a_shared_limit() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Shared, "/jobs/mail")).expect("a limit");
    let producer = scenario.link("p");
    scenario.enqueue(producer, &[to(1, "/jobs/mail"), to(2, "/jobs/mail"), to(3, "/jobs/mail")]);
    let bulk: Vec<NewJob> = (10..20).map(|number| to(number, "/jobs/bulk")).collect();
    scenario.enqueue(producer, &bulk);
    let (first, delivered) = scenario.worker("a", "/jobs/*", 1);
    assert_eq!(numbers(&delivered, &scenario), [1]);
    let (_, others) = scenario.worker("b", "/jobs/*", 1);
    assert_eq!(numbers(&others, &scenario), [10]);
    let mut token = delivered[0].token;
    for next in [2, 3] {
        restored(&mut scenario);
        scenario.complete(first, token);
        let delivered = scenario.credit(first, 1, 1);
        assert_eq!(numbers(&delivered, &scenario), [next]);
        token = delivered[0].token;
    }
}

#[test]
fn worker_without_credit_is_notified_when_a_shared_limit_has_room() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Shared, "/jobs/*")).expect("a limit");
    scenario.fill(1..=3);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 2);
    assert_eq!(numbers(&delivered, &scenario), [1]);
    assert!(notices(&recall(&mut scenario, worker)).is_empty());
    assert!(scenario.stat_of(QUEUE).limited_by.is_some());
    restored(&mut scenario);
    let complete = NewSettle::Complete { result: None };
    let (_, out) = scenario.settle(worker, delivered[0].token, &complete);
    assert_eq!(notices(&out), [2]);
    assert_eq!((scenario.stat_of(QUEUE).limited_by, scenario.job(2).info.blocked), (None, None));
    let delivered = scenario.credit(worker, 1, 1);
    assert_eq!(numbers(&delivered, &scenario), [2]);
}

#[test]
fn each_queue_of_a_line_is_notified_of_when_its_rate_opens() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &rated(LimitScope::Shared, "/jobs/*", (1, 1_000, 1))).expect("a limit");
    let producer = scenario.link("p");
    scenario.enqueue(producer, &[to(1, "/jobs/a"), to(2, "/jobs/b"), to(3, "/jobs/c")]);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 2);
    assert_eq!(numbers(&delivered, &scenario), [1]);
    assert!(notices(&recall(&mut scenario, worker)).is_empty());
    for (next, opens_at) in [(2, 2_000), (3, 3_000)] {
        let out = scenario.tick_at_next_timer();
        assert_eq!((notices(&out), scenario.now.mono_ms), (vec![1], opens_at));
        let delivered = scenario.credit(worker, 1, 1);
        assert_eq!(numbers(&delivered, &scenario), [next]);
    }
}

#[test]
fn a_paused_queue_keeps_no_other_in_the_line_of_a_shared_limit() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Shared, "/jobs/*")).expect("a limit");
    let producer = scenario.link("p");
    scenario.enqueue(producer, &[to(1, "/jobs/a"), to(2, "/jobs/a"), to(3, "/jobs/b")]);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 2);
    assert_eq!(numbers(&delivered, &scenario), [1]);
    recall(&mut scenario, worker);
    let (gate, pattern) = (Gate::Delivery, glob("/jobs/a"));
    let link = LinkId(900);
    scenario.apply(Command::Pause { link, request: 1, gate, pattern, paused: true });
    let complete = NewSettle::Complete { result: None };
    let (_, out) = scenario.settle(worker, delivered[0].token, &complete);
    assert_eq!(notices(&out), [1]);
    let delivered = scenario.credit(worker, 1, 1);
    assert_eq!(numbers(&delivered, &scenario), [3]);
}

#[test]
fn costly_job_is_not_overtaken_and_one_over_the_limit_runs_alone() {
    let mut scenario = StateScenario::begin();
    let three = JobLimit { concurrency: Some(3), ..limit(LimitScope::Queue, "/jobs/*") };
    set(&mut scenario, &three).expect("a limit");
    let producer = scenario.link("p");
    let jobs = [plain(1).cost(2), plain(2).cost(2), plain(3), plain(4).cost(1_000), plain(5)];
    scenario.enqueue(producer, &jobs);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 10);
    assert_eq!(numbers(&delivered, &scenario), [1], "job 3 would fit, and waits behind job 2");
    scenario.complete(worker, delivered[0].token);
    let running = |scenario: &StateScenario| {
        (1..=5).filter(|n| scenario.job(*n).info.state == JobState::Running).collect::<Vec<_>>()
    };
    assert_eq!(running(&scenario), [2, 3]);
    for number in [2, 3] {
        assert_ne!(scenario.job(4).info.state, JobState::Running);
        let token = scenario.job(number).info.token.expect("it runs");
        scenario.complete(worker, token);
    }
    assert_eq!(running(&scenario), [4]);
    let token = scenario.job(4).info.token.expect("it runs");
    scenario.complete(worker, token);
    assert_eq!(running(&scenario), [5]);
}

#[test]
fn as_many_jobs_of_a_key_are_ready_as_have_room() {
    let mut scenario = StateScenario::begin();
    let two = JobLimit { concurrency: Some(2), ..limit(LimitScope::Key, "/jobs/*") };
    set(&mut scenario, &two).expect("a limit");
    let producer = scenario.link("p");
    let jobs = [1, 2, 3, 4].map(|n| keyed(n, "acme"));
    scenario.enqueue(producer, &jobs);
    scenario.enqueue(producer, &[keyed(5, "other"), plain(6)]);
    let (ready, blocked) = (JobState::Ready, JobState::Blocked);
    assert_eq!(states(&scenario, 1..=6), [ready, ready, blocked, blocked, ready, ready]);
    let by = LimitedBy { limit: two.name.clone(), until: None };
    let key = Some("acme".to_owned());
    assert_eq!(scenario.job(4).info.blocked, Some(BlockedBy::Limit { by, key }));
    // One of higher priority takes the place of the last candidate.
    let urgent = JobOptions { priority: 1, ..JobOptions::default() };
    scenario.enqueue(producer, &[NewJob { options: urgent, ..keyed(7, "acme") }]);
    assert_eq!(states(&scenario, 1..=3), [ready, blocked, blocked]);
    restored(&mut scenario);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 10);
    assert_eq!(numbers(&delivered, &scenario), [7, 1, 5, 6]);
    // A lowered limit lets no more run, and holds candidates back.
    scenario.complete(worker, delivered[0].token);
    let one = JobLimit { concurrency: Some(1), ..two };
    set(&mut scenario, &one).expect("a limit");
    assert_eq!(scenario.counts().running, 4, "job 2 has taken the place of 7");
    scenario.complete(worker, delivered[1].token);
    assert_eq!(states(&scenario, 3..=4), [blocked, blocked]);
}

#[test]
fn a_key_that_rests_delivers_no_job_and_no_attempt_is_used() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("p");
    scenario.enqueue(producer, &[keyed(1, "acme"), keyed(2, "acme"), keyed(3, "other")]);
    let (worker, delivered) = scenario.worker("w", "/jobs/*", 1);
    let throttle = NewSettle::Throttle { ms: 5_000 };
    scenario.settle(worker, delivered[0].token, &throttle);
    assert_eq!(scenario.job(1).info.attempt, 0);
    let until = scenario.now.wall_ms + 5_000;
    let by = BlockedBy::Throttled { key: "acme".to_owned(), until };
    assert_eq!(scenario.job(1).info.blocked, Some(by));
    restored(&mut scenario);
    let delivered = scenario.credit(worker, 1, 10);
    assert_eq!(numbers(&delivered, &scenario), [3]);
    scenario.later(4_999).apply(Command::Tick);
    assert_eq!(scenario.counts().running, 1);
    assert_eq!(scenario.state.next_timer_ms(scenario.now), Some(scenario.now.mono_ms + 1));
    let out = scenario.later(1).apply(Command::Tick);
    assert_eq!(numbers(&out.assignments, &scenario), [1, 2]);
    // Without a limit key, only the job itself waits.
    scenario.enqueue(producer, &[plain(4), plain(5)]);
    let token = scenario.job(4).info.token.expect("it runs");
    scenario.settle(worker, token, &throttle);
    assert_eq!(states(&scenario, 4..=5), [JobState::Scheduled, JobState::Running]);
}

#[test]
fn a_rate_outlives_its_jobs_and_gives_nothing_back() {
    for scope in [LimitScope::Queue, LimitScope::Key, LimitScope::Shared] {
        let mut scenario = StateScenario::begin();
        set(&mut scenario, &rated(scope, "/jobs/*", (2, 1_000, 2))).expect("a limit");
        let producer = scenario.link("p");
        let gone = JobOptions { keep_ms: Some(0), ..JobOptions::default() };
        let job = |n| NewJob { options: gone.clone(), ..keyed(n, "acme") };
        scenario.enqueue(producer, &[job(1), job(2)]);
        let (worker, delivered) = scenario.worker("w", "/jobs/*", 10);
        assert_eq!(delivered.len(), 2, "{scope}");
        for done in delivered {
            scenario.complete(worker, done.token);
        }
        restored(&mut scenario);
        scenario.enqueue(producer, &[job(3), job(4)]);
        assert_eq!(scenario.counts().running, 0, "{scope}: the burst was used");
        let out = scenario.tick_at_next_timer();
        assert_eq!((out.assignments.len(), scenario.now.mono_ms), (1, 1_500), "{scope}");
        let out = scenario.tick_at_next_timer();
        assert_eq!((out.assignments.len(), scenario.now.mono_ms), (1, 2_000), "{scope}");
    }
}

#[test]
fn a_key_may_go_with_all_of_its_jobs_in_one_command() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Key, "/jobs/*")).expect("a limit");
    let producer = scenario.link("p");
    let gone = JobOptions { keep_ms: Some(0), ..JobOptions::default() };
    let job = |n| NewJob { options: gone.clone(), ..keyed(n, "acme") };
    scenario.enqueue(producer, &[job(1), job(2), job(3)]);
    scenario.act(Action::Cancel, Selection::Ids(vec![id(1), id(2), id(3)]));
    assert_eq!(scenario.state.limits.keys.len(), 0);
    // All expire in one `Tick`.
    let expires_at = Some(scenario.now.wall_ms + 1_000);
    let soon =
        |n| NewJob { options: JobOptions { expires_at, ..gone.clone() }, ..keyed(n, "acme") };
    scenario.enqueue(producer, &[soon(4), soon(5), soon(6)]);
    scenario.later(1_000).apply(Command::Tick);
    assert_eq!((scenario.state.limits.keys.len(), scenario.counts().blocked), (0, 0));
}

#[test]
fn limits_and_limit_keys_are_bounded() {
    let rules = Rules { limits: 1, limit_keys: 1, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    assert_eq!(set(&mut scenario, &limit(LimitScope::Queue, "/jobs/a")), Ok(true));
    let other = limit(LimitScope::Queue, "/jobs/b");
    assert_eq!(set(&mut scenario, &other), Err(RequestError::TooManyLimits));
    let producer = scenario.link("p");
    let outcomes = scenario.enqueue(producer, &[keyed(1, "a"), keyed(2, "b"), keyed(3, "a")]);
    let full = EnqueueOutcome::Refused(Refusal::KeysFull);
    assert_eq!(outcomes, [EnqueueOutcome::Created, full, EnqueueOutcome::Created]);
}

#[test]
fn a_faster_rate_counts_from_its_change_for_what_started_before() {
    for scope in [LimitScope::Queue, LimitScope::Key, LimitScope::Shared] {
        let mut scenario = StateScenario::begin();
        set(&mut scenario, &rated(scope, "/jobs/*", (1, 86_400_000, 1))).expect("a limit");
        let producer = scenario.link("p");
        scenario.enqueue(producer, &[keyed(1, "acme"), keyed(2, "acme")]);
        let (worker, delivered) = scenario.worker("w", "/jobs/*", 10);
        assert_eq!(numbers(&delivered, &scenario), [1], "{scope}");
        scenario.complete(worker, delivered[0].token);
        let hourly = rated(scope, "/jobs/*", (1, 3_600_000, 1));
        set(scenario.later(1_000), &hourly).expect("a limit");
        let from_ms = scenario.now.mono_ms;
        while scenario.counts().running == 0 {
            scenario.tick_at_next_timer();
        }
        assert_eq!(scenario.now.mono_ms - from_ms, 3_600_000, "{scope}");
    }
}

#[test]
fn a_key_without_jobs_is_forgotten_with_its_rate() {
    let daily = rated(LimitScope::Key, "/jobs/*", (1, 86_400_000, 1));
    let hourly = rated(LimitScope::Key, "/jobs/*", (1, 3_600_000, 1));
    let faster = |scenario: &mut StateScenario| set(scenario, &hourly);
    let gone = |scenario: &mut StateScenario| remove(scenario, &daily);
    let none = |scenario: &mut StateScenario| {
        set(scenario, &JobLimit { concurrency: Some(1), rate: None, ..daily.clone() })
    };
    type Change<'a> = &'a dyn Fn(&mut StateScenario) -> Result<bool, RequestError>;
    let changes: [(Change<'_>, u64); 3] = [(&gone, 0), (&none, 0), (&faster, 3_600_000)];
    for (change, forgotten_after_ms) in changes {
        let rules = Rules { step_jobs: 1, ..Rules::STANDARD };
        let mut scenario = StateScenario::with_rules(rules);
        set(&mut scenario, &daily).expect("a limit");
        let producer = scenario.link("p");
        let options = JobOptions { keep_ms: Some(0), ..JobOptions::default() };
        let job = |n, key| NewJob { options: options.clone(), ..keyed(n, key) };
        scenario.enqueue(producer, &[job(1, "a"), job(2, "b"), job(3, "c")]);
        let (worker, delivered) = scenario.worker("w", "/jobs/*", 10);
        for done in delivered {
            scenario.complete(worker, done.token);
        }
        scenario.later(1_000).apply(Command::Tick);
        let keys = |scenario: &StateScenario| scenario.state.limits.keys.len();
        assert_eq!(keys(&scenario), 3, "their rate remembers them");
        let from_ms = scenario.now.mono_ms;
        assert_eq!(change(&mut scenario), Ok(true));
        while keys(&scenario) > 0 {
            let at = scenario.state.next_timer_ms(scenario.now).expect("they are forgotten");
            assert!(at <= from_ms + forgotten_after_ms, "{at}");
            scenario.tick_at_next_timer();
        }
    }
}

#[test]
fn one_command_moves_a_bounded_number_of_jobs_into_a_raised_limit() {
    let rules = Rules { step_jobs: 10, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    let one = limit(LimitScope::Key, "/jobs/*");
    set(&mut scenario, &one).expect("a limit");
    let producer = scenario.link("p");
    let jobs: Vec<NewJob> = (0..60).map(|n| keyed(n, ["a", "b", "c"][n as usize % 3])).collect();
    scenario.enqueue(producer, &jobs);
    let blocked = |scenario: &StateScenario| scenario.counts().blocked;
    assert_eq!(blocked(&scenario), 57);
    set(&mut scenario, &JobLimit { concurrency: Some(100), ..one }).expect("a limit");
    let mut left = blocked(&scenario);
    while left > 0 {
        assert!(scenario.state.next_timer_ms(scenario.now).unwrap() <= scenario.now.mono_ms);
        scenario.apply(Command::Tick);
        let now = blocked(&scenario);
        assert!(now < left && left - now <= 10, "{left} to {now}");
        left = now;
    }
}

#[test]
fn finding_the_next_job_does_not_depend_on_the_keys_that_wait() {
    let keys = if std::env::var_os("LONGSHORE_LONG").is_some() { 100_000 } else { 10_000 };
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Key, "/jobs/*")).expect("a limit");
    let producer = scenario.link("p");
    let mut steps_of = |keys: std::ops::Range<u32>| {
        for from in keys.clone().step_by(10_000) {
            let jobs: Vec<NewJob> = (from..keys.end.min(from + 10_000))
                .flat_map(|n| {
                    let key = n.to_string();
                    [plain(2 * n).limit_key(key.clone()), plain(2 * n + 1).limit_key(key)]
                })
                .collect();
            jobs.chunks(10_000).for_each(|jobs| drop(scenario.enqueue(producer, jobs)));
        }
        let worker = scenario.link(&format!("w{}", keys.start));
        scenario.subscribe(worker, 1, "/jobs/*");
        let delivered = scenario.credit(worker, 1, 1);
        steps::take();
        scenario.complete(worker, delivered[0].token);
        scenario.credit(worker, 1, 1);
        steps::take()
    };
    let few = steps_of(0..10);
    let many = steps_of(10..keys);
    assert!(many <= few, "{many} steps with {keys} keys, {few} with ten");
}

#[test]
fn a_queue_that_is_held_back_costs_nothing_until_it_may_open() {
    let mut scenario = StateScenario::begin();
    set(&mut scenario, &limit(LimitScope::Shared, "/jobs/*")).expect("a limit");
    let (worker, _) = scenario.worker("w", "/jobs/*", 10);
    let producer = scenario.link("p");
    for n in 0..500 {
        scenario.enqueue(producer, &[to(n, &format!("/jobs/{n}"))]);
    }
    let line = |scenario: &StateScenario| {
        let mut entries = scenario.state.limits.entries.values();
        entries.next().map_or(0, |entry| entry.line.len())
    };
    assert_eq!(line(&scenario), 499);
    steps::take();
    scenario.enqueue(producer, &[to(900, "/jobs/400")]);
    let lease = scenario.state.running().next().expect("one runs");
    scenario.complete(worker, lease.token);
    assert!(steps::take() <= 4, "one queue leaves the line");
    assert_eq!(line(&scenario), 498);
    // Without credit none leaves it, whatever opens.
    let out = scenario.apply(Command::Recall { link: worker, subscription: 1, count: 99 });
    assert!(out.assignments.is_empty());
    let lease = scenario.state.running().next().expect("one runs");
    scenario.complete(worker, lease.token);
    assert_eq!(line(&scenario), 498);
    assert_eq!(scenario.credit(worker, 1, 1).len(), 1);
    assert_eq!(line(&scenario), 497);
}
