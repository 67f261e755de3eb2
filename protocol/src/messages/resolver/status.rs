//! How a replica is.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::Incarnation;
use crate::limits::NAME_BYTES_MAX;

/// Figures of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaStatus {
    /// Its name, as operators gave it.
    pub name: String,
    /// This run of it.
    pub incarnation: Incarnation,
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// It started too recently to know that it has been told everything.
    pub warming: bool,
    /// Publishers that it knows.
    pub publishers: u64,
    /// Paths that somebody publishes.
    pub paths: u64,
    /// Paths with a default.
    pub defaults: u64,
    /// Connections at the moment.
    pub connections: u64,
    /// Watches at the moment.
    pub watches: u64,
}

impl Encode for ReplicaStatus {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            out.string(&self.name);
            self.incarnation.encode(out);
            out.u64(self.uptime_ms);
            out.bool(self.warming);
            for figure in
                [self.publishers, self.paths, self.defaults, self.connections, self.watches]
            {
                out.u64(figure);
            }
        });
    }
}

impl Decode for ReplicaStatus {
    fn decode(r: &mut Reader) -> Result<ReplicaStatus, WireError> {
        r.record(|r| {
            Ok(ReplicaStatus {
                name: r.string("replica name", NAME_BYTES_MAX)?,
                incarnation: Incarnation::decode(r)?,
                uptime_ms: r.u64()?,
                warming: r.bool()?,
                publishers: r.u64()?,
                paths: r.u64()?,
                defaults: r.u64()?,
                connections: r.u64()?,
                watches: r.u64()?,
            })
        })
    }
}
