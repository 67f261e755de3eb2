//! When links are dialled.

use super::*;

#[test]
fn a_lost_link_is_retried_with_backoff() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.pass(secs(5));
    scenario.push(1);
    let sent = scenario.next_sent();
    scenario.lose_link(a.id, sent.link);
    let mut failed_at = scenario.now;
    let mut waits = Vec::new();
    while scenario.now < secs(34) {
        while let Some(dials) = scenario.dials.pop_front() {
            waits.push(dials.at - failed_at);
            scenario.lose_link(a.id, dials.link);
            failed_at = scenario.now;
        }
        scenario.until(scenario.core.next_deadline());
    }
    assert_eq!(waits[0], ms(0), "the first retry is immediate");
    for (n, wait) in waits.iter().enumerate() {
        assert!(*wait <= (ms(100) * n as u32).min(secs(2)), "try {n} waited {wait:?}");
    }
    assert!(waits.len() > 25, "{}", waits.len());
    assert!(waits.iter().any(|wait| *wait > ms(500)), "the waits grow");
}

#[test]
fn a_link_that_breaks_at_once_is_retried_slowly() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let sent = scenario.next_sent();
    scenario.lose_link(a.id, sent.link);
    let mut tries = 0;
    while scenario.now < secs(25) {
        while let Some(dials) = scenario.dials.pop_front() {
            tries += 1;
            scenario.attach(a.id, dials.link, 3);
            scenario.lose_link(a.id, dials.link);
        }
        scenario.until(scenario.core.next_deadline().max(scenario.now));
    }
    assert!(tries < 150, "{tries} tries in 25 s");
}

#[test]
fn a_publisher_that_moved_gets_its_batch_there() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.pass(secs(2));
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(a.id, first.link);
    let dials = scenario.dials.pop_front().expect("the old address is tried at once");
    assert_eq!(dials.address, "127.0.0.1:4780");
    scenario.lose_link(a.id, dials.link);
    let moved = PublisherInfo {
        epoch: Epoch(2),
        addresses: vec![([127, 0, 0, 9], 4799).into()],
        ..a.clone()
    };
    scenario.resolve(&[moved]);
    let dials = scenario.dials.pop_front().expect("the new address is tried at once");
    assert_eq!(dials.address, "127.0.0.9:4799");
    scenario.attach(a.id, dials.link, first.sequence);
    let again = scenario.next_sent();
    assert_eq!((again.publisher, again.sequence), (a.id, first.sequence));
}

#[test]
fn a_path_has_at_most_eight_links() {
    let many: Vec<PublisherInfo> = (1..=20).map(publisher).collect();
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve(&many);
    scenario.push(1);
    assert_eq!(scenario.dials.len(), LINKS_PER_ROUTE);
    let first: Vec<PublisherId> = scenario.dials.iter().map(|d| d.publisher).collect();
    let failed = scenario.dials.pop_front().expect("a try");
    scenario.lose_link(failed.publisher, failed.link);
    let other = scenario.dials.back().expect("another is tried instead").publisher;
    assert!(!first.contains(&other));
}

#[test]
fn an_idle_link_is_closed_after_five_minutes() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.until(secs(290));
    assert!(scenario.closed.is_empty());
    scenario.until(secs(310));
    assert_eq!(scenario.closed.len(), 1);
    assert!(scenario.dials.is_empty(), "nothing needs it");
}

#[test]
fn batches_spread_evenly_and_stick_for_a_while() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a.clone(), b]);
    let mut at_a = 0;
    let mut changes = 0;
    let mut last = None;
    for n in 0..2_000 {
        scenario.push(n);
        let sent = scenario.next_sent();
        scenario.answer_all(&sent);
        at_a += usize::from(sent.publisher == a.id);
        changes += usize::from(last.replace(sent.publisher).is_some_and(|l| l != sent.publisher));
        scenario.pass(ms(50));
    }
    assert!((600..1_400).contains(&at_a), "{at_a} of 2000 at one of two");
    assert!(changes < 500, "{changes} changes");
}
