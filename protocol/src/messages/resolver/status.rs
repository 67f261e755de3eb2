//! The status of a replica.

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
        /// Its name, chosen by operators.
        pub name: String = at_most("replica name", NAME_BYTES_MAX),
        /// Its current run.
        pub incarnation: Incarnation,
        /// How long it has run, in milliseconds.
        pub uptime_ms: u64,
        /// It started recently: publishers may not have announced themselves yet.
        pub warming: bool,
        /// Publishers registered at it.
        pub publishers: u64,
        /// Paths with at least one publisher.
        pub paths: u64,
        /// Paths with a default.
        pub defaults: u64,
        /// Current connections.
        pub connections: u64,
        /// Current watches.
        pub watches: u64,
        /// How long it will still be warming, in milliseconds.
        pub warming_left_ms: u64,
        /// Hidden publishers whose paths are being removed.
        pub hidden: u64,
        /// Connections refused as `Busy` since it started.
        pub refused_busy: u64,
        /// The longest duration of one pass over requests, sweeping and watches since it started,
        /// in microseconds.
        pub slice_max_us: u64,
        /// Resident memory of its process, in bytes; 0 if unavailable.
        pub memory_bytes: u64,
        /// The limit of publishers.
        pub publishers_max: u64,
        /// The limit of paths, defaults included.
        pub paths_max: u64,
        /// The limit of connections.
        pub connections_max: u64,
        /// The limit of watches.
        pub watches_max: u64,
        /// Requests that it has received since it started, by kind.
        pub requests: Box<RequestCounts> = read_by(request_counts),
    }
}

/// Requests of a replica by kind, since it started. A batch counts once, regardless of its number
/// of paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestCounts([u64; RequestCounts::KINDS.len()]);

impl RequestCounts {
    /// The kinds, in wire order. Later versions may append kinds.
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
    /// The kinds of writers' requests; the last kind counts requests that were refused before
    /// processing.
    const WRITES: std::ops::Range<usize> = 8..12;
    /// Most kinds that a reader accepts.
    const KINDS_MAX: usize = 256;

    /// Counts a request.
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

    /// Counts a request that was refused before processing.
    pub fn add_refused(&mut self) {
        self.0[Self::KINDS.len() - 1] += 1;
    }

    /// Each kind with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Self::KINDS.into_iter().zip(self.0)
    }

    /// The number of requests of readers and tools.
    pub fn reads(&self) -> u64 {
        self.0[..Self::WRITES.start].iter().sum()
    }

    /// The number of requests of publishers.
    pub fn writes(&self) -> u64 {
        self.0[Self::WRITES].iter().sum()
    }
}

impl From<[u64; RequestCounts::KINDS.len()]> for RequestCounts {
    fn from(counts: [u64; RequestCounts::KINDS.len()]) -> RequestCounts {
        RequestCounts(counts)
    }
}

/// The status of an older replica, which does not count requests, ends before this field.
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
    /// Some of the publishers that a replica knows, including missing ones.
    pub struct PublishersKnown {
        /// The request's number.
        pub id: u64,
        /// The last answer to the request.
        pub last: bool,
        /// The publishers.
        pub publishers: Vec<KnownPublisher> = at_most("publishers", RESOLVER_PUBLISHERS_MAX),
    }

    /// A publisher in a replica's list.
    pub struct KnownPublisher as record {
        /// Its identity.
        pub info: PublisherInfo,
        /// The number of its paths and defaults.
        pub registrations: u64,
        /// How long the replica has received nothing from it, in milliseconds.
        pub silent_ms: u64,
        /// Why it is missing, if it is.
        pub departure: Option<Departure>,
        /// The queues that it declared.
        pub declared: Declared,
    }

    /// The declared queues of a publisher: where it may have jobs, even while it is unreachable.
    #[derive(Default)]
    pub struct Declared as record {
        /// Paths at and below which it creates queues.
        pub defaults: Vec<Path> = at_most("declared defaults", DECLARED_MAX),
        /// Queues that none of its defaults covers.
        pub queues: Vec<Path> = at_most("declared queues", DECLARED_MAX),
        /// There are more than a replica stores.
        pub more: bool,
    }
}

impl Declared {
    /// True if it declared no queue: a publisher of live values only.
    pub fn is_empty(&self) -> bool {
        self.defaults.is_empty() && self.queues.is_empty() && !self.more
    }

    /// Whether a matching queue may be among them.
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
    fn status_without_request_counts_is_accepted() {
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
    fn unknown_request_kinds_of_later_versions_are_ignored() {
        let mut out = FrameWriter::new();
        out.u64(16);
        (1..=16).for_each(|count| out.u64(count));
        let counts = RequestCounts::decode(&mut Reader::new(out.into_body())).unwrap();
        assert_eq!(counts, RequestCounts::from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]));
        assert_eq!((counts.reads(), counts.writes()), ((1..=8).sum(), 9 + 10 + 11 + 12));
        assert_eq!(counts.iter().last(), Some(("refused", 13)));
    }
}
