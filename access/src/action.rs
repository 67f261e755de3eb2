//! What a client may be allowed to do.

use std::fmt;
use std::str::FromStr;

/// An action that a policy allows or denies on paths. What concerns a server as a whole has the
/// path `/sys`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// Enqueue jobs.
    Enqueue,
    /// Take jobs, and settle them.
    Work,
    /// See queues and jobs without their contents: states, times, attempts, counts.
    Inspect,
    /// See contents of jobs: payloads, headers, checkpoints, results and errors.
    Payload,
    /// Act on jobs and queues: cancel, revive, drop, replace, pause, close, configure.
    Act,
    /// Hold the queue of a path: a publisher's right at replicas.
    Serve,
    /// Follow a publisher's journal.
    Replicate,
    /// Find out at replicas who serves a path, list and watch paths.
    Resolve,
    /// Subscribe to live values.
    Read,
    /// Write to live values, and call procedures.
    Write,
    /// Publish live values and procedures at a path: a publisher's right at replicas.
    Publish,
    /// Operate a server, at the path `/sys`: drain it, quiet its workers, confirm its clock, forget
    /// a publisher.
    Operate,
}

impl Action {
    /// All actions, in the order of their numbers.
    pub const ALL: [Action; 12] = [
        Action::Enqueue,
        Action::Work,
        Action::Inspect,
        Action::Payload,
        Action::Act,
        Action::Serve,
        Action::Replicate,
        Action::Resolve,
        Action::Read,
        Action::Write,
        Action::Publish,
        Action::Operate,
    ];

    /// Its name in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Action::Enqueue => "enqueue",
            Action::Work => "work",
            Action::Inspect => "inspect",
            Action::Payload => "payload",
            Action::Act => "act",
            Action::Serve => "serve",
            Action::Replicate => "replicate",
            Action::Resolve => "resolve",
            Action::Read => "read",
            Action::Write => "write",
            Action::Publish => "publish",
            Action::Operate => "operate",
        }
    }
}

/// A text that names no action.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not an action; there are {names}",
    names = Action::ALL.map(Action::name).join(", ")
)]
pub struct UnknownAction(pub String);

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Action, UnknownAction> {
        let named = Action::ALL.into_iter().find(|action| action.name() == text);
        named.ok_or_else(|| UnknownAction(text.to_owned()))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
