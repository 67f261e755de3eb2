//! Job operations of programs: wait, follow, cancel, pause, and repair dead jobs. In one process
//! with real sockets and files.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore::{
    Action, AttemptOutcome, Backoff, CancelReason, DeathReason, FeedFrom, FeedNews, Filter, Glob,
    Job, JobContext, JobEnd, JobFailure, JobName, JobOptions, JobState, NewJob, Path,
    QueueSettings, Refusal, ShutdownHandle, new_job,
};
use longshore_tests::{Resolver, eventually, start_publisher};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(20);

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

fn job(queue: &str, payload: &'static str, options: JobOptions) -> NewJob {
    NewJob { options, ..new_job(path(queue), payload.as_bytes().to_vec()) }
}

/// A worker that returns payloads in capitals; it buries "bad" jobs, and runs "slow" jobs until
/// they are cancelled, which it reports to `stopped`.
async fn worker(
    resolver: &Resolver,
    stopped: mpsc::UnboundedSender<(CancelReason, Instant)>,
) -> (ShutdownHandle, JoinHandle<()>) {
    let worker = resolver.worker().await.durable_subscribe("/jobs/**").concurrency(4);
    let handle = worker.handle();
    let running = tokio::spawn(async move {
        let handler = move |job: Job<Bytes>, ctx: JobContext| {
            let stopped = stopped.clone();
            async move {
                let text = String::from_utf8(job.payload.to_vec()).map_err(JobFailure::bury)?;
                match text.as_str() {
                    "bad" => return Err(JobFailure::bury("bad payload").kind("BadPayload")),
                    "slow" => {
                        let reason = ctx.cancelled().await;
                        let _over = stopped.send((reason, Instant::now()));
                    }
                    _ => {}
                }
                Ok(text.to_uppercase())
            }
        };
        worker.run(handler).await.unwrap();
    });
    (handle, running)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_result_survives_a_publisher_restart() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let options = JobOptions { keep_result: true, ..JobOptions::default() };
    let receipt = resolver.producer().enqueue(job("/jobs/a", "hello", options)).await.unwrap();
    let queues = resolver.queues();
    let name = JobName::from(receipt.job);
    let waiting = tokio::spawn({
        let (queues, name) = (queues.clone(), name.clone());
        async move { queues.wait(&name, LONG).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    publisher.stop().await.unwrap();
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let (handle, running) = worker(&resolver, mpsc::unbounded_channel().0).await;
    let result = Some(Bytes::from_static(b"HELLO"));
    assert_eq!(waiting.await.unwrap().unwrap(), JobEnd::Completed { result: result.clone() });
    // An ended job answers at once.
    assert_eq!(queues.wait(&name, LONG).await.unwrap(), JobEnd::Completed { result });
    handle.drain();
    running.await.unwrap();
    publisher.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_timed_out_jobs_stop_within_a_second() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let (sender, mut stopped) = mpsc::unbounded_channel();
    let (handle, running) = worker(&resolver, sender).await;
    let (producer, queues) = (resolver.producer(), resolver.queues());
    let receipt = producer.enqueue(job("/jobs/a", "slow", JobOptions::default())).await.unwrap();
    let name = JobName::from(receipt.job);
    let state = || async { queues.job(&name).await.unwrap().job.state };
    eventually("it runs", || async { state().await == JobState::Running }).await;
    let cancelled_at = Instant::now();
    let acted = queues.act_on(Action::Cancel, std::slice::from_ref(&name), false).await.unwrap();
    assert!(acted.is_done(), "{acted:?}");
    let (reason, at) = stopped.recv().await.unwrap();
    assert_eq!(reason, CancelReason::Cancelled);
    assert!(at.duration_since(cancelled_at) < Duration::from_secs(1));
    let info = queues.job(&name).await.unwrap().job;
    assert_eq!(
        (info.state, info.attempts[0].outcome),
        (JobState::Cancelled, AttemptOutcome::Cancelled)
    );
    assert_eq!(info.result, None, "what the handler returned does not count");

    let limited =
        JobOptions { run_timeout_ms: Some(300), max_attempts: Some(1), ..JobOptions::default() };
    let receipt = producer.enqueue(job("/jobs/a", "slow", limited)).await.unwrap();
    assert_eq!(stopped.recv().await.unwrap().0, CancelReason::TimedOut);
    let end = queues.wait(&receipt.job.into(), LONG).await.unwrap();
    assert_eq!(end, JobEnd::Dead { reason: DeathReason::TimedOut, error: None });
    handle.drain();
    running.await.unwrap();
    publisher.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_jobs_are_grouped_by_error_and_replaced() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let (handle, running) = worker(&resolver, mpsc::unbounded_channel().0).await;
    let (producer, queues) = (resolver.producer(), resolver.queues());
    let receipt = producer.enqueue(job("/jobs/a", "bad", JobOptions::default())).await.unwrap();
    let end = queues.wait(&receipt.job.into(), LONG).await.unwrap();
    assert!(matches!(end, JobEnd::Dead { reason: DeathReason::Buried, .. }), "{end:?}");
    let groups = queues.dead_groups(Filter::of(glob("/jobs/**"))).await.unwrap().merged();
    let [group] = &groups.groups[..] else { panic!("{groups:?}") };
    assert_eq!((group.group.jobs, group.example()), (1, receipt.job));
    assert_eq!(group.group.error.as_ref().unwrap().kind, "BadPayload");

    let options = JobOptions { keep_result: true, ..JobOptions::default() };
    let replacement = job("/jobs/a", "better", options);
    let new = queues.replace(&receipt.job.into(), &replacement, LONG).await.unwrap();
    let result = Some(Bytes::from_static(b"BETTER"));
    assert_eq!(queues.wait(&new.into(), LONG).await.unwrap(), JobEnd::Completed { result });
    assert_eq!(queues.wait(&receipt.job.into(), LONG).await.unwrap(), JobEnd::Gone);
    assert_eq!(queues.job(&new.into()).await.unwrap().job.replaces, Some(receipt.job.id));
    handle.drain();
    running.await.unwrap();
    publisher.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_and_settings_apply_at_every_publisher() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let first = start_publisher(&data.path().join("a"), resolver.cluster()).await;
    let second = start_publisher(&data.path().join("b"), resolver.cluster()).await;
    let (producer, queues) = (resolver.producer(), resolver.queues());
    let changes = QueueSettings { max_attempts: Some(3), ..QueueSettings::default() };
    let set = queues.configure(path("/jobs/a"), changes.clone(), false).await.unwrap();
    assert_eq!(set.answers.len(), 2);
    assert!(set.answers.iter().all(|answered| answered.answer == Ok(changes.clone())));
    let paused = queues.pause(glob("/jobs/*")).await.unwrap();
    assert!(paused.is_whole() && paused.answers.len() == 2, "{paused:?}");
    producer.enqueue(job("/jobs/a", "paused", JobOptions::default())).await.unwrap();
    let closed = queues.close(glob("/jobs/*")).await.unwrap();
    assert!(closed.is_whole() && closed.answers.len() == 2, "{closed:?}");
    let refused = producer.enqueue(job("/jobs/a", "hello", JobOptions::default())).await;
    let error = format!("{:?}", refused.unwrap_err());
    assert!(error.contains(&format!("{:?}", Refusal::QueueClosed)), "{error}");
    queues.resume(glob("/jobs/*")).await.unwrap();
    queues.open(glob("/jobs/*")).await.unwrap();
    let receipt = producer.enqueue(job("/jobs/a", "hello", JobOptions::default())).await.unwrap();
    let info = queues.job(&receipt.job.into()).await.unwrap().job;
    assert_eq!(info.max_attempts, 3);
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_tracks_all_states_over_a_publisher_restart() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let (producer, queues) = (resolver.producer(), resolver.queues());
    let before = producer.enqueue(job("/jobs/a", "before", JobOptions::default())).await.unwrap();
    let mut feed = queues.feed(glob("/jobs/**"), FeedFrom::Snapshot);
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    let following = tokio::spawn({
        let known = known.clone();
        async move {
            while let Some(item) = feed.next().await {
                match item.news {
                    FeedNews::Jobs(jobs) => {
                        let jobs = jobs.into_iter().map(|job| (job.id, Some(job.state)));
                        known.lock().unwrap().extend(jobs);
                    }
                    FeedNews::Changes(changes) => {
                        let changes = changes.events.iter().map(|event| (event.job, event.state));
                        known.lock().unwrap().extend(changes);
                    }
                    FeedNews::Lost(loss) => panic!("nothing is lost here: {loss}"),
                    _ => {}
                }
            }
        }
    });
    let listed = || async { known.lock().unwrap().contains_key(&before.job.id) };
    eventually("the snapshot", listed).await;
    let (handle, running) = worker(&resolver, mpsc::unbounded_channel().0).await;
    let mut jobs = vec![before.job.id];
    let retried = JobOptions { backoff: Some(Backoff::Fixed(10)), ..JobOptions::default() };
    for text in ["one", "bad", "two"] {
        jobs.push(producer.enqueue(job("/jobs/a", text, retried.clone())).await.unwrap().job.id);
    }
    publisher.stop().await.unwrap();
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    jobs.push(producer.enqueue(job("/jobs/b", "three", retried)).await.unwrap().job.id);
    let (done, dead) = (Some(JobState::Completed), Some(JobState::Dead));
    let expected = [done, done, dead, done, done];
    let all_ended = || async {
        let known = known.lock().unwrap();
        let states: Vec<_> = jobs.iter().map(|id| known.get(id).copied().flatten()).collect();
        states == expected
    };
    eventually("the feed has reported all ends", all_ended).await;
    following.abort();
    handle.drain();
    running.await.unwrap();
    publisher.stop().await.unwrap();
    resolver.stop().await;
}
