//! Identifiers of the state machine, and its time.

use std::time::Duration;

/// Time since the producer was made.
pub(crate) type Time = Duration;

/// The number of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StreamId(pub(crate) u64);

/// The number of a route; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RouteId(pub(super) u64);

/// The number of a link: events of earlier links are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LinkNumber(pub(crate) u64);
