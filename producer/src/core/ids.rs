//! Identifiers of the state machine, and its time.

use std::time::Duration;

/// Time since the producer was made.
pub(crate) type Time = Duration;

/// A lane's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StreamId(pub(crate) u32);

/// A route's number; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RouteId(pub(super) u32);

/// One link's number: events of an older one are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LinkNumber(pub(crate) u64);
