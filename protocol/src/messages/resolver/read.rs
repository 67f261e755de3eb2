//! The requests of a reader.

use crate::codec::{Decode, Reader, WireError, check_limit};
use crate::fields::fields;
use crate::glob::Glob;
use crate::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_GLOB_SEGMENTS_MAX, RESOLVER_GLOBS_MAX};
use crate::messages::resolver::PathTexts;
use crate::path::Path;

fields! {
    /// Queries the publishers of paths. Each path is answered individually, in order.
    pub struct Resolve {
        /// The request's number.
        pub id: u64,
        /// The paths; at most 100,000.
        pub paths: PathTexts = at_most("paths to resolve", RESOLVER_BATCH_PATHS_MAX),
    }

    /// Lists the children of a path.
    pub struct List {
        /// The request's number.
        pub id: u64,
        /// The parent path.
        pub path: Path,
    }

    /// Lists the paths that match at least one glob.
    pub struct ListMatching {
        /// The request's number.
        pub id: u64,
        /// The globs; at most 256.
        pub globs: Vec<Glob> = read_by(globs),
    }

    /// Queries the children and grandchildren of a path as rows and columns.
    pub struct Table {
        /// The request's number.
        pub id: u64,
        /// The parent path.
        pub path: Path,
    }
}

/// Reads the globs of one request. A few bytes of a glob may expand to thousands of segments, so
/// they are counted while reading.
pub(super) fn globs(r: &mut Reader) -> Result<Vec<Glob>, WireError> {
    let (offset, mut segments) = (r.offset(), 0);
    r.list_of("globs", RESOLVER_GLOBS_MAX, 1, |r| {
        let glob = Glob::decode(r)?;
        segments += glob.alternatives().map(|parts| parts.len() + 1).sum::<usize>();
        check_limit(offset, "segments of globs", segments, RESOLVER_GLOB_SEGMENTS_MAX)?;
        Ok(glob)
    })
}
