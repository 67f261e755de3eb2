//! Workers that take from several queues in an order.

use longshore_protocol::messages::work::Order;

use super::*;

#[tokio::test]
async fn a_worker_of_two_patterns_subscribes_once_per_publisher() {
    let mut first = FakePublisher::start(1).await;
    let mut both = FakePublisher::start(2).await;
    let mut second = FakePublisher::start(3).await;
    let limits = Limits { concurrency: 6, prefetch: 0, ..ONE_AT_A_TIME };
    let worker = start_worker_on(
        limits,
        QueuePatterns::strict(["/jobs/urgent", "/jobs/bulk/**"]),
        &[&[&first, &both], &[&both, &second]],
        handler(|_: Job<Bytes>, _| async { Ok(()) }),
    );
    for publisher in [&mut first, &mut both, &mut second] {
        let (mut link, _, sources) = publisher.attach_with_sources(1, &[]).await;
        assert_eq!(sources.order, Order::Strict);
        let patterns: Vec<&str> = sources.patterns.iter().map(|s| s.pattern.as_str()).collect();
        assert_eq!(patterns, ["/jobs/urgent", "/jobs/bulk/**"]);
        link.granted(1).await;
        link.deliver(&[(1, "x")]);
        link.settle().await;
    }
    assert_eq!(worker.session.publishers().borrow().len(), 3);
}
