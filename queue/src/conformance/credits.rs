//! How many jobs go out.

use longshore_protocol::messages::work::{Credit, Waiting};

use super::scenario::{Client, DONE, Scenario, from, job};
use crate::{Command, Reply};

async fn recall(scenario: &mut Scenario, worker: Client, count: u32) -> Credit {
    scenario.submit(Command::Recall { link: worker.link, subscription: 1, count }).await;
    scenario.reply(worker, |reply| match reply {
        Reply::Returned(credit) => Some(credit),
        _ => None,
    })
}

fn waiting(scenario: &mut Scenario, worker: Client) -> Vec<Waiting> {
    scenario.replies(worker, |reply| match reply {
        Reply::Waiting(waiting) => Some(waiting),
        _ => None,
    })
}

pub(super) async fn a_worker_gets_as_many_jobs_as_it_has_credits(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 3).await;
    scenario.create((1..=10).map(job)).await;
    let held = scenario.take(worker);
    assert_eq!(held.len(), 3);
    scenario.end(worker, &[(held[0].token, DONE)]).await;
    assert_eq!(scenario.take(worker).len(), 0, "an end is no credit");
    scenario.credit(worker, 2).await;
    assert_eq!(scenario.take(worker).len(), 2);
    // Credits end with their link.
    scenario.credit(worker, 100).await;
    assert_eq!(scenario.take(worker).len(), 5);
    scenario.lose(worker).await;
    scenario.create([job(11)]).await;
    assert_eq!(scenario.take(worker).len(), 0);
}

pub(super) async fn a_recalled_credit_is_given_back_and_used_ones_are_not(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 5).await;
    scenario.create([job(1), job(2)]).await;
    assert_eq!(recall(scenario, worker, 2).await.count, 2);
    assert_eq!(recall(scenario, worker, 10).await.count, 1);
    assert_eq!(recall(scenario, worker, 10).await.count, 0);
    scenario.create([job(3)]).await;
    assert_eq!(scenario.take(worker).len(), 2);
}

pub(super) async fn a_worker_without_credit_is_told_that_jobs_wait(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 1).await;
    scenario.create([job(1), job(2), job(3)]).await;
    assert_eq!(waiting(scenario, worker), [Waiting { subscription: 1, jobs: 2 }]);
    scenario.create([job(4)]).await;
    assert_eq!(waiting(scenario, worker), [], "said once, until it has had credit again");
    scenario.credit(worker, 1).await;
    assert_eq!(waiting(scenario, worker), [Waiting { subscription: 1, jobs: 2 }]);
}

pub(super) async fn an_ended_subscription_takes_nothing_more(scenario: &mut Scenario) {
    let worker = scenario.worker("w", from("/jobs/**"), 2).await;
    scenario.create([job(1)]).await;
    scenario.submit(Command::Unsubscribe { link: worker.link, subscription: 1 }).await;
    scenario.create([job(2)]).await;
    let held = scenario.take_one(worker);
    scenario.end(worker, &[(held.token, DONE)]).await;
    assert_eq!(scenario.stat(super::scenario::QUEUE).await.subscriptions, 0);
}
