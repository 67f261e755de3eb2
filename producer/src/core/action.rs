//! What the state machine returns: actions for the driver, and the results of calls.

use longshore_protocol::messages::work::SealedBatch;
use longshore_protocol::{Address, JobId, Path, PublisherId};

use super::ids::{LinkNumber, StreamId};
use super::routing::NoRoute;
use crate::outcome::{BatchOutcome, EnqueueError};

/// What the shell is to do.
pub(crate) enum Action<T> {
    /// Ask the resolver; hand the answer to [`Core::resolved`].
    Resolve(Vec<Path>),
    /// Make a link, attach, then say [`Core::linked`] or [`Core::link_lost`].
    Dial { publisher: PublisherId, link: LinkNumber, addresses: Vec<Address> },
    /// Write the batch to that link.
    Send { publisher: PublisherId, link: LinkNumber, sequence: u64, batch: SealedBatch },
    /// End that link; nothing is to be said of it any more.
    Close { publisher: PublisherId, link: LinkNumber, reason: &'static str },
    /// A batch has come to its end.
    Finish {
        stream: StreamId,
        tag: T,
        ids: Vec<JobId>,
        tickets: Vec<(u64, u32)>,
        end: BatchOutcome,
    },
    /// Paths were answered: who waits for a route looks again.
    RoutesChanged,
    /// A closed lane has come to its end.
    StreamClosed(StreamId),
}

/// What became of a push.
pub(crate) struct Pushed<T> {
    /// The batch that the job is in: if it was asked for, or if the job is its first.
    pub(crate) tag: Option<T>,
    /// Its place there.
    pub(crate) index: usize,
}

/// Why a job was not added.
#[derive(Debug)]
pub(crate) enum PushError {
    /// The lane holds as much as it may: wait for an answer.
    Full,
    /// Its path has no route yet: see [`Core::route`].
    NoRoute,
    /// It can never be added.
    Never(EnqueueError),
}

/// Where a path stands.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RouteLookup {
    Known,
    Pending,
    NoRoute(NoRoute),
}
