//! Watches over publishers, and over paths.

use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::id::PublisherId;
use crate::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_PUBLISHERS_MAX, RESOLVER_WATCHES_MAX};
use crate::messages::resolver::read::globs;
use crate::messages::resolver::{PathListed, Tracker};
use crate::publisher_info::PublisherInfo;

fields! {
    /// Watches the publishers that could serve a glob: those with a matching path, and those with a
    /// default at or below which a path could match. [`Publishers`] answers at once, and again
    /// whenever that set changes.
    pub struct WatchPublishers {
        /// The request's number, repeated in a refusal.
        pub id: u64,
        /// The client's number for the watch; a watch of the same number is replaced.
        pub watch: u32,
        /// The glob.
        pub glob: Glob,
    }

    /// All publishers of a watch: the whole set, so that a slow watcher that misses updates needs
    /// no repair.
    pub struct Publishers {
        /// The watch.
        pub watch: u32,
        /// The state of the directory that it reflects.
        pub tracker: Tracker,
        /// False while the replica is warming: a missing publisher may not have announced itself
        /// yet.
        pub complete: bool,
        /// The publishers, by id.
        pub publishers: Vec<PublisherInfo> = at_most("publishers", RESOLVER_PUBLISHERS_MAX),
    }

    /// One publisher is no longer part of these watches: sent instead of the whole set, to watchers
    /// that have received it.
    pub struct PublisherGone {
        /// The watches.
        pub watches: Vec<u32> = at_most("watches", RESOLVER_WATCHES_MAX),
        /// The state of the directory that it reflects.
        pub tracker: Tracker,
        /// False while the replica is warming.
        pub complete: bool,
        /// The publisher.
        pub publisher: PublisherId,
        /// The reason.
        pub departure: Departure,
    }
}

codes! {
    /// Why a publisher is no longer visible.
    Departure, "departure" {
        /// It was silent for a `writer_ttl` (120 s by default): it hangs, died, or is disconnected.
        /// It may return.
        Silent = 1, "silent";
        /// It stopped normally, and withdrew its paths.
        Stopped = 2, "stopped";
        /// It was registered when the replica stopped, and has not returned since the replica's
        /// restart.
        NotBack = 3, "not back since the replica's restart";
    }
}

fields! {
    /// Watches the paths that match one of these globs. [`PathSnapshot`]s answer, followed by
    /// [`PathChanges`].
    pub struct WatchPaths {
        /// The request's number, repeated in a refusal.
        pub id: u64,
        /// The client's number for the watch; a watch of the same number, of either kind, is
        /// replaced.
        pub watch: u32,
        /// The globs; at most 256.
        pub globs: Vec<Glob> = read_by(globs),
    }

    /// Some of the paths of a watch.
    pub struct PathSnapshot {
        /// The watch.
        pub watch: u32,
        /// The first message of a snapshot: the client compares its paths with the snapshot, and
        /// removes those that it lacks. Every watch begins with a snapshot; it restarts with one
        /// when its client reads too slowly for the replica to buffer changes.
        pub first: bool,
        /// The last message of the snapshot. Changes follow.
        pub last: bool,
        /// False while the replica is warming: a missing path may not have been announced yet.
        pub complete: bool,
        /// The state of the directory at the start of the snapshot.
        pub tracker: Tracker,
        /// The paths, each once within a snapshot, in no particular order.
        pub paths: Vec<PathListed> = at_most("paths of a snapshot", RESOLVER_BATCH_PATHS_MAX),
    }

    /// The changes since the last message of a watch. They contain the current state, so a change
    /// may be sent twice.
    pub struct PathChanges {
        /// The watches.
        pub watches: Vec<u32> = at_most("watches", RESOLVER_WATCHES_MAX),
        /// False while the replica is warming.
        pub complete: bool,
        /// The state of the directory that they reflect.
        pub tracker: Tracker,
        /// The current state of the paths; one without any kind is gone.
        pub paths: Vec<PathListed> = at_most("paths that changed", RESOLVER_BATCH_PATHS_MAX),
    }
}
