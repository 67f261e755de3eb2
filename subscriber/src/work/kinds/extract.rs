//! The arguments of handlers.

use std::convert::Infallible;

use longshore_kinds::JobKind;
use longshore_protocol::{Headers, Path};

use crate::work::handler::service::BoxError;
use crate::{JobContext, Parents};

/// The payload of a job of the kind `K`. It is the first argument of a handler, and names the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload<K>(pub K);

/// The state that all handlers share ([`Worker::state`](crate::Worker::state)), or a part of it
/// ([`StatePart`]). Each attempt gets a clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State<T>(pub T);

/// Which attempt this is, from 1 ([`JobContext::attempt`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Attempt(pub u16);

/// The parts of an attempt that [`FromAttempt`] reads.
#[derive(Clone, Debug)]
pub struct AttemptParts {
    /// The queue that the job came from.
    pub path: Path,
    /// What its producer attached.
    pub headers: Headers,
    /// The lease: attempt, token, cancellation, progress.
    pub context: JobContext,
}

/// An argument of a handler, after its payload. Implement it for a type of your own to read a
/// header for all handlers, or to fail an attempt before its handler runs.
#[diagnostic::on_unimplemented(
    message = "a handler cannot have an argument of the type `{Self}`",
    label = "not an argument of a handler",
    note = "after `Payload<Kind>`, a handler may have `longshore::State<T>`, `JobContext`, \
            `Headers`, `Attempt`, `Path`, `Parents<Kind>` and types that implement \
            `FromAttempt<{S}>`; `State<T>` needs a `Worker::state` of the type `T`, or a state \
            with `StatePart<T>`"
)]
pub trait FromAttempt<S>: Sized + Send {
    /// Why it is not available. It fails the attempt; a [`JobFailure`](crate::JobFailure) decides
    /// otherwise.
    type Error: Into<BoxError> + 'static;

    /// Takes it from the attempt.
    fn from_attempt(attempt: &AttemptParts, state: &S) -> Result<Self, Self::Error>;
}

/// A part `T` of the state that handlers share. Every type that is `Clone` is a part of itself; a
/// struct implements it for each field that handlers have as an argument.
pub trait StatePart<T> {
    /// The part.
    fn part(&self) -> T;
}

impl<T: Clone> StatePart<T> for T {
    fn part(&self) -> T {
        self.clone()
    }
}

impl<S: StatePart<T>, T: Send> FromAttempt<S> for State<T> {
    type Error = Infallible;

    fn from_attempt(_: &AttemptParts, state: &S) -> Result<State<T>, Infallible> {
        Ok(State(state.part()))
    }
}

impl<S> FromAttempt<S> for JobContext {
    type Error = Infallible;

    fn from_attempt(attempt: &AttemptParts, _: &S) -> Result<JobContext, Infallible> {
        Ok(attempt.context.clone())
    }
}

impl<K: JobKind, S> FromAttempt<S> for Parents<K> {
    type Error = Infallible;

    fn from_attempt(attempt: &AttemptParts, _: &S) -> Result<Parents<K>, Infallible> {
        Ok(Parents::of(&attempt.context))
    }
}

impl<S> FromAttempt<S> for Headers {
    type Error = Infallible;

    fn from_attempt(attempt: &AttemptParts, _: &S) -> Result<Headers, Infallible> {
        Ok(attempt.headers.clone())
    }
}

impl<S> FromAttempt<S> for Attempt {
    type Error = Infallible;

    fn from_attempt(attempt: &AttemptParts, _: &S) -> Result<Attempt, Infallible> {
        Ok(Attempt(attempt.context.attempt()))
    }
}

impl<S> FromAttempt<S> for Path {
    type Error = Infallible;

    fn from_attempt(attempt: &AttemptParts, _: &S) -> Result<Path, Infallible> {
        Ok(attempt.path.clone())
    }
}
