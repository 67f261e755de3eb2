//! The life of a job end to end: enqueue, delivery to a worker, result. In one process with real
//! sockets and files.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use longshore::{Glob, Job, JobContext, Path, new_job};
use longshore_tests::{Resolver, eventually, start_publisher};

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn connected_workers_continue_without_a_resolver() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let producer = resolver.producer();
    producer.enqueue(new_job(path("/jobs/on"), &b"first"[..])).await.unwrap();
    let worker = resolver.worker().durable_subscribe("/jobs/on");
    let (handle, stats) = (worker.shutdown_handle(), worker.stats());
    let running = tokio::spawn(worker.run(|_: Job<Bytes>, _: JobContext| async { Ok(()) }));
    eventually("the first job", || async { stats.now().completed == 1 }).await;

    let address = resolver.address();
    resolver.stop().await;
    producer
        .enqueue(new_job(path("/jobs/on"), &b"second"[..]))
        .await
        .expect("the link is connected");
    eventually("the second job", || async { stats.now().completed == 2 }).await;

    // It restarts empty, and the publisher registers again.
    let resolver = Resolver::start_at(address, false).await;
    let found = || async {
        let set = resolver.queues().stats(glob("/jobs/on")).await;
        set.is_ok_and(|stats| !stats.merged().is_empty())
    };
    eventually("registered again", found).await;
    handle.drain();
    running.await.unwrap().unwrap();
    publisher.stop().await.unwrap();
    resolver.stop().await;
}
