//! Plain functions as handlers of a kind of job.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use longshore_kinds::{Codec, JobKind};

use super::extract::{AttemptParts, FromAttempt, Payload};
use crate::work::handler::adapters::spawn_blocking;
use crate::work::handler::failure::job_error;
use crate::work::handler::service::{BoxError, failure_of};
use crate::{Completion, JobFailure};

/// An attempt under way.
pub(crate) type Running = Pin<Box<dyn Future<Output = Result<Completion, JobFailure>> + Send>>;

/// A handler of one kind of job: an async function whose first argument is [`Payload<Kind>`], with
/// up to six more that are [`FromAttempt`], and which returns `Result<Kind::Output, E>`. `E` is any
/// error (`anyhow::Error`, a `std::error::Error`, a text), which fails the attempt, or
/// [`JobFailure`], which can also bury, snooze or release the job.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle jobs",
    label = "not a handler",
    note = "a handler is `async fn(Payload<Kind>, …) -> Result<Kind::Output, E>`; a function that \
            is not async goes to `handle_blocking`",
    note = "`Kind` has `#[derive(JobKind)]`; its `Output` is `()`, or `#[job(output = …)]`",
    note = "the other arguments are up to six of `longshore::State<T>`, `JobContext`, `Headers`, \
            `Attempt`, `Path`, and types with `FromAttempt`; `State<T>` needs `.state(…)` of the \
            type `T` before its handler",
    note = "`E` is `anyhow::Error`, `JobFailure`, or another error"
)]
pub trait Handler<Arguments, S>: Clone + Send + Sync + 'static {
    /// The jobs that it takes.
    type Kind: JobKind;

    /// Runs one attempt.
    fn call(&self, payload: Bytes, attempt: AttemptParts, state: &S) -> Running;
}

/// A handler that blocks its thread: a [`Handler`] that is not async.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle jobs on a blocking thread",
    label = "not a blocking handler",
    note = "a blocking handler is `fn(Payload<Kind>, …) -> Result<Kind::Output, E>`, not async, \
            with the arguments of other handlers; an async one goes to `handle`"
)]
pub trait BlockingHandler<Arguments, S>: Clone + Send + Sync + 'static {
    /// The jobs that it takes.
    type Kind: JobKind;

    /// Runs one attempt on tokio's blocking pool.
    fn call_blocking(&self, payload: Bytes, attempt: AttemptParts, state: &S) -> Running;
}

/// Decodes the payload; one that does not decode buries the job.
fn decode<K: JobKind>(payload: &Bytes) -> Result<Payload<K>, JobFailure> {
    let decoded = <K::Codec as Codec<K>>::decode(payload).map(Payload);
    decoded.map_err(|error| JobFailure::Bury(job_error("PayloadNotDecoded", error)))
}

fn completed<K: JobKind>(output: &K::Output, keeps: bool) -> Result<Completion, JobFailure> {
    if !keeps {
        return Ok(Completion { result: None });
    }
    let encoded = <K::Codec as Codec<K::Output>>::encode(output);
    let result =
        encoded.map_err(|error| JobFailure::Retry(job_error("OutputNotEncoded", error)))?;
    Ok(Completion { result: Some(result) })
}

macro_rules! handlers {
    ($(($($argument:ident)*))*) => { $(
        impl<F, Fut, K, E, S, $($argument,)*> Handler<(Payload<K>, $($argument,)*), S> for F
        where
            F: Fn(Payload<K>, $($argument,)*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<K::Output, E>> + Send + 'static,
            K: JobKind,
            E: Into<BoxError> + 'static,
            $($argument: FromAttempt<S>,)*
        {
            type Kind = K;

            #[allow(unused_variables, reason = "the handler with a payload alone")]
            fn call(&self, payload: Bytes, attempt: AttemptParts, state: &S) -> Running {
                let called: Result<Fut, JobFailure> = (|| {
                    Ok(self(
                        decode::<K>(&payload)?,
                        $($argument::from_attempt(&attempt, state).map_err(failure_of)?,)*
                    ))
                })();
                let keeps = attempt.context.keeps_result();
                Box::pin(async move {
                    let output = called?.await.map_err(failure_of)?;
                    completed::<K>(&output, keeps)
                })
            }
        }

        impl<F, K, E, S, $($argument,)*> BlockingHandler<(Payload<K>, $($argument,)*), S> for F
        where
            F: Fn(Payload<K>, $($argument,)*) -> Result<K::Output, E>,
            F: Clone + Send + Sync + 'static,
            K: JobKind,
            E: Into<BoxError> + 'static,
            $($argument: FromAttempt<S> + 'static,)*
        {
            type Kind = K;

            #[allow(unused_variables, reason = "the handler with a payload alone")]
            #[allow(non_snake_case, reason = "an argument has the name of its type")]
            fn call_blocking(&self, payload: Bytes, attempt: AttemptParts, state: &S) -> Running {
                let arguments: Result<_, JobFailure> = (|| {
                    Ok((
                        decode::<K>(&payload)?,
                        $($argument::from_attempt(&attempt, state).map_err(failure_of)?,)*
                    ))
                })();
                let (handler, keeps) = (self.clone(), attempt.context.keeps_result());
                let (span, signal) = (tracing::Span::current(), attempt.context.signal.clone());
                Box::pin(async move {
                    let (payload, $($argument,)*) = arguments?;
                    let run = move || {
                        let output = handler(payload, $($argument,)*).map_err(failure_of)?;
                        completed::<K>(&output, keeps)
                    };
                    spawn_blocking(signal, move || span.in_scope(run)).await
                })
            }
        }
    )* };
}

handlers! {
    ()
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D G)
    (A B C D G H)
}
