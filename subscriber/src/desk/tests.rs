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
    let publisher = PublisherInfo {
        id: PublisherId([1; 16]),
        epoch: Epoch(1),
        name: "p1".into(),
        addresses: vec![([127, 0, 0, 1], 4780).into()],
    };
    desk.watched(true, vec![publisher]);
    let (place, _) = desk.connects().pop().expect("it is dialled");
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
    let context = JobContext {
        signal,
        started: desk.started,
        id: longshore_protocol::JobId([9; 16]),
        path: job.path,
        place: job.place,
        token: job.token,
        attempt: job.attempt,
        max_attempts: None,
        deliveries: job.deliveries,
        earlier: 1,
        trace: None,
    };
    assert!(desk.checkpoint(&context, "in time".into()).is_ok());
    pass(&mut desk, LEASE);
    let lost = desk.checkpoint(&context, "too late".into()).unwrap_err();
    assert_eq!(lost, CheckpointError::Lost(CancelReason::LeaseLost));
    let lost = desk.checkpoints(&context).unwrap_err();
    assert_eq!(lost, CheckpointsError::Lost(CancelReason::LeaseLost));
    assert!(!context.is_cancelled(), "its link has not seen it yet");
}
