//! How much memory of received frames a publisher retains.

use crate::client::*;
use longshore_protocol::messages::work::{BatchBuilder, FromPublisher, ToPublisher};
use longshore_protocol::{FrameWriter, Role};
use longshore_publisher::{OpenError, Publisher, PublisherOptions};
use longshore_transport::FrameBudget;

/// A tag of a later version, to fill the frame.
const FILLER: u8 = 250;

async fn charging(dir: &std::path::Path) -> (Running, FrameBudget) {
    let budget = FrameBudget::new(512 * MIB);
    let mut options = PublisherOptions::new(dir);
    (options.budget, options.cache_bytes) = (Some(budget.clone()), 64 * MIB);
    (running(options).await, budget)
}

/// Enqueues a job of `payload` bytes in a frame with `filler` further bytes.
async fn enqueue(client: &mut Client, sequence: u64, payload: usize, filler: usize) {
    let mut batch = BatchBuilder::new();
    batch.push(&job(sequence as u32, payload));
    let mut out = FrameWriter::new();
    ToPublisher::Enqueue(batch.seal(false).to_batch(sequence).unwrap()).encode(&mut out);
    out.message(FILLER, |out| out.put(&vec![0; filler]));
    client.sender.send(out.finish()).unwrap();
    let answer = client.until(|message| match message {
        FromPublisher::Enqueued(answer) => Some(answer),
        _ => None,
    });
    assert!(answer.await.outcome.is_ok());
}

async fn released(budget: &FrameBudget, to: usize) {
    let falls = async {
        while budget.charged() > to {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let fell = tokio::time::timeout(LONG, falls).await;
    assert!(fell.is_ok(), "{} bytes are charged; expected {to} at most", budget.charged());
}

#[tokio::test]
async fn cached_batch_pins_at_most_a_third_beyond_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let (publisher, budget) = charging(dir.path()).await;
    let mut client = Client::attach(&publisher, Role::Producer, 1).await;
    // The batch is most of its frame: the cache retains a slice of it.
    enqueue(&mut client, 1, 300_000, 50_000).await;
    released(&budget, 400_000).await;
    assert!(budget.charged() >= 300_000);
    // The batch is a small part of its frame: the cache retains a copy, and the frame is released,
    // though the link stays open and silent.
    enqueue(&mut client, 2, 300_000, 10 * MIB).await;
    released(&budget, 400_000).await;
    drop(client);
    publisher.stop().await;
    released(&budget, 0).await;
}

#[tokio::test]
async fn a_budget_that_the_cache_may_use_up_is_refused_before_any_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PublisherOptions::new(dir.path().join("data"));
    let least = options.frame_budget().bytes();
    options.budget = Some(FrameBudget::new(least - 1));
    let refused = Publisher::open(options.clone()).await.map(drop);
    assert!(matches!(refused, Err(OpenError::BudgetTooSmall { least: n, .. }) if n == least));
    assert!(!dir.path().join("data").exists());
    options.budget = Some(FrameBudget::new(least));
    Publisher::open(options).await.map(drop).expect("the least budget");
}
