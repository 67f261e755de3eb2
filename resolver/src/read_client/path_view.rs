//! What a watch over paths has told its user, and what there is to be told. Pure.
//!
//! A client moves from replica to replica, and a replica starts over where its watcher is slow:
//! each time it is told everything again. The view compares that with what the user knows, so that
//! the user is told true differences only. What changes while nobody reads is merged per path: the
//! view holds a path once, however often it changes.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use hashbrown::hash_map::{Entry as Place, OccupiedEntry};
use longshore_protocol::messages::resolver::{PathChanges, PathListed, PathSnapshot};
use longshore_protocol::{NameError, Path};

/// Most paths that one watch holds, those that are gone and not yet read among them. A watch of
/// more ends.
pub const WATCHED_PATHS_MAX: usize = 1_000_000;

/// What happens to the paths of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathEvent {
    /// A replica begins to tell what there is: at first, and whenever the client has moved to it.
    /// Only what is new to the reader follows.
    SnapshotBegins {
        /// Which, as `host:port`.
        replica: String,
    },
    /// A path is there, and is this now.
    Now(PathListed),
    /// A path is there no longer.
    Gone(Path),
    /// The reader has been told everything that the replica has said.
    Whole {
        /// False while it is warming: there may be more, and nothing is told to be gone.
        complete: bool,
    },
    /// A replica refuses the watch; it is tried at another.
    Refused {
        /// Which, as `host:port`.
        replica: String,
        /// Why, for people.
        reason: String,
    },
}

/// Why a watch over paths has ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchEnded {
    /// More paths match than a watch holds.
    #[error("more than {limit} paths match, the most that one watch holds; watch less at once")]
    TooManyPaths {
        /// How many it holds.
        limit: usize,
    },
    /// More globs than one watch may have.
    #[error("a watch of {globs} globs is over the limit of {limit}")]
    TooManyGlobs {
        /// How many were given.
        globs: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The client's own name is empty, or has more than 128 bytes. Nobody was asked.
    #[error("the resolver's client: {0}")]
    Name(#[from] NameError),
}

/// What is published at a path, as bits. 0: nothing, it is not there.
type Flags = u8;
const THERE: Flags = 1;
const QUEUE: Flags = 2;
const VALUE: Flags = 4;
const DEFAULT: Flags = 8;

/// The state of one watch.
#[derive(Debug)]
pub(super) struct PathView {
    limit: usize,
    /// In no order: to be found with one look, since strings in a tree are compared at every step,
    /// each where it lies.
    paths: HashMap<Path, Entry>,
    /// Paths of which the reader does not know what they are now.
    unread: BTreeSet<Path>,
    /// The link that tells. None: it has not begun a snapshot yet, and what it says is about
    /// something else.
    link: Option<u64>,
    /// Counts snapshots: what an entry's replica has said counts if it was said since the newest
    /// began.
    snapshot: u64,
    phase: Phase,
    begins: Option<String>,
    refused: Option<(String, String)>,
    /// Everything has been told, and whether that is complete: to be read once nothing else is
    /// unread.
    whole: Option<bool>,
    /// As it was read last.
    whole_read: Option<bool>,
    ended: Option<WatchEnded>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// In the middle of a snapshot, all parts of which were complete so far, or not.
    Snapshot { complete: bool },
    /// Changes are told. What the replica lacks is gone, or, `settled` being false, may be.
    Following { settled: bool },
}

#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    /// What the reader knows.
    read: Flags,
    /// What is so.
    now: Flags,
    /// What the replica has said since that snapshot began.
    said: Flags,
    said_in: u64,
}

impl Entry {
    fn said(&self, snapshot: u64) -> Flags {
        if self.said_in == snapshot { self.said } else { 0 }
    }
}

impl PathView {
    /// A watch that holds up to `limit` paths.
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
            whole: None,
            whole_read: None,
            ended: None,
        }
    }

    /// It ends.
    pub(super) fn end(&mut self, why: WatchEnded) {
        *self = PathView { ended: Some(why), ..PathView::new(0) };
    }

    /// A replica refused it.
    pub(super) fn refused(&mut self, replica: &str, reason: String) {
        self.refused = Some((replica.to_owned(), reason));
    }

    /// Some of a snapshot. False if the watch has ended by it.
    pub(super) fn snapshot(&mut self, link: u64, replica: &str, part: PathSnapshot) -> bool {
        if part.first {
            if self.link != Some(link) {
                self.begins = Some(replica.to_owned());
            }
            self.link = Some(link);
            self.snapshot += 1;
            self.phase = Phase::Snapshot { complete: true };
            self.whole = None;
        }
        let Phase::Snapshot { complete } = self.phase else { return true };
        if self.link != Some(link) {
            return true;
        }
        let complete = complete && part.complete;
        self.phase = Phase::Snapshot { complete };
        if !part.paths.into_iter().all(|listed| self.say(listed, complete)) {
            return false;
        }
        if part.last {
            self.phase = Phase::Following { settled: complete };
            if complete {
                self.settle();
            }
            self.whole = Some(complete);
        }
        true
    }

    /// Paths have changed. False if the watch has ended by it.
    pub(super) fn changes(&mut self, link: u64, changes: &PathChanges) -> bool {
        if self.link != Some(link) {
            return true;
        }
        let fits = changes.paths.iter().all(|listed| self.say(listed.clone(), changes.complete));
        if !fits {
            return false;
        }
        if let Phase::Following { settled } = self.phase {
            if changes.complete && !settled {
                self.settle();
            }
            self.phase = Phase::Following { settled: changes.complete };
            self.whole = Some(changes.complete);
        }
        true
    }

    /// What the replica says of a path. One that is warming adds, and takes nothing away: it may
    /// not have been told yet.
    fn say(&mut self, listed: PathListed, complete: bool) -> bool {
        let said = flags(&listed);
        let mut place = match self.paths.entry(listed.path) {
            Place::Occupied(place) => place,
            Place::Vacant(place) => place.insert_entry(Entry::default()),
        };
        let entry = place.get_mut();
        (entry.said, entry.said_in) = (said, self.snapshot);
        let now = if complete { said } else { entry.now | said };
        becomes(place, &mut self.unread, now);
        if self.paths.len() <= self.limit {
            return true;
        }
        self.end(WatchEnded::TooManyPaths { limit: self.limit });
        false
    }

    /// What the replica has not said is not so.
    fn settle(&mut self) {
        let snapshot = self.snapshot;
        let differs = |(path, entry): (&Path, &Entry)| {
            let said = entry.said(snapshot);
            (entry.now != said).then(|| (path.clone(), said))
        };
        let different: Vec<(Path, Flags)> = self.paths.iter().filter_map(differs).collect();
        for (path, said) in different {
            if let Place::Occupied(place) = self.paths.entry(path) {
                becomes(place, &mut self.unread, said);
            }
        }
    }

    /// What the reader is told next.
    pub(super) fn take(&mut self) -> Result<Option<PathEvent>, WatchEnded> {
        if let Some(why) = &self.ended {
            return Err(why.clone());
        }
        if let Some((replica, reason)) = self.refused.take() {
            return Ok(Some(PathEvent::Refused { replica, reason }));
        }
        if let Some(replica) = self.begins.take() {
            self.whole_read = None;
            return Ok(Some(PathEvent::SnapshotBegins { replica }));
        }
        if let Some(path) = self.unread.pop_first() {
            return Ok(Some(self.read(path)));
        }
        if self.whole != self.whole_read
            && let Some(complete) = self.whole
        {
            self.whole_read = self.whole;
            return Ok(Some(PathEvent::Whole { complete }));
        }
        Ok(None)
    }

    fn read(&mut self, path: Path) -> PathEvent {
        let now = match self.paths.entry(path.clone()) {
            Place::Occupied(place) if place.get().now == 0 => {
                place.remove();
                0
            }
            Place::Occupied(mut place) => {
                let entry = place.get_mut();
                entry.read = entry.now;
                entry.now
            }
            // What is unread has its entry: never.
            Place::Vacant(_) => 0,
        };
        if now == 0 {
            return PathEvent::Gone(path);
        }
        let is = |flag: Flags| now & flag != 0;
        let (queue, value, default) = (is(QUEUE), is(VALUE), is(DEFAULT));
        PathEvent::Now(PathListed { path, queue, value, default })
    }
}

/// Notes what a path is now. A watch of many paths that change often does little else, so it is
/// looked for once: `unread` has it exactly if what was read is not what is so.
fn becomes(mut place: OccupiedEntry<'_, Path, Entry>, unread: &mut BTreeSet<Path>, now: Flags) {
    let entry = place.get_mut();
    let (was_unread, is_unread) = (entry.read != entry.now, entry.read != now);
    entry.now = now;
    let is_nothing = now == 0 && entry.read == 0;
    match (was_unread, is_unread) {
        (false, true) => {
            unread.insert(place.key().clone());
        }
        (true, false) => {
            unread.remove(place.key());
        }
        _ => {}
    }
    if is_nothing {
        place.remove();
    }
}

/// A path without any of them is gone: watches see nothing of what only lies above another.
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

    fn whole(complete: bool, paths: Vec<PathListed>) -> PathSnapshot {
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
    fn another_replica_tells_differences_only() {
        let mut view = PathView::new(10);
        view.snapshot(1, "a:1", whole(true, vec![queue("/x"), queue("/y")]));
        let now = |text| PathEvent::Now(queue(text));
        assert_eq!(all(&mut view), [begins("a:1"), now("/x"), now("/y"), COMPLETE]);
        view.snapshot(2, "b:1", whole(true, vec![queue("/y"), queue("/z")]));
        let expected = [begins("b:1"), PathEvent::Gone(path("/x")), now("/z"), COMPLETE];
        assert_eq!(all(&mut view), expected);
        // What the link before says is not for it.
        view.changes(1, &changes(true, vec![gone("/y")]));
        assert_eq!(all(&mut view), []);
    }

    #[test]
    fn a_warming_replica_adds_and_takes_nothing_away_until_it_is_complete() {
        let mut view = PathView::new(10);
        view.snapshot(1, "a:1", whole(true, vec![queue("/x"), queue("/y")]));
        all(&mut view);
        view.snapshot(2, "b:1", whole(false, vec![queue("/z")]));
        let expected = [begins("b:1"), PathEvent::Now(queue("/z")), WARMING];
        assert_eq!(all(&mut view), expected);
        view.changes(2, &changes(false, vec![queue("/y"), gone("/z")]));
        assert_eq!(all(&mut view), [], "it may be there all the same");
        view.changes(2, &changes(true, vec![]));
        let gone = |text| PathEvent::Gone(path(text));
        assert_eq!(all(&mut view), [gone("/x"), gone("/z"), COMPLETE]);
    }

    #[test]
    fn what_nobody_has_read_is_told_once_as_it_is_now() {
        let mut view = PathView::new(2);
        view.snapshot(1, "a:1", whole(true, vec![queue("/x")]));
        all(&mut view);
        // Thousands of paths come and go: the view holds no more than two at any time.
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
    fn a_watch_of_too_much_ends_and_says_so() {
        let mut view = PathView::new(2);
        assert!(view.snapshot(1, "a:1", whole(true, vec![queue("/a"), queue("/b")])));
        assert!(!view.changes(1, &changes(true, vec![queue("/c")])));
        let ended = view.take().unwrap_err();
        assert_eq!(ended, WatchEnded::TooManyPaths { limit: 2 });
        assert!(ended.to_string().contains("more than 2 paths"), "{ended}");
    }
}
