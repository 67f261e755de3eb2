//! Feeds of events.

use longshore_protocol::messages::work::{
    Action, FeedPosition, NewSettle, RequestError, Selection,
};
use longshore_protocol::{Backoff, JobChange, JobId, JobOptions, JobState, NewJob};

use super::scenario::{DONE, QUEUE, SECOND_MS, StoreScenario, fail, from, id, job, path};
use crate::Event;
use JobChange::{CameDue, Completed, Created, Delivered, Failed, Forgotten, LeaseLost, Released};
use JobState::{Ready, Running, Scheduled};

fn of(events: &[Event], id: JobId) -> Vec<(JobChange, Option<JobState>, bool, u16)> {
    let own = events.iter().filter(|event| event.job == id);
    own.map(|event| (event.change, event.state, event.retrying, event.attempt)).collect()
}

pub(super) async fn feed_has_every_event_of_a_job(scenario: &mut StoreScenario) {
    let start = scenario.store().tail().position();
    assert_eq!(start.epoch, scenario.epoch());
    let options = JobOptions {
        backoff: Some(Backoff::Fixed(1_000)),
        keep_ms: Some(60_000),
        ..JobOptions::default()
    };
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([NewJob { options, ..job(1) }]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(delivered.token, fail())]).await;
    scenario.credit(worker, 1).await;
    scenario.advance(SECOND_MS).await;
    let delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(delivered.token, NewSettle::Release)]).await;
    scenario.credit(worker, 1).await;
    let delivered = scenario.delivered_job(worker);
    scenario.start(worker, &[delivered.token]);
    scenario.advance(30 * SECOND_MS).await;
    scenario.credit(worker, 1).await;
    let delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(delivered.token, DONE)]).await;
    scenario.advance(60 * SECOND_MS).await;
    let events = scenario.events(Some(start)).await.unwrap();
    let expected = [
        (Created, Some(Ready), false, 0),
        (Delivered, Some(Running), false, 1),
        (Failed, Some(Scheduled), true, 1),
        (CameDue, Some(Ready), false, 1),
        (Delivered, Some(Running), false, 2),
        (Released, Some(Ready), false, 1),
        (Delivered, Some(Running), false, 2),
        (LeaseLost, Some(Ready), false, 2),
        (Delivered, Some(Running), false, 3),
        (Completed, Some(JobState::Completed), false, 3),
        (Forgotten, None, false, 3),
    ];
    assert_eq!(of(&events, id(1)), expected);
    assert!(events.windows(2).all(|pair| pair[0].index <= pair[1].index), "in order");
    let queue = events[0].queue;
    assert_eq!(scenario.store().state().path(queue), &path(QUEUE));
}

pub(super) async fn feed_resumes_over_a_restart(scenario: &mut StoreScenario) {
    let start = scenario.store().tail().position();
    scenario.create([job(1)]).await;
    let before = scenario.store().tail().position();
    scenario.create([job(2)]).await;
    let released = scenario.events(Some(start)).await.unwrap();
    scenario.restart().await;
    scenario.create([job(3)]).await;
    let again = scenario.events(Some(start)).await.unwrap();
    assert_eq!(again[..released.len()], released, "the same events");
    let since = scenario.events(Some(before)).await.unwrap();
    assert_eq!(since.iter().map(|event| event.job).collect::<Vec<_>>(), [id(2), id(3)]);
    let FeedPosition { epoch, index } = scenario.store().tail().position();
    let beyond = FeedPosition { epoch, index: index + 1_000 };
    assert_eq!(scenario.events(Some(beyond)).await, Err(RequestError::Rewound));
    // A position after the previous run's end cannot have been sent: the start itself is there.
    let lost = FeedPosition { epoch: before.epoch, index };
    assert_eq!(scenario.events(Some(lost)).await, Err(RequestError::Rewound));
}

pub(super) async fn feed_begins_now_by_default(scenario: &mut StoreScenario) {
    scenario.create([job(1)]).await;
    assert_eq!(scenario.events(None).await, Ok(vec![]));
    let here = scenario.store().tail().position();
    scenario.act(Action::Cancel, &[id(1)]).await;
    let events = scenario.events(Some(here)).await.unwrap();
    let cancelled = (JobChange::Cancelled, Some(JobState::Cancelled), false, 0);
    assert_eq!(of(&events, id(1)), [cancelled]);
}

pub(super) async fn unrecorded_position_is_too_old(scenario: &mut StoreScenario) {
    let here = scenario.store().tail().position();
    scenario.create([job(1)]).await;
    scenario.store().record_events(false);
    scenario.create([job(2)]).await;
    assert_eq!(scenario.events(Some(here)).await, Err(RequestError::TooOld));
    // The request has turned recording on: from here on nothing is missing.
    let here = scenario.store().tail().position();
    scenario.create([job(3)]).await;
    let events = scenario.events(Some(here)).await.unwrap();
    assert_eq!(of(&events, id(3)), [(Created, Some(Ready), false, 0)]);
    // Commands that were not recorded before recording began again are no gap either.
    scenario.store().record_events(false);
    let (now, tool, here) = (scenario.now(), scenario.tool(), scenario.store().tail().position());
    let cancel = crate::Command::Act {
        link: tool.link,
        request: 1,
        action: Action::Cancel,
        selection: Selection::Ids(vec![id(3)]),
        pace: None,
        within: None,
    };
    scenario.store().submit(now, cancel).unwrap();
    assert_eq!(scenario.events(Some(here)).await, Err(RequestError::TooOld));
    assert_eq!(scenario.events(None).await, Ok(vec![]));
}
