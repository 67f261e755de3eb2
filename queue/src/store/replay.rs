//! A log read back: the state that its commands make, and the tail of what they brought about.

use bytes::Bytes;
use longshore_protocol::{Epoch, WireError};

use crate::journal::Replayed;
use crate::log::Rebuild;
use crate::state::{Restoring, SnapshotError};
use crate::tail::{TAIL_EVENTS_MAX, Tail};
use crate::{Command, Outcomes, State};

/// What a log's commands come to. Nothing that they brought about is told again; but a client that followed what happened to
/// jobs goes on over a restart, so the last events are kept.
#[derive(Debug)]
pub struct Replay {
    pub(super) state: State,
    pub(super) tail: Tail,
    outcomes: Outcomes,
    /// The snapshot, while its blocks come.
    restoring: Option<Restoring>,
}

impl Default for Replay {
    fn default() -> Replay {
        Replay::new()
    }
}

impl Replay {
    /// Of an empty log.
    pub fn new() -> Replay {
        let outcomes = Outcomes { wants_events: true, ..Outcomes::default() };
        let tail = Tail::new(TAIL_EVENTS_MAX);
        Replay { state: State::new(), tail, outcomes, restoring: None }
    }

    /// Applies the next command of the log.
    pub fn apply(&mut self, replayed: Replayed) -> Result<(), WireError> {
        let command = Command::decode(replayed.kind, replayed.body)?;
        if let Command::Start(start) = &command {
            self.tail.begin(replayed.index, start.epoch);
        }
        self.state.apply(replayed.index, replayed.now, &command, &mut self.outcomes);
        self.tail.extend(self.outcomes.events.drain(..), replayed.index);
        self.outcomes.clear();
        Ok(())
    }

    /// The state so far.
    pub fn state(&self) -> &State {
        &self.state
    }
}

impl Rebuild for Replay {
    fn block(&mut self, block: Bytes) -> Result<(), SnapshotError> {
        self.restoring.get_or_insert_default().block(block)
    }

    fn restored(&mut self) -> Result<(), SnapshotError> {
        self.state = self.restoring.take().unwrap_or_default().finish()?;
        let epoch = self.state.last_start().map_or(Epoch(0), |start| start.epoch);
        self.tail.resume(self.state.index(), epoch);
        Ok(())
    }

    fn command(&mut self, replayed: Replayed) -> Result<(), WireError> {
        self.apply(replayed)
    }
}
