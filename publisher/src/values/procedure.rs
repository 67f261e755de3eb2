//! Procedures: paths whose program answers calls.

use std::fmt::Display;
use std::sync::Arc;

use longshore_protocol::messages::values::WriteRefusal;
use longshore_protocol::{ConvertError, Path, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::limits::PROCEDURE_CALLS_MAX;
use super::{PublishError, Published, Values, Write, Writes};

/// A procedure that subscribers call ([`Values::procedure`]). Dropping it withdraws it, and cancels
/// the calls in progress: their callers learn that the outcome is unknown.
#[derive(Debug)]
pub struct Procedure {
    path: Path,
    _serving: AbortOnDropHandle<()>,
}

impl Values {
    /// Publishes a procedure at `path`, with serde types as its argument and reply. An error is
    /// sent to the caller as text. Each call runs at most once, in a task of its own; 256 run at a
    /// time, and 1,024 wait. A call does not begin once its caller's time limit, counted from its
    /// arrival here, has passed; a caller that stopped waiting earlier may still be served.
    ///
    /// It is a value without content, and each call is a write to it.
    pub fn procedure<A, R, E, F>(
        &self,
        path: Path,
        procedure: impl Fn(A) -> F + Send + Sync + 'static,
    ) -> Result<Procedure, PublishError>
    where
        A: DeserializeOwned + Send + 'static,
        R: Serialize + 'static,
        E: Display + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        let published = self.publish(path.clone(), Value::Null)?;
        // Nothing else has the handle, so nothing else takes its writes.
        let calls = published.writes().ok_or_else(|| PublishError::Taken(path.clone()))?;
        let procedure = Arc::new(procedure);
        let run = move |call: Call| {
            let procedure = procedure.clone();
            async move {
                let outcome = match call.argument() {
                    Ok(argument) => {
                        let refused = |error: E| (WriteRefusal::Refused, error.to_string());
                        procedure(argument).await.map_err(refused)
                    }
                    Err(why) => Err((WriteRefusal::Unreadable, why.to_string())),
                };
                call.end(outcome);
            }
        };
        let serving = tokio::spawn(serve(published, calls, run));
        Ok(Procedure { path, _serving: AbortOnDropHandle::new(serving) })
    }
}

impl Procedure {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

async fn serve<F>(_published: Published, mut calls: Writes, run: impl Fn(Call) -> F + Send)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            call = calls.next(), if running.len() < PROCEDURE_CALLS_MAX => match call {
                Some(call) => {
                    running.spawn(run(Call(Some(call))));
                }
                None => return,
            },
            // A panic was reported to the caller when its call was dropped.
            Some(_) = running.join_next() => {}
        }
    }
}

/// A call in progress. Dropping it reports an unknown outcome: the procedure has panicked, or was
/// withdrawn.
struct Call(Option<Write>);

impl Call {
    fn argument<A: DeserializeOwned>(&self) -> Result<A, ConvertError> {
        self.0.as_ref().map(Write::value).unwrap_or(&Value::Null).to_serde()
    }

    fn end(mut self, outcome: Result<impl Serialize, (WriteRefusal, String)>) {
        let Some(call) = self.0.take() else { return };
        let reply = outcome.and_then(|reply| {
            let reply = Value::from_serde(&reply);
            reply.map_err(|why| (WriteRefusal::BadAnswer, why.to_string()))
        });
        match reply {
            Ok(reply) => call.answer(reply),
            Err((code, why)) => call.end(code, &why),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call.end(WriteRefusal::Late, "the procedure ended without an answer");
        }
    }
}
