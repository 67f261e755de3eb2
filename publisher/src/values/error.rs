//! Why a value is not published, or not changed.

use longshore_protocol::{Path, ValueError};

use super::limits::{VALUE_DEFAULTS_MAX, VALUES_MAX};

/// Why a value, or a default, is not published. Nothing was changed, and until something else is,
/// it would be refused again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublishError {
    /// This publisher has a value there, or a default for values.
    #[error("{0} is published here already; drop what holds it first")]
    Taken(Path),
    /// This publisher serves jobs there.
    #[error("{0} is a queue of this publisher; publish the value at another path")]
    IsQueue(Path),
    /// `/sys` belongs to Longshore.
    #[error("{0} cannot be published: paths at and below /sys are Longshore's own")]
    Reserved(Path),
    /// The root.
    #[error("a value needs a path below the root")]
    Root,
    /// The publisher has 4,194,304 values, and may have no more.
    #[error("the publisher has {VALUES_MAX} values, and may have no more")]
    TooMany,
    /// The publisher has 1,024 defaults for values, and may have no more.
    #[error("the publisher has {VALUE_DEFAULTS_MAX} defaults for values, and may have no more")]
    TooManyDefaults,
    /// The value is too large or too deep: [`ValueError`] has the bounds.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Why a value is not changed. It is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UpdateError {
    /// The new value is too large or too deep: [`ValueError`] has the bounds.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// It is another publisher's: a batch is of one publisher.
    #[error("the value is published by another publisher of this process; use its own batch")]
    OtherPublisher,
}
