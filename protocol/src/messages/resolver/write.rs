//! What a writer sends for its publisher, and the answers.

use crate::codec::{Bounded, Decode, Encode, Reader, WireError, within};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::limits::{REASON_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX, RESOLVER_GROUPS_MAX};
use crate::messages::resolver::{Digest, PathTexts, digest};
use crate::publisher_info::PublisherInfo;
use crate::terms::Terms;

fields! {
    /// A writer's first message, and its heartbeat. From here on the link writes for this
    /// publisher; a link that did so before is superseded, and so is every lower epoch. Removes
    /// nothing.
    pub struct Announce {
        /// The request's number.
        pub id: u64,
        /// Who it is, and where it listens.
        pub publisher: PublisherInfo,
        /// Digests of what it wants published, by bucket: a power of two of them, one for a
        /// heartbeat. None of a simple writer, which cannot compare: every bucket counts as one
        /// that differs.
        pub wanted: Vec<Digest> = read_by(digest::buckets),
    }

    /// The answer to an announce.
    pub struct Announced {
        /// The request's number.
        pub id: u64,
        /// Digests of what the replica holds of that publisher: as many as were sent, or fewer,
        /// where it keeps fewer buckets; the writer then adds its own up. Of each bucket that
        /// differs, the writer writes everything again, then confirms; or it announces more buckets
        /// first.
        pub held: Vec<Digest> = read_by(digest::buckets),
        /// A publisher that is silent this long is hidden, in milliseconds. Half of it is the
        /// heartbeat.
        pub writer_ttl_ms: u64,
    }
}

codes! {
    /// What to do with a path.
    Change, "change" {
        /// The publisher holds the path.
        Publish = 1, "publish";
        /// It no longer does.
        Unpublish = 2, "unpublish";
        /// The publisher makes whatever is asked for at or below the path.
        PublishDefault = 3, "publish default";
        /// It no longer does.
        UnpublishDefault = 4, "unpublish default";
    }
}

impl Change {
    /// Something is held from here on, on terms.
    pub fn publishes(self) -> bool {
        matches!(self, Change::Publish | Change::PublishDefault)
    }
}

/// Paths to which the same is done. The head is a record: later versions may add fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// What is done.
    pub change: Change,
    /// On which terms; of no meaning, and the default, where something is unpublished.
    pub terms: Terms,
    /// To which paths.
    pub paths: PathTexts,
}

fields! {
    /// Changes, in order: at most 100,000 paths in all. Each counts on its own.
    pub struct Write {
        /// The request's number.
        pub id: u64,
        /// The changes.
        pub groups: Vec<Group> = read_by(groups),
    }

    /// How far a write, confirm or clear has come.
    pub struct Written {
        /// The request's number.
        pub id: u64,
        /// The request is done.
        pub last: bool,
        /// How many of its paths are done, from its beginning.
        pub done: u64,
        /// Those refused since the message before.
        pub refused: Vec<RefusedPath> = at_most("refused paths", RESOLVER_BATCH_PATHS_MAX),
    }

    /// A path of a write that was refused; the others count.
    pub struct RefusedPath {
        /// Its place among all paths of the request, from 0.
        pub place: u32,
        /// Why, for people.
        pub reason: String = cut("reason", REASON_BYTES_MAX),
    }
}

/// The groups of a write: the paths of all of them together are limited.
fn groups(r: &mut Reader) -> Result<Vec<Group>, WireError> {
    let (offset, mut paths) = (r.offset(), 0);
    r.list_of("groups of a write", RESOLVER_GROUPS_MAX, 6, |r| {
        let group = Group::decode(r)?;
        // Checked after each group: a byte of the frame may stand for 8 bytes of memory.
        paths += group.paths.len();
        within(offset, "paths of a write", paths, RESOLVER_BATCH_PATHS_MAX)?;
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
