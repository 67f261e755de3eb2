//! Jobs with idempotency keys go to the home of their path, and nowhere else.

use super::*;

fn keyed(n: u64) -> NewJob {
    job(n).idempotency_key(format!("key {n}"))
}

/// `/jobs` has these publishers, each with its homes.
fn answer(publishers: &[(PublisherInfo, &[&str])]) -> PathAnswer {
    let publication = |(publisher, homes): &(PublisherInfo, &[&str])| {
        let homes = homes.iter().map(|&home| home.into()).collect();
        Publication { publisher: publisher.clone(), terms: Terms { homes, ..Terms::default() } }
    };
    let set = publishers.iter().map(publication).collect();
    PathAnswer::Publishers { set, by_default: false, fallback: None }
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
    let (a, b, c) = (publisher(1), publisher(2), publisher(3));
    let none: &[&str] = &[];
    for (publishers, why) in [
        (vec![(a.clone(), none), (b.clone(), none)], "2 publishers, none of them its home"),
        (
            vec![(a.clone(), &["p1"][..]), (b.clone(), &["p2"])],
            "publishers that name different homes",
        ),
        (vec![(a.clone(), &["p1", "p2"][..]), (c.clone(), none)], "2 homes"),
    ] {
        let mut scenario = Scenario::new(single());
        let since = scenario.now;
        assert_eq!(scenario.request_home(), RouteLookup::Pending);
        scenario.resolve_with(answer(&publishers), true);
        let looked_up = scenario.core.route(scenario.now, &path("/jobs"), true, since);
        assert_eq!(looked_up, RouteLookup::NoRoute(NoRoute::NoHome(why.into())));
        assert!(matches!(scenario.try_push(&keyed(1)), Err(PushError::NoRoute)));
        scenario.push(2);
        scenario.attach_all();
        assert_eq!(scenario.sent.len(), 1, "the plain job");
    }
}

#[test]
fn a_job_with_a_key_goes_to_the_named_home_only() {
    let (home, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_home();
    scenario.resolve_with(answer(&[(home.clone(), &["p1"]), (other.clone(), &[])]), true);
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
