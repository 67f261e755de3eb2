//! A setting's value and its origin.

use std::fmt;
use std::path::PathBuf;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting<T> {
    /// The value in force.
    pub(crate) value: T,
    /// Its source.
    pub(crate) origin: Origin,
}

/// The source of a value, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Flag(&'static str),
    /// An environment variable.
    Environment(&'static str),
    /// A configuration file.
    File {
        /// The file's path.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Not set anywhere.
    Default,
}

impl<T> Setting<T> {
    /// A value that is not set anywhere.
    pub(crate) fn default_of(value: T) -> Setting<T> {
        Setting { value, origin: Origin::Default }
    }

    /// The flag's value if given, otherwise this setting.
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
