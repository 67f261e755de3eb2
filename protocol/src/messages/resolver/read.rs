//! What a reader asks.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_GLOB_SEGMENTS_MAX, RESOLVER_GLOBS_MAX};
use crate::messages::resolver::{PathTexts, Tracker};
use crate::path::Path;

/// Who publishes these paths? Each is answered on its own, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolve {
    /// The request's number.
    pub id: u64,
    /// The paths; at most 100,000.
    pub paths: PathTexts,
}

/// What lies just below a path?
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    /// The request's number.
    pub id: u64,
    /// Below what.
    pub path: Path,
}

/// Which paths match at least one of these?
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListMatching {
    /// The request's number.
    pub id: u64,
    /// The globs; at most 256.
    pub globs: Vec<Glob>,
}

/// What lies two levels below a path, as rows and columns?
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The request's number.
    pub id: u64,
    /// Below what.
    pub path: Path,
}

/// Has anything changed since? Each tracker is answered on its own, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckChanged {
    /// The request's number.
    pub id: u64,
    /// What was asked before, and when; at most 100,000.
    pub tracked: Vec<Tracked>,
}

/// A path that was listed or resolved, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tracked {
    /// The path: what is at and below it counts, and the default that serves it.
    pub path: Path,
    /// As the answer told it.
    pub tracker: Tracker,
}

impl Encode for Resolve {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.paths.encode(out);
    }
}

impl Decode for Resolve {
    fn decode(r: &mut Reader) -> Result<Resolve, WireError> {
        Ok(Resolve {
            id: r.u64()?,
            paths: PathTexts::decode(r, "paths to resolve", RESOLVER_BATCH_PATHS_MAX)?,
        })
    }
}

impl Encode for List {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.path.encode(out);
    }
}

impl Decode for List {
    fn decode(r: &mut Reader) -> Result<List, WireError> {
        Ok(List { id: r.u64()?, path: Path::decode(r)? })
    }
}

impl Encode for ListMatching {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.globs.encode(out);
    }
}

impl Decode for ListMatching {
    fn decode(r: &mut Reader) -> Result<ListMatching, WireError> {
        Ok(ListMatching { id: r.u64()?, globs: globs(r)? })
    }
}

/// Globs of one request. A few bytes of a glob may stand for thousands of segments: they are
/// counted as they are read.
pub(super) fn globs(r: &mut Reader) -> Result<Vec<Glob>, WireError> {
    let offset = r.offset();
    let count = r.count("globs", RESOLVER_GLOBS_MAX, 1)?;
    let (mut globs, mut segments) = (Vec::with_capacity(count), 0);
    for _ in 0..count {
        let glob = Glob::decode(r)?;
        segments += glob.alternatives().map(|parts| parts.len() + 1).sum::<usize>();
        if segments > RESOLVER_GLOB_SEGMENTS_MAX {
            let (what, limit) = ("segments of globs", RESOLVER_GLOB_SEGMENTS_MAX as u64);
            return Err(WireError::OverLimit { offset, what, value: segments as u64, limit });
        }
        globs.push(glob);
    }
    Ok(globs)
}

impl Encode for Table {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.path.encode(out);
    }
}

impl Decode for Table {
    fn decode(r: &mut Reader) -> Result<Table, WireError> {
        Ok(Table { id: r.u64()?, path: Path::decode(r)? })
    }
}

impl Encode for CheckChanged {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.tracked.encode(out);
    }
}

impl Decode for CheckChanged {
    fn decode(r: &mut Reader) -> Result<CheckChanged, WireError> {
        Ok(CheckChanged { id: r.u64()?, tracked: r.list("trackers", RESOLVER_BATCH_PATHS_MAX)? })
    }
}

impl Encode for Tracked {
    fn encode(&self, out: &mut FrameWriter) {
        self.path.encode(out);
        self.tracker.encode(out);
    }
}

impl Decode for Tracked {
    fn decode(r: &mut Reader) -> Result<Tracked, WireError> {
        Ok(Tracked { path: Path::decode(r)?, tracker: Tracker::decode(r)? })
    }
}
