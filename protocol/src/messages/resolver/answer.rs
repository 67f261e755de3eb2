//! What a replica answers to readers.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{
    PATH_SEGMENT_BYTES_MAX, PUBLISHERS_PER_PATH_MAX, REASON_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX,
    RESOLVER_PUBLISHERS_MAX, TERMS_MAX,
};
use crate::messages::resolver::Tracker;
use crate::path::Path;
use crate::publisher_info::PublisherInfo;
use crate::terms::Terms;

/// Answers to the next paths of a request, in their order. A publisher is told of once, a set of publishers too: paths
/// with the same publishers cost three bytes each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The request's number.
    pub id: u64,
    /// The request is answered whole.
    pub last: bool,
    /// False while the replica is warming: a "no" may mean that it has not been told yet.
    pub complete: bool,
    /// As of when.
    pub tracker: Tracker,
    /// The publishers that the sets name.
    pub publishers: Vec<PublisherInfo>,
    /// The terms that the sets name.
    pub terms: Vec<Terms>,
    /// The sets that the answers name.
    pub sets: Vec<Vec<SetMember>>,
    /// One answer for each path.
    pub answers: Vec<PathAnswer>,
}

/// A publisher in a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetMember {
    /// Its place in [`Resolved::publishers`].
    pub publisher: u32,
    /// On which terms it publishes the path, or declares the default: their place in [`Resolved::terms`].
    pub terms: u32,
}

/// What became of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathAnswer {
    /// Nobody publishes it, and no default covers it.
    NotFound,
    /// These publish it.
    Published {
        /// The set's place in [`Resolved::sets`].
        set: u32,
        /// The publishers of the nearest default at or above it, if there is one: the next candidates
        /// for a new job while none of `set` can be reached.
        default: Option<u32>,
    },
    /// Nobody publishes it; these have declared the default nearest above it.
    ByDefault {
        /// The set's place in [`Resolved::sets`].
        set: u32,
    },
    /// This path, and no other, was refused.
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// The replica said something that this version does not know: as good as a refusal.
    Unknown {
        /// Which.
        kind: u8,
    },
}

/// Some of the paths that were asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The request's number.
    pub id: u64,
    /// The request is answered whole.
    pub last: bool,
    /// False while the replica is warming: what is not listed may not have been told of yet.
    pub complete: bool,
    /// As of when the listing began: what changed since is a change.
    pub tracker: Tracker,
    /// The paths, none twice within one request, in no promised order.
    pub paths: Vec<PathListed>,
}

/// One path of a listing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PathListed {
    /// The path.
    pub path: Path,
    /// Somebody publishes it as a queue.
    pub queue: bool,
    /// Somebody publishes it as a live value.
    pub value: bool,
    /// Somebody has declared a default for what is at and below it.
    pub default: bool,
}

impl PathListed {
    /// Somebody publishes it. A listed path that nobody publishes lies above one.
    pub fn published(&self) -> bool {
        self.queue || self.value
    }
}

/// Some of a table: what lies below a path, as rows, and what lies below those, as columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableAnswer {
    /// The request's number.
    pub id: u64,
    /// The request is answered whole.
    pub last: bool,
    /// False while the replica is warming.
    pub complete: bool,
    /// As of when the table was begun.
    pub tracker: Tracker,
    /// Names of rows, none twice within one request, in no promised order.
    pub rows: Vec<String>,
    /// Columns of rows told of since the message before; those of all messages are to be added up.
    pub columns: Vec<Column>,
}

/// A column of a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Column {
    /// Its name: the last segment of the path in each of its cells.
    pub name: String,
    /// How many rows have it.
    pub rows: u64,
}

/// Which trackers have changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The request's number.
    pub id: u64,
    /// The request is answered whole.
    pub last: bool,
    /// False while the replica is warming.
    pub complete: bool,
    /// As of when.
    pub tracker: Tracker,
    /// For each of the next trackers: something may have changed. False is exact.
    pub changed: Vec<bool>,
}

impl Encode for Resolved {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.bool(self.complete);
        self.tracker.encode(out);
        self.publishers.encode(out);
        self.terms.encode(out);
        out.u64(self.sets.len() as u64);
        for set in &self.sets {
            set.encode(out);
        }
        self.answers.encode(out);
    }
}

impl Decode for Resolved {
    fn decode(r: &mut Reader) -> Result<Resolved, WireError> {
        let (id, last, complete) = (r.u64()?, r.bool()?, r.bool()?);
        let tracker = Tracker::decode(r)?;
        let publishers: Vec<PublisherInfo> = r.list("publishers", RESOLVER_PUBLISHERS_MAX)?;
        let terms: Vec<Terms> = r.list("terms", TERMS_MAX)?;
        let count = r.count("publisher sets", RESOLVER_BATCH_PATHS_MAX, 1)?;
        let mut sets = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            let unknown = r.invalid("publisher or terms of a set");
            let set: Vec<SetMember> = r.list("publishers of a set", PUBLISHERS_PER_PATH_MAX)?;
            let known = |member: &SetMember| {
                (member.publisher as usize) < publishers.len()
                    && (member.terms as usize) < terms.len()
            };
            if !set.iter().all(known) {
                return Err(unknown);
            }
            sets.push(set);
        }
        let unknown = r.invalid("set of an answer");
        let answers: Vec<PathAnswer> = r.list("path answers", RESOLVER_BATCH_PATHS_MAX)?;
        if answers.iter().flat_map(PathAnswer::sets).any(|set| set as usize >= sets.len()) {
            return Err(unknown);
        }
        Ok(Resolved { id, last, complete, tracker, publishers, terms, sets, answers })
    }
}

/// A record: later versions say more about what a publisher is to the paths of the set.
impl Encode for SetMember {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            out.u64(u64::from(self.publisher));
            out.u64(u64::from(self.terms));
        });
    }
}

impl Decode for SetMember {
    fn decode(r: &mut Reader) -> Result<SetMember, WireError> {
        r.record(|r| Ok(SetMember { publisher: r.u32()?, terms: r.u32()? }))
    }
}

/// Kinds of answers from here on, of later versions (a referral, say), are records: who does not know them passes over them.
const UNKNOWN_ANSWER_MIN: u8 = 4;

impl PathAnswer {
    /// The sets that it names.
    fn sets(&self) -> impl Iterator<Item = u32> + use<> {
        let (set, default) = match self {
            PathAnswer::Published { set, default } => (Some(*set), *default),
            PathAnswer::ByDefault { set } => (Some(*set), None),
            PathAnswer::NotFound | PathAnswer::Refused { .. } | PathAnswer::Unknown { .. } => {
                (None, None)
            }
        };
        set.into_iter().chain(default)
    }
}

impl Encode for PathAnswer {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            PathAnswer::NotFound => out.u8(0),
            PathAnswer::Published { set, default } => {
                out.u8(1);
                out.u64(u64::from(*set));
                default.map(u64::from).encode(out);
            }
            PathAnswer::ByDefault { set } => {
                out.u8(2);
                out.u64(u64::from(*set));
            }
            PathAnswer::Refused { reason } => {
                out.u8(3);
                out.string_cut(reason, REASON_BYTES_MAX);
            }
            PathAnswer::Unknown { kind } => {
                out.u8((*kind).max(UNKNOWN_ANSWER_MIN));
                out.record(|_| {});
            }
        }
    }
}

impl Decode for PathAnswer {
    fn decode(r: &mut Reader) -> Result<PathAnswer, WireError> {
        match r.u8()? {
            0 => Ok(PathAnswer::NotFound),
            1 => {
                let set = r.u32()?;
                let default = if r.bool()? { Some(r.u32()?) } else { None };
                Ok(PathAnswer::Published { set, default })
            }
            2 => Ok(PathAnswer::ByDefault { set: r.u32()? }),
            3 => Ok(PathAnswer::Refused { reason: r.string("reason", REASON_BYTES_MAX)? }),
            kind => r.record(|_| Ok(PathAnswer::Unknown { kind })),
        }
    }
}

impl Encode for Listed {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.bool(self.complete);
        self.tracker.encode(out);
        self.paths.encode(out);
    }
}

impl Decode for Listed {
    fn decode(r: &mut Reader) -> Result<Listed, WireError> {
        Ok(Listed {
            id: r.u64()?,
            last: r.bool()?,
            complete: r.bool()?,
            tracker: Tracker::decode(r)?,
            paths: r.list("listed paths", RESOLVER_BATCH_PATHS_MAX)?,
        })
    }
}

/// Flags: bit 0 a queue, bit 1 a default, bit 2 a value. Other bits are passed over.
impl Encode for PathListed {
    fn encode(&self, out: &mut FrameWriter) {
        let [queue, default, value] = [self.queue, self.default, self.value].map(u8::from);
        out.u8(queue | default << 1 | value << 2);
        self.path.encode(out);
    }
}

impl Decode for PathListed {
    fn decode(r: &mut Reader) -> Result<PathListed, WireError> {
        let flags = r.u8()?;
        let bit = |bit: u8| flags & 1 << bit != 0;
        let (queue, default, value) = (bit(0), bit(1), bit(2));
        Ok(PathListed { path: Path::decode(r)?, queue, value, default })
    }
}

impl Encode for TableAnswer {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.bool(self.complete);
        self.tracker.encode(out);
        out.u64(self.rows.len() as u64);
        self.rows.iter().for_each(|row| out.string(row));
        self.columns.encode(out);
    }
}

impl Decode for TableAnswer {
    fn decode(r: &mut Reader) -> Result<TableAnswer, WireError> {
        let (id, last, complete) = (r.u64()?, r.bool()?, r.bool()?);
        let tracker = Tracker::decode(r)?;
        let count = r.count("rows of a table", RESOLVER_BATCH_PATHS_MAX, 1)?;
        let mut rows = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            rows.push(r.string("name of a row", PATH_SEGMENT_BYTES_MAX)?);
        }
        let columns = r.list("columns of a table", RESOLVER_BATCH_PATHS_MAX)?;
        Ok(TableAnswer { id, last, complete, tracker, rows, columns })
    }
}

impl Encode for Column {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.name);
        out.u64(self.rows);
    }
}

impl Decode for Column {
    fn decode(r: &mut Reader) -> Result<Column, WireError> {
        let name = r.string("name of a column", PATH_SEGMENT_BYTES_MAX)?;
        Ok(Column { name, rows: r.u64()? })
    }
}

impl Encode for Changed {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.bool(self.complete);
        self.tracker.encode(out);
        out.u64(self.changed.len() as u64);
        self.changed.iter().for_each(|&changed| out.bool(changed));
    }
}

impl Decode for Changed {
    fn decode(r: &mut Reader) -> Result<Changed, WireError> {
        let (id, last, complete) = (r.u64()?, r.bool()?, r.bool()?);
        let tracker = Tracker::decode(r)?;
        let count = r.count("answers about trackers", RESOLVER_BATCH_PATHS_MAX, 1)?;
        let mut changed = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            changed.push(r.bool()?);
        }
        Ok(Changed { id, last, complete, tracker, changed })
    }
}
