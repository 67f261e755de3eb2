//! What the state machine returns: actions for the driver, and the results of calls.

use std::sync::Arc;

use longshore_protocol::messages::work::SealedBatch;
use longshore_protocol::{JobId, Path, PublisherId, PublisherInfo};

use super::ids::{LinkNumber, StreamId};
use super::routing::NoRoute;
use crate::outcome::{BatchOutcome, EnqueueError};

/// An action for the driver.
pub(crate) enum Action<T> {
    /// Resolve the paths, and pass the answer to [`Core::resolved`](super::Core::resolved). With
    /// `all_publishers`, from a replica that knows them all, if there is one.
    Resolve { paths: Vec<Path>, all_publishers: bool },
    /// Make and attach a link, then call [`Core::linked`](super::Core::linked) or
    /// [`Core::link_lost`](super::Core::link_lost).
    Dial { publisher: PublisherInfo, link: LinkNumber },
    /// Send the batch on that link.
    Send { publisher: PublisherId, link: LinkNumber, sequence: u64, batch: SealedBatch },
    /// Close that link; report nothing further about it.
    Close { publisher: PublisherId, link: LinkNumber, reason: &'static str },
    /// A batch has its outcome.
    Finish {
        stream: StreamId,
        tag: T,
        ids: Vec<JobId>,
        indices: Vec<(u64, u32)>,
        end: BatchOutcome,
    },
    /// Paths were resolved: callers that wait for a route retry.
    RoutesChanged,
    /// A closed stream has finished.
    StreamClosed(StreamId),
}

/// The result of a push.
pub(crate) struct Pushed<T> {
    /// The tag of the job's batch, if requested, or if the job is its first.
    pub(crate) tag: Option<T>,
    /// The job's index in the batch.
    pub(crate) index: usize,
    /// The batch was open before, and still is: there is no new action, and no earlier deadline.
    pub(crate) joined: bool,
}

/// Why a job was not added.
#[derive(Debug)]
pub(crate) enum PushError {
    /// The stream has reached its limits: wait for an answer.
    Full,
    /// The path has no route yet: see [`Core::route`](super::Core::route).
    NoRoute,
    /// The job can never be added.
    Never(EnqueueError),
}

/// The route of a path.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RouteLookup {
    Known,
    Pending,
    /// The home with this name does not publish the path at present.
    HomeAway(Arc<str>),
    NoRoute(NoRoute),
}
