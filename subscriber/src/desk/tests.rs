//! The desk without a link, in a time that the test moves: what it gives to lanes.

use longshore_protocol::Epoch;
use longshore_protocol::limits::TOKENS_MAX;
use longshore_protocol::messages::work::{Deliver, Delivery};

use super::*;
use crate::{CancelReason, CheckpointError, CheckpointsError, JobContext};

const LEASE: Duration = Duration::from_secs(30);

/// A desk with one publisher that delivered these jobs.
fn desk_with(tokens: &[u64]) -> Arc<Desk> {
    let desk = Desk::new(2, 4, 7);
    let publisher =
        PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "p1", [([127, 0, 0, 1], 4780)]);
    desk.watched(true, vec![publisher]);
    let Connect { place, .. } = desk.connects().pop().expect("it is dialled");
    let delivery = |token: &u64| Delivery {
        token: Token(*token),
        path: 0,
        attempt: 1,
        deliveries: 1,
        lease_ms: LEASE.as_millis() as u32,
        checkpoints: 0,
        entry: Bytes::new(),
    };
    let deliver = Deliver {
        subscription: 1,
        paths: vec![Path::new("/jobs/x").unwrap()],
        jobs: tokens.iter().map(delivery).collect(),
    };
    desk.delivered(place, deliver).unwrap();
    desk
}

/// Lets time pass: the desk counts from its start, so that is what moves.
fn pass(desk: &mut Arc<Desk>, time: Duration) {
    Arc::get_mut(desk).expect("nobody else has it").started -= time;
}

/// Lets a lane ask until it is given a job, if there is one for it.
fn next_job(desk: &Desk) -> Option<u64> {
    let mut signal = Arc::default();
    loop {
        match desk.next(None, &mut signal) {
            Next::Announce(_, jobs) => desk.announced(jobs),
            Next::Job(job) => return Some(job.token.0),
            Next::Nothing | Next::Stop => return None,
        }
    }
}

fn context_of(desk: &Desk, job: &Waiting, signal: Arc<LeaseSignal>) -> JobContext {
    JobContext {
        signal,
        started: desk.started,
        id: longshore_protocol::JobId([9; 16]),
        path: job.path.clone(),
        place: job.place,
        token: job.token,
        attempt: job.attempt,
        max_attempts: None,
        keeps_result: false,
        deliveries: job.deliveries,
        earlier: 1,
        trace: None,
    }
}

#[test]
fn a_job_whose_lease_ended_while_the_process_was_paused_is_not_begun() {
    let mut desk = desk_with(&[1, 2]);
    assert_eq!(next_job(&desk), Some(1), "in time");
    pass(&mut desk, LEASE);
    assert_eq!(next_job(&desk), None);
    desk.tick();
    assert_eq!(desk.stats().leases_lost, 2);

    let mut desk = desk_with(&[1]);
    pass(&mut desk, LEASE);
    let next = desk.next(None, &mut Arc::default());
    assert!(matches!(next, Next::Nothing), "nor is its publisher told that it begins: {next:?}");

    let mut desk = desk_with(&[1]);
    pass(&mut desk, LEASE * 9 / 10);
    assert_eq!(next_job(&desk), Some(1), "still in time");
}

#[test]
fn a_resume_list_that_is_too_long_leaves_out_ended_jobs_and_no_running_one() {
    let running = u64::MAX;
    let desk = desk_with(&[running]);
    for token in 0..TOKENS_MAX as u64 {
        desk.state.lock().place(0).settles.push(Token(token), &NewSettle::Release, false);
    }
    let resumed = desk.resume(0).0;
    assert_eq!(resumed.len(), TOKENS_MAX);
    assert!(resumed.contains(&Token(running)));
}

#[test]
fn a_handler_whose_lease_ended_while_the_process_was_paused_leaves_no_checkpoint() {
    let mut desk = desk_with(&[1]);
    let mut signal = Arc::default();
    let Next::Announce(_, jobs) = desk.next(None, &mut signal) else { panic!("a job waits") };
    desk.announced(jobs);
    let Next::Job(job) = desk.next(None, &mut signal) else { panic!("its publisher is told") };
    let context = context_of(&desk, &job, signal);
    assert!(desk.checkpoint(&context, "in time".into()).is_ok());
    pass(&mut desk, LEASE);
    let lost = desk.checkpoint(&context, "too late".into()).unwrap_err();
    assert_eq!(lost, CheckpointError::Lost(CancelReason::LeaseLost));
    let lost = desk.checkpoints(&context).unwrap_err();
    assert_eq!(lost, CheckpointsError::Lost(CancelReason::LeaseLost));
    assert!(!context.is_cancelled(), "its link has not seen it yet");
}

const GRACE: Duration = Duration::from_secs(5);

/// The last byte came when the desk was made.
fn grace_of(desk: &Desk, grace: Duration) {
    desk.state.lock().place(0).grace.is(grace);
}

/// A byte comes now.
fn hear(desk: &Desk) {
    let now = desk.now();
    desk.state.lock().place(0).grace.heard(now);
    desk.outgoing(0, true);
}

#[test]
fn a_job_that_may_be_another_workers_is_not_begun_before_its_publisher_is_heard_again() {
    let mut desk = desk_with(&[1, 2, 3]);
    grace_of(&desk, GRACE);
    pass(&mut desk, GRACE * 9 / 10);
    assert_eq!(next_job(&desk), Some(1), "in time, and the second is announced");
    pass(&mut desk, GRACE);
    assert_eq!(next_job(&desk), None, "neither the announced one nor the third");
    let now = desk.now();
    let begun = desk.state.lock().place(0).leases.under_way(now);
    assert_eq!(begun.len(), 1, "a later link reports the first alone as begun: {begun:?}");
    assert_eq!(
        (desk.stats().in_hand, desk.stats().leases_lost),
        (2, 0),
        "the announced one goes back"
    );
    assert!(desk.outgoing(0, true).deadline.is_some_and(|at| at < now + GRACE), "it looks again");
    hear(&desk);
    assert_eq!(next_job(&desk), Some(3));
    pass(&mut desk, GRACE * 9 / 10);
    let mut signal = Arc::default();
    assert!(matches!(desk.next(None, &mut signal), Next::Nothing), "both lanes are taken");
}

#[test]
fn an_announced_job_that_cannot_begin_is_released() {
    let mut desk = desk_with(&[1, 2]);
    grace_of(&desk, GRACE);
    let Next::Announce(_, jobs) = desk.next(None, &mut Arc::default()) else { panic!("two jobs") };
    desk.announced(jobs);
    pass(&mut desk, GRACE);
    assert_eq!(next_job(&desk), None);
    let mut state = desk.state.lock();
    let place = state.place(0);
    let released: Vec<_> = place.settles.tokens().collect();
    assert_eq!(released, [Token(1), Token(2)], "their publisher counts them as started");
    assert_eq!((place.leases.len(), place.aside.len()), (0, 0));
}

#[test]
fn jobs_put_aside_leave_with_their_leases() {
    let aside = |desk: &mut Arc<Desk>| {
        grace_of(desk, GRACE);
        pass(desk, GRACE);
        assert_eq!(next_job(desk), None);
        assert_eq!(desk.state.lock().place(0).aside.len(), 2);
    };
    let mut desk = desk_with(&[1, 2]);
    aside(&mut desk);
    desk.revoked(0, longshore_protocol::Revoked::LeaseLost, &[Token(1)]);
    hear(&desk);
    assert_eq!(next_job(&desk), Some(2), "the other is gone");

    let mut desk = desk_with(&[1, 2]);
    aside(&mut desk);
    pass(&mut desk, LEASE);
    desk.tick();
    assert_eq!(desk.stats().leases_lost, 2);
    assert!(desk.state.lock().place(0).aside.is_empty());

    let mut desk = desk_with(&[1, 2]);
    aside(&mut desk);
    desk.drain();
    let released = desk.state.lock().place(0).settles.unanswered();
    assert_eq!(released, 2, "they go back");
    assert!(desk.state.lock().place(0).aside.is_empty());
}

#[test]
fn a_deadline_is_the_end_of_the_grace_while_the_link_is_down_and_the_handler_runs_on() {
    let desk = desk_with(&[1]);
    let mut signal = Arc::new(LeaseSignal::at(Arc::downgrade(&desk)));
    let Next::Announce(_, jobs) = desk.next(None, &mut signal) else { panic!("a job waits") };
    desk.announced(jobs);
    let Next::Job(job) = desk.next(None, &mut signal) else { panic!("its publisher is told") };
    let context = context_of(&desk, &job, signal);
    let (deadline, lease_ends) = (context.deadline(), desk.started + LEASE);
    assert!(deadline >= lease_ends && deadline < lease_ends + GRACE, "no grace is known");
    grace_of(&desk, GRACE);
    assert_eq!(context.deadline(), desk.started + GRACE);
    hear(&desk);
    assert!(context.deadline() > desk.started + GRACE, "counted from the last byte");
    assert!(!context.is_cancelled());
}

/// A publisher that is found, cannot be reached, and is gone when the next is found.
fn comes_and_goes(desk: &Desk, n: u64) {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&n.to_be_bytes());
    let publisher = PublisherInfo::new(PublisherId(id), Epoch(1), "p", [([127, 0, 0, 1], 4780)]);
    desk.watched(true, vec![publisher]);
    let Connect { place, .. } = desk.connects().pop().expect("it is dialled");
    desk.link_lost(place, "connection refused".into());
}

#[test]
fn publishers_that_come_and_go_use_the_places_of_those_before_them() {
    let desk = Desk::new(2, 4, 7);
    (1..=1_000).for_each(|n| comes_and_goes(&desk, n));
    let state = desk.state.lock();
    assert!(state.places.len() <= 2 && state.place_ids.len() <= 2, "{}", state.places.len());
}

#[test]
fn the_place_of_a_handler_that_runs_without_a_lease_is_nobody_elses() {
    let desk = desk_with(&[1]);
    let mut signal = Arc::default();
    let Next::Announce(_, jobs) = desk.next(None, &mut signal) else { panic!("a job waits") };
    desk.announced(jobs);
    let Next::Job(job) = desk.next(None, &mut signal) else { panic!("its publisher is told") };
    let context = context_of(&desk, &job, signal.clone());
    desk.revoked(0, longshore_protocol::Revoked::LeaseLost, &[Token(1)]);
    desk.link_lost(0, "the link is dead".into());
    (1..=10).for_each(|n| comes_and_goes(&desk, n));
    assert_eq!(desk.state.lock().places[0].id, PublisherId([1; 16]));
    let settle = NewSettle::Release;
    let ended = Ended { place: 0, token: Token(1), settle, panicked: false, damaged: false };
    desk.next(Some(ended), &mut Arc::default());
    (11..=20).for_each(|n| comes_and_goes(&desk, n));
    assert_ne!(desk.state.lock().places[0].id, PublisherId([1; 16]));
    // Another publisher's job of the same token is not this context's.
    let lease = Some(Arc::default());
    desk.state.lock().place(0).leases.insert(desk.now(), Token(1), LEASE, lease);
    assert!(desk.checkpoint(&context, "too late".into()).is_err());
}
