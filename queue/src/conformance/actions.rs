//! Actions of tools on jobs.

use longshore_protocol::messages::work::{
    ActOutcome, Action, Answer, Filter, Pace, Request, Selection,
};
use longshore_protocol::{
    AttemptOutcome, Backoff, Due, JobOptions, JobState, NewJob, Revoked, SettleOutcome,
};

use super::scenario::{DONE, QUEUE, StoreScenario, fail, filter, from, id, job, job_of};
use crate::PendingAnswer;
use ActOutcome::{Done, NotInState, Unknown};
use JobState::{Cancelled, Completed, Dead, Prepared, Ready, Running, Scheduled};

/// Jobs 1 to 6: prepared, scheduled, ready, running, completed, dead.
async fn one_of_each(scenario: &mut StoreScenario) {
    let with = |n, options| NewJob { options, ..job(n) };
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    let dies = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    scenario.create([job(4), job(5), with(6, dies)]).await;
    let delivered = scenario.delivered(worker);
    scenario.end(worker, &[(delivered[1].token, DONE), (delivered[2].token, fail())]).await;
    let prepared = JobOptions { prepared: true, ..JobOptions::default() };
    let later = JobOptions { due: Due::After(60_000), ..JobOptions::default() };
    scenario.create([with(1, prepared), with(2, later), job(3)]).await;
    let states = [Prepared, Scheduled, Ready, Running, Completed, Dead];
    assert_eq!(scenario.states(1..=6).await, states);
}

pub(super) async fn every_job_that_has_not_ended_can_be_cancelled(scenario: &mut StoreScenario) {
    one_of_each(scenario).await;
    let outcomes = scenario.act(Action::Cancel, &(1..=7).map(id).collect::<Vec<_>>()).await;
    let refused = [NotInState(Completed), NotInState(Dead), Unknown];
    assert_eq!(outcomes, [vec![Done; 4], refused.to_vec()].concat());
    let states = [Cancelled, Cancelled, Cancelled, Cancelled, Completed, Dead];
    assert_eq!(scenario.states(1..=6).await, states);
    scenario.advance(60_000).await;
    assert_eq!(scenario.states(1..=6).await, states, "no timer is left");
    let worker = scenario.worker("other", from("/jobs/**"), 10).await;
    assert_eq!(scenario.delivered(worker), []);
}

pub(super) async fn cancelled_job_is_revoked_from_its_worker(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1)]).await;
    let token = scenario.delivered_job(worker).token;
    scenario.start(worker, &[token]);
    assert_eq!(scenario.act(Action::Cancel, &[id(1)]).await, [Done]);
    assert_eq!(scenario.revoked(worker), [(Revoked::Cancelled, token)]);
    assert_eq!(scenario.settle(worker, &[(token, DONE)]).await, [SettleOutcome::StaleToken]);
    let view = scenario.job_view(id(1)).await;
    assert_eq!((view.info.state, view.info.attempts.len()), (Cancelled, 1));
    assert_eq!(view.info.attempts[0].outcome, AttemptOutcome::Cancelled);
}

pub(super) async fn revived_job_has_all_its_attempts_again(scenario: &mut StoreScenario) {
    let options = JobOptions {
        max_attempts: Some(2),
        backoff: Some(Backoff::Fixed(0)),
        ..JobOptions::default()
    };
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([NewJob { options, ..job(1) }]).await;
    for round in 1..=3 {
        for attempt in 1..=2 {
            let delivered = scenario.delivered_job(worker);
            let (number, delivery) =
                (delivered.assignment.attempt, delivered.assignment.deliveries);
            assert_eq!((number, delivery), (attempt, attempt), "round {round}");
            scenario.end(worker, &[(delivered.token, fail())]).await;
            scenario.credit(worker, 1).await;
        }
        assert_eq!(scenario.state(id(1)).await, Some(Dead));
        assert_eq!(scenario.act(Action::Revive, &[id(1)]).await, [Done]);
    }
    assert_eq!(scenario.state(id(1)).await, Some(Running));
    assert_eq!(scenario.act(Action::Revive, &[id(1)]).await, [NotInState(Running)]);
}

pub(super) async fn revived_jobs_become_ready_at_the_pace(scenario: &mut StoreScenario) {
    let options = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let worker = scenario.worker("w", from("/jobs/**"), 10).await;
    scenario.create((0..10).map(|n| NewJob { options: options.clone(), ..job(n) })).await;
    let settles: Vec<_> =
        scenario.delivered(worker).iter().map(|delivered| (delivered.token, fail())).collect();
    scenario.end(worker, &settles).await;
    scenario.lose_link(worker).await;
    let revive = |range: std::ops::Range<u32>| Selection::Ids(range.map(id).collect());
    let pace = |before| Some(Pace { per_second: 2, before });
    scenario.act_on(Action::Revive, revive(0..4), pace(0)).await;
    let report = scenario.act_on(Action::Revive, revive(4..10), pace(4)).await;
    assert_eq!(report.done, 6);
    let ready = |n: u64| (n, 10 - n);
    for tenth in 0..=45 {
        let counts = scenario.counts(QUEUE).await;
        assert_eq!((counts.ready, counts.scheduled), ready(1 + tenth / 5), "after {tenth} tenths");
        scenario.advance(100).await;
    }
    assert_eq!(scenario.counts(QUEUE).await.retrying, 0);
}

pub(super) async fn ended_jobs_can_be_dropped(scenario: &mut StoreScenario) {
    one_of_each(scenario).await;
    scenario.act(Action::Cancel, &[id(1)]).await;
    let outcomes = scenario.act(Action::Drop, &(1..=6).map(id).collect::<Vec<_>>()).await;
    let refused = [NotInState(Scheduled), NotInState(Ready), NotInState(Running)];
    assert_eq!(outcomes, [vec![Done], refused.to_vec(), vec![Done, Done]].concat());
    for n in [1, 5, 6] {
        assert_eq!(scenario.state(id(n)).await, None, "{n}");
    }
    assert_eq!(scenario.act(Action::Drop, &[id(5)]).await, [Unknown]);
}

pub(super) async fn filter_selects_exactly_its_jobs(scenario: &mut StoreScenario) {
    one_of_each(scenario).await;
    scenario.create([job_of("/mail", 11), job_of("/mail", 12)]).await;
    let in_state = |state| filter("/jobs/**").in_state(state);
    assert_eq!(scenario.act_by(Action::Cancel, in_state(Ready)).await, 1);
    assert_eq!(scenario.states([1, 2, 3]).await, [Prepared, Scheduled, Cancelled]);
    assert_eq!(scenario.act_by(Action::Cancel, in_state(Completed)).await, 0);
    assert_eq!(
        scenario.act_by(Action::Cancel, filter("/jobs/**")).await,
        3,
        "all jobs that have not ended"
    );
    assert_eq!(scenario.states([11, 12]).await, [Ready, Ready], "another queue");
    assert_eq!(scenario.act_by(Action::Drop, filter("/**")).await, 1, "dead jobs only, no results");
    assert_eq!(scenario.state(id(5)).await, Some(Completed));
    assert_eq!(scenario.act_by(Action::Drop, in_state(Completed)).await, 1);
    assert_eq!(scenario.act_by(Action::Drop, in_state(Cancelled)).await, 4);
    assert_eq!(scenario.counts(QUEUE).await.total(), 0);
}

pub(super) async fn dry_run_changes_nothing(scenario: &mut StoreScenario) {
    one_of_each(scenario).await;
    let before = scenario.list(filter("/**")).await;
    let ids = Selection::Ids((1..=7).map(id).collect());
    for (action, done) in
        [(Action::Confirm, 1), (Action::Cancel, 4), (Action::Revive, 1), (Action::Drop, 2)]
    {
        let request = Request::Act { action, selection: ids.clone(), pace: None, dry_run: true };
        let PendingAnswer::Ready(Answer::Acted(report)) = scenario.query(request).await else {
            panic!("a dry run has the action's answer")
        };
        assert_eq!((report.done, report.unknown), (done, 1), "{action:?}");
        assert_eq!(report.refused, 6 - done, "{action:?}");
    }
    let drop = Selection::Matching(Filter::of("/jobs/**".parse().unwrap()));
    let request = Request::Act { action: Action::Drop, selection: drop, pace: None, dry_run: true };
    let PendingAnswer::Ready(Answer::Acted(report)) = scenario.query(request).await else {
        panic!("a dry run has the action's answer")
    };
    assert_eq!(report.done, 1, "dead jobs only, no results");
    assert_eq!(scenario.list(filter("/**")).await, before);
}

pub(super) async fn action_on_another_state_is_refused_per_job(scenario: &mut StoreScenario) {
    one_of_each(scenario).await;
    let states = [Prepared, Scheduled, Ready, Running, Completed, Dead];
    let before = scenario.list(filter("/**")).await;
    for (action, takes) in [(Action::Revive, [Dead].as_slice()), (Action::Confirm, &[Prepared])] {
        for (n, state) in (1..).zip(states) {
            if !takes.contains(&state) {
                assert_eq!(scenario.act(action, &[id(n)]).await, [NotInState(state)], "{action:?}");
            }
        }
        assert_eq!(scenario.act(action, &[id(99)]).await, [Unknown]);
    }
    assert_eq!(scenario.list(filter("/**")).await, before, "nothing has changed");
}
