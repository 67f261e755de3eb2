//! Paused, closed and draining queues.

use longshore_protocol::messages::work::{NewSettle, PauseReport, RequestError};
use longshore_protocol::{
    BatchRefusal, Due, EnqueueOutcome, Gate, Glob, JobOptions, JobState, NewJob, Refusal, Role,
};

use super::scenario::{DONE, QUEUE, SECOND_MS, StoreScenario, from, id, job, job_of};
use crate::{Command, Reply};
use EnqueueOutcome::{Created, Refused};
use JobState::{Cancelled, Completed, Ready, Running};

async fn pause(
    scenario: &mut StoreScenario,
    pattern: &str,
    paused: bool,
) -> Result<PauseReport, RequestError> {
    set_gate(scenario, Gate::Delivery, pattern, paused).await
}

async fn set_gate(
    scenario: &mut StoreScenario,
    gate: Gate,
    pattern: &str,
    paused: bool,
) -> Result<PauseReport, RequestError> {
    let (tool, request, pattern) = (scenario.tool(), 1, pattern.parse().unwrap());
    scenario.submit(Command::Pause { link: tool.link, request, gate, pattern, paused }).await;
    scenario.reply(tool, |reply| match reply {
        Reply::Paused { report, .. } => Some(report),
        _ => None,
    })
}

fn report(queues: u64, changed: bool, still: &[&str]) -> Result<PauseReport, RequestError> {
    let still_by = still.iter().map(|pattern| pattern.parse::<Glob>().unwrap()).collect();
    Ok(PauseReport { queues, changed, still_by })
}

pub(super) async fn paused_queue_accepts_and_delivers_nothing(scenario: &mut StoreScenario) {
    scenario.create([job(1), job_of("/mail", 2)]).await;
    assert_eq!(pause(scenario, "/jobs/**", true).await, report(1, true, &[]));
    assert_eq!(pause(scenario, "/jobs/**", true).await, report(1, false, &[]));
    let worker = scenario.worker("w", from("/**"), 10).await;
    assert_eq!(scenario.delivered_job(worker).id, id(2), "other queues continue");
    let producer = scenario.producer().await;
    let outcomes = scenario.enqueue(producer, [job(3), job_of("/mail", 4)]).await;
    assert_eq!(outcomes, [Created, Created]);
    assert_eq!(scenario.delivered_job(worker).id, id(4));
    assert_eq!(scenario.stat(QUEUE).await.paused_by, ["/jobs/**".parse().unwrap()]);
    assert_eq!(pause(scenario, "/jobs/**", false).await, report(1, true, &[]));
    let ids_delivered: Vec<_> =
        scenario.delivered(worker).iter().map(|delivered| delivered.id).collect();
    assert_eq!(ids_delivered, [id(1), id(3)], "at once, to waiting credit");
    assert_eq!(pause(scenario, "/jobs/**", false).await, report(1, false, &[]));
    assert_eq!(scenario.stat(QUEUE).await.paused_by, []);
}

pub(super) async fn running_jobs_of_a_paused_queue_end_as_usual(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    let options = JobOptions { due: Due::After(5_000), ..JobOptions::default() };
    scenario.create([job(1), job(2), job(3), NewJob { options, ..job(4) }, job(5)]).await;
    let delivered = scenario.delivered(worker);
    scenario.credit(worker, 10).await;
    let waiting = scenario.delivered_job(worker);
    pause(scenario, QUEUE, true).await.unwrap();
    scenario
        .end(worker, &[(delivered[0].token, DONE), (delivered[1].token, NewSettle::Release)])
        .await;
    scenario.act(longshore_protocol::messages::work::Action::Cancel, &[id(3)]).await;
    scenario.advance(5 * SECOND_MS).await;
    assert_eq!(scenario.states(1..=5).await, [Completed, Ready, Cancelled, Ready, Running]);
    assert_eq!(scenario.delivered(worker), [], "returned jobs stay");
    scenario.end(worker, &[(waiting.token, DONE)]).await;
    pause(scenario, QUEUE, false).await.unwrap();
    assert_eq!(scenario.delivered(worker).len(), 2);
}

pub(super) async fn pause_applies_to_new_queues_and_survives_a_restart(
    scenario: &mut StoreScenario,
) {
    assert_eq!(pause(scenario, "/later/*", true).await, report(0, true, &[]));
    scenario.restart().await;
    scenario.create([job_of("/later/a", 1)]).await;
    let worker = scenario.worker("w", from("/**"), 1).await;
    assert_eq!(scenario.delivered(worker), []);
    pause(scenario, "/later/*", false).await.unwrap();
    assert_eq!(scenario.delivered_job(worker).id, id(1));
}

pub(super) async fn closed_queue_refuses_new_jobs_and_delivers_existing_ones(
    scenario: &mut StoreScenario,
) {
    scenario.create([job(1), job(2)]).await;
    assert_eq!(set_gate(scenario, Gate::Enqueue, "/jobs/**", true).await, report(1, true, &[]));
    let worker = scenario.worker("w", from("/**"), 1).await;
    let delivered = scenario.delivered_job(worker);
    scenario.restart().await;
    let producer = scenario.producer().await;
    let outcomes = scenario.enqueue(producer, [job(1), job(3), job_of("/jobs/new", 4)]).await;
    let closed = Refused(Refusal::QueueClosed);
    assert_eq!(outcomes, [EnqueueOutcome::Existing, closed, closed]);
    assert_eq!(scenario.stat(QUEUE).await.closed_by, ["/jobs/**".parse().unwrap()]);
    assert_eq!(delivered.id, id(1));
    assert_eq!(set_gate(scenario, Gate::Enqueue, "/jobs/**", false).await, report(1, true, &[]));
    assert_eq!(scenario.enqueue(producer, [job(3)]).await, [Created]);
}

pub(super) async fn draining_publisher_refuses_new_batches_and_delivers_existing_jobs(
    scenario: &mut StoreScenario,
) {
    let producer = scenario.producer().await;
    let created = scenario.enqueue_as(producer, 1, false, [job(1), job(2)]).await;
    assert_eq!(drain(scenario, true).await, Ok(()));
    // Batches in flight: none is a gap, and none uses a number.
    for sequence in [2, 3, 2] {
        let refused = scenario.enqueue_as(producer, sequence, false, [job(3)]).await;
        assert_eq!(refused.outcome, Err(BatchRefusal::Draining), "batch {sequence}");
    }
    let again = scenario.enqueue_as(producer, 1, false, [job(1), job(2)]).await;
    assert_eq!(again, created, "the first answer was lost");

    scenario.restart().await;
    let (producer, attached) = scenario.attach(Role::Producer, "producer", &[]).await;
    assert_eq!(attached.next_batch, 2);
    let known = scenario.enqueue_as(producer, 2, false, [job(2), job(1)]).await;
    let known: Vec<EnqueueOutcome> = known.outcome.unwrap().iter().collect();
    assert_eq!(known, [EnqueueOutcome::Existing; 2], "elsewhere they would run twice");
    let refused = scenario.enqueue_as(producer, 3, false, [job(2), job(3)]).await;
    assert_eq!(refused.outcome, Err(BatchRefusal::Draining));
    let (stranger, _) = scenario.attach(Role::Producer, "stranger", &[]).await;
    let refused = scenario.enqueue_as(stranger, 7, false, [job(3)]).await;
    assert_eq!(refused.outcome, Err(BatchRefusal::Draining));

    let worker = scenario.worker("w", from("/**"), 1).await;
    assert_eq!(scenario.delivered_job(worker).id, id(1));
    assert_eq!(drain(scenario, false).await, Ok(()));
    let ids_delivered = scenario.enqueue_as(producer, 3, false, [job(3)]).await;
    assert!(ids_delivered.outcome.is_ok_and(|outcomes| outcomes.iter().all(|one| one == Created)));
}

async fn drain(scenario: &mut StoreScenario, draining: bool) -> Result<(), RequestError> {
    let tool = scenario.tool();
    scenario.submit(Command::Drain { link: tool.link, request: 1, draining }).await;
    scenario.reply(tool, |reply| match reply {
        Reply::Drained { result, .. } => Some(result),
        _ => None,
    })
}

pub(super) async fn resume_ends_only_its_own_pattern(scenario: &mut StoreScenario) {
    scenario.create([job(1), job_of("/jobs/b", 2)]).await;
    pause(scenario, "/jobs/**", true).await.unwrap();
    pause(scenario, "/jobs/b", true).await.unwrap();
    assert_eq!(pause(scenario, "/jobs/**", false).await, report(2, true, &["/jobs/b"]));
    let worker = scenario.worker("w", from("/jobs/**"), 10).await;
    assert_eq!(scenario.delivered_job(worker).id, id(1));
    assert_eq!(pause(scenario, "/jobs/b", false).await, report(1, true, &[]));
    assert_eq!(scenario.delivered_job(worker).id, id(2));
}
