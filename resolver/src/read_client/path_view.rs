//! The state of a watch over paths as its reader knows it, and the changes to deliver. Pure.
//!
//! A client moves from replica to replica, and a replica starts over for a slow watcher: each time
//! everything is sent again. The view compares that with what the reader knows, so that the reader
//! gets true differences only. Changes between two reads are merged per path: the view has a path
//! once, however often it changes.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use hashbrown::hash_map::{Entry as MapEntry, OccupiedEntry};
use longshore_protocol::messages::resolver::{PathChanges, PathListed, PathSnapshot};
use longshore_protocol::{NameError, Path};

/// Most paths of one watch, including removed ones that were not read yet. A watch of more ends.
pub const WATCHED_PATHS_MAX: usize = 1_000_000;

/// An event of a watch over paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathEvent {
    /// A replica begins a snapshot: at first, and whenever the client has moved to it. Only
    /// differences follow.
    SnapshotBegins {
        /// The replica, as `host:port`.
        replica: String,
    },
    /// A path exists, in this state.
    Now(PathListed),
    /// A path no longer exists.
    Gone(Path),
    /// The reader has received everything that the replica has sent.
    Whole {
        /// False while the replica is warming: there may be more paths, and no removal is reported.
        complete: bool,
    },
    /// A replica refuses the watch; it is tried at another.
    Refused {
        /// The replica, as `host:port`.
        replica: String,
        /// The reason, for people.
        reason: String,
    },
}

/// Why a watch over paths has ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchEnded {
    /// More paths match than a watch may have.
    #[error("more than {limit} paths match, the most that one watch holds; watch less at once")]
    TooManyPaths {
        /// The limit.
        limit: usize,
    },
    /// More globs than one watch may have.
    #[error("a watch of {globs} globs is over the limit of {limit}")]
    TooManyGlobs {
        /// The number given.
        globs: usize,
        /// The limit.
        limit: usize,
    },
    /// The cluster has no replica to watch.
    #[error("the cluster has no replicas; name at least one, as host:port")]
    NoReplicas,
    /// The client's own name is empty, or has more than 128 bytes. No replica was asked.
    #[error("the resolver's client: {0}")]
    Name(#[from] NameError),
}

/// The state of a path as bits. 0: it does not exist.
type Flags = u8;
const THERE: Flags = 1;
const QUEUE: Flags = 2;
const VALUE: Flags = 4;
const DEFAULT: Flags = 8;

/// The state of one watch.
#[derive(Debug)]
pub(super) struct PathView {
    limit: usize,
    /// Unordered, for lookups with one probe: a tree would compare strings at every step, each in
    /// its own memory.
    paths: HashMap<Path, Entry>,
    /// Paths whose state has changed since it was read.
    unread: BTreeSet<Path>,
    /// The link whose messages count. `None` before a snapshot begins on it: its earlier messages
    /// are ignored.
    link: Option<u64>,
    /// The number of the current snapshot: reports of earlier ones no longer count.
    snapshot: u64,
    phase: Phase,
    begins: Option<String>,
    refused: Option<(String, String)>,
    /// Everything was received, and whether it is complete: an event once nothing else is unread.
    caught_up: Option<bool>,
    /// As it was read last.
    caught_up_read: Option<bool>,
    ended: Option<WatchEnded>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// In a snapshot whose parts so far were all complete, or not.
    Snapshot { complete: bool },
    /// Changes follow. Paths that the replica lacks are gone, or may be, if `settled` is false.
    Following { settled: bool },
}

#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    /// The state that the reader knows.
    read: Flags,
    /// The current state.
    now: Flags,
    /// The state that the replica reported, in snapshot `reported_in`.
    reported: Flags,
    reported_in: u64,
}

impl Entry {
    fn reported(&self, snapshot: u64) -> Flags {
        if self.reported_in == snapshot { self.reported } else { 0 }
    }
}

impl PathView {
    /// An empty view of up to `limit` paths.
    pub(super) fn new(limit: usize) -> PathView {
        PathView {
            limit,
            paths: HashMap::new(),
            unread: BTreeSet::new(),
            link: None,
            snapshot: 0,
            phase: Phase::Following { settled: false },
            begins: None,
            refused: None,
            caught_up: None,
            caught_up_read: None,
            ended: None,
        }
    }

    /// Ends the watch.
    pub(super) fn end(&mut self, why: WatchEnded) {
        *self = PathView { ended: Some(why), ..PathView::new(0) };
    }

    /// A replica refused the watch.
    pub(super) fn refused(&mut self, replica: &str, reason: String) {
        self.refused = Some((replica.to_owned(), reason));
    }

    /// A part of a snapshot. False if the watch has ended by it.
    pub(super) fn snapshot(&mut self, link: u64, replica: &str, part: PathSnapshot) -> bool {
        if part.first {
            if self.link != Some(link) {
                self.begins = Some(replica.to_owned());
            }
            self.link = Some(link);
            self.snapshot += 1;
            self.phase = Phase::Snapshot { complete: true };
            self.caught_up = None;
        }
        let Phase::Snapshot { complete } = self.phase else { return true };
        if self.link != Some(link) {
            return true;
        }
        let complete = complete && part.complete;
        self.phase = Phase::Snapshot { complete };
        if !part.paths.into_iter().all(|listed| self.report(listed, complete)) {
            return false;
        }
        if part.last {
            self.phase = Phase::Following { settled: complete };
            if complete {
                self.settle();
            }
            self.caught_up = Some(complete);
        }
        true
    }

    /// Paths have changed. False if the watch has ended by it.
    pub(super) fn changes(&mut self, link: u64, changes: &PathChanges) -> bool {
        if self.link != Some(link) {
            return true;
        }
        let fits = changes.paths.iter().all(|listed| self.report(listed.clone(), changes.complete));
        if !fits {
            return false;
        }
        if let Phase::Following { settled } = self.phase {
            if changes.complete && !settled {
                self.settle();
            }
            self.phase = Phase::Following { settled: changes.complete };
            self.caught_up = Some(changes.complete);
        }
        true
    }

    /// Handles the replica's report of a path. A warming replica only adds: it may not know every
    /// publisher yet.
    fn report(&mut self, listed: PathListed, complete: bool) -> bool {
        let reported = flags(&listed);
        let mut slot = match self.paths.entry(listed.path) {
            MapEntry::Occupied(slot) => slot,
            MapEntry::Vacant(slot) => slot.insert_entry(Entry::default()),
        };
        let entry = slot.get_mut();
        (entry.reported, entry.reported_in) = (reported, self.snapshot);
        let now = if complete { reported } else { entry.now | reported };
        set_state(slot, &mut self.unread, now);
        if self.paths.len() <= self.limit {
            return true;
        }
        self.end(WatchEnded::TooManyPaths { limit: self.limit });
        false
    }

    /// Removes what the replica has not reported.
    fn settle(&mut self) {
        let snapshot = self.snapshot;
        let differs = |(path, entry): (&Path, &Entry)| {
            let reported = entry.reported(snapshot);
            (entry.now != reported).then(|| (path.clone(), reported))
        };
        let different: Vec<(Path, Flags)> = self.paths.iter().filter_map(differs).collect();
        for (path, reported) in different {
            if let MapEntry::Occupied(slot) = self.paths.entry(path) {
                set_state(slot, &mut self.unread, reported);
            }
        }
    }

    /// The next event for the reader.
    pub(super) fn take(&mut self) -> Result<Option<PathEvent>, WatchEnded> {
        if let Some(why) = &self.ended {
            return Err(why.clone());
        }
        if let Some((replica, reason)) = self.refused.take() {
            return Ok(Some(PathEvent::Refused { replica, reason }));
        }
        if let Some(replica) = self.begins.take() {
            self.caught_up_read = None;
            return Ok(Some(PathEvent::SnapshotBegins { replica }));
        }
        if let Some(path) = self.unread.pop_first() {
            return Ok(Some(self.read(path)));
        }
        if self.caught_up != self.caught_up_read
            && let Some(complete) = self.caught_up
        {
            self.caught_up_read = self.caught_up;
            return Ok(Some(PathEvent::Whole { complete }));
        }
        Ok(None)
    }

    fn read(&mut self, path: Path) -> PathEvent {
        let now = match self.paths.entry(path.clone()) {
            MapEntry::Occupied(slot) if slot.get().now == 0 => {
                slot.remove();
                0
            }
            MapEntry::Occupied(mut slot) => {
                let entry = slot.get_mut();
                entry.read = entry.now;
                entry.now
            }
            // Never happens: every unread path has an entry.
            MapEntry::Vacant(_) => 0,
        };
        if now == 0 {
            return PathEvent::Gone(path);
        }
        let is = |flag: Flags| now & flag != 0;
        let (queue, value, default) = (is(QUEUE), is(VALUE), is(DEFAULT));
        PathEvent::Now(PathListed { path, queue, value, default })
    }
}

/// Sets the state of a path. In busy watches this is most of the work, so the path is looked up
/// once. `unread` contains the path exactly if the state read differs from the current one.
fn set_state(mut slot: OccupiedEntry<'_, Path, Entry>, unread: &mut BTreeSet<Path>, now: Flags) {
    let entry = slot.get_mut();
    let (was_unread, is_unread) = (entry.read != entry.now, entry.read != now);
    entry.now = now;
    let is_nothing = now == 0 && entry.read == 0;
    match (was_unread, is_unread) {
        (false, true) => {
            unread.insert(slot.key().clone());
        }
        (true, false) => {
            unread.remove(slot.key());
        }
        _ => {}
    }
    if is_nothing {
        slot.remove();
    }
}

/// A path without any flag is gone: watches ignore paths that only have others below them.
fn flags(listed: &PathListed) -> Flags {
    let bit = |is: bool, flag: Flags| if is { THERE | flag } else { 0 };
    bit(listed.queue, QUEUE) | bit(listed.value, VALUE) | bit(listed.default, DEFAULT)
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Incarnation;
    use longshore_protocol::messages::resolver::Tracker;

    use super::*;

    const TRACKER: Tracker = Tracker { incarnation: Incarnation([1; 16]), revision: 1 };

    fn queue(text: &str) -> PathListed {
        PathListed { path: Path::new(text).unwrap(), queue: true, value: false, default: false }
    }

    fn gone(text: &str) -> PathListed {
        PathListed { queue: false, ..queue(text) }
    }

    fn one_part_snapshot(complete: bool, paths: Vec<PathListed>) -> PathSnapshot {
        let (first, last) = (true, true);
        PathSnapshot { watch: 1, first, last, complete, tracker: TRACKER, paths }
    }

    fn changes(complete: bool, paths: Vec<PathListed>) -> PathChanges {
        PathChanges { watches: vec![1], complete, tracker: TRACKER, paths }
    }

    fn all(view: &mut PathView) -> Vec<PathEvent> {
        std::iter::from_fn(|| view.take().unwrap()).collect()
    }

    fn begins(replica: &str) -> PathEvent {
        PathEvent::SnapshotBegins { replica: replica.to_owned() }
    }

    fn path(text: &str) -> Path {
        Path::new(text).unwrap()
    }

    const COMPLETE: PathEvent = PathEvent::Whole { complete: true };
    const WARMING: PathEvent = PathEvent::Whole { complete: false };

    #[test]
    fn a_change_of_the_replica_yields_only_differences() {
        let mut view = PathView::new(10);
        view.snapshot(1, "a:1", one_part_snapshot(true, vec![queue("/x"), queue("/y")]));
        let now = |text| PathEvent::Now(queue(text));
        assert_eq!(all(&mut view), [begins("a:1"), now("/x"), now("/y"), COMPLETE]);
        view.snapshot(2, "b:1", one_part_snapshot(true, vec![queue("/y"), queue("/z")]));
        let expected = [begins("b:1"), PathEvent::Gone(path("/x")), now("/z"), COMPLETE];
        assert_eq!(all(&mut view), expected);
        // Changes of the previous link are ignored.
        view.changes(1, &changes(true, vec![gone("/y")]));
        assert_eq!(all(&mut view), []);
    }

    #[test]
    fn a_warming_replica_adds_and_removes_nothing_until_it_is_complete() {
        let mut view = PathView::new(10);
        view.snapshot(1, "a:1", one_part_snapshot(true, vec![queue("/x"), queue("/y")]));
        all(&mut view);
        view.snapshot(2, "b:1", one_part_snapshot(false, vec![queue("/z")]));
        let expected = [begins("b:1"), PathEvent::Now(queue("/z")), WARMING];
        assert_eq!(all(&mut view), expected);
        view.changes(2, &changes(false, vec![queue("/y"), gone("/z")]));
        assert_eq!(all(&mut view), [], "it may be there all the same");
        view.changes(2, &changes(true, vec![]));
        let gone = |text| PathEvent::Gone(path(text));
        assert_eq!(all(&mut view), [gone("/x"), gone("/z"), COMPLETE]);
    }

    #[test]
    fn unread_changes_are_merged_into_the_latest_state() {
        let mut view = PathView::new(2);
        view.snapshot(1, "a:1", one_part_snapshot(true, vec![queue("/x")]));
        all(&mut view);
        // Thousands of paths come and go: the view has no more than two at any time.
        for n in 0..5_000 {
            let name = format!("/y{n}");
            assert!(view.changes(1, &changes(true, vec![queue(&name), gone("/x")])));
            assert!(view.changes(1, &changes(true, vec![gone(&name)])));
            assert!(view.paths.len() <= 2 && view.unread.len() <= 2);
            assert!(view.changes(1, &changes(true, vec![queue("/x")])));
        }
        assert_eq!(all(&mut view), []);
    }

    #[test]
    fn a_watch_of_too_many_paths_ends_with_an_error() {
        let mut view = PathView::new(2);
        assert!(view.snapshot(1, "a:1", one_part_snapshot(true, vec![queue("/a"), queue("/b")])));
        assert!(!view.changes(1, &changes(true, vec![queue("/c")])));
        let ended = view.take().unwrap_err();
        assert_eq!(ended, WatchEnded::TooManyPaths { limit: 2 });
        assert!(ended.to_string().contains("more than 2 paths"), "{ended}");
    }
}
