//! A value that is in force, and where it came from.

use std::fmt;
use std::path::PathBuf;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting<T> {
    /// What is in force.
    pub(crate) value: T,
    /// Who said so.
    pub(crate) origin: Origin,
}

/// Where a value came from, strongest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Flag(&'static str),
    /// An environment variable.
    Environment(&'static str),
    /// A configuration file.
    File {
        /// Which.
        file: PathBuf,
        /// On which line, from 1.
        line: usize,
    },
    /// Nobody said anything.
    Default,
}

impl<T> Setting<T> {
    /// What holds when nobody says anything.
    pub(crate) fn default_of(value: T) -> Setting<T> {
        Setting { value, origin: Origin::Default }
    }

    /// The flag's value, if it was given.
    pub(crate) fn or_flag(self, given: Option<T>, flag: &'static str) -> Setting<T> {
        match given {
            Some(value) => Setting { value, origin: Origin::Flag(flag) },
            None => self,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "{flag}"),
            Origin::Environment(variable) => write!(f, "${variable}"),
            Origin::File { file, line } => write!(f, "{}:{line}", file.display()),
            Origin::Default => write!(f, "default"),
        }
    }
}
