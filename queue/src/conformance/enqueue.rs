//! Enqueuing jobs.

use std::time::Duration;

use longshore_protocol::{BatchRefusal, EnqueueOutcome, NewJob, Refusal, Role};

use super::scenario::{QUEUE, StoreScenario, id, job, job_of};
use EnqueueOutcome::{Created, Existing, ExistingKey, Refused};

pub(super) async fn job_is_created_once_and_exists_when_repeated(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    assert_eq!(scenario.enqueue(producer, [job(1), job(2)]).await, [Created, Created]);
    let other = NewJob { payload: "another payload".into(), ..job(2) };
    let again = scenario.enqueue(producer, [job(1), other, job(3)]).await;
    assert_eq!(again, [Existing, Refused(Refusal::IdConflict), Created]);
    assert_eq!(scenario.counts(QUEUE).await.ready, 3);
    let entry = scenario.job_view(id(2)).await.entry;
    assert!(scenario.read(entry).ends_with(b"payload 2"), "the first payload stays");
}

pub(super) async fn one_id_from_a_thousand_producers_creates_one_job(scenario: &mut StoreScenario) {
    let mut outcomes = Vec::new();
    for n in 0..1_000 {
        let producer = scenario.attach(Role::Producer, &format!("producer {n}"), &[]).await.0;
        outcomes.extend(scenario.enqueue(producer, [job(1)]).await);
    }
    assert_eq!(outcomes.iter().filter(|&&outcome| outcome == Created).count(), 1);
    assert_eq!(outcomes.iter().filter(|&&outcome| outcome == Existing).count(), 999);
    assert_eq!(scenario.stat(QUEUE).await.enqueued, 1);
}

pub(super) async fn only_atomic_batches_are_refused_as_a_whole(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let jobs = |n| [job(n), job_of("/sys/jobs", n + 1), job_of("/", n + 2), job(n + 3)];
    let (reserved, root) = (Refused(Refusal::Reserved), Refused(Refusal::BadPath));
    assert_eq!(scenario.enqueue(producer, jobs(1)).await, [Created, reserved, root, Created]);
    let answer = scenario.enqueue_as(producer, 2, true, jobs(11)).await;
    let outcomes: Vec<EnqueueOutcome> = answer.outcome.unwrap().iter().collect();
    let others = Refused(Refusal::BatchRefused);
    assert_eq!(outcomes, [others, reserved, root, others]);
    assert_eq!(scenario.state(id(11)).await, None);
    let answer = scenario.enqueue_as(producer, 3, true, [job(1), job(21)]).await;
    let outcomes: Vec<EnqueueOutcome> = answer.outcome.unwrap().iter().collect();
    assert_eq!(outcomes, [Existing, Created], "an existing job is not refused");
    assert_eq!(scenario.counts(QUEUE).await.ready, 3);
}

pub(super) async fn key_is_one_job_until_it_ends(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let minute = Duration::from_secs(60);
    let keyed =
        |n| NewJob { payload: "x".into(), ..job(n) }.idempotency_key_for("order-42", minute);
    assert_eq!(scenario.enqueue(producer, [keyed(1)]).await, [Created]);
    let other = NewJob { payload: "another payload".into(), ..keyed(3) };
    let elsewhere = NewJob { path: job_of("/jobs/b", 4).path, ..keyed(4) };
    let outcomes = scenario.enqueue(producer, [keyed(2), other, elsewhere, keyed(1)]).await;
    let known = ExistingKey(id(1));
    assert_eq!(outcomes, [known, Refused(Refusal::KeyConflict), Created, Existing]);
    scenario.restart().await;
    let producer = scenario.producer().await;
    assert_eq!(scenario.enqueue(producer, [keyed(5)]).await, [known], "after a restart");
    scenario.advance(60_000).await;
    assert_eq!(scenario.enqueue(producer, [keyed(6)]).await, [Created], "the key has ended");
    assert_eq!(scenario.stat(QUEUE).await.enqueued, 2);
}

pub(super) async fn resent_batch_receives_its_first_answer(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let first = scenario.enqueue_as(producer, 1, false, [job(1), job_of("/sys/x", 2)]).await;
    let again = scenario.enqueue_as(producer, 1, false, [job(1), job_of("/sys/x", 2)]).await;
    assert_eq!(again, first, "the first answer is repeated");
    let gap = scenario.enqueue_as(producer, 3, false, [job(3)]).await;
    assert_eq!(gap.outcome, Err(BatchRefusal::SequenceGap));
    assert_eq!(scenario.state(id(3)).await, None);
    assert_eq!(scenario.enqueue(producer, [job(3)]).await, [Created], "batch 2");
    let (producer, attached) = scenario.attach(Role::Producer, "producer", &[]).await;
    assert_eq!(attached.next_batch, 3);
    assert_eq!(scenario.enqueue_as(producer, 1, false, [job(1), job_of("/sys/x", 2)]).await, first);
    assert_eq!(scenario.stat(QUEUE).await.enqueued, 2);
}

pub(super) async fn resent_batch_receives_its_first_answer_after_a_restart(
    scenario: &mut StoreScenario,
) {
    let producer = scenario.producer().await;
    let first = scenario.enqueue_as(producer, 1, false, [job(1), job_of("/sys/x", 2)]).await;
    scenario.restart().await;
    let (producer, attached) = scenario.attach(Role::Producer, "producer", &[]).await;
    assert_eq!(attached.next_batch, 2);
    assert_eq!(scenario.enqueue_as(producer, 1, false, [job(1), job_of("/sys/x", 2)]).await, first);
    assert_eq!(scenario.stat(QUEUE).await.enqueued, 1);
}

pub(super) async fn only_answers_to_the_last_batches_are_stored(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    for sequence in 1..=66 {
        scenario.enqueue_as(producer, sequence, false, [job(sequence as u32)]).await;
    }
    let forgotten = scenario.enqueue_as(producer, 2, false, [job(2)]).await;
    assert_eq!(forgotten.outcome, Err(BatchRefusal::UnknownProducer), "never silently accepted");
    assert!(scenario.enqueue_as(producer, 3, false, [job(3)]).await.outcome.is_ok());
    // A producer that was away for longer than an hour may have sent more than is known here.
    scenario.lose_link(producer).await;
    scenario.advance(super::scenario::HOUR_MS).await;
    let (producer, attached) = scenario.attach(Role::Producer, "producer", &[]).await;
    assert_eq!(attached.next_batch, 1);
    let unknown = scenario.enqueue_as(producer, 67, false, [job(67)]).await;
    assert_eq!(unknown.outcome, Err(BatchRefusal::UnknownProducer));
}

pub(super) async fn path_that_is_not_served_is_refused(scenario: &mut StoreScenario) {
    scenario.serve(&["/mail"], &["/jobs"]).await;
    let producer = scenario.producer().await;
    let jobs = [
        job_of("/mail", 1),
        job_of("/mail/fast", 2),
        job_of("/jobs/a", 3),
        job_of("/jobs", 4),
        job_of("/jobsa", 5),
    ];
    let not_here = Refused(Refusal::NotHere);
    let outcomes = scenario.enqueue(producer, jobs).await;
    assert_eq!(
        (outcomes[0], outcomes[1], outcomes[2], outcomes[4]),
        (Created, not_here, Created, not_here)
    );
}
