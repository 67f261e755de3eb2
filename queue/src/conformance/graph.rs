//! Jobs after others, and batches.

use longshore_protocol::messages::work::{Action, NewSettle, Request, RequestError};
use longshore_protocol::{JobError, JobId, JobState, NewBatch, ParentEnd};

use super::scenario::{Client, DONE, StoreScenario, from, id, job};
use crate::store::PendingAnswer;

fn bury() -> NewSettle {
    NewSettle::Bury(JobError::default())
}

pub(super) async fn a_job_runs_once_its_parents_have_ended_as_it_asks(
    scenario: &mut StoreScenario,
) {
    let after = |n, parent, when| job(n).after_end(id(parent), when);
    scenario
        .create([
            job(1),
            job(2),
            after(3, 1, ParentEnd::Success),
            after(4, 1, ParentEnd::Death),
            after(5, 2, ParentEnd::Any).after(id(1)),
            after(6, 2, ParentEnd::Success),
        ])
        .await;
    use JobState::{Blocked, Cancelled, Dead, Ready};
    assert_eq!(scenario.states([3, 4, 5, 6]).await, [Blocked; 4]);
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let given = scenario.delivered(worker);
    scenario.end(worker, &[(given[0].token, DONE)]).await;
    assert_eq!(scenario.states([3, 4, 5, 6]).await, [Ready, Cancelled, Blocked, Blocked]);
    scenario.end(worker, &[(given[1].token, bury())]).await;
    scenario.restart().await;
    assert_eq!(scenario.states([2, 3, 5, 6]).await, [Dead, Ready, Ready, Blocked]);
    scenario.act(Action::Drop, &[id(2)]).await;
    assert_eq!(scenario.states([6]).await, [Cancelled]);
}

pub(super) async fn a_batch_ends_with_its_last_member(scenario: &mut StoreScenario) {
    let batch = [job(1).batch(NewBatch::Closed), job(2).in_batch(id(1)), job(3).in_batch(id(1))];
    let producer = scenario.producer().await;
    scenario.enqueue_as(producer, 1, true, batch).await.outcome.expect("it is accepted");
    let callbacks = [job(4).after(id(1)), job(5).after_end(id(1), ParentEnd::Death)];
    scenario.create(callbacks).await;
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let given = scenario.delivered(worker);
    scenario.end(worker, &[(given[0].token, DONE)]).await;
    scenario.restart().await;
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    let given = scenario.delivered_job(worker);
    scenario.end(worker, &[(given.token, bury())]).await;
    use JobState::{Blocked, Completed, Dead, Ready};
    assert_eq!(scenario.states([1, 2, 3, 4, 5]).await, [Dead, Completed, Dead, Blocked, Ready]);
    scenario.act(Action::Revive, &[id(1)]).await;
    scenario.advance(1).await;
    scenario.restart().await;
    assert_eq!(scenario.states([1, 3]).await, [Blocked, Ready]);
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    let given = scenario.delivered(worker);
    let ends: Vec<_> = given.iter().map(|given| (given.token, DONE)).collect();
    scenario.end(worker, &ends).await;
    assert_eq!(scenario.states([1, 3, 4, 5]).await, [Completed, Completed, Ready, Completed]);
}

/// A batch with more members than a page has, over more rows than a page examines.
pub(super) async fn a_job_reads_its_parents_page_by_page(scenario: &mut StoreScenario) {
    let producer = scenario.producer().await;
    let mut batch = vec![job(1).batch(NewBatch::Closed)];
    batch.push(job(2).batch(NewBatch::Closed).in_batch(id(1)));
    batch.extend((3..303).map(|n| job(n).in_batch(id(2))));
    batch.push(job(400).after(id(1)));
    scenario.enqueue_as(producer, 1, true, batch).await.outcome.expect("it is accepted");
    let worker = scenario.worker("w", from("/jobs/**"), 300).await;
    let result = || NewSettle::Complete { result: Some("done".into()) };
    let ends: Vec<_> =
        scenario.delivered(worker).iter().map(|given| (given.token, result())).collect();
    scenario.end(worker, &ends).await;
    scenario.credit(worker, 1).await;
    let token = scenario.delivered_job(worker).token;
    let (mut read, mut pages, mut cursor) = (Vec::new(), 0, Some(0));
    while let Some(at) = cursor {
        let request = Request::ParentJobs { token, parent: id(1), cursor: at };
        let PendingAnswer::ParentJobs { views, next, .. } = scenario.ask_as(worker, request).await
        else {
            panic!("a page of parents")
        };
        assert!(views.len() <= 101, "{}", views.len());
        read.extend(views.iter().map(|view| view.info.id));
        (cursor, pages) = (next, pages + 1);
    }
    assert!(pages >= 3, "{pages}");
    assert_eq!(read[0], id(1));
    read.sort();
    assert_eq!(read, (1..303).map(id).collect::<Vec<JobId>>());
    let other: Client = scenario.worker("other", from("/jobs/none"), 0).await;
    let request = Request::ParentJobs { token, parent: id(1), cursor: 0 };
    let refused = scenario.ask_as(other, request).await;
    assert!(matches!(refused, PendingAnswer::Refused(RequestError::StaleToken)), "{refused:?}");
}
