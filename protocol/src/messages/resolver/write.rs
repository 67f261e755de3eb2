//! What a writer says for its publisher, and the answers.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{REASON_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX, RESOLVER_GROUPS_MAX};
use crate::messages::resolver::{Digest, PathTexts, digest};
use crate::publisher_info::PublisherInfo;
use crate::refusal::codes;
use crate::terms::Terms;

/// A writer's first message, and its heartbeat. From here on the link writes for this publisher; a link that did so
/// before is superseded, and so is every lower epoch. Removes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announce {
    /// The request's number.
    pub id: u64,
    /// Who it is, and where it listens.
    pub publisher: PublisherInfo,
    /// Digests of what it wants published, by bucket: a power of two of them, one for a heartbeat. None of a simple writer, which
    /// cannot compare: every bucket counts as one that differs.
    pub wanted: Vec<Digest>,
}

/// The answer to an announce.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The request's number.
    pub id: u64,
    /// Digests of what the replica holds of that publisher: as many as were sent, or fewer, where it keeps fewer buckets; the writer then
    /// adds its own up. Of each bucket that differs, the writer writes everything again, then confirms; or it announces more buckets first.
    pub held: Vec<Digest>,
    /// A publisher that is silent this long is hidden, in milliseconds. Half of it is the heartbeat.
    pub writer_ttl_ms: u64,
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

/// Paths to which the same is done. The head is a record: later versions say more about the paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// What is done.
    pub change: Change,
    /// On which terms; of no meaning, and the default, where something is unpublished.
    pub terms: Terms,
    /// To which paths.
    pub paths: PathTexts,
}

/// Changes, in order: at most 100,000 paths in all. Each counts on its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The request's number.
    pub id: u64,
    /// The changes.
    pub groups: Vec<Group>,
}

/// How far a write, confirm or clear has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The request's number.
    pub id: u64,
    /// The request is done.
    pub last: bool,
    /// How many of its paths are done, from its beginning.
    pub done: u64,
    /// Those refused since the message before.
    pub refused: Vec<RefusedPath>,
}

/// A path of a write that was refused; the others count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedPath {
    /// Its place among all paths of the request, from 0.
    pub place: u32,
    /// Why, for people.
    pub reason: String,
}

impl Encode for Announce {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.publisher.encode(out);
        self.wanted.encode(out);
    }
}

impl Decode for Announce {
    fn decode(r: &mut Reader) -> Result<Announce, WireError> {
        Ok(Announce {
            id: r.u64()?,
            publisher: PublisherInfo::decode(r)?,
            wanted: digest::buckets(r)?,
        })
    }
}

impl Encode for Announced {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.held.encode(out);
        out.u64(self.writer_ttl_ms);
    }
}

impl Decode for Announced {
    fn decode(r: &mut Reader) -> Result<Announced, WireError> {
        Ok(Announced { id: r.u64()?, held: digest::buckets(r)?, writer_ttl_ms: r.u64()? })
    }
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
        let paths = PathTexts::decode(r, "paths of a write", RESOLVER_BATCH_PATHS_MAX)?;
        Ok(Group { change, terms, paths })
    }
}

impl Encode for Write {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        self.groups.encode(out);
    }
}

impl Decode for Write {
    fn decode(r: &mut Reader) -> Result<Write, WireError> {
        let id = r.u64()?;
        let offset = r.offset();
        let count = r.count("groups of a write", RESOLVER_GROUPS_MAX, 6)?;
        let (mut groups, mut paths) = (Vec::with_capacity(count.min(1_024)), 0);
        for _ in 0..count {
            let group = Group::decode(r)?;
            // Checked after each group: a byte of the frame may stand for 8 bytes of memory.
            paths += group.paths.len();
            if paths > RESOLVER_BATCH_PATHS_MAX {
                return Err(WireError::OverLimit {
                    offset,
                    what: "paths of a write",
                    value: paths as u64,
                    limit: RESOLVER_BATCH_PATHS_MAX as u64,
                });
            }
            groups.push(group);
        }
        Ok(Write { id, groups })
    }
}

impl Encode for Written {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.u64(self.done);
        self.refused.encode(out);
    }
}

impl Decode for Written {
    fn decode(r: &mut Reader) -> Result<Written, WireError> {
        Ok(Written {
            id: r.u64()?,
            last: r.bool()?,
            done: r.u64()?,
            refused: r.list("refused paths", RESOLVER_BATCH_PATHS_MAX)?,
        })
    }
}

impl Encode for RefusedPath {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.place));
        out.string_cut(&self.reason, REASON_BYTES_MAX);
    }
}

impl Decode for RefusedPath {
    fn decode(r: &mut Reader) -> Result<RefusedPath, WireError> {
        Ok(RefusedPath { place: r.u32()?, reason: r.string("reason", REASON_BYTES_MAX)? })
    }
}
