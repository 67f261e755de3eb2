//! The requests of a writer for its publisher, and the answers.

use crate::codec::{Bounded, Decode, Encode, Reader, WireError, check_limit};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::limits::{REASON_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX, RESOLVER_GROUPS_MAX};
use crate::messages::resolver::{Digest, PathTexts, digest};
use crate::publisher_info::PublisherInfo;
use crate::terms::Terms;

fields! {
    /// A writer's first message, and its heartbeat. From now on the link writes for this publisher;
    /// any other link and every lower epoch of the publisher are superseded. Removes nothing.
    pub struct Announce {
        /// The request's number.
        pub id: u64,
        /// The publisher and its addresses.
        pub publisher: PublisherInfo,
        /// Digests of its publications, by bucket: their number is a power of two, and one for a
        /// heartbeat. Empty from a simple writer without digests: then every bucket is different.
        pub desired: Vec<Digest> = read_by(digest::buckets),
    }

    /// The answer to an announce.
    pub struct Announced {
        /// The request's number.
        pub id: u64,
        /// Digests of the replica's records of that publisher: as many as were sent, or fewer if
        /// the replica has fewer buckets; the writer then adds up its own. For each bucket that
        /// differs, the writer writes everything again, then confirms; or it first announces with
        /// more buckets.
        pub stored: Vec<Digest> = read_by(digest::buckets),
        /// A publisher is hidden after this long without traffic, in milliseconds. Half of it is
        /// the heartbeat.
        pub writer_ttl_ms: u64,
    }
}

codes! {
    /// The change to a path.
    Change, "change" {
        /// The publisher has the path.
        Publish = 1, "publish";
        /// The publisher no longer has the path.
        Unpublish = 2, "unpublish";
        /// The publisher creates any path at or below this path on request.
        PublishDefault = 3, "publish default";
        /// It no longer does.
        UnpublishDefault = 4, "unpublish default";
    }
}

impl Change {
    /// True if the change publishes something, with terms.
    pub fn publishes(self) -> bool {
        matches!(self, Change::Publish | Change::PublishDefault)
    }
}

/// Paths with the same change. The head is a record: later versions may add fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The change.
    pub change: Change,
    /// The terms; default and meaningless if the change unpublishes.
    pub terms: Terms,
    /// The paths.
    pub paths: PathTexts,
}

fields! {
    /// Changes, in order: at most 100,000 paths in all. Each is applied individually.
    pub struct Write {
        /// The request's number.
        pub id: u64,
        /// The changes.
        pub groups: Vec<Group> = read_by(groups),
    }

    /// The progress of a write, confirm or clear.
    pub struct Written {
        /// The request's number.
        pub id: u64,
        /// The request is done.
        pub last: bool,
        /// The number of its paths that are done, from the beginning.
        pub done: u64,
        /// Paths refused since the previous message.
        pub refused: Vec<RefusedPath> = at_most("refused paths", RESOLVER_BATCH_PATHS_MAX),
    }

    /// A refused path of a write; the other paths are applied.
    pub struct RefusedPath {
        /// Its index among all paths of the request, from 0.
        pub place: u32,
        /// The reason, for people.
        pub reason: String = cut("reason", REASON_BYTES_MAX),
    }
}

/// Reads the groups of a write; the limit applies to the paths of all groups together.
fn groups(r: &mut Reader) -> Result<Vec<Group>, WireError> {
    let (offset, mut paths) = (r.offset(), 0);
    r.list_of("groups of a write", RESOLVER_GROUPS_MAX, 6, |r| {
        let group = Group::decode(r)?;
        // Checked after each group: a byte of the frame may decode to 8 bytes of memory.
        paths += group.paths.len();
        check_limit(offset, "paths of a write", paths, RESOLVER_BATCH_PATHS_MAX)?;
        Ok(group)
    })
}

impl Encode for Group {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.change.encode(out);
            if self.change.publishes() {
                self.terms.encode(out);
            }
        });
        self.paths.encode(out);
    }
}

impl Decode for Group {
    fn decode(r: &mut Reader) -> Result<Group, WireError> {
        let (change, terms) = r.record(|r| {
            let change = Change::decode(r)?;
            let terms = if change.publishes() { Terms::decode(r)? } else { Terms::default() };
            Ok((change, terms))
        })?;
        let paths = PathTexts::read(r, "paths of a write", RESOLVER_BATCH_PATHS_MAX)?;
        Ok(Group { change, terms, paths })
    }
}
