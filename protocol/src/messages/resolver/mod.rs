//! Messages between a resolver replica and its clients.
//!
//! A *reader* asks and watches; a *writer* announces its publisher first, then writes for that
//! publisher only. Every request carries a number of the client's choosing, and so do its answers.
//! A replica answers the requests of one link in their order; the answer to a large request comes
//! in several messages, of which the last is marked.

mod answer;
mod digest;
mod path_texts;
mod read;
mod status;
mod tracker;
mod watch;
mod write;

use bytes::Bytes;

pub use answer::{Column, Listed, PathAnswer, PathListed, Resolved, SetMember, TableAnswer};
pub use digest::{Digest, KeyHash};
pub use path_texts::{PathText, PathTexts, PathTextsIter};
pub use read::{List, ListMatching, Resolve, Table};
pub use status::{Declared, KnownPublisher, PublishersKnown, ReplicaStatus, RequestCounts};
pub use tracker::Tracker;
pub use watch::{
    Departure, PathChanges, PathSnapshot, PublisherGone, Publishers, WatchPaths, WatchPublishers,
};
pub use write::{Announce, Announced, Change, Group, RefusedPath, Write, Written};

use crate::codec::Reader;
use crate::fields::{codes, messages};
use crate::id::PublisherId;
use crate::limits::REASON_BYTES_MAX;

messages! {
    /// The tags. 1 is [`crate::messages::HEARTBEAT`].
    pub mod tag {
        /// Those of requests, those of later versions included. A replica refuses one that it does
        /// not know, so that nobody waits for its answer; for that, every request added later has
        /// its number first.
        pub const REQUESTS: std::ops::RangeInclusive<u8> = 50..=69;
    }

    /// What a client sends to a replica.
    pub enum ToReplica {
        /// Who publishes these paths?
        RESOLVE = 50 => Resolve(resolve: Resolve),
        /// What lies just below a path?
        LIST = 51 => List(list: List),
        /// Which paths match?
        LIST_MATCHING = 52 => ListMatching(list: ListMatching),
        /// How is the replica?
        REPLICA_STATUS = 53 => Status {
            /// The request's number.
            id: u64,
        },
        /// Tell who could serve a glob, now and whenever that changes.
        WATCH_PUBLISHERS = 54 => WatchPublishers(watch: WatchPublishers),
        /// No more of that watch.
        UNWATCH = 55 => Unwatch {
            /// The request's number.
            id: u64,
            /// Which.
            watch: u32,
        },
        /// First of a writer, and its heartbeat: who it is and what it wants published, as digests.
        ANNOUNCE = 56 => Announce(announce: Announce),
        /// Changes to what the writer's publisher holds.
        WRITE = 57 => Write(write: Write),
        /// Everything wanted in the buckets that differed at the last announce has been written
        /// since: what was not, is to be removed.
        CONFIRM = 58 => Confirm {
            /// The request's number.
            id: u64,
        },
        /// The publisher stops: everything of it is to be removed.
        CLEAR = 59 => Clear {
            /// The request's number.
            id: u64,
        },
        /// What lies two levels below a path, as rows and columns?
        TABLE = 60 => Table(table: Table),
        /// Tell which paths match, now and whenever that changes.
        WATCH_PATHS = 62 => WatchPaths(watch: WatchPaths),
        /// Which publishers does the replica know, and how long have they been silent?
        LIST_PUBLISHERS = 63 => ListPublishers {
            /// The request's number.
            id: u64,
        },
        /// A publisher that is missing is gone for good: the replica no longer reports it.
        FORGET_PUBLISHER = 64 => ForgetPublisher {
            /// The request's number.
            id: u64,
            /// Which.
            publisher: PublisherId,
        },
    }

    /// What a replica sends to a client.
    pub enum FromReplica {
        /// Some, or the last, answers to [`ToReplica::Resolve`].
        RESOLVED = 70 => Resolved(resolved: Resolved),
        /// Some, or the last, paths for [`ToReplica::List`] or [`ToReplica::ListMatching`].
        LISTED = 71 => Listed(listed: Listed),
        /// The answer to [`ToReplica::Status`].
        REPLICA_STATUS_ANSWER = 72 => Status {
            /// The request's number.
            id: u64,
            /// The statistics.
            status: ReplicaStatus,
        },
        /// All publishers of a watch.
        PUBLISHERS = 73 => Publishers(publishers: Publishers),
        /// The answer to [`ToReplica::Announce`].
        ANNOUNCED = 74 => Announced(announced: Announced),
        /// Progress, or the end, of [`ToReplica::Write`], [`ToReplica::Confirm`] or
        /// [`ToReplica::Clear`]; the answer to [`ToReplica::ForgetPublisher`], `done` 1 if the
        /// replica knew it.
        WRITTEN = 75 => Written(written: Written),
        /// A whole request was refused. Nothing of it was done.
        REQUEST_REFUSED = 76 => Refused {
            /// The request's number; 0 where the request was too damaged to read it.
            id: u64,
            /// For programs.
            code: RequestRefusal,
            /// For people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// Some, or the last, of the answer to [`ToReplica::Table`].
        TABLE_ANSWER = 77 => Table(table: TableAnswer),
        /// Some, or the last, paths of a watch that begins, or starts over.
        PATH_SNAPSHOT = 79 => PathSnapshot(snapshot: PathSnapshot),
        /// Paths of watches that have changed.
        PATH_CHANGES = 80 => PathChanges(changes: PathChanges),
        /// A publisher is gone from watches.
        PUBLISHER_GONE = 81 => PublisherGone(gone: PublisherGone),
        /// Some, or the last, of the answer to [`ToReplica::ListPublishers`].
        PUBLISHERS_KNOWN = 82 => PublishersKnown(known: PublishersKnown),
    }
}

codes! {
    /// Why a replica refused a whole request.
    RequestRefusal, "request refusal" {
        /// It did not decode.
        Malformed = 1, "Malformed: the request does not decode; client and replica disagree about the protocol";
        /// A reader wrote, or a writer that has not announced its publisher.
        NotAnnounced = 2, "NotAnnounced: only a writer that has announced its publisher may write; announce it again";
        /// Another link writes for that publisher now, or a later start of it does.
        Superseded = 3, "Superseded: a newer link or a later start of the same publisher has taken over";
        /// As many publishers as the replica takes.
        TooManyPublishers = 4, "TooManyPublishers: the replica knows as many publishers as it may";
        /// The replica's version does not know it; the reason names its tag.
        UnknownRequest = 5, "UnknownRequest: the replica's version does not know the request; upgrade the replica";
        /// A part of it is over its limit; the reason names both.
        OverLimit = 6, "OverLimit: a part of the request is over its limit; send less at once";
        /// As many watches as the replica, or one connection, may have.
        TooManyWatches = 7, "TooManyWatches: there are as many watches as there may be; try another replica";
        /// The replica has no memory for what its globs stand for at the moment.
        Busy = 8, "Busy: the replica answers as many globs as it may; try another replica, or later";
        /// Only a publisher that is missing can be forgotten.
        StillThere = 9, "StillThere: the publisher is registered; stop it before it is forgotten";
    }
}

impl ToReplica {
    /// The request's number.
    pub fn id(&self) -> u64 {
        match self {
            ToReplica::Resolve(ask) => ask.id,
            ToReplica::List(ask) => ask.id,
            ToReplica::ListMatching(ask) => ask.id,
            ToReplica::Announce(announce) => announce.id,
            ToReplica::Write(write) => write.id,
            ToReplica::Table(ask) => ask.id,
            ToReplica::WatchPublishers(watch) => watch.id,
            ToReplica::WatchPaths(watch) => watch.id,
            ToReplica::Unwatch { id, .. } => *id,
            ToReplica::Status { id }
            | ToReplica::Confirm { id }
            | ToReplica::Clear { id }
            | ToReplica::ListPublishers { id }
            | ToReplica::ForgetPublisher { id, .. } => *id,
        }
    }

    /// The request's number in a body that did not decode, or is not known: the first field of
    /// every request. 0 if that is damaged, too.
    pub fn id_of_damaged(body: &Bytes) -> u64 {
        Reader::new(body.clone()).u64().unwrap_or(0)
    }
}
