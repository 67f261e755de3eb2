//! Which batches go to another publisher.

use super::*;

#[test]
fn a_batch_refused_by_a_draining_publisher_goes_to_another() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a, b]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.answer(&first, Err(BatchRefusal::Draining));
    let second = scenario.next_sent();
    assert_ne!(second.publisher, first.publisher);
    scenario.answer_all(&second);
    assert_eq!(answered_by(&scenario.next_end().end), second.publisher);
}

#[test]
fn a_draining_refusal_resolves_the_path_again() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.pass(ms(2_000));
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.answer(&first, Err(BatchRefusal::Draining));
    assert_eq!(scenario.resolve_requests.len(), 1, "at once, not when the route is old");
    scenario.resolve(&[a, b.clone()]);
    scenario.attach_next(1);
    let second = scenario.next_sent();
    assert_eq!(second.publisher, b.id);
    scenario.answer_all(&second);
    assert_eq!(answered_by(&scenario.next_end().end), b.id);
}

#[test]
fn a_stopping_publisher_keeps_its_batches_and_gets_none() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a, b]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.core.goodbye(scenario.now, first.publisher, first.link);
    for n in 2..20 {
        scenario.push(n);
        assert_ne!(scenario.next_sent().publisher, first.publisher);
    }
    scenario.answer_all(&first);
    assert_eq!(answered_by(&scenario.next_end().end), first.publisher);
}

#[test]
fn a_received_batch_stays_when_its_copy_is_refused() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a, b]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(first.publisher, first.link);
    let link = scenario.attach_next(first.sequence + 1);
    let again = scenario.next_sent();
    scenario.answer(&again, Err(BatchRefusal::Draining));
    assert!(
        scenario.sent.is_empty(),
        "the first copy is there: another publisher would run it twice"
    );
    scenario.lose_link(first.publisher, link);
    scenario.pass(ms(200));
    scenario.attach_next(first.sequence + 1);
    let third = scenario.next_sent();
    assert_eq!((third.publisher, third.sequence), (first.publisher, first.sequence));
    scenario.answer_all(&third);
    assert_eq!(scenario.next_end().jobs, [1]);
}

#[test]
fn new_batches_avoid_a_publisher_whose_link_is_down() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a, b]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(first.publisher, first.link);
    for n in 2..20 {
        scenario.push(n);
        assert_ne!(scenario.next_sent().publisher, first.publisher);
    }
}

/// `own` publishes the path; `default` has the default above it.
fn below_a_default(
    scenario: &mut Scenario,
    own: &PublisherInfo,
    default: &PublisherInfo,
    complete: bool,
) {
    scenario.request_route();
    let set = [publication(own)].into();
    let fallback = Some([publication(own), publication(default)].into());
    let answer = PathAnswer::Publishers { set, by_default: false, fallback };
    scenario.resolve_with(answer, complete);
}

#[test]
fn a_dead_publishers_path_falls_back_to_the_default() {
    let (dead, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    below_a_default(&mut scenario, &dead, &other, true);
    scenario.push(1);
    let dials = scenario.dials.pop_front().expect("a dial");
    assert_eq!(dials.publisher, dead.id, "its own publisher comes first");
    assert!(scenario.dials.is_empty(), "no other while it has not failed");
    scenario.lose_link(dead.id, dials.link);
    let next = scenario.dials.iter().find(|dials| dials.publisher == other.id);
    let (next, at) = next.map(|next| (next.link, next.at)).expect("the next candidate is dialled");
    assert_eq!(at, scenario.now, "at once");
    scenario.attach(other.id, next, 1);
    let sent = scenario.next_sent();
    assert_eq!(sent.publisher, other.id);
    scenario.answer_all(&sent);
    assert_eq!(answered_by(&scenario.next_end().end), other.id);
}

#[test]
fn jobs_return_to_the_paths_own_publisher() {
    let (own, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    below_a_default(&mut scenario, &own, &other, true);
    scenario.push(1);
    let dials = scenario.dials.pop_front().expect("a dial");
    scenario.lose_link(own.id, dials.link);
    scenario.pass(secs(1));
    let latest = |scenario: &Scenario, id| {
        let of = |dials: &&Dial| dials.publisher == id;
        scenario.dials.iter().rev().find(of).expect("it is dialled").link
    };
    let link = latest(&scenario, other.id);
    scenario.attach(other.id, link, 1);
    let sent = scenario.next_sent();
    scenario.answer_all(&sent);
    let link = latest(&scenario, own.id);
    scenario.attach(own.id, link, 1);
    // A route keeps its publisher for a while, so that batches stay large.
    scenario.pass(ms(300));
    for n in 2..10 {
        scenario.push(n);
        let sent = scenario.next_sent();
        assert_eq!(sent.publisher, own.id);
        scenario.answer_all(&sent);
    }
}

#[test]
fn a_sent_batch_waits_for_its_own_publisher() {
    let (own, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    below_a_default(&mut scenario, &own, &other, true);
    scenario.push(1);
    scenario.attach_next(1);
    let sent = scenario.next_sent();
    scenario.lose_link(own.id, sent.link);
    let next = scenario.dials.iter().find(|dials| dials.publisher == other.id);
    let next = next.expect("new jobs need it").link;
    scenario.attach(other.id, next, 1);
    assert!(scenario.sent.is_empty(), "it may have reached the first");
    scenario.push(2);
    assert_eq!(scenario.next_sent().publisher, other.id, "a new batch is not delayed");
}

#[test]
fn closing_an_idle_link_causes_no_fallback() {
    let (own, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    below_a_default(&mut scenario, &own, &other, true);
    scenario.push(1);
    scenario.attach_next(1);
    let sent = scenario.next_sent();
    scenario.answer_all(&sent);
    scenario.pass(secs(600));
    assert_eq!(scenario.closed.len(), 1, "idle");
    below_a_default(&mut scenario, &own, &other, true);
    scenario.push(2);
    let dials: Vec<PublisherId> = scenario.dials.drain(..).map(|one| one.publisher).collect();
    assert_eq!(dials, [own.id]);
}

#[test]
fn a_warming_replicas_default_is_no_candidate() {
    let (dead, other) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    below_a_default(&mut scenario, &dead, &other, false);
    scenario.push(1);
    let dials = scenario.dials.pop_front().expect("a dial");
    scenario.lose_link(dead.id, dials.link);
    assert!(scenario.dials.iter().all(|dials| dials.publisher == dead.id));
}

#[test]
fn an_unsent_batch_goes_to_the_first_attached_publisher() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve(&[a, b.clone()]);
    scenario.push(1);
    assert_eq!(scenario.dials.len(), 2, "both are tried at once");
    assert!(scenario.sent.is_empty());
    let dials = scenario.dials.iter().find(|d| d.publisher == b.id).expect("b is dialled");
    let link = dials.link;
    scenario.attach(b.id, link, 1);
    assert_eq!(scenario.next_sent().publisher, b.id);
}

#[test]
fn may_duplicate_fails_over_an_unreachable_publishers_batch() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::with(single(), Failover::MayDuplicate);
    scenario.link_all(&[a, b]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(first.publisher, first.link);
    assert!(scenario.sent.is_empty(), "its own publisher is retried first");
    scenario.pass(ms(100));
    let dials = scenario.dials.pop_front().expect("a try");
    assert_eq!(dials.publisher, first.publisher);
    scenario.lose_link(first.publisher, dials.link);
    let second = scenario.next_sent();
    assert_ne!(second.publisher, first.publisher);
    scenario.answer_all(&second);
    let BatchOutcome::Answered { publisher, may_be_at, .. } = scenario.next_end().end else {
        panic!("it was answered")
    };
    assert_eq!((publisher, may_be_at), (second.publisher, Some(first.publisher)));
}

#[test]
fn may_duplicate_reports_unknown_at_the_first_publisher() {
    // The second publisher refuses it: for now, until its time is up, or for good.
    for refusal in [BatchRefusal::Draining, BatchRefusal::TooLarge] {
        let (a, b) = (publisher(1), publisher(2));
        let mut scenario = Scenario::with(single(), Failover::MayDuplicate);
        scenario.link_all(&[a, b]);
        scenario.push(1);
        let first = scenario.next_sent();
        scenario.lose_link(first.publisher, first.link);
        scenario.pass(ms(100));
        let dials = scenario.dials.pop_front().expect("a try");
        scenario.lose_link(first.publisher, dials.link);
        let second = scenario.next_sent();
        scenario.answer(&second, Err(refusal));
        scenario.pass(secs(31));
        let end = scenario.next_end().end;
        assert!(
            matches!(end, BatchOutcome::Unknown { publisher, .. } if publisher == first.publisher),
            "{end:?}"
        );
    }
}

#[test]
fn a_publisher_that_did_not_stop_is_retried() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.answer(&first, Err(BatchRefusal::Draining));
    scenario.pass(secs(16));
    scenario.attach_next(first.sequence);
    let again = scenario.next_sent();
    scenario.answer_all(&again);
    assert_eq!(scenario.next_end().jobs, [1]);
}

#[test]
fn may_duplicate_fails_over_only_once() {
    let mut scenario = Scenario::with(single(), Failover::MayDuplicate);
    scenario.link_all(&[publisher(1), publisher(2), publisher(3)]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(first.publisher, first.link);
    let dials = scenario.dials.pop_front().expect("a try");
    scenario.lose_link(first.publisher, dials.link);
    let second = scenario.next_sent();
    scenario.lose_link(second.publisher, second.link);
    scenario.pass(ms(200));
    while let Some(dials) = scenario.dials.pop_front() {
        scenario.lose_link(dials.publisher, dials.link);
    }
    assert!(scenario.sent.is_empty(), "a third copy must not exist");
}
