//! Workers of several kinds of jobs: one session, one link to each publisher, a handler for each
//! kind.

mod extract;
mod handler;
mod router;

pub use extract::{Attempt, AttemptParts, FromAttempt, Payload, State, StatePart};
pub use handler::Handler;
pub use router::{Kinds, Router};
