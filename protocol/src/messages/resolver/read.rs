//! What a reader asks.

use bytes::Bytes;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::limits::{PATH_TEXT_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX, RESOLVER_GLOBS_MAX};
use crate::path::Path;

/// A text that should be a path, as it came: checked one by one by whoever acts on it, so that one bad path never costs
/// the others their answer. A slice of the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathText(Bytes);

impl PathText {
    /// The text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The path, or what is wrong with it, for people.
    pub fn parse(&self) -> Result<Path, String> {
        let text = self.as_str().ok_or("the path is not UTF-8")?;
        Path::new(text).map_err(|error| error.to_string())
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is no text at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&Path> for PathText {
    fn from(path: &Path) -> PathText {
        PathText(Bytes::copy_from_slice(path.as_str().as_bytes()))
    }
}

impl From<Bytes> for PathText {
    fn from(bytes: Bytes) -> PathText {
        PathText(bytes)
    }
}

impl Encode for PathText {
    fn encode(&self, out: &mut FrameWriter) {
        out.bytes(&self.0);
    }
}

impl Decode for PathText {
    fn decode(r: &mut Reader) -> Result<PathText, WireError> {
        Ok(PathText(r.bytes("path length", PATH_TEXT_BYTES_MAX)?))
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
