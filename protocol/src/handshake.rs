//! How a link begins. First bytes each way: the magic `LSH1`. Then one frame each way, of at most 4
//! KiB, whose body is a [`Handshake`] from the side that dialled, and a [`HandshakeAnswer`] (no
//! tag, no message around them: nothing else can come here). The highest version that both speak is
//! spoken from then on. These two are the same in every version, but for fields at their ends.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::{Bounded, Decode, Encode, Reader, WireError};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::id::SessionId;
use crate::limits::{
    CREDENTIAL_BYTES_MAX, FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX, HEARTBEAT_MS_MIN,
    NAME_BYTES_MAX, REASON_BYTES_MAX,
};
use crate::timing::LinkTiming;

/// The first four bytes each way.
pub const MAGIC: [u8; 4] = *b"LSH1";
/// The oldest protocol version that this code speaks.
pub const VERSION_MIN: u16 = 1;
/// The newest.
pub const VERSION_MAX: u16 = 1;
/// What this code can do beyond its version, a bit each. None is given a meaning yet.
pub const FEATURES: u64 = 0;

codes! {
    /// What the dialling side has come for; it also says what kind of server it expects.
    Role, "role" {
        /// To read a resolver's directory.
        ResolverReader = 1, "resolver reader";
        /// To publish paths at a resolver.
        ResolverWriter = 2, "resolver writer";
        /// To hand jobs to a publisher.
        Producer = 3, "producer";
        /// To run a publisher's jobs.
        Worker = 4, "worker";
        /// To look into a publisher's queues and act on them.
        Tool = 5, "tool";
        /// To follow a publisher's live values.
        Values = 6, "values";
    }
}

impl Role {
    /// True of the roles that a resolver serves; the others are a publisher's.
    pub fn is_for_resolver(self) -> bool {
        matches!(self, Role::ResolverReader | Role::ResolverWriter)
    }
}

fields! {
    /// What the dialling side says first.
    pub struct Handshake {
        /// The oldest version it speaks.
        pub version_min: u16,
        /// The newest.
        pub version_max: u16 = read_by(
                |r| version_max(r, version_min),
                |source: &mut crate::tests::Source| source.of::<u16>().max(version_min)
            ),
        /// What it has come for.
        pub role: Role,
        /// This run of the process: links of one session replace each other.
        pub session: SessionId,
        /// What operators see: a worker's or producer's name.
        pub name: String = at_most("name", NAME_BYTES_MAX),
        /// The timing it would like; the shorter of both sides' holds.
        pub timing: LinkTiming,
        /// The longest frame body it takes, in bytes; at least 4 KiB.
        pub frame_bytes_max: u32 = read_by(frame_bytes_max),
        /// What it can do beyond its version, a bit each: [`FEATURES`], unless a test says
        /// otherwise.
        pub features: u64,
        /// What it proves by who it is. Empty, and ignored by every server yet.
        pub credential: Credential = at_most("credential", CREDENTIAL_BYTES_MAX),
    }
}

/// What a dialler proves by who it is: at most 2,048 bytes, of a meaning that the accepting side
/// gives them. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credential(pub Bytes);

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} bytes)", self.0.len())
    }
}

impl Handshake {
    /// A handshake that speaks every version of this code.
    pub fn new(
        role: Role,
        session: SessionId,
        name: impl Into<String>,
        timing: LinkTiming,
    ) -> Handshake {
        Handshake {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            role,
            session,
            name: name.into(),
            timing,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            features: FEATURES,
            credential: Credential::default(),
        }
    }

    /// The highest version that both sides speak; none when there is none.
    pub fn common_version(&self) -> Option<u16> {
        let highest = self.version_max.min(VERSION_MAX);
        (highest >= self.version_min.max(VERSION_MIN)).then_some(highest)
    }
}

fields! {
    /// What the accepting side answers.
    pub enum HandshakeAnswer, "handshake answer" {
        /// The link stands.
        0 = Welcome(welcome: Welcome),
        /// It does not; the accepting side closes it.
        1 = Refused {
            /// For programs.
            code: HandshakeRefusal,
            /// For people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
    }

    /// What holds on the link from now on, and who the accepting side is.
    pub struct Welcome {
        /// The version spoken.
        pub version: u16,
        /// The timing that holds.
        pub timing: LinkTiming,
        /// The longest frame body that the accepting side takes, in bytes; at least 4 KiB.
        pub frame_bytes_max: u32 = read_by(frame_bytes_max),
        /// Who answers: a publisher's id, or a resolver's incarnation.
        pub instance: [u8; 16],
        /// The publisher's epoch; 0 from a resolver.
        pub epoch: u64,
        /// The accepting side's name.
        pub name: String = at_most("name", NAME_BYTES_MAX),
        /// Of the features that the dialling side offered, those that the accepting side has, too.
        pub features: u64,
    }
}

codes! {
    /// Why a handshake was refused.
    HandshakeRefusal, "handshake refusal" {
        /// No common version.
        Version = 1, "no common protocol version";
        /// As many connections as there may be: try another server.
        Busy = 2, "as many connections as there may be";
        /// This kind of server does not serve that role: a publisher's address was taken for a
        /// resolver's, or the reverse.
        WrongRole = 3, "this server does not serve that role";
        /// The handshake did not decode.
        Malformed = 4, "malformed handshake";
        /// The server is stopping.
        Stopping = 5, "the server is stopping";
    }
}

impl Encode for LinkTiming {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.heartbeat.as_millis() as u64);
        out.u64(self.hang.as_millis() as u64);
    }
}

impl Decode for LinkTiming {
    fn decode(r: &mut Reader) -> Result<LinkTiming, WireError> {
        let too_often = r.invalid("heartbeat interval under 10 ms");
        let hopeless = r.invalid("hang timeout that is not longer than the heartbeat interval");
        let (heartbeat, hang) = (r.u32()?, r.u32()?);
        if heartbeat < HEARTBEAT_MS_MIN {
            return Err(too_often);
        }
        if hang <= heartbeat {
            return Err(hopeless);
        }
        Ok(LinkTiming {
            heartbeat: Duration::from_millis(u64::from(heartbeat)),
            hang: Duration::from_millis(u64::from(hang)),
        })
    }
}

/// The newest version of a range that begins with `version_min`, the first field of a handshake.
fn version_max(r: &mut Reader, version_min: u16) -> Result<u16, WireError> {
    let reversed = WireError::Invalid { offset: 0, what: "version range" };
    r.u16().and_then(|max| if max < version_min { Err(reversed) } else { Ok(max) })
}

impl Encode for Credential {
    fn encode(&self, out: &mut FrameWriter) {
        out.bytes(&self.0);
    }
}

impl Bounded for Credential {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Credential, WireError> {
        r.bytes(what, limit).map(Credential)
    }
}

fn frame_bytes_max(r: &mut Reader) -> Result<u32, WireError> {
    r.valid("frame limit under 4 KiB", |bytes: &u32| *bytes as usize >= HANDSHAKE_FRAME_BYTES_MAX)
}
