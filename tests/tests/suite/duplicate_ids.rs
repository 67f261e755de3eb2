//! A thousand producers enqueue the same job at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use std::net::SocketAddr;
use std::sync::Arc;

use longshore::Path;
use longshore::prelude::*;
use longshore::{PublisherId, PublisherInfo, Receipt, new_id};
use longshore_tests::{Resolver, start_publisher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Barrier;

const PRODUCERS: usize = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_thousand_racing_producers_creates_the_job() {
    // Both ends of every link are in this process.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let (resolver, folder) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(folder.path(), resolver.cluster()).await;
    let job = NewJob::new(Path::new("/jobs/one").unwrap(), new_id(), "the same");
    let first = resolver.producer().prepare(new_job(job.path.clone(), "another")).await.unwrap();
    let info = info_of(first.job.publisher, publisher.address());

    let ready = Arc::new(Barrier::new(PRODUCERS));
    let racing: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let (info, job, ready) = (info.clone(), job.clone(), ready.clone());
            tokio::spawn(async move {
                let producer = Producer::to_publishers(vec![info]);
                ready.wait().await;
                producer.enqueue(job).await
            })
        })
        .collect();
    let mut created: Vec<Receipt> = Vec::new();
    for racer in racing {
        let receipt = racer.await.unwrap().unwrap();
        assert_eq!(receipt.job.id, job.id);
        created.extend(Some(receipt).filter(|receipt| !receipt.existing));
    }
    assert_eq!(created.len(), 1, "one Created, {} Existing", PRODUCERS - 1);
    let stats = resolver.queues().stats("/jobs/one".parse().unwrap()).await.unwrap().merged();
    assert_eq!((stats[0].counts.ready, stats[0].counts.prepared), (1, 1));
    publisher.stop().await.unwrap();
}

fn info_of(id: PublisherId, address: SocketAddr) -> PublisherInfo {
    let epoch = longshore::protocol::Epoch(0);
    PublisherInfo::new(id, epoch, "p1", [address])
}
