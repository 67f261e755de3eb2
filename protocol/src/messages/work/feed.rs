//! The feed of transitions: what happened to which job, in order, from a known index on.
//!
//! A client opens a feed ([`Request::Feed`](super::Request::Feed)), is told the index from which it
//! follows, and then takes a snapshot by listing jobs: a page names the index that it reflects, and
//! events up to it are in it already. The publisher keeps a bounded tail of events; a client that
//! falls behind it is told so, and takes a new snapshot: never a gap.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::id::{Epoch, JobId};
use crate::limits::{FEED_EVENTS_MAX, QUEUES_MAX};
use crate::path::Path;
use crate::refusal::{JobChange, JobState};

fields! {
    /// A place in a publisher's life: after that command of that start.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct FeedPosition {
        /// The publisher's start.
        pub epoch: Epoch,
        /// The last command of which everything was seen.
        pub index: u64,
    }
}

/// Events of one feed, all that the commands up to `upto` brought about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedEvents {
    /// The number of the request that opened the feed.
    pub id: u64,
    /// Where the feed stands now: what to resume from.
    pub upto: FeedPosition,
    /// The queues that the events name.
    pub paths: Vec<Path>,
    /// What happened, in order.
    pub events: Vec<FeedEvent>,
}

/// What happened to a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedEvent {
    /// The command that brought it about.
    pub index: u64,
    /// When, in milliseconds since 1970 by the publisher's clock.
    pub at: u64,
    /// The job.
    pub job: JobId,
    /// Its queue, as its place in [`FeedEvents::paths`].
    pub path: u32,
    /// What happened.
    pub change: JobChange,
    /// The job's state since; none when it is no longer kept.
    pub state: Option<JobState>,
    /// True of a scheduled job that waits for a retry.
    pub retrying: bool,
    /// The attempt that runs, or the last one made; 0 before the first.
    pub attempt: u16,
}

codes! {
    /// Why a feed ended.
    FeedEnd, "end of a feed" {
        /// The client was slower than what happened.
        TooOld = 1, "TooOld: more has happened since than the publisher keeps; take a snapshot again";
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
            // Neighbours are close: each is the difference from the one before.
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

impl Decode for FeedEvents {
    fn decode(r: &mut Reader) -> Result<FeedEvents, WireError> {
        let id = r.u64()?;
        let upto = FeedPosition::decode(r)?;
        let paths: Vec<Path> = r.list("paths of a feed", QUEUES_MAX)?;
        let count = r.count("events of a feed", FEED_EVENTS_MAX, 22)?;
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
