//! A queue that a default created is in the directory while it has jobs.

use std::time::Duration;

use longshore_protocol::messages::work::{Answer, Request};
use longshore_protocol::{Path, QueueSettings, ResolverTiming, Role};
use longshore_publisher::PublisherOptions;
use longshore_resolver::{Cluster, PathAnswer, ReadClient, ResolverServer, ServerOptions};
use tokio::time::timeout;

use crate::client::{Client, LONG, job_in, path, running};

/// Whether the replica finds the path by a default, or by its own name.
async fn by_default(reader: &ReadClient, path: &Path) -> Option<bool> {
    let resolution = reader.resolve(vec![path.clone()]).await.unwrap();
    match &resolution.answers[0] {
        PathAnswer::Publishers { by_default, .. } => Some(*by_default),
        _ => None,
    }
}

async fn until_by_default(reader: &ReadClient, path: &Path, wanted: bool) {
    let settled = async {
        while by_default(reader, path).await != Some(wanted) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, settled).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_queue_leaves_the_directory_until_its_next_job() {
    let options = ServerOptions { fresh: true, ..ServerOptions::default() };
    let replica = ResolverServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let timing = ResolverTiming { writer_ttl: Duration::from_secs(2), ..ResolverTiming::default() };
    let mut cluster = Cluster::new([replica.local_address().to_string()]);
    cluster.timing = timing;
    tokio::spawn(replica.run(std::future::pending()));
    let reader = ReadClient::connect(cluster.clone());

    let dir = tempfile::tempdir().unwrap();
    let publisher = running(PublisherOptions {
        paths: vec![path("/jobs/named")],
        defaults: vec![path("/jobs")],
        cluster: Some(cluster),
        ..PublisherOptions::new(dir.path())
    })
    .await;
    let queue = path("/jobs/mail");
    until_by_default(&reader, &queue, true).await;

    let mut client = Client::attach(&publisher, Role::Worker, 1).await;
    // Ended jobs are not retained.
    let keep_nothing =
        QueueSettings { keep_ms: Some(0), keep_jobs: Some(0), ..QueueSettings::default() };
    let configure = Request::Configure { path: queue.clone(), changes: keep_nothing, reset: false };
    assert!(matches!(client.ask(configure).await, Answer::Configured(Ok(_))));
    client.subscribe_with(1);
    for round in 0..2 {
        client.enqueue([job_in("/jobs/mail", round, 10)]).await;
        // It stays while its job runs, however long.
        until_by_default(&reader, &queue, false).await;
        let job = client.job().await;
        if round == 1 {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        assert_eq!(by_default(&reader, &queue).await, Some(false), "it is not empty");
        client.complete(job.token).await;
        client.credit(1);
        until_by_default(&reader, &queue, true).await;
        assert_eq!(by_default(&reader, &path("/jobs/named")).await, Some(false));
    }
    publisher.stop().await;
}
