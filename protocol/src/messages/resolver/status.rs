//! How a replica is.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::Incarnation;
use crate::limits::{NAME_BYTES_MAX, RESOLVER_PUBLISHERS_MAX};
use crate::messages::resolver::Departure;
use crate::publisher_info::PublisherInfo;

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
    /// How long it will be warming yet, in milliseconds.
    pub warming_left_ms: u64,
    /// Publishers that are hidden, and whose paths are being taken out.
    pub hidden: u64,
    /// Connections that were told `Busy` since it started.
    pub refused_busy: u64,
    /// The longest that one pass over requests, sweeping and watches has taken since it started, in microseconds.
    pub slice_max_us: u64,
    /// Resident memory of its process, in bytes; 0 where it cannot be told.
    pub memory_bytes: u64,
    /// Most publishers.
    pub publishers_max: u64,
    /// Most paths, defaults included.
    pub paths_max: u64,
    /// Most connections.
    pub connections_max: u64,
    /// Most watches.
    pub watches_max: u64,
}

/// Some of the publishers that a replica knows, hidden ones included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishersKnown {
    /// The request's number.
    pub id: u64,
    /// The request is answered whole.
    pub last: bool,
    /// The publishers.
    pub publishers: Vec<KnownPublisher>,
}

/// A publisher, as a replica knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownPublisher {
    /// Who it is.
    pub info: PublisherInfo,
    /// Paths and defaults that it holds.
    pub held: u64,
    /// How long nothing has been heard of it, in milliseconds.
    pub silent_ms: u64,
    /// Why it is hidden, if it is.
    pub departure: Option<Departure>,
}

impl Encode for ReplicaStatus {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            out.string(&self.name);
            self.incarnation.encode(out);
            out.u64(self.uptime_ms);
            out.bool(self.warming);
            for figure in [
                self.publishers,
                self.paths,
                self.defaults,
                self.connections,
                self.watches,
                self.warming_left_ms,
                self.hidden,
                self.refused_busy,
                self.slice_max_us,
                self.memory_bytes,
                self.publishers_max,
                self.paths_max,
                self.connections_max,
                self.watches_max,
            ] {
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
                warming_left_ms: r.u64()?,
                hidden: r.u64()?,
                refused_busy: r.u64()?,
                slice_max_us: r.u64()?,
                memory_bytes: r.u64()?,
                publishers_max: r.u64()?,
                paths_max: r.u64()?,
                connections_max: r.u64()?,
                watches_max: r.u64()?,
            })
        })
    }
}

impl Encode for PublishersKnown {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.id);
        out.bool(self.last);
        self.publishers.encode(out);
    }
}

impl Decode for PublishersKnown {
    fn decode(r: &mut Reader) -> Result<PublishersKnown, WireError> {
        let (id, last) = (r.u64()?, r.bool()?);
        Ok(PublishersKnown { id, last, publishers: r.list("publishers", RESOLVER_PUBLISHERS_MAX)? })
    }
}

impl Encode for KnownPublisher {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.info.encode(out);
            out.u64(self.held);
            out.u64(self.silent_ms);
            self.departure.encode(out);
        });
    }
}

impl Decode for KnownPublisher {
    fn decode(r: &mut Reader) -> Result<KnownPublisher, WireError> {
        r.record(|r| {
            Ok(KnownPublisher {
                info: PublisherInfo::decode(r)?,
                held: r.u64()?,
                silent_ms: r.u64()?,
                departure: r.option()?,
            })
        })
    }
}
