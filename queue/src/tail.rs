//! The tail: the last events, which feeds follow. Pure.
//!
//! A reader never sees a gap. It gets every unread event, or `TooOld`; if the log lost events that
//! it has read, it gets `Rewound`. So a tail records its floor (the last command whose events may
//! be missing) and the index of each start.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::messages::work::{FeedPosition, RequestError};
use longshore_protocol::{Epoch, Glob, Path, PathSet};

use crate::{Event, QueueId};

/// Most events in a tail.
pub const TAIL_EVENTS_MAX: usize = 65_536;
/// Most starts in a tail: a publisher that restarts so often without an event has a different
/// problem.
const STARTS_MAX: usize = 1_024;

/// The last events of a publisher, in order.
#[derive(Clone, Debug)]
pub struct Tail {
    events: VecDeque<Event>,
    events_max: usize,
    /// The number of the first event in `events`: the count of earlier events.
    first: u64,
    /// Events of commands up to this index may be missing.
    floor: u64,
    /// The epoch of the command at the floor.
    floor_epoch: Epoch,
    /// Starts beyond the floor, oldest first.
    starts: VecDeque<(u64, Epoch)>,
    /// The last command that was added.
    index: u64,
    recording: bool,
}

/// A reader's position in a tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// Everything of commands up to this index was read.
    index: u64,
    /// The number of the next event.
    next: u64,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The position to resume from: everything up to it was read. Events of the following command
    /// may have been read in part.
    pub upto: FeedPosition,
    /// There is more to read.
    pub more: bool,
}

impl Tail {
    /// The tail of an empty log, with at most `events_max` events.
    pub fn new(events_max: usize) -> Tail {
        Tail {
            events: VecDeque::new(),
            events_max,
            first: 0,
            floor: 0,
            floor_epoch: Epoch(0),
            starts: VecDeque::new(),
            index: 0,
            recording: true,
        }
    }

    /// Continues after a snapshot of all commands up to `index`, the last of which have that epoch:
    /// their events are unknown.
    pub fn resume(&mut self, index: u64, epoch: Epoch) {
        self.index = index;
        self.raise_floor(index);
        self.floor_epoch = epoch;
    }

    /// The present position.
    pub fn position(&self) -> FeedPosition {
        FeedPosition { epoch: self.epoch(), index: self.index }
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether events are recorded.
    pub fn is_recording(&self) -> bool {
        self.recording
    }

    /// The command at `index` is a start.
    pub fn begin(&mut self, index: u64, epoch: Epoch) {
        self.starts.push_back((index, epoch));
        if self.starts.len() > STARTS_MAX {
            let oldest = self.starts[0].0;
            self.raise_floor(oldest);
        }
    }

    /// Adds the events of commands up to `upto`, all since the last call.
    pub fn extend(&mut self, events: impl Iterator<Item = Event>, upto: u64) {
        debug_assert!(upto >= self.index, "commands come in order");
        for event in events {
            debug_assert!(event.index <= upto, "events come with their commands");
            if !self.recording || event.index <= self.floor {
                continue;
            }
            self.events.push_back(event);
            if self.events.len() > self.events_max {
                // All events of that command, even later ones: a part of them would be a gap.
                let oldest = self.events[0].index;
                self.raise_floor(oldest);
            }
        }
        self.index = upto;
        if !self.recording {
            self.raise_floor(upto);
        }
    }

    /// Starts recording events of commands after `index`, the last one applied without events.
    pub fn record_beyond(&mut self, index: u64) {
        if !self.recording {
            self.recording = true;
            self.raise_floor(index);
        }
    }

    /// Stops recording, and drops all events.
    pub fn stop(&mut self) {
        self.recording = false;
        self.raise_floor(self.index);
    }

    /// A cursor after a position, or after the present if there is none. Fails with `TooOld` if
    /// events since then are gone, and with `Rewound` if the log lost that position.
    pub fn cursor(&self, after: Option<FeedPosition>) -> Result<Cursor, RequestError> {
        let Some(FeedPosition { epoch, index }) = after else {
            let next = self.first + self.events.len() as u64;
            return Ok(Cursor { index: self.index.max(self.floor), next });
        };
        if epoch > self.epoch() || (epoch == self.epoch() && index > self.index) {
            return Err(RequestError::Rewound);
        }
        // From the first later start on, the log may have other commands at these indexes.
        if self.starts.iter().any(|&(at, start)| start > epoch && at <= index) {
            return Err(RequestError::Rewound);
        }
        if index < self.floor {
            return Err(RequestError::TooOld);
        }
        if epoch < self.floor_epoch {
            return Err(RequestError::Rewound);
        }
        let position = self.events.partition_point(|event| event.index <= index);
        Ok(Cursor { index, next: self.first + position as u64 })
    }

    /// The position of a cursor.
    pub fn position_of(&self, cursor: &Cursor) -> FeedPosition {
        FeedPosition { epoch: self.epoch(), index: cursor.index }
    }

    /// Whether there are commands after a cursor, with or without events.
    pub fn has_more(&self, cursor: &Cursor) -> bool {
        cursor.index < self.index
    }

    /// Adds the next events of the selected queues to `out`, at most `most`, and advances the
    /// cursor. Fails with `TooOld`, and changes nothing, if events after the cursor are gone.
    pub fn read(
        &self,
        cursor: &mut Cursor,
        most: usize,
        mut selects: impl FnMut(QueueId) -> bool,
        out: &mut Vec<Event>,
    ) -> Result<Read, RequestError> {
        if cursor.index < self.floor {
            return Err(RequestError::TooOld);
        }
        // All events of commands after the floor are present.
        let position = cursor.next.saturating_sub(self.first) as usize;
        let mut left = most;
        for event in self.events.iter().skip(position) {
            if selects(event.queue) {
                if left == 0 {
                    cursor.index = cursor.index.max(event.index - 1);
                    return Ok(Read { upto: self.position_of(cursor), more: true });
                }
                left -= 1;
                out.push(*event);
            }
            cursor.next += 1;
        }
        cursor.index = cursor.index.max(self.index);
        Ok(Read { upto: self.position_of(cursor), more: false })
    }

    fn epoch(&self) -> Epoch {
        self.starts.back().map_or(self.floor_epoch, |&(_, epoch)| epoch)
    }

    fn raise_floor(&mut self, index: u64) {
        self.floor = self.floor.max(index);
        while self.events.front().is_some_and(|event| event.index <= self.floor) {
            self.events.pop_front();
            self.first += 1;
        }
        while let Some(&(_, epoch)) = self.starts.front().filter(|&&(at, _)| at <= self.floor) {
            self.floor_epoch = epoch;
            self.starts.pop_front();
        }
        if !self.recording {
            self.events = VecDeque::new();
        }
    }
}

/// The queues that a pattern matches and a client may see. Each is matched once: queues are
/// numbered in order, and their paths never change.
#[derive(Clone, Debug)]
pub struct QueueSet {
    pattern: Glob,
    within: Option<Arc<PathSet>>,
    known: Vec<bool>,
}

impl QueueSet {
    /// The queues of that pattern, among those in the set; none for all.
    pub fn new(pattern: Glob, within: Option<Arc<PathSet>>) -> QueueSet {
        QueueSet { pattern, within, known: Vec::new() }
    }

    /// The pattern.
    pub fn pattern(&self) -> &Glob {
        &self.pattern
    }

    /// Whether it matches the queue of that number.
    pub fn contains<'a>(&mut self, queue: QueueId, path: impl Fn(QueueId) -> &'a Path) -> bool {
        while self.known.len() <= queue.0 as usize {
            let next = QueueId(self.known.len() as u32);
            let path = path(next);
            let is_within = self.within.as_ref().is_none_or(|within| within.contains(path));
            self.known.push(is_within && self.pattern.matches(path));
        }
        self.known[queue.0 as usize]
    }
}

#[cfg(test)]
mod tests;
