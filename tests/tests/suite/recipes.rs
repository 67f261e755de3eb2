//! Runs the handler with checkpoints of `docs/RECIPES.md`, which contains it verbatim, and a
//! prepared job, against a real system.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use longshore::Backoff;
use longshore::Path;
use longshore::prelude::*;
use longshore_tests::{Resolver, start_publisher};
use std::time::Duration;

async fn place_order(producer: &Producer, orders: Path) -> anyhow::Result<()> {
    let receipt = producer.prepare(new_job(orders, "order 18")).await?;
    commit_transaction().await?;
    producer.confirm(&receipt).await?;
    Ok(())
}

async fn commit_transaction() -> anyhow::Result<()> {
    Ok(())
}

// page: import
async fn import(job: Job<u32>, context: JobContext) -> Result<String, JobFailure> {
    // Where the last attempt stopped.
    let done = context.checkpoints().await?;
    let mut row = match done.last() {
        Some(last) => serde_json::from_slice(&last.bytes)?,
        None => 0,
    };
    while row < job.payload {
        row += 1;
        context.progress((100 * row / job.payload) as u8, format!("row {row}"));
        context.checkpoint(row.to_string()).await?;
        if row == 3 && context.attempt() == 1 {
            return Err(JobFailure::retry("the connection broke"));
        }
    }
    Ok(format!("{row} rows, {} of them by earlier attempts", done.len()))
}
// end

#[test]
fn the_document_contains_this_program_verbatim() {
    let page = include_str!("../../../docs/RECIPES.md");
    let here = include_str!("recipes.rs");
    let (_, program) = here.split_once("// page: import\n").unwrap();
    let (program, _) = program.split_once("// end\n").unwrap();
    assert!(page.contains(program), "RECIPES.md differs:\n{program}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_order_becomes_ready_when_confirmed() {
    let (resolver, folder) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let _publisher = start_publisher(folder.path(), resolver.cluster()).await;
    let orders = Path::new("/docs/orders").unwrap();
    place_order(&resolver.producer(), orders).await.unwrap();
    let stats = resolver.queues().stats("/docs/orders".parse().unwrap()).await.unwrap();
    let counts = stats.merged()[0].counts;
    assert_eq!((counts.prepared, counts.ready), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_attempt_resumes_from_checkpoints() {
    let (resolver, folder) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let _publisher = start_publisher(folder.path(), resolver.cluster()).await;
    let mut job = new_job(Path::new("/docs/import").unwrap(), "5");
    job.options.keep_result = true;
    job.options.backoff = Some(Backoff::Fixed(0));
    let producer = resolver.producer();
    let receipt = producer.enqueue(job).await.unwrap();
    let worker = resolver.worker().durable_subscribe("/docs/import");
    let handle = worker.shutdown_handle();
    let running = tokio::spawn(worker.run(import));
    let end = producer.wait(&receipt, Duration::from_secs(30)).await.unwrap();
    let longshore::JobEnd::Completed { result: Some(result) } = end else { panic!("{end:?}") };
    assert_eq!(&result[..], b"5 rows, 3 of them by earlier attempts");
    handle.drain();
    assert_eq!(running.await.unwrap().unwrap().failed, 1);
}
