//! The publishers that a replica knows and cannot see. A publisher that declared queues may hold
//! acknowledged jobs: it is reported as missing until it returns or is forgotten, across restarts
//! of the replica.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use longshore_protocol::limits::{DECLARED_MAX, RESOLVER_PUBLISHERS_MAX};
use longshore_protocol::messages::resolver::{Declared, Departure, KnownPublisher, RequestRefusal};
use longshore_protocol::{Path, PublisherId, PublisherInfo};

use crate::directory::holdings::Held;
use crate::directory::tree::NodeId;
use crate::directory::{Directory, Slot};

/// Most missing publishers that a replica remembers; of more, the one that was last seen longest
/// ago is forgotten.
const MISSING_MAX: usize = RESOLVER_PUBLISHERS_MAX;
/// Most declared paths, of all publishers, that the next run takes over; of the others it knows
/// that there are some.
const DECLARED_KEPT_MAX: usize = 65_536;

/// How long a replica that has started again waits for the publishers that it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    /// Also where all that it knows are back: others may have appeared while it was away.
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

/// What a publisher that can be seen has declared, as nodes of the tree.
#[derive(Default, Debug)]
pub(super) struct Declares {
    pub(super) defaults: BTreeSet<NodeId>,
    /// Queues that none of the defaults covers.
    pub(super) queues: BTreeSet<NodeId>,
    /// Some were left out: there were [`DECLARED_MAX`], or it took some back, which says nothing of
    /// its jobs.
    pub(super) more: bool,
    /// What it had declared when it was last seen before, until it has confirmed what it declares
    /// now.
    pub(super) before: Option<Box<Declared>>,
}

impl Declares {
    /// Notes that the publisher holds a queue or a default there, or no longer does. True if that
    /// changed anything.
    pub(super) fn set(&mut self, node: NodeId, default: bool, holds: bool) -> bool {
        let nodes = if default { &mut self.defaults } else { &mut self.queues };
        if !holds {
            let is_changed = nodes.remove(&node);
            // A publisher whose disk hangs takes back all that it has declared, and keeps its jobs;
            // one that gives up a default has queues below it.
            let is_empty = self.queues.is_empty() && self.defaults.is_empty();
            self.more |= is_changed && (default || is_empty);
            return is_changed;
        }
        if nodes.len() < DECLARED_MAX {
            return nodes.insert(node);
        }
        !nodes.contains(&node) && !std::mem::replace(&mut self.more, true)
    }
}

/// A publisher that is known and cannot be seen.
#[derive(Debug)]
struct Missing {
    info: PublisherInfo,
    declared: Declared,
    departure: Departure,
    /// It was last heard of so long before `since`.
    silent_before: Duration,
    since: Instant,
}

impl Missing {
    fn silent(&self, now: Instant) -> Duration {
        self.silent_before + now.saturating_duration_since(self.since)
    }
}

/// The missing publishers, and those that are waited for after a restart.
#[derive(Default, Debug)]
pub(super) struct Remembered {
    missing: BTreeMap<PublisherId, Missing>,
    /// Declared paths of all of them, at most [`DECLARED_KEPT_MAX`].
    paths: usize,
    /// There when the replica stopped, and not confirmed since; true if it had declared anything.
    awaited: HashMap<PublisherId, bool>,
    version: u64,
}

impl Remembered {
    /// Takes over what an earlier run wrote down.
    pub(super) fn restore(&mut self, now: Instant, known: Vec<KnownPublisher>) {
        self.version += 1;
        for one in known {
            let KnownPublisher { info, declared, silent_ms, departure, held: _ } = one;
            let departure = departure.unwrap_or(Departure::NotBack);
            if departure == Departure::NotBack {
                self.awaited.insert(info.id, !declared.is_empty());
            }
            let silent_before = Duration::from_millis(silent_ms);
            self.insert(Missing { info, declared, departure, silent_before, since: now });
        }
    }

    /// A publisher can no longer be seen. One of live values alone holds nothing and is not
    /// remembered.
    pub(super) fn is_gone(
        &mut self,
        info: PublisherInfo,
        declared: Declared,
        departure: Departure,
        heard_at: Instant,
    ) {
        self.version += 1;
        self.awaited.remove(&info.id);
        if !declared.is_empty() {
            let silent_before = Duration::ZERO;
            self.insert(Missing { info, declared, departure, silent_before, since: heard_at });
        }
    }

    fn insert(&mut self, mut missing: Missing) {
        self.take(missing.info.id);
        if self.paths + len(&missing.declared) > DECLARED_KEPT_MAX {
            missing.declared = some();
        }
        self.paths += len(&missing.declared);
        self.missing.insert(missing.info.id, missing);
        while self.missing.len() > MISSING_MAX {
            // Of one run all restored ones have the same `since`; the longer silent came first.
            let age = |one: &&Missing| (one.since, std::cmp::Reverse(one.silent_before));
            let oldest = self.missing.values().min_by_key(age).map(|one| one.info.id);
            let Some(dropped) = oldest.and_then(|id| self.take(id)) else { return };
            self.awaited.remove(&dropped.info.id);
            tracing::error!(
                publisher = %dropped.info.name, id = %dropped.info.id, limit = MISSING_MAX,
                "too many publishers are missing; the replica forgets one"
            );
        }
    }

    /// The publisher has registered, whether or not it has written all it wants. Gives what it had
    /// declared before.
    pub(super) fn is_back(&mut self, publisher: PublisherId) -> Option<Declared> {
        let missing = self.take(publisher)?;
        self.version += 1;
        Some(missing.declared)
    }

    fn take(&mut self, publisher: PublisherId) -> Option<Missing> {
        let missing = self.missing.remove(&publisher)?;
        self.paths -= len(&missing.declared);
        Some(missing)
    }

    /// The replica holds what the publisher wants: all of it, or nothing though it may have
    /// declared something before.
    pub(super) fn confirmed(&mut self, publisher: PublisherId, holds_any: bool) {
        if self.awaited.get(&publisher).is_some_and(|declared| holds_any || !declared) {
            self.awaited.remove(&publisher);
        }
    }

    /// Nobody is waited for.
    pub(super) fn all_confirmed(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Those waited for so far are missing.
    pub(super) fn wait_no_longer(&mut self) {
        self.awaited.clear();
        // What has declared nothing has no paths that count.
        self.missing.retain(|_, one| {
            if one.departure == Departure::NotBack {
                one.departure = Departure::Silent;
            }
            !one.declared.is_empty()
        });
        self.version += 1;
    }

    /// False if it was not missing.
    pub(super) fn forget(&mut self, publisher: PublisherId) -> bool {
        self.awaited.remove(&publisher);
        let known = self.take(publisher).is_some();
        self.version += u64::from(known);
        known
    }

    /// The missing ones after that one, by id.
    pub(super) fn after(
        &self,
        now: Instant,
        last: Option<PublisherId>,
    ) -> impl Iterator<Item = KnownPublisher> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.missing.range((from, Bound::Unbounded)).map(move |(_, one)| KnownPublisher {
            info: one.info.clone(),
            held: 0,
            silent_ms: u64::try_from(one.silent(now).as_millis()).unwrap_or(u64::MAX),
            departure: Some(one.departure),
            declared: one.declared.clone(),
        })
    }

    /// Something that is written down is different now.
    pub(super) fn changed(&mut self) {
        self.version += 1;
    }

    /// Rises with each change of what is written down.
    pub(super) fn version(&self) -> u64 {
        self.version
    }
}

/// How many paths it has.
fn len(declared: &Declared) -> usize {
    declared.defaults.len() + declared.queues.len()
}

/// Nobody knows which.
fn some() -> Declared {
    Declared { more: true, ..Declared::default() }
}

impl Directory {
    /// Takes over what an earlier run of the replica wrote down: it knew `known`, and these were
    /// all if it `knew_all`. Then the replica is complete once those that were there have
    /// confirmed, within the bounds of `wait`.
    pub(crate) fn restore(
        &mut self,
        now: Instant,
        known: Vec<KnownPublisher>,
        knew_all: bool,
        wait: Wait,
    ) {
        self.remembered.restore(now, known);
        if knew_all && !self.complete {
            self.complete_at = now + wait.most.min(self.rules.writer_ttl);
            self.by_memory = Some(self.complete_at.min(now + wait.least));
            // What the next run takes over is all only once those that are waited for have come.
            self.knows_all = wait.least.is_zero();
        }
    }

    /// The publishers that are registered, and those that are missing: what the next run takes
    /// over.
    pub(crate) fn known(&self, now: Instant) -> Vec<KnownPublisher> {
        // The missing ones have as many at most.
        let mut left = DECLARED_KEPT_MAX;
        let seen = self.living.from(0);
        let seen = seen.filter(|(_, publisher)| publisher.is_awaited && !publisher.hidden);
        let seen = seen.map(|(slot, publisher)| {
            let declares = &publisher.declares;
            let before = declares.before.as_deref().map_or(0, len);
            let size = declares.defaults.len() + declares.queues.len() + before;
            match left.checked_sub(size) {
                Some(rest) => {
                    left = rest;
                    self.known_at(now, slot)
                }
                // Not even spelt: this runs between the turns of clients.
                None => self.known_with(now, slot, some()),
            }
        });
        seen.chain(self.remembered.after(now, None)).collect()
    }

    /// Whether no publisher that was ever registered can be unknown to it.
    pub(crate) fn knows_all(&self) -> bool {
        self.knows_all
    }

    /// Rises when [`Directory::known`] is to be written down again.
    pub(crate) fn known_version(&self) -> u64 {
        self.remembered.version()
    }

    /// A missing publisher is reported no longer. False if it is not known.
    pub(crate) fn forget(&mut self, publisher: PublisherId) -> Result<bool, RequestRefusal> {
        if self.living.is_seen(publisher) {
            return Err(RequestRefusal::StillThere);
        }
        Ok(self.remembered.forget(publisher))
    }

    pub(super) fn known_at(&self, now: Instant, slot: Slot) -> KnownPublisher {
        self.known_with(now, slot, self.declared(slot))
    }

    fn known_with(&self, now: Instant, slot: Slot, declared: Declared) -> KnownPublisher {
        let publisher = &self.living[slot];
        let silent = now.saturating_duration_since(publisher.heard_at);
        KnownPublisher {
            info: publisher.info.clone(),
            held: publisher.holdings.len() as u64,
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
            departure: publisher.departure,
            declared,
        }
    }

    fn declared(&self, slot: Slot) -> Declared {
        let declares = &self.living[slot].declares;
        let before = declares.before.as_deref();
        let mut more = declares.more || before.is_some_and(|before| before.more);
        let mut paths = |nodes: &BTreeSet<NodeId>, before: Option<&Vec<Path>>| {
            let now = nodes.iter().filter_map(|&node| self.paths.path(node));
            let all: BTreeSet<Path> = now.chain(before.into_iter().flatten().cloned()).collect();
            more |= all.len() > DECLARED_MAX;
            all.into_iter().take(DECLARED_MAX).collect()
        };
        let defaults = paths(&declares.defaults, before.map(|before| &before.defaults));
        let queues = paths(&declares.queues, before.map(|before| &before.queues));
        Declared { defaults, queues, more }
    }

    /// A publisher has announced. Until it has confirmed what it declares now, it is known by what
    /// it declared before, too: its first write may never come.
    pub(super) fn is_back(&mut self, slot: Slot) {
        let publisher = &mut self.living[slot];
        if let Some(before) = self.remembered.is_back(publisher.info.id)
            && !before.is_empty()
        {
            publisher.is_awaited = true;
            publisher.declares.before = Some(Box::new(before));
        }
    }

    /// The replica holds all that the publisher wants. One that wants nothing is waited for if it
    /// `may_want_more`.
    pub(super) fn confirmed(&mut self, slot: Slot, may_want_more: bool) {
        let publisher = &mut self.living[slot];
        let holds_any = publisher.holdings.len() > 0;
        if holds_any && publisher.declares.before.take().is_some() {
            self.remembered.changed();
        }
        self.remembered.confirmed(publisher.info.id, holds_any || !may_want_more);
    }

    /// A publisher holds a queue, or a default for queues, where it did not, or the other way
    /// round.
    pub(super) fn declare(&mut self, slot: Slot, held: Held, holds: bool) {
        let publisher = &mut self.living[slot];
        if holds {
            publisher.jobs += 1;
        } else {
            publisher.jobs -= 1;
        }
        let declares = &mut publisher.declares;
        if holds && !held.default && !declares.defaults.is_empty() {
            // Below a default of its own, which says as much.
            let mut at = Some(held.node);
            while let Some(node) = at {
                if declares.defaults.contains(&node) {
                    return;
                }
                at = self.paths.tree.above(node);
            }
        }
        if declares.set(held.node, held.default, holds) {
            self.remembered.changed();
        }
    }

    /// A publisher can no longer be seen. Its watchers are to be told.
    pub(super) fn bury(&mut self, slot: Slot, departure: Departure) {
        let declared = self.declared(slot);
        let publisher = &mut self.living[slot];
        publisher.declares = Declares::default();
        let (info, heard_at) = (publisher.info.clone(), publisher.heard_at);
        self.remembered.is_gone(info, declared, departure, heard_at);
        self.living.bury(slot, departure);
        self.paths.hide(&self.living, slot);
        self.untold.push_back((slot, departure));
        self.revision += 1;
    }
}
