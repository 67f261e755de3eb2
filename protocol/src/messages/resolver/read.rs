//! What a reader asks.

use bytes::Bytes;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::limits::{PATH_TEXT_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX, RESOLVER_GLOBS_MAX};
use crate::messages::resolver::Tracker;
use crate::path::Path;

/// A text that should be a path, as it came: checked one by one by whoever acts on it, so that one bad path never costs
/// the others their answer. A slice of the frame, or a path that is to be sent: nothing is copied.
#[derive(Clone, Debug)]
pub struct PathText(Text);

#[derive(Clone, Debug)]
enum Text {
    Read(Bytes),
    Path(Path),
}

impl PathText {
    /// The text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Text::Read(bytes) => std::str::from_utf8(bytes).ok(),
            Text::Path(path) => Some(path.as_str()),
        }
    }

    /// The text as it came.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Read(bytes) => bytes,
            Text::Path(path) => path.as_str().as_bytes(),
        }
    }

    /// The text, which is that of a path; or what is wrong with it, for people.
    pub fn check(&self) -> Result<&str, String> {
        let text = self.as_str().ok_or("the path is not UTF-8")?;
        Path::check(text).map(|()| text).map_err(|error| error.to_string())
    }

    /// The path, or what is wrong with it, for people.
    pub fn parse(&self) -> Result<Path, String> {
        let text = self.as_str().ok_or("the path is not UTF-8")?;
        Path::new(text).map_err(|error| error.to_string())
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// True when there is no text at all.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

impl PartialEq for PathText {
    fn eq(&self, other: &PathText) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PathText {}

impl From<&Path> for PathText {
    fn from(path: &Path) -> PathText {
        PathText(Text::Path(path.clone()))
    }
}

impl From<Bytes> for PathText {
    fn from(bytes: Bytes) -> PathText {
        PathText(Text::Read(bytes))
    }
}

impl Encode for PathText {
    fn encode(&self, out: &mut FrameWriter) {
        out.bytes(self.as_bytes());
    }
}

impl Decode for PathText {
    fn decode(r: &mut Reader) -> Result<PathText, WireError> {
        Ok(PathText(Text::Read(r.bytes("path length", PATH_TEXT_BYTES_MAX)?)))
    }
}

/// Who publishes these paths? Each is answered on its own, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolve {
    /// The request's number.
    pub id: u64,
    /// The paths; at most 100,000.
    pub paths: Vec<PathText>,
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
        Ok(Resolve { id: r.u64()?, paths: r.list("paths to resolve", RESOLVER_BATCH_PATHS_MAX)? })
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
        Ok(ListMatching { id: r.u64()?, globs: r.list("globs", RESOLVER_GLOBS_MAX)? })
    }
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
