//! The span that a handler runs in, and the trace of its job.

use std::io;
use std::sync::LazyLock;

use longshore_protocol::limits::RESULT_BYTES_MAX;
use longshore_protocol::{Headers, JobId, NewJob, Path, TraceContext};
use longshore_transport::LogLimit;
use parking_lot::Mutex;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;
use tracing_subscriber::fmt::format::FmtSpan;

use super::*;
use crate::JobFailure;
use crate::work::handler::output::settle_of;
use crate::work::handler_task::log_failure;

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A test installs a subscriber for its own thread. With a single subscriber in the process,
/// `tracing` queries only the subscriber of the thread that reaches a span first, and caches its
/// interest: another test without a subscriber would disable the span for all. With two permanent
/// dispatchers, it queries every subscriber.
pub(super) fn keep_spans_enabled() {
    static INACTIVE: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::default())));
    LazyLock::force(&INACTIVE);
}

/// The captured log.
#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogLines {
    fn capture(&self) -> tracing::subscriber::DefaultGuard {
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_thread_names(true)
            .with_span_events(FmtSpan::ENTER | FmtSpan::CLOSE)
            .with_writer(move || lines.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn with(&self, text: &str) -> String {
        let lines = String::from_utf8(self.0.lock().clone()).unwrap();
        let line = lines.lines().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no line contains {text:?} in {lines}")).to_owned()
    }
}

fn traced_entry(trace: Option<&TraceContext>) -> Bytes {
    let mut job = NewJob::new(Path::new("/jobs/x").unwrap(), JobId([9; 16]), "x");
    if let Some(trace) = trace {
        job = job.traced(trace);
    }
    fake_publisher::entry_of(&job)
}

#[tokio::test]
async fn a_handler_runs_in_a_span_with_job_and_trace() {
    let lines = LogLines::default();
    let _capture = lines.capture();
    let mut publisher = FakePublisher::start(1).await;
    let _worker = start_worker(
        ONE_AT_A_TIME,
        &[&publisher],
        handler(|_: Job<Bytes>, ctx: JobContext| async move {
            tracing::info!("first");
            tokio::task::yield_now().await;
            tracing::info!("second");
            match ctx.trace_context() {
                Some(_) => panic!("on purpose"),
                None => Ok(()),
            }
        }),
    );
    let trace = TraceContext::parse(TRACEPARENT, Some("a=1")).unwrap();
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.granted(1).await;
    link.deliver_entries([(11, traced_entry(Some(&trace)))], 30_000);
    let batch = link.settle().await;
    link.accept(&batch);
    for received in ["first", "second", "an attempt failed"] {
        let line = lines.with(received);
        let id = JobId([9; 16]);
        let span = format!("job{{id={id} path=/jobs/x attempt=1 token={}", Token(11));
        let ids = "trace_id=4bf92f3577b34da6a3ce929d0e0e4736 parent_id=00f067aa0ba902b7";
        assert!(line.contains(&span) && line.contains(ids), "{line}");
    }

    lines.0.lock().clear();
    link.granted(2).await;
    link.deliver_entries([(12, traced_entry(None))], 30_000);
    link.settle().await;
    let line = lines.with("first");
    assert!(line.contains("attempt=1") && !line.contains("trace_id"), "{line}");
    // It ends with the job, though the task runs no other.
    assert!(lines.with("close time.busy").contains(&format!("token={}", Token(12))));
}

#[tokio::test]
async fn a_blocking_handler_runs_in_the_span_too() {
    let lines = LogLines::default();
    let _capture = lines.capture();
    let blocks = Blocking::new(|_: Job<Bytes>, _: JobContext| {
        Ok(std::thread::current().name().unwrap_or_default().to_owned())
    });
    let (_publisher, _worker, mut link) = start_linked_worker(ONE_AT_A_TIME, blocks).await;
    link.deliver(&[(1, "x")]);
    let batch = link.settle().await;
    let [(1, Verdict::Complete(Some(span)))] = verdicts(&batch)[..] else { panic!("{batch:?}") };
    let thread = &batch.body()[span.at as usize..][..span.length as usize];
    let line = lines.with(std::str::from_utf8(thread).unwrap());
    assert!(line.contains("job{id=") && line.ends_with("enter"), "{line}");
}

#[tokio::test]
async fn a_handler_can_pass_its_trace_to_new_jobs() {
    let mut publisher = FakePublisher::start(1).await;
    let _worker = start_worker(
        ONE_AT_A_TIME,
        &[&publisher],
        handler(|job: Job<Bytes>, ctx: JobContext| async move {
            let Some(trace) = ctx.trace_context() else { return Ok(None) };
            let next = NewJob::new(job.path, JobId([1; 16]), "next").traced(trace);
            Ok(next.headers.get("traceparent").map(|given| format!("{given} {:?}", trace.state())))
        }),
    );
    let trace = TraceContext::parse(TRACEPARENT, Some("a=1")).unwrap();
    let malformed = Headers(vec![("traceparent".into(), "00-x".into())]);
    let job = NewJob::new(Path::new("/jobs/x").unwrap(), JobId([9; 16]), "x");
    let odd = fake_publisher::entry_of(&NewJob { headers: malformed, ..job });
    let (mut link, _) = publisher.attach(1, &[]).await;
    for (token, entry, result) in [
        (1, traced_entry(Some(&trace)), Some(format!("{TRACEPARENT} Some(\"a=1\")"))),
        (2, traced_entry(None), None),
        (3, odd, None),
    ] {
        link.granted(token as u32).await;
        link.deliver_entries([(token, entry)], 30_000);
        let batch = link.settle().await;
        let [(_, Verdict::Complete(span))] = verdicts(&batch)[..] else { panic!("{batch:?}") };
        let returned = span.map(|s| &batch.body()[s.at as usize..][..s.length as usize]);
        assert_eq!(returned, result.as_ref().map(|text| text.as_bytes()));
        link.accept(&batch);
    }
}

/// Their handlers report no error.
#[tokio::test]
async fn damaged_jobs_and_too_large_results_are_logged() {
    let lines = LogLines::default();
    let _capture = lines.capture();
    let large = || Bytes::from(vec![b'x'; RESULT_BYTES_MAX + 1]);
    let handler = handler(move |_: Job<Bytes>, _| async move { Ok(large()) });
    let (_publisher, _worker, mut link) = start_linked_worker(ONE_AT_A_TIME, handler).await;
    let mut damaged = entry("x").to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    for (token, entry) in [(1, entry("x")), (2, damaged.into()), (3, Bytes::from_static(b"?"))] {
        link.granted(token as u32).await;
        link.deliver_entries([(token, entry)], 30_000);
        let batch = link.settle().await;
        link.accept(&batch);
    }
    assert!(lines.with("ResultTooLarge").contains("ERROR"));
    let damaged = lines.with("PayloadDamaged");
    assert!(damaged.contains("WARN") && damaged.contains("token=2"), "{damaged}");
    let unread = lines.with("EntryNotDecoded");
    assert!(unread.contains("path=/jobs/x token=3") && unread.contains("job=unknown"), "{unread}");
}

#[test]
fn log_lines_of_failed_attempts_are_limited_and_the_rest_is_counted() {
    let limit = Mutex::new(LogLimit::new(2, Duration::from_secs(10)));
    let (lines, now) = (LogLines::default(), std::time::Instant::now());
    let _capturing = lines.capture();
    let log = |now, failure| {
        let settle = settle_of::<()>(Err(failure), false);
        log_failure(&limit, now, &settle, &JobId([1; 16]), 3);
    };
    log(now, JobFailure::Release);
    for n in 0..5 {
        log(now, JobFailure::retry(format!("trouble {n}")));
    }
    log(now + Duration::from_secs(10), JobFailure::bury("hopeless"));
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(lines.with("left_out=3").contains("more attempts failed"), "{text}");
    assert!(lines.with("hopeless").contains("attempt=3"), "{text}");
}
