//! The innermost services: they decode the payload and call the user's handler, without boxing.

use std::future::{Future, Ready, ready};
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{Either, Map};
use tokio::task::JoinHandle;
use tower_service::Service;

use crate::work::handler::failure::job_error;
use crate::work::handler::panic::catch;
use crate::work::lease_signal::{HandlerThread, LeaseSignal};
use crate::{Completion, FromPayload, Job, JobContext, JobFailure, JobOutput, JobRequest};

type Answer = Result<Completion, JobFailure>;

/// The answer of a blocking handler. Dropped before the handler began, it never begins: by then
/// another worker may have the job.
#[derive(Debug)]
pub struct BlockingAnswer(JoinHandle<Answer>);

impl Drop for BlockingAnswer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Future for BlockingAnswer {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.0).poll(context).map(|ended| match ended {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is shutting down: release the job.
            Err(_) => Err(JobFailure::Release),
        })
    }
}

/// An asynchronous handler. Runs in its handler task.
pub struct InPlace<T, O, F> {
    handler: Arc<F>,
    takes: PhantomData<fn(T) -> O>,
}

/// A blocking handler. Runs on tokio's blocking pool while its handler task waits.
pub struct Blocking<T, O, F> {
    handler: Arc<F>,
    takes: PhantomData<fn(T) -> O>,
}

impl<T, O, F> InPlace<T, O, F> {
    pub(crate) fn new(handler: F) -> InPlace<T, O, F> {
        InPlace { handler: Arc::new(handler), takes: PhantomData }
    }
}

impl<T, O, F> Blocking<T, O, F> {
    pub(crate) fn new(handler: F) -> Blocking<T, O, F> {
        Blocking { handler: Arc::new(handler), takes: PhantomData }
    }
}

impl<T, O, F> Clone for InPlace<T, O, F> {
    fn clone(&self) -> InPlace<T, O, F> {
        InPlace { handler: self.handler.clone(), takes: PhantomData }
    }
}

impl<T, O, F> Clone for Blocking<T, O, F> {
    fn clone(&self) -> Blocking<T, O, F> {
        Blocking { handler: self.handler.clone(), takes: PhantomData }
    }
}

impl<T, O, F, Fut> Service<JobRequest> for InPlace<T, O, F>
where
    T: FromPayload,
    O: JobOutput,
    F: Fn(Job<T>, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, JobFailure>> + Send + 'static,
{
    type Response = Completion;
    type Error = JobFailure;
    type Future = Either<Ready<Answer>, Map<Fut, fn(Result<O, JobFailure>) -> Answer>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        match read_job(request.job) {
            Ok(job) => Either::Right((self.handler)(job, request.context).map(answer_of::<O>)),
            Err(failure) => Either::Left(ready(Err(failure))),
        }
    }
}

impl<T, O, F> Service<JobRequest> for Blocking<T, O, F>
where
    T: FromPayload,
    O: JobOutput,
    F: Fn(Job<T>, JobContext) -> Result<O, JobFailure> + Send + Sync + 'static,
{
    type Response = Completion;
    type Error = JobFailure;
    type Future = BlockingAnswer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), JobFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, JobRequest { job, context }: JobRequest) -> Self::Future {
        let handler = self.handler.clone();
        let (span, signal) = (tracing::Span::current(), context.signal.clone());
        let run = move || span.in_scope(|| answer_of(handler(read_job(job)?, context)));
        spawn_blocking(signal, run)
    }
}

fn read_job<T: FromPayload>(job: Job<Bytes>) -> Result<Job<T>, JobFailure> {
    let Job { id, path, headers, payload } = job;
    match T::from_payload(payload) {
        Ok(payload) => Ok(Job { id, path, headers, payload }),
        Err(error) => Err(JobFailure::Bury(job_error("PayloadNotDecoded", error))),
    }
}

fn answer_of<O: JobOutput>(answer: Result<O, JobFailure>) -> Answer {
    Ok(Completion { result: answer?.into_result()? })
}

/// Runs a blocking handler on tokio's blocking pool. Awaiting the answer resumes a panic. The
/// handler occupies its handler task until it returns, also if the answer is dropped.
pub(crate) fn spawn_blocking(
    signal: Arc<LeaseSignal>,
    run: impl FnOnce() -> Answer + Send + 'static,
) -> BlockingAnswer {
    let thread = HandlerThread::new(signal);
    let run = move || {
        let _thread = thread;
        // This thread knows the place of the panic, so it is caught here first.
        catch(run).unwrap_or_else(|panicked| resume_unwind(Box::new(panicked)))
    };
    BlockingAnswer(tokio::task::spawn_blocking(run))
}
