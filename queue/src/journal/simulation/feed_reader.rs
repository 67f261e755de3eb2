//! A client that follows the feed: it gets every event once, in order, and none is revoked.

use longshore_protocol::messages::work::{FeedPosition, RequestError};

use crate::tail::{Cursor, Tail};
use crate::{Event, QueueId};

/// Events of one read: so few that a command's events are split.
const READ_MAX: usize = 7;

/// The feed of one client.
#[derive(Clone, Default)]
pub(super) struct FeedReader {
    /// The position over all runs; none before the first.
    seen: Option<FeedPosition>,
    /// Its cursor in the present run's tail.
    cursor: Option<Cursor>,
    /// The index from which `events` is complete.
    since: u64,
    /// Received events that were not yet compared with the reference.
    events: Vec<Event>,
    /// A start recovered less than the client had seen; other commands may have reused the indexes.
    is_cut: bool,
}

impl FeedReader {
    /// Resumes at a publisher that has just started; `snapshot` is the index of the snapshot it
    /// restored, if any.
    pub(super) fn resume(&mut self, tail: &Tail, snapshot: Option<u64>) {
        let lost = std::mem::take(&mut self.is_cut);
        assert!(self.events.is_empty(), "they were compared with the reference");
        let cursor = match tail.cursor(self.seen) {
            Ok(cursor) => {
                assert!(!lost, "seen events are lost, and the tail does not report it");
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
        tail.cursor(None).expect("the present is always available")
    }

    /// Reads all available events.
    pub(super) fn read(&mut self, tail: &Tail, committed: u64) {
        let Some(cursor) = &mut self.cursor else { return };
        let all = |_: QueueId| true;
        loop {
            let read = tail.read(cursor, READ_MAX, all, &mut self.events);
            let read = read.expect("fewer events than the tail's limit");
            self.seen = Some(read.upto);
            if !read.more {
                break;
            }
        }
        let last = self.events.last().map_or(0, |event| event.index);
        assert!(last <= committed, "command {last} is published before it is durable");
    }

    /// Takes the events of commands up to `last`, with the range of commands that they cover. Later
    /// events are dropped.
    pub(super) fn take(&mut self, last: u64) -> (u64, u64, Vec<Event>) {
        let mut events = std::mem::take(&mut self.events);
        events.retain(|event| event.index <= last);
        let seen = self.seen.map_or(0, |seen| seen.index);
        self.is_cut |= seen > last;
        self.cursor = None;
        (self.since, seen.min(last), events)
    }
}
