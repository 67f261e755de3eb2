//! Routes, and changes of a path's publishers.

use longshore_protocol::PublicationKind;
use longshore_resolver::ReadError;

use super::*;

#[test]
fn a_negative_answer_counts_only_for_earlier_callers() {
    let mut scenario = Scenario::new(single());
    assert_eq!(scenario.request_route(), RouteLookup::Pending);
    let since = scenario.now;
    scenario.pass(ms(3));
    scenario.resolve_with(PathAnswer::NotFound, true);
    let core = &mut scenario.core;
    assert_eq!(
        core.route(scenario.now, &path("/jobs"), false, since),
        RouteLookup::NoRoute(NoRoute::NoPublisher)
    );
    scenario.pass(ms(1));
    assert_eq!(
        scenario.request_route(),
        RouteLookup::Pending,
        "an old negative answer does not count for a new job"
    );
    assert_eq!(scenario.resolve_requests.len(), 1);
}

#[test]
fn a_warming_replicas_negative_answer_is_retried() {
    let a = publisher(1);
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve_with(PathAnswer::NotFound, false);
    assert_eq!(scenario.request_route(), RouteLookup::Pending);
    scenario.pass(ms(499));
    assert!(scenario.resolve_requests.is_empty());
    scenario.pass(ms(1));
    scenario.resolve(std::slice::from_ref(&a));
    assert_eq!(scenario.request_route(), RouteLookup::Known);
}

#[test]
fn a_default_is_not_used_before_a_complete_answer() {
    let (owner, default) = (publisher(1), publisher(2));
    let by_default = PathAnswer::Publishers {
        set: [publication(&default)].into(),
        by_default: true,
        fallback: None,
    };
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    // All replicas are warming: they may not know the path's publishers yet, and a default would
    // create a second queue of it.
    for _ in 0..3 {
        scenario.resolve_with(by_default.clone(), false);
        assert_eq!(scenario.request_route(), RouteLookup::Pending);
        scenario.pass(ms(499));
        assert!(scenario.resolve_requests.is_empty());
        scenario.pass(ms(1));
    }
    scenario.resolve(std::slice::from_ref(&owner));
    assert_eq!(scenario.request_route(), RouteLookup::Known);
    scenario.push(1);
    assert_eq!(scenario.dials.pop_front().expect("a dial").publisher, owner.id);
}

#[test]
fn a_default_serves_once_the_answer_is_complete() {
    let default = publisher(2);
    let by_default = PathAnswer::Publishers {
        set: [publication(&default)].into(),
        by_default: true,
        fallback: None,
    };
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve_with(by_default.clone(), false);
    scenario.pass(ms(500));
    scenario.resolve_with(by_default, true);
    scenario.push(1);
    assert_eq!(scenario.dials.pop_front().expect("a dial").publisher, default.id);
}

#[test]
fn a_path_with_a_value_and_a_queue_is_a_queue() {
    let (queue, value) = (publisher(1), publisher(2));
    let of_value = Publication {
        terms: Terms { kind: PublicationKind::Value, ..Terms::default() },
        ..publication(&value)
    };
    let is = |set: &[Publication]| PathAnswer::Publishers {
        set: set.into(),
        by_default: false,
        fallback: None,
    };
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve_with(is(std::slice::from_ref(&of_value)), true);
    assert_eq!(scenario.request_route(), RouteLookup::NoRoute(NoRoute::Value("p2".into())));
    assert!(scenario.dials.is_empty(), "no publisher is dialled");

    // A default for values above the path does not make it a value: its publisher may have a
    // default for queues further up.
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    let by_default =
        PathAnswer::Publishers { set: [of_value.clone()].into(), by_default: true, fallback: None };
    scenario.resolve_with(by_default, true);
    scenario.push(1);
    assert_eq!(scenario.dials.pop_front().expect("a dial").publisher, value.id);

    // A replica that has just started may not know which publisher has a queue there.
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve_with(is(std::slice::from_ref(&of_value)), false);
    assert_eq!(scenario.request_route(), RouteLookup::Pending);
    scenario.pass(ms(500));
    scenario.resolve_with(is(&[of_value.clone(), publication(&queue)]), true);
    scenario.push(1);
    assert_eq!(scenario.dials.pop_front().expect("a dial").publisher, queue.id);

    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve_with(is(&[of_value, publication(&queue)]), true);
    scenario.push(1);
    assert_eq!(scenario.dials.pop_front().expect("a dial").publisher, queue.id);
    assert!(scenario.dials.is_empty());
}

/// Enqueues a job each second, and answers it: the path stays in use.
fn send_each_second(scenario: &mut Scenario, seconds: u64) {
    for n in 0..seconds {
        scenario.push(n);
        let sent = scenario.next_sent();
        scenario.answer_all(&sent);
        scenario.pass(secs(1));
    }
}

#[test]
fn a_warming_replicas_default_replaces_no_publisher() {
    let (a, default) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    send_each_second(&mut scenario, 35);
    let set = [publication(&default)].into();
    scenario.resolve_with(PathAnswer::Publishers { set, by_default: true, fallback: None }, false);
    scenario.push(100);
    assert_eq!(scenario.next_sent().publisher, a.id);
}

#[test]
fn a_refused_path_and_a_silent_resolver_report_reasons() {
    let mut scenario = Scenario::new(single());
    let since = scenario.now;
    scenario.request_route();
    scenario.resolve_with(PathAnswer::Refused("no such tree".into()), true);
    let routed = scenario.core.route(scenario.now, &path("/jobs"), false, since);
    assert_eq!(routed, RouteLookup::NoRoute(NoRoute::Refused("no such tree".into())));
    scenario.pass(ms(1));
    scenario.request_route();
    let paths = scenario.resolve_requests.pop_front().expect("a question");
    scenario.core.resolved(scenario.now, &paths, Err(ReadError::NoReplicas));
    let routed = scenario.core.route(scenario.now, &path("/jobs"), false, scenario.now);
    assert_eq!(routed, RouteLookup::NoRoute(NoRoute::Resolver(Arc::new(ReadError::NoReplicas))));
}

#[test]
fn a_path_in_use_is_refreshed_and_finds_new_publishers() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    send_each_second(&mut scenario, 35);
    assert_eq!(scenario.resolve_requests.len(), 1);
    scenario.resolve(&[a, b.clone()]);
    scenario.push(100);
    scenario.attach_next(1);
    let mut publishers = Vec::new();
    for n in 0..50 {
        scenario.push(n);
        let sent = std::iter::from_fn(|| scenario.sent.pop_front()).collect::<Vec<_>>();
        for sent in sent {
            publishers.push(sent.publisher);
            scenario.answer_all(&sent);
        }
        scenario.pass(secs(1));
        scenario.resolve_requests.clear();
    }
    assert!(publishers.contains(&b.id));
}

#[test]
fn waiting_batches_go_to_a_new_publisher() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve(std::slice::from_ref(&a));
    scenario.push(1);
    scenario.pass(secs(2));
    let dials = scenario.dials.pop_front().expect("a try");
    scenario.lose_link(a.id, dials.link);
    scenario.resolve(std::slice::from_ref(&b));
    let dials = scenario.dials.pop_back().expect("the new one is tried");
    assert_eq!(dials.publisher, b.id);
    scenario.attach(b.id, dials.link, 1);
    assert_eq!(scenario.next_sent().publisher, b.id);
}

#[test]
fn a_publisher_that_answers_survives_a_directory_loss() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    send_each_second(&mut scenario, 35);
    scenario.resolve_with(PathAnswer::NotFound, true);
    scenario.push(100);
    assert_eq!(scenario.next_sent().publisher, a.id);
}

#[test]
fn paths_with_the_same_publishers_share_batches() {
    let a = publisher(1);
    let mut scenario = Scenario::new(StreamLimits { batch_jobs_max: 10, ..single() });
    for text in ["/a", "/b"] {
        scenario.core.route(scenario.now, &path(text), false, scenario.now);
        scenario.drain();
        scenario.resolve(std::slice::from_ref(&a));
    }
    for n in 0..10 {
        let path = path(if n % 2 == 0 { "/a" } else { "/b" });
        scenario.try_push(&NewJob { path, ..job(n) }).expect("taken");
    }
    scenario.attach_next(1);
    let sent = scenario.next_sent();
    assert_eq!((sent.jobs, sent.batch.paths().len()), (10, 2));
}

#[test]
fn a_full_path_cache_is_cleared() {
    let a = publisher(1);
    let mut scenario = Scenario::new(single());
    for n in 0..=PATHS_MAX {
        scenario.core.route(scenario.now, &path(&format!("/p/{n}")), false, scenario.now);
        scenario.drain();
    }
    while !scenario.resolve_requests.is_empty() {
        scenario.resolve(std::slice::from_ref(&a));
    }
    assert!(scenario.core.routing.paths.len() <= PATHS_MAX);
    let forgotten = NewJob { path: path("/p/0"), ..job(1) };
    assert!(matches!(scenario.try_push(&forgotten), Err(PushError::NoRoute)));
}
