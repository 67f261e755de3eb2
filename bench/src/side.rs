//! Who does the work.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who does it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Side {
    Netidx,
    Longshore,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::Netidx => "netidx",
            Side::Longshore => "longshore",
        })
    }
}
