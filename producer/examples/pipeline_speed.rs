//! How fast a pipeline is on its own side: jobs of 256 bytes to a publisher that only counts, over loopback.
//!
//! `cargo run --release -p longshore-producer --example pipeline_speed -- [JOBS] [SIZE]`

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::time::Instant;

use bytes::Bytes;
use fake::FakePublisher;
use longshore_producer::{PipelineOptions, Producer, ProducerOptions, new_job};
use longshore_protocol::Path;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let jobs: u64 = arguments.next().map_or(3_000_000, |n| n.parse().expect("a number of jobs"));
    let size: usize = arguments.next().map_or(256, |n| n.parse().expect("a size in bytes"));
    let publisher = FakePublisher::start(1).await;
    publisher.disk.lock().count_only = true;
    let named = vec![publisher.info.clone()];
    let producer = Producer::to_publishers(named, ProducerOptions::default());
    let (mut pipeline, mut receipts) = producer.pipeline(PipelineOptions::default());
    let (path, payload) = (Path::new("/bench").expect("a path"), Bytes::from(vec![7; size]));
    let began = Instant::now();
    let reader = tokio::spawn(async move {
        let mut held = 0;
        while let Some(batch) = receipts.next().await {
            held += batch.held();
        }
        held
    });
    let sender = tokio::spawn(async move {
        for _ in 0..jobs {
            pipeline.send(new_job(path.clone(), payload.clone())).await.expect("taken in");
        }
    });
    sender.await.expect("the sender does not panic");
    let held = reader.await.expect("the reader does not panic");
    let seconds = began.elapsed().as_secs_f64();
    let batches = publisher.disk.lock().batches.len();
    println!(
        "{held} of {jobs} jobs of {size} bytes held in {seconds:.3} s: {:.0} jobs/s in {batches} batches",
        held as f64 / seconds
    );
}
