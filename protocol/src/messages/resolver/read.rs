//! What a reader asks.

use crate::codec::{Decode, Reader, WireError, within};
use crate::fields::fields;
use crate::glob::Glob;
use crate::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_GLOB_SEGMENTS_MAX, RESOLVER_GLOBS_MAX};
use crate::messages::resolver::PathTexts;
use crate::path::Path;

fields! {
    /// Who publishes these paths? Each is answered on its own, in order.
    pub struct Resolve {
        /// The request's number.
        pub id: u64,
        /// The paths; at most 100,000.
        pub paths: PathTexts = at_most("paths to resolve", RESOLVER_BATCH_PATHS_MAX),
    }

    /// What lies just below a path?
    pub struct List {
        /// The request's number.
        pub id: u64,
        /// Below what.
        pub path: Path,
    }

    /// Which paths match at least one of these?
    pub struct ListMatching {
        /// The request's number.
        pub id: u64,
        /// The globs; at most 256.
        pub globs: Vec<Glob> = read_by(globs),
    }

    /// What lies two levels below a path, as rows and columns?
    pub struct Table {
        /// The request's number.
        pub id: u64,
        /// Below what.
        pub path: Path,
    }
}

/// Globs of one request. A few bytes of a glob may stand for thousands of segments: they are
/// counted as they are read.
pub(super) fn globs(r: &mut Reader) -> Result<Vec<Glob>, WireError> {
    let (offset, mut segments) = (r.offset(), 0);
    r.list_of("globs", RESOLVER_GLOBS_MAX, 1, |r| {
        let glob = Glob::decode(r)?;
        segments += glob.alternatives().map(|parts| parts.len() + 1).sum::<usize>();
        within(offset, "segments of globs", segments, RESOLVER_GLOB_SEGMENTS_MAX)?;
        Ok(glob)
    })
}
