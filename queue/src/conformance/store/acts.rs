//! What users do to jobs.

use longshore_protocol::messages::work::{
    ActOutcome, Action, Answer, Filter, Pace, Request, Selection,
};
use longshore_protocol::{
    AttemptOutcome, Backoff, Due, JobOptions, JobState, NewJob, Revoked, SettleOutcome,
};

use super::story::{DONE, QUEUE, Story, fail, filter, from, id, job, job_of};
use crate::{Asked, Store};
use ActOutcome::{Done, NotInState, Unknown};
use JobState::{Cancelled, Completed, Dead, Prepared, Ready, Running, Scheduled};

/// Jobs 1 to 6: prepared, scheduled, ready, running, completed, dead.
async fn one_of_each<S: Store>(story: &mut Story<'_, S>) {
    let with = |n, options| NewJob { options, ..job(n) };
    let worker = story.worker("w", from("/jobs/**"), 3).await;
    let dies = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    story.create([job(4), job(5), with(6, dies)]).await;
    let held = story.take(worker);
    story.end(worker, &[(held[1].token, DONE), (held[2].token, fail())]).await;
    let prepared = JobOptions { prepared: true, ..JobOptions::default() };
    let later = JobOptions { due: Due::After(60_000), ..JobOptions::default() };
    story.create([with(1, prepared), with(2, later), job(3)]).await;
    let states = [Prepared, Scheduled, Ready, Running, Completed, Dead];
    assert_eq!(story.states(1..=6).await, states);
}

pub(super) async fn whatever_has_not_ended_can_be_cancelled<S: Store>(story: &mut Story<'_, S>) {
    one_of_each(story).await;
    let outcomes = story.act(Action::Cancel, &(1..=7).map(id).collect::<Vec<_>>()).await;
    let refused = [NotInState(Completed), NotInState(Dead), Unknown];
    assert_eq!(outcomes, [vec![Done; 4], refused.to_vec()].concat());
    let states = [Cancelled, Cancelled, Cancelled, Cancelled, Completed, Dead];
    assert_eq!(story.states(1..=6).await, states);
    story.pass(60_000).await;
    assert_eq!(story.states(1..=6).await, states, "nothing of it comes due");
    let worker = story.worker("other", from("/jobs/**"), 10).await;
    assert_eq!(story.take(worker), []);
}

pub(super) async fn a_cancelled_job_is_taken_from_its_worker<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1)]).await;
    let token = story.take_one(worker).token;
    story.start(worker, &[token]);
    assert_eq!(story.act(Action::Cancel, &[id(1)]).await, [Done]);
    assert_eq!(story.revoked(worker), [(Revoked::Cancelled, token)]);
    assert_eq!(story.settle(worker, &[(token, DONE)]).await, [SettleOutcome::StaleToken]);
    let view = story.kept(id(1)).await;
    assert_eq!((view.info.state, view.info.attempts.len()), (Cancelled, 1));
    assert_eq!(view.info.attempts[0].outcome, AttemptOutcome::Cancelled);
}

pub(super) async fn a_revived_job_has_all_its_attempts_again<S: Store>(story: &mut Story<'_, S>) {
    let options = JobOptions {
        max_attempts: Some(2),
        backoff: Some(Backoff::Fixed(0)),
        ..JobOptions::default()
    };
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([NewJob { options, ..job(1) }]).await;
    for round in 1..=3 {
        for attempt in 1..=2 {
            let held = story.take_one(worker);
            let (number, delivery) = (held.handed.attempt, held.handed.deliveries);
            assert_eq!((number, delivery), (attempt, attempt), "round {round}");
            story.end(worker, &[(held.token, fail())]).await;
            story.credit(worker, 1).await;
        }
        assert_eq!(story.state(id(1)).await, Some(Dead));
        assert_eq!(story.act(Action::Revive, &[id(1)]).await, [Done]);
    }
    assert_eq!(story.state(id(1)).await, Some(Running));
    assert_eq!(story.act(Action::Revive, &[id(1)]).await, [NotInState(Running)]);
}

pub(super) async fn revived_jobs_become_ready_at_the_pace<S: Store>(story: &mut Story<'_, S>) {
    let options = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let worker = story.worker("w", from("/jobs/**"), 10).await;
    story.create((0..10).map(|n| NewJob { options: options.clone(), ..job(n) })).await;
    let settles: Vec<_> = story.take(worker).iter().map(|held| (held.token, fail())).collect();
    story.end(worker, &settles).await;
    story.lose(worker).await;
    let revive = |range: std::ops::Range<u32>| Selection::Ids(range.map(id).collect());
    let pace = |before| Some(Pace { per_second: 2, before });
    story.act_on(Action::Revive, revive(0..4), pace(0)).await;
    let report = story.act_on(Action::Revive, revive(4..10), pace(4)).await;
    assert_eq!(report.done, 6);
    let ready = |n: u64| (n, 10 - n);
    for tenth in 0..=45 {
        let counts = story.counts(QUEUE).await;
        assert_eq!((counts.ready, counts.scheduled), ready(1 + tenth / 5), "after {tenth} tenths");
        story.pass(100).await;
    }
    assert_eq!(story.counts(QUEUE).await.retrying, 0);
}

pub(super) async fn what_has_ended_can_be_dropped<S: Store>(story: &mut Story<'_, S>) {
    one_of_each(story).await;
    story.act(Action::Cancel, &[id(1)]).await;
    let outcomes = story.act(Action::Drop, &(1..=6).map(id).collect::<Vec<_>>()).await;
    let refused = [NotInState(Scheduled), NotInState(Ready), NotInState(Running)];
    assert_eq!(outcomes, [vec![Done], refused.to_vec(), vec![Done, Done]].concat());
    for n in [1, 5, 6] {
        assert_eq!(story.state(id(n)).await, None, "{n}");
    }
    assert_eq!(story.act(Action::Drop, &[id(5)]).await, [Unknown]);
}

pub(super) async fn a_filter_takes_what_it_says_and_nothing_else<S: Store>(
    story: &mut Story<'_, S>,
) {
    one_of_each(story).await;
    story.create([job_of("/mail", 11), job_of("/mail", 12)]).await;
    let in_state = |state| filter("/jobs/**").in_state(state);
    assert_eq!(story.act_by(Action::Cancel, in_state(Ready)).await, 1);
    assert_eq!(story.states([1, 2, 3]).await, [Prepared, Scheduled, Cancelled]);
    assert_eq!(story.act_by(Action::Cancel, in_state(Completed)).await, 0);
    assert_eq!(story.act_by(Action::Cancel, filter("/jobs/**")).await, 3, "all that has not ended");
    assert_eq!(story.states([11, 12]).await, [Ready, Ready], "another queue");
    assert_eq!(story.act_by(Action::Drop, filter("/**")).await, 1, "the dead, and no results");
    assert_eq!(story.state(id(5)).await, Some(Completed));
    assert_eq!(story.act_by(Action::Drop, in_state(Completed)).await, 1);
    assert_eq!(story.act_by(Action::Drop, in_state(Cancelled)).await, 4);
    assert_eq!(story.counts(QUEUE).await.total(), 0);
}

pub(super) async fn a_rehearsal_changes_nothing<S: Store>(story: &mut Story<'_, S>) {
    one_of_each(story).await;
    let before = story.list(filter("/**")).await;
    let ids = Selection::Ids((1..=7).map(id).collect());
    for (action, done) in
        [(Action::Confirm, 1), (Action::Cancel, 4), (Action::Revive, 1), (Action::Drop, 2)]
    {
        let request = Request::Act { action, selection: ids.clone(), pace: None, dry_run: true };
        let Asked::Ready(Answer::Acted(report)) = story.ask(request).await else {
            panic!("a rehearsal is answered as the action would be")
        };
        assert_eq!((report.done, report.unknown), (done, 1), "{action:?}");
        assert_eq!(report.refused, 6 - done, "{action:?}");
    }
    let drop = Selection::Matching(Filter::of("/jobs/**".parse().unwrap()));
    let request = Request::Act { action: Action::Drop, selection: drop, pace: None, dry_run: true };
    let Asked::Ready(Answer::Acted(report)) = story.ask(request).await else {
        panic!("a rehearsal is answered as the action would be")
    };
    assert_eq!(report.done, 1, "the dead, and no results");
    assert_eq!(story.list(filter("/**")).await, before);
}

pub(super) async fn an_action_on_another_state_is_refused_one_by_one<S: Store>(
    story: &mut Story<'_, S>,
) {
    one_of_each(story).await;
    let states = [Prepared, Scheduled, Ready, Running, Completed, Dead];
    let before = story.list(filter("/**")).await;
    for (action, takes) in [(Action::Revive, [Dead].as_slice()), (Action::Confirm, &[Prepared])] {
        for (n, state) in (1..).zip(states) {
            if !takes.contains(&state) {
                assert_eq!(story.act(action, &[id(n)]).await, [NotInState(state)], "{action:?}");
            }
        }
        assert_eq!(story.act(action, &[id(99)]).await, [Unknown]);
    }
    assert_eq!(story.list(filter("/**")).await, before, "and nothing has changed");
}
