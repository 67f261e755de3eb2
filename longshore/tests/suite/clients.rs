//! What every client has: `connect`, `builder` and `ready`.

use longshore::testing::TestSystem;
use longshore::{Cluster, Producer, Queues, ReadClient, ReadError};

/// The result of `ready` for each client of a cluster.
async fn ready(cluster: &Cluster) -> [Result<(), ReadError>; 3] {
    [
        Producer::connect(cluster.clone()).ready().await,
        Queues::connect(cluster.clone()).ready().await,
        ReadClient::connect(cluster.clone()).ready().await,
    ]
}

#[tokio::test]
async fn ready_clients_have_reached_a_replica() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    assert_eq!(ready(&system.cluster()).await, [const { Ok(()) }; 3]);
    let mut closed = Cluster::from("127.0.0.1:1");
    closed.timing.connect_timeout = std::time::Duration::from_millis(100);
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
