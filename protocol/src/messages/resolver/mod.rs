//! Messages between a resolver replica and its clients.
//!
//! A *reader* asks and watches; a *writer* announces its publisher first, then writes for that publisher only. Every request
//! carries a number of the client's choosing, and so do its answers. A replica answers the requests of one link in their
//! order; the answer to a large request comes in several messages, of which the last says so.

mod answer;
mod digest;
mod path_texts;
mod read;
mod status;
mod tracker;
mod watch;
mod write;

use bytes::Bytes;

pub use answer::{
    Changed, Column, Listed, PathAnswer, PathListed, Resolved, SetMember, TableAnswer,
};
pub use digest::{Digest, KeyHash};
pub use path_texts::{PathText, PathTexts, PathTextsIter};
pub use read::{CheckChanged, List, ListMatching, Resolve, Table, Tracked};
pub use status::{Declared, KnownPublisher, PublishersKnown, ReplicaStatus, RequestCounts};
pub use tracker::Tracker;
pub use watch::{
    Departure, PathChanges, PathSnapshot, PublisherGone, Publishers, WatchPaths, WatchPublishers,
};
pub use write::{Announce, Announced, Change, Group, RefusedPath, Write, Written};

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::PublisherId;
use crate::limits::REASON_BYTES_MAX;
use crate::refusal::codes;

/// The tags. 1 is [`crate::messages::HEARTBEAT`].
pub mod tag {
    #![allow(missing_docs)]

    /// Those of requests, those of later versions included. A replica refuses one that it does not know, so that nobody waits for
    /// its answer; for that, every request added later has its number first.
    pub const REQUESTS: std::ops::RangeInclusive<u8> = 50..=69;

    pub const RESOLVE: u8 = 50;
    pub const LIST: u8 = 51;
    pub const LIST_MATCHING: u8 = 52;
    pub const REPLICA_STATUS: u8 = 53;
    pub const WATCH_PUBLISHERS: u8 = 54;
    pub const UNWATCH: u8 = 55;
    pub const ANNOUNCE: u8 = 56;
    pub const WRITE: u8 = 57;
    pub const CONFIRM: u8 = 58;
    pub const CLEAR: u8 = 59;
    pub const TABLE: u8 = 60;
    pub const CHECK_CHANGED: u8 = 61;
    pub const WATCH_PATHS: u8 = 62;
    pub const LIST_PUBLISHERS: u8 = 63;
    pub const FORGET_PUBLISHER: u8 = 64;

    pub const RESOLVED: u8 = 70;
    pub const LISTED: u8 = 71;
    pub const REPLICA_STATUS_ANSWER: u8 = 72;
    pub const PUBLISHERS: u8 = 73;
    pub const ANNOUNCED: u8 = 74;
    pub const WRITTEN: u8 = 75;
    pub const REQUEST_REFUSED: u8 = 76;
    pub const TABLE_ANSWER: u8 = 77;
    pub const CHANGED: u8 = 78;
    pub const PATH_SNAPSHOT: u8 = 79;
    pub const PATH_CHANGES: u8 = 80;
    pub const PUBLISHER_GONE: u8 = 81;
    pub const PUBLISHERS_KNOWN: u8 = 82;
}

/// What a client says to a replica.
#[derive(Clone, PartialEq, Debug)]
pub enum ToReplica {
    /// Who publishes these paths?
    Resolve(Resolve),
    /// What lies just below a path?
    List(List),
    /// Which paths match?
    ListMatching(ListMatching),
    /// How is the replica?
    Status {
        /// The request's number.
        id: u64,
    },
    /// Tell who could serve a glob, now and whenever that changes.
    WatchPublishers(WatchPublishers),
    /// No more of that watch.
    Unwatch {
        /// The request's number.
        id: u64,
        /// Which.
        watch: u32,
    },
    /// First of a writer, and its heartbeat: who it is and what it wants published, as digests.
    Announce(Announce),
    /// Changes to what the writer's publisher holds.
    Write(Write),
    /// Everything wanted in the buckets that differed at the last announce has been written since: what was not, is to be removed.
    Confirm {
        /// The request's number.
        id: u64,
    },
    /// The publisher stops: everything of it is to be removed.
    Clear {
        /// The request's number.
        id: u64,
    },
    /// What lies two levels below a path, as rows and columns?
    Table(Table),
    /// Has anything changed since?
    CheckChanged(CheckChanged),
    /// Tell which paths match, now and whenever that changes.
    WatchPaths(WatchPaths),
    /// Which publishers does the replica know, and how long have they been silent?
    ListPublishers {
        /// The request's number.
        id: u64,
    },
    /// A publisher that is missing is gone for good: the replica no longer reports it.
    ForgetPublisher {
        /// The request's number.
        id: u64,
        /// Which.
        publisher: PublisherId,
    },
}

/// What a replica says to a client.
#[derive(Clone, PartialEq, Debug)]
pub enum FromReplica {
    /// Some, or the last, answers to [`ToReplica::Resolve`].
    Resolved(Resolved),
    /// Some, or the last, paths for [`ToReplica::List`] or [`ToReplica::ListMatching`].
    Listed(Listed),
    /// The answer to [`ToReplica::Status`].
    Status {
        /// The request's number.
        id: u64,
        /// The figures.
        status: ReplicaStatus,
    },
    /// All publishers of a watch.
    Publishers(Publishers),
    /// The answer to [`ToReplica::Announce`].
    Announced(Announced),
    /// Progress, or the end, of [`ToReplica::Write`], [`ToReplica::Confirm`] or [`ToReplica::Clear`]; the answer to
    /// [`ToReplica::ForgetPublisher`], `done` 1 if the replica knew it.
    Written(Written),
    /// A whole request was refused. Nothing of it was done.
    Refused {
        /// The request's number; 0 where the request was too damaged to tell.
        id: u64,
        /// For programs.
        code: RequestRefusal,
        /// For people.
        reason: String,
    },
    /// Some, or the last, of the answer to [`ToReplica::Table`].
    Table(TableAnswer),
    /// Some, or the last, answers to [`ToReplica::CheckChanged`].
    Changed(Changed),
    /// Some, or the last, paths of a watch that begins, or starts over.
    PathSnapshot(PathSnapshot),
    /// Paths of watches that have changed.
    PathChanges(PathChanges),
    /// A publisher is gone from watches.
    PublisherGone(PublisherGone),
    /// Some, or the last, of the answer to [`ToReplica::ListPublishers`].
    PublishersKnown(PublishersKnown),
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
        /// The replica's version does not know it; the reason says its tag.
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
    /// Reads the message with that tag. `None` for a tag that this version does not know: it is skipped.
    pub fn decode(tag: u8, body: Bytes) -> Result<Option<ToReplica>, WireError> {
        let mut r = Reader::new(body);
        let r = &mut r;
        Ok(Some(match tag {
            tag::RESOLVE => ToReplica::Resolve(Resolve::decode(r)?),
            tag::LIST => ToReplica::List(List::decode(r)?),
            tag::LIST_MATCHING => ToReplica::ListMatching(ListMatching::decode(r)?),
            tag::REPLICA_STATUS => ToReplica::Status { id: r.u64()? },
            tag::WATCH_PUBLISHERS => ToReplica::WatchPublishers(WatchPublishers::decode(r)?),
            tag::UNWATCH => ToReplica::Unwatch { id: r.u64()?, watch: r.u32()? },
            tag::ANNOUNCE => ToReplica::Announce(Announce::decode(r)?),
            tag::WRITE => ToReplica::Write(Write::decode(r)?),
            tag::CONFIRM => ToReplica::Confirm { id: r.u64()? },
            tag::CLEAR => ToReplica::Clear { id: r.u64()? },
            tag::TABLE => ToReplica::Table(Table::decode(r)?),
            tag::CHECK_CHANGED => ToReplica::CheckChanged(CheckChanged::decode(r)?),
            tag::WATCH_PATHS => ToReplica::WatchPaths(WatchPaths::decode(r)?),
            tag::LIST_PUBLISHERS => ToReplica::ListPublishers { id: r.u64()? },
            tag::FORGET_PUBLISHER => {
                ToReplica::ForgetPublisher { id: r.u64()?, publisher: PublisherId::decode(r)? }
            }
            _ => return Ok(None),
        }))
    }

    /// Writes the message.
    pub fn encode(&self, out: &mut FrameWriter) {
        match self {
            ToReplica::Resolve(ask) => out.message(tag::RESOLVE, |out| ask.encode(out)),
            ToReplica::List(ask) => out.message(tag::LIST, |out| ask.encode(out)),
            ToReplica::ListMatching(ask) => out.message(tag::LIST_MATCHING, |out| ask.encode(out)),
            ToReplica::Status { id } => out.message(tag::REPLICA_STATUS, |out| out.u64(*id)),
            ToReplica::WatchPublishers(watch) => {
                out.message(tag::WATCH_PUBLISHERS, |out| watch.encode(out))
            }
            ToReplica::Unwatch { id, watch } => out.message(tag::UNWATCH, |out| {
                out.u64(*id);
                out.u64(u64::from(*watch));
            }),
            ToReplica::Announce(announce) => out.message(tag::ANNOUNCE, |out| announce.encode(out)),
            ToReplica::Write(write) => out.message(tag::WRITE, |out| write.encode(out)),
            ToReplica::Confirm { id } => out.message(tag::CONFIRM, |out| out.u64(*id)),
            ToReplica::Clear { id } => out.message(tag::CLEAR, |out| out.u64(*id)),
            ToReplica::Table(ask) => out.message(tag::TABLE, |out| ask.encode(out)),
            ToReplica::CheckChanged(ask) => out.message(tag::CHECK_CHANGED, |out| ask.encode(out)),
            ToReplica::WatchPaths(watch) => out.message(tag::WATCH_PATHS, |out| watch.encode(out)),
            ToReplica::ListPublishers { id } => {
                out.message(tag::LIST_PUBLISHERS, |out| out.u64(*id))
            }
            ToReplica::ForgetPublisher { id, publisher } => {
                out.message(tag::FORGET_PUBLISHER, |out| {
                    out.u64(*id);
                    publisher.encode(out);
                })
            }
        }
    }

    /// The request's number.
    pub fn id(&self) -> u64 {
        match self {
            ToReplica::Resolve(ask) => ask.id,
            ToReplica::List(ask) => ask.id,
            ToReplica::ListMatching(ask) => ask.id,
            ToReplica::Announce(announce) => announce.id,
            ToReplica::Write(write) => write.id,
            ToReplica::Table(ask) => ask.id,
            ToReplica::CheckChanged(ask) => ask.id,
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

    /// The request's number in a body that did not decode, or is not known: the first field of every request. 0 if that is damaged, too.
    pub fn id_of_damaged(body: &Bytes) -> u64 {
        Reader::new(body.clone()).u64().unwrap_or(0)
    }
}

impl FromReplica {
    /// Reads the message with that tag. `None` for a tag that this version does not know: it is skipped.
    pub fn decode(tag: u8, body: Bytes) -> Result<Option<FromReplica>, WireError> {
        let mut r = Reader::new(body);
        let r = &mut r;
        Ok(Some(match tag {
            tag::RESOLVED => FromReplica::Resolved(Resolved::decode(r)?),
            tag::LISTED => FromReplica::Listed(Listed::decode(r)?),
            tag::REPLICA_STATUS_ANSWER => {
                FromReplica::Status { id: r.u64()?, status: ReplicaStatus::decode(r)? }
            }
            tag::PUBLISHERS => FromReplica::Publishers(Publishers::decode(r)?),
            tag::ANNOUNCED => FromReplica::Announced(Announced::decode(r)?),
            tag::WRITTEN => FromReplica::Written(Written::decode(r)?),
            tag::REQUEST_REFUSED => FromReplica::Refused {
                id: r.u64()?,
                code: RequestRefusal::decode(r)?,
                reason: r.string("reason", REASON_BYTES_MAX)?,
            },
            tag::TABLE_ANSWER => FromReplica::Table(TableAnswer::decode(r)?),
            tag::CHANGED => FromReplica::Changed(Changed::decode(r)?),
            tag::PATH_SNAPSHOT => FromReplica::PathSnapshot(PathSnapshot::decode(r)?),
            tag::PATH_CHANGES => FromReplica::PathChanges(PathChanges::decode(r)?),
            tag::PUBLISHER_GONE => FromReplica::PublisherGone(PublisherGone::decode(r)?),
            tag::PUBLISHERS_KNOWN => FromReplica::PublishersKnown(PublishersKnown::decode(r)?),
            _ => return Ok(None),
        }))
    }

    /// Writes the message.
    pub fn encode(&self, out: &mut FrameWriter) {
        match self {
            FromReplica::Resolved(answer) => out.message(tag::RESOLVED, |out| answer.encode(out)),
            FromReplica::Listed(answer) => out.message(tag::LISTED, |out| answer.encode(out)),
            FromReplica::Status { id, status } => out.message(tag::REPLICA_STATUS_ANSWER, |out| {
                out.u64(*id);
                status.encode(out);
            }),
            FromReplica::Publishers(all) => out.message(tag::PUBLISHERS, |out| all.encode(out)),
            FromReplica::Announced(answer) => out.message(tag::ANNOUNCED, |out| answer.encode(out)),
            FromReplica::Written(answer) => out.message(tag::WRITTEN, |out| answer.encode(out)),
            FromReplica::Refused { id, code, reason } => out.message(tag::REQUEST_REFUSED, |out| {
                out.u64(*id);
                code.encode(out);
                out.string_cut(reason, REASON_BYTES_MAX);
            }),
            FromReplica::Table(answer) => out.message(tag::TABLE_ANSWER, |out| answer.encode(out)),
            FromReplica::Changed(answer) => out.message(tag::CHANGED, |out| answer.encode(out)),
            FromReplica::PathSnapshot(all) => {
                out.message(tag::PATH_SNAPSHOT, |out| all.encode(out))
            }
            FromReplica::PathChanges(some) => {
                out.message(tag::PATH_CHANGES, |out| some.encode(out))
            }
            FromReplica::PublisherGone(gone) => {
                out.message(tag::PUBLISHER_GONE, |out| gone.encode(out))
            }
            FromReplica::PublishersKnown(some) => {
                out.message(tag::PUBLISHERS_KNOWN, |out| some.encode(out))
            }
        }
    }
}
