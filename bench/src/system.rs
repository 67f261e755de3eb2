//! The systems that are compared.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A system that does the work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum System {
    Netidx,
    Longshore,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            System::Netidx => "netidx",
            System::Longshore => "longshore",
        })
    }
}
