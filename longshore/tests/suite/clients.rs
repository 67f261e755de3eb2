//! What every client has: `connect`, `builder` and `ready`.

use std::time::Duration;

use longshore::prelude::*;
use longshore::testing::TestSystem;
use longshore::{EnqueueError, ReadClient, ReadError, Subscriber};
use serde::{Deserialize, Serialize};

/// The result of `ready` for each client of a cluster.
async fn ready(cluster: &Cluster) -> [Result<(), ReadError>; 4] {
    let producer = Producer::connect(cluster.clone());
    let queues = Queues::connect(cluster.clone());
    let reader = ReadClient::connect(cluster.clone());
    let subscriber = Subscriber::connect(cluster.clone());
    // Together, because each waits for its reconnects.
    tokio::join!(producer.ready(), queues.ready(), reader.ready(), subscriber.ready()).into()
}

#[tokio::test]
async fn ready_clients_have_reached_a_replica() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    assert_eq!(ready(&system.cluster()).await, [const { Ok(()) }; 4]);
    let mut closed = Cluster::from("127.0.0.1:1");
    closed.timing.connect_timeout = Duration::from_millis(100);
    closed.timing.retry_wait_min = Duration::from_millis(10);
    closed.timing.retry_wait_max = Duration::from_millis(10);
    for outcome in ready(&closed).await {
        assert!(matches!(outcome, Err(ReadError::NoAnswer(failures)) if failures.len() == 1));
    }
    assert!(
        ready(&Cluster::from(""))
            .await
            .iter()
            .all(|outcome| *outcome == Err(ReadError::NoReplicas))
    );
    // Named publishers need no resolver.
    assert_eq!(Producer::to_publishers([system.publisher().clone()]).ready().await, Ok(()));
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/tenants/{tenant}/invoices")]
struct Invoice {
    tenant: String,
}

#[tokio::test]
async fn many_payloads_are_enqueued_by_their_kind() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let producer = system.producer();
    let tenants = ["acme", "not/one/segment", "zenith"];
    let invoices = tenants.map(|tenant| Invoice { tenant: tenant.to_owned() });
    let results = producer.enqueue_all(invoices).await;
    let bad = matches!(results[1].outcome, Err(EnqueueError::BadPayload(_)));
    assert!(results[0].outcome.is_ok() && bad && results[2].outcome.is_ok());

    let (mut pipeline, mut receipts) = producer.pipeline();
    assert!(pipeline.send(Invoice { tenant: "a/b".to_owned() }).await.is_err());
    pipeline.send(Invoice { tenant: "acme".to_owned() }).await?;
    drop(pipeline);
    let batch = receipts.next().await.ok_or_else(|| anyhow::anyhow!("no receipts"))?;
    assert_eq!((batch.len(), batch.accepted()), (1, 1));
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/double", output = u64)]
struct Double {
    number: u64,
}

async fn double(Payload(job): Payload<Double>) -> anyhow::Result<u64> {
    Ok(2 * job.number)
}

#[tokio::test]
async fn results_are_awaited_later_by_id() -> anyhow::Result<()> {
    let (system, limit) = (TestSystem::start().await?, std::time::Duration::from_secs(60));
    let producer = system.producer();
    let receipt = producer.enqueue(Double { number: 21 }).keep_result().await?;
    system.drain(system.worker().handle(double), |jobs| jobs.run()).await?;
    assert_eq!(producer.result::<Double>(receipt.job.id, limit).await?, 42);
    assert_eq!(system.queues().result::<Double>(receipt, limit).await?, 42);
    Ok(())
}
