//! The start of a link. Both sides first send the magic `LSH1`, then one frame of at most 4 KiB.
//! The body of the frame is a [`Handshake`] from the dialling side and a [`HandshakeAnswer`] from
//! the accepting side, without tag or message header. The link then uses the highest version that
//! both sides support. Both types are the same in every version, except for fields added at their
//! ends.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::{Bounded, Decode, Encode, Reader, WireError};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::id::SessionId;
use crate::limits::{
    CLUSTER_BYTES_MAX, CREDENTIAL_BYTES_MAX, FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX,
    HEARTBEAT_MS_MIN, NAME_BYTES_MAX, REASON_BYTES_MAX,
};
use crate::timing::LinkTiming;

/// The first four bytes in each direction.
pub const MAGIC: [u8; 4] = *b"LSH1";
/// The oldest protocol version that this code supports.
pub const VERSION_MIN: u16 = 1;
/// The newest protocol version that this code supports.
pub const VERSION_MAX: u16 = 1;
/// The optional features of this code, a bit each. No bit is assigned yet.
pub const FEATURES: u64 = 0;

codes! {
    /// Why the dialling side connects; it also implies the kind of server that it expects.
    Role, "role" {
        /// To read a resolver's directory.
        ResolverReader = 1, "resolver reader";
        /// To publish paths at a resolver.
        ResolverWriter = 2, "resolver writer";
        /// To enqueue jobs at a publisher.
        Producer = 3, "producer";
        /// To run a publisher's jobs.
        Worker = 4, "worker";
        /// To inspect a publisher's queues and act on them.
        Tool = 5, "tool";
        /// To subscribe to a publisher's live values.
        Values = 6, "values";
    }
}

impl Role {
    /// True for the roles that a resolver serves; a publisher serves the others.
    pub fn is_for_resolver(self) -> bool {
        matches!(self, Role::ResolverReader | Role::ResolverWriter)
    }
}

fields! {
    /// The first message of the dialling side.
    pub struct Handshake {
        /// The oldest version it supports.
        pub version_min: u16,
        /// The newest version it supports.
        pub version_max: u16 = read_by(
                |r| version_max(r, version_min),
                |source: &mut crate::tests::Source| source.of::<u16>().max(version_min)
            ),
        /// Why it connects.
        pub role: Role,
        /// This run of the process: a new link of a session replaces its old one.
        pub session: SessionId,
        /// A worker's or producer's name, shown to operators.
        pub name: String = at_most("name", NAME_BYTES_MAX),
        /// The timing it proposes; the link uses the shorter of both sides' values.
        pub timing: LinkTiming,
        /// The longest frame body that it accepts, in bytes; at least 4 KiB.
        pub frame_bytes_max: u32 = read_by(frame_bytes_max),
        /// Its optional features, a bit each: [`FEATURES`], unless a test sets others.
        pub features: u64,
        /// Proves the identity of the dialling side: the secret of a token, or a JWT. Empty
        /// without one.
        pub credential: Credential = at_most("credential", CREDENTIAL_BYTES_MAX),
        /// The name of the cluster that it expects; empty, or left out, for one without a name.
        pub cluster: String = read_by(cluster),
    }
}

/// Proves the identity of the dialling side: at most 3,072 bytes, interpreted by the accepting
/// side. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credential(pub Bytes);

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} bytes)", self.0.len())
    }
}

impl Handshake {
    /// A handshake that supports every version of this code.
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
            cluster: String::new(),
        }
    }

    /// Returns the highest version that both sides support, if any.
    pub fn common_version(&self) -> Option<u16> {
        let highest = self.version_max.min(VERSION_MAX);
        (highest >= self.version_min.max(VERSION_MIN)).then_some(highest)
    }
}

fields! {
    /// The answer of the accepting side.
    pub enum HandshakeAnswer, "handshake answer" {
        /// The link is established.
        0 = Welcome(welcome: Welcome),
        /// The link is refused; the accepting side closes it.
        1 = Refused {
            /// The reason for programs.
            code: HandshakeRefusal,
            /// The reason for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
    }

    /// The settings of the link, and the identity of the accepting side.
    pub struct Welcome {
        /// The version in use.
        pub version: u16,
        /// The timing in use.
        pub timing: LinkTiming,
        /// The longest frame body that the accepting side accepts, in bytes; at least 4 KiB.
        pub frame_bytes_max: u32 = read_by(frame_bytes_max),
        /// The identity of the accepting side: a publisher's id, or a resolver's incarnation.
        pub instance: [u8; 16],
        /// The publisher's epoch; 0 from a resolver.
        pub epoch: u64,
        /// The accepting side's name.
        pub name: String = at_most("name", NAME_BYTES_MAX),
        /// The features of both the dialling side and the accepting side.
        pub features: u64,
    }
}

codes! {
    /// Why a handshake was refused.
    HandshakeRefusal, "handshake refusal" {
        /// No common version.
        Version = 1, "no common protocol version";
        /// The connection limit is reached: try another server.
        Busy = 2, "the limit of connections is reached";
        /// This kind of server does not serve that role: a publisher's address was used as a
        /// resolver's, or the reverse.
        WrongRole = 3, "this server does not serve that role";
        /// The handshake could not be decoded.
        Malformed = 4, "malformed handshake";
        /// The server is stopping.
        Stopping = 5, "the server is stopping";
        /// The server belongs to another cluster than the one that was named.
        WrongCluster = 6, "this server belongs to another cluster";
        /// The client did not prove who it is: it has no certificate or token, or one that has
        /// expired, was revoked or cannot be read.
        Unauthenticated = 7, "this server does not know the client";
        /// The client is known, and may do nothing here.
        Forbidden = 8, "the client has no rights at this server";
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
        let heartbeat_too_short = r.invalid("heartbeat interval under 10 ms");
        let hang_too_short =
            r.invalid("hang timeout that is not longer than the heartbeat interval");
        let (heartbeat, hang) = (r.u32()?, r.u32()?);
        if heartbeat < HEARTBEAT_MS_MIN {
            return Err(heartbeat_too_short);
        }
        if hang <= heartbeat {
            return Err(hang_too_short);
        }
        Ok(LinkTiming {
            heartbeat: Duration::from_millis(u64::from(heartbeat)),
            hang: Duration::from_millis(u64::from(hang)),
        })
    }
}

/// Reads the newest version of a range that begins with `version_min`, the first field of a
/// handshake.
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

fn cluster(r: &mut Reader) -> Result<String, WireError> {
    if r.is_empty() { Ok(String::new()) } else { r.string("cluster", CLUSTER_BYTES_MAX) }
}

fn frame_bytes_max(r: &mut Reader) -> Result<u32, WireError> {
    r.valid("frame limit under 4 KiB", |bytes: &u32| *bytes as usize >= HANDSHAKE_FRAME_BYTES_MAX)
}
