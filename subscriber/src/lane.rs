//! Lanes: each is one task that takes the next job, runs the handler in place, and hands in its end.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use longshore_protocol::messages::work::{NewSettle, Started, ToPublisher, Tokens};
use longshore_protocol::{Entry, FrameWriter, Path};
use longshore_transport::LinkSender;

use crate::desk::{Desk, Ended, Next, Waiting};
use crate::failure::job_error;
use crate::output::settle_of;
use crate::signal::LeaseSignal;
use crate::{FromPayload, Job, JobContext, JobFailure, JobOutput};

/// The longest that a job waits for the kernel to take the word that it begins. A link that is that slow must not hold up the
/// jobs of others; the word is soft, and is on its way.
const ANNOUNCE_WAIT_MAX: Duration = Duration::from_millis(200);

/// What runs one job.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Runs it. It may panic.
    fn handle(
        &self,
        entry: Entry,
        path: Path,
        context: JobContext,
    ) -> impl Future<Output = NewSettle> + Send;
}

/// A handler that is a future: it runs in its lane.
pub(crate) struct InPlace<T, O, F> {
    handler: F,
    takes: PhantomData<fn(T) -> O>,
}

/// A handler that blocks: it runs on tokio's pool for that, its lane waits.
pub(crate) struct Blocking<T, O, F> {
    handler: Arc<F>,
    takes: PhantomData<fn(T) -> O>,
}

impl<T, O, F> InPlace<T, O, F> {
    pub(crate) fn new(handler: F) -> InPlace<T, O, F> {
        InPlace { handler, takes: PhantomData }
    }
}

impl<T, O, F> Blocking<T, O, F> {
    pub(crate) fn new(handler: F) -> Blocking<T, O, F> {
        Blocking { handler: Arc::new(handler), takes: PhantomData }
    }
}

impl<T, O, F, Fut> Handler for InPlace<T, O, F>
where
    T: FromPayload,
    O: JobOutput,
    F: Fn(Job<T>, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, JobFailure>> + Send + 'static,
{
    async fn handle(&self, entry: Entry, path: Path, context: JobContext) -> NewSettle {
        match read_job(entry, path) {
            Ok(job) => settle_of((self.handler)(job, context).await),
            Err(settle) => settle,
        }
    }
}

impl<T, O, F> Handler for Blocking<T, O, F>
where
    T: FromPayload,
    O: JobOutput,
    F: Fn(Job<T>, JobContext) -> Result<O, JobFailure> + Send + Sync + 'static,
{
    async fn handle(&self, entry: Entry, path: Path, context: JobContext) -> NewSettle {
        let handler = self.handler.clone();
        let run = move || match read_job(entry, path) {
            Ok(job) => settle_of(handler(job, context)),
            Err(settle) => settle,
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(settle) => settle,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down: the job goes back.
            Err(_) => NewSettle::Release,
        }
    }
}

fn read_job<T: FromPayload>(entry: Entry, path: Path) -> Result<Job<T>, NewSettle> {
    match T::from_payload(entry.payload) {
        Ok(payload) => Ok(Job { id: entry.id, path, headers: entry.headers, payload }),
        Err(error) => Err(NewSettle::Bury(job_error("PayloadNotDecoded", error))),
    }
}

/// One lane, until the desk says that there will be no more.
pub(crate) async fn run(desk: Arc<Desk>, handler: Arc<impl Handler>) {
    let mut signal = Arc::new(LeaseSignal::at(Arc::downgrade(&desk)));
    let mut ended = None;
    loop {
        match desk.next(ended.take(), &mut signal) {
            Next::Job(job) => ended = Some(run_job(&desk, &*handler, job, signal.clone()).await),
            Next::Announce(told, jobs) => {
                for (sender, tokens) in told {
                    announce(&sender, tokens).await;
                }
                desk.announced(jobs);
            }
            Next::Nothing => desk.wait().await,
            Next::Stop => return,
        }
        // A handler that never waits must not keep its thread from links and timers.
        tokio::task::coop::consume_budget().await;
    }
}

/// Tells a publisher which attempts begin, before anything of their payloads is looked at: a job that kills its worker has used
/// up an attempt, those prefetched beside it have not.
async fn announce(sender: &LinkSender, tokens: Tokens) {
    let mut out = FrameWriter::new();
    ToPublisher::Started(Started { tokens, running_ms: Vec::new() }).encode(&mut out);
    if sender.send(out.finish()).is_ok() {
        // When the link dies here, its next one tells what is under way.
        let _ = tokio::time::timeout(ANNOUNCE_WAIT_MAX, sender.flushed()).await;
    }
}

async fn run_job(
    desk: &Desk,
    handler: &impl Handler,
    job: Waiting,
    signal: Arc<LeaseSignal>,
) -> Ended {
    let Waiting { place, token, path, attempt, deliveries, checkpoints, entry } = job;
    let end = |settle, panicked, damaged| Ended { place, token, settle, panicked, damaged };
    let entry = match Entry::read(entry) {
        Ok(entry) => entry,
        Err(error) => {
            return end(NewSettle::Bury(job_error("EntryNotDecoded", error)), false, false);
        }
    };
    if !entry.is_intact() {
        let error = job_error(
            "PayloadDamaged",
            "the payload is not what its producer wrote: its checksum differs",
        );
        return end(NewSettle::Fail(error), false, true);
    }
    let started = desk.started;
    let context = JobContext {
        signal,
        started,
        id: entry.id,
        path: path.clone(),
        place,
        token,
        attempt,
        max_attempts: entry.options.max_attempts,
        deliveries,
        earlier: checkpoints,
    };
    let answer = async { handler.handle(entry, path, context).await };
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(settle) => end(settle, false, false),
        Err(panic) => {
            let message = panic_message(&*panic);
            tracing::error!(%token, message, "a handler panicked");
            end(NewSettle::Fail(job_error("Panic", message)), true, false)
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
