//! Handlers of kinds: their arguments, codecs, layers, threads and fallbacks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use longshore::embedded::System;
use longshore::middleware::{AttemptEnd, ConcurrencyByKey, JobRequest, Observe, Timeout};
use longshore::prelude::*;
use longshore::testing::{DrainReport, TestSystem};
use longshore::{
    Attempt, AttemptParts, CancelReason, Codec, CodecError, FromAttempt, Headers, KindOptions,
    RunError, State, StatePart,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Barrier, mpsc};

const LIMIT: Duration = Duration::from_secs(30);

/// The path and the error's kind and message of each dead letter.
fn dead(drained: &DrainReport) -> Vec<(String, String, String)> {
    let error = |job: &longshore::JobInfo| {
        let error = job.error.clone().unwrap_or_default();
        (job.path.to_string(), error.kind, error.message)
    };
    drained.dead.iter().map(error).collect()
}

/// [postcard](https://docs.rs/postcard): compact, not self-describing.
struct Postcard;

impl<T: Serialize + DeserializeOwned> Codec<T> for Postcard {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        postcard::to_stdvec(value).map(Bytes::from).map_err(CodecError::new)
    }

    fn decode(bytes: &Bytes) -> Result<T, CodecError> {
        postcard::from_bytes(bytes).map_err(CodecError::new)
    }
}

/// MessagePack with the names of fields.
struct MessagePack;

impl<T: Serialize + DeserializeOwned> Codec<T> for MessagePack {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        rmp_serde::to_vec_named(value).map(Bytes::from).map_err(CodecError::new)
    }

    fn decode(bytes: &Bytes) -> Result<T, CodecError> {
        rmp_serde::from_slice(bytes).map_err(CodecError::new)
    }
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/sum/{name}", codec = Postcard, output = u64, keep_result, timeout = "90s")]
struct Sum<T> {
    name: String,
    numbers: Vec<T>,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/count", codec = MessagePack, output = HashMap<(u8, u8), u64>, keep_result)]
struct Count(Vec<(u8, u8)>);

async fn sum(Payload(sum): Payload<Sum<u32>>) -> Result<u64, JobFailure> {
    Ok(sum.numbers.into_iter().map(u64::from).sum())
}

/// A map whose keys are pairs, which JSON does not have.
async fn count(Payload(Count(pairs)): Payload<Count>) -> Result<HashMap<(u8, u8), u64>, String> {
    let mut counts = HashMap::new();
    pairs.into_iter().for_each(|pair| *counts.entry(pair).or_default() += 1);
    Ok(counts)
}

#[tokio::test]
async fn a_codec_writes_payload_and_output_of_a_generic_kind() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let worker = system.worker().handle(sum).handle(count);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());
    let producer = system.producer();
    let job = Sum { name: "odd".to_owned(), numbers: vec![1u32, 3, 5] };
    assert_eq!(producer.enqueue(job).result(LIMIT).await?, 9);
    let counts = producer.enqueue(Count(vec![(1, 2), (1, 2)])).result(LIMIT).await?;
    assert_eq!(counts, HashMap::from([((1, 2), 2)]));
    assert_eq!(<Sum<u32> as JobKind>::options().run_timeout_ms, Some(90_000));
    stop.drain();
    working.await??;
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/unwritten", output = HashMap<(u8, u8), u8>, max_attempts = 1, keep_result)]
struct Unwritten;

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/long", output = String, max_attempts = 1, keep_result)]
struct Long;

#[tokio::test]
async fn an_output_that_cannot_be_stored_fails_its_job() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    system.producer().enqueue(Unwritten).await?;
    system.producer().enqueue(Long).await?;
    let unwritten = |_: Payload<Unwritten>| async { Ok::<_, JobFailure>([((0, 1), 2)].into()) };
    let long = |_: Payload<Long>| async { Ok::<_, JobFailure>("x".repeat(1 << 20)) };
    let worker = system.worker().handle(unwritten).handle(long);
    let mut dead = dead(&system.drain(worker, |worker| worker.run()).await?);
    dead.sort();
    let kinds: Vec<&str> = dead.iter().map(|(_, kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["ResultTooLarge", "OutputNotEncoded"], "{dead:?}");
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/mail", max_attempts = 1)]
struct Mail;

/// What handlers share: parts of it are their arguments.
struct App {
    name: &'static str,
    calls: Arc<AtomicU32>,
}

impl StatePart<&'static str> for App {
    fn part(&self) -> &'static str {
        self.name
    }
}

impl StatePart<Arc<AtomicU32>> for App {
    fn part(&self) -> Arc<AtomicU32> {
        self.calls.clone()
    }
}

/// A header, without which no handler runs.
struct Tenant(String);

impl FromAttempt<App> for Tenant {
    type Error = anyhow::Error;

    fn from_attempt(attempt: &AttemptParts, app: &App) -> anyhow::Result<Tenant> {
        match attempt.headers.get("tenant") {
            Some(tenant) => Ok(Tenant(format!("{tenant} of {}", app.name))),
            None => anyhow::bail!(JobFailure::bury("a mail without a tenant").kind("NoTenant")),
        }
    }
}

#[tokio::test]
async fn a_handler_has_up_to_six_arguments_after_its_payload() -> anyhow::Result<()> {
    let (system, calls) = (TestSystem::start().await?, Arc::new(AtomicU32::new(0)));
    system.producer().enqueue(Mail).header("tenant", "acme").await?;
    system.producer().enqueue(Mail).await?;
    let mail = |Payload(Mail): Payload<Mail>,
                State(calls): State<Arc<AtomicU32>>,
                Tenant(tenant): Tenant,
                job: JobContext,
                headers: Headers,
                Attempt(attempt): Attempt,
                path: longshore::Path| async move {
        calls.fetch_add(1, Ordering::SeqCst);
        assert_eq!((tenant.as_str(), attempt, job.attempt()), ("acme of app", 1, 1));
        assert_eq!((headers.get("tenant"), path.as_str()), (Some("acme"), "/jobs/mail"));
        Ok::<_, JobFailure>(())
    };
    let app = App { name: "app", calls: calls.clone() };
    let drained = system.drain(system.worker().state(app).handle(mail), |w| w.run()).await?;
    assert_eq!((drained.completed, calls.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(dead(&drained)[0].1, "NoTenant");
    Ok(())
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/render/{what}", max_attempts = 1, output = String, keep_result)]
struct Render {
    what: String,
}

fn render(Payload(job): Payload<Render>, State(by): State<&'static str>) -> anyhow::Result<String> {
    assert_ne!(job.what, "panic", "cannot be drawn");
    Ok(format!("{} by {by}", job.what))
}

fn picture(what: &str) -> Render {
    Render { what: what.to_owned() }
}

#[tokio::test]
async fn a_blocking_handler_has_arguments_and_its_panic_has_a_place() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let worker = system.worker().state("ada").handle_blocking(render);
    let (stop, working) = (worker.shutdown_handle(), tokio::spawn(worker.run()));
    assert_eq!(system.producer().enqueue(picture("tree")).result(LIMIT).await?, "tree by ada");
    stop.drain();
    working.await??;

    system.producer().enqueue(picture("panic")).await?;
    let worker = system.worker().state("ada").handle_blocking(render);
    let drained = system.drain(worker, |worker| worker.run()).await?;
    let (_, kind, message) = &dead(&drained)[0];
    assert!(kind.starts_with("Panic at ") && kind.contains("handlers.rs:"), "{kind}");
    assert!(message.contains("cannot be drawn"), "{message}");
    assert_eq!(drained.worker.panicked, 1);
    Ok(())
}

/// A dropped run does not wait for a thread, and the handler is notified.
#[tokio::test]
async fn a_blocking_handler_sees_that_its_run_was_dropped() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    system.producer().enqueue(Mail).await?;
    let (sender, mut events) = mpsc::unbounded_channel();
    let endless = move |_: Payload<Mail>, job: JobContext| {
        let _ = sender.send(None);
        while !job.is_cancelled() {
            std::thread::yield_now();
        }
        let _ = sender.send(job.cancel_reason());
        Ok::<_, JobFailure>(())
    };
    let working = tokio::spawn(system.worker().handle_blocking(endless).run());
    assert_eq!(events.recv().await, Some(None));
    working.abort();
    let reason = tokio::time::timeout(LIMIT, events.recv()).await?;
    assert_eq!(reason, Some(Some(CancelReason::Shutdown)));
    Ok(())
}

#[tokio::test]
async fn layers_of_a_kind_wrap_no_other_kind() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    system.producer().enqueue(Mail).await?;
    system.producer().enqueue(picture("tree")).await?;
    let hangs = |_: Payload<Mail>| std::future::pending::<Result<(), JobFailure>>();
    let (sender, mut errors) = mpsc::unbounded_channel();
    let (counter, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (mails, all) = (counter.clone(), ends.clone());
    let options = KindOptions::new()
        .layer(Observe::new(move |_: &AttemptEnd<'_>| {
            mails.fetch_add(1, Ordering::SeqCst);
            panic!("an observer changes nothing");
        }))
        .layer(Timeout::after(Duration::from_millis(20)));
    let worker = system
        .worker()
        .state("ada")
        .on_error(move |job, failure| {
            let JobFailure::Retry(error) = failure else { panic!("{failure:?}") };
            let _ = sender.send((job.path().to_string(), job.attempt(), error.kind.clone()));
        })
        .layer(Observe::new(move |_: &AttemptEnd<'_>| {
            all.fetch_add(1, Ordering::SeqCst);
        }))
        .handle_with(hangs, options)
        .handle_blocking_with(render, KindOptions::new().weight(3));
    let drained = system.drain(worker, |worker| worker.run()).await?;
    assert_eq!((drained.completed, drained.failed, drained.worker.panicked), (1, 1, 0));
    assert_eq!(errors.recv().await, Some(("/jobs/mail".to_owned(), 1, "Timeout".to_owned())));
    assert_eq!(errors.recv().await, None, "a completed job is no error");
    assert_eq!((counter.load(Ordering::SeqCst), ends.load(Ordering::SeqCst)), (1, 2));
    Ok(())
}

/// The capped kind could take up all concurrency; a barrier opens only if the other runs beside it.
#[tokio::test]
async fn a_capped_kind_leaves_room_for_others() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    for n in 0..8 {
        system.producer().enqueue(picture(&n.to_string())).await?;
    }
    system.producer().enqueue(Mail).await?;
    let (all, running) = (Arc::new(Barrier::new(3)), Arc::new(AtomicU32::new(0)));
    let (met, begun) = (all.clone(), Arc::new(AtomicU32::new(0)));
    let render = move |Payload(job): Payload<Render>| {
        let (all, running, begun) = (all.clone(), running.clone(), begun.clone());
        async move {
            anyhow::ensure!(running.fetch_add(1, Ordering::SeqCst) < 2, "three at once");
            if begun.fetch_add(1, Ordering::SeqCst) < 2 {
                all.wait().await;
            }
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(job.what)
        }
    };
    let mail = move |_: Payload<Mail>| {
        let met = met.clone();
        async move {
            met.wait().await;
            Ok::<_, JobFailure>(())
        }
    };
    let worker = system.worker().handle_with(render, KindOptions::new().cap(2)).handle(mail);
    let drained = system.drain(worker, |worker| worker.run()).await?;
    assert_eq!(drained.completed, 9, "{:?}", dead(&drained));
    Ok(())
}

/// Two keys run at once, or the barrier never opens; two attempts of one key never do.
#[tokio::test]
async fn attempts_with_one_key_run_one_after_another() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    for what in ["a", "a", "b", "b"] {
        system.producer().enqueue(picture(what)).await?;
    }
    let (both, running) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU32::new(0)));
    let render = move |Payload(job): Payload<Render>| {
        let (both, running) = (both.clone(), running.clone());
        async move {
            let one = if job.what == "a" { 1 } else { 1 << 16 };
            let before = running.fetch_add(one, Ordering::SeqCst);
            anyhow::ensure!(before & (one * 0xffff) == 0, "{} runs twice", job.what);
            both.wait().await;
            running.fetch_sub(one, Ordering::SeqCst);
            Ok(job.what)
        }
    };
    let by_path = ConcurrencyByKey::new(1, |job: &JobRequest| Some(job.job.path.to_string()));
    let options = KindOptions::new().layer(by_path.clone());
    let worker = system.worker().handle_with(render, options);
    let drained = system.drain(worker, |worker| worker.run()).await?;
    assert_eq!(drained.completed, 4, "{:?}", dead(&drained));
    assert!(format!("{by_path:?}").contains("keys: 0"), "{by_path:?}");
    Ok(())
}

#[tokio::test]
async fn a_fallback_takes_the_jobs_of_no_kind() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    system.producer().enqueue(Mail).await?;
    system.producer().enqueue(new_job(longshore::Path::new("/jobs/fax")?, "x")).await?;
    let unknown = |job: Job<Bytes>, _: JobContext| async move {
        Err::<(), _>(JobFailure::bury(job.path).kind("UnknownKind"))
    };
    let mail = |_: Payload<Mail>| async { Ok::<_, JobFailure>(()) };
    let worker = system.worker().state(()).fallback("/jobs/**", unknown).handle(mail);
    let drained = system.drain(worker, |worker| worker.run()).await?;
    assert_eq!(drained.completed, 1);
    let text = |text: &str| text.to_owned();
    assert_eq!(dead(&drained), [(text("/jobs/fax"), text("UnknownKind"), text("/jobs/fax"))]);

    let invalid = system.worker().state(()).fallback("jobs", unknown).run().await;
    assert!(matches!(invalid, Err(RunError::Patterns(_))), "{invalid:?}");
    Ok(())
}

#[tokio::test]
async fn a_subscription_that_is_not_durable_ends_with_its_publisher() -> anyhow::Result<()> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let worker = system.worker().subscribe("/jobs/**");
    let stats = worker.stats();
    let working = tokio::spawn(worker.run(|_: Job<String>, _: JobContext| async { Ok(()) }));
    tokio::time::timeout(LIMIT, stats.ready()).await?;
    system.stop().await?;
    let ended = tokio::time::timeout(LIMIT, working).await??;
    assert!(matches!(ended, Err(RunError::Dead(_))), "{ended:?}");
    Ok(())
}
