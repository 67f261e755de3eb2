//! What a replica answers to readers.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{
    PUBLISHERS_PER_PATH_MAX, REASON_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX, RESOLVER_PUBLISHERS_MAX,
};
use crate::path::Path;
use crate::publisher_info::PublisherInfo;

/// Answers to the next paths of a request, in their order. A publisher is told of once, a set of publishers too: paths
/// with the same publishers cost two bytes each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The request's number.
    pub id: u64,
    /// The request is answered whole.
    pub last: bool,
    /// False while the replica is warming: a "no" may mean that it has not been told yet.
    pub complete: bool,
    /// The publishers that the sets name.
    pub publishers: Vec<PublisherInfo>,
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
    /// The paths, none twice within one request, in no promised order.
    pub paths: Vec<PathListed>,
}

/// One path of a listing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PathListed {
    /// The path.
    pub path: Path,
    /// Somebody publishes it. A listed path that nobody publishes lies above one.
    pub published: bool,
    /// Somebody has declared a default for what is at and below it.
    pub default: bool,
}

impl Encode for Resolved {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.bool(self.complete);
        self.publishers.encode(out);
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
        let publishers: Vec<PublisherInfo> = r.list("publishers", RESOLVER_PUBLISHERS_MAX)?;
        let count = r.count("publisher sets", RESOLVER_BATCH_PATHS_MAX, 1)?;
        let mut sets = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            let unknown = r.invalid("publisher of a set");
            let set: Vec<SetMember> = r.list("publishers of a set", PUBLISHERS_PER_PATH_MAX)?;
            if set.iter().any(|member| member.publisher as usize >= publishers.len()) {
                return Err(unknown);
            }
            sets.push(set);
        }
        let unknown = r.invalid("set of an answer");
        let answers: Vec<PathAnswer> = r.list("path answers", RESOLVER_BATCH_PATHS_MAX)?;
        if answers.iter().any(|a| a.set().is_some_and(|set| set as usize >= sets.len())) {
            return Err(unknown);
        }
        Ok(Resolved { id, last, complete, publishers, sets, answers })
    }
}

/// A record: later versions say more about what a publisher is to the paths of the set.
impl Encode for SetMember {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| out.u64(u64::from(self.publisher)));
    }
}

impl Decode for SetMember {
    fn decode(r: &mut Reader) -> Result<SetMember, WireError> {
        r.record(|r| Ok(SetMember { publisher: r.u32()? }))
    }
}

impl PathAnswer {
    /// The set that it names, if it names one.
    pub fn set(&self) -> Option<u32> {
        match self {
            PathAnswer::Published { set } | PathAnswer::ByDefault { set } => Some(*set),
            PathAnswer::NotFound | PathAnswer::Refused { .. } => None,
        }
    }
}

impl Encode for PathAnswer {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            PathAnswer::NotFound => out.u8(0),
            PathAnswer::Published { set } => {
                out.u8(1);
                out.u64(u64::from(*set));
            }
            PathAnswer::ByDefault { set } => {
                out.u8(2);
                out.u64(u64::from(*set));
            }
            PathAnswer::Refused { reason } => {
                out.u8(3);
                out.string_cut(reason, REASON_BYTES_MAX);
            }
        }
    }
}

impl Decode for PathAnswer {
    fn decode(r: &mut Reader) -> Result<PathAnswer, WireError> {
        let unknown = r.invalid("path answer");
        match r.u8()? {
            0 => Ok(PathAnswer::NotFound),
            1 => Ok(PathAnswer::Published { set: r.u32()? }),
            2 => Ok(PathAnswer::ByDefault { set: r.u32()? }),
            3 => Ok(PathAnswer::Refused { reason: r.string("reason", REASON_BYTES_MAX)? }),
            _ => Err(unknown),
        }
    }
}

impl Encode for Listed {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        out.bool(self.complete);
        self.paths.encode(out);
    }
}

impl Decode for Listed {
    fn decode(r: &mut Reader) -> Result<Listed, WireError> {
        Ok(Listed {
            id: r.u64()?,
            last: r.bool()?,
            complete: r.bool()?,
            paths: r.list("listed paths", RESOLVER_BATCH_PATHS_MAX)?,
        })
    }
}

/// Flags: bit 0 published, bit 1 default. Other bits are passed over.
impl Encode for PathListed {
    fn encode(&self, out: &mut FrameWriter) {
        out.u8(u8::from(self.published) | u8::from(self.default) << 1);
        self.path.encode(out);
    }
}

impl Decode for PathListed {
    fn decode(r: &mut Reader) -> Result<PathListed, WireError> {
        let flags = r.u8()?;
        Ok(PathListed {
            path: Path::decode(r)?,
            published: flags & 1 != 0,
            default: flags & 2 != 0,
        })
    }
}
