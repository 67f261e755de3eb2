//! Enqueueing jobs over real links to scripted publishers.

use std::time::Duration;

use crate::fake::{BatchBehavior, FakePublisher};
use longshore_producer::{EnqueueError, Failover, Producer, ProducerBuilder, new_job};
use longshore_protocol::{Durability, NewJob, Path, PublisherInfo};

fn options() -> ProducerBuilder {
    Producer::builder()
}

fn with_answer_timeout(ms: u64) -> ProducerBuilder {
    options().answer_timeout(Duration::from_millis(ms))
}

fn job(payload: &'static str) -> NewJob {
    new_job(Path::new("/jobs/mail").expect("a path"), payload)
}

fn to(publishers: &[&FakePublisher], options: ProducerBuilder) -> Producer {
    options.to_publishers(publishers.iter().map(|p| p.info.clone()))
}

#[tokio::test]
async fn an_unlimited_timeout_does_not_overflow() {
    let publisher = FakePublisher::start(1).await;
    let for_ever = options().answer_timeout(Duration::MAX);
    let producer = to(&[&publisher], for_ever);
    assert!(producer.enqueue(job("hello")).await.is_ok());
}

#[tokio::test]
async fn a_receipt_names_publisher_and_durability() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher], options());
    let job = job("hello");
    let receipt = producer.enqueue(job.clone()).await.expect("taken");
    assert_eq!((receipt.job.publisher, receipt.job.id), (publisher.info.id, job.id));
    assert_eq!((receipt.existing, receipt.durability), (false, Durability::Fsync));
    assert!(publisher.has_exactly(&[job.id]));
    let again = producer.enqueue(job).await.expect("taken");
    assert!(again.existing, "the same id again is the same job");
}

/// Single jobs that took each place as it becomes free would keep the batch waiting.
#[tokio::test]
async fn an_atomic_batch_gets_room_beside_steady_single_jobs() {
    let publisher = FakePublisher::start(1).await;
    let slow = BatchBehavior::AnswerAfter(Duration::from_millis(2));
    publisher.script(std::iter::repeat_n(slow, 10_000));
    let producer = to(&[&publisher], options().in_flight_jobs_max(8));
    let mut singles = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let producer = producer.clone();
        singles.spawn(async move {
            loop {
                producer.enqueue(job("single")).await.expect("taken");
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..3 {
        let batch = producer.enqueue_atomic((0..8).map(|_| job("in a batch")));
        let batch = tokio::time::timeout(Duration::from_secs(10), batch).await;
        assert_eq!(batch.expect("its turn").expect("taken").len(), 8);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_share_batches() {
    let publisher = FakePublisher::start(1).await;
    let slow = BatchBehavior::AnswerAfter(Duration::from_millis(20));
    publisher.script(std::iter::repeat_n(slow, 8));
    let producer = to(&[&publisher], options());
    let callers: Vec<_> = (0..500)
        .map(|_| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.enqueue(job("x")).await.expect("taken").job.id })
        })
        .collect();
    let mut ids = Vec::new();
    for caller in callers {
        ids.push(caller.await.expect("a caller"));
    }
    assert!(publisher.has_exactly(&ids));
    let batches = publisher.disk.lock().batches.len();
    assert!(batches < 100, "{batches} batches for 500 callers");
}

#[tokio::test]
async fn k0_a_link_that_breaks_before_the_answer_duplicates_nothing() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher], options());
    for behavior in [BatchBehavior::TakeAndBreak, BatchBehavior::Break, BatchBehavior::Garbage] {
        publisher.script([behavior]);
        let job = job("x");
        let receipt = producer.enqueue(job.clone()).await.expect("taken");
        assert!(!receipt.existing);
        assert_eq!(publisher.disk.lock().jobs.get(&job.id), Some(&1));
    }
}

#[tokio::test]
async fn an_unanswered_job_is_unknown_with_its_id() {
    let publisher = FakePublisher::start(1).await;
    publisher.script([BatchBehavior::TakeInSilence]);
    let producer = to(&[&publisher], with_answer_timeout(300));
    let job = job("x");
    let error = producer.enqueue(job.clone()).await.expect_err("no answer");
    let EnqueueError::Unknown { publisher: at, ids, .. } = error else { panic!("{error}") };
    assert_eq!((at, &*ids), (publisher.info.id, &[job.id][..]));
    producer.enqueue(self::job("y")).await.expect("the producer remains usable");
}

#[tokio::test]
async fn an_unreachable_publisher_leaves_the_job_unsent() {
    let mut publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher], with_answer_timeout(300));
    publisher.kill().await;
    let error = producer.enqueue(job("x")).await.expect_err("no publisher is there");
    let EnqueueError::NotSent { why, .. } = &error else { panic!("{error}") };
    assert!(why.contains("fake-1") && why.contains("cannot connect"), "{why}");
    assert!(!error.is_unknown());
}

#[tokio::test]
async fn an_address_of_another_publisher_is_rejected() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let wrong = PublisherInfo { addresses: two.info.addresses.clone(), ..one.info.clone() };
    let producer = with_answer_timeout(300).to_publishers([wrong]);
    let error = producer.enqueue(job("x")).await.expect_err("not the right one").to_string();
    assert!(error.contains("is publisher 02020202, not 01010101"), "{error}");
    assert!(two.disk.lock().jobs.is_empty());
}

#[tokio::test]
async fn the_next_address_is_tried_after_the_first() {
    let publisher = FakePublisher::start(1).await;
    let mut info = publisher.info.clone();
    info.addresses.insert(0, ([127, 0, 0, 1], 1).into());
    let producer = options().to_publishers(vec![info]);
    producer.enqueue(job("x")).await.expect("taken");
}

#[tokio::test]
async fn may_duplicate_receipts_name_the_other_publisher() {
    let (mut one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let options = options().failover(Failover::MayDuplicate);
    let producer = to(&[&one, &two], options);
    // Both links are attached before the first publisher dies.
    while one.disk.lock().attaches == 0 || two.disk.lock().attaches == 0 {
        producer.enqueue(job("first")).await.expect("taken");
    }
    for publisher in [&one, &two] {
        publisher.script([BatchBehavior::TakeInSilence]);
    }
    let caller = producer.clone();
    let mine = job("x");
    let id = mine.id;
    let call = tokio::spawn(async move { caller.enqueue(mine).await });
    let at_one = loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        if one.disk.lock().jobs.contains_key(&id) {
            break true;
        }
        if two.disk.lock().jobs.contains_key(&id) {
            break false;
        }
    };
    let mut two = two;
    let (dies, lives) = if at_one { (&mut one, &two) } else { (&mut two, &one) };
    lives.disk.lock().script.clear();
    dies.kill().await;
    let receipt = call.await.expect("the call").expect("taken");
    assert_eq!(receipt.job.publisher, lives.info.id);
    assert_eq!(receipt.may_be_at, Some(dies.info.id));
}

#[tokio::test]
async fn dropping_the_producer_closes_its_links() {
    let mut publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher], options());
    producer.enqueue(job("x")).await.expect("taken");
    producer.settled().await;
    drop(producer);
    tokio::time::timeout(Duration::from_secs(5), publisher.kill()).await.expect("nothing hangs");
}

#[tokio::test]
async fn a_large_payload_arrives_whole() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&[&publisher], options());
    let path = Path::new("/jobs/large").expect("a path");
    let job = new_job(path.clone(), vec![7; 16 * 1024 * 1024]);
    producer.enqueue(job.clone()).await.expect("taken");
    assert!(publisher.has_exactly(&[job.id]));
    let error = producer.enqueue(new_job(path, vec![7; 16 * 1024 * 1024 + 1])).await;
    let error = error.expect_err("over the limit");
    assert!(matches!(error, EnqueueError::TooLarge { limit: 16_777_216, .. }), "{error}");
}
