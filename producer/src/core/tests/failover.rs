//! What goes to another publisher, and what does not.

use super::*;

#[test]
fn a_batch_refused_by_a_publisher_that_is_drained_goes_to_another() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::linked_to(single(), &[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.answer(&first, Err(BatchRefusal::Draining));
    let second = story.next_sent();
    assert_ne!(second.publisher, first.publisher);
    story.answer_all(&second);
    assert_eq!(held_by(&story.next_end().end), second.publisher);
}

#[test]
fn a_batch_that_a_drained_publisher_refuses_asks_who_has_come_in_its_place() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.pass(ms(2_000));
    story.push(1);
    let first = story.next_sent();
    story.answer(&first, Err(BatchRefusal::Draining));
    assert_eq!(story.asked.len(), 1, "at once, and not when the answer is old");
    story.resolve(&[a, b.clone()]);
    story.attach_next(1);
    let second = story.next_sent();
    assert_eq!(second.publisher, b.id);
    story.answer_all(&second);
    assert_eq!(held_by(&story.next_end().end), b.id);
}

#[test]
fn a_stopping_publisher_gets_nothing_new_and_its_own_batches_stay() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::linked_to(single(), &[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.core.goodbye(story.now, first.publisher, first.link);
    for n in 2..20 {
        story.push(n);
        assert_ne!(story.next_sent().publisher, first.publisher);
    }
    story.answer_all(&first);
    assert_eq!(held_by(&story.next_end().end), first.publisher);
}

#[test]
fn a_batch_that_had_arrived_stays_though_its_second_copy_is_refused_by_a_drained_publisher() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::linked_to(single(), &[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.lose(first.publisher, first.link);
    let link = story.attach_next(first.sequence + 1);
    let again = story.next_sent();
    story.answer(&again, Err(BatchRefusal::Draining));
    assert!(story.sent.is_empty(), "the first copy is there: another publisher would run it twice");
    story.lose(first.publisher, link);
    story.pass(ms(200));
    story.attach_next(first.sequence + 1);
    let third = story.next_sent();
    assert_eq!((third.publisher, third.sequence), (first.publisher, first.sequence));
    story.answer_all(&third);
    assert_eq!(story.next_end().jobs, [1]);
}

#[test]
fn new_batches_avoid_a_publisher_whose_link_is_down_while_another_is_up() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::linked_to(single(), &[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.lose(first.publisher, first.link);
    for n in 2..20 {
        story.push(n);
        assert_ne!(story.next_sent().publisher, first.publisher);
    }
}

/// `own` publishes the path; `default` has the default above it.
fn below_a_default(
    story: &mut Story,
    own: &PublisherInfo,
    default: &PublisherInfo,
    complete: bool,
) {
    story.ask();
    let set = [publication(own)].into();
    let fallback = Some([publication(own), publication(default)].into());
    let answer = PathAnswer::Publishers { set, by_default: false, fallback };
    story.resolve_with(answer, complete);
}

#[test]
fn a_dead_publishers_path_goes_to_the_default_above_at_once() {
    let (dead, other) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    below_a_default(&mut story, &dead, &other, true);
    story.push(1);
    let dialled = story.dialled.pop_front().expect("a dial");
    assert_eq!(dialled.publisher, dead.id, "its own publisher comes first");
    assert!(story.dialled.is_empty(), "nobody else while it has not failed");
    story.lose(dead.id, dialled.link);
    let next = story.dialled.iter().find(|dialled| dialled.publisher == other.id);
    let (next, at) = next.map(|next| (next.link, next.at)).expect("the next candidate is dialled");
    assert_eq!(at, story.now, "at once");
    story.attach(other.id, next, 1);
    let sent = story.next_sent();
    assert_eq!(sent.publisher, other.id);
    story.answer_all(&sent);
    assert_eq!(held_by(&story.next_end().end), other.id);
}

#[test]
fn jobs_return_to_the_paths_own_publisher_once_it_is_back() {
    let (own, other) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    below_a_default(&mut story, &own, &other, true);
    story.push(1);
    let dialled = story.dialled.pop_front().expect("a dial");
    story.lose(own.id, dialled.link);
    story.pass(secs(1));
    let latest = |story: &Story, id| {
        let of = |dialled: &&Dialled| dialled.publisher == id;
        story.dialled.iter().rev().find(of).expect("it is dialled").link
    };
    let link = latest(&story, other.id);
    story.attach(other.id, link, 1);
    let sent = story.next_sent();
    story.answer_all(&sent);
    let link = latest(&story, own.id);
    story.attach(own.id, link, 1);
    // A route keeps its publisher for a moment, so that batches stay large.
    story.pass(ms(300));
    for n in 2..10 {
        story.push(n);
        let sent = story.next_sent();
        assert_eq!(sent.publisher, own.id);
        story.answer_all(&sent);
    }
}

#[test]
fn a_batch_that_may_be_at_the_paths_own_publisher_waits_for_it() {
    let (own, other) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    below_a_default(&mut story, &own, &other, true);
    story.push(1);
    story.attach_next(1);
    let sent = story.next_sent();
    story.lose(own.id, sent.link);
    let next = story.dialled.iter().find(|dialled| dialled.publisher == other.id);
    let next = next.expect("new jobs need it").link;
    story.attach(other.id, next, 1);
    assert!(story.sent.is_empty(), "it may have reached the first");
    story.push(2);
    assert_eq!(story.next_sent().publisher, other.id, "a new one goes on");
}

#[test]
fn an_idle_link_that_was_closed_is_no_reason_to_fall_back() {
    let (own, other) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    below_a_default(&mut story, &own, &other, true);
    story.push(1);
    story.attach_next(1);
    let sent = story.next_sent();
    story.answer_all(&sent);
    story.pass(secs(600));
    assert_eq!(story.closed.len(), 1, "idle");
    below_a_default(&mut story, &own, &other, true);
    story.push(2);
    let dialled: Vec<PublisherId> = story.dialled.drain(..).map(|one| one.publisher).collect();
    assert_eq!(dialled, [own.id]);
}

#[test]
fn a_warming_replicas_default_is_no_candidate() {
    let (dead, other) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    below_a_default(&mut story, &dead, &other, false);
    story.push(1);
    let dialled = story.dialled.pop_front().expect("a dial");
    story.lose(dead.id, dialled.link);
    assert!(story.dialled.iter().all(|dialled| dialled.publisher == dead.id));
}

#[test]
fn a_batch_that_was_never_sent_goes_to_whichever_publisher_comes_first() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    story.ask();
    story.resolve(&[a, b.clone()]);
    story.push(1);
    assert_eq!(story.dialled.len(), 2, "both are tried at once");
    assert!(story.sent.is_empty());
    let dialled = story.dialled.iter().find(|d| d.publisher == b.id).expect("b is dialled");
    let link = dialled.link;
    story.attach(b.id, link, 1);
    assert_eq!(story.next_sent().publisher, b.id);
}

#[test]
fn with_duplicates_allowed_a_batch_goes_elsewhere_once_its_publisher_cannot_be_reached() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::with(single(), Failover::MayDuplicate);
    story.link_all(&[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.lose(first.publisher, first.link);
    assert!(story.sent.is_empty(), "its publisher is tried at once before another gets it");
    story.pass(ms(100));
    let dialled = story.dialled.pop_front().expect("a try");
    assert_eq!(dialled.publisher, first.publisher);
    story.lose(first.publisher, dialled.link);
    let second = story.next_sent();
    assert_ne!(second.publisher, first.publisher);
    story.answer_all(&second);
    let BatchEnd::Answered { publisher, may_be_at, .. } = story.next_end().end else {
        panic!("it was answered")
    };
    assert_eq!((publisher, may_be_at), (second.publisher, Some(first.publisher)));
}

#[test]
fn with_duplicates_allowed_a_batch_that_nobody_answers_is_unknown_at_the_first_publisher() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::with(single(), Failover::MayDuplicate);
    story.link_all(&[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.lose(first.publisher, first.link);
    story.pass(ms(100));
    let dialled = story.dialled.pop_front().expect("a try");
    story.lose(first.publisher, dialled.link);
    let second = story.next_sent();
    story.answer(&second, Err(BatchRefusal::Draining));
    story.pass(secs(31));
    let end = story.next_end().end;
    assert!(
        matches!(end, BatchEnd::Unknown { publisher, .. } if publisher == first.publisher),
        "{end:?}"
    );
}

#[test]
fn a_publisher_that_said_it_stops_and_did_not_is_tried_anew() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let first = story.next_sent();
    story.answer(&first, Err(BatchRefusal::Draining));
    story.pass(secs(16));
    story.attach_next(first.sequence);
    let again = story.next_sent();
    story.answer_all(&again);
    assert_eq!(story.next_end().jobs, [1]);
}

#[test]
fn with_duplicates_allowed_a_batch_goes_elsewhere_once_and_then_stays() {
    let mut story = Story::with(single(), Failover::MayDuplicate);
    story.link_all(&[publisher(1), publisher(2), publisher(3)]);
    story.push(1);
    let first = story.next_sent();
    story.lose(first.publisher, first.link);
    let dialled = story.dialled.pop_front().expect("a try");
    story.lose(first.publisher, dialled.link);
    let second = story.next_sent();
    story.lose(second.publisher, second.link);
    story.pass(ms(200));
    while let Some(dialled) = story.dialled.pop_front() {
        story.lose(dialled.publisher, dialled.link);
    }
    assert!(story.sent.is_empty(), "a third publisher would make three of it");
}
