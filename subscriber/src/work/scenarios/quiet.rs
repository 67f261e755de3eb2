//! A worker that receives an operator's request for quiet, and for resuming.

use longshore_protocol::messages::work::Quiet;

use super::fake_publisher::FakeLink;
use super::*;

impl FakeLink {
    fn request_quiet(&self, request: u64, quiet: bool) {
        self.send(FromPublisher::WorkerQuiet(Quiet { request, quiet }));
    }

    async fn quieted(&mut self) -> (u64, bool) {
        self.find(|message| match message {
            ToPublisher::Quieted(Quiet { request, quiet }) => Some((*request, *quiet)),
            _ => None,
        })
        .await
    }

    /// True when the worker has sent credits or its quiet state without a request.
    fn has_sent_credit_or_quiet(&self) -> bool {
        self.has_unread(|message| {
            matches!(message, ToPublisher::Credit(_) | ToPublisher::Quieted(_))
        })
    }

    /// Waits for the grants, and removes them from the unread messages.
    async fn drain_grants(&mut self, credits: u32) {
        self.granted(credits).await;
        while self.has_unread(|message| matches!(message, ToPublisher::Credit(_))) {
            let credit =
                |message: &ToPublisher| matches!(message, ToPublisher::Credit(_)).then_some(());
            self.find(credit).await;
        }
    }

    /// Expects a batch that releases exactly these tokens, and accepts it.
    async fn expect_released(&mut self, tokens: &[u64]) {
        let batch = self.settle().await;
        let released: Vec<_> = tokens.iter().map(|token| (*token, Verdict::Release)).collect();
        assert_eq!(verdicts(&batch), released);
        self.accept(&batch);
    }
}

#[tokio::test]
async fn a_quiet_worker_releases_waiting_jobs_and_takes_none() {
    let mut publisher = FakePublisher::start(1).await;
    let (handler, mut started_rx, go) = gated_handler();
    let worker = start_worker(Limits { prefetch: 3, ..ONE_AT_A_TIME }, &[&publisher], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.drain_grants(4).await;
    link.deliver(&[(1, "runs"), (2, "waits")]);
    within(started_rx.recv()).await.unwrap();

    link.request_quiet(7, true);
    // A release before the recall would let the remaining credits bring the job again.
    let mut received = Vec::new();
    let batch = loop {
        match link.next().await {
            ToPublisher::Settle(batch) => break batch,
            ToPublisher::Recall(credit) => received.push(credit.count),
            ToPublisher::Quieted(_) => panic!("credits are out"),
            _ => {}
        }
    };
    assert_eq!((verdicts(&batch), received), (vec![(2, Verdict::Release)], vec![2]));
    link.accept(&batch);
    assert!(worker.session.is_quiet());
    // A job that was in flight.
    link.deliver(&[(3, "late")]);
    link.expect_released(&[3]).await;
    assert!(!link.has_sent_credit_or_quiet());
    link.returned(1);
    assert_eq!(link.quieted().await, (7, true));
    link.request_quiet(8, true);
    assert_eq!(link.quieted().await, (8, true), "a repeated request is answered again");

    go.add_permits(1);
    let batch = link.settle().await;
    assert!(matches!(verdicts(&batch)[..], [(1, Verdict::Complete(_))]));
    link.accept(&batch);
    worker.until(|stats| stats.completed == 1 && stats.released == 2).await;
    link.request_quiet(9, true);
    link.quieted().await;
    assert!(!link.has_sent_credit_or_quiet(), "a completed job frees no credit");

    link.request_quiet(10, false);
    assert_eq!(link.quieted().await, (10, false));
    link.granted(8).await;
    assert_eq!(link.credits, 8, "the bound is granted again");
    assert!(!worker.session.is_quiet());
    link.deliver(&[(4, "next")]);
    assert_eq!(within(started_rx.recv()).await.unwrap().token(), Token(4));
    assert!(started_rx.try_recv().is_err(), "jobs 2 and 3 never began");
    drop(worker);
}

#[tokio::test]
async fn quiet_applies_to_all_publishers_and_new_links() {
    let mut one = FakePublisher::start(1).await;
    let mut other = FakePublisher::start(2).await;
    let (handler, mut started_rx, _go) = gated_handler();
    let worker = start_worker(Limits { concurrency: 4, ..ONE_AT_A_TIME }, &[&one, &other], handler);
    let (mut one_link, _) = one.attach(1, &[]).await;
    let (mut other_link, _) = other.attach(1, &[]).await;
    one_link.drain_grants(2).await;
    other_link.drain_grants(2).await;

    one_link.request_quiet(7, true);
    assert_eq!(other_link.recall().await, 2);
    other_link.returned(2);
    assert_eq!(other_link.quieted().await, (0, true));
    other_link.deliver(&[(1, "late")]);
    other_link.expect_released(&[1]).await;
    one_link.recall().await;
    one_link.returned(2);
    assert_eq!(one_link.quieted().await, (7, true));

    drop(other_link);
    let (mut other_link, _) = other.attach(2, &[]).await;
    assert_eq!(other_link.quieted().await, (0, true));
    other_link.deliver(&[(2, "late")]);
    other_link.expect_released(&[2]).await;
    assert!(!other_link.has_sent_credit_or_quiet(), "nothing is granted on the new link");

    // Resumed through the other publisher; both learn it.
    other_link.request_quiet(1, false);
    assert_eq!(other_link.quieted().await, (1, false));
    assert_eq!(one_link.quieted().await, (0, false));
    one_link.granted(4).await;
    other_link.granted(2).await;
    other_link.deliver(&[(3, "next")]);
    assert_eq!(within(started_rx.recv()).await.unwrap().token(), Token(3));
    drop(other_link);
    let (mut other_link, _) = other.attach(3, &[]).await;
    assert_eq!(one_link.recall().await, 1);
    one_link.returned(1);
    other_link.granted(1).await;
    assert!(!other_link.has_unread(|message| matches!(message, ToPublisher::Quieted(_))));
    drop(worker);
}

#[tokio::test]
async fn a_reversed_quiet_request_reports_the_current_state() {
    let mut publisher = FakePublisher::start(1).await;
    let (handler, mut started_rx, _go) = gated_handler();
    let worker = start_worker(Limits { concurrency: 2, ..ONE_AT_A_TIME }, &[&publisher], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.drain_grants(2).await;
    link.request_quiet(1, true);
    assert_eq!(link.recall().await, 2);
    link.request_quiet(2, false);
    assert_eq!(link.quieted().await, (2, false));
    assert!(!link.has_sent_credit_or_quiet(), "its credits are still out");
    // One credit was used before the recall arrived.
    link.deliver(&[(1, "a")]);
    link.returned(1);
    link.granted(3).await;
    assert_eq!(link.credits, 3);
    assert_eq!(within(started_rx.recv()).await.unwrap().token(), Token(1));
    drop(worker);
}

#[tokio::test]
async fn a_quiet_worker_drains_normally() {
    let (handler, mut started_rx, go) = gated_handler();
    let (_publisher, worker, mut link) = start_linked_worker(ONE_AT_A_TIME, handler).await;
    link.deliver(&[(1, "runs")]);
    within(started_rx.recv()).await.unwrap();
    link.request_quiet(1, true);
    assert_eq!(link.quieted().await, (1, true));
    worker.handle.drain();
    link.unsubscribe().await;
    link.request_quiet(2, false);
    assert_eq!(link.quieted().await, (2, false));
    go.add_permits(1);
    let batch = link.settle().await;
    link.accept(&batch);
    let report = worker.report().await;
    assert_eq!((report.completed, report.released), (1, 0));
    link.ended().await;
}

#[tokio::test]
async fn quiet_releases_jobs_of_a_lost_link_on_the_next() {
    let mut publisher = FakePublisher::start(1).await;
    let mut other = FakePublisher::start(2).await;
    let (handler, mut started_rx, _go) = gated_handler();
    let worker =
        start_worker(Limits { prefetch: 3, ..ONE_AT_A_TIME }, &[&publisher, &other], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    let (mut other_link, _) = other.attach(1, &[]).await;
    link.granted(2).await;
    link.deliver(&[(1, "runs"), (2, "waits")]);
    within(started_rx.recv()).await.unwrap();
    drop(link);
    worker.until(|stats| stats.publishers_alive == 1).await;
    other_link.request_quiet(7, true);
    other_link.recall().await;
    other_link.returned(2);
    assert_eq!(
        other_link.quieted().await,
        (7, true),
        "the worker does not wait for the other link"
    );
    let (mut link, resumed) = publisher.attach(1, &[]).await;
    assert_eq!(resumed, [1, 2]);
    assert_eq!(link.started().await, [1], "job 1 still runs");
    link.expect_released(&[2]).await;
    assert_eq!(link.quieted().await, (0, true));
    // Only the running job is still held.
    other_link.request_quiet(8, false);
    link.granted(1).await;
    other_link.granted(2 + 2).await;
    drop(worker);
}

#[tokio::test]
async fn queued_releases_are_sent_before_quiet_is_reported() {
    let mut publisher = FakePublisher::start(1).await;
    let mut other = FakePublisher::start(2).await;
    let (handler, mut started_rx, go) = gated_handler();
    let worker =
        start_worker(Limits { prefetch: 5, ..ONE_AT_A_TIME }, &[&publisher, &other], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    let (mut other_link, _) = other.attach(1, &[]).await;
    link.granted(3).await;
    link.deliver(&[(1, "ends"), (2, "runs"), (3, "waits")]);
    go.add_permits(1);
    for _ in 0..2 {
        within(started_rx.recv()).await.unwrap();
    }
    // The link is lost before the answer to this settle.
    assert_eq!(link.settle().await.sequence, 1);
    drop(link);
    worker.until(|stats| stats.publishers_alive == 1).await;
    other_link.request_quiet(7, true);
    other_link.recall().await;
    other_link.returned(3);
    other_link.quieted().await;

    let (mut link, resumed) = publisher.attach(1, &[]).await;
    assert_eq!(resumed, [1, 2, 3]);
    let again = link.settle().await;
    assert!(matches!(verdicts(&again)[..], [(1, Verdict::Complete(_))]));
    assert!(!link.has_sent_credit_or_quiet(), "job 3 is still at the worker");
    link.accept(&again);
    link.expect_released(&[3]).await;
    assert_eq!(link.quieted().await, (0, true));
    drop(worker);
}
