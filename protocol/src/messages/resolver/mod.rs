//! Messages between a resolver replica and its clients.
//!
//! A *reader* queries and watches; a *writer* first announces its publisher, then writes only for
//! that publisher. Every request has a number chosen by the client, which its answers repeat. A
//! replica answers the requests of one link in order; the answer to a large request consists of
//! several messages, the last of which is marked.

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
        /// The tags of requests, including those of later versions. A replica refuses an unknown
        /// request, so that no client waits for its answer; therefore every request added later
        /// begins with its number.
        pub const REQUESTS: std::ops::RangeInclusive<u8> = 50..=69;
    }

    /// What a client sends to a replica.
    pub enum ToReplica {
        /// Queries the publishers of paths.
        RESOLVE = 50 => Resolve(resolve: Resolve),
        /// Lists the children of a path.
        LIST = 51 => List(list: List),
        /// Lists the paths that match globs.
        LIST_MATCHING = 52 => ListMatching(list: ListMatching),
        /// Queries the replica's status.
        REPLICA_STATUS = 53 => Status {
            /// The request's number.
            id: u64,
        },
        /// Watches the publishers that could serve a glob.
        WATCH_PUBLISHERS = 54 => WatchPublishers(watch: WatchPublishers),
        /// Ends a watch.
        UNWATCH = 55 => Unwatch {
            /// The request's number.
            id: u64,
            /// The watch.
            watch: u32,
        },
        /// A writer's first message, and its heartbeat: its publisher, and digests of what it
        /// publishes.
        ANNOUNCE = 56 => Announce(announce: Announce),
        /// Changes to the publications of the writer's publisher.
        WRITE = 57 => Write(write: Write),
        /// Everything published in the buckets that differed at the last announce has been written
        /// since. The replica removes the rest.
        CONFIRM = 58 => Confirm {
            /// The request's number.
            id: u64,
        },
        /// The publisher stops: the replica removes all its publications.
        CLEAR = 59 => Clear {
            /// The request's number.
            id: u64,
        },
        /// Queries the children and grandchildren of a path as rows and columns.
        TABLE = 60 => Table(table: Table),
        /// Watches the paths that match globs.
        WATCH_PATHS = 62 => WatchPaths(watch: WatchPaths),
        /// Lists the publishers that the replica knows, and how long they have been silent.
        LIST_PUBLISHERS = 63 => ListPublishers {
            /// The request's number.
            id: u64,
        },
        /// A missing publisher is gone permanently: the replica no longer reports it.
        FORGET_PUBLISHER = 64 => ForgetPublisher {
            /// The request's number.
            id: u64,
            /// The publisher.
            publisher: PublisherId,
        },
    }

    /// What a replica sends to a client.
    pub enum FromReplica {
        /// Some of the answers to [`ToReplica::Resolve`].
        RESOLVED = 70 => Resolved(resolved: Resolved),
        /// Some of the paths for [`ToReplica::List`] or [`ToReplica::ListMatching`].
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
        /// A whole request was refused and nothing of it was done.
        REQUEST_REFUSED = 76 => Refused {
            /// The request's number; 0 if it could not be decoded.
            id: u64,
            /// The reason for programs.
            code: RequestRefusal,
            /// The reason for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// Part of the answer to [`ToReplica::Table`].
        TABLE_ANSWER = 77 => Table(table: TableAnswer),
        /// Some paths of a watch that begins or restarts.
        PATH_SNAPSHOT = 79 => PathSnapshot(snapshot: PathSnapshot),
        /// Paths of watches that have changed.
        PATH_CHANGES = 80 => PathChanges(changes: PathChanges),
        /// A publisher is no longer part of watches.
        PUBLISHER_GONE = 81 => PublisherGone(gone: PublisherGone),
        /// Part of the answer to [`ToReplica::ListPublishers`].
        PUBLISHERS_KNOWN = 82 => PublishersKnown(known: PublishersKnown),
    }
}

codes! {
    /// Why a replica refused a whole request.
    RequestRefusal, "request refusal" {
        /// It could not be decoded.
        Malformed = 1, "Malformed: the request does not decode; \
                        client and replica disagree about the protocol";
        /// A reader wrote, or a writer that has not announced its publisher.
        NotAnnounced = 2, "NotAnnounced: only a writer that has announced its publisher may write; \
                           announce it again";
        /// Another link, or a later start of the publisher, writes for it now.
        Superseded = 3, "Superseded: a newer link or a later start of the same publisher \
                         has taken over";
        /// The replica's limit of publishers is reached.
        TooManyPublishers = 4, "TooManyPublishers: the replica has reached its limit of publishers";
        /// The replica's version does not know the request; the reason includes its tag.
        UnknownRequest = 5, "UnknownRequest: the replica's version does not know the request; \
                             upgrade the replica";
        /// A part of the request is over its limit; the reason includes both.
        OverLimit = 6, "OverLimit: a part of the request is over its limit; send less at once";
        /// The limit of watches of the replica or of one connection is reached.
        TooManyWatches = 7, "TooManyWatches: the limit of watches is reached; \
                             try another replica";
        /// The replica currently has no memory for the expansion of the globs.
        Busy = 8, "Busy: the replica has reached its limit of globs; \
                   try another replica, or later";
        /// Only a publisher that is missing can be forgotten.
        StillThere = 9, "StillThere: the publisher is registered; stop it before it is forgotten";
        /// The replica's policy does not allow it; the reason names the missing right.
        Forbidden = 10, "Forbidden: the replica's policy does not allow it";
        /// The replica's audit log cannot be written, so no administrative act begins.
        NotAudited = 11, "NotAudited: the replica's audit log cannot be written, so acts are \
                          refused; its log says why";
    }
}

impl ToReplica {
    /// The request's number.
    pub fn id(&self) -> u64 {
        match self {
            ToReplica::Resolve(request) => request.id,
            ToReplica::List(request) => request.id,
            ToReplica::ListMatching(request) => request.id,
            ToReplica::Announce(announce) => announce.id,
            ToReplica::Write(write) => write.id,
            ToReplica::Table(request) => request.id,
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

    /// Reads the number of a request that could not be decoded or is unknown: the first field of
    /// every request. 0 if that field is damaged, too.
    pub fn id_of_undecodable(body: &Bytes) -> u64 {
        Reader::new(body.clone()).u64().unwrap_or(0)
    }
}
