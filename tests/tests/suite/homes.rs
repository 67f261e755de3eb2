//! Idempotency keys at a path with two publishers: its home has them, and nobody else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore::embedded::{ANY_PORT, RunningPublisher, RunningReplica};
use longshore::prelude::*;
use longshore::protocol::Homes;
use longshore::{
    Cluster, EnqueueError, Path, PathAnswer, PublisherOptions, ReadClient, Receipt, ServerOptions,
};
use longshore_tests::{eventually, short_timing};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Barrier;

const PRODUCERS: usize = 1_000;

async fn replica() -> (RunningReplica, Cluster) {
    let timing = short_timing();
    let options = ServerOptions {
        fresh: true,
        timing: timing.clone(),
        connections_max: 2 * PRODUCERS,
        ..ServerOptions::default()
    };
    let replica = RunningReplica::start(ANY_PORT, options).await.unwrap();
    let cluster = Cluster { timing, ..replica.cluster() };
    (replica, cluster)
}

fn homes() -> Homes {
    let names = vec!["pa".to_owned(), "pb".to_owned()];
    Homes::new([("/jobs/*".parse().unwrap(), names)]).unwrap()
}

async fn publisher(name: &str, folder: &FilePath, cluster: &Cluster) -> RunningPublisher {
    let mut options = PublisherOptions::new(folder.join(name));
    (options.name, options.homes) = (name.to_owned(), homes());
    options.cluster = Some(cluster.clone());
    options.segment_bytes = 4 * 1024 * 1024;
    RunningPublisher::start(options).await.unwrap()
}

/// Waits until so many publishers have the path or its default.
async fn served_by(cluster: &Cluster, path: &Path, count: usize) {
    let client = ReadClient::connect(cluster.clone());
    eventually(&format!("{count} publishers"), || async {
        let Ok(resolution) = client.resolve(vec![path.clone()]).await else { return false };
        let PathAnswer::Publishers { set, fallback, .. } = &resolution.answers[0] else {
            return false;
        };
        let all = fallback.as_ref().map_or(set.len(), |fallback| fallback.len());
        all == count
    })
    .await;
}

/// Both publishers, the path's home first.
async fn two(path: &Path, folder: &FilePath, cluster: &Cluster) -> [RunningPublisher; 2] {
    let (pa, pb) = (publisher("pa", folder, cluster).await, publisher("pb", folder, cluster).await);
    let both = match homes().home_of(path).unwrap().name {
        "pa" => [pa, pb],
        _ => [pb, pa],
    };
    served_by(cluster, path, 2).await;
    both
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_thousand_producers_with_one_key_creates_its_job() {
    // Both ends of every link are in this process.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let (replica, cluster) = replica().await;
    let (folder, path) = (tempfile::tempdir().unwrap(), Path::new("/jobs/one").unwrap());
    let [home, other] = two(&path, folder.path(), &cluster).await;
    // The queue exists only where keys may not go.
    let plain = Producer::to_publishers(vec![other.info().clone()]);
    plain.enqueue(new_job(path.clone(), "plain")).await.unwrap();

    let ready = Arc::new(Barrier::new(PRODUCERS));
    let racing: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let (cluster, path, ready) = (cluster.clone(), path.clone(), ready.clone());
            tokio::spawn(async move {
                let producer = Producer::builder().answer_timeout(Duration::from_secs(180));
                let producer = producer.connect(cluster);
                ready.wait().await;
                producer.enqueue(new_job(path, "the same").idempotency_key("one")).await
            })
        })
        .collect();
    let mut receipts: Vec<Receipt> = Vec::new();
    for racer in racing {
        receipts.push(racer.await.unwrap().unwrap());
    }
    let created: Vec<&Receipt> = receipts.iter().filter(|receipt| !receipt.existing).collect();
    assert_eq!(created.len(), 1, "one Created, {} Existing", PRODUCERS - 1);
    assert!(receipts.iter().all(|receipt| receipt.job == created[0].job));
    assert_eq!(created[0].job.publisher, home.info().id);
    let queues = longshore::Queues::connect(cluster);
    let stats = queues.stats(path.as_str().parse().unwrap()).await.unwrap().merged();
    assert_eq!(stats[0].counts.ready, 2, "the plain job and that with the key");
    home.stop().await.unwrap();
    other.stop().await.unwrap();
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_the_keys_of_a_home_that_is_away() {
    let (replica, cluster) = replica().await;
    let (folder, path) = (tempfile::tempdir().unwrap(), Path::new("/jobs/one").unwrap());
    let [home, other] = two(&path, folder.path(), &cluster).await;
    let name = homes().home_of(&path).unwrap().name.to_owned();
    let deadline = Duration::from_secs(2);
    let producer = Producer::builder().answer_timeout(deadline).connect(cluster.clone());
    let keyed = |key: &str| new_job(path.clone(), "the same").idempotency_key(key);
    let first = producer.enqueue(keyed("first")).await.unwrap();
    assert!(!first.existing && first.job.publisher == home.info().id);

    home.stop().await.unwrap();
    let began = Instant::now();
    let fresh = Producer::builder().answer_timeout(deadline).connect(cluster.clone());
    let both = [(&producer, "first"), (&producer, "second"), (&fresh, "first"), (&fresh, "second")];
    let tries = both.map(|(producer, key)| {
        let (producer, job) = (producer.clone(), keyed(key));
        tokio::spawn(async move { (producer.enqueue(job).await, began.elapsed()) })
    });
    for refused in tries {
        let (refused, after) = refused.await.unwrap();
        let refused = refused.unwrap_err();
        assert!(matches!(refused, EnqueueError::HomeAway { .. }), "{refused}");
        assert!(after >= deadline, "each waits for its home");
    }
    let plain = producer.enqueue(new_job(path.clone(), "plain")).await.unwrap();
    assert_eq!(plain.job.publisher, other.info().id);

    let home = publisher(&name, folder.path(), &cluster).await;
    served_by(&cluster, &path, 2).await;
    // Until then a producer may still dial where the home was.
    let mut again = Err(EnqueueError::Closed);
    for _ in 0..15 {
        again = producer.enqueue(keyed("first")).await;
        if again.is_ok() {
            break;
        }
    }
    let again = again.unwrap();
    assert!(again.existing && again.job == first.job, "{again:?}");
    let second = fresh.enqueue(keyed("second")).await.unwrap();
    assert!(!second.existing && second.job.publisher == home.info().id);
    let queues = longshore::Queues::connect(cluster);
    let stats = queues.stats(path.as_str().parse().unwrap()).await.unwrap().merged();
    assert_eq!(stats[0].counts.ready, 3, "first, second and the plain job");
    home.stop().await.unwrap();
    other.stop().await.unwrap();
    replica.stop().await.unwrap();
}
