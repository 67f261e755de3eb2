//! The session without a link, in virtual time: what it gives to handler tasks.

use longshore_protocol::Epoch;
use longshore_protocol::limits::TOKENS_MAX;
use longshore_protocol::messages::work::{Deliver, Delivery, JobTimes, SettleBatch, Settled};
use longshore_protocol::{Runs, SettleOutcome};

use super::*;
use crate::work::state::run_length::{BEGIN_WAIT_MAX, IDLE_WAIT_MAX};
use crate::{CancelReason, CheckpointError, CheckpointsError, JobContext};

const LEASE: Duration = Duration::from_secs(30);

fn publisher() -> PublisherInfo {
    PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "p1", [([127, 0, 0, 1], 4780)])
}

/// A session with one publisher that delivered these jobs.
fn session_with(tokens: &[u64]) -> Arc<WorkerSession> {
    let session = WorkerSession::new(2, 4, Vec::new(), crate::CANCEL_GRACE, 7);
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
        times: JobTimes::default(),
        entry: Bytes::new(),
    }
}

/// Lets time pass: the session counts from its start, so the test moves the start.
fn pass(session: &mut Arc<WorkerSession>, time: Duration) {
    Arc::get_mut(session).expect("no other reference").started -= time;
}

/// Acts as a handler task until it receives a job, if there is one.
fn next_job(session: &WorkerSession) -> Option<u64> {
    let mut signal = Arc::default();
    loop {
        match session.next(None, &mut signal) {
            HandlerTaskStep::Announce(_, jobs) => session.announced(jobs),
            HandlerTaskStep::Run(job) => return Some(job.token.0),
            HandlerTaskStep::Wait | HandlerTaskStep::Stop => return None,
        }
    }
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
        times: job.times,
        trace: None,
        parents: None,
    }
}

#[test]
fn no_job_starts_after_its_lease_ended_in_a_pause() {
    let mut session = session_with(&[1, 2]);
    assert_eq!(next_job(&session), Some(1), "in time");
    pass(&mut session, LEASE);
    assert_eq!(next_job(&session), None);
    session.tick();
    assert_eq!(session.stats().leases_revoked, 2);

    let mut session = session_with(&[1]);
    pass(&mut session, LEASE);
    let next = session.next(None, &mut Arc::default());
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
        session.state.lock().slot(0).settles.push(Token(token), &NewSettle::Release, None);
    }
    let resumed = session.resume(0).0;
    assert_eq!(resumed.len(), TOKENS_MAX);
    assert!(resumed.contains(&Token(running)));
}

#[test]
fn no_checkpoint_is_stored_after_the_lease_ended_in_a_pause() {
    let mut session = session_with(&[1]);
    let mut signal = Arc::default();
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut signal) else {
        panic!("a job waits")
    };
    session.announced(jobs);
    let HandlerTaskStep::Run(job) = session.next(None, &mut signal) else {
        panic!("the job was announced")
    };
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
        (session.stats().jobs_held, session.stats().leases_revoked),
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
    let mut signal = Arc::default();
    assert!(
        matches!(session.next(None, &mut signal), HandlerTaskStep::Wait),
        "both handler tasks are busy"
    );
}

#[test]
fn an_announced_job_that_cannot_start_is_released() {
    let mut session = session_with(&[1, 2]);
    grace_of(&session, GRACE);
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut Arc::default()) else {
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
    assert_eq!(session.stats().leases_revoked, 2);
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
    let mut signal = Arc::new(LeaseSignal::for_session(Arc::downgrade(&session) as _));
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut signal) else {
        panic!("a job waits")
    };
    session.announced(jobs);
    let HandlerTaskStep::Run(job) = session.next(None, &mut signal) else {
        panic!("the job was announced")
    };
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
    let session = WorkerSession::new(2, 4, Vec::new(), crate::CANCEL_GRACE, 7);
    (1..=1_000).for_each(|n| add_and_lose_publisher(&session, n));
    let state = session.state.lock();
    assert!(state.slots.len() <= 2 && state.slot_ids.len() <= 2, "{}", state.slots.len());
}

#[test]
fn a_slot_with_a_running_handler_is_not_reused() {
    let session = session_with(&[1]);
    let mut signal = Arc::default();
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut signal) else {
        panic!("a job waits")
    };
    session.announced(jobs);
    let HandlerTaskStep::Run(job) = session.next(None, &mut signal) else {
        panic!("the job was announced")
    };
    let context = context_of(&session, &job, signal.clone());
    session.revoked(0, longshore_protocol::Revoked::LeaseLost, &[Token(1)]);
    session.link_lost(0, "the link is dead".into());
    (1..=10).for_each(|n| add_and_lose_publisher(&session, n));
    assert_eq!(session.state.lock().slots[0].id, PublisherId([1; 16]));
    let settle = NewSettle::Release;
    let ended = FinishedJob {
        slot_id: 0,
        subscription: 0,
        source: 0,
        token: Token(1),
        settle,
        settled: false,
        panicked: false,
        damaged: false,
    };
    session.next(Some(ended), &mut Arc::default());
    (11..=20).for_each(|n| add_and_lose_publisher(&session, n));
    assert_ne!(session.state.lock().slots[0].id, PublisherId([1; 16]));
    // A job of another publisher with the same token must not accept this context.
    let lease = LeasedJob { subscription: 0, holder: LeaseHolder::Handler(Arc::default()) };
    session.state.lock().slot(0).leases.insert(session.now(), Token(1), LEASE, lease);
    assert!(session.checkpoint(&context, "too late".into()).is_err());
}

#[test]
fn a_job_that_did_not_begin_frees_its_cap() {
    let limits = SourceLimits { cap: Some(1), weight: 1 };
    let mut session = WorkerSession::new(
        2,
        4,
        vec![(Glob::new("/jobs/**").unwrap(), limits)],
        crate::CANCEL_GRACE,
        7,
    );
    session.watched(true, vec![publisher()]);
    let deliver = |token: u64| Deliver {
        subscription: 2,
        paths: vec![Path::new("/jobs/x").unwrap()],
        jobs: vec![delivery(&token)],
    };
    session.delivered(0, deliver(1)).unwrap();
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut Arc::default()) else {
        panic!("a job waits")
    };
    session.announced(jobs);
    pass(&mut session, LEASE);
    assert_eq!(next_job(&session), None, "its lease may be over");
    session.delivered(0, deliver(2)).unwrap();
    assert_eq!(next_job(&session), Some(2));
}

#[test]
fn a_capped_source_leaves_handler_tasks_to_others() {
    let capped = SourceLimits { cap: Some(1), weight: 1 };
    let limits = [("/jobs/slow", capped), ("/jobs/**", SourceLimits::default())];
    let limits = limits.map(|(pattern, limits)| (Glob::new(pattern).unwrap(), limits));
    let session = WorkerSession::new(3, 9, limits.into(), crate::CANCEL_GRACE, 7);
    session.watched(true, vec![publisher()]);
    let jobs = [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)];
    let paths = ["/jobs/slow", "/jobs/fast"].map(|path| Path::new(path).unwrap()).into();
    let jobs = jobs.iter().map(|&(token, path)| Delivery { path, ..delivery(&token) }).collect();
    session.delivered(0, Deliver { subscription: 1, paths, jobs }).unwrap();
    let mut begun: Vec<u64> = std::iter::from_fn(|| next_job(&session)).collect();
    begun.sort_unstable();
    assert_eq!(begun, [1, 4, 5]);
    let settle = NewSettle::Release;
    let ended = |n| FinishedJob {
        slot_id: 0,
        subscription: 0,
        source: usize::from(n > 3),
        token: Token(n),
        settle: settle.clone(),
        settled: false,
        panicked: false,
        damaged: false,
    };
    let mut signal = Arc::default();
    assert!(matches!(session.next(Some(ended(4)), &mut signal), HandlerTaskStep::Wait));
    let HandlerTaskStep::Announce(_, jobs) = session.next(Some(ended(1)), &mut signal) else {
        panic!("the next of the capped source may begin")
    };
    assert_eq!(jobs[0].token, Token(2));
}

/// A session with idle handler tasks, and jobs with their numbers of deliveries.
fn fast_session(
    concurrency: usize,
    jobs: impl IntoIterator<Item = (u64, u16)>,
) -> Arc<WorkerSession> {
    let session = WorkerSession::new(concurrency, 100, Vec::new(), crate::CANCEL_GRACE, 7);
    session.watched(true, vec![publisher()]);
    let Connect { slot_id, .. } = session.take_connects().pop().expect("it is dialled");
    let jobs = jobs.into_iter();
    let jobs = jobs.map(|(token, deliveries)| Delivery { deliveries, ..delivery(&token) });
    let paths = vec![Path::new("/jobs/x").unwrap()];
    let deliver = Deliver { subscription: 1, paths, jobs: jobs.collect() };
    session.delivered(slot_id, deliver).unwrap();
    session
}

/// Acts as one handler task to the end of all jobs; returns the jobs of each run.
fn runs_of(session: &WorkerSession) -> Vec<Vec<u64>> {
    let (mut signal, mut ended, mut runs) = (Arc::default(), None, Vec::new());
    loop {
        match session.next(ended.take(), &mut signal) {
            HandlerTaskStep::Announce(_, jobs) => {
                runs.push(jobs.iter().map(|job| job.token.0).collect());
                session.announced(jobs);
            }
            HandlerTaskStep::Run(job) => ended = Some(finished(&job)),
            HandlerTaskStep::Wait | HandlerTaskStep::Stop => return runs,
        }
    }
}

fn finished(job: &QueuedJob) -> FinishedJob {
    FinishedJob {
        slot_id: job.slot_id,
        subscription: job.subscription,
        source: job.source,
        token: job.token,
        settle: NewSettle::Complete { result: None },
        settled: false,
        panicked: false,
        damaged: false,
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_may_have_killed_a_worker_are_reported_only_when_they_begin() {
    let session = fast_session(
        1,
        (1..=11).map(|token| (token, if token == 8 || token == 9 { 2 } else { 1 })),
    );
    let runs = runs_of(&session);
    let expected: [&[u64]; 6] = [&[1], &[2, 3], &[4, 5, 6, 7], &[8], &[9, 10], &[11]];
    assert_eq!(runs, expected);
}

#[tokio::test(start_paused = true)]
async fn reported_jobs_that_do_not_begin_in_time_are_released() {
    let session = fast_session(1, (1..=7).map(|token| (token, 1)));
    let (mut signal, mut ended) = (Arc::default(), None);
    let blocked = loop {
        match session.next(ended.take(), &mut signal) {
            HandlerTaskStep::Announce(_, jobs) => session.announced(jobs),
            HandlerTaskStep::Run(job) if job.token == Token(4) => break job,
            HandlerTaskStep::Run(job) => ended = Some(finished(&job)),
            step => panic!("a job waits: {step:?}"),
        }
    };
    let held = || session.state.lock().slot(0).unsettled();
    let in_time = session.outgoing(0, true).deadline.expect("the jobs behind it are due");
    tokio::time::advance(BEGIN_WAIT_MAX - Duration::from_millis(1)).await;
    session.outgoing(0, true);
    assert_eq!((in_time, held()), (BEGIN_WAIT_MAX, 4));
    tokio::time::advance(Duration::from_millis(1)).await;
    session.outgoing(0, true);
    assert_eq!(held(), 1, "only the running job");
    assert_eq!(session.state.lock().slot(0).settles.unanswered(), 3 + 3, "results and releases");
    let next = session.next(Some(finished(&blocked)), &mut signal);
    assert!(matches!(next, HandlerTaskStep::Wait), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn reported_jobs_wait_two_seconds_for_an_idle_handler() {
    let one_of_two_runs = || {
        let (session, mut signal) = (fast_session(2, [(1, 1), (2, 1)]), Arc::default());
        let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut signal) else {
            panic!("jobs wait")
        };
        session.announced(jobs);
        assert!(matches!(session.next(None, &mut signal), HandlerTaskStep::Run(_)));
        session
    };
    let session = one_of_two_runs();
    tokio::time::advance(10 * BEGIN_WAIT_MAX).await;
    session.record_tick();
    assert_eq!(session.outgoing(0, true).deadline, Some(11 * BEGIN_WAIT_MAX), "it checks again");
    assert_eq!(next_job(&session), Some(2), "a busy machine");

    // The idle handler's task waits for a thread that a handler blocks, and no link wakes.
    let session = one_of_two_runs();
    let released = || session.state.lock().slot(0).settles.unanswered();
    tokio::time::advance(IDLE_WAIT_MAX - Duration::from_millis(1)).await;
    session.record_tick();
    assert_eq!(released(), 0);
    tokio::time::advance(Duration::from_millis(1)).await;
    session.record_tick();
    assert_eq!((released(), next_job(&session)), (1, None));
}

#[test]
fn a_blocking_handler_that_outlives_its_attempt_keeps_its_handler_task() {
    let session = session_with(&[1, 2, 3]);
    let (mut signals, mut running) = ([Arc::default(), Arc::default()], Vec::new());
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut signals[0]) else {
        panic!("two are idle")
    };
    session.announced(jobs);
    for signal in &mut signals {
        let HandlerTaskStep::Run(job) = session.next(None, signal) else { panic!("a job waits") };
        running.push(finished(&job));
    }
    let held = |session: &WorkerSession| (session.running(), session.stats().running);
    session.settle_early(&mut running[0]);
    assert_eq!(held(&session), (1, 2));
    assert_eq!(session.state.lock().slot(0).settles.unanswered(), 1, "it is settled at once");
    let third = session.next(None, &mut Arc::default());
    assert!(matches!(third, HandlerTaskStep::Wait), "{third:?}");
    let returned = session.next(Some(running.swap_remove(0)), &mut signals[0]);
    let HandlerTaskStep::Announce(_, jobs) = returned else {
        panic!("its handler task is free: {returned:?}")
    };
    assert_eq!((jobs[0].token, held(&session)), (Token(3), (1, 1)));
    assert_eq!(session.state.lock().slot(0).settles.unanswered(), 1, "settled once");
}

/// A session whose publisher has no space for these results, of 1 MiB each.
fn session_without_space(tokens: std::ops::Range<u64>) -> Arc<WorkerSession> {
    let session = session_with(&[]);
    let mut state = session.state.lock();
    let settles = &mut state.slots[0].settles;
    settles.attached(1);
    for token in tokens.clone() {
        let result = Some(Bytes::from(vec![0; 1024 * 1024]));
        settles.push(Token(token), &NewSettle::Complete { result }, None);
    }
    drop(state);
    answer_all(&session, SettleOutcome::NoSpace);
    session
}

/// Answers all that is sent and unanswered.
fn answer_all(session: &WorkerSession, outcome: SettleOutcome) {
    loop {
        let sent = session.state.lock().slots[0].settles.next_to_send(session.now());
        let Some(sent) = sent else { return };
        let batch = SettleBatch::decode(sent.body).unwrap();
        let outcomes = Runs::all(outcome, batch.len());
        session.settled(0, &Settled { sequence: batch.sequence, outcomes });
    }
}

#[tokio::test(start_paused = true)]
async fn no_job_is_taken_while_too_many_results_wait_for_space() {
    for (results, takes_jobs) in [(60, true), (70, false)] {
        let session = session_without_space(0..results);
        session.record_handlers_tick();
        session.record_tick();
        assert_eq!(!session.state.lock().takes_no_jobs(), takes_jobs, "{results}");
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            session.state.lock().slots[0].settles.retry(session.now());
        }
        session.record_handlers_tick();
        session.record_tick();
        assert_eq!(!session.state.lock().takes_no_jobs(), takes_jobs, "they are sent again");
        answer_all(&session, SettleOutcome::Accepted);
        session.record_tick();
        assert!(!session.state.lock().takes_no_jobs(), "they are stored");
    }
}

#[tokio::test(start_paused = true)]
async fn results_for_a_publisher_that_is_gone_stop_nobody() {
    let mut session = session_without_space(0..70);
    session.record_tick();
    assert!(session.state.lock().takes_no_jobs());
    session.link_lost(0, "gone".to_owned());
    session.record_tick();
    assert!(!session.state.lock().takes_no_jobs(), "other publishers have space");
    pass(&mut session, LEASE);
    session.tick();
    assert_eq!(session.state.lock().unanswered(), 0, "without leases they would be refused");
    assert_eq!((session.stats().leases_revoked, session.stats().unanswered), (70, 70));
}

#[tokio::test(start_paused = true)]
async fn lost_lease_of_a_waiting_result_is_not_renewed_again() {
    let mut session = session_with(&[]);
    {
        let slot = &mut session.state.lock().slots[0];
        slot.leases.connected(Duration::ZERO);
        slot.settles.attached(1);
        let job = LeasedJob { subscription: 0, holder: LeaseHolder::Settle };
        slot.leases.insert(Duration::ZERO, Token(1), LEASE, job);
        slot.settles.push(Token(1), &NewSettle::Complete { result: None }, None);
    }
    pass(&mut session, LEASE / 3);
    assert_eq!(session.outgoing(0, false).renew, [Token(1)]);
    session.renewed(0, &[Token(1)]);
    pass(&mut session, LEASE / 3);
    assert_eq!(session.outgoing(0, false).renew, []);
    assert_eq!(session.outgoing(0, true).settles.len(), 1, "both sides count its refusal");
}

/// A deploy while a disk is short of space: the job has completed, and would run again.
#[tokio::test(start_paused = true)]
async fn results_that_wait_for_space_are_not_released_by_a_drain() {
    let session = session_without_space(1..3);
    session.drain();
    session.release_running();
    let state = session.state.lock();
    assert_eq!(state.slots[0].leases.len(), 2, "their leases are renewed");
    assert!(state.slots[0].settles.tokens().next().is_none(), "nothing is released");
}

/// As on a link that is busy with large results: its jobs would count as lost, and run again.
#[tokio::test(start_paused = true)]
async fn leases_of_results_that_wait_for_the_link_are_renewed() {
    let mut session = session_with(&[1]);
    let mut signal = Arc::default();
    let HandlerTaskStep::Announce(_, jobs) = session.next(None, &mut signal) else { panic!() };
    session.announced(jobs);
    let HandlerTaskStep::Run(job) = session.next(None, &mut signal) else { panic!() };
    {
        let mut state = session.state.lock();
        state.slots[0].settles.attached(1);
        state.slots[0].leases.connected(session.now());
    }
    pass(&mut session, Duration::from_secs(1));
    session.next(Some(finished(&job)), &mut signal);
    for _ in 0..10 {
        pass(&mut session, LEASE / 3);
        assert_eq!(session.outgoing(0, false).renew, [Token(1)]);
        session.renewed(0, &[]);
    }
    assert_eq!(session.resume(0).0, [Token(1)]);
    let out = session.outgoing(0, true);
    assert_eq!((out.settles.len(), out.renew.len()), (1, 0));
    assert_eq!(session.state.lock().slots[0].leases.len(), 0, "it is on its way");
    assert_eq!(session.stats().leases_revoked, 0);
}
