//! Dead letters: grouping, selection by age, and revival.

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Action, Filter, NewSettle, ReplaceOutcome, Request, Selection,
};
use longshore_protocol::{
    DeathReason, Fingerprint, FrameWriter, JobError, JobId, JobOptions, JobState, NewJob,
};

use super::scenario::{DONE, HOUR_MS, QUEUE, StoreScenario, error, filter, from, id, job, job_of};
use crate::{Command, DeadGroupView, PendingAnswer, Reply};
use JobState::{Completed, Dead, Ready, Running};

/// Creates jobs that die of these errors, in this order.
async fn deaths(scenario: &mut StoreScenario, queue: &str, deaths: &[(u32, JobError)]) {
    let options = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let worker = scenario.worker("w", from(queue), deaths.len() as u32).await;
    let jobs = deaths.iter().map(|&(n, _)| job_of(queue, n));
    scenario.create(jobs.map(|job| NewJob { options: options.clone(), ..job })).await;
    let delivered = scenario.delivered(worker);
    let settles: Vec<_> = delivered
        .iter()
        .zip(deaths)
        .map(|(delivered, (_, error))| (delivered.token, NewSettle::Fail(error.clone())))
        .collect();
    scenario.end(worker, &settles).await;
}

async fn groups(scenario: &mut StoreScenario, filter: Filter) -> Vec<DeadGroupView> {
    match scenario.query(Request::DeadGroups { filter }).await {
        PendingAnswer::DeadGroups { groups, more: false } => groups,
        other => panic!("{other:?}"),
    }
}

fn timeout(order: u32) -> JobError {
    error("Timeout", &format!("order {order} took too long"))
}

fn refused() -> JobError {
    error("Refused", "no such host")
}

pub(super) async fn dead_letters_are_grouped_by_error(scenario: &mut StoreScenario) {
    let all = [(1, timeout(17)), (2, refused()), (3, timeout(4_711)), (4, timeout(5))];
    deaths(scenario, "/jobs/a", &all).await;
    deaths(scenario, "/jobs/b", &[(5, timeout(1))]).await;
    let found = groups(scenario, filter("/**")).await;
    let reported: Vec<_> = found
        .iter()
        .map(|view| (view.group.path.as_str(), view.group.jobs, view.group.example))
        .collect();
    let path_then_kind = |reported: &[(&str, u64, JobId)]| reported[0] == ("/jobs/a", 3, id(4));
    assert!(path_then_kind(&reported), "largest groups first: {reported:?}");
    assert_eq!(reported.len(), 3, "numbers in a message make no groups: {reported:?}");
    assert!(reported.contains(&("/jobs/a", 1, id(2))) && reported.contains(&("/jobs/b", 1, id(5))));
    assert!(found.iter().all(|view| view.group.death == DeathReason::AttemptsExhausted));
    assert_eq!(
        found[0].group.fingerprint,
        Fingerprint::of_parts("Timeout", "order 5 took too long")
    );
    let mut expected = FrameWriter::with_capacity(64);
    longshore_protocol::Encode::encode(&timeout(5), &mut expected);
    let example = scenario.read(found[0].error.unwrap());
    assert_eq!(example, expected.into_body(), "with the error of the last job");
    let of_b = groups(scenario, filter("/jobs/b")).await;
    assert_eq!(of_b.len(), 1);
    scenario.restart().await;
    assert_eq!(groups(scenario, filter("/**")).await, found);
    scenario.act_by(Action::Drop, filter("/jobs/a")).await;
    assert_eq!(groups(scenario, filter("/**")).await, of_b);
}

pub(super) async fn group_is_revived_by_its_fingerprint(scenario: &mut StoreScenario) {
    deaths(scenario, QUEUE, &[(1, timeout(17)), (2, refused()), (3, timeout(5))]).await;
    let fingerprint = groups(scenario, filter("/**")).await[0].group.fingerprint;
    let kind = Filter { fingerprint: Some(fingerprint), ..filter("/**") };
    assert_eq!(scenario.list(kind.clone()).await.len(), 2);
    assert_eq!(scenario.act_by(Action::Revive, kind).await, 2);
    assert_eq!(scenario.states(1..=3).await, [Ready, Dead, Ready]);
    let buried = Filter { death: Some(DeathReason::Buried), ..filter("/**") };
    assert_eq!(scenario.act_by(Action::Revive, buried).await, 0);
    let exhausted = Filter { death: Some(DeathReason::AttemptsExhausted), ..filter("/**") };
    assert_eq!(scenario.act_by(Action::Revive, exhausted).await, 1);
}

pub(super) async fn dead_letters_are_selected_by_age(scenario: &mut StoreScenario) {
    deaths(scenario, QUEUE, &[(1, refused()), (2, timeout(1))]).await;
    scenario.advance(HOUR_MS).await;
    let cut = scenario.now().wall_ms;
    deaths(scenario, QUEUE, &[(3, refused()), (4, timeout(1))]).await;
    let before = Filter { ended_before: Some(cut), ..filter("/**") };
    let from = Filter { ended_from: Some(cut), ..filter("/**") };
    assert_eq!(scenario.list(before.clone()).await.len(), 2);
    assert_eq!(scenario.act_by(Action::Drop, before).await, 2);
    assert_eq!((scenario.state(id(1)).await, scenario.state(id(2)).await), (None, None));
    assert_eq!(scenario.act_by(Action::Revive, from).await, 2);
    assert_eq!(scenario.states(3..=4).await, [Ready, Ready]);
}

pub(super) async fn replace(
    scenario: &mut StoreScenario,
    dead: JobId,
    new: &NewJob,
) -> ReplaceOutcome {
    let mut entry = FrameWriter::with_capacity(256);
    new.encode_entry_head(&mut entry);
    entry.put_shared(new.payload.clone());
    let (link, request, entry) = (scenario.tool().link, 1, entry.into_body());
    scenario.submit(Command::Replace { link, request, id: dead, entry }).await;
    let tool = scenario.tool();
    scenario.reply(tool, |reply| match reply {
        Reply::Replaced { outcome, .. } => Some(outcome),
        _ => None,
    })
}

pub(super) async fn dead_job_is_replaced_in_one_step(scenario: &mut StoreScenario) {
    deaths(scenario, QUEUE, &[(1, refused())]).await;
    let new = NewJob { payload: "fixed".into(), ..job(2) };
    assert_eq!(replace(scenario, id(1), &new).await, ReplaceOutcome::Replaced);
    assert_eq!((scenario.state(id(1)).await, scenario.state(id(2)).await), (None, Some(Ready)));
    assert_eq!(scenario.job_view(id(2)).await.info.replaces, Some(id(1)));
    assert_eq!(replace(scenario, id(1), &new).await, ReplaceOutcome::Replaced, "a lost answer");
    scenario.restart().await;
    assert_eq!(replace(scenario, id(1), &new).await, ReplaceOutcome::Replaced);
    assert_eq!(scenario.job_view(id(2)).await.info.replaces, Some(id(1)));
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    let delivered = scenario.delivered_job(worker);
    assert!(scenario.read(delivered.assignment.entry).ends_with(b"fixed"));
    assert_eq!((delivered.id, delivered.assignment.attempt), (id(2), 1));
    scenario.end(worker, &[(delivered.token, DONE)]).await;
    assert_eq!(scenario.state(id(2)).await, Some(Completed));
}

pub(super) async fn invalid_replacement_changes_nothing(scenario: &mut StoreScenario) {
    deaths(scenario, QUEUE, &[(1, refused())]).await;
    scenario.create([job(2)]).await;
    let other = NewJob { payload: Bytes::from_static(b"another"), ..job(2) };
    assert_eq!(replace(scenario, id(1), &other).await, ReplaceOutcome::IdConflict);
    assert_eq!(replace(scenario, id(2), &job(3)).await, ReplaceOutcome::NotDead);
    assert_eq!(replace(scenario, id(9), &job(3)).await, ReplaceOutcome::Unknown);
    assert_eq!(scenario.states(1..=2).await, [Dead, Ready]);
    assert_eq!(scenario.state(id(3)).await, None);
    // The dead job's own id is taken, too.
    assert_eq!(replace(scenario, id(1), &job(1)).await, ReplaceOutcome::IdConflict);
    let worker = scenario.worker("other", from("/jobs/**"), 5).await;
    assert_eq!(scenario.delivered(worker).len(), 1);
    assert_eq!(scenario.states(1..=2).await, [Dead, Running]);
    let none = Selection::Matching(filter("/none/**"));
    assert_eq!(scenario.act_on(Action::Revive, none, None).await.done, 0);
}
