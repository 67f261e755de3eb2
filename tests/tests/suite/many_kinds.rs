//! A worker with twenty kinds at two publishers, by the publishers' own counts.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use longshore::embedded::RunningPublisher;
use longshore::values::metrics::metrics_path;
use longshore::values::{Event, Subscriber};
use longshore::{Path, PublisherOptions, new_job};
use longshore_tests::kinds::{Completed, KINDS, QUEUES, worker_of_all};
use longshore_tests::{Resolver, eventually};

async fn metric(subscriber: &Subscriber, path: &str) -> serde_json::Value {
    let mut metric = subscriber.subscribe(Path::new(path).unwrap()).await.unwrap();
    let Some(Event::Update(value)) = metric.next().await else { panic!("{path} has no value") };
    value.to_serde().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kinds_share_one_session_and_one_link_to_each_publisher() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let mut publishers = Vec::new();
    for name in ["one", "two"] {
        let mut options = PublisherOptions::new(data.path().join(name));
        options.cluster = Some(resolver.cluster());
        options.name = name.to_owned();
        publishers.push((name, RunningPublisher::start(options).await.unwrap()));
    }
    for (_, publisher) in &publishers {
        let jobs = QUEUES.map(|path| new_job(Path::new(path).unwrap(), "x"));
        let receipts = publisher.producer().enqueue_all(jobs).await;
        assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
    }
    let completed = Completed::default();
    let worker = worker_of_all(resolver.worker(), completed.clone());
    let handle = worker.shutdown_handle();
    let running = tokio::spawn(worker.run());
    let of_each = || completed.each_ref().map(|count| count.load(Ordering::Relaxed));
    eventually("all jobs", || async { of_each() == [2; KINDS] }).await;

    let patterns = QUEUES.map(|queue| queue.replace("/queue", "/*"));
    let subscriber = Subscriber::connect(resolver.cluster());
    let mut sessions = BTreeSet::new();
    for (name, _) in &publishers {
        let base = metrics_path("publishers", name).to_string();
        assert_eq!(metric(&subscriber, &base).await["links"]["workers"], 1);
        let listed = metric(&subscriber, &format!("{base}/workers")).await;
        let [worker] = &listed["workers"].as_array().unwrap()[..] else { panic!("{listed}") };
        assert_eq!(worker["patterns"], serde_json::json!(patterns));
        sessions.insert(worker["session"].to_string());
    }
    assert_eq!(sessions.len(), 1);
    handle.drain();
    running.await.unwrap().unwrap();
}
