//! Messages of watches over publishers and over paths, which clients receive unasked.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_protocol::messages::resolver::{
    Declared, FromReplica, KnownPublisher, PathChanges, PathListed, PathSnapshot, PublisherGone,
    Publishers, Tracker,
};
use longshore_protocol::{Glob, Path, PublisherId};

use crate::directory::prefixes::PatternId;
use crate::directory::registrations::Registration;
use crate::directory::scope::Scope;
use crate::directory::watches::{WatchKind, WatchStep};
use crate::directory::{Client, Directory, GlobWalk, Slot};

/// Most watches of one client, of both kinds.
pub(crate) const WATCHES_OF_CLIENT_MAX: usize = 4_096;
/// Most parts of watched globs, over all watches and all alternatives of each: some 50 to 100 MiB,
/// and at most 200 MiB more while walks for all of them are suspended.
pub(crate) const WATCHED_PARTS_MAX: usize = 1 << 20;
/// Steps of a snapshot between two reads of the clock.
const SNAPSHOT_STEPS: usize = 1_024;
/// Steps of a count between two reads of the clock: each step may meet 1,024 publishers. Tests have
/// few nodes, and have to cover suspended walks.
const COUNT_STEPS: usize = if cfg!(test) { 1 } else { 256 };

/// Why a watch is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum WatchRefusal {
    /// The replica has reached its limit of watches.
    #[error("the replica has reached its limit of {0} watches; try another replica")]
    ReplicaFull(usize),
    /// The client has reached its limit of watches.
    #[error("the connection has reached its limit of {WATCHES_OF_CLIENT_MAX} watches")]
    ClientFull,
    /// All watched globs together have reached their limit.
    #[error(
        "the replica's watched globs have reached their limit of {WATCHED_PARTS_MAX} parts; \
         try another replica, or use fewer braces"
    )]
    GlobsFull,
    /// The globs expand to too much.
    #[error("{0}")]
    TooLarge(String),
}

/// A snapshot in progress.
#[derive(Debug)]
pub(super) struct Snapshot {
    matching: Box<GlobWalk>,
    /// As of its beginning.
    tracker: Tracker,
    /// A part of it has been sent.
    sent: bool,
}

/// The next message of a client.
#[derive(Debug)]
pub(crate) enum Push {
    Send(FromReplica),
    /// A part of a snapshot was walked without finding anything to send.
    Working,
    /// Nothing, until the client is due again.
    Done,
}

/// Iterates over all publishers, a slice at a time: those of this run, then the missing ones.
#[derive(Default, Debug)]
pub(crate) struct PublisherListing {
    next: Slot,
    run_done: bool,
    last_missing: Option<PublisherId>,
}

impl PublisherListing {
    /// Adds the publishers that a client sees to `out`, after checking at most `budget`. True when
    /// there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &Directory,
        scope: &Scope,
        now: std::time::Instant,
        budget: usize,
        out: &mut Vec<KnownPublisher>,
    ) -> bool {
        let (mut compared, budget) = (0, scope.paths_in(budget));
        if !self.run_done {
            for (slot, publisher) in directory.publishers.from(self.next).take(budget) {
                compared += 1;
                self.next = slot + 1;
                // One whose paths are still being removed is among the missing.
                if !publisher.is_hidden() {
                    out.extend(part_in(scope, directory.known_at(now, slot)));
                }
            }
            self.run_done = compared < budget;
            return false;
        }
        for missing in directory.missing_publishers.after(now, self.last_missing).take(budget) {
            compared += 1;
            self.last_missing = Some(missing.info.id);
            out.extend(part_in(scope, missing));
        }
        compared < budget
    }
}

/// The part of a publisher that a client sees: what it declared in the scope, and nothing else. A
/// default is seen by clients that see a path below it. `None` if there is no such part.
fn part_in(scope: &Scope, mut known: KnownPublisher) -> Option<KnownPublisher> {
    if !scope.is_everything() {
        let Declared { defaults, queues, more: _ } = &mut known.declared;
        defaults.retain(|path| scope.reaches(path));
        queues.retain(|path| scope.contains(path.as_str()));
        let paths = defaults.len() + queues.len();
        if paths == 0 {
            return None;
        }
        known.registrations = known.registrations.min(paths as u64);
    }
    Some(known)
}

impl Directory {
    /// Watches the publishers that could serve what matches `glob`; the first push follows. It
    /// replaces a watch of the same number.
    pub(crate) fn watch(
        &mut self,
        client: Client,
        watch: u32,
        glob: Glob,
    ) -> Result<(), WatchRefusal> {
        self.add_watch(client, watch, WatchKind::Publishers, [glob].into())
    }

    /// Watches the paths that match; a snapshot follows. It replaces a watch of the same number.
    pub(crate) fn watch_paths(
        &mut self,
        client: Client,
        watch: u32,
        globs: &[Glob],
    ) -> Result<(), WatchRefusal> {
        self.add_watch(client, watch, WatchKind::Paths, globs.into())
    }

    fn add_watch(
        &mut self,
        client: Client,
        watch: u32,
        kind: WatchKind,
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
        GlobWalk::check(&globs).map_err(|limit| WatchRefusal::TooLarge(limit.to_string()))?;
        self.watches.add(client, watch, kind, globs);
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, client: Client, watch: u32) {
        self.watches.remove(client, watch);
    }

    /// The number of watches, of both kinds.
    pub(crate) fn watches_len(&self) -> usize {
        self.watches.len()
    }

    /// Clients that have become due since the last call; some of them twice.
    pub(crate) fn newly_due(&mut self) -> impl Iterator<Item = Client> {
        self.watches.newly_due()
    }

    /// The next message for a client.
    pub(crate) fn push(&mut self, client: Client) -> Push {
        let (tracker, complete) = (self.tracker(), self.complete);
        Push::Send(match self.watches.next(client) {
            None => return Push::Done,
            Some(WatchStep::Count { pattern, globs, scope, walk }) => {
                self.count(pattern, &globs, &scope, walk);
                return Push::Working;
            }
            Some(WatchStep::Publishers { watch, publishers }) => {
                // A publisher hidden just now may still be counted.
                let slots = publishers.into_iter().map(|slot| &self.publishers[slot]);
                let seen = slots.filter(|publisher| !publisher.is_hidden());
                let mut publishers: Vec<_> = seen.map(|publisher| publisher.info.clone()).collect();
                publishers.sort_unstable_by_key(|info| info.id);
                FromReplica::Publishers(Publishers { watch, tracker, complete, publishers })
            }
            Some(WatchStep::Gone { watches, publisher, departure }) => {
                let gone = PublisherGone { watches, tracker, complete, publisher, departure };
                FromReplica::PublisherGone(gone)
            }
            Some(WatchStep::Changes { watches, paths }) => {
                let paths = paths.iter().filter_map(|path| self.current_state(path)).collect();
                FromReplica::PathChanges(PathChanges { watches, complete, tracker, paths })
            }
            Some(WatchStep::Snapshot { watch, globs, scope, walk }) => {
                let begin = || {
                    let matching = Box::new(GlobWalk::new(&globs).ok()?);
                    Some(Snapshot { matching, tracker, sent: false })
                };
                return match walk.or_else(begin) {
                    Some(snapshot) => self.push_snapshot(client, watch, &scope, snapshot),
                    None => {
                        // Never happens: the globs were checked when the watch was made.
                        self.watches.remove(client, watch);
                        Push::Working
                    }
                };
            }
        })
    }

    /// Counts the publishers with jobs at matching paths: walks some of the nodes, or, for a glob
    /// that matches everything, takes all publishers with jobs.
    fn count(
        &mut self,
        pattern: PatternId,
        globs: &[Glob],
        scope: &Scope,
        walk: Option<Box<GlobWalk>>,
    ) {
        let mut counts: BTreeMap<Slot, u64> = BTreeMap::new();
        let mut done = true;
        let is_everything = scope.is_everything() && globs.iter().any(Glob::is_everything);
        let mut walk = match is_everything {
            true => None,
            // The globs were checked when the watch was made.
            false => walk.or_else(|| GlobWalk::new(globs).ok().map(Box::new)),
        };
        match &mut walk {
            None => {
                let seen =
                    self.publishers.from(0).filter(|(_, one)| !one.is_hidden() && one.jobs > 0);
                counts.extend(seen.map(|(slot, publisher)| (slot, publisher.jobs)));
            }
            Some(walk) => {
                let steps = scope.paths_in(COUNT_STEPS);
                done = walk.visit(self, steps, &mut |directory, node, matches| {
                    // A default here could make a matching queue.
                    for default in [false, true].into_iter().filter(|&default| default || matches) {
                        let registration = Registration { node, default };
                        let mut slots = directory.with_jobs(registration).peekable();
                        if slots.peek().is_some() && directory.concerns(scope, registration) {
                            slots.for_each(|slot| *counts.entry(slot).or_default() += 1);
                        }
                    }
                });
            }
        }
        self.watches.counted(pattern, counts, walk.filter(|_| !done));
    }

    /// The visible publishers that have jobs, or make queues, there.
    pub(super) fn with_jobs(&self, registration: Registration) -> impl Iterator<Item = Slot> {
        let members = self.paths.members(registration).iter();
        let seen = members.filter(|member| !self.publishers[member.slot].is_hidden());
        seen.filter(|member| self.paths.is_of_jobs(member.terms)).map(|member| member.slot)
    }

    fn push_snapshot(
        &mut self,
        client: Client,
        watch: u32,
        scope: &Scope,
        mut snapshot: Snapshot,
    ) -> Push {
        let mut paths = Vec::new();
        let last = snapshot.matching.take(self, scope, SNAPSHOT_STEPS, &mut paths);
        let (first, tracker, complete) = (!snapshot.sent, snapshot.tracker, self.complete);
        let worth_it = first || last || !paths.is_empty();
        snapshot.sent = true;
        self.watches.suspend_snapshot(client, watch, (!last).then_some(snapshot));
        if !worth_it {
            return Push::Working;
        }
        let some = PathSnapshot { watch, first, last, complete, tracker, paths };
        Push::Send(FromReplica::PathSnapshot(some))
    }

    /// The current state of a path; one without publishers is gone.
    fn current_state(&self, path: &str) -> Option<PathListed> {
        // The text was once parsed as a path.
        let path = Path::new(path).ok()?;
        let found = self.paths.tree.find(path.as_str());
        Some(match found {
            Some(node) => self.visible_at(node).listed(path),
            None => PathListed { path, queue: false, value: false, default: false },
        })
    }

    /// The additional cost of changes since the last call, in globs compared with their paths.
    pub(crate) fn spent(&mut self) -> usize {
        std::mem::take(&mut self.spent)
    }
}
