//! Watches over publishers.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::Incarnation;
use crate::limits::{REASON_BYTES_MAX, RESOLVER_PUBLISHERS_MAX};
use crate::publisher_info::PublisherInfo;

/// Tell which publishers could serve what matches a glob: those that publish a path that matches, and those with a default
/// at or below which a path could. Answered by [`Publishers`] at once, and again whenever that set has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchPublishers {
    /// The client's number for the watch; a watch of the same number is replaced.
    pub watch: u32,
    /// The glob.
    pub glob: Glob,
}

/// All publishers of a watch: always the whole set, so that pushes a slow watcher has missed need no repair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publishers {
    /// Which watch.
    pub watch: u32,
    /// The run of the replica that tells it.
    pub incarnation: Incarnation,
    /// The replica's revision that this reflects: rises with every change, within one incarnation.
    pub revision: u64,
    /// False while the replica is warming: who is missing may not have been told of yet.
    pub complete: bool,
    /// The publishers, by id.
    pub publishers: Vec<PublisherInfo>,
}

/// A watch was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchRefused {
    /// Which.
    pub watch: u32,
    /// Why, for people.
    pub reason: String,
}

impl Encode for WatchPublishers {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.watch));
        self.glob.encode(out);
    }
}

impl Decode for WatchPublishers {
    fn decode(r: &mut Reader) -> Result<WatchPublishers, WireError> {
        Ok(WatchPublishers { watch: r.u32()?, glob: Glob::decode(r)? })
    }
}

impl Encode for Publishers {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.watch));
        self.incarnation.encode(out);
        out.u64(self.revision);
        out.bool(self.complete);
        self.publishers.encode(out);
    }
}

impl Decode for Publishers {
    fn decode(r: &mut Reader) -> Result<Publishers, WireError> {
        Ok(Publishers {
            watch: r.u32()?,
            incarnation: Incarnation::decode(r)?,
            revision: r.u64()?,
            complete: r.bool()?,
            publishers: r.list("publishers", RESOLVER_PUBLISHERS_MAX)?,
        })
    }
}

impl Encode for WatchRefused {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.watch));
        out.string_cut(&self.reason, REASON_BYTES_MAX);
    }
}

impl Decode for WatchRefused {
    fn decode(r: &mut Reader) -> Result<WatchRefused, WireError> {
        Ok(WatchRefused { watch: r.u32()?, reason: r.string("reason", REASON_BYTES_MAX)? })
    }
}
