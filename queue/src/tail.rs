//! The tail: the last events, for feeds that follow them. Pure.
//!
//! A reader is never shown a gap. What it has not read is here as a whole, or it is told `TooOld`;
//! what it has read and the log no longer holds is `Rewound`. So a tail knows its floor (the last
//! command whose events may be missing) and where each start lies in the log.

use std::collections::VecDeque;

use longshore_protocol::messages::work::{FeedPosition, RequestError};
use longshore_protocol::{Epoch, Glob, Path};

use crate::{Event, QueueId};

/// Events that a tail keeps.
pub const TAIL_EVENTS_MAX: usize = 65_536;
/// Starts that a tail keeps: a publisher that starts so often without an event is in another kind
/// of trouble.
const STARTS_MAX: usize = 1_024;

/// The last events of a publisher, in order.
#[derive(Clone, Debug)]
pub struct Tail {
    events: VecDeque<Event>,
    events_max: usize,
    /// The number of the first event in `events`: how many came before it.
    first: u64,
    /// Of commands up to this index, events may be missing.
    floor: u64,
    /// The start that the command at the floor belongs to.
    floor_epoch: Epoch,
    /// Starts beyond the floor, oldest first.
    starts: VecDeque<(u64, Epoch)>,
    /// The last command that is known here.
    index: u64,
    recording: bool,
}

/// A reader's place in a tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// Of commands up to this index everything was read.
    index: u64,
    /// The number of the next event.
    next: u64,
}

/// What a reading came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Of everything up to here nothing is left to read: what to resume from. Events of the command
    /// after it may be among those that were read.
    pub upto: FeedPosition,
    /// There is more to read.
    pub more: bool,
}

impl Tail {
    /// The tail of an empty log; it keeps at most so many events.
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

    /// The log goes on after a snapshot of all commands up to `index`, the last of which belong to
    /// the start of that epoch: nothing that they brought about is known here.
    pub fn resume(&mut self, index: u64, epoch: Epoch) {
        self.index = index;
        self.raise_floor(index);
        self.floor_epoch = epoch;
    }

    /// The present.
    pub fn position(&self) -> FeedPosition {
        FeedPosition { epoch: self.epoch(), index: self.index }
    }

    /// Events that are kept.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether events are kept.
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

    /// Commands up to `upto` have brought about these events, and nothing else since the last call.
    pub fn extend(&mut self, events: impl Iterator<Item = Event>, upto: u64) {
        debug_assert!(upto >= self.index, "commands come in order");
        for event in events {
            debug_assert!(event.index <= upto, "events come with their commands");
            if !self.recording || event.index <= self.floor {
                continue;
            }
            self.events.push_back(event);
            if self.events.len() > self.events_max {
                // All of that command's, even those to come: a part of them would be a gap.
                let oldest = self.events[0].index;
                self.raise_floor(oldest);
            }
        }
        self.index = upto;
        if !self.recording {
            self.raise_floor(upto);
        }
    }

    /// Events are kept from now on: those of commands beyond `index`, the last one that was applied
    /// without telling them.
    pub fn record_beyond(&mut self, index: u64) {
        if !self.recording {
            self.recording = true;
            self.raise_floor(index);
        }
    }

    /// No more events are kept, and those that were are forgotten.
    pub fn stop(&mut self) {
        self.recording = false;
        self.raise_floor(self.index);
    }

    /// A place to read from: after what was seen already, or, with none, after the present. Fails
    /// with `TooOld` when events since then are gone, and with `Rewound` when the log no longer
    /// holds what was seen.
    pub fn cursor(&self, after: Option<FeedPosition>) -> Result<Cursor, RequestError> {
        let Some(FeedPosition { epoch, index }) = after else {
            let next = self.first + self.events.len() as u64;
            return Ok(Cursor { index: self.index.max(self.floor), next });
        };
        if epoch > self.epoch() || (epoch == self.epoch() && index > self.index) {
            return Err(RequestError::Rewound);
        }
        // The first start after the one that was seen: from there on the log may say something
        // else.
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

    /// Where a reader stands.
    pub fn position_of(&self, cursor: &Cursor) -> FeedPosition {
        FeedPosition { epoch: self.epoch(), index: cursor.index }
    }

    /// True when there is something after a cursor: events, or commands without any.
    pub fn is_beyond(&self, cursor: &Cursor) -> bool {
        cursor.index < self.index
    }

    /// Reads on: adds the next events of the wanted queues to `out`, at most `most` of them, and
    /// moves the cursor. Fails with `TooOld`, and moves nothing, when events after the cursor are
    /// gone.
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
        // Events after a command beyond the floor are all here.
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

/// Which queues a pattern matches. Each is matched once: queues are numbered in order, and keep
/// their paths.
#[derive(Clone, Debug)]
pub struct QueueSet {
    pattern: Glob,
    known: Vec<bool>,
}

impl QueueSet {
    /// Those of that pattern.
    pub fn new(pattern: Glob) -> QueueSet {
        QueueSet { pattern, known: Vec::new() }
    }

    /// The pattern.
    pub fn pattern(&self) -> &Glob {
        &self.pattern
    }

    /// Whether it matches the queue of that number.
    pub fn contains<'a>(&mut self, queue: QueueId, path: impl Fn(QueueId) -> &'a Path) -> bool {
        while self.known.len() <= queue.0 as usize {
            let next = QueueId(self.known.len() as u32);
            self.known.push(self.pattern.matches(path(next)));
        }
        self.known[queue.0 as usize]
    }
}

#[cfg(test)]
mod tests;
