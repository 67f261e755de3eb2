//! The feed of job transitions, in order, from a given index on.
//!
//! A client opens a feed ([`Request::Feed`](super::Request::Feed)), receives the index at which it
//! starts, and then takes a snapshot by listing jobs. A page contains the index that it reflects;
//! it includes events up to that index. The publisher stores a bounded tail of events. A client
//! that falls behind the tail is notified and takes a new snapshot, so it never misses events
//! unnoticed.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::codes::{JobChange, JobState};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::id::{Epoch, JobId};
use crate::limits::{FEED_EVENTS_MAX, QUEUES_MAX};
use crate::path::Path;

fields! {
    /// A position in a publisher's history: after that command of that start.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct FeedPosition {
        /// The publisher's start.
        pub epoch: Epoch,
        /// The last command whose events are all included.
        pub index: u64,
    }
}

/// Events of one feed: all events up to the command `upto`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedEvents {
    /// The number of the request that opened the feed.
    pub id: u64,
    /// The current position of the feed, from which it can be resumed.
    pub upto: FeedPosition,
    /// The queues of the events.
    pub paths: Vec<Path>,
    /// The events, in order.
    pub events: Vec<FeedEvent>,
}

/// A transition of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedEvent {
    /// The command that caused it.
    pub index: u64,
    /// Its time, in milliseconds since 1970 by the publisher's clock.
    pub at: u64,
    /// The job.
    pub job: JobId,
    /// Its queue: the index in [`FeedEvents::paths`].
    pub path: u32,
    /// The kind of transition.
    pub change: JobChange,
    /// The job's new state; `None` if the job is deleted.
    pub state: Option<JobState>,
    /// True for a scheduled job that waits for a retry.
    pub retrying: bool,
    /// The current attempt, or the last one; 0 before the first.
    pub attempt: u16,
}

codes! {
    /// Why a feed ended.
    FeedEnd, "end of a feed" {
        /// The client read too slowly.
        TooOld = 1, "TooOld: the publisher no longer stores the events since then; \
                     take a snapshot again";
    }
}

const RETRYING: u8 = 1;
const GONE: u8 = 2;

impl Encode for FeedEvents {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.upto.encode(out);
        self.paths.encode(out);
        out.u64(self.events.len() as u64);
        let (mut index, mut at) = (0, 0);
        for event in &self.events {
            // Neighbours are close, so each is encoded as the difference from the one before.
            out.i64(event.index.wrapping_sub(index) as i64);
            out.i64(event.at.wrapping_sub(at) as i64);
            (index, at) = (event.index, event.at);
            event.job.encode(out);
            out.u64(u64::from(event.path));
            event.change.encode(out);
            let retrying = if event.retrying { RETRYING } else { 0 };
            out.u8(retrying | if event.state.is_none() { GONE } else { 0 });
            if let Some(state) = event.state {
                state.encode(out);
            }
            out.u64(u64::from(event.attempt));
        }
    }
}

/// Six numbers and codes of a byte, and a job id of 16.
const EVENT_BYTES_MIN: usize = 22;

impl Decode for FeedEvents {
    fn decode(r: &mut Reader) -> Result<FeedEvents, WireError> {
        let id = r.u64()?;
        let upto = FeedPosition::decode(r)?;
        let paths: Vec<Path> = r.list("paths of a feed", QUEUES_MAX)?;
        let count = r.count("events of a feed", FEED_EVENTS_MAX, EVENT_BYTES_MIN)?;
        let mut events = Vec::with_capacity(count);
        let (mut index, mut at) = (0u64, 0u64);
        for _ in 0..count {
            index = index.wrapping_add(r.i64()? as u64);
            at = at.wrapping_add(r.i64()? as u64);
            let job = JobId::decode(r)?;
            let no_such_path = r.invalid("path of an event");
            let path = r.u32()?;
            if path as usize >= paths.len() {
                return Err(no_such_path);
            }
            let change = JobChange::decode(r)?;
            let wrong_flags = r.invalid("flags of an event");
            let flags = r.u8()?;
            if flags & !(RETRYING | GONE) != 0 {
                return Err(wrong_flags);
            }
            let state = if flags & GONE != 0 { None } else { Some(JobState::decode(r)?) };
            let retrying = flags & RETRYING != 0;
            let attempt = r.u16()?;
            events.push(FeedEvent { index, at, job, path, change, state, retrying, attempt });
        }
        Ok(FeedEvents { id, upto, paths, events })
    }
}
