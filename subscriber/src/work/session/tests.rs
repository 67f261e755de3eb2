//! The session without a link, in virtual time: what it gives to handler tasks.

use std::collections::BTreeSet;
use std::sync::Weak;

use longshore_protocol::Epoch;
use longshore_protocol::limits::TOKENS_MAX;
use longshore_protocol::messages::work::{Deliver, Delivery};
use proptest::prelude::*;

use super::runs::{RUN_OVERDUE, RUN_WORK};
use super::*;
use crate::{CancelReason, CheckpointError, CheckpointsError, JobContext};

const LEASE: Duration = Duration::from_secs(30);

fn publisher() -> PublisherInfo {
    PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "p1", [([127, 0, 0, 1], 4780)])
}

/// A session with one publisher that delivered these jobs.
fn session_with(tokens: &[u64]) -> Arc<WorkerSession> {
    let session = WorkerSession::new(2, 4, Vec::new(), 7);
    session.watched(true, vec![publisher()]);
    let Connect { slot_id, .. } = session.take_connects().pop().expect("it is dialled");
    let deliver = Deliver {
        subscription: 1,
        paths: vec![Path::new("/jobs/x").unwrap()],
        jobs: tokens.iter().map(delivery).collect(),
    };
    session.delivered(slot_id, deliver).unwrap();
    session
}

fn delivery(token: &u64) -> Delivery {
    Delivery {
        token: Token(*token),
        path: 0,
        attempt: 1,
        deliveries: 1,
        lease_ms: LEASE.as_millis() as u32,
        checkpoints: 0,
        entry: Bytes::new(),
    }
}

/// Lets time pass: the session counts from its start, so the test moves the start.
fn pass(session: &mut Arc<WorkerSession>, time: Duration) {
    Arc::get_mut(session).expect("no other reference").started -= time;
}

/// A handler task that cannot reach its session: tests move the session's start.
fn task(session: &WorkerSession) -> Arc<Run> {
    session.add_run(Run::new(Weak::<WorkerSession>::new()))
}

/// The first job that a task may begin, if there is one.
fn begin(session: &WorkerSession, task: &Run) -> Option<(QueuedJob, Arc<LeaseSignal>)> {
    loop {
        match session.next(task) {
            HandlerTaskStep::Announce(_, jobs) => session.announced(jobs),
            HandlerTaskStep::Run => return task.next(None, session.now()),
            HandlerTaskStep::Wait | HandlerTaskStep::Stop => return None,
        }
    }
}

/// A new task takes a job.
fn next_job(session: &WorkerSession) -> Option<u64> {
    begin(session, &task(session)).map(|(job, _)| job.token.0)
}

fn finished(job: &QueuedJob, settle: NewSettle) -> FinishedJob {
    let QueuedJob { slot_id, token, .. } = *job;
    FinishedJob { slot_id, token, settle, panicked: false, damaged: false }
}

fn context_of(session: &WorkerSession, job: &QueuedJob, signal: Arc<LeaseSignal>) -> JobContext {
    JobContext {
        signal,
        started: session.started,
        id: longshore_protocol::JobId([9; 16]),
        path: job.path.clone(),
        slot_id: job.slot_id,
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
fn no_job_starts_after_its_lease_ended_in_a_pause() {
    let mut session = session_with(&[1, 2]);
    assert_eq!(next_job(&session), Some(1), "in time");
    pass(&mut session, LEASE);
    assert_eq!(next_job(&session), None);
    session.tick();
    assert_eq!(session.stats().leases_lost, 2);

    let mut session = session_with(&[1]);
    pass(&mut session, LEASE);
    let next = session.next(&task(&session));
    assert!(matches!(next, HandlerTaskStep::Wait), "no attempt is announced: {next:?}");

    let mut session = session_with(&[1]);
    pass(&mut session, LEASE * 9 / 10);
    assert_eq!(next_job(&session), Some(1), "still in time");
}

#[test]
fn an_overlong_resume_list_keeps_running_jobs() {
    let running = u64::MAX;
    let session = session_with(&[running]);
    for token in 0..TOKENS_MAX as u64 {
        session.state.lock().slot(0).settles.push(Token(token), &NewSettle::Release, false);
    }
    let resumed = session.resume(0).0;
    assert_eq!(resumed.len(), TOKENS_MAX);
    assert!(resumed.contains(&Token(running)));
}

#[test]
fn no_checkpoint_is_stored_after_the_lease_ended_in_a_pause() {
    let mut session = session_with(&[1]);
    let run = task(&session);
    let (job, signal) = begin(&session, &run).expect("a job waits");
    let context = context_of(&session, &job, signal);
    assert!(session.checkpoint(&context, "in time".into()).is_ok());
    pass(&mut session, LEASE);
    let lost = session.checkpoint(&context, "too late".into()).unwrap_err();
    assert_eq!(lost, CheckpointError::Lost(CancelReason::LeaseLost));
    let lost = session.checkpoints(&context).unwrap_err();
    assert_eq!(lost, CheckpointsError::Lost(CancelReason::LeaseLost));
    assert!(!context.is_cancelled(), "the link has not noticed it yet");
}

const GRACE: Duration = Duration::from_secs(5);

/// The last byte arrived when the session was created.
fn grace_of(session: &WorkerSession, grace: Duration) {
    session.state.lock().slot(0).grace.set_length(grace);
}

/// A byte arrives now.
fn update_last_byte(session: &WorkerSession) {
    let now = session.now();
    session.state.lock().slot(0).grace.byte_received(now);
    session.outgoing(0, true);
}

#[test]
fn jobs_past_the_grace_wait_for_a_received_byte() {
    let mut session = session_with(&[1, 2, 3]);
    grace_of(&session, GRACE);
    pass(&mut session, GRACE * 9 / 10);
    assert_eq!(next_job(&session), Some(1), "in time, and the second is announced");
    pass(&mut session, GRACE);
    assert_eq!(next_job(&session), None, "neither the announced one nor the third");
    let now = session.now();
    let begun = session.state.lock().slot(0).leases.running_attempts(now);
    assert_eq!(begun.len(), 1, "a later link reports the first alone as begun: {begun:?}");
    assert_eq!(
        (session.stats().jobs_held, session.stats().leases_lost),
        (2, 0),
        "the announced job is released"
    );
    assert!(
        session.outgoing(0, true).deadline.is_some_and(|at| at < now + GRACE),
        "a check is scheduled"
    );
    update_last_byte(&session);
    assert_eq!(next_job(&session), Some(3));
    pass(&mut session, GRACE * 9 / 10);
    let next = session.next(&task(&session));
    assert!(matches!(next, HandlerTaskStep::Wait), "both handler tasks are busy");
}

#[test]
fn an_announced_job_that_cannot_start_is_released() {
    let mut session = session_with(&[1, 2]);
    grace_of(&session, GRACE);
    let HandlerTaskStep::Announce(_, jobs) = session.next(&task(&session)) else {
        panic!("two jobs")
    };
    session.announced(jobs);
    pass(&mut session, GRACE);
    assert_eq!(next_job(&session), None);
    let mut state = session.state.lock();
    let slot = state.slot(0);
    let released: Vec<_> = slot.settles.tokens().collect();
    assert_eq!(released, [Token(1), Token(2)], "their publisher counts them as started");
    assert_eq!((slot.leases.len(), slot.suspended.len()), (0, 0));
}

#[test]
fn suspended_jobs_end_with_their_leases() {
    let suspended = |session: &mut Arc<WorkerSession>| {
        grace_of(session, GRACE);
        pass(session, GRACE);
        assert_eq!(next_job(session), None);
        assert_eq!(session.state.lock().slot(0).suspended.len(), 2);
    };
    let mut session = session_with(&[1, 2]);
    suspended(&mut session);
    session.revoked(0, longshore_protocol::Revoked::LeaseLost, &[Token(1)]);
    update_last_byte(&session);
    assert_eq!(next_job(&session), Some(2), "the other job was revoked");

    let mut session = session_with(&[1, 2]);
    suspended(&mut session);
    pass(&mut session, LEASE);
    session.tick();
    assert_eq!(session.stats().leases_lost, 2);
    assert!(session.state.lock().slot(0).suspended.is_empty());

    let mut session = session_with(&[1, 2]);
    suspended(&mut session);
    session.drain();
    let released = session.state.lock().slot(0).settles.unanswered();
    assert_eq!(released, 2, "they go back");
    assert!(session.state.lock().slot(0).suspended.is_empty());
}

#[test]
fn the_deadline_without_a_link_is_the_graces_end() {
    let session = session_with(&[1]);
    let run = session.add_run(Run::new(Arc::downgrade(&session) as _));
    let (job, signal) = begin(&session, &run).expect("a job waits");
    let context = context_of(&session, &job, signal);
    let (deadline, lease_ends) = (context.deadline(), session.started + LEASE);
    assert!(deadline >= lease_ends && deadline < lease_ends + GRACE, "no grace is known");
    grace_of(&session, GRACE);
    assert_eq!(context.deadline(), session.started + GRACE);
    update_last_byte(&session);
    assert!(context.deadline() > session.started + GRACE, "counted from the last byte");
    assert!(!context.is_cancelled());
}

/// A publisher that is found, cannot be reached, and is gone when the next one is found.
fn add_and_lose_publisher(session: &WorkerSession, n: u64) {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&n.to_be_bytes());
    let publisher = PublisherInfo::new(PublisherId(id), Epoch(1), "p", [([127, 0, 0, 1], 4780)]);
    session.watched(true, vec![publisher]);
    let Connect { slot_id, .. } = session.take_connects().pop().expect("it is dialled");
    session.link_lost(slot_id, "connection refused".into());
}

#[test]
fn slots_of_forgotten_publishers_are_reused() {
    let session = WorkerSession::new(2, 4, Vec::new(), 7);
    (1..=1_000).for_each(|n| add_and_lose_publisher(&session, n));
    let state = session.state.lock();
    assert!(state.slots.len() <= 2 && state.slot_ids.len() <= 2, "{}", state.slots.len());
}

#[test]
fn a_slot_with_a_running_handler_is_not_reused() {
    let session = session_with(&[1]);
    let run = task(&session);
    let (job, signal) = begin(&session, &run).expect("a job waits");
    let context = context_of(&session, &job, signal);
    session.revoked(0, longshore_protocol::Revoked::LeaseLost, &[Token(1)]);
    session.link_lost(0, "the link is dead".into());
    (1..=10).for_each(|n| add_and_lose_publisher(&session, n));
    assert_eq!(session.state.lock().slots[0].id, PublisherId([1; 16]));
    assert!(run.next(Some(finished(&job, NewSettle::Release)), session.now()).is_none());
    session.next(&run);
    (11..=20).for_each(|n| add_and_lose_publisher(&session, n));
    assert_ne!(session.state.lock().slots[0].id, PublisherId([1; 16]));
    // A job of another publisher with the same token must not accept this context.
    let lease = Some(Arc::default());
    session.state.lock().slot(0).leases.insert(session.now(), Token(1), LEASE, lease);
    assert!(session.checkpoint(&context, "too late".into()).is_err());
}

#[test]
fn a_capped_source_leaves_handler_tasks_to_others() {
    let capped = SourceLimits { cap: Some(1), weight: 1 };
    let limits = [("/jobs/slow", capped), ("/jobs/**", SourceLimits::default())];
    let limits = limits.map(|(pattern, limits)| (Glob::new(pattern).unwrap(), limits));
    let session = WorkerSession::new(3, 9, limits.into(), 7);
    session.watched(true, vec![publisher()]);
    let jobs = [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)];
    let paths = ["/jobs/slow", "/jobs/fast"].map(|path| Path::new(path).unwrap()).into();
    let jobs = jobs.iter().map(|&(token, path)| Delivery { path, ..delivery(&token) }).collect();
    session.delivered(0, Deliver { subscription: 1, paths, jobs }).unwrap();
    let tasks = [task(&session), task(&session), task(&session)];
    let begun = tasks.each_ref().map(|task| begin(&session, task).expect("a job waits").0);
    let mut tokens = begun.each_ref().map(|job| job.token.0);
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 4, 5]);
    let end = |token| {
        let at = begun.iter().position(|job| job.token.0 == token).expect("it has begun");
        tasks[at].next(Some(finished(&begun[at], NewSettle::Release)), session.now());
        begin(&session, &tasks[at]).map(|(job, _)| job.token.0)
    };
    assert_eq!(end(4), None);
    assert_eq!(end(1), Some(2), "the next of the capped source");
}

/// A session whose handlers were fast until now.
fn fast_session(tokens: &[u64]) -> Arc<WorkerSession> {
    let session = session_with(tokens);
    session.state.lock().handler_time = Duration::from_micros(1);
    session
}

fn settled(session: &WorkerSession) -> Vec<u64> {
    let mut tokens: Vec<u64> =
        session.state.lock().slot(0).settles.tokens().map(|token| token.0).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn jobs_of_a_run_that_have_not_begun_are_not_reported_as_started() {
    let mut session = fast_session(&[1, 2, 3, 4, 5, 6]);
    let run = task(&session);
    assert!(matches!(session.next(&run), HandlerTaskStep::Run), "three, without an announcement");
    let (first, _) = run.next(None, session.now()).expect("it has a run");
    let (second, _) = run.next(Some(finished(&first, NewSettle::Release)), session.now()).unwrap();
    assert_eq!((first.token.0, second.token.0), (1, 2));
    session.check_runs();
    assert_eq!(session.outgoing(0, true).started, None, "it is young");
    // The second attempt turns out to be long.
    pass(&mut session, 2 * RUN_OVERDUE);
    assert!(settled(&session).is_empty());
    session.check_runs();
    let started = session.outgoing(0, true).started.expect("it is long");
    assert_eq!(started.tokens, Tokens(vec![Token(2)]));
    assert!(u128::from(started.running_ms[0]) >= RUN_OVERDUE.as_millis());
    assert_eq!(settled(&session), [1], "the end of the first does not wait for it");
    let (third, _) = begin(&session, &task(&session)).expect("another task takes the rest");
    assert_eq!(third.token.0, 3);
    let running = session.state.lock().slot(0).leases.running_attempts(session.now());
    let tokens: Vec<u64> = running.iter().map(|(token, _)| token.0).collect();
    assert!(tokens.contains(&2) && !tokens.contains(&1), "a new link reports it: {tokens:?}");
}

#[test]
fn second_deliveries_and_slow_handlers_are_announced() {
    let session = fast_session(&[]);
    let again = |token| Delivery { deliveries: 2, ..delivery(&token) };
    let paths = vec![Path::new("/jobs/x").unwrap()];
    let jobs = (1..=6).map(again).collect();
    session.delivered(0, Deliver { subscription: 1, paths, jobs }).unwrap();
    let step = session.next(&task(&session));
    assert!(matches!(step, HandlerTaskStep::Announce(_, jobs) if jobs.len() == 2));

    let session = fast_session(&[1, 2, 3, 4, 5, 6]);
    session.state.lock().handler_time = RUN_WORK;
    let step = session.next(&task(&session));
    assert!(matches!(step, HandlerTaskStep::Announce(_, jobs) if jobs.len() == 2));
}

#[derive(Clone, Debug)]
enum Step {
    Deliver(u64),
    Task(usize),
    Pass(u64),
    Revoke(u64),
    Check,
    Quiet(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u64..12).prop_map(Step::Deliver),
        12 => (0usize..3).prop_map(Step::Task),
        1 => (0u64..600).prop_map(Step::Pass),
        2 => (0u64..60).prop_map(Step::Revoke),
        1 => Just(Step::Check),
        1 => any::<bool>().prop_map(Step::Quiet),
    ]
}

proptest! {
    /// However tasks, links and time interleave: each job begins at most once, none that was
    /// revoked or released begins, no job waits in a run while a task is idle, and once all is done
    /// each job has begun, was revoked, or was released, and every credit is free.
    #[test]
    fn runs_begin_each_job_once_and_starve_no_task(
        micros in 1u64..400,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut session = WorkerSession::new(3, 10_000, Vec::new(), 7);
        session.watched(true, vec![publisher()]);
        let tasks: Vec<Arc<Run>> = (0..3).map(|_| task(&session)).collect();
        let mut current: Vec<Option<QueuedJob>> = vec![None, None, None];
        let mut in_run = [false; 3];
        let (mut next, mut begun, mut revoked) = (0, BTreeSet::new(), BTreeSet::new());
        let rest = std::iter::repeat_n(0..3, 10_000).flatten().map(Step::Task);
        for step in steps.into_iter().chain([Step::Quiet(false), Step::Check]).chain(rest) {
            session.state.lock().handler_time = Duration::from_micros(micros);
            match step {
                Step::Deliver(count) => {
                    let jobs = (next..next + count).map(|token| delivery(&token)).collect();
                    next += count;
                    let paths = vec![Path::new("/jobs/x").unwrap()];
                    session.delivered(0, Deliver { subscription: 1, paths, jobs }).unwrap();
                }
                Step::Task(at) if in_run[at] => {
                    let ended = current[at].take().map(|job| finished(&job, NewSettle::Release));
                    let job = tasks[at].next(ended, session.now()).map(|(job, _)| job);
                    if let Some(job) = &job {
                        let token = job.token.0;
                        prop_assert!(begun.insert(token), "{token} begins again");
                        prop_assert!(!revoked.contains(&token), "{token} was revoked");
                        let held = session.state.lock().slot(0).leases.get_mut(job.token).is_some();
                        prop_assert!(held, "{token} begins without a lease");
                    }
                    in_run[at] = job.is_some();
                    current[at] = job;
                }
                Step::Task(at) => match session.next(&tasks[at]) {
                    HandlerTaskStep::Run => in_run[at] = true,
                    HandlerTaskStep::Announce(_, jobs) => session.announced(jobs),
                    HandlerTaskStep::Wait => {
                        prop_assert!(session.waiting_in_runs() == 0, "a task is idle");
                        let idle = in_run.iter().all(|is| !is);
                        if idle && session.state.lock().announced.is_empty() {
                            prop_assert!(!session.state.lock().ready.can_start());
                        }
                    }
                    HandlerTaskStep::Stop => prop_assert!(false, "nobody stopped it"),
                },
                Step::Pass(ms) => pass(&mut session, Duration::from_millis(ms)),
                Step::Revoke(token) if token >= next => {}
                Step::Revoke(token) => {
                    session.revoked(0, longshore_protocol::Revoked::Cancelled, &[Token(token)]);
                    revoked.insert(token);
                }
                Step::Check => session.check_runs(),
                Step::Quiet(quiet) => {
                    session.quiet_requested(0, Quiet { request: 1, quiet });
                }
            }
        }
        let mut state = session.state.lock();
        prop_assert_eq!((state.running, state.several), (0, 0));
        let slot = state.slot(0);
        prop_assert_eq!((slot.running, slot.leases.len()), (0, 0));
        let settled: BTreeSet<u64> = slot.settles.tokens().map(|token| token.0).collect();
        for token in 0..next {
            let is_known = begun.contains(&token) || revoked.contains(&token);
            prop_assert!(is_known || settled.contains(&token), "{token} is lost");
        }
        drop(state);
        prop_assert_eq!(session.publishers().borrow()[0].jobs_held, 0);
    }
}
