//! Jobs that need a free handler.

use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{LinkId, NewJob, Token};

use super::scenario::{QUEUE, StateScenario, batch, path, plain};
use crate::outcome::{Assignment, Outcomes};
use crate::state::steps;

/// A job with an order key of its own.
fn ordered(number: u32) -> NewJob {
    plain(number).order_key(number.to_string())
}

/// A worker with that many handlers and credits.
fn worker(scenario: &mut StateScenario, name: &str, handlers: u32, credits: u32) -> LinkId {
    let link = scenario.link(name);
    scenario.subscribe_with(link, 1, QUEUE, handlers);
    scenario.credit(link, 1, credits);
    link
}

fn enqueue(scenario: &mut StateScenario, producer: LinkId, jobs: &[NewJob]) -> Outcomes {
    let session = scenario.state.session_of(producer).expect("the link is up");
    let sequence = scenario.state.sessions.table[session].next_batch;
    scenario.send(producer, batch(sequence, jobs))
}

fn complete(scenario: &mut StateScenario, link: LinkId, token: Token) -> Vec<Assignment> {
    scenario.settle(link, token, &NewSettle::Complete { result: None }).1.assignments
}

#[test]
fn ordered_job_is_never_prefetched() {
    let mut scenario = StateScenario::begin();
    let w = worker(&mut scenario, "w", 2, 5);
    let producer = scenario.link("producer");
    let jobs = [plain(1), plain(2), plain(3), ordered(4), plain(5)];
    let first = enqueue(&mut scenario, producer, &jobs).assignments;
    assert_eq!(first.len(), 3, "plain jobs are, and a later one does not overtake");
    assert_eq!(complete(&mut scenario, w, first[0].token), [], "two of two handlers are in use");
    let next = complete(&mut scenario, w, first[1].token);
    let order: Vec<_> = next.iter().map(|delivered| delivered.entry).collect();
    assert_eq!(order, [scenario.job(4).entry, scenario.job(5).entry]);
    assert_eq!(scenario.counts().running, 3);
}

#[test]
fn ordered_job_goes_to_the_worker_with_a_free_handler() {
    let mut scenario = StateScenario::begin();
    let busy = worker(&mut scenario, "busy", 1, 9);
    let producer = scenario.link("producer");
    let first = enqueue(&mut scenario, producer, &[ordered(1)]).assignments;
    assert_eq!(first[0].link, busy);
    assert_eq!(enqueue(&mut scenario, producer, &[ordered(2)]).assignments, []);
    let free = scenario.link("free");
    scenario.subscribe_with(free, 1, QUEUE, 1);
    assert_eq!(scenario.credit(free, 1, 9).len(), 1);
    assert_eq!(enqueue(&mut scenario, producer, &[ordered(3), ordered(4)]).assignments, []);
    let next = complete(&mut scenario, busy, first[0].token);
    assert_eq!(next.iter().map(|delivered| delivered.link).collect::<Vec<_>>(), [busy]);
    // More handlers are free handlers.
    let link = scenario.attach("busy", &[next[0].token]).0;
    scenario.subscribe_with(link, 1, QUEUE, 2);
    assert_eq!(scenario.credit(link, 1, 5).len(), 1);
}

#[test]
fn subscriptions_of_a_busy_worker_take_turns() {
    let mut scenario = StateScenario::begin();
    let w = scenario.link("w");
    for (number, queue) in [(1, "/jobs/plain"), (2, "/jobs/ordered")] {
        scenario.subscribe_with(w, number, queue, 1);
        scenario.credit(w, number, 100);
    }
    let producer = scenario.link("producer");
    let at = |text: &str, job: NewJob| NewJob { path: path(text), ..job };
    let mut jobs: Vec<NewJob> = (1..=40).map(|n| at("/jobs/plain", plain(n))).collect();
    jobs.extend((41..=50).map(|n| at("/jobs/ordered", ordered(n))));
    let mut prefetched = enqueue(&mut scenario, producer, &jobs[..3]).assignments;
    assert_eq!(prefetched.len(), 3, "plain jobs beyond the handlers, while no job needs one");
    enqueue(&mut scenario, producer, &jobs[40..]);
    assert_eq!(enqueue(&mut scenario, producer, &jobs[3..40]).assignments, []);
    let mut delivered = Vec::new();
    while delivered.len() < 18 {
        let token = prefetched.remove(0).token;
        let next = complete(&mut scenario, w, token);
        delivered.extend(next.iter().map(|one| one.subscription));
        prefetched.extend(next);
    }
    assert!(delivered.iter().zip(&delivered[1..]).all(|(a, b)| a != b), "{delivered:?}");
    assert_eq!(delivered[0], 2, "it has waited for longer");
}

#[test]
fn finding_a_free_handler_costs_the_same_with_many_workers() {
    let mut scenario = StateScenario::begin();
    let workers: Vec<LinkId> =
        (0..200).map(|n| worker(&mut scenario, &format!("w{n}"), 1, 5)).collect();
    let producer = scenario.link("producer");
    let jobs: Vec<NewJob> = (1..=200).map(ordered).collect();
    let mut running = enqueue(&mut scenario, producer, &jobs).assignments;
    assert_eq!(running.len(), 200);
    // The first one finds that no handler is free.
    enqueue(&mut scenario, producer, &[ordered(201)]);
    for n in 0..50 {
        steps::take();
        assert_eq!(enqueue(&mut scenario, producer, &[ordered(202 + n)]).assignments, []);
        let held = running.swap_remove(n as usize);
        let next = complete(&mut scenario, held.link, held.token);
        assert_eq!(next.iter().map(|one| one.link).collect::<Vec<_>>(), [held.link]);
        assert!(steps::take() <= 8, "the {n}th");
    }
    assert_eq!(workers.len(), 200);
}
