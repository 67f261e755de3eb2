//! A publisher that answers nothing while its link is alive, beside another one.

use super::*;

#[tokio::test]
async fn an_ended_job_of_a_silent_publisher_frees_its_credit_for_another() {
    let (mut silent, mut other) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 2, prefetch: 0, ..ONE_AT_A_TIME };
    let worker = start_worker(limits, &[&silent, &other], handler);
    let ((mut link, _), (mut other_link, _)) =
        (silent.attach(1, &[]).await, other.attach(1, &[]).await);
    link.granted(1).await;
    other_link.granted(1).await;
    link.deliver(&[(1, "a")]);
    within(started_rx.recv()).await.unwrap();
    link.waiting(9);
    other_link.recall().await;
    other_link.returned(1);
    link.granted(2).await;
    link.deliver(&[(2, "b")]);
    within(started_rx.recv()).await.unwrap();
    go.add_permits(1);
    link.settle().await;
    link.granted(3).await;
    // From now on the first publisher answers nothing.
    other_link.waiting(1);
    go.add_permits(1);
    other_link.granted(2).await;
    drop(worker);
}
