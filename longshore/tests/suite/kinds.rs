//! Typed kinds of jobs, from the derive to the handler and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore::prelude::*;
use longshore::testing::TestSystem;
use longshore::{Attempt, JobEnd, ResultError, RunError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/tenants/{tenant}/mail", max_attempts = 2, backoff = "fixed:1h", output = u64)]
struct Mail {
    tenant: String,
    to: String,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/reports")]
struct Report;

/// What the handlers share.
#[derive(Clone, Default)]
struct Sent(Arc<AtomicU64>);

async fn send(Payload(mail): Payload<Mail>, State(sent): State<Sent>) -> anyhow::Result<u64> {
    anyhow::ensure!(mail.to.contains('@'), "nobody is called {}", mail.to);
    Ok(sent.0.fetch_add(1, Ordering::SeqCst) + 1)
}

async fn report(
    Payload(Report): Payload<Report>,
    Attempt(attempt): Attempt,
) -> Result<(), JobFailure> {
    assert_eq!(attempt, 1);
    Err(JobFailure::bury("there is nothing to report"))
}

fn mail(tenant: &str, to: &str) -> Mail {
    Mail { tenant: tenant.to_owned(), to: to.to_owned() }
}

#[tokio::test]
async fn each_job_goes_to_the_handler_of_its_kind() -> anyhow::Result<()> {
    let (system, sent) = (TestSystem::start().await?, Sent::default());
    let producer = system.producer();
    producer.enqueue(mail("acme", "ada@example.com")).await?;
    producer.enqueue(mail("initech", "bob")).await?;
    producer.enqueue(Report).delay(Duration::from_secs(24 * 3_600)).await?;

    let worker = || system.worker().state(sent.clone()).handle(send).handle(report);
    let drained = system.drain(worker(), |worker| worker.run()).await?;
    assert_eq!((drained.completed, drained.failed), (1, 1));
    assert_eq!(sent.0.load(Ordering::SeqCst), 1);

    // The kind's back-off and its attempts count, and the day's delay.
    system.advance(Duration::from_secs(3_600)).await?;
    let drained = system.drain(worker(), |worker| worker.run()).await?;
    let [dead] = &drained.dead[..] else { panic!("{drained:?}") };
    assert_eq!(dead.path.as_str(), "/tenants/initech/mail");
    assert_eq!(
        dead.error.as_ref().map(|error| error.message.as_str()),
        Some("nobody is called bob")
    );
    system.advance(Duration::from_secs(23 * 3_600)).await?;
    let drained = system.drain(worker(), |worker| worker.run()).await?;
    assert_eq!(drained.dead[0].path.as_str(), "/reports");
    Ok(())
}

#[tokio::test]
async fn a_result_comes_back_as_its_kind_returns_it() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let worker = system.worker().state(Sent::default()).handle(send).handle(report);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());

    let limit = Duration::from_secs(30);
    let producer = system.producer();
    assert_eq!(producer.enqueue(mail("acme", "ada@example.com")).result(limit).await?, 1);
    let Err(ResultError::Ended { end: JobEnd::Dead { .. }, .. }) =
        producer.enqueue(Report).result(limit).await
    else {
        panic!("a buried job has no result")
    };
    stop.drain();
    assert_eq!(working.await??.completed, 1);
    Ok(())
}

#[tokio::test]
async fn a_payload_that_would_reach_another_queue_is_refused() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    for tenant in ["", "acme/mail", ".."] {
        let refused = system.producer().enqueue(mail(tenant, "ada@example.com")).await.unwrap_err();
        assert!(refused.to_string().contains("the job cannot be made"), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn two_handlers_of_one_path_are_an_error_at_the_start() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let refused = system.worker().handle(report).handle(report).run().await.unwrap_err();
    assert_eq!(refused, RunError::KindTwice { template: "/reports" });
    Ok(())
}
