//! A replica's answers to readers.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::fields;
use crate::frame::FrameWriter;
use crate::limits::{
    PATH_SEGMENT_BYTES_MAX, PUBLISHERS_PER_PATH_MAX, REASON_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX,
    RESOLVER_PUBLISHERS_MAX, TERMS_MAX,
};
use crate::messages::resolver::Tracker;
use crate::path::Path;
use crate::publisher_info::PublisherInfo;
use crate::terms::Terms;

fields! {
    /// Answers to the next paths of a request, in order. A publisher is sent only once, and so is a
    /// set of publishers: paths with the same publishers cost three bytes each.
    pub struct Resolved {
        /// The request's number.
        pub id: u64,
        /// The last answer to the request.
        pub last: bool,
        /// False while the replica is warming: a missing path may not have been announced yet.
        pub complete: bool,
        /// The state of the directory that the answer reflects.
        pub tracker: Tracker,
        /// The publishers to which the sets refer.
        pub publishers: Vec<PublisherInfo> = at_most("publishers", RESOLVER_PUBLISHERS_MAX),
        /// The terms to which the sets refer.
        pub terms: Vec<Terms> = at_most("terms", TERMS_MAX),
        /// The sets to which the answers refer.
        pub sets: Vec<Vec<SetMember>> = read_by(
            |r| sets(r, publishers.len(), terms.len()),
            |source| crate::tests::sets(source, publishers.len(), terms.len())
        ),
        /// One answer for each path.
        pub answers: Vec<PathAnswer> = read_by(
            |r| answers(r, sets.len()),
            |source| crate::tests::answers(source, sets.len())
        ),
    }

    /// A publisher in a set.
    #[derive(Copy, Hash)]
    pub struct SetMember as record {
        /// Index in [`Resolved::publishers`].
        pub publisher: u32,
        /// Index in [`Resolved::terms`] of the terms on which it publishes the path or declares the
        /// default.
        pub terms: u32,
    }
}

/// The answer for one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathAnswer {
    /// No publisher has the path, and no default covers it.
    NotFound,
    /// Publishers have the path.
    Published {
        /// The set's index in [`Resolved::sets`].
        set: u32,
        /// The publishers of the nearest default at or above it, if any: the next candidates for a
        /// new job while none of `set` is reachable.
        default: Option<u32>,
    },
    /// No publisher has the path; these have declared the nearest default above it.
    ByDefault {
        /// The set's index in [`Resolved::sets`].
        set: u32,
    },
    /// Only this path was refused.
    Refused {
        /// The reason, for people.
        reason: String,
    },
    /// The replica sent an answer that this version does not know: treat it as a refusal.
    Unknown {
        /// The kind of the answer.
        kind: u8,
    },
}

fields! {
    /// Some of the requested paths.
    pub struct Listed {
        /// The request's number.
        pub id: u64,
        /// The last answer to the request.
        pub last: bool,
        /// False while the replica is warming: a missing path may not have been announced yet.
        pub complete: bool,
        /// The state of the directory at the start of the listing. Later changes arrive as changes.
        pub tracker: Tracker,
        /// The paths, each once within a request, in no particular order.
        pub paths: Vec<PathListed> = at_most("listed paths", RESOLVER_BATCH_PATHS_MAX),
    }
}

/// One path of a listing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PathListed {
    /// The path.
    pub path: Path,
    /// A publisher has it as a queue.
    pub queue: bool,
    /// A publisher has it as a live value.
    pub value: bool,
    /// A publisher has declared a default for the path and everything below it.
    pub default: bool,
}

impl PathListed {
    /// True if it is published. A listed path that is not published lies above one that is.
    pub fn published(&self) -> bool {
        self.queue || self.value
    }
}

fields! {
    /// Part of a table: the children of a path as rows, and their children as columns.
    pub struct TableAnswer {
        /// The request's number.
        pub id: u64,
        /// The last answer to the request.
        pub last: bool,
        /// False while the replica is warming.
        pub complete: bool,
        /// The state of the directory at the start of the table.
        pub tracker: Tracker,
        /// Names of rows, each once within a request, in no particular order.
        pub rows: Vec<String> = read_by(row_names),
        /// Columns of rows sent since the previous message; the receiver adds up the counts of all
        /// messages.
        pub columns: Vec<Column> = at_most("columns of a table", RESOLVER_BATCH_PATHS_MAX),
    }

    /// A column of a table.
    #[derive(PartialOrd, Ord)]
    pub struct Column {
        /// Its name: the last segment of the path in each of its cells.
        pub name: String = at_most("name of a column", PATH_SEGMENT_BYTES_MAX),
        /// The number of rows that have it.
        pub rows: u64,
    }
}

/// Reads the sets of an answer with that many `publishers` and `terms`.
fn sets(r: &mut Reader, publishers: usize, terms: usize) -> Result<Vec<Vec<SetMember>>, WireError> {
    r.list_of("publisher sets", RESOLVER_BATCH_PATHS_MAX, 1, |r| {
        let unknown = r.invalid("publisher or terms of a set");
        let set: Vec<SetMember> = r.list("publishers of a set", PUBLISHERS_PER_PATH_MAX)?;
        let known = |member: &SetMember| {
            (member.publisher as usize) < publishers && (member.terms as usize) < terms
        };
        if set.iter().all(known) { Ok(set) } else { Err(unknown) }
    })
}

/// Reads the answers of a message with that many `sets`.
fn answers(r: &mut Reader, sets: usize) -> Result<Vec<PathAnswer>, WireError> {
    let unknown = r.invalid("set of an answer");
    let answers: Vec<PathAnswer> = r.list("path answers", RESOLVER_BATCH_PATHS_MAX)?;
    let known = answers.iter().flat_map(PathAnswer::sets).all(|set| (set as usize) < sets);
    if known { Ok(answers) } else { Err(unknown) }
}

fn row_names(r: &mut Reader) -> Result<Vec<String>, WireError> {
    r.list_of("rows of a table", RESOLVER_BATCH_PATHS_MAX, 1, |r| {
        r.string("name of a row", PATH_SEGMENT_BYTES_MAX)
    })
}

/// Answers of this kind or higher, from later versions (a referral, say), are records: readers that
/// do not know them skip them.
const UNKNOWN_ANSWER_MIN: u8 = 4;

impl PathAnswer {
    /// The sets to which it refers.
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
                default.encode(out);
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
            1 => Ok(PathAnswer::Published { set: r.u32()?, default: r.option()? }),
            2 => Ok(PathAnswer::ByDefault { set: r.u32()? }),
            3 => Ok(PathAnswer::Refused { reason: r.string("reason", REASON_BYTES_MAX)? }),
            kind => r.record(|_| Ok(PathAnswer::Unknown { kind })),
        }
    }
}

/// Flags: bit 0 a queue, bit 1 a default, bit 2 a value. Other bits are ignored.
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
