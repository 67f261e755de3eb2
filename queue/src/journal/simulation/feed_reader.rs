//! A client that follows the feed: all that happened is told once, in order, and stays true.

use longshore_protocol::messages::work::{FeedPosition, RequestError};

use crate::tail::{Cursor, Tail};
use crate::{Event, QueueId};

/// Events read at a time: so few that a command's are read in parts.
const READ_MAX: usize = 7;

/// What one client has seen of the feed.
#[derive(Clone, Default)]
pub(super) struct FeedReader {
    /// Up to where all was seen, over all runs; none before the first.
    seen: Option<FeedPosition>,
    /// Its place in the present run's tail.
    cursor: Option<Cursor>,
    /// Since when `events` has everything.
    since: u64,
    /// Events that were told and not yet held against what happened.
    events: Vec<Event>,
    /// A start has found less than what was seen; there may be other commands in its place since.
    is_cut: bool,
}

impl FeedReader {
    /// Comes back to a publisher that has just started: with a snapshot of the state up to that
    /// command, if it read one.
    pub(super) fn resume(&mut self, tail: &Tail, snapshot: Option<u64>) {
        let lost = std::mem::take(&mut self.is_cut);
        assert!(self.events.is_empty(), "they were held against what happened");
        let cursor = match tail.cursor(self.seen) {
            Ok(cursor) => {
                assert!(!lost, "what was seen is gone, and nobody says so");
                cursor
            }
            Err(RequestError::Rewound) if lost => self.begin(tail),
            Err(RequestError::TooOld) => {
                let seen = self.seen.map_or(0, |seen| seen.index);
                assert!(snapshot.is_some_and(|index| index > seen), "{seen} is not too old");
                self.begin(tail)
            }
            Err(why) => panic!("after {:?}: {why}", self.seen),
        };
        self.seen = Some(tail.position_of(&cursor));
        self.since = tail.position_of(&cursor).index;
        self.cursor = Some(cursor);
    }

    fn begin(&self, tail: &Tail) -> Cursor {
        tail.cursor(None).expect("the present is always there")
    }

    /// Reads all that there is to read.
    pub(super) fn read(&mut self, tail: &Tail, committed: u64) {
        let Some(cursor) = &mut self.cursor else { return };
        let all = |_: QueueId| true;
        loop {
            let read = tail.read(cursor, READ_MAX, all, &mut self.events);
            let read = read.expect("fewer events than a tail keeps");
            self.seen = Some(read.upto);
            if !read.more {
                break;
            }
        }
        let last = self.events.last().map_or(0, |event| event.index);
        assert!(last <= committed, "command {last} is told before it is durable");
    }

    /// Gives what was seen of commands up to `last`: since which command, up to which one, and
    /// what. The rest, if there is any, is forgotten.
    pub(super) fn take(&mut self, last: u64) -> (u64, u64, Vec<Event>) {
        let mut events = std::mem::take(&mut self.events);
        events.retain(|event| event.index <= last);
        let seen = self.seen.map_or(0, |seen| seen.index);
        self.is_cut |= seen > last;
        self.cursor = None;
        (self.since, seen.min(last), events)
    }
}
