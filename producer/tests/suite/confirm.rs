//! Two-phase enqueueing over real links: prepared, then confirmed.

use std::sync::Arc;
use std::time::Duration;

use crate::fake::{FakePublisher, RequestBehavior};
use hashbrown::HashMap;
use longshore_producer::{ConfirmError, Producer, Receipt, new_job};
use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, Answer, Request, RequestError, Selection,
};
use longshore_protocol::{Durability, JobId, JobRef, JobState, Path, Runs};
use parking_lot::Mutex;

/// The state of each job; confirming is idempotent.
type Jobs = Arc<Mutex<HashMap<JobId, JobState>>>;

fn confirms(publisher: &FakePublisher, jobs: &Jobs) {
    let jobs = jobs.clone();
    publisher.answer_requests(move |request| {
        let Request::Act { action: Action::Confirm, selection: Selection::Ids(ids), .. } = request
        else {
            panic!("{request:?} was not expected")
        };
        let mut jobs = jobs.lock();
        let outcomes: Runs<ActOutcome> = (ids.iter())
            .map(|id| match jobs.get_mut(id) {
                None => ActOutcome::Unknown,
                Some(state @ (JobState::Prepared | JobState::Ready)) => {
                    *state = JobState::Ready;
                    ActOutcome::Done
                }
                Some(state) => ActOutcome::NotInState(*state),
            })
            .collect();
        Some(Ok(Answer::Acted(ActionReport { outcomes, ..ActionReport::default() })))
    });
}

fn to(publishers: &[&FakePublisher], ms: u64) -> Producer {
    let options = Producer::builder().answer_timeout(Duration::from_millis(ms));
    options.to_publishers(publishers.iter().map(|p| p.info.clone()))
}

fn id(n: u64) -> JobId {
    JobId::new_v7(n, [1; 10])
}

fn receipt(publisher: &FakePublisher, id: JobId) -> Receipt {
    let job = JobRef { publisher: publisher.info.id, id };
    Receipt { job, existing: false, durability: Durability::Fsync, may_be_at: None }
}

#[tokio::test]
async fn a_prepared_job_is_confirmed_at_its_own_publisher() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let jobs = Jobs::default();
    confirms(&one, &jobs);
    let producer = to(&[&one], 5_000);
    let receipt = producer.prepare(new_job(Path::new("/jobs").expect("a path"), "x")).await;
    let receipt = receipt.expect("taken");
    assert_eq!(one.disk.lock().prepared, [receipt.job.id]);
    jobs.lock().insert(receipt.job.id, JobState::Prepared);
    let producer = to(&[&two, &one], 5_000);
    assert_eq!(producer.confirm(&receipt).await, Ok(()));
    assert_eq!(producer.confirm(&receipt).await, Ok(()), "confirming again is safe");
    assert_eq!(jobs.lock()[&receipt.job.id], JobState::Ready);
    assert_eq!((one.disk.lock().requests.len(), two.disk.lock().attaches), (2, 0));
}

#[tokio::test]
async fn a_failed_confirmation_reports_the_jobs_state() {
    let publisher = FakePublisher::start(1).await;
    let jobs = Jobs::default();
    jobs.lock().insert(id(1), JobState::Cancelled);
    confirms(&publisher, &jobs);
    let producer = to(&[&publisher], 5_000);
    let at = publisher.info.id;
    let cancelled = producer.confirm(&receipt(&publisher, id(1))).await;
    let state = JobState::Cancelled;
    assert_eq!(cancelled, Err(ConfirmError::NotInState { publisher: at, state }));
    let nowhere = producer.confirm(&receipt(&publisher, id(2))).await;
    assert_eq!(nowhere, Err(ConfirmError::NotFound { publisher: at }));
    publisher.answer_requests(|_| Some(Err(RequestError::Unknown)));
    let old = producer.confirm(&receipt(&publisher, id(1))).await;
    assert_eq!(old, Err(ConfirmError::Refused { publisher: at, why: RequestError::Unknown }));
}

#[tokio::test]
async fn confirming_is_retried_until_it_is_answered() {
    let mut publisher = FakePublisher::start(1).await;
    let address = publisher.info.addresses[0].clone();
    let jobs = Jobs::default();
    jobs.lock().insert(id(1), JobState::Prepared);
    confirms(&publisher, &jobs);
    publisher.script_requests([
        RequestBehavior::Break,
        RequestBehavior::DoAndBreak,
        RequestBehavior::TooMany,
        RequestBehavior::NoSpace,
    ]);
    let producer = to(&[&publisher], 20_000);
    assert_eq!(producer.confirm(&receipt(&publisher, id(1))).await, Ok(()));
    publisher.kill().await;
    let one = receipt(&publisher, id(1));
    let confirming = tokio::spawn(async move { producer.confirm(&one).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    publisher.revive_at(address.clone()).await;
    assert_eq!(confirming.await.expect("no panic"), Ok(()));
}

#[tokio::test]
async fn confirming_at_an_absent_publisher_times_out() {
    let mut publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher], 200);
    publisher.kill().await;
    let away = producer.confirm(&receipt(&publisher, id(1))).await;
    assert!(matches!(&away, Err(ConfirmError::Away { .. })), "{away:?}");
    let receipts: Vec<Receipt> = (0..20_001).map(|n| receipt(&publisher, id(n))).collect();
    let outcomes = producer.confirm_all(&receipts).await;
    let why = outcomes.iter().rev().map(|outcome| match outcome {
        Err(ConfirmError::Away { why, .. }) => why.as_str(),
        outcome => panic!("{outcome:?}"),
    });
    let not_asked = why.take_while(|why| *why == "the time was over").count();
    assert_eq!(not_asked, 10_001, "the time of the first request is that of all");
    let text = |outcome: Option<&Result<(), ConfirmError>>| match outcome {
        Some(Err(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let (first, last) = (text(outcomes.first()), text(outcomes.last()));
    assert!(first.starts_with("Unknown: ") && first.contains("may or may not"), "{first}");
    assert!(last.ends_with("was not asked to confirm the job: the time was over"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn confirming_without_replicas_fails_at_once() {
    let publisher = FakePublisher::start(1).await;
    let began = tokio::time::Instant::now();
    let outcome = Producer::connect("").confirm(&receipt(&publisher, id(1))).await;
    assert!(
        matches!(&outcome, Err(ConfirmError::Away { waited, why, .. })
            if waited.is_zero() && why.contains("no resolver replica is configured")),
        "{outcome:?}"
    );
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn many_confirmations_have_their_own_outcomes() {
    let (one, mut two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let jobs = Jobs::default();
    jobs.lock().extend((0..25_000).map(|n| (id(n), JobState::Prepared)));
    jobs.lock().insert(id(17), JobState::Dead);
    confirms(&one, &jobs);
    two.kill().await;
    let mut receipts: Vec<Receipt> = (0..25_000).map(|n| receipt(&one, id(n))).collect();
    receipts.insert(5, receipt(&two, id(1)));
    let outcomes = to(&[&one, &two], 1_000).confirm_all(&receipts).await;
    assert_eq!(outcomes.len(), 25_001);
    for (index, outcome) in outcomes.iter().enumerate() {
        match index {
            5 => assert!(matches!(outcome, Err(ConfirmError::Away { .. })), "{outcome:?}"),
            18 => assert!(matches!(outcome, Err(ConfirmError::NotInState { .. })), "{outcome:?}"),
            _ => assert_eq!(*outcome, Ok(()), "{index}"),
        }
    }
    assert_eq!(one.disk.lock().requests.len(), 3, "10,000 at a time");
}
