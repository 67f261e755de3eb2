//! What a handler may ask for beside its payload.

use std::convert::Infallible;

use longshore_protocol::{Headers, Path};

use crate::{JobContext, JobFailure};

/// The payload of a job of the kind `K`: the first argument of a handler, by which it is known
/// which jobs it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload<K>(pub K);

/// What all handlers share: what [`Worker::state`](crate::Worker::state) was given, or a part of
/// it ([`StatePart`]). Each attempt has a clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State<T>(pub T);

/// Which attempt this is, from 1 ([`JobContext::attempt`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Attempt(pub u16);

/// An attempt as [`FromAttempt`] sees it.
#[derive(Clone, Debug)]
pub struct AttemptParts {
    /// The queue that the job came from.
    pub path: Path,
    /// What its producer attached.
    pub headers: Headers,
    /// The lease: attempt, token, cancellation, progress.
    pub context: JobContext,
}

/// What a handler can have as an argument after its payload. Implement it for a type of your own
/// to read a header once for all handlers, or to refuse an attempt before its handler runs.
#[diagnostic::on_unimplemented(
    message = "a handler cannot have an argument of the type `{Self}`",
    label = "not an argument of a handler",
    note = "after `Payload<Kind>`, a handler may have `State<T>`, `JobContext`, `Headers`, `Attempt`, \
            `Path` and types that implement `FromAttempt<{S}>`; `State<T>` needs \
            `Worker::state` with a `T`"
)]
pub trait FromAttempt<S>: Sized + Send {
    /// Why it cannot be had: that becomes of the attempt.
    type Error: Into<JobFailure>;

    /// Takes it from the attempt.
    fn from_attempt(attempt: &AttemptParts, state: &S) -> Result<Self, Self::Error>;
}

/// A part `T` of what all handlers share. Everything that can be cloned is a part of itself; a
/// struct of several implements it for each of its fields that handlers ask for.
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
