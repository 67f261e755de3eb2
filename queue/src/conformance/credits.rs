//! How many jobs are delivered.

use longshore_protocol::messages::work::{Credit, Waiting};

use super::scenario::{Client, DONE, StoreScenario, from, job};
use crate::{Command, Reply};

async fn recall(scenario: &mut StoreScenario, worker: Client, count: u32) -> Credit {
    scenario.submit(Command::Recall { link: worker.link, subscription: 1, count }).await;
    scenario.reply(worker, |reply| match reply {
        Reply::Returned(credit) => Some(credit),
        _ => None,
    })
}

fn waiting(scenario: &mut StoreScenario, worker: Client) -> Vec<Waiting> {
    scenario.replies(worker, |reply| match reply {
        Reply::Waiting(waiting) => Some(waiting),
        _ => None,
    })
}

pub(super) async fn worker_receives_as_many_jobs_as_it_has_credits(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    scenario.create((1..=10).map(job)).await;
    let delivered = scenario.delivered(worker);
    assert_eq!(delivered.len(), 3);
    scenario.end(worker, &[(delivered[0].token, DONE)]).await;
    assert_eq!(scenario.delivered(worker).len(), 0, "a settle adds no credit");
    scenario.credit(worker, 2).await;
    assert_eq!(scenario.delivered(worker).len(), 2);
    // Credits end with their link.
    scenario.credit(worker, 100).await;
    assert_eq!(scenario.delivered(worker).len(), 5);
    scenario.lose_link(worker).await;
    scenario.create([job(11)]).await;
    assert_eq!(scenario.delivered(worker).len(), 0);
}

pub(super) async fn recall_returns_only_unused_credits(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    scenario.create([job(1), job(2)]).await;
    assert_eq!(recall(scenario, worker, 2).await.count, 2);
    assert_eq!(recall(scenario, worker, 10).await.count, 1);
    assert_eq!(recall(scenario, worker, 10).await.count, 0);
    scenario.create([job(3)]).await;
    assert_eq!(scenario.delivered(worker).len(), 2);
}

pub(super) async fn worker_without_credit_is_notified_of_waiting_jobs(
    scenario: &mut StoreScenario,
) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1), job(2), job(3)]).await;
    assert_eq!(waiting(scenario, worker), [Waiting { subscription: 1, jobs: 2 }]);
    scenario.create([job(4)]).await;
    assert_eq!(waiting(scenario, worker), [], "sent once, until it has had credit again");
    scenario.credit(worker, 1).await;
    assert_eq!(waiting(scenario, worker), [Waiting { subscription: 1, jobs: 2 }]);
}

pub(super) async fn ended_subscription_receives_nothing_more(scenario: &mut StoreScenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1)]).await;
    scenario.submit(Command::Unsubscribe { link: worker.link, subscription: 1 }).await;
    scenario.create([job(2)]).await;
    let delivered = scenario.delivered_job(worker);
    scenario.end(worker, &[(delivered.token, DONE)]).await;
    assert_eq!(scenario.stat(super::scenario::QUEUE).await.subscriptions, 0);
}
