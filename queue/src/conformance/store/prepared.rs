//! Jobs that are written first and run once their producer says so.

use longshore_protocol::messages::work::{ActOutcome, Action};
use longshore_protocol::{DeathReason, Due, JobOptions, JobState, NewJob};

use super::story::{DONE, HOUR_MS, MINUTE_MS, QUEUE, SECOND_MS, Story, from, id, job};
use crate::Store;
use JobState::{Completed, Dead, Prepared, Ready, Running, Scheduled};

fn prepared(n: u32) -> NewJob {
    NewJob { options: JobOptions { prepared: true, ..JobOptions::default() }, ..job(n) }
}

pub(super) async fn a_prepared_job_runs_only_once_it_is_confirmed<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 5).await;
    story.create([prepared(1), prepared(2)]).await;
    story.pass(MINUTE_MS).await;
    assert_eq!(story.states(1..=2).await, [Prepared, Prepared]);
    assert_eq!(story.counts(QUEUE).await.prepared, 2);
    assert_eq!(story.act(Action::Confirm, &[id(1)]).await, [ActOutcome::Done]);
    assert_eq!(story.states(1..=2).await, [Running, Prepared]);
    assert_eq!(story.act(Action::Confirm, &[id(1)]).await, [ActOutcome::Done], "said again");
    let taken = story.take_one(worker);
    story.end(worker, &[(taken.token, DONE)]).await;
    assert_eq!(story.act(Action::Confirm, &[id(1)]).await, [ActOutcome::Done], "after its end");
    assert_eq!(story.state(id(1)).await, Some(Completed));
    story.restart().await;
    assert_eq!(story.states(1..=2).await, [Completed, Prepared]);
    assert_eq!(story.act(Action::Cancel, &[id(2)]).await, [ActOutcome::Done]);
    assert_eq!(story.counts(QUEUE).await.cancelled, 1);
}

pub(super) async fn the_delay_of_a_prepared_job_counts_from_its_confirmation<S: Store>(
    story: &mut Story<'_, S>,
) {
    let wall = story.now().wall_ms;
    let due = |n, due| {
        let NewJob { options, .. } = prepared(n);
        NewJob { options: JobOptions { due, ..options }, ..prepared(n) }
    };
    let jobs = [
        due(1, Due::After(10 * SECOND_MS)),
        due(2, Due::At(wall + 30 * SECOND_MS)),
        due(3, Due::At(wall + 90 * SECOND_MS)),
    ];
    story.create(jobs).await;
    story.pass(MINUTE_MS).await;
    story.act(Action::Confirm, &[id(1), id(2), id(3)]).await;
    assert_eq!(story.states(1..=3).await, [Scheduled, Ready, Scheduled]);
    story.pass(10 * SECOND_MS - 1).await;
    assert_eq!(story.state(id(1)).await, Some(Scheduled));
    story.pass(1).await;
    assert_eq!(story.state(id(1)).await, Some(Ready));
    story.pass(20 * SECOND_MS).await;
    assert_eq!(story.state(id(3)).await, Some(Ready));
}

pub(super) async fn a_job_that_nobody_confirms_is_buried_after_an_hour<S: Store>(
    story: &mut Story<'_, S>,
) {
    story.create([prepared(1)]).await;
    story.pass(HOUR_MS / 2).await;
    story.restart().await;
    story.pass(HOUR_MS / 2 - 1).await;
    assert_eq!(story.state(id(1)).await, Some(Prepared));
    story.pass(1).await;
    let view = story.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.death), (Dead, Some(DeathReason::Unconfirmed)));
    let late = story.act(Action::Confirm, &[id(1)]).await;
    assert_eq!(late, [ActOutcome::NotInState(Dead)], "too late is said");
    assert_eq!(story.act(Action::Revive, &[id(1)]).await, [ActOutcome::Done]);
    assert_eq!(story.state(id(1)).await, Some(Ready));
}

pub(super) async fn only_a_prepared_job_can_be_confirmed<S: Store>(story: &mut Story<'_, S>) {
    story.create([job(1)]).await;
    let outcomes = story.act(Action::Confirm, &[id(1), id(2)]).await;
    assert_eq!(outcomes, [ActOutcome::NotInState(Ready), ActOutcome::Unknown]);
    assert_eq!(story.state(id(1)).await, Some(Ready));
}
