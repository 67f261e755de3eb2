//! Watches over publishers: who could serve a glob, pushed whenever that changes. Level-triggered: a watch has one mark, set or
//! not, however much has changed, and a push always tells the whole set.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use longshore_protocol::messages::resolver::Publishers;
use longshore_protocol::{Glob, Path};

use crate::directory::holdings::Held;
use crate::directory::liveness::Liveness;
use crate::directory::paths::Paths;
use crate::directory::tree::NodeId;
use crate::directory::{Client, Directory, Slot};

/// As many watches as there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the replica has {0} watches, as many as it may; try another replica")]
pub(crate) struct WatchLimit(usize);

type WatchKey = (Client, u32);

/// All watches. Those of the same glob share one pattern: a change costs a match for each glob, not for each watch.
#[derive(Debug)]
pub(super) struct Watches {
    limit: usize,
    by_key: BTreeMap<WatchKey, Glob>,
    patterns: HashMap<Glob, Pattern>,
    /// Patterns that do not yet count all paths.
    scans: BTreeMap<u64, Glob>,
    next_scan: u64,
    /// Watches to push.
    marked: BTreeSet<WatchKey>,
}

#[derive(Debug)]
struct Pattern {
    watchers: BTreeSet<WatchKey>,
    /// For each publisher that can be seen: how many of its paths match, and of its defaults could.
    counts: BTreeMap<Slot, u64>,
    /// The first look through all paths, until it is done.
    scan: Option<Scan>,
}

/// Nodes before this one are counted, and kept counted; the others are not yet.
#[derive(Debug)]
struct Scan {
    number: u64,
    next: NodeId,
}

impl Watches {
    pub(super) fn new(limit: usize) -> Watches {
        Watches {
            limit,
            by_key: BTreeMap::new(),
            patterns: HashMap::new(),
            scans: BTreeMap::new(),
            next_scan: 0,
            marked: BTreeSet::new(),
        }
    }

    fn add(&mut self, key: WatchKey, glob: Glob) -> Result<(), WatchLimit> {
        self.remove(key);
        if self.by_key.len() >= self.limit {
            return Err(WatchLimit(self.limit));
        }
        self.by_key.insert(key, glob.clone());
        let number = self.next_scan;
        let pattern = self.patterns.entry(glob.clone()).or_insert_with(|| {
            self.next_scan += 1;
            self.scans.insert(number, glob);
            let scan = Scan { number, next: 0 };
            Pattern { watchers: BTreeSet::new(), counts: BTreeMap::new(), scan: Some(scan) }
        });
        pattern.watchers.insert(key);
        if pattern.scan.is_none() {
            self.marked.insert(key);
        }
        Ok(())
    }

    fn remove(&mut self, key: WatchKey) {
        let Some(glob) = self.by_key.remove(&key) else { return };
        self.marked.remove(&key);
        let Some(pattern) = self.patterns.get_mut(&glob) else { return };
        pattern.watchers.remove(&key);
        if pattern.watchers.is_empty() {
            if let Some(scan) = &pattern.scan {
                self.scans.remove(&scan.number);
            }
            self.patterns.remove(&glob);
        }
    }

    pub(super) fn client_gone(&mut self, client: Client) {
        let keys: Vec<WatchKey> =
            self.by_key.range((client, 0)..=(client, u32::MAX)).map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }

    /// A publisher holds what it did not.
    pub(super) fn held(&mut self, slot: Slot, node: NodeId, path: &Path, default: bool) {
        for (glob, pattern) in &mut self.patterns {
            if pattern.counts_already(node) && concerns(glob, path, default) {
                let count = pattern.counts.entry(slot).or_default();
                *count += 1;
                if *count == 1 {
                    pattern.mark(&mut self.marked);
                }
            }
        }
    }

    /// A publisher no longer holds it.
    pub(super) fn let_go(&mut self, slot: Slot, node: NodeId, path: &Path, default: bool) {
        for (glob, pattern) in &mut self.patterns {
            if pattern.counts_already(node)
                && concerns(glob, path, default)
                && let Some(count) = pattern.counts.get_mut(&slot)
            {
                *count -= 1;
                if *count == 0 {
                    pattern.counts.remove(&slot);
                    pattern.mark(&mut self.marked);
                }
            }
        }
    }

    /// A publisher can no longer be seen.
    pub(super) fn hide(&mut self, slot: Slot) {
        for pattern in self.patterns.values_mut() {
            if pattern.counts.remove(&slot).is_some() {
                pattern.mark(&mut self.marked);
            }
        }
    }

    /// A publisher has moved, or started again.
    pub(super) fn mark_publisher(&mut self, slot: Slot) {
        for pattern in self.patterns.values() {
            if pattern.counts.contains_key(&slot) {
                pattern.mark(&mut self.marked);
            }
        }
    }

    /// Every watch is to be pushed: the replica has become complete.
    pub(super) fn mark_all(&mut self) {
        for pattern in self.patterns.values() {
            pattern.mark(&mut self.marked);
        }
    }

    /// Counts paths for new patterns: looks at no more than `budget`. True while there are more.
    pub(super) fn scan(&mut self, paths: &Paths, living: &Liveness, mut budget: usize) -> bool {
        while let Some((_, glob)) = self.scans.first_key_value() {
            let Some(pattern) = self.patterns.get_mut(glob) else {
                self.scans.pop_first();
                continue;
            };
            if budget == 0 {
                return true;
            }
            if pattern.count_some(glob, paths, living, &mut budget) {
                pattern.mark(&mut self.marked);
                self.scans.pop_first();
            }
        }
        false
    }
}

/// Whether a publisher that holds this could serve what matches the glob.
fn concerns(glob: &Glob, path: &Path, default: bool) -> bool {
    if default { glob.could_match_at_or_below(path) } else { glob.matches(path) }
}

impl Pattern {
    /// False of nodes that the first look has not come to.
    fn counts_already(&self, node: NodeId) -> bool {
        self.scan.as_ref().is_none_or(|scan| node < scan.next)
    }

    fn mark(&self, marked: &mut BTreeSet<WatchKey>) {
        if self.scan.is_none() {
            marked.extend(&self.watchers);
        }
    }

    /// Goes on with the first look. True when it is done.
    fn count_some(
        &mut self,
        glob: &Glob,
        paths: &Paths,
        living: &Liveness,
        budget: &mut usize,
    ) -> bool {
        let Some(scan) = &mut self.scan else { return true };
        while scan.next < paths.tree.end() {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let node = scan.next;
            scan.next += 1;
            for slot in concerned(glob, paths, living, node) {
                *self.counts.entry(slot).or_default() += 1;
            }
        }
        self.scan = None;
        true
    }
}

/// Those that can be seen and hold something at that node that concerns the glob: twice who holds the path and a default there.
fn concerned(glob: &Glob, paths: &Paths, living: &Liveness, node: NodeId) -> Vec<Slot> {
    let mut slots = Vec::new();
    if !paths.tree.is_held(node) {
        return slots;
    }
    let Some(path) = paths.path(node) else { return slots };
    for default in [false, true] {
        let members = paths.members(Held { node, default });
        if !members.is_empty() && concerns(glob, &path, default) {
            let seen = members.iter().filter(|member| !living[member.slot].hidden);
            slots.extend(seen.map(|member| member.slot));
        }
    }
    slots
}

impl Directory {
    /// Watches the publishers that could serve what matches `glob`; the first push follows. A watch of the same number is replaced.
    pub(crate) fn watch(
        &mut self,
        client: Client,
        watch: u32,
        glob: Glob,
    ) -> Result<(), WatchLimit> {
        self.watches.add((client, watch), glob)
    }

    pub(crate) fn unwatch(&mut self, client: Client, watch: u32) {
        self.watches.remove((client, watch));
    }

    /// How many watches.
    pub(crate) fn watches_len(&self) -> usize {
        self.watches.by_key.len()
    }

    /// Clients that have something to be pushed, each once.
    pub(crate) fn clients_to_push(&self) -> Vec<Client> {
        let mut clients: Vec<Client> =
            self.watches.marked.iter().map(|&(client, _)| client).collect();
        clients.dedup();
        clients
    }

    /// The next push for that client, and its mark taken away.
    pub(crate) fn push(&mut self, client: Client) -> Option<Publishers> {
        let &key = self.watches.marked.range((client, 0)..=(client, u32::MAX)).next()?;
        self.watches.marked.remove(&key);
        let pattern = self.watches.patterns.get(self.watches.by_key.get(&key)?)?;
        let mut publishers: Vec<_> =
            pattern.counts.keys().map(|&slot| self.living[slot].info.clone()).collect();
        publishers.sort_unstable_by_key(|info| info.id);
        Some(Publishers {
            watch: key.1,
            tracker: self.tracker(),
            complete: self.complete,
            publishers,
        })
    }

    /// What the watches count, told again from the paths: for [`Directory::invariant`].
    #[cfg(test)]
    pub(super) fn watches_invariant(&self) {
        for (glob, pattern) in &self.watches.patterns {
            let mut counts: BTreeMap<Slot, u64> = BTreeMap::new();
            let nodes = (0..self.paths.tree.end()).filter(|&node| pattern.counts_already(node));
            for slot in nodes.flat_map(|node| concerned(glob, &self.paths, &self.living, node)) {
                *counts.entry(slot).or_default() += 1;
            }
            assert_eq!(pattern.counts, counts, "publishers of {glob}");
            assert!(!pattern.watchers.is_empty(), "nobody watches {glob}");
            assert!(pattern.watchers.iter().all(|key| self.watches.by_key.get(key) == Some(glob)));
            let scanned = self.watches.scans.values().any(|scanned| scanned == glob);
            assert_eq!(pattern.scan.is_some(), scanned, "the first look of {glob}");
        }
        let watchers: usize = self.watches.patterns.values().map(|p| p.watchers.len()).sum();
        assert_eq!(watchers, self.watches.by_key.len());
        assert!(self.watches.marked.iter().all(|key| self.watches.by_key.contains_key(key)));
    }
}
