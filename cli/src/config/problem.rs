//! What is wrong with a configuration.

/// A problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    /// The key with the invalid value; none for a problem of the file, or of several keys.
    pub(crate) key: Option<String>,
    /// The invalid value's origin, as text.
    pub(crate) origin: String,
    /// Origin, key, limit and remedy.
    pub(crate) message: String,
}

impl Problem {
    /// A problem without one key.
    pub(crate) fn of_several_keys(message: String) -> Problem {
        Problem { key: None, origin: String::new(), message }
    }
}
