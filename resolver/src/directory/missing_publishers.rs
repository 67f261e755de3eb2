//! The publishers that a replica knows and that are not visible. A publisher that declared queues
//! may hold acknowledged jobs: it is reported as missing until it returns or is forgotten, across
//! restarts of the replica.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use longshore_protocol::limits::{DECLARED_MAX, RESOLVER_PUBLISHERS_MAX};
use longshore_protocol::messages::resolver::{Declared, Departure, KnownPublisher, RequestRefusal};
use longshore_protocol::{Path, PublisherId, PublisherInfo};

use crate::directory::registrations::Registration;
use crate::directory::tree::NodeId;
use crate::directory::{Directory, Slot};

/// Most missing publishers that a replica records; beyond that the one seen longest ago is
/// forgotten.
const MISSING_MAX: usize = RESOLVER_PUBLISHERS_MAX;
/// Most declared paths, of all publishers, that the next run takes over; of the others it knows
/// only that they exist.
const DECLARED_RETAINED_MAX: usize = 65_536;

/// How long a restarted replica waits for the publishers that it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    /// It waits at least this long even if all have returned: others may have appeared during its
    /// downtime.
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

/// The declarations of a visible publisher, as nodes of the tree.
#[derive(Default, Debug)]
pub(super) struct Declarations {
    pub(super) defaults: BTreeSet<NodeId>,
    /// Queues that none of the defaults covers.
    pub(super) queues: BTreeSet<NodeId>,
    /// Some are omitted: there were [`DECLARED_MAX`], or it withdrew some, which proves nothing
    /// about its jobs.
    pub(super) more: bool,
    /// Its declarations before it was last hidden, until it has confirmed its current ones.
    pub(super) before: Option<Box<Declared>>,
}

impl Declarations {
    /// Sets whether the publisher holds a queue or a default at `node`. True if that changed
    /// anything.
    pub(super) fn set(&mut self, node: NodeId, default: bool, holds: bool) -> bool {
        let nodes = if default { &mut self.defaults } else { &mut self.queues };
        if !holds {
            let is_changed = nodes.remove(&node);
            // A publisher whose disk hangs withdraws all declarations, and keeps its jobs; one that
            // withdraws a default has queues below it.
            let is_empty = self.queues.is_empty() && self.defaults.is_empty();
            self.more |= is_changed && (default || is_empty);
            return is_changed;
        }
        if nodes.len() < DECLARED_MAX {
            return nodes.insert(node);
        }
        // A publisher of a million queues searches the set only once.
        !self.more && !nodes.contains(&node) && !std::mem::replace(&mut self.more, true)
    }
}

/// A publisher that is known and not visible.
#[derive(Debug)]
struct MissingPublisher {
    info: PublisherInfo,
    declared: Declared,
    departure: Departure,
    /// The silence before `since`.
    silent_before: Duration,
    since: Instant,
}

impl MissingPublisher {
    fn silent(&self, now: Instant) -> Duration {
        self.silent_before + now.saturating_duration_since(self.since)
    }
}

/// The missing publishers, and those expected after a restart.
#[derive(Default, Debug)]
pub(super) struct MissingPublishers {
    missing: BTreeMap<PublisherId, MissingPublisher>,
    /// Declared paths of all of them, at most [`DECLARED_RETAINED_MAX`].
    paths: usize,
    /// Publishers that were present when the replica stopped and have not confirmed since; true if
    /// they had declared anything.
    expected: HashMap<PublisherId, bool>,
    version: u64,
}

impl MissingPublishers {
    /// Takes over the records of an earlier run.
    pub(super) fn restore(&mut self, now: Instant, known: Vec<KnownPublisher>) {
        self.version += 1;
        for one in known {
            let KnownPublisher { info, declared, silent_ms, departure, registrations: _ } = one;
            let departure = departure.unwrap_or(Departure::NotBack);
            if departure == Departure::NotBack {
                self.expected.insert(info.id, !declared.is_empty());
            }
            let silent_before = Duration::from_millis(silent_ms);
            self.insert(MissingPublisher { info, declared, departure, silent_before, since: now });
        }
    }

    /// A publisher is no longer visible. One of live values alone holds nothing and is not
    /// recorded.
    pub(super) fn insert_departed(
        &mut self,
        info: PublisherInfo,
        declared: Declared,
        departure: Departure,
        last_active: Instant,
    ) {
        self.version += 1;
        self.expected.remove(&info.id);
        if !declared.is_empty() {
            let silent_before = Duration::ZERO;
            self.insert(MissingPublisher {
                info,
                declared,
                departure,
                silent_before,
                since: last_active,
            });
        }
    }

    fn insert(&mut self, mut missing: MissingPublisher) {
        self.take(missing.info.id);
        if self.paths + len(&missing.declared) > DECLARED_RETAINED_MAX {
            missing.declared = some();
        }
        self.paths += len(&missing.declared);
        self.missing.insert(missing.info.id, missing);
        while self.missing.len() > MISSING_MAX {
            // Records restored in one run have the same `since`; the longest silent one goes first.
            let age = |one: &&MissingPublisher| (one.since, std::cmp::Reverse(one.silent_before));
            let oldest = self.missing.values().min_by_key(age).map(|one| one.info.id);
            let Some(dropped) = oldest.and_then(|id| self.take(id)) else { return };
            self.expected.remove(&dropped.info.id);
            tracing::error!(
                publisher = %dropped.info.name, id = %dropped.info.id, limit = MISSING_MAX,
                "too many publishers are missing; the replica forgets one"
            );
        }
    }

    /// The publisher has registered, whether or not it has written everything. Returns its earlier
    /// declarations.
    pub(super) fn returned(&mut self, publisher: PublisherId) -> Option<Declared> {
        let missing = self.take(publisher)?;
        self.version += 1;
        Some(missing.declared)
    }

    fn take(&mut self, publisher: PublisherId) -> Option<MissingPublisher> {
        let missing = self.missing.remove(&publisher)?;
        self.paths -= len(&missing.declared);
        Some(missing)
    }

    /// The replica holds everything that the publisher publishes: something, or nothing though it
    /// had declared nothing before either.
    pub(super) fn confirmed(&mut self, publisher: PublisherId, holds_any: bool) {
        if self.expected.get(&publisher).is_some_and(|declared| holds_any || !declared) {
            self.expected.remove(&publisher);
        }
    }

    /// No publisher is expected.
    pub(super) fn all_confirmed(&self) -> bool {
        self.expected.is_empty()
    }

    /// The expected publishers are missing from now on.
    pub(super) fn stop_waiting(&mut self) {
        self.expected.clear();
        // Publishers without declarations hold no jobs.
        self.missing.retain(|_, one| {
            if one.departure == Departure::NotBack {
                one.departure = Departure::Silent;
            }
            !one.declared.is_empty()
        });
        self.version += 1;
    }

    /// Whether it is missing and may hold jobs.
    pub(super) fn has_queues(&self, publisher: PublisherId) -> bool {
        self.missing.get(&publisher).is_some_and(|missing| !missing.declared.is_empty())
    }

    /// False if it was not missing.
    pub(super) fn forget(&mut self, publisher: PublisherId) -> bool {
        self.expected.remove(&publisher);
        let known = self.take(publisher).is_some();
        self.version += u64::from(known);
        known
    }

    /// The missing publishers after `last`, by id.
    pub(super) fn after(
        &self,
        now: Instant,
        last: Option<PublisherId>,
    ) -> impl Iterator<Item = KnownPublisher> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.missing.range((from, Bound::Unbounded)).map(move |(_, one)| KnownPublisher {
            info: one.info.clone(),
            registrations: 0,
            silent_ms: u64::try_from(one.silent(now).as_millis()).unwrap_or(u64::MAX),
            departure: Some(one.departure),
            declared: one.declared.clone(),
        })
    }

    /// A recorded fact has changed.
    pub(super) fn changed(&mut self) {
        self.version += 1;
    }

    /// Increases with each change of what is recorded.
    pub(super) fn version(&self) -> u64 {
        self.version
    }
}

/// The number of its paths.
fn len(declared: &Declared) -> usize {
    declared.defaults.len() + declared.queues.len()
}

/// Declarations whose paths are unknown.
fn some() -> Declared {
    Declared { more: true, ..Declared::default() }
}

impl Directory {
    /// Takes over the records of an earlier run: the publishers in `known`, which were all if it
    /// `knew_all`. Then the replica is complete once those present at its end have confirmed,
    /// within the bounds of `wait`.
    pub(crate) fn restore(
        &mut self,
        now: Instant,
        known: Vec<KnownPublisher>,
        knew_all: bool,
        wait: Wait,
    ) {
        self.missing_publishers.restore(now, known);
        if knew_all && !self.complete {
            self.complete_at = now + wait.most.min(self.rules.writer_ttl);
            self.early_complete_at = Some(self.complete_at.min(now + wait.least));
            // The next run knows all publishers only if this one has waited for them.
            self.knows_all = wait.least.is_zero();
        }
    }

    /// The registered and the missing publishers, as recorded for the next run.
    pub(crate) fn known(&self, now: Instant) -> Vec<KnownPublisher> {
        // The missing ones have as many at most.
        let mut left = DECLARED_RETAINED_MAX;
        let seen = self.publishers.from(0);
        let seen = seen.filter(|(_, publisher)| publisher.is_recorded && !publisher.is_hidden());
        let seen = seen.map(|(slot, publisher)| {
            let declarations = &publisher.declarations;
            let before = declarations.before.as_deref().map_or(0, len);
            let size = declarations.defaults.len() + declarations.queues.len() + before;
            match left.checked_sub(size) {
                Some(rest) => {
                    left = rest;
                    self.known_at(now, slot)
                }
                // Their paths are not even spelt out: this runs between the turns of clients.
                None => self.known_with(now, slot, some()),
            }
        });
        seen.chain(self.missing_publishers.after(now, None)).collect()
    }

    /// Whether every publisher that was ever registered is known.
    pub(crate) fn knows_all(&self) -> bool {
        self.knows_all
    }

    /// Increases when [`Directory::known`] has to be recorded again.
    pub(crate) fn known_version(&self) -> u64 {
        self.missing_publishers.version()
    }

    /// Whether a publisher is missing and may hold jobs.
    pub(crate) fn has_missing_queues(&self, publisher: PublisherId) -> bool {
        self.missing_publishers.has_queues(publisher)
    }

    /// Stops reporting a missing publisher. False if it is not known.
    pub(crate) fn forget(&mut self, publisher: PublisherId) -> Result<bool, RequestRefusal> {
        if self.publishers.is_visible(publisher) {
            return Err(RequestRefusal::StillThere);
        }
        Ok(self.missing_publishers.forget(publisher))
    }

    pub(super) fn known_at(&self, now: Instant, slot: Slot) -> KnownPublisher {
        self.known_with(now, slot, self.declared(slot))
    }

    fn known_with(&self, now: Instant, slot: Slot, declared: Declared) -> KnownPublisher {
        let publisher = &self.publishers[slot];
        let silent = now.saturating_duration_since(publisher.last_active);
        KnownPublisher {
            info: publisher.info.clone(),
            registrations: publisher.registrations.len() as u64,
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
            departure: publisher.departure,
            declared,
        }
    }

    fn declared(&self, slot: Slot) -> Declared {
        let declarations = &self.publishers[slot].declarations;
        let before = declarations.before.as_deref();
        let mut more = declarations.more || before.is_some_and(|before| before.more);
        let mut paths = |nodes: &BTreeSet<NodeId>, before: Option<&Vec<Path>>| {
            let now = nodes.iter().filter_map(|&node| self.paths.path(node));
            let all: BTreeSet<Path> = now.chain(before.into_iter().flatten().cloned()).collect();
            more |= all.len() > DECLARED_MAX;
            all.into_iter().take(DECLARED_MAX).collect()
        };
        let defaults = paths(&declarations.defaults, before.map(|before| &before.defaults));
        let queues = paths(&declarations.queues, before.map(|before| &before.queues));
        Declared { defaults, queues, more }
    }

    /// A publisher has announced. Until it has confirmed its current declarations, its earlier ones
    /// count too: its first write may never come.
    pub(super) fn returned(&mut self, slot: Slot) {
        let publisher = &mut self.publishers[slot];
        if let Some(before) = self.missing_publishers.returned(publisher.info.id)
            && !before.is_empty()
        {
            publisher.is_recorded = true;
            publisher.declarations.before = Some(Box::new(before));
        }
    }

    /// The replica holds everything that the publisher publishes. One with nothing stays expected
    /// if it `may_want_more`.
    pub(super) fn confirmed(&mut self, slot: Slot, may_want_more: bool) {
        let publisher = &mut self.publishers[slot];
        let holds_any = publisher.registrations.len() > 0;
        if holds_any && publisher.declarations.before.take().is_some() {
            self.missing_publishers.changed();
        }
        self.missing_publishers.confirmed(publisher.info.id, holds_any || !may_want_more);
    }

    /// A publisher now holds a queue or a default for queues, or no longer does.
    pub(super) fn declare(&mut self, slot: Slot, registration: Registration, holds: bool) {
        let publisher = &mut self.publishers[slot];
        if holds {
            publisher.jobs += 1;
        } else {
            publisher.jobs -= 1;
        }
        let declarations = &mut publisher.declarations;
        if holds && !registration.default && !declarations.defaults.is_empty() {
            // Already covered by a default of its own.
            let mut at = Some(registration.node);
            while let Some(node) = at {
                if declarations.defaults.contains(&node) {
                    return;
                }
                at = self.paths.tree.above(node);
            }
        }
        if declarations.set(registration.node, registration.default, holds) {
            self.missing_publishers.changed();
        }
    }

    /// Hides a publisher. Its watchers are to be sent the departure.
    pub(super) fn hide_publisher(&mut self, slot: Slot, departure: Departure) {
        let declared = self.declared(slot);
        let publisher = &mut self.publishers[slot];
        publisher.declarations = Declarations::default();
        let (info, last_active) = (publisher.info.clone(), publisher.last_active);
        self.missing_publishers.insert_departed(info, declared, departure, last_active);
        self.publishers.hide(slot, departure);
        self.paths.hide(&self.publishers, slot);
        self.unreported.push_back((slot, departure));
        self.revision += 1;
    }
}
