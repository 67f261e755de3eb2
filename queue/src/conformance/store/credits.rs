//! How many jobs go out.

use longshore_protocol::messages::work::{Credit, Waiting};

use super::story::{Client, DONE, Story, from, job};
use crate::{Command, Reply, Store};

async fn recall<S: Store>(story: &mut Story<'_, S>, worker: Client, count: u32) -> Credit {
    story.submit(Command::Recall { link: worker.link, subscription: 1, count }).await;
    story.reply(worker, |reply| match reply {
        Reply::Returned(credit) => Some(credit),
        _ => None,
    })
}

fn waiting<S: Store>(story: &mut Story<'_, S>, worker: Client) -> Vec<Waiting> {
    story.replies(worker, |reply| match reply {
        Reply::Waiting(waiting) => Some(waiting),
        _ => None,
    })
}

pub(super) async fn a_worker_gets_as_many_jobs_as_it_has_credits<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 3).await;
    story.create((1..=10).map(job)).await;
    let held = story.take(worker);
    assert_eq!(held.len(), 3);
    story.end(worker, &[(held[0].token, DONE)]).await;
    assert_eq!(story.take(worker).len(), 0, "an end is no credit");
    story.credit(worker, 2).await;
    assert_eq!(story.take(worker).len(), 2);
    // Credits end with their link.
    story.credit(worker, 100).await;
    assert_eq!(story.take(worker).len(), 5);
    story.lose(worker).await;
    story.create([job(11)]).await;
    assert_eq!(story.take(worker).len(), 0);
}

pub(super) async fn a_recalled_credit_is_given_back_and_used_ones_are_not<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 5).await;
    story.create([job(1), job(2)]).await;
    assert_eq!(recall(story, worker, 2).await.count, 2);
    assert_eq!(recall(story, worker, 10).await.count, 1);
    assert_eq!(recall(story, worker, 10).await.count, 0);
    story.create([job(3)]).await;
    assert_eq!(story.take(worker).len(), 2);
}

pub(super) async fn a_worker_without_credit_is_told_that_jobs_wait<S: Store>(
    story: &mut Story<'_, S>,
) {
    let worker = story.worker("w", from("/jobs/**"), 1).await;
    story.create([job(1), job(2), job(3)]).await;
    assert_eq!(waiting(story, worker), [Waiting { subscription: 1, jobs: 2 }]);
    story.create([job(4)]).await;
    assert_eq!(waiting(story, worker), [], "said once, until it has had credit again");
    story.credit(worker, 1).await;
    assert_eq!(waiting(story, worker), [Waiting { subscription: 1, jobs: 2 }]);
}

pub(super) async fn an_ended_subscription_takes_nothing_more<S: Store>(story: &mut Story<'_, S>) {
    let worker = story.worker("w", from("/jobs/**"), 2).await;
    story.create([job(1)]).await;
    story.submit(Command::Unsubscribe { link: worker.link, subscription: 1 }).await;
    story.create([job(2)]).await;
    let held = story.take_one(worker);
    story.end(worker, &[(held.token, DONE)]).await;
    assert_eq!(story.stat(super::story::QUEUE).await.subscriptions, 0);
}
