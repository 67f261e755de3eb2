//! Jobs with idempotency keys go to the home of their path, and nowhere else.

use super::*;

fn keyed(n: u64) -> NewJob {
    job(n).idempotency_key(format!("key {n}"))
}

/// A publisher, and the names that it declares for `/jobs` and all below.
type Declaring<'a> = (PublisherInfo, &'a [&'a str]);

fn publications(publishers: &[Declaring<'_>]) -> Arc<[Publication]> {
    let publication = |(publisher, names): &Declaring<'_>| {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let declared = (!names.is_empty()).then(|| ("/jobs".parse().unwrap(), names));
        let homes = Homes::new(declared).unwrap();
        Publication { publisher: publisher.clone(), terms: Terms { homes, ..Terms::default() } }
    };
    publishers.iter().map(publication).collect()
}

/// `/jobs` has these publishers.
fn answer(publishers: &[Declaring<'_>]) -> PathAnswer {
    PathAnswer::Publishers { set: publications(publishers), by_default: false, fallback: None }
}

/// Without a job or a home before.
fn asked() -> Scenario {
    let mut scenario = Scenario::new(single());
    scenario.request_home();
    scenario
}

impl Scenario {
    fn request_home(&mut self) -> RouteLookup {
        let routed = self.core.route(self.now, &path("/jobs"), true, self.now);
        self.drain();
        routed
    }

    /// Attaches every link that is dialled.
    fn attach_all(&mut self) {
        while let Some(dial) = self.dials.pop_front() {
            self.attach(dial.publisher, dial.link, 1);
        }
    }

    fn error_of(&self, n: u64) -> String {
        let ended = self.ended.iter().find(|batch| batch.jobs.contains(&n)).expect("it has ended");
        match &ended.end {
            BatchOutcome::Failed(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_only_publisher_of_a_path_is_its_home() {
    let mut scenario = Scenario::new(single());
    assert_eq!(scenario.request_home(), RouteLookup::Pending);
    scenario.resolve_with(answer(&[(publisher(1), &[])]), true);
    assert_eq!(scenario.request_home(), RouteLookup::Known);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.attach_all();
    assert_eq!(scenario.sent.pop_front().expect("it is sent").publisher, publisher(1).id);
}

#[test]
fn without_one_home_a_job_with_a_key_is_refused_and_a_plain_one_is_sent() {
    let (a, b) = (publisher(1), publisher(2));
    let none: &[&str] = &[];
    let twin = PublisherInfo { name: "p1".into(), ..publisher(3) };
    let no_home = |why: &str| NoRoute::NoHome(why.into());
    let disagree = |why: &str| NoRoute::HomesDisagree(why.into());
    for (publishers, expected) in [
        (
            vec![(a.clone(), none), (b.clone(), none)],
            no_home("2 publishers, none of which declares its home"),
        ),
        (
            vec![(a.clone(), &["p1"][..]), (b.clone(), &["p2"])],
            disagree(
                "publishers that disagree: p1 declares p1 (/jobs = [\"p1\"]), p2 declares p2 \
                 (/jobs = [\"p2\"])",
            ),
        ),
        // A job with a key could go to the second by a replica that knows only that one.
        (
            vec![(a.clone(), &["p1"][..]), (b.clone(), none)],
            disagree(
                "publishers that disagree: p1 declares p1 (/jobs = [\"p1\"]), p2 declares no home",
            ),
        ),
        (
            vec![(a.clone(), &["p1"][..]), (twin, &["p1"])],
            disagree("two publishers with the name of its home, p1: 01010101 and 03030303"),
        ),
    ] {
        let mut scenario = Scenario::new(single());
        let since = scenario.now;
        assert_eq!(scenario.request_home(), RouteLookup::Pending);
        scenario.resolve_with(answer(&publishers), true);
        let looked_up = scenario.core.route(scenario.now, &path("/jobs"), true, since);
        assert_eq!(looked_up, RouteLookup::NoRoute(expected));
        assert!(matches!(scenario.try_push(&keyed(1)), Err(PushError::NoRoute)));
        scenario.push(2);
        scenario.attach_all();
        assert_eq!(scenario.sent.len(), 1, "the plain job");
    }
}

#[test]
fn a_home_that_would_only_create_the_path_gets_its_jobs() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = asked();
    let declared: &[&str] = &["p1"];
    let set = publications(&[(other.clone(), declared)]);
    let default = publications(&[(home.clone(), declared), (other.clone(), declared)]);
    let answer = PathAnswer::Publishers { set, by_default: false, fallback: Some(default) };
    scenario.resolve_with(answer, true);
    assert_eq!(scenario.request_home(), RouteLookup::Known);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.attach_all();
    assert_eq!(scenario.next_sent().publisher, home.id);
    // A plain job goes there with one that has a key.
    let jobs = [job(2), keyed(3)];
    scenario.core.push_atomic(scenario.now, scenario.stream, &jobs).expect("it has a home");
    scenario.drain();
    assert_eq!(scenario.next_sent().publisher, home.id);

    // A default of a home that declares something else.
    let mut scenario = asked();
    let set = publications(&[(other, declared)]);
    let default = publications(&[(home, &["p2"])]);
    let answer = PathAnswer::Publishers { set, by_default: false, fallback: Some(default) };
    let since = scenario.now;
    scenario.resolve_with(answer, true);
    let looked_up = scenario.core.route(scenario.now, &path("/jobs"), true, since);
    assert!(matches!(looked_up, RouteLookup::NoRoute(NoRoute::HomesDisagree(_))), "{looked_up:?}");
}

#[test]
fn each_path_has_its_home_among_several_names() {
    let publishers: Vec<PublisherInfo> = (1..=3).map(publisher).collect();
    let names = ["p1", "p2", "p3"].map(str::to_owned).to_vec();
    let homes = Homes::new([("/tenants/*".parse().unwrap(), names)]).unwrap();
    let set = publishers.iter().map(|publisher| Publication {
        publisher: publisher.clone(),
        terms: Terms { homes: homes.clone(), ..Terms::default() },
    });
    let answer = PathAnswer::Publishers { set: set.collect(), by_default: true, fallback: None };
    let mut scenario = Scenario::new(single());
    let mut used = std::collections::BTreeSet::new();
    for tenant in 0..20 {
        let path = path(&format!("/tenants/{tenant}/jobs"));
        scenario.core.route(scenario.now, &path, true, scenario.now);
        scenario.drain();
        scenario.resolve_with(answer.clone(), true);
        let job = NewJob { path: path.clone(), ..keyed(tenant) };
        scenario.try_push(&job).expect("it has a home");
        scenario.attach_all();
        let sent = scenario.next_sent();
        let to = publishers.iter().find(|one| one.id == sent.publisher).expect("one of them");
        assert_eq!(to.name, homes.home_of(&path).expect("it is declared").name);
        scenario.answer_all(&sent);
        used.insert(to.name.clone());
    }
    assert_eq!(used.len(), 3, "{used:?}");
}

#[test]
fn an_undeclared_home_stays_while_its_link_is_up() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(a.clone(), &[])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    let link = scenario.attach_next(1);
    let sent = scenario.next_sent();
    assert_eq!(sent.publisher, a.id);
    scenario.answer_all(&sent);
    let next_goes_to = |scenario: &mut Scenario, n, others: &[Declaring<'_>]| {
        scenario.request_home();
        while !scenario.resolve_requests.is_empty() {
            scenario.resolve_with(answer(others), true);
        }
        scenario.try_push(&keyed(n)).expect("it has a home");
        scenario.attach_all();
        let sent = scenario.next_sent();
        scenario.answer_all(&sent);
        sent.publisher
    };
    let none: &[&str] = &[];
    // Another replica does not know it.
    let only_b = &[(b.clone(), none)][..];
    scenario.pass(PATH_REFRESH_AGE + SWEEP_INTERVAL);
    assert!(!scenario.resolve_requests.is_empty(), "it is refreshed");
    assert_eq!(next_goes_to(&mut scenario, 2, only_b), a.id);
    // Nor does it after the path was idle, as long as the link lasts.
    scenario.pass(ROUTE_IDLE + PATH_REFRESH_AGE);
    assert_eq!(next_goes_to(&mut scenario, 3, only_b), a.id);
    // One that knows both, and then the other again: the first still has the keys.
    scenario.pass(PATH_REFRESH_AGE + SWEEP_INTERVAL);
    scenario.resolve_with(answer(&[(a.clone(), none), (b.clone(), none)]), true);
    assert!(matches!(scenario.try_push(&keyed(4)), Err(PushError::NoRoute)));
    scenario.pass(ms(1));
    assert_eq!(next_goes_to(&mut scenario, 5, only_b), a.id);
    // Without its link, the directory decides.
    scenario.lose_link(a.id, link);
    scenario.pass(PATH_REFRESH_AGE + SWEEP_INTERVAL);
    scenario.dials.retain(|dial| dial.publisher == b.id);
    assert_eq!(next_goes_to(&mut scenario, 6, only_b), b.id);
}

#[test]
fn only_paths_of_jobs_with_keys_are_remembered() {
    for (job, cached) in [(job(1), 0), (keyed(1), 1)] {
        let mut scenario = asked();
        scenario.resolve_with(answer(&[(publisher(1), &[])]), true);
        scenario.try_push(&job).expect("it has a publisher");
        scenario.attach_all();
        let sent = scenario.next_sent();
        scenario.answer_all(&sent);
        let idle = scenario.now + ROUTE_IDLE + PATH_REFRESH_AGE;
        while scenario.now < idle {
            scenario.pass(PATH_REFRESH_AGE + SWEEP_INTERVAL);
            while !scenario.resolve_requests.is_empty() {
                scenario.resolve_with(answer(&[(publisher(1), &[])]), true);
            }
        }
        assert_eq!(scenario.core.routing.paths.len(), cached);
        // Nor does a full cache forget it.
        for n in 0..PATHS_MAX {
            scenario.core.routing.request_resolve(&path(&format!("/others/{n}")));
        }
        let only = scenario.core.routing.paths.get(&path("/jobs"));
        assert_eq!(only.is_some_and(|entry| entry.only_publisher.is_some()), cached == 1);
    }
}

#[test]
fn a_declared_home_replaces_an_undeclared_one_at_once() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(a.clone(), &[])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.attach_all();
    let sent = scenario.next_sent();
    scenario.answer_all(&sent);
    scenario.pass(PATH_REFRESH_AGE + SWEEP_INTERVAL);
    scenario.resolve_with(answer(&[(a, &["p2"]), (b.clone(), &["p2"])]), true);
    scenario.try_push(&keyed(2)).expect("it has a home");
    scenario.attach_all();
    assert_eq!(scenario.next_sent().publisher, b.id);
}

#[test]
fn jobs_with_keys_only_find_a_home_that_has_moved_at_once() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(home.clone(), &["p1"]), (other.clone(), &["p1"])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    let link = scenario.attach_next(1);
    let sent = scenario.next_sent();
    scenario.answer_all(&sent);
    scenario.pass(secs(5));
    assert!(scenario.resolve_requests.is_empty());
    // It moves to another address; the first job that waits for it has its path resolved, and so
    // does every dial that fails.
    scenario.lose_link(home.id, link);
    let publishers = [(home.clone(), &["p1"][..]), (other.clone(), &["p1"])];
    scenario.try_push(&keyed(2)).expect("it has a home");
    scenario.resolve_with(answer(&publishers), true);
    scenario.pass(RESOLVE_INTERVAL_MIN);
    let dial = scenario.dials.pop_back().expect("it is dialled");
    assert_eq!(dial.publisher, home.id);
    scenario.lose_link(home.id, dial.link);
    let moved = PublisherInfo::new(home.id, Epoch(2), "p1", [([10, 0, 0, 9], 4780)]);
    scenario.resolve_with(answer(&[(moved, &["p1"]), (other, &["p1"])]), true);
    assert_eq!(scenario.dials.back().expect("it is dialled").address, "10.0.0.9:4780");
}

#[test]
fn a_batch_that_its_publisher_is_not_home_of_goes_to_the_new_home() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(a.clone(), &["p1"]), (b.clone(), &["p1"])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.attach_all();
    let refused = |jobs| Ok(Runs::all(EnqueueOutcome::Refused(Refusal::NotHome), jobs));
    let sent = scenario.next_sent();
    assert_eq!(sent.publisher, a.id);
    scenario.answer(&sent, refused(sent.jobs));
    assert!(scenario.ended.is_empty() && scenario.sent.is_empty(), "it waits for the answer");
    scenario.resolve_with(answer(&[(a.clone(), &["p2"]), (b.clone(), &["p2"])]), true);
    scenario.attach_all();
    let sent = scenario.next_sent();
    assert_eq!(sent.publisher, b.id);
    scenario.answer_all(&sent);
    assert_eq!(scenario.next_end().jobs, [1]);
    assert_eq!(scenario.core.in_flight_jobs(), 0);
}

#[test]
fn a_batch_that_no_publisher_is_home_of_is_refused_in_the_end() {
    let home = publisher(1);
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(home.clone(), &[])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    let mut sent_times = 0;
    while scenario.ended.is_empty() {
        scenario.attach_all();
        if let Some(sent) = scenario.sent.pop_front() {
            sent_times += 1;
            let refused = EnqueueOutcome::Refused(Refusal::NotHome);
            scenario.answer(&sent, Ok(Runs::all(refused, sent.jobs)));
        }
        if !scenario.resolve_requests.is_empty() {
            scenario.resolve_with(answer(&[(home.clone(), &[])]), true);
        }
        scenario.pass(ms(100));
        assert!(scenario.now < secs(20));
    }
    assert_eq!(sent_times, NOT_HOME_MAX + 1);
    let BatchOutcome::Answered { outcomes, .. } = scenario.next_end().end else { panic!() };
    assert_eq!(outcomes.runs()[0].0, EnqueueOutcome::Refused(Refusal::NotHome));
}

#[test]
fn a_refused_batch_waits_for_its_home_up_to_its_deadline() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(a.clone(), &["p1"]), (b.clone(), &["p1"])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.attach_all();
    let sent = scenario.next_sent();
    let refused = EnqueueOutcome::Refused(Refusal::NotHome);
    scenario.answer(&sent, Ok(Runs::all(refused, sent.jobs)));
    // The new home does not publish the path yet: the path is resolved again until it does.
    let mut resolved = 0;
    while scenario.now < secs(10) {
        if !scenario.resolve_requests.is_empty() {
            resolved += 1;
            scenario.resolve_with(answer(&[(a.clone(), &["p2"])]), true);
        }
        scenario.pass(ms(100));
    }
    assert!((10..=21).contains(&resolved), "{resolved}");
    scenario.pass(secs(21));
    let error = scenario.error_of(1);
    assert!(error.starts_with("HomeAway: "), "{error}");
}

#[test]
fn a_job_with_a_key_goes_to_the_named_home_only() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_home();
    scenario.resolve_with(answer(&[(home.clone(), &["p1"]), (other.clone(), &["p1"])]), true);
    for n in 0..20 {
        scenario.try_push(&keyed(n)).expect("it has a home");
    }
    // The other one is up, and the home is not yet.
    let (homes, others): (Vec<Dial>, Vec<Dial>) =
        scenario.dials.drain(..).partition(|dial| dial.publisher == home.id);
    others.iter().for_each(|dial| scenario.attach(dial.publisher, dial.link, 1));
    scenario.pass(secs(1));
    assert!(scenario.sent.is_empty(), "{:?}", scenario.sent);
    homes.iter().for_each(|dial| scenario.attach(dial.publisher, dial.link, 1));
    scenario.attach_all();
    assert!(!scenario.sent.is_empty());
    assert!(scenario.sent.iter().all(|sent| sent.publisher == home.id));
}

#[test]
fn a_job_waits_for_its_home_up_to_its_deadline() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_home();
    scenario.resolve_with(answer(&[(home, &["p1"]), (other, &["p1"])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.pass(secs(29));
    assert!(scenario.ended.is_empty(), "it waits");
    scenario.pass(secs(2));
    let error = scenario.error_of(1);
    assert!(error.starts_with("HomeAway: ") && error.contains("p1: "), "{error}");
}

#[test]
fn a_home_that_does_not_publish_the_path_is_awaited() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_home();
    scenario.resolve_with(answer(&[(other.clone(), &["p1"])]), true);
    assert_eq!(scenario.request_home(), RouteLookup::HomeAway("p1".into()));
    scenario.pass(ms(500));
    scenario.resolve_with(answer(&[(other, &["p1"]), (home, &["p1"])]), true);
    assert_eq!(scenario.request_home(), RouteLookup::Known);
    // Nobody waits any more: the path is not resolved again and again.
    scenario.pass(secs(5));
    assert!(scenario.resolve_requests.is_empty());
}

#[test]
fn a_warming_replica_does_not_tell_the_home() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    let since = scenario.now;
    scenario.request_home();
    // It does not know the second publisher yet.
    scenario.resolve_with(answer(&[(a.clone(), &[])]), false);
    assert_eq!(scenario.request_home(), RouteLookup::Pending);
    assert!(matches!(scenario.try_push(&keyed(1)), Err(PushError::NoRoute)));
    scenario.pass(ms(500));
    scenario.resolve_with(answer(&[(a, &[]), (b, &[])]), true);
    let looked_up = scenario.core.route(scenario.now, &path("/jobs"), true, since);
    assert!(matches!(looked_up, RouteLookup::NoRoute(NoRoute::NoHome(_))), "{looked_up:?}");
}

#[test]
fn a_job_that_waits_for_its_home_needs_all_publishers() {
    let a = publisher(1);
    let warming =
        |scenario: &mut Scenario| scenario.resolve_with(answer(&[(a.clone(), &[])]), false);
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    assert!(!scenario.all_publishers, "a plain job needs any publisher");
    warming(&mut scenario);
    let began = scenario.now;
    scenario.request_home();
    assert!(scenario.all_publishers);
    // All replicas are warming: they are not searched at each retry.
    while scenario.now < began + ALL_PUBLISHERS_INTERVAL {
        warming(&mut scenario);
        assert_eq!(scenario.request_home(), RouteLookup::Pending);
        scenario.pass(WARMING_RETRY);
        assert_eq!(scenario.all_publishers, scenario.now == began + ALL_PUBLISHERS_INTERVAL);
    }
    scenario.resolve_with(answer(&[(a.clone(), &[])]), true);
    assert_eq!(scenario.request_home(), RouteLookup::Known);
}

#[test]
fn a_request_for_all_publishers_leaves_other_paths_for_the_next_one() {
    let a = publisher(1);
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    let (keyed, plain) = (path("/keyed"), path("/plain"));
    scenario.core.route(scenario.now, &plain, false, scenario.now);
    scenario.core.route(scenario.now, &keyed, true, scenario.now);
    scenario.resolve_with(answer(&[(a.clone(), &[])]), true);
    assert!(scenario.all_publishers);
    assert_eq!(scenario.resolve_requests, [vec![keyed.clone()]]);
    // It takes longer than the interval, which begins at its end.
    scenario.pass(ALL_PUBLISHERS_INTERVAL + secs(1));
    scenario.resolve_with(answer(&[(a.clone(), &[])]), false);
    assert_eq!(scenario.resolve_requests, [vec![plain]]);
    scenario.core.route(scenario.now, &keyed, true, scenario.now);
    scenario.resolve_with(answer(&[(a, &[])]), true);
    scenario.pass(WARMING_RETRY);
    assert_eq!(scenario.resolve_requests, [vec![keyed]]);
    assert!(!scenario.all_publishers);
}

/// Its publisher has refused it as not the home.
#[test]
fn a_batch_that_waits_for_its_home_needs_all_publishers() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = asked();
    scenario.resolve_with(answer(&[(a.clone(), &["p1"]), (b.clone(), &["p1"])]), true);
    scenario.try_push(&keyed(1)).expect("it has a home");
    scenario.attach_all();
    scenario.pass(ALL_PUBLISHERS_INTERVAL);
    let sent = scenario.next_sent();
    let refused = EnqueueOutcome::Refused(Refusal::NotHome);
    scenario.answer(&sent, Ok(Runs::all(refused, sent.jobs)));
    assert!(scenario.all_publishers);
    scenario.resolve_with(answer(&[(a, &["p2"]), (b.clone(), &["p2"])]), true);
    scenario.attach_all();
    assert_eq!(scenario.next_sent().publisher, b.id);
}

#[test]
fn an_atomic_batch_with_a_key_goes_to_the_home() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_home();
    scenario.request_route();
    scenario.resolve_with(answer(&[(home.clone(), &["p1"]), (other, &["p1"])]), true);
    for n in 0..20 {
        let jobs = [job(2 * n), keyed(2 * n + 1)];
        scenario.core.push_atomic(scenario.now, scenario.stream, &jobs).expect("it has a home");
        scenario.drain();
    }
    scenario.attach_all();
    scenario.pass(ms(100));
    assert!(!scenario.sent.is_empty());
    assert!(scenario.sent.iter().all(|sent| sent.publisher == home.id));
}

/// Several paths have one home, whose machine is gone: a publisher with another id took over its
/// name. They are not resolved at once.
#[test]
fn batches_follow_one_path_of_several_to_its_new_home() {
    let (gone, heir) = (publisher(1), PublisherInfo { name: "p1".into(), ..publisher(2) });
    let paths = ["/jobs/a", "/jobs/b", "/jobs/c"].map(path);
    for (jobs, moves) in [([0, 0], 0), ([0, 1], 0), ([0, 1], 1), ([1, 0], 0)] {
        let mut scenario = Scenario::new(StreamLimits { batch_jobs_max: 2, ..single() });
        for path in &paths {
            scenario.core.route(scenario.now, path, true, scenario.now);
            scenario.drain();
            scenario.resolve_with(answer(&[(gone.clone(), &["p1"])]), true);
        }
        for (n, at) in (1..).zip(jobs) {
            let job = NewJob { path: paths[at].clone(), ..keyed(n) };
            scenario.try_push(&job).expect("it has a home");
        }
        scenario.dials.clear();
        scenario.core.routing.request_resolve(&paths[moves]);
        scenario.pass(ms(1));
        let moved = || answer(&[(heir.clone(), &["p1"])]);
        scenario.resolve_with(moved(), true);
        scenario.pass(WARMING_RETRY);
        while !scenario.resolve_requests.is_empty() {
            scenario.resolve_with(moved(), true);
        }
        let dial = scenario.dials.pop_front().expect("the heir is dialled");
        scenario.attach(heir.id, dial.link, 1);
        assert_eq!(scenario.next_sent().jobs, 2, "{jobs:?}, {moves}");
    }
}

/// An atomic batch has jobs with keys and, for a path without a home, plain ones.
#[test]
fn an_atomic_batch_of_two_kinds_follows_its_home() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = asked();
    let log = path("/log");
    scenario.resolve_with(answer(&[(a.clone(), &["p1"]), (b.clone(), &["p1"])]), true);
    scenario.core.route(scenario.now, &log, false, scenario.now);
    scenario.drain();
    scenario.resolve_with(answer(&[(a.clone(), &[]), (b.clone(), &[])]), true);
    let jobs = [keyed(1), NewJob { path: log, ..job(2) }];
    scenario.core.push_atomic(scenario.now, scenario.stream, &jobs).expect("it has a home");
    scenario.drain();
    scenario.attach_all();
    let sent = scenario.next_sent();
    assert_eq!(sent.publisher, a.id);
    let refused = EnqueueOutcome::Refused(Refusal::NotHome);
    scenario.answer(&sent, Ok(Runs::all(refused, sent.jobs)));
    while let Some(asked) = scenario.resolve_requests.front() {
        let names: &[&str] = if asked[0] == path("/jobs") { &["p2"] } else { &[] };
        scenario.resolve_with(answer(&[(a.clone(), names), (b.clone(), names)]), true);
        scenario.pass(ms(1));
    }
    scenario.attach_all();
    assert_eq!(scenario.next_sent().publisher, b.id);
}
