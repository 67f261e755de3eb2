//! What a replica knows: which publisher holds which path. Pure: it is told the time, and reads no clock.
//!
//! **Every call that takes a `now` expects it never to fall, and [`Directory::tick`] to be called before anything is read at a
//! later time.** Whatever may touch many paths takes a budget and goes on where it stopped, so that nobody waits for somebody
//! else's million paths.
//!
//! ```text
//! path ──▶ Node { publishers, defaults } ──▶ Slot { info, holds: path ──▶ rounds, digest, deadline }
//!                                              ▲
//! publisher id, writer link ───────────────────┘
//! ```

mod listing;
mod publisher;
mod resolving;
mod watches;

#[cfg(test)]
mod invariant;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod story_test;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::limits::PUBLISHERS_PER_PATH_MAX;
use longshore_protocol::messages::resolver::{Change, Digest, RequestRefusal, Tracker};
use longshore_protocol::{Incarnation, Path, PublisherId, PublisherInfo};

pub(crate) use listing::{Children, Matching};
pub(crate) use resolving::Resolver;

use publisher::{Publisher, Slots};
use watches::Watches;

/// Where a publisher's record stands. Reused once the record is gone.
pub(crate) type Slot = u32;

/// A connection, as the server numbers them: never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Client(pub(crate) u64);

/// The rules of one directory.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// A publisher that is silent this long is hidden.
    pub(crate) writer_ttl: Duration,
    /// A replica that stood still for longer has missed what its writers gave up telling it, and warms again.
    pub(crate) stand_still_max: Duration,
    /// Nothing can have been published before: nothing is missing at the start.
    pub(crate) fresh: bool,
    /// Most publishers.
    pub(crate) publishers_max: usize,
    /// Most paths, defaults included.
    pub(crate) paths_max: usize,
    /// Most watches.
    pub(crate) watches_max: usize,
}

/// Who holds a path.
#[derive(Clone, Default, Debug)]
struct Node {
    /// Those that publish it, sorted.
    publishers: Vec<Slot>,
    /// Those that have declared a default here, sorted.
    defaults: Vec<Slot>,
}

/// For whom a client writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    For(Slot),
    /// A newer link or start has taken over.
    Superseded,
}

/// The whole directory of one replica.
#[derive(Debug)]
pub(crate) struct Directory {
    rules: Rules,
    incarnation: Incarnation,
    /// From when on a "no" can be believed.
    complete_at: Instant,
    complete: bool,
    revision: u64,
    nodes: BTreeMap<Path, Node>,
    /// The paths of `nodes` that have a default: few, and looked through whole where a glob could match below one.
    default_paths: BTreeSet<Path>,
    /// The nodes that have a publisher.
    published_paths: usize,
    slots: Slots,
    by_id: HashMap<PublisherId, Slot>,
    writers: HashMap<Client, Writer>,
    /// When each publisher that can be seen will have been silent for too long.
    deadlines: BTreeSet<(Instant, Slot)>,
    /// Hidden publishers whose paths are still to be taken out.
    graves: VecDeque<Slot>,
    watches: Watches,
}

impl Directory {
    /// An empty directory that starts at `now`.
    pub(crate) fn new(now: Instant, incarnation: Incarnation, rules: Rules) -> Directory {
        let complete_at = if rules.fresh { now } else { now + rules.writer_ttl };
        Directory {
            complete_at,
            complete: rules.fresh,
            incarnation,
            revision: 0,
            nodes: BTreeMap::new(),
            default_paths: BTreeSet::new(),
            published_paths: 0,
            slots: Slots::default(),
            by_id: HashMap::new(),
            writers: HashMap::new(),
            deadlines: BTreeSet::new(),
            graves: VecDeque::new(),
            watches: Watches::new(rules.watches_max),
            rules,
        }
    }

    /// Does what is due at `now`: hides publishers that have been silent for too long, and ends the warming.
    pub(crate) fn tick(&mut self, now: Instant) {
        if !self.complete && now >= self.complete_at {
            self.complete = true;
            self.watches.mark_all();
        }
        while let Some(&(deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            let info = &self.slots[slot].info;
            tracing::warn!(publisher = %info.name, id = %info.id, silent_for = ?self.rules.writer_ttl, "a publisher is silent; hiding it");
            self.bury(slot);
        }
    }

    /// When [`Directory::tick`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let warm = (!self.complete).then_some(self.complete_at);
        warm.into_iter().chain(self.deadlines.first().map(|&(at, _)| at)).min()
    }

    /// The replica itself stood still for `gap`: nobody could be heard, so nobody was silent. If that was long, writers have given up
    /// meanwhile: it warms until they have all been back.
    pub(crate) fn stood_still(&mut self, now: Instant, gap: Duration) {
        for &(_, slot) in &self.deadlines {
            self.slots[slot].deadline += gap;
        }
        self.deadlines = self.deadlines.iter().map(|&(at, slot)| (at + gap, slot)).collect();
        if !self.complete {
            self.complete_at += gap;
        }
        if gap > self.rules.stand_still_max {
            self.complete_at = self.complete_at.max(now + self.rules.writer_ttl / 2);
            self.complete = false;
            self.watches.mark_all();
        }
    }

    /// False while the replica is warming.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What has been told up to now.
    pub(crate) fn tracker(&self) -> Tracker {
        Tracker { incarnation: self.incarnation, revision: self.revision }
    }

    /// How long it will be warming yet.
    pub(crate) fn warming_left(&self, now: Instant) -> Duration {
        if self.complete { Duration::ZERO } else { self.complete_at.saturating_duration_since(now) }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How long a publisher may be silent.
    pub(crate) fn writer_ttl(&self) -> Duration {
        self.rules.writer_ttl
    }

    /// Publishers that can be seen.
    pub(crate) fn publishers_len(&self) -> usize {
        self.by_id.len()
    }

    /// Publishers that are hidden, and still have paths to be taken out.
    pub(crate) fn hidden_len(&self) -> usize {
        self.graves.len()
    }

    /// Paths that somebody publishes.
    pub(crate) fn published_len(&self) -> usize {
        self.published_paths
    }

    /// Paths with a default.
    pub(crate) fn defaults_len(&self) -> usize {
        self.default_paths.len()
    }

    /// From now on `client` writes for this publisher, and who did before no longer does. What the publisher held stays. Answers with
    /// the digest of what it holds. Where that is not what is `wanted`, a new round begins: what is not written again before
    /// [`Directory::confirm`] is then removed. Where it is, nobody will write again, and nothing is stale.
    pub(crate) fn announce(
        &mut self,
        now: Instant,
        client: Client,
        info: &PublisherInfo,
        wanted: &[Digest],
    ) -> Result<Digest, RequestRefusal> {
        let slot = match self.by_id.get(&info.id) {
            Some(&slot) => {
                if info.epoch < self.slots[slot].info.epoch {
                    return Err(RequestRefusal::Superseded);
                }
                self.take_over(slot, client, info);
                slot
            }
            None => {
                if self.slots.len() >= self.rules.publishers_max {
                    return Err(RequestRefusal::TooManyPublishers);
                }
                let slot = self.slots.insert(Publisher::new(info.clone(), client, now));
                self.by_id.insert(info.id, slot);
                slot
            }
        };
        if let Some(Writer::For(before)) = self.writers.insert(client, Writer::For(slot))
            && before != slot
            && self.slots[before].client == Some(client)
        {
            self.slots[before].client = None;
        }
        self.heard(client, now);
        let publisher = &mut self.slots[slot];
        publisher.rewriting = Digest::fold(wanted, 1) != [publisher.digest];
        if publisher.rewriting {
            publisher.round += 1;
        }
        Ok(publisher.digest)
    }

    fn take_over(&mut self, slot: Slot, client: Client, info: &PublisherInfo) {
        let publisher = &mut self.slots[slot];
        let before = publisher.client.replace(client);
        if publisher.info != *info {
            publisher.info = info.clone();
            self.revision += 1;
            self.watches.mark_publisher(slot);
        }
        if let Some(before) = before.filter(|&before| before != client) {
            self.writers.insert(before, Writer::Superseded);
        }
    }

    /// Something came from that client at `at`: its publisher lives.
    pub(crate) fn heard(&mut self, client: Client, at: Instant) {
        let Some(&Writer::For(slot)) = self.writers.get(&client) else { return };
        let publisher = &mut self.slots[slot];
        let deadline = at + self.rules.writer_ttl;
        if deadline > publisher.deadline || !self.deadlines.contains(&(publisher.deadline, slot)) {
            self.deadlines.remove(&(publisher.deadline, slot));
            publisher.deadline = deadline;
            self.deadlines.insert((deadline, slot));
        }
    }

    /// The publisher that `client` writes for.
    pub(crate) fn writer(&self, client: Client) -> Result<Slot, RequestRefusal> {
        match self.writers.get(&client) {
            Some(&Writer::For(slot)) => Ok(slot),
            Some(Writer::Superseded) => Err(RequestRefusal::Superseded),
            None => Err(RequestRefusal::NotAnnounced),
        }
    }

    /// Makes one change for a publisher. What is so already stays so. A refusal is for people, and concerns this path only.
    pub(crate) fn change(&mut self, slot: Slot, change: Change, path: &Path) -> Result<(), String> {
        match change {
            Change::Publish => self.publish(slot, path, false),
            Change::PublishDefault => self.publish(slot, path, true),
            Change::Unpublish => {
                self.unpublish(slot, path, false);
                Ok(())
            }
            Change::UnpublishDefault => {
                self.unpublish(slot, path, true);
                Ok(())
            }
        }
    }

    fn publish(&mut self, slot: Slot, path: &Path, default: bool) -> Result<(), String> {
        if path.is_root() && !default {
            return Err(String::from("nothing can be published at the root; publish below it"));
        }
        let publisher = &mut self.slots[slot];
        let round = publisher.round;
        if let Some(held) = publisher.holds.get_mut(path)
            && let Some(seen) = held.of(default)
        {
            *seen = round;
            return Ok(());
        }
        if !self.nodes.contains_key(path) && self.nodes.len() >= self.rules.paths_max {
            return Err(format!(
                "the replica holds {} paths, as many as it may",
                self.rules.paths_max
            ));
        }
        // One allocation of the text serves the node and every publisher's record of it.
        let path = match self.nodes.get_key_value(path) {
            Some((path, _)) => path.clone(),
            None => path.clone(),
        };
        let node = self.nodes.entry(path.clone()).or_default();
        let members = node.members(default);
        let Err(place) = members.binary_search(&slot) else { return Ok(()) };
        if members.len() >= PUBLISHERS_PER_PATH_MAX {
            return Err(format!(
                "{PUBLISHERS_PER_PATH_MAX} publishers hold the path, as many as may"
            ));
        }
        members.insert(place, slot);
        if members.len() == 1 {
            if default {
                self.default_paths.insert(path.clone());
            } else {
                self.published_paths += 1;
            }
        }
        publisher.hold(&path, default);
        self.watches.held(slot, &path, default);
        self.revision += 1;
        Ok(())
    }

    fn unpublish(&mut self, slot: Slot, path: &Path, default: bool) {
        if self.slots[slot].let_go(path, default) {
            self.leave_node(slot, path, default);
            self.watches.let_go(slot, path, default);
            self.revision += 1;
        }
    }

    fn leave_node(&mut self, slot: Slot, path: &Path, default: bool) {
        let Some(node) = self.nodes.get_mut(path) else { return };
        let members = node.members(default);
        members.retain(|&member| member != slot);
        if members.is_empty() {
            if default {
                self.default_paths.remove(path);
            } else {
                self.published_paths -= 1;
            }
        }
        if node.publishers.is_empty() && node.defaults.is_empty() {
            self.nodes.remove(path);
        }
    }

    /// Removes what a publisher held before its last announce and has not written since, if that announce differed: at most `budget`
    /// paths are looked at, after `cursor`, which is moved. True when all have been.
    pub(crate) fn confirm(&mut self, slot: Slot, cursor: &mut Option<Path>, budget: usize) -> bool {
        let publisher = &self.slots[slot];
        if !publisher.rewriting {
            return true;
        }
        let round = publisher.round;
        let (mut stale, mut seen) = (Vec::new(), 0);
        let from = cursor.take();
        for (path, held) in publisher.holds_after(from.as_ref()).take(budget) {
            seen += 1;
            *cursor = Some(path.clone());
            stale.extend(held.before(round).map(|default| (path.clone(), default)));
        }
        for (path, default) in stale {
            self.unpublish(slot, &path, default);
        }
        seen < budget
    }

    /// The publisher of `client` stops: it is hidden at once.
    pub(crate) fn clear(&mut self, client: Client) -> Result<(), RequestRefusal> {
        let slot = self.writer(client)?;
        self.bury(slot);
        Ok(())
    }

    /// Hides a publisher for good. A later announce of the same id begins anew.
    fn bury(&mut self, slot: Slot) {
        let publisher = &mut self.slots[slot];
        self.deadlines.remove(&(publisher.deadline, slot));
        self.by_id.remove(&publisher.info.id);
        if let Some(client) = publisher.client.take() {
            self.writers.remove(&client);
        }
        publisher.hidden = true;
        self.watches.hide(slot);
        self.graves.push_back(slot);
        self.revision += 1;
    }

    /// Takes out paths of hidden publishers, and looks through the paths for new watches: at most `budget` paths. True while
    /// there is more to do.
    pub(crate) fn sweep(&mut self, mut budget: usize) -> bool {
        while let Some(&slot) = self.graves.front() {
            while let Some((path, held)) = self.slots[slot].holds.pop_first() {
                for default in held.kinds() {
                    self.leave_node(slot, &path, default);
                }
                budget = budget.saturating_sub(1);
                if budget == 0 {
                    return true;
                }
            }
            self.graves.pop_front();
            self.slots.remove(slot);
        }
        self.watches.scan(&self.nodes, &self.slots, budget)
    }

    /// The client is gone. What its publisher holds stays until the publisher has been silent for too long.
    pub(crate) fn client_gone(&mut self, client: Client) {
        if let Some(Writer::For(slot)) = self.writers.remove(&client) {
            self.slots[slot].client = None;
        }
        self.watches.client_gone(client);
    }

    /// Whether any of `members` can be seen.
    fn any_seen(&self, members: &[Slot]) -> bool {
        members.iter().any(|&slot| !self.slots[slot].hidden)
    }
}

impl Node {
    fn members(&mut self, default: bool) -> &mut Vec<Slot> {
        if default { &mut self.defaults } else { &mut self.publishers }
    }
}
