//! Replays a log into its state and the tail of its events.

use bytes::Bytes;
use longshore_protocol::{Epoch, WireError};

use crate::journal::Replayed;
use crate::log::Rebuild;
use crate::state::{Restoring, SnapshotError};
use crate::tail::{TAIL_EVENTS_MAX, Tail};
use crate::{Command, Outcomes, State};

/// The state of a replayed log. Replay repeats no outcome, but the last events are retained, so
/// that clients' feeds resume over a restart.
#[derive(Debug)]
pub struct Replay {
    pub(super) state: State,
    pub(super) tail: Tail,
    outcomes: Outcomes,
    /// The snapshot being restored.
    restoring: Option<Restoring>,
}

impl Default for Replay {
    fn default() -> Replay {
        Replay::new()
    }
}

impl Replay {
    /// The state of an empty log.
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

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::work::{FeedPosition, RequestError};
    use longshore_protocol::{Durability, LinkId, PublisherId, Role, SessionId};

    use super::*;
    use crate::log::Snapshot;
    use crate::{Now, Rules, Secret, Start};

    fn replayed(index: u64, command: &Command) -> Replayed {
        let (head, raw) = command.encode();
        let body = Bytes::from([head, raw].concat());
        let now = Now { mono_ms: index, wall_ms: 1_700_000_000_000 + index };
        Replayed { index, now, kind: command.kind(), body }
    }

    fn commands() -> Vec<Replayed> {
        let start = |epoch| {
            Command::Start(Start {
                publisher: PublisherId([7; 16]),
                epoch: Epoch(epoch),
                boot: [1; 16],
                secret: Secret([0x5e; 16]),
                rules: Box::new(Rules::STANDARD),
                durability: Durability::Fsync,
                paths: Vec::new(),
                defaults: vec!["/jobs".parse().expect("a path")],
            })
        };
        let link = |number: u64| Command::LinkUp {
            link: LinkId(number),
            role: Role::Worker,
            session: SessionId([number as u8; 16]),
            name: "ann".to_owned(),
            identity: String::new(),
            work: None,
            resume: longshore_protocol::messages::work::Tokens::default(),
        };
        let all = [start(1), link(1), start(2), link(2), link(3), start(3), link(4)];
        (1..).zip(&all).map(|(index, command)| replayed(index, command)).collect()
    }

    #[test]
    fn snapshot_plus_later_commands_equals_the_whole_log() {
        let all = commands();
        for cut in 0..=all.len() {
            let (mut before, mut whole, mut read) = (Replay::new(), Replay::new(), Replay::new());
            for replayed in &all[..cut] {
                before.apply(replayed.clone()).unwrap();
            }
            let mut frozen = before.state.freeze();
            let (index, epoch) = (frozen.index(), frozen.epoch());
            assert_eq!((index, epoch), (cut as u64, [0, 1, 1, 2, 2, 2, 3, 3][cut]));
            let mut block = Vec::new();
            while frozen.next_block(&mut block) {
                read.block(std::mem::take(&mut block).into()).unwrap();
            }
            read.restored().unwrap();
            let at = FeedPosition { epoch: Epoch(epoch), index };
            assert_eq!(read.tail.position(), at);
            for replayed in &all {
                whole.apply(replayed.clone()).unwrap();
                if replayed.index > index {
                    read.command(replayed.clone()).unwrap();
                }
            }
            assert_eq!(read.state().snapshot_bytes(), whole.state().snapshot_bytes());
            assert_eq!(read.tail.position(), whole.tail.position());
            assert!(read.tail.cursor(Some(at)).is_ok());
            if index > 0 {
                let older = Some(FeedPosition { epoch: Epoch(1), index: index - 1 });
                assert_eq!(read.tail.cursor(older).unwrap_err(), RequestError::TooOld);
            }
        }
    }

    #[test]
    fn incomplete_snapshot_restores_no_state() {
        let mut replay = Replay::new();
        assert!(replay.restored().is_err(), "not one block");
        for replayed in commands() {
            replay.apply(replayed).unwrap();
        }
        let (mut frozen, mut blocks) = (replay.state.freeze(), vec![Vec::new()]);
        while frozen.next_block(blocks.last_mut().unwrap()) {
            blocks.push(Vec::new());
        }
        blocks.pop();
        for missing in 0..blocks.len() {
            let mut read = Replay::new();
            let retained = blocks.iter().enumerate().filter(|&(n, _)| n != missing);
            let taken = retained.map(|(_, block)| read.block(block.clone().into()));
            let taken = taken.collect::<Result<Vec<()>, _>>();
            assert!(taken.is_err() || read.restored().is_err(), "block {missing} is missing");
        }
    }
}
