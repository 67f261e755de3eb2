//! Why a value is not published, or not changed.

use longshore_protocol::{Path, ValueError};

use super::limits::{VALUE_DEFAULTS_MAX, VALUES_MAX};

/// Why a value, or a default, is not published. Nothing was changed, and a retry fails until
/// something else changes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublishError {
    /// This publisher has a value, or a default for values, at that path.
    #[error("{0} is published here already; drop its handle first")]
    Taken(Path),
    /// This publisher serves jobs at that path.
    #[error("{0} is a queue of this publisher; publish the value at another path")]
    IsQueue(Path),
    /// `/sys` belongs to Longshore.
    #[error("{0} cannot be published: paths at and below /sys are Longshore's own")]
    Reserved(Path),
    /// The root.
    #[error("a value needs a path below the root")]
    Root,
    /// The publisher has 4,194,304 values, the limit.
    #[error("the publisher has {VALUES_MAX} values, and may have no more")]
    TooMany,
    /// The publisher has 1,024 defaults for values, the limit.
    #[error("the publisher has {VALUE_DEFAULTS_MAX} defaults for values, and may have no more")]
    TooManyDefaults,
    /// The value is too large or too deep: [`ValueError`] has the bounds.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Why a value is not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UpdateError {
    /// The new value is too large or too deep: [`ValueError`] has the bounds.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The value belongs to another publisher: a batch is of one publisher.
    #[error("the value is published by another publisher of this process; use its own batch")]
    OtherPublisher,
}
