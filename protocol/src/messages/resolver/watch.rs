//! Watches: over publishers, and over paths.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::PublisherId;
use crate::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_PUBLISHERS_MAX, RESOLVER_WATCHES_MAX};
use crate::messages::resolver::read::globs;
use crate::messages::resolver::{PathListed, Tracker};
use crate::publisher_info::PublisherInfo;
use crate::refusal::codes;

/// Tell which publishers could serve what matches a glob: those that publish a path that matches, and those with a default
/// at or below which a path could. Answered by [`Publishers`] at once, and again whenever that set has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchPublishers {
    /// The request's number: a refusal names it.
    pub id: u64,
    /// The client's number for the watch; a watch of the same number is replaced.
    pub watch: u32,
    /// The glob.
    pub glob: Glob,
}

/// All publishers of a watch: the whole set, so that pushes a slow watcher has missed need no repair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publishers {
    /// Which watch.
    pub watch: u32,
    /// As of when.
    pub tracker: Tracker,
    /// False while the replica is warming: who is missing may not have been told of yet.
    pub complete: bool,
    /// The publishers, by id.
    pub publishers: Vec<PublisherInfo>,
}

/// One publisher is gone from these watches: said in place of the whole set, to watchers that have been told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherGone {
    /// Which watches.
    pub watches: Vec<u32>,
    /// As of when.
    pub tracker: Tracker,
    /// False while the replica is warming.
    pub complete: bool,
    /// Who.
    pub publisher: PublisherId,
    /// Why.
    pub departure: Departure,
}

codes! {
    /// Why a publisher can no longer be seen.
    Departure, "departure" {
        /// It was silent for a `writer_ttl` (120 s unless told otherwise): it hangs, died, or is cut off. It may come back.
        Silent = 1, "silent";
        /// It said that it stops, and took its paths back.
        Stopped = 2, "stopped";
        /// It was there when the replica stopped, and has not come back since the replica's restart.
        NotBack = 3, "not back since the replica's restart";
    }
}

/// Tell which paths match one of these globs, now and whenever one comes or goes. Answered by [`PathSnapshot`]s, then by
/// [`PathChanges`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchPaths {
    /// The request's number: a refusal names it.
    pub id: u64,
    /// The client's number for the watch; a watch of the same number, of either kind, is replaced.
    pub watch: u32,
    /// The globs; at most 256.
    pub globs: Vec<Glob>,
}

/// Some of the paths that a watch sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathSnapshot {
    /// Which watch.
    pub watch: u32,
    /// A snapshot begins: what was told before is to be compared with it, and what it lacks is gone. So does every watch, and so it starts
    /// over when its client did not read fast enough for changes to be kept for it.
    pub first: bool,
    /// The snapshot is whole. Changes follow.
    pub last: bool,
    /// False while the replica is warming: what is missing may not have been told of yet.
    pub complete: bool,
    /// As of when it was begun.
    pub tracker: Tracker,
    /// The paths, none twice within a snapshot, in no promised order.
    pub paths: Vec<PathListed>,
}

/// What has changed since a watch was told last. It says what is so now: a change told twice does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathChanges {
    /// For all of these watches.
    pub watches: Vec<u32>,
    /// False while the replica is warming.
    pub complete: bool,
    /// As of when.
    pub tracker: Tracker,
    /// The paths as they are now; one that is nothing any more is gone.
    pub paths: Vec<PathListed>,
}

impl Encode for WatchPublishers {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.u64(u64::from(self.watch));
        self.glob.encode(out);
    }
}

impl Decode for WatchPublishers {
    fn decode(r: &mut Reader) -> Result<WatchPublishers, WireError> {
        Ok(WatchPublishers { id: r.u64()?, watch: r.u32()?, glob: Glob::decode(r)? })
    }
}

impl Encode for Publishers {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.watch));
        self.tracker.encode(out);
        out.bool(self.complete);
        self.publishers.encode(out);
    }
}

impl Decode for Publishers {
    fn decode(r: &mut Reader) -> Result<Publishers, WireError> {
        Ok(Publishers {
            watch: r.u32()?,
            tracker: Tracker::decode(r)?,
            complete: r.bool()?,
            publishers: r.list("publishers", RESOLVER_PUBLISHERS_MAX)?,
        })
    }
}

impl Encode for PublisherGone {
    fn encode(&self, out: &mut FrameWriter) {
        watches(&self.watches, out);
        self.tracker.encode(out);
        out.bool(self.complete);
        self.publisher.encode(out);
        self.departure.encode(out);
    }
}

impl Decode for PublisherGone {
    fn decode(r: &mut Reader) -> Result<PublisherGone, WireError> {
        Ok(PublisherGone {
            watches: read_watches(r)?,
            tracker: Tracker::decode(r)?,
            complete: r.bool()?,
            publisher: PublisherId::decode(r)?,
            departure: Departure::decode(r)?,
        })
    }
}

impl Encode for WatchPaths {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.u64(u64::from(self.watch));
        self.globs.encode(out);
    }
}

impl Decode for WatchPaths {
    fn decode(r: &mut Reader) -> Result<WatchPaths, WireError> {
        let (id, watch) = (r.u64()?, r.u32()?);
        Ok(WatchPaths { id, watch, globs: globs(r)? })
    }
}

impl Encode for PathSnapshot {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.watch));
        out.bool(self.first);
        out.bool(self.last);
        out.bool(self.complete);
        self.tracker.encode(out);
        self.paths.encode(out);
    }
}

impl Decode for PathSnapshot {
    fn decode(r: &mut Reader) -> Result<PathSnapshot, WireError> {
        Ok(PathSnapshot {
            watch: r.u32()?,
            first: r.bool()?,
            last: r.bool()?,
            complete: r.bool()?,
            tracker: Tracker::decode(r)?,
            paths: r.list("paths of a snapshot", RESOLVER_BATCH_PATHS_MAX)?,
        })
    }
}

impl Encode for PathChanges {
    fn encode(&self, out: &mut FrameWriter) {
        watches(&self.watches, out);
        out.bool(self.complete);
        self.tracker.encode(out);
        self.paths.encode(out);
    }
}

impl Decode for PathChanges {
    fn decode(r: &mut Reader) -> Result<PathChanges, WireError> {
        Ok(PathChanges {
            watches: read_watches(r)?,
            complete: r.bool()?,
            tracker: Tracker::decode(r)?,
            paths: r.list("paths that changed", RESOLVER_BATCH_PATHS_MAX)?,
        })
    }
}

fn watches(watches: &[u32], out: &mut FrameWriter) {
    out.u64(watches.len() as u64);
    watches.iter().for_each(|&watch| out.u64(u64::from(watch)));
}

fn read_watches(r: &mut Reader) -> Result<Vec<u32>, WireError> {
    let count = r.count("watches", RESOLVER_WATCHES_MAX, 1)?;
    (0..count).map(|_| r.u32()).collect()
}
