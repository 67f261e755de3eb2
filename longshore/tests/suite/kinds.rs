//! Typed kinds of jobs, from the derive to the handler and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore::prelude::*;
use longshore::testing::TestSystem;
use longshore::{
    Attempt, IntoJob as _, JobEnd, ResultError, RunError, State, Unique, new_id, new_job,
};
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
        assert!(refused.to_string().contains("the payload makes no job"), "{refused}");
    }
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/tenants/acme/{what}")]
struct OfAcme {
    what: String,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/tenants/{tenant}/sms")]
struct Sms {
    tenant: String,
}

async fn of_acme(_: Payload<OfAcme>) -> Result<(), JobFailure> {
    Ok(())
}

async fn sms(_: Payload<Sms>) -> Result<(), JobFailure> {
    Ok(())
}

/// Otherwise a payload could choose another kind's handler.
#[tokio::test]
async fn kinds_that_match_the_same_path_are_refused() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let overlap = |first, second| RunError::KindsOverlap { first, second };
    let (a, b) = ("/tenants/acme/{what}", "/tenants/{tenant}/sms");
    let refused = system.worker().handle(report).handle(report).run().await.unwrap_err();
    assert_eq!(refused, overlap("/reports", "/reports"));
    let refused = system.worker().handle(of_acme).handle(sms).run().await.unwrap_err();
    assert_eq!(refused, overlap(a, b));
    let refused = system.worker().handle(sms).handle(of_acme).run().await.unwrap_err();
    assert_eq!(refused, overlap(b, a));
    assert_eq!(system.worker().state(()).run().await.unwrap_err(), RunError::NoHandler);
    Ok(())
}

#[tokio::test]
async fn a_payload_of_another_type_is_buried() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let bad = longshore::new_job(longshore::Path::new("/reports")?, "{}");
    system.producer().enqueue(bad).await?;
    let worker = system.worker().handle(report);
    let drained = system.drain(worker, |worker| worker.run()).await?;
    let error = drained.dead[0].error.as_ref().map(|error| error.kind.as_str());
    assert_eq!(error, Some("PayloadNotDecoded"));
    Ok(())
}

#[tokio::test]
async fn options_of_an_enqueue_reach_the_publisher() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let id = longshore::new_id();
    let producer = system.producer();
    let enqueue = producer.enqueue(mail("acme", "ada@example.com"));
    let receipt = enqueue.id(id).priority(7).max_attempts(9).header("lang", "en").await?;
    let job = system.queues().job(receipt.job).await?.job;
    assert_eq!((job.id, job.priority, job.max_attempts), (id, 7, 9));
    assert_eq!(job.headers.as_ref().and_then(|headers| headers.get("lang")), Some("en"));
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(
    path = "/tenants/{tenant}/transfers",
    order_key = "account-{account}",
    limit_key = "bank",
    cost = 2,
    fair_key = "{tenant}",
    fair_weight = 5,
    idempotency_key = "{account}/{number}",
    unique = "start"
)]
struct Transfer {
    tenant: String,
    account: u64,
    number: u32,
}

#[test]
fn a_kind_gives_its_jobs_keys_from_their_fields() {
    let transfer = Transfer { tenant: "acme".to_owned(), account: 17, number: 3 };
    let job = transfer.into_job(new_id).unwrap();
    let unique = Unique::by_payload().until_start();
    let expected = new_job(job.path.clone(), job.payload.clone())
        .unique(unique)
        .order_key("account-17")
        .limit_key("bank")
        .cost(2)
        .fair_key("acme", 5)
        .idempotency_key("17/3");
    assert_eq!(job.path.as_str(), "/tenants/acme/transfers");
    assert_eq!(job.keys, expected.keys);
}
