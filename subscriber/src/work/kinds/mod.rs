//! Workers of several kinds of jobs: one session, one link to each publisher, a handler for each
//! kind.

mod extract;
mod handler;
mod options;
mod path_tree;
mod router;

pub use extract::{Attempt, AttemptParts, FromAttempt, Payload, State, StatePart};
pub(crate) use handler::Running;
pub use handler::{BlockingHandler, Handler};
pub use options::KindOptions;
pub use router::{KindService, Kinds, Router};
