//! How a replica is.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::fields;
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::Incarnation;
use crate::limits::{DECLARED_MAX, NAME_BYTES_MAX, RESOLVER_PUBLISHERS_MAX};
use crate::messages::resolver::{Departure, ToReplica};
use crate::path::Path;
use crate::publisher_info::PublisherInfo;

fields! {
    /// Statistics of a replica.
    pub struct ReplicaStatus as record {
        /// Its name, as operators gave it.
        pub name: String = at_most("replica name", NAME_BYTES_MAX),
        /// This run of it.
        pub incarnation: Incarnation,
        /// How long it has run, in milliseconds.
        pub uptime_ms: u64,
        /// It started too recently: publishers may not have announced themselves yet.
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
        /// Connections refused as `Busy` since it started.
        pub refused_busy: u64,
        /// The longest that one pass over requests, sweeping and watches has taken since it
        /// started, in microseconds.
        pub slice_max_us: u64,
        /// Resident memory of its process, in bytes; 0 where it cannot be read.
        pub memory_bytes: u64,
        /// Most publishers.
        pub publishers_max: u64,
        /// Most paths, defaults included.
        pub paths_max: u64,
        /// Most connections.
        pub connections_max: u64,
        /// Most watches.
        pub watches_max: u64,
        /// Requests that it has been asked since it started, by kind.
        pub requests: Box<RequestCounts> = read_by(request_counts),
    }
}

/// Requests of a replica by kind, since it started. A batch counts once, however many paths it is
/// about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestCounts([u64; RequestCounts::KINDS.len()]);

impl RequestCounts {
    /// The kinds, in their order on the wire. Later versions may add some at the end.
    pub const KINDS: [&'static str; 13] = [
        "resolve",
        "list",
        "table",
        "watch",
        "unwatch",
        "status",
        "list_publishers",
        "forget_publisher",
        "announce",
        "write",
        "confirm",
        "clear",
        "refused",
    ];
    /// Where writers' kinds are among them; the last is of requests that were not even begun.
    const WRITES: std::ops::Range<usize> = 8..12;
    /// Most kinds that a reader takes.
    const KINDS_MAX: usize = 256;

    /// One more.
    pub fn add(&mut self, request: &ToReplica) {
        let kind = match request {
            ToReplica::Resolve(_) => 0,
            ToReplica::List(_) | ToReplica::ListMatching(_) => 1,
            ToReplica::Table(_) => 2,
            ToReplica::WatchPublishers(_) | ToReplica::WatchPaths(_) => 3,
            ToReplica::Unwatch { .. } => 4,
            ToReplica::Status { .. } => 5,
            ToReplica::ListPublishers { .. } => 6,
            ToReplica::ForgetPublisher { .. } => 7,
            ToReplica::Announce(_) => 8,
            ToReplica::Write(_) => 9,
            ToReplica::Confirm { .. } => 10,
            ToReplica::Clear { .. } => 11,
        };
        self.0[kind] += 1;
    }

    /// One more that was not even begun.
    pub fn add_refused(&mut self) {
        self.0[Self::KINDS.len() - 1] += 1;
    }

    /// Each kind and how many.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Self::KINDS.into_iter().zip(self.0)
    }

    /// How many were of readers and tools.
    pub fn reads(&self) -> u64 {
        self.0[..Self::WRITES.start].iter().sum()
    }

    /// How many were of publishers.
    pub fn writes(&self) -> u64 {
        self.0[Self::WRITES].iter().sum()
    }
}

impl From<[u64; RequestCounts::KINDS.len()]> for RequestCounts {
    fn from(counts: [u64; RequestCounts::KINDS.len()]) -> RequestCounts {
        RequestCounts(counts)
    }
}

/// A replica of an earlier version does not count requests: its status ends before them.
fn request_counts(r: &mut Reader) -> Result<Box<RequestCounts>, WireError> {
    if r.is_empty() { Ok(Box::default()) } else { Box::decode(r) }
}

impl Encode for RequestCounts {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.0.len() as u64);
        self.0.iter().for_each(|count| out.u64(*count));
    }
}

impl Decode for RequestCounts {
    fn decode(r: &mut Reader) -> Result<RequestCounts, WireError> {
        let mut counts = RequestCounts::default();
        for kind in 0..r.count("kinds of requests", Self::KINDS_MAX, 1)? {
            let count = r.u64()?;
            if let Some(known) = counts.0.get_mut(kind) {
                *known = count;
            }
        }
        Ok(counts)
    }
}

fields! {
    /// Some of the publishers that a replica knows, those that are missing included.
    pub struct PublishersKnown {
        /// The request's number.
        pub id: u64,
        /// The request is answered whole.
        pub last: bool,
        /// The publishers.
        pub publishers: Vec<KnownPublisher> = at_most("publishers", RESOLVER_PUBLISHERS_MAX),
    }

    /// A publisher, as a replica knows it.
    pub struct KnownPublisher as record {
        /// Who it is.
        pub info: PublisherInfo,
        /// Paths and defaults that it holds.
        pub held: u64,
        /// How long nothing has been heard of it, in milliseconds.
        pub silent_ms: u64,
        /// Why it is missing, if it is.
        pub departure: Option<Departure>,
        /// What it declared.
        pub declared: Declared,
    }

    /// Which queues a publisher declared: what may hold jobs there, whether or not it can be
    /// reached.
    #[derive(Default)]
    pub struct Declared as record {
        /// Paths at and below which it makes queues.
        pub defaults: Vec<Path> = at_most("declared defaults", DECLARED_MAX),
        /// Queues that no default of its own covers.
        pub queues: Vec<Path> = at_most("declared queues", DECLARED_MAX),
        /// There are more than a replica remembers.
        pub more: bool,
    }
}

impl Declared {
    /// It declared no queue: a publisher of live values holds no jobs.
    pub fn is_empty(&self) -> bool {
        self.defaults.is_empty() && self.queues.is_empty() && !self.more
    }

    /// Whether a queue that matches may be among them.
    pub fn could_match(&self, glob: &Glob) -> bool {
        self.more
            || self.queues.iter().any(|path| glob.matches(path))
            || self.defaults.iter().any(|path| glob.could_match_at_or_below(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_replica_that_counts_nothing_is_read() {
        let mut out = FrameWriter::new();
        out.record(|out| {
            out.string("r1");
            Incarnation([1; 16]).encode(out);
            out.u64(60_000);
            out.bool(false);
            (1..=14).for_each(|metric| out.u64(metric));
        });
        let status = ReplicaStatus::decode(&mut Reader::new(out.into_body())).unwrap();
        assert_eq!((status.watches_max, *status.requests), (14, RequestCounts::default()));
    }

    #[test]
    fn counts_of_a_later_version_are_read_as_far_as_they_are_known() {
        let mut out = FrameWriter::new();
        out.u64(16);
        (1..=16).for_each(|count| out.u64(count));
        let counts = RequestCounts::decode(&mut Reader::new(out.into_body())).unwrap();
        assert_eq!(counts, RequestCounts::from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]));
        assert_eq!((counts.reads(), counts.writes()), ((1..=8).sum(), 9 + 10 + 11 + 12));
        assert_eq!(counts.iter().last(), Some(("refused", 13)));
    }
}
