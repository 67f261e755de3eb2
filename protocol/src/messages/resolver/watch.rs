//! Watches: over publishers, and over paths.

use crate::fields::{codes, fields};
use crate::glob::Glob;
use crate::id::PublisherId;
use crate::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_PUBLISHERS_MAX, RESOLVER_WATCHES_MAX};
use crate::messages::resolver::read::globs;
use crate::messages::resolver::{PathListed, Tracker};
use crate::publisher_info::PublisherInfo;

fields! {
    /// Tell which publishers could serve what matches a glob: those that publish a path that
    /// matches, and those with a default at or below which a path could. Answered by [`Publishers`]
    /// at once, and again whenever that set has changed.
    pub struct WatchPublishers {
        /// The request's number: a refusal names it.
        pub id: u64,
        /// The client's number for the watch; a watch of the same number is replaced.
        pub watch: u32,
        /// The glob.
        pub glob: Glob,
    }

    /// All publishers of a watch: the whole set, so that pushes a slow watcher has missed need no
    /// repair.
    pub struct Publishers {
        /// Which watch.
        pub watch: u32,
        /// As of when.
        pub tracker: Tracker,
        /// False while the replica is warming: a missing publisher may not have announced itself
        /// yet.
        pub complete: bool,
        /// The publishers, by id.
        pub publishers: Vec<PublisherInfo> = at_most("publishers", RESOLVER_PUBLISHERS_MAX),
    }

    /// One publisher is gone from these watches: sent in place of the whole set, to watchers that
    /// have received it.
    pub struct PublisherGone {
        /// Which watches.
        pub watches: Vec<u32> = at_most("watches", RESOLVER_WATCHES_MAX),
        /// As of when.
        pub tracker: Tracker,
        /// False while the replica is warming.
        pub complete: bool,
        /// Who.
        pub publisher: PublisherId,
        /// Why.
        pub departure: Departure,
    }
}

codes! {
    /// Why a publisher can no longer be seen.
    Departure, "departure" {
        /// It was silent for a `writer_ttl` (120 s unless told otherwise): it hangs, died, or is
        /// cut off. It may come back.
        Silent = 1, "silent";
        /// It stopped in order, and withdrew its paths.
        Stopped = 2, "stopped";
        /// It was there when the replica stopped, and has not come back since the replica's
        /// restart.
        NotBack = 3, "not back since the replica's restart";
    }
}

fields! {
    /// Tell which paths match one of these globs, now and whenever one comes or goes. Answered by
    /// [`PathSnapshot`]s, then by [`PathChanges`].
    pub struct WatchPaths {
        /// The request's number: a refusal names it.
        pub id: u64,
        /// The client's number for the watch; a watch of the same number, of either kind, is
        /// replaced.
        pub watch: u32,
        /// The globs; at most 256.
        pub globs: Vec<Glob> = read_by(globs),
    }

    /// Some of the paths that a watch sees.
    pub struct PathSnapshot {
        /// Which watch.
        pub watch: u32,
        /// A snapshot begins: what was sent before is to be compared with it, and what it lacks is
        /// gone. So does every watch, and so it starts over when its client did not read fast
        /// enough for changes to be kept for it.
        pub first: bool,
        /// The snapshot is whole. Changes follow.
        pub last: bool,
        /// False while the replica is warming: a missing path may not have been announced yet.
        pub complete: bool,
        /// As of when it was begun.
        pub tracker: Tracker,
        /// The paths, none twice within a snapshot, in no promised order.
        pub paths: Vec<PathListed> = at_most("paths of a snapshot", RESOLVER_BATCH_PATHS_MAX),
    }

    /// What has changed since the last message of a watch. It holds the present state: a change
    /// sent twice does no harm.
    pub struct PathChanges {
        /// For all of these watches.
        pub watches: Vec<u32> = at_most("watches", RESOLVER_WATCHES_MAX),
        /// False while the replica is warming.
        pub complete: bool,
        /// As of when.
        pub tracker: Tracker,
        /// The paths as they are now; one that is nothing any more is gone.
        pub paths: Vec<PathListed> = at_most("paths that changed", RESOLVER_BATCH_PATHS_MAX),
    }
}
