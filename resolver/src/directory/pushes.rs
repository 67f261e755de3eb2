//! What clients are told without having asked: of watches over publishers and over paths.

use longshore_protocol::messages::resolver::{
    FromReplica, KnownPublisher, PathChanges, PathListed, PathSnapshot, PublisherGone, Publishers,
    Tracker,
};
use longshore_protocol::{Glob, Path, PublisherId};

use crate::directory::path_watches::Next;
use crate::directory::tree::NodeId;
use crate::directory::{Client, Directory, Matching, Slot};

/// Most watches of one client, of both kinds.
pub(crate) const WATCHES_OF_CLIENT_MAX: usize = 4_096;
/// Most parts of watched globs, over all watches and all alternatives of each: some 50 to 100 MiB.
pub(crate) const WATCHED_PARTS_MAX: usize = 1 << 20;
/// Steps of a snapshot between two looks at the clock.
const SNAPSHOT_STEPS: usize = 1_024;

/// Why a watch is not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum WatchRefusal {
    /// As many watches as there may be.
    #[error("the replica has {0} watches, as many as it may; try another replica")]
    ReplicaFull(usize),
    /// As many watches as one client may have.
    #[error("the connection has {WATCHES_OF_CLIENT_MAX} watches, as many as it may")]
    ClientFull,
    /// All watched globs together stand for as much as they may.
    #[error(
        "the replica's watched globs have {WATCHED_PARTS_MAX} parts, as many as they may; try another replica, or use fewer braces"
    )]
    GlobsFull,
    /// The globs stand for too much.
    #[error("{0}")]
    TooLarge(String),
}

/// A snapshot that is being told.
#[derive(Debug)]
pub(super) struct Snapshot {
    matching: Box<Matching>,
    /// As of its beginning.
    tracker: Tracker,
    /// Something of it has been told.
    told: bool,
}

/// What a client is told next.
#[derive(Debug)]
pub(crate) enum Push {
    Tell(FromReplica),
    /// A part of a snapshot was looked through, and nothing found that is worth a message.
    Working,
    /// Nothing, until it is newly due.
    Done,
}

/// Goes over all publishers, a slice at a time: those of this run, then those that are missing.
#[derive(Default, Debug)]
pub(crate) struct Known {
    next: Slot,
    run_done: bool,
    last_missing: Option<PublisherId>,
}

impl Known {
    /// Adds publishers to `out`: looks at no more than `budget`. True when there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &Directory,
        now: std::time::Instant,
        budget: usize,
        out: &mut Vec<KnownPublisher>,
    ) -> bool {
        let mut looked = 0;
        if !self.run_done {
            for (slot, publisher) in directory.living.from(self.next).take(budget) {
                looked += 1;
                self.next = slot + 1;
                // One whose paths are still being taken out is among the missing.
                if !publisher.hidden {
                    out.push(directory.known_at(now, slot));
                }
            }
            self.run_done = looked < budget;
            return false;
        }
        for missing in directory.remembered.after(now, self.last_missing).take(budget) {
            looked += 1;
            self.last_missing = Some(missing.info.id);
            out.push(missing);
        }
        looked < budget
    }
}

impl Directory {
    /// Watches the publishers that could serve what matches `glob`; the first push follows. A watch of the same number is replaced.
    pub(crate) fn watch(
        &mut self,
        client: Client,
        watch: u32,
        glob: Glob,
    ) -> Result<(), WatchRefusal> {
        self.unwatch(client, watch);
        self.room_for_watch(client, std::slice::from_ref(&glob))?;
        self.watches.add(client, watch, glob);
        Ok(())
    }

    /// Watches the paths that match; a snapshot follows. A watch of the same number is replaced.
    pub(crate) fn watch_paths(
        &mut self,
        client: Client,
        watch: u32,
        globs: &[Glob],
    ) -> Result<(), WatchRefusal> {
        self.unwatch(client, watch);
        self.room_for_watch(client, globs)?;
        Matching::check(globs).map_err(|limit| WatchRefusal::TooLarge(limit.to_string()))?;
        self.path_watches.add(client, watch, globs.into());
        Ok(())
    }

    fn room_for_watch(&self, client: Client, globs: &[Glob]) -> Result<(), WatchRefusal> {
        let parts = self.watches.parts() + self.path_watches.parts_with(globs);
        if parts > WATCHED_PARTS_MAX {
            return Err(WatchRefusal::GlobsFull);
        }
        if self.watches_len() >= self.rules.watches_max {
            return Err(WatchRefusal::ReplicaFull(self.rules.watches_max));
        }
        let own = self.watches.len_of(client) + self.path_watches.len_of(client);
        if own >= WATCHES_OF_CLIENT_MAX {
            return Err(WatchRefusal::ClientFull);
        }
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, client: Client, watch: u32) {
        self.watches.remove(client, watch);
        self.path_watches.remove(client, watch);
    }

    /// How many watches, of both kinds.
    pub(crate) fn watches_len(&self) -> usize {
        self.watches.len() + self.path_watches.len()
    }

    /// Clients that have something to be told, and had not when this was last asked; some of them twice.
    pub(crate) fn newly_due(&mut self) -> impl Iterator<Item = Client> {
        self.watches.newly_due().chain(self.path_watches.newly_due())
    }

    /// What that client is to be told next.
    pub(crate) fn push(&mut self, client: Client) -> Push {
        let (tracker, complete) = (self.tracker(), self.complete);
        if let Some(gone) = self.watches.next_gone(client) {
            return Push::Tell(FromReplica::PublisherGone(PublisherGone {
                watches: gone.watches,
                tracker,
                complete,
                publisher: gone.publisher,
                departure: gone.departure,
            }));
        }
        if let Some((watch, slots)) = self.watches.next_marked(client) {
            // One that was hidden just now may be counted still.
            let seen = slots.map(|slot| &self.living[slot]).filter(|publisher| !publisher.hidden);
            let mut publishers: Vec<_> = seen.map(|publisher| publisher.info.clone()).collect();
            publishers.sort_unstable_by_key(|info| info.id);
            let all = Publishers { watch, tracker, complete, publishers };
            return Push::Tell(FromReplica::Publishers(all));
        }
        match self.path_watches.next(client) {
            None => Push::Done,
            Some(Next::Changes { watches, paths }) => {
                let paths = paths.iter().filter_map(|path| self.as_it_is(path)).collect();
                let some = PathChanges { watches, complete, tracker, paths };
                Push::Tell(FromReplica::PathChanges(some))
            }
            Some(Next::Snapshot { watch, globs, walk }) => {
                let begin = || {
                    let matching = Box::new(Matching::new(&globs).ok()?);
                    Some(Snapshot { matching, tracker, told: false })
                };
                match walk.or_else(begin) {
                    Some(snapshot) => self.tell_snapshot(client, watch, snapshot),
                    None => {
                        // Checked when the watch was made: never.
                        self.path_watches.remove(client, watch);
                        Push::Working
                    }
                }
            }
        }
    }

    fn tell_snapshot(&mut self, client: Client, watch: u32, mut snapshot: Snapshot) -> Push {
        let mut paths = Vec::new();
        let last = snapshot.matching.take(self, SNAPSHOT_STEPS, &mut paths);
        let (first, tracker, complete) = (!snapshot.told, snapshot.tracker, self.complete);
        let worth_it = first || last || !paths.is_empty();
        if last {
            self.path_watches.snapshot_told(client, watch);
        } else {
            snapshot.told = true;
            self.path_watches.rest(client, watch, snapshot);
        }
        if !worth_it {
            return Push::Working;
        }
        let some = PathSnapshot { watch, first, last, complete, tracker, paths };
        Push::Tell(FromReplica::PathSnapshot(some))
    }

    /// A path as it is now; one that is nothing is gone.
    fn as_it_is(&self, path: &str) -> Option<PathListed> {
        // What was a path once is one still.
        let path = Path::new(path).ok()?;
        let found = self.paths.tree.find(path.as_str());
        Some(match found {
            Some(node) => self.seen_at(node).listed(path),
            None => PathListed { path, queue: false, value: false, default: false },
        })
    }

    /// The path of a node, if anybody watches paths.
    pub(super) fn path_watched(&self, node: NodeId) -> Option<Path> {
        if self.path_watches.len() == 0 { None } else { self.paths.path(node) }
    }

    /// What changes have cost since this was last asked, beside themselves: in globs compared with their paths.
    pub(crate) fn spent(&mut self) -> usize {
        std::mem::take(&mut self.spent)
    }
}
