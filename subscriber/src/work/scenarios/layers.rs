//! Layers around handlers: what they receive, the effect of their errors and panics, and that the
//! worker continues after them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio_util::sync::CancellationToken;
use tower::util::BoxCloneService;
use tower::{Service, ServiceBuilder, ServiceExt};

use super::*;
use crate::middleware::ConcurrencyByKey;
use crate::{Completion, JobRequest};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A handler with any layers, boxed.
type Boxed = BoxCloneService<JobRequest, Completion, BoxError>;

async fn settle_each(publisher: &mut FakePublisher, payloads: &[&str]) -> Vec<(Verdict, String)> {
    let (mut link, _) = publisher.attach(1, &[]).await;
    let mut received = Vec::new();
    for (token, payload) in payloads.iter().enumerate() {
        link.granted(token as u32 + 1).await;
        link.deliver(&[(token as u64 + 1, payload)]);
        let batch = link.settle().await;
        let [(_, verdict)] = verdicts(&batch)[..] else { panic!("{batch:?}") };
        received.push((verdict, String::from_utf8_lossy(batch.body()).into_owned()));
        link.accept(&batch);
    }
    received
}

#[tokio::test]
async fn a_tower_timeout_fails_the_attempt() {
    let mut publisher = FakePublisher::start(1).await;
    let state = Arc::new(());
    let handler_state = state.clone();
    let hangs = InPlace::new(move |job: Job<String>, _: JobContext| {
        let attempt_state = handler_state.clone();
        async move {
            if job.payload == "hangs" {
                std::future::pending::<()>().await;
            }
            drop(attempt_state);
            Ok(job.payload)
        }
    });
    let service = ServiceBuilder::new().timeout(Duration::from_millis(200)).service(hangs);
    let _worker = start_worker(ONE_AT_A_TIME, &[&publisher], service);
    let received = settle_each(&mut publisher, &["hangs", "fine"]).await;
    assert!(matches!(received[0].0, Verdict::Fail(_)), "{received:?}");
    assert!(
        received[0].1.contains("Elapsed") && received[0].1.contains("timed out"),
        "{received:?}"
    );
    assert!(matches!(received[1].0, Verdict::Complete(Some(_))), "{received:?}");
    assert_eq!(
        Arc::strong_count(&state),
        2,
        "the test's and the handler's: the attempt's is dropped"
    );
}

#[tokio::test]
async fn decisions_survive_layers_that_box_errors() {
    let mut publisher = FakePublisher::start(1).await;
    let decides = InPlace::new(|job: Job<String>, _: JobContext| async move {
        match job.payload.as_str() {
            "bury" => Err(JobFailure::bury("never").kind("Never")),
            "snooze" => Err(JobFailure::Snooze(Duration::from_secs(2))),
            "release" => Err(JobFailure::Release),
            _ => Err::<(), _>(JobFailure::retry("again").kind("Again")),
        }
    });
    let service = ServiceBuilder::new()
        .timeout(Duration::from_secs(30))
        .concurrency_limit(1)
        .map_err(|error: JobFailure| BoxError::from(error))
        .service(decides);
    let _worker = start_worker(ONE_AT_A_TIME, &[&publisher], service);
    let received = settle_each(&mut publisher, &["bury", "snooze", "release", "retry"]).await;
    assert!(
        matches!(received[0].0, Verdict::Bury(_)) && received[0].1.contains("Never"),
        "{received:?}"
    );
    assert_eq!(received[1].0, Verdict::Snooze(2_000));
    assert_eq!(received[2].0, Verdict::Release);
    assert!(
        matches!(received[3].0, Verdict::Fail(_)) && received[3].1.contains("Again"),
        "{received:?}"
    );
}

#[tokio::test]
async fn a_layer_may_change_request_and_response() {
    let mut publisher = FakePublisher::start(1).await;
    let shout = InPlace::new(|job: Job<String>, _: JobContext| async move { Ok(job.payload) });
    let service = ServiceBuilder::new()
        .map_request(|mut request: JobRequest| {
            assert_eq!((request.context.attempt(), request.job.path.as_str()), (1, "/jobs/x"));
            assert_eq!((request.job.id, request.context.token()), (request.context.id(), Token(1)));
            request.job.payload = request.job.payload.to_ascii_uppercase().into();
            request
        })
        .map_response(|done: Completion| Completion {
            result: done.result.map(|result| [&result[..], b"!"].concat().into()),
        })
        .service(shout);
    let _worker = start_worker(ONE_AT_A_TIME, &[&publisher], service);
    let received = settle_each(&mut publisher, &["abc"]).await;
    assert!(matches!(received[0].0, Verdict::Complete(Some(_))), "{received:?}");
    assert!(received[0].1.contains("ABC!"), "{received:?}");
}

#[tokio::test]
async fn an_oversized_result_of_a_layer_buries_the_job() {
    let mut publisher = FakePublisher::start(1).await;
    let service = ServiceBuilder::new()
        .map_response(|_| Completion { result: Some(vec![0; 1024 * 1024 + 1].into()) })
        .service(InPlace::new(|_: Job<Bytes>, _: JobContext| async { Ok(()) }));
    let _worker = start_worker(ONE_AT_A_TIME, &[&publisher], service);
    let received = settle_each(&mut publisher, &["x"]).await;
    assert!(matches!(received[0].0, Verdict::Bury(_)) && received[0].1.contains("ResultTooLarge"));
}

/// Panics or fails at a given step on its first use, and is unusable after that.
struct Breaks {
    fault: &'static str,
    clones: Arc<AtomicUsize>,
    broken: bool,
    inner: Boxed,
}

impl Clone for Breaks {
    fn clone(&self) -> Breaks {
        self.clones.fetch_add(1, Ordering::Relaxed);
        let (fault, clones, inner) = (self.fault, self.clones.clone(), self.inner.clone());
        Breaks { fault, clones, broken: false, inner }
    }
}

impl Drop for Breaks {
    fn drop(&mut self) {
        assert!(!self.broken || self.fault != "drop panics", "this panic is the second");
    }
}

impl Service<JobRequest> for Breaks {
    type Response = Completion;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Completion, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        assert!(!self.broken, "a broken service is used again");
        // The first clone breaks: with one handler task that is the clone for the first job.
        self.broken = self.clones.load(Ordering::Relaxed) == 2;
        match self.fault {
            "ready panics" if self.broken => panic!("ready panics"),
            "ready fails" if self.broken => Poll::Ready(Err("ready fails".into())),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        match self.fault {
            "call panics" | "drop panics" if self.broken => panic!("{}", self.fault),
            "future panics" if self.broken => Box::pin(async { panic!("future panics") }),
            _ => Box::pin(self.inner.clone().oneshot(request)),
        }
    }
}

#[tokio::test]
async fn a_broken_layer_fails_one_attempt_and_is_replaced() {
    for fault in ["ready panics", "ready fails", "call panics", "future panics", "drop panics"] {
        let mut publisher = FakePublisher::start(1).await;
        let fine = InPlace::new(|job: Job<String>, _: JobContext| async move { Ok(job.payload) });
        let inner = fine.map_err(BoxError::from).boxed_clone();
        let clones = Arc::new(AtomicUsize::new(0));
        let service = Breaks { fault, clones: clones.clone(), broken: false, inner };
        let worker = start_worker(ONE_AT_A_TIME, &[&publisher], service);
        let received = settle_each(&mut publisher, &["abc", "def", "ghi"]).await;
        assert!(
            matches!(received[0].0, Verdict::Fail(_)) && received[0].1.contains(fault),
            "{received:?}"
        );
        assert!(matches!(received[1].0, Verdict::Complete(_)), "{fault}: {received:?}");
        assert!(matches!(received[2].0, Verdict::Complete(_)), "{fault}: {received:?}");
        worker.handle.drain();
        let report = worker.report().await;
        let panics = u64::from(fault.ends_with("panics"));
        assert_eq!((report.completed, report.failed, report.panicked), (2, 1, panics), "{fault}");
        // One clone for the handler task, one for its first job, one after the break, and none per
        // job.
        assert_eq!(clones.load(Ordering::Relaxed), 3, "{fault}");
    }
}

#[tokio::test]
async fn layers_wrap_blocking_handlers() {
    let mut publisher = FakePublisher::start(1).await;
    let blocks = Blocking::new(|job: Job<String>, _: JobContext| match job.payload.as_str() {
        "panic" => panic!("on purpose"),
        text => Ok(text.len().to_string()),
    });
    let service = ServiceBuilder::new().timeout(Duration::from_secs(30)).service(blocks);
    let _worker = start_worker(ONE_AT_A_TIME, &[&publisher], service);
    let received = settle_each(&mut publisher, &["panic", "abc"]).await;
    assert!(matches!(received[0].0, Verdict::Fail(_)) && received[0].1.contains("on purpose"));
    assert!(matches!(received[1].0, Verdict::Complete(Some(_))), "{received:?}");
}

#[tokio::test]
async fn a_blocking_handler_takes_no_job_until_it_returns() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (blocked, end_attempts) = (parking_lot::Mutex::new(blocked), CancellationToken::new());
    let (begin, mut begun) = mpsc::unbounded_channel();
    let blocks = Blocking::new(move |_: Job<Bytes>, _: JobContext| {
        begin.send(()).map_err(JobFailure::retry)?;
        blocked.lock().recv().map_err(JobFailure::retry)
    });
    let end = end_attempts.clone();
    let service = tower::service_fn(move |request: JobRequest| {
        let (mut blocks, end) = (blocks.clone(), end.clone());
        async move {
            tokio::select! {
                ended = blocks.call(request) => ended,
                () = end.cancelled() => Err(JobFailure::retry("it takes too long")),
            }
        }
    });
    let limits = Limits { prefetch: 1, ..ONE_AT_A_TIME };
    let (_publisher, _worker, mut link) = start_linked_worker(limits, service).await;
    link.deliver(&[(1, "x")]);
    assert_eq!(link.started().await, [1]);
    within(begun.recv()).await.unwrap();
    end_attempts.cancel();
    let failed = link.settle().await;
    assert!(matches!(verdicts(&failed)[..], [(1, Verdict::Fail(_))]), "{failed:?}");
    link.accept(&failed);
    link.deliver_with_lease(2, 900);
    assert_eq!(link.renewal().await, [2], "it waits for the only handler task");
    assert_eq!(link.credits(), 2, "the first job has its credit");
    unblock.send(()).unwrap();
    assert_eq!(link.started().await, [2]);
    link.granted(3).await;
}

#[tokio::test]
async fn a_key_is_in_use_until_its_blocking_handler_returns() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = parking_lot::Mutex::new(blocked);
    let (begin, mut begun) = mpsc::unbounded_channel();
    let blocks = Blocking::new(move |job: Job<String>, _: JobContext| {
        if job.payload == "a blocks" {
            blocked.lock().recv().map_err(JobFailure::retry)?;
        }
        begin.send(job.payload).map_err(JobFailure::retry)
    });
    let by_letter = ConcurrencyByKey::new(1, |request: &JobRequest| {
        request.job.payload.first().map(|letter| letter.to_string())
    });
    let service =
        ServiceBuilder::new().layer(by_letter).timeout(Duration::from_millis(200)).service(blocks);
    let limits = Limits { concurrency: 3, ..ONE_AT_A_TIME };
    let (_publisher, _worker, mut link) = start_linked_worker(limits, service).await;
    link.deliver(&[(1, "a blocks")]);
    let failed = link.settle().await;
    assert!(matches!(verdicts(&failed)[..], [(1, Verdict::Fail(_))]), "{failed:?}");
    link.accept(&failed);
    link.deliver(&[(2, "a waits"), (3, "b")]);
    let other = link.settle().await;
    assert_eq!(verdicts(&other), [(3, Verdict::Complete(None))]);
    link.accept(&other);
    unblock.send(()).unwrap();
    let waited = link.settle().await;
    assert_eq!(verdicts(&waited), [(2, Verdict::Complete(None))]);
    let order = [begun.recv().await, begun.recv().await, begun.recv().await];
    assert_eq!(order.map(Option::unwrap), ["b", "a blocks", "a waits"]);
}

/// The layers as `Subscription::layer` stacks them.
#[tokio::test]
async fn the_first_layer_is_the_outermost() {
    let seen: Arc<parking_lot::Mutex<Vec<&'static str>>> = Arc::default();
    let named = |name: &'static str| {
        let seen = seen.clone();
        tower_layer::layer_fn(move |inner: BoxCloneService<JobRequest, Completion, Infallible>| {
            let seen = seen.clone();
            inner
                .map_request(move |request: JobRequest| {
                    seen.lock().push(name);
                    request
                })
                .boxed_clone()
        })
    };
    let worker = crate::Worker::connect("127.0.0.1:1");
    let subscription =
        worker.durable_subscribe("/jobs/**").layer(named("outer")).layer(named("inner"));
    let leaf = tower::service_fn(|_: JobRequest| async { Ok(Completion::default()) });
    let service = subscription.layered(leaf.boxed_clone());
    let mut publisher = FakePublisher::start(1).await;
    let _worker = start_worker(ONE_AT_A_TIME, &[&publisher], service.map_err(BoxError::from));
    settle_each(&mut publisher, &["x"]).await;
    assert_eq!(*seen.lock(), ["outer", "inner"]);
}
