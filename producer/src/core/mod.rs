//! The sans-I/O state machine of a producer. It decides which publisher gets a batch, under which
//! number, when it is sent again, when it times out, when a link is retried, and when a path is
//! resolved.
//!
//! **Contract: after every call that takes `now`, drain [`Core::poll_action`]; call [`Core::tick`]
//! at [`Core::next_deadline`].** `now` never decreases. Nothing here reads a clock, opens a socket
//! or waits.
//!
//! ```text
//! push ─▶ stream: open batch ──seal──▶ route: unsent ──send──▶ publisher: unanswered ──▶ Finish
//!                                            ▲                        │
//!                                            └── refused as a whole ──┘
//!                                          (never after the mere loss of a link)
//! ```

mod action;
mod answers;
mod batch;
mod finish;
pub(crate) mod home;
mod ids;
mod limits;
mod links;
mod peer;
mod push;
mod resolve;
mod routing;
mod send;
mod stream;
#[cfg(test)]
mod tests;
mod timers;
pub(crate) mod validate;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longshore_protocol::PublisherId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) use action::{Action, PushError, Pushed, RouteLookup};
pub(crate) use ids::{LinkNumber, StreamId, Time};
use limits::SWEEP_INTERVAL;
use peer::Peer;
pub(crate) use routing::NoRoute;
use routing::Routing;
pub(crate) use stream::StreamLimits;
use stream::StreamState;
pub(crate) use validate::check;

use crate::options::Failover;

/// The state machine. `T` is the driver's tag for a batch.
pub(crate) struct Core<T> {
    answer_timeout: Duration,
    failover: Failover,
    rng: StdRng,
    streams: BTreeMap<StreamId, StreamState<T>>,
    routing: Routing<T>,
    peers: BTreeMap<PublisherId, Peer<T>>,
    actions: VecDeque<Action<T>>,
    next_stream: u64,
    next_serial: u64,
    next_link: u64,
    /// No batch times out before this time.
    deadline_floor: Option<Time>,
    sweep_at: Time,
    /// The seed of this producer's order of publishers.
    spread: u64,
}

impl<T: Default + Clone> Core<T> {
    pub(crate) fn new(answer_timeout: Duration, failover: Failover, seed: u64) -> Core<T> {
        let mut rng = StdRng::seed_from_u64(seed);
        let spread = rng.next_u64();
        Core {
            answer_timeout,
            failover,
            rng,
            streams: BTreeMap::new(),
            routing: Routing::new(),
            peers: BTreeMap::new(),
            actions: VecDeque::new(),
            next_stream: 0,
            next_serial: 0,
            next_link: 0,
            deadline_floor: None,
            sweep_at: SWEEP_INTERVAL,
            spread,
        }
    }

    /// The next action, until there is none.
    pub(crate) fn poll_action(&mut self) -> Option<Action<T>> {
        self.actions.pop_front()
    }
}
