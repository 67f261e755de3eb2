//! What clients are told without having asked: of watches over publishers and over paths.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_protocol::messages::resolver::{
    FromReplica, KnownPublisher, PathChanges, PathListed, PathSnapshot, PublisherGone, Publishers,
    Tracker,
};
use longshore_protocol::{Glob, Path, PublisherId};

use crate::directory::holdings::Held;
use crate::directory::prefixes::PatternId;
use crate::directory::watches::{Kind, Next};
use crate::directory::{Client, Directory, Matching, Slot};

/// Most watches of one client, of both kinds.
pub(crate) const WATCHES_OF_CLIENT_MAX: usize = 4_096;
/// Most parts of watched globs, over all watches and all alternatives of each: some 50 to 100 MiB,
/// and at most 200 MiB more while walks for all of them rest.
pub(crate) const WATCHED_PARTS_MAX: usize = 1 << 20;
/// Steps of a snapshot between two looks at the clock.
const SNAPSHOT_STEPS: usize = 1_024;
/// Steps of a count between two looks at the clock: at each may be 1,024 publishers. Tests have few
/// nodes, and are to see walks rest.
const COUNT_STEPS: usize = if cfg!(test) { 1 } else { 256 };

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
    /// Watches the publishers that could serve what matches `glob`; the first push follows. A watch
    /// of the same number is replaced.
    pub(crate) fn watch(
        &mut self,
        client: Client,
        watch: u32,
        glob: Glob,
    ) -> Result<(), WatchRefusal> {
        self.add_watch(client, watch, Kind::Publishers, [glob].into())
    }

    /// Watches the paths that match; a snapshot follows. A watch of the same number is replaced.
    pub(crate) fn watch_paths(
        &mut self,
        client: Client,
        watch: u32,
        globs: &[Glob],
    ) -> Result<(), WatchRefusal> {
        self.add_watch(client, watch, Kind::Paths, globs.into())
    }

    fn add_watch(
        &mut self,
        client: Client,
        watch: u32,
        kind: Kind,
        globs: Arc<[Glob]>,
    ) -> Result<(), WatchRefusal> {
        self.unwatch(client, watch);
        if self.watches.parts_with(&globs) > WATCHED_PARTS_MAX {
            return Err(WatchRefusal::GlobsFull);
        }
        if self.watches.len() >= self.rules.watches_max {
            return Err(WatchRefusal::ReplicaFull(self.rules.watches_max));
        }
        if self.watches.len_of(client) >= WATCHES_OF_CLIENT_MAX {
            return Err(WatchRefusal::ClientFull);
        }
        Matching::check(&globs).map_err(|limit| WatchRefusal::TooLarge(limit.to_string()))?;
        self.watches.add(client, watch, kind, globs);
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, client: Client, watch: u32) {
        self.watches.remove(client, watch);
    }

    /// How many watches, of both kinds.
    pub(crate) fn watches_len(&self) -> usize {
        self.watches.len()
    }

    /// Clients for which there is something to do, and was not when this was last asked; some of
    /// them twice.
    pub(crate) fn newly_due(&mut self) -> impl Iterator<Item = Client> {
        self.watches.newly_due()
    }

    /// What that client is to be told next.
    pub(crate) fn push(&mut self, client: Client) -> Push {
        let (tracker, complete) = (self.tracker(), self.complete);
        Push::Tell(match self.watches.next(client) {
            None => return Push::Done,
            Some(Next::Count { pattern, globs, walk }) => {
                self.count(pattern, &globs, walk);
                return Push::Working;
            }
            Some(Next::Publishers { watch, publishers }) => {
                // One that was hidden just now may be counted still.
                let slots = publishers.into_iter().map(|slot| &self.living[slot]);
                let seen = slots.filter(|publisher| !publisher.hidden);
                let mut publishers: Vec<_> = seen.map(|publisher| publisher.info.clone()).collect();
                publishers.sort_unstable_by_key(|info| info.id);
                FromReplica::Publishers(Publishers { watch, tracker, complete, publishers })
            }
            Some(Next::Gone { watches, publisher, departure }) => {
                let gone = PublisherGone { watches, tracker, complete, publisher, departure };
                FromReplica::PublisherGone(gone)
            }
            Some(Next::Changes { watches, paths }) => {
                let paths = paths.iter().filter_map(|path| self.as_it_is(path)).collect();
                FromReplica::PathChanges(PathChanges { watches, complete, tracker, paths })
            }
            Some(Next::Snapshot { watch, globs, walk }) => {
                let begin = || {
                    let matching = Box::new(Matching::new(&globs).ok()?);
                    Some(Snapshot { matching, tracker, told: false })
                };
                return match walk.or_else(begin) {
                    Some(snapshot) => self.tell_snapshot(client, watch, snapshot),
                    None => {
                        // Checked when the watch was made: never.
                        self.watches.remove(client, watch);
                        Push::Working
                    }
                };
            }
        })
    }

    /// Counts who has jobs where it matches: some of the nodes that could, or, of everything, whom
    /// the directory knows to have any.
    fn count(&mut self, pattern: PatternId, globs: &[Glob], walk: Option<Box<Matching>>) {
        let mut counts: BTreeMap<Slot, u64> = BTreeMap::new();
        let mut done = true;
        let mut walk = match globs.iter().any(Glob::is_everything) {
            true => None,
            // The globs were checked when the watch was made.
            false => walk.or_else(|| Matching::new(globs).ok().map(Box::new)),
        };
        match &mut walk {
            None => {
                let seen = self.living.from(0).filter(|(_, one)| !one.hidden && one.jobs > 0);
                counts.extend(seen.map(|(slot, publisher)| (slot, publisher.jobs)));
            }
            Some(walk) => {
                done = walk.visit(self, COUNT_STEPS, &mut |directory, node, matches| {
                    // A default there could make what matches.
                    for default in [false, true].into_iter().filter(|&default| default || matches) {
                        for slot in directory.with_jobs(Held { node, default }) {
                            *counts.entry(slot).or_default() += 1;
                        }
                    }
                });
            }
        }
        self.watches.counted(pattern, counts, walk.filter(|_| !done));
    }

    /// The publishers that can be seen and have jobs, or make queues, there.
    pub(super) fn with_jobs(&self, held: Held) -> impl Iterator<Item = Slot> {
        let members = self.paths.members(held).iter();
        let seen = members.filter(|member| !self.living[member.slot].hidden);
        seen.filter(|member| self.paths.is_of_jobs(member.terms)).map(|member| member.slot)
    }

    fn tell_snapshot(&mut self, client: Client, watch: u32, mut snapshot: Snapshot) -> Push {
        let mut paths = Vec::new();
        let last = snapshot.matching.take(self, SNAPSHOT_STEPS, &mut paths);
        let (first, tracker, complete) = (!snapshot.told, snapshot.tracker, self.complete);
        let worth_it = first || last || !paths.is_empty();
        snapshot.told = true;
        self.watches.rest(client, watch, (!last).then_some(snapshot));
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

    /// What changes have cost since this was last asked, beside themselves: in globs compared with
    /// their paths.
    pub(crate) fn spent(&mut self) -> usize {
        std::mem::take(&mut self.spent)
    }
}
