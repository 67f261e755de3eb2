//! Prepared jobs, which run once confirmed.

use longshore_protocol::messages::work::{ActOutcome, Action};
use longshore_protocol::{DeathReason, Due, JobOptions, JobState, NewJob};

use super::scenario::{DONE, HOUR_MS, MINUTE_MS, QUEUE, SECOND_MS, StoreScenario, from, id, job};
use JobState::{Completed, Dead, Prepared, Ready, Running, Scheduled};

fn prepared(n: u32) -> NewJob {
    NewJob { options: JobOptions { prepared: true, ..JobOptions::default() }, ..job(n) }
}

pub(super) async fn prepared_job_runs_only_after_confirmation(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    scenario.create([prepared(1), prepared(2)]).await;
    scenario.advance(MINUTE_MS).await;
    assert_eq!(scenario.states(1..=2).await, [Prepared, Prepared]);
    assert_eq!(scenario.counts(QUEUE).await.prepared, 2);
    assert_eq!(scenario.act(Action::Confirm, &[id(1)]).await, [ActOutcome::Done]);
    assert_eq!(scenario.states(1..=2).await, [Running, Prepared]);
    assert_eq!(scenario.act(Action::Confirm, &[id(1)]).await, [ActOutcome::Done], "repeated");
    let ids_delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(ids_delivered.token, DONE)]).await;
    assert_eq!(scenario.act(Action::Confirm, &[id(1)]).await, [ActOutcome::Done], "after its end");
    assert_eq!(scenario.state(id(1)).await, Some(Completed));
    scenario.restart().await;
    assert_eq!(scenario.states(1..=2).await, [Completed, Prepared]);
    assert_eq!(scenario.act(Action::Cancel, &[id(2)]).await, [ActOutcome::Done]);
    assert_eq!(scenario.counts(QUEUE).await.cancelled, 1);
}

pub(super) async fn delay_of_a_prepared_job_counts_from_its_confirmation(
    scenario: &mut StoreScenario,
) {
    let wall = scenario.now().wall_ms;
    let due = |n, due| {
        let NewJob { options, .. } = prepared(n);
        NewJob { options: JobOptions { due, ..options }, ..prepared(n) }
    };
    let jobs = [
        due(1, Due::After(10 * SECOND_MS)),
        due(2, Due::At(wall + 30 * SECOND_MS)),
        due(3, Due::At(wall + 90 * SECOND_MS)),
    ];
    scenario.create(jobs).await;
    scenario.advance(MINUTE_MS).await;
    scenario.act(Action::Confirm, &[id(1), id(2), id(3)]).await;
    assert_eq!(scenario.states(1..=3).await, [Scheduled, Ready, Scheduled]);
    scenario.advance(10 * SECOND_MS - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Scheduled));
    scenario.advance(1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
    scenario.advance(20 * SECOND_MS).await;
    assert_eq!(scenario.state(id(3)).await, Some(Ready));
}

pub(super) async fn unconfirmed_job_is_buried_after_an_hour(scenario: &mut StoreScenario) {
    scenario.create([prepared(1)]).await;
    scenario.advance(HOUR_MS / 2).await;
    scenario.restart().await;
    scenario.advance(HOUR_MS / 2 - 1).await;
    assert_eq!(scenario.state(id(1)).await, Some(Prepared));
    scenario.advance(1).await;
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::Unconfirmed)));
    let late = scenario.act(Action::Confirm, &[id(1)]).await;
    assert_eq!(late, [ActOutcome::NotInState(Dead)], "too late");
    assert_eq!(scenario.act(Action::Revive, &[id(1)]).await, [ActOutcome::Done]);
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
}

pub(super) async fn only_a_prepared_job_can_be_confirmed(scenario: &mut StoreScenario) {
    scenario.create([job(1)]).await;
    let outcomes = scenario.act(Action::Confirm, &[id(1), id(2)]).await;
    assert_eq!(outcomes, [ActOutcome::NotInState(Ready), ActOutcome::Unknown]);
    assert_eq!(scenario.state(id(1)).await, Some(Ready));
}
