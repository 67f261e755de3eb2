//! Actions on jobs and queues over real links, and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use crate::fake::{FakePublisher, RequestBehavior};
use longshore_producer::{ActionOutcome, JobLocator, Queues, ReplaceError, new_id, new_job};
use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, Answer, DeadGroup, DeadGroups, Filter, PauseReport, QuietEnd,
    QuietedWorker, ReplaceOutcome, Request, RequestError, Selection, WorkerPattern,
};
use longshore_protocol::{
    DeathReason, Fingerprint, Gate, Glob, JobError, JobId, JobRef, JobState, Path, QueueSettings,
    Refusal, Runs, SessionId,
};
use parking_lot::Mutex;

const LONG: Duration = Duration::from_secs(20);

fn to(publishers: &[&FakePublisher]) -> Queues {
    let options = Queues::builder().request_timeout(Duration::from_secs(2));
    options.to_publishers(publishers.iter().map(|p| p.info.clone()))
}

fn id(n: u64) -> JobId {
    JobId::new_v7(n, [1; 10])
}

fn at(publisher: &FakePublisher, id: JobId) -> JobLocator {
    JobRef { publisher: publisher.info.id, id }.into()
}

fn all() -> Filter {
    Filter::of(Glob::everything())
}

fn path() -> Path {
    Path::new("/jobs").expect("a path")
}

type Jobs = Arc<Mutex<hashbrown::HashMap<JobId, JobState>>>;

/// Serves these jobs: cancels, revives and drops them as a publisher does.
fn serve_actions(
    publisher: &FakePublisher,
    jobs: impl IntoIterator<Item = (u64, JobState)>,
) -> Jobs {
    let jobs: Jobs = Arc::new(Mutex::new(jobs.into_iter().map(|(n, s)| (id(n), s)).collect()));
    let shared = jobs.clone();
    publisher.answer_requests(move |request| {
        let Request::Act { action, selection: Selection::Ids(ids), dry_run, .. } = request else {
            panic!("{request:?} was not expected")
        };
        let mut jobs = shared.lock();
        let mut act = |id: &JobId| {
            let Some(&state) = jobs.get(id) else { return ActOutcome::Unknown };
            let next = match (action, state) {
                (Action::Cancel, JobState::Ready) => Some(JobState::Cancelled),
                (Action::Revive, JobState::Dead) => Some(JobState::Ready),
                (Action::Drop, JobState::Dead) => None,
                _ => return ActOutcome::NotInState(state),
            };
            match next {
                _ if dry_run => {}
                Some(next) => drop(jobs.insert(*id, next)),
                None => drop(jobs.remove(id)),
            }
            ActOutcome::Done
        };
        let outcomes: Runs<ActOutcome> = ids.iter().map(&mut act).collect();
        Some(Ok(Answer::Acted(ActionReport { outcomes, ..ActionReport::default() })))
    });
    jobs
}

#[tokio::test]
async fn each_named_job_has_its_own_outcome() {
    use JobState::{Completed, Ready};
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let first = serve_actions(&one, [(1, Ready), (2, Completed)]);
    serve_actions(&two, [(3, Ready), (2, Ready)]);
    let names = [
        id(1).into(),
        at(&one, id(2)),
        id(3).into(),
        at(&two, id(1)),
        id(9).into(),
        // Both publishers have it; one cancels it.
        id(2).into(),
    ];
    let (p1, p2) = (one.info.id, two.info.id);
    let expected = [
        ActionOutcome::Done { publisher: p1 },
        ActionOutcome::NotInState { publisher: p1, state: Completed },
        ActionOutcome::Done { publisher: p2 },
        ActionOutcome::NotFound,
        ActionOutcome::NotFound,
        ActionOutcome::Done { publisher: p2 },
    ];
    let queues = to(&[&one, &two]);
    for dry_run in [true, false] {
        let acted = queues.act_on(Action::Cancel, &names, dry_run).await.expect("known");
        let ends: Vec<ActionOutcome> = acted.jobs.iter().map(|job| job.end).collect();
        assert_eq!(ends, expected);
        assert!(acted.jobs.iter().map(|job| &job.name).eq(&names));
        assert_eq!((acted.answered.len(), acted.missing.len(), acted.is_done()), (2, 0, false));
        let cancelled = first.lock()[&id(1)] == JobState::Cancelled;
        assert_eq!(cancelled, !dry_run);
    }
}

#[tokio::test]
async fn a_receipt_is_sent_only_to_its_publisher() {
    let (one, mut two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    serve_actions(&one, [(1, JobState::Ready)]);
    let queues = to(&[&one, &two]);
    let acted = queues.act_on(Action::Cancel, &[at(&one, id(1))], false).await.expect("known");
    assert!(acted.is_done() && acted.missing.is_empty());
    assert_eq!(two.disk.lock().attaches, 0, "it is not involved");
    two.kill().await;
    let nowhere: JobLocator = format!("ffffffff:{}", id(1)).parse().expect("a name");
    let names = [at(&two, id(1)), nowhere, id(9).into(), at(&one, id(9))];
    let acted = queues.act_on(Action::Cancel, &names, false).await.expect("known");
    let ends: Vec<ActionOutcome> = acted.jobs.iter().map(|job| job.end).collect();
    assert_eq!(
        ends,
        [
            ActionOutcome::Unknown,
            ActionOutcome::Unknown,
            ActionOutcome::Unknown,
            ActionOutcome::NotFound
        ]
    );
    assert_eq!((acted.answered.len(), acted.missing.len()), (1, 1));
    assert_eq!(acted.missing[0].publisher.id, two.info.id);
}

#[tokio::test]
async fn many_names_are_sent_in_chunks_and_keep_their_order() {
    let publisher = FakePublisher::start(1).await;
    serve_actions(&publisher, (0..25_000).filter(|n| n % 3 != 0).map(|n| (n, JobState::Ready)));
    let names: Vec<JobLocator> = (0..25_000).map(|n| id(n).into()).collect();
    let acted = to(&[&publisher]).act_on(Action::Cancel, &names, false).await.expect("known");
    for (n, job) in acted.jobs.iter().enumerate() {
        let there = matches!(job.end, ActionOutcome::Done { .. });
        assert_eq!(there, n % 3 != 0, "{n}: {:?}", job.end);
    }
    assert_eq!(publisher.disk.lock().requests.len(), 3);
}

#[tokio::test]
async fn a_silent_publisher_gets_no_more_names() {
    let mute = FakePublisher::start(1).await;
    mute.answer_requests(|_| None);
    let options = Queues::builder().request_timeout(Duration::from_millis(200));
    let queues = options.to_publishers([mute.info.clone()]);
    let names: Vec<JobLocator> = (0..20_001).map(|n| at(&mute, id(n))).collect();
    let results = queues.act_on(Action::Cancel, &names, false).await.expect("it is known");
    assert!(results.jobs.iter().all(|job| job.end == ActionOutcome::Unknown));
    assert_eq!((results.missing.len(), mute.disk.lock().requests.len()), (1, 1));
}

#[tokio::test]
async fn a_cancellation_without_an_answer_is_retried() {
    for behavior in [RequestBehavior::DoAndBreak, RequestBehavior::Break] {
        let publisher = FakePublisher::start(1).await;
        serve_actions(&publisher, [(1, JobState::Ready), (2, JobState::Completed)]);
        publisher.script_requests([behavior]);
        let names = [at(&publisher, id(1)), at(&publisher, id(2))];
        let acted = to(&[&publisher]).act_on(Action::Cancel, &names, false).await.expect("known");
        let of = publisher.info.id;
        let state = JobState::Completed;
        assert_eq!(acted.jobs[0].end, ActionOutcome::Done { publisher: of }, "{behavior:?}");
        assert_eq!(acted.jobs[1].end, ActionOutcome::NotInState { publisher: of, state });
    }
    let publisher = FakePublisher::start(1).await;
    serve_actions(&publisher, [(1, JobState::Cancelled)]);
    let names = [at(&publisher, id(1))];
    let acted = to(&[&publisher]).act_on(Action::Cancel, &names, false).await.expect("known");
    let cancelled =
        ActionOutcome::NotInState { publisher: publisher.info.id, state: JobState::Cancelled };
    assert_eq!(acted.jobs[0].end, cancelled, "no answer was lost, so another client cancelled it");
    publisher.script_requests([RequestBehavior::DoAndBreak]);
    let dry = to(&[&publisher]).act_on(Action::Cancel, &names, true).await.expect("known");
    assert_eq!(dry.jobs[0].end, cancelled, "a dry run cancels nothing");
}

#[tokio::test]
async fn a_revival_without_an_answer_is_not_retried() {
    let publisher = FakePublisher::start(1).await;
    let jobs = serve_actions(&publisher, [(1, JobState::Dead)]);
    publisher.script_requests([RequestBehavior::DoAndBreak]);
    let names = [at(&publisher, id(1))];
    let acted = to(&[&publisher]).act_on(Action::Revive, &names, false).await.expect("known");
    assert_eq!(acted.jobs[0].end, ActionOutcome::Unknown, "it could have died again meanwhile");
    assert_eq!((acted.missing.len(), publisher.disk.lock().requests.len()), (1, 1));
    assert_eq!(jobs.lock()[&id(1)], JobState::Ready);
}

/// Serves this many jobs, and acts on at most ten per request. Returns the paces of the requests.
fn serve_actions_of_ten(publisher: &FakePublisher, jobs: u64) -> Arc<Mutex<Vec<(u32, u64)>>> {
    let left = Mutex::new(jobs);
    let paces = Arc::new(Mutex::new(Vec::new()));
    let shared = paces.clone();
    publisher.answer_requests(move |request| {
        let Request::Act { pace, dry_run, selection: Selection::Matching(_), .. } = request else {
            panic!("{request:?} was not expected")
        };
        shared.lock().extend(pace.map(|pace| (pace.per_second, pace.before)));
        let mut left = left.lock();
        let done = 10.min(*left);
        let more = *left > done;
        *left -= if dry_run { 0 } else { done };
        Some(Ok(Answer::Acted(ActionReport { done, more, ..ActionReport::default() })))
    });
    paces
}

#[tokio::test]
async fn an_action_covers_all_jobs_and_a_dry_run_one_request() {
    let publisher = FakePublisher::start(1).await;
    serve_actions_of_ten(&publisher, 25);
    let queues = to(&[&publisher]);
    let dry = queues.act(Action::Cancel, all(), true).await.expect("known").total();
    assert_eq!((dry.done, dry.more), (10, true));
    let done = queues.act(Action::Cancel, all(), false).await.expect("known").total();
    assert_eq!((done.done, done.more), (25, false));
}

#[tokio::test]
async fn a_retried_action_counts_a_lower_bound() {
    let publisher = FakePublisher::start(1).await;
    serve_actions_of_ten(&publisher, 25);
    publisher.script_requests([RequestBehavior::Answer, RequestBehavior::DoAndBreak]);
    let done = to(&[&publisher]).act(Action::Drop, all(), false).await.expect("known");
    assert!(done.is_whole());
    assert_eq!((done.total().done, done.total().more), (15, false));
}

#[tokio::test]
async fn a_pace_continues_over_requests_and_publishers() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let mut away = FakePublisher::start(3).await;
    let (first, second) = (serve_actions_of_ten(&one, 25), serve_actions_of_ten(&two, 12));
    away.kill().await;
    let revived = to(&[&one, &away, &two]).revive(all(), 5).await.expect("known");
    assert_eq!((revived.total().done, revived.missing.len()), (37, 1));
    assert_eq!(*first.lock(), [(5, 0), (5, 10), (5, 20)]);
    assert_eq!(*second.lock(), [(5, 25), (5, 35)]);
    let none_a_second = to(&[&one]).revive(all(), 0).await.expect("known");
    assert!(none_a_second.is_whole());
    assert_eq!(first.lock().last(), Some(&(1, 0)), "the least is one a second");
}

#[tokio::test]
async fn a_paced_revival_reports_what_was_confirmed() {
    let publisher = FakePublisher::start(1).await;
    serve_actions_of_ten(&publisher, 25);
    publisher.script_requests([RequestBehavior::Answer, RequestBehavior::DoAndBreak]);
    let revived = to(&[&publisher]).revive(all(), 5).await.expect("known");
    assert!(revived.missing[0].why.contains("it had confirmed 10 before"), "{revived:?}");
}

fn group(kind: &str, jobs: u64, last_at: u64) -> DeadGroup {
    let error = JobError { kind: kind.into(), message: format!("at {last_at}") };
    DeadGroup {
        path: path(),
        death: DeathReason::Buried,
        fingerprint: Fingerprint::of_parts(kind, ""),
        jobs,
        first_at: last_at - 5,
        last_at,
        example: id(last_at),
        error: Some(error),
    }
}

#[tokio::test]
async fn dead_letter_groups_are_merged_over_publishers() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let answer_with = |publisher: &FakePublisher, groups: Vec<DeadGroup>, more| {
        publisher.answer_requests(move |_| {
            Some(Ok(Answer::DeadGroups(DeadGroups { groups: groups.clone(), more })))
        });
    };
    answer_with(&one, vec![group("a", 7, 20), group("b", 5, 30)], false);
    answer_with(&two, vec![group("b", 4, 40), group("c", 1, 10)], true);
    // One answer is lost.
    one.script_requests([RequestBehavior::DoAndBreak]);
    let groups = to(&[&one, &two]).dead_groups(all()).await.expect("known").merged();
    let b = DeadGroup { jobs: 9, first_at: 25, ..group("b", 4, 40) };
    let found: Vec<_> = groups.groups.iter().map(|g| (&g.group, g.publishers)).collect();
    assert_eq!(found, [(&b, 2), (&group("a", 7, 20), 1), (&group("c", 1, 10), 1)]);
    assert_eq!(groups.groups[0].example(), JobRef { publisher: two.info.id, id: id(40) });
    assert!(groups.more);
}

#[tokio::test]
async fn pauses_list_confirmations_and_are_retried() {
    let mut one = FakePublisher::start(1).await;
    let (two, address) = (FakePublisher::start(2).await, one.info.addresses[0].clone());
    let requests = Arc::new(Mutex::new(Vec::new()));
    for publisher in [&one, &two] {
        let requests = requests.clone();
        publisher.answer_requests(move |request| {
            let Request::Pause { gate: Gate::Delivery, pattern, paused } = request else {
                panic!("{request:?}")
            };
            requests.lock().push((pattern, paused));
            let report = PauseReport { queues: 3, changed: true, still_by: Vec::new() };
            Some(Ok(Answer::Paused(report)))
        });
    }
    let queues = to(&[&one, &two]);
    let pattern = Glob::new("/jobs/**").expect("a glob");
    one.script_requests([RequestBehavior::DoAndBreak]);
    let paused = queues.pause(pattern.clone()).await.expect("known");
    assert!(paused.is_whole());
    assert_eq!(paused.answers.iter().map(|p| p.answer.queues).sum::<u64>(), 6);
    assert_eq!(*requests.lock(), vec![(pattern.clone(), true); 3], "one of them twice");
    // After a restart.
    one.revive_at(address.clone()).await;
    let resumed = queues.resume(pattern.clone()).await.expect("known");
    assert!(resumed.is_whole(), "{resumed:?}");
    assert_eq!(requests.lock().last(), Some(&(pattern.clone(), false)));
    one.kill().await;
    let partly = queues.pause(pattern).await.expect("known");
    assert_eq!((partly.answers.len(), partly.missing.len()), (1, 1));
    assert_eq!(partly.missing[0].publisher.name, "fake-1");
}

#[tokio::test]
async fn quiet_requests_go_to_every_publisher_and_are_retried() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let requested = vec![WorkerPattern::new("mail-*").expect("a pattern")];
    let (requests, end) = (Arc::new(Mutex::new(Vec::new())), QuietEnd::Confirmed);
    let worker = QuietedWorker { name: "mail-1".into(), session: SessionId([7; 16]), end };
    for publisher in [&one, &two] {
        let (requests, worker) = (requests.clone(), worker.clone());
        publisher.answer_requests(move |request| {
            let Request::Quiet { workers, quiet, dry_run } = request else { panic!("{request:?}") };
            requests.lock().push((workers, quiet, dry_run));
            Some(Ok(Answer::Quieted(vec![worker.clone()])))
        });
    }
    one.script_requests([RequestBehavior::DoAndBreak]);
    let queues = to(&[&one, &two]);
    let quieted = queues.quiet_workers(requested.clone(), true, false).await.expect("known");
    assert!(quieted.is_whole());
    assert!(quieted.answers.iter().all(|answered| answered.answer == [worker.clone()]));
    assert_eq!(*requests.lock(), vec![(requested, true, false); 3], "one of them twice");
}

#[tokio::test]
async fn each_publisher_reports_its_settings_or_a_refusal() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let requested = QueueSettings { lease_ms: Some(5_000), ..QueueSettings::default() };
    let (expected_changes, now) =
        (requested.clone(), QueueSettings { keep_ms: Some(7), ..requested.clone() });
    let reported = now.clone();
    one.answer_requests(move |request| {
        let Request::Configure { path: queue, changes, reset } = request else {
            panic!("{request:?}")
        };
        assert_eq!((queue, &changes, reset), (path(), &expected_changes, true));
        Some(Ok(Answer::Configured(Ok(reported.clone()))))
    });
    two.answer_requests(|_| Some(Ok(Answer::Configured(Err(Refusal::NotHere)))));
    one.script_requests([RequestBehavior::DoAndBreak]);
    let configured = to(&[&one, &two]).configure(path(), requested, true).await.expect("known");
    let answers: Vec<_> = configured.answers.into_iter().map(|a| a.answer).collect();
    assert_eq!(answers, [Ok(now), Err(Refusal::NotHere)]);
}

#[tokio::test]
async fn a_clock_is_confirmed_at_every_publisher() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    one.answer_requests(|request| (request == Request::ConfirmClock).then_some(Ok(Answer::Done)));
    two.answer_requests(|_| Some(Err(RequestError::Unknown)));
    one.script_requests([RequestBehavior::Break]);
    let confirmed = to(&[&one, &two]).confirm_clock().await.expect("known");
    assert_eq!((confirmed.answers.len(), confirmed.missing.len()), (1, 1));
    assert!(confirmed.missing[0].why.contains("Unknown"), "{confirmed:?}");
}

/// Serves one dead job, which can be replaced idempotently.
fn replaces(publisher: &FakePublisher, dead: JobId) -> Arc<Mutex<Option<Vec<u8>>>> {
    let new: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
    let shared = new.clone();
    publisher.answer_requests(move |request| {
        let mut new = shared.lock();
        Some(Ok(match request {
            Request::Job { id } if id == dead && new.is_none() => {
                let job = crate::fake::job_model::job(dead, JobState::Dead, 1);
                Answer::Job(Some(Box::new(job)))
            }
            Request::Job { .. } => Answer::Job(None),
            Request::Replace { id, entry } if id == dead => {
                let outcome = match &*new {
                    None => ReplaceOutcome::Replaced,
                    Some(before) if before[..] == entry[..] => ReplaceOutcome::Replaced,
                    Some(_) => ReplaceOutcome::Unknown,
                };
                new.get_or_insert(entry.to_vec());
                Answer::Replaced(outcome)
            }
            Request::Replace { .. } => Answer::Replaced(ReplaceOutcome::NotDead),
            other => panic!("{other:?} was not expected"),
        }))
    });
    new
}

#[tokio::test]
async fn replacing_a_dead_job_is_idempotent() {
    let (mut one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let address = one.info.addresses[0].clone();
    let (new, _) = (replaces(&one, id(1)), replaces(&two, id(2)));
    let job = new_job(path(), "better");
    one.script_requests([RequestBehavior::Answer, RequestBehavior::DoAndBreak]);
    let queues = to(&[&one, &two]);
    // A bare id: looked up at both, and replaced at the one that has it.
    let replaced = queues.replace(&id(1).into(), &job, LONG).await;
    assert_eq!(replaced, Ok(JobRef { publisher: one.info.id, id: job.id }));
    let entry = new.lock().clone().expect("it was done");
    assert_eq!((&entry[..16], &entry[entry.len() - 6..]), (&job.id.0[..], &b"better"[..]));
    one.kill().await;
    let (name, same) = (at(&one, id(1)), job.clone());
    let again = tokio::spawn(async move { queues.replace(&name, &same, LONG).await });
    tokio::time::sleep(Duration::from_millis(150)).await;
    one.revive_at(address.clone()).await;
    assert!(again.await.expect("no panic").is_ok(), "repeated, it is the same replacement");
}

#[tokio::test]
async fn a_failed_replacement_reports_why() {
    let mut publisher = FakePublisher::start(1).await;
    replaces(&publisher, id(1));
    let queues = to(&[&publisher]);
    let short = Duration::from_millis(100);
    let mut bad = new_job(path(), "x");
    bad.options.max_attempts = Some(0);
    let invalid = queues.replace(&at(&publisher, id(1)), &bad, short).await;
    assert!(matches!(invalid, Err(ReplaceError::Invalid(_))), "{invalid:?}");
    assert_eq!(publisher.disk.lock().attaches, 0);
    let job = new_job(path(), "x");
    let alive = queues.replace(&at(&publisher, id(2)), &job, LONG).await;
    let (of, outcome) = (publisher.info.id, ReplaceOutcome::NotDead);
    assert_eq!(alive, Err(ReplaceError::Refused { publisher: of, outcome }));
    let nowhere = queues.replace(&new_id().into(), &job, LONG).await;
    assert!(matches!(nowhere, Err(ReplaceError::Lookup(_))), "{nowhere:?}");
    publisher.kill().await;
    let away = queues.replace(&at(&publisher, id(1)), &job, short).await;
    assert!(matches!(away, Err(ReplaceError::Away { .. })), "{away:?}");
}
