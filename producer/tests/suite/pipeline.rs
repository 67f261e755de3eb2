//! Pipelines over real links.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::fake::{BatchBehavior, FakePublisher};
use longshore_producer::{EnqueueError, Pipeline, Producer, new_job};
use longshore_protocol::{JobId, NewJob, Path};
use tokio::time::timeout;

fn job(n: usize) -> NewJob {
    new_job(Path::new("/jobs/mail").expect("a path"), n.to_string())
}

fn to(publishers: &[&FakePublisher]) -> Producer {
    Producer::to_publishers(publishers.iter().map(|p| p.info.clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_has_one_receipt_over_broken_links() {
    let publisher = FakePublisher::start(1).await;
    let breaks = (0..60).map(|n| match n % 6 {
        2 => BatchBehavior::TakeAndBreak,
        5 => BatchBehavior::Break,
        _ => BatchBehavior::Answer,
    });
    publisher.script(breaks);
    let producer = to(&[&publisher]);
    let options = Pipeline::builder().batch_jobs_max(100);
    let (mut pipeline, mut receipts) = options.open(&producer);
    let sender = tokio::spawn(async move {
        let mut ids = Vec::new();
        for n in 0..10_000 {
            let job = job(n);
            ids.push(job.id);
            assert_eq!(pipeline.send(job).await.expect("accepted"), n as u64);
        }
        ids
    });
    let mut reported: Vec<JobId> = Vec::new();
    while let Some(batch) = receipts.next().await {
        for receipt in batch.iter() {
            assert_eq!(receipt.index, reported.len() as u64);
            assert!(!receipt.outcome.expect("accepted").existing);
            reported.push(receipt.id);
        }
    }
    let ids = sender.await.expect("the sender");
    assert_eq!(reported, ids);
    assert!(publisher.has_exactly(&ids));
}

#[tokio::test]
async fn a_pipeline_waits_at_its_in_flight_limit() {
    let publisher = FakePublisher::start(1).await;
    publisher.script(vec![BatchBehavior::AnswerAfter(Duration::from_millis(200)); 1]);
    let producer = to(&[&publisher]);
    let options = Pipeline::builder()
        .in_flight_jobs_max(10)
        .batch_jobs_max(10)
        .eager_batches(0)
        .linger(Duration::from_secs(5));
    let (mut pipeline, mut receipts) = options.open(&producer);
    for n in 0..10 {
        pipeline.send(job(n)).await.expect("there is room");
    }
    let eleventh = timeout(Duration::from_millis(50), pipeline.send(job(10))).await;
    assert!(eleventh.is_err(), "there is no room");
    pipeline.send(job(10)).await.expect("there is room once a batch is answered");
    drop(pipeline);
    assert_eq!(receipts.next().await.map(|batch| batch.len()), Some(10));
    assert_eq!(receipts.next().await.map(|batch| batch.len()), Some(1));
    assert!(receipts.next().await.is_none());
}

#[tokio::test]
async fn send_waits_while_receipts_are_unread() {
    let publisher = FakePublisher::start(1).await;
    let options =
        Pipeline::builder().receipts_jobs_max(128).in_flight_jobs_max(32).batch_jobs_max(16);
    // The wait for a reader has no limit.
    let producer = Producer::builder().answer_timeout(Duration::from_millis(100));
    let producer = producer.to_publishers([publisher.info.clone()]);
    let (mut pipeline, mut receipts) = options.open(&producer);
    let mut sent = 0;
    while timeout(Duration::from_millis(500), pipeline.send(job(sent))).await.is_ok() {
        sent += 1;
    }
    assert!((128..=128 + 32).contains(&sent), "{sent} jobs without a reader");
    let mut read = 0;
    let (index, ()) = tokio::join!(pipeline.send(job(sent)), async {
        while read < 64 {
            read += receipts.next().await.expect("a batch").len();
        }
    });
    assert_eq!(index.expect("receipts are read meanwhile"), sent as u64);
    drop(pipeline);
    while let Some(batch) = receipts.next().await {
        read += batch.len();
    }
    assert_eq!(read, sent + 1);
}

/// Sends are dropped at random moments, before and after they could be accepted: the receipts are
/// those of the indices that were returned, and of no other job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_sends_neither_lose_nor_add_jobs() {
    let publisher = FakePublisher::start(1).await;
    publisher.script((0..200).map(|n| match n % 10 {
        3 => BatchBehavior::TakeAndBreak,
        _ => BatchBehavior::AnswerAfter(Duration::from_millis(n % 3)),
    }));
    let producer = to(&[&publisher]);
    let options =
        Pipeline::builder().in_flight_jobs_max(20).batch_jobs_max(7).receipts_jobs_max(30);
    let (mut pipeline, mut receipts) = options.open(&producer);
    let reader = tokio::spawn(async move {
        let mut read = Vec::new();
        while let Some(batch) = receipts.next().await {
            assert!(batch.iter().all(|job| job.outcome.is_ok()));
            read.extend(batch.iter().map(|job| (job.index, job.id)));
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        read
    });
    let (mut accepted, mut cancelled) = (Vec::new(), 0);
    // Every second send that has to wait is cancelled, also on a machine where no timer is on time.
    for patience in [0, 500, 0, 1_500, 0, 2_500].into_iter().cycle() {
        if accepted.len() == 400 {
            break;
        }
        let job = job(accepted.len());
        let id = job.id;
        let cancel = async {
            match patience {
                0 => tokio::task::yield_now().await,
                micros => tokio::time::sleep(Duration::from_micros(micros)).await,
            }
        };
        tokio::select! {
            biased;
            sent = pipeline.send(job) => accepted.push((sent.expect("accepted"), id)),
            () = cancel => cancelled += 1,
        }
    }
    drop(pipeline);
    assert!(accepted.iter().map(|&(index, _)| index).eq(0..400), "a cancelled send uses no index");
    assert_eq!(reader.await.expect("the reader"), accepted);
    assert!(cancelled > 10, "{cancelled} sends were cancelled");
    assert!(publisher.has_exactly(&accepted.iter().map(|&(_, id)| id).collect::<Vec<_>>()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_publisher_does_not_stop_a_pipeline() {
    let (hung, good) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    hung.script(vec![BatchBehavior::TakeInSilence; 10_000]);
    let producer = to(&[&hung, &good]);
    let options =
        Pipeline::builder().in_flight_jobs_max(1_000).batch_jobs_max(50).receipts_jobs_max(1_000);
    let (mut pipeline, mut receipts) = options.open(&producer);
    let sender = tokio::spawn(async move {
        let mut indices = HashMap::new();
        let began = Instant::now();
        let mut n = 0;
        // Far below the 30 s after which the hung publisher's batches time out.
        while n < 20_000 || (indices.len() < 1_000_000 && began.elapsed() < Duration::from_secs(2))
        {
            let job = job(n);
            let id = job.id;
            indices.insert(pipeline.send(job).await.expect("accepted"), id);
            n += 1;
        }
        (indices, began.elapsed(), pipeline)
    });
    let mut read = HashMap::new();
    while read.len() < 15_000 {
        let batch = timeout(Duration::from_secs(15), receipts.next()).await;
        for receipt in batch.expect("receipts go on").expect("a batch").iter() {
            assert!(receipt.outcome.is_ok(), "{receipt:?}");
            read.insert(receipt.index, receipt.id);
        }
    }
    let reader = tokio::spawn(async move { while receipts.next().await.is_some() {} });
    let (indices, took, pipeline) = sender.await.expect("the sender");
    assert!(took < Duration::from_secs(25), "it took {took:?}");
    assert!(read.iter().all(|(index, id)| indices[index] == *id), "each index names its job");
    let stuck = hung.disk.lock().jobs.len();
    assert!((1..=500).contains(&stuck), "{stuck} of 1,000 in flight at the hung one of two");
    reader.abort();
    drop(pipeline);
}

#[tokio::test]
async fn a_pipeline_without_a_reader_continues() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher]);
    let options = Pipeline::builder().receipts_jobs_max(64);
    let (mut pipeline, receipts) = options.open(&producer);
    drop(receipts);
    for n in 0..1_000 {
        pipeline.send(job(n)).await.expect("accepted");
    }
    drop(pipeline);
    producer.settled().await;
    assert_eq!(publisher.disk.lock().jobs.len(), 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_may_both_send_and_read() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher]);
    let options =
        Pipeline::builder().in_flight_jobs_max(400).batch_jobs_max(50).receipts_jobs_max(1_000);
    let (pipeline, mut receipts) = options.open(&producer);
    let sending = async {
        let mut pipeline = pipeline;
        for n in 1..=5_000 {
            pipeline.send(job(n)).await?;
            // A publisher that keeps up: this task is delayed, and never waits for room.
            let deadline = Instant::now() + Duration::from_secs(20);
            while n % 50 == 0 && publisher.disk.lock().jobs.len() < n {
                assert!(Instant::now() < deadline, "{n} jobs are not accepted");
                std::thread::yield_now();
            }
        }
        drop(pipeline);
        Ok::<_, EnqueueError>(())
    };
    let reading = async {
        let mut read = 0;
        while let Some(batch) = receipts.next().await {
            read += batch.len();
        }
        Ok(read)
    };
    let ((), read) = tokio::try_join!(sending, reading).expect("receipts are read in time");
    assert_eq!(read, 5_000);
}
