//! What a replica knows: which publisher holds which path. Pure: it is told the time, and reads no
//! clock.
//!
//! **Every call that takes a `now` expects it never to fall, and [`Directory::tick`] to be called
//! before anything is read at a later time.** Whatever may touch many paths takes a budget and goes
//! on where it stopped, so that nobody waits for somebody else's million paths.
//!
//! ```text
//! path ──▶ node ──▶ set of { publisher, terms } ──▶ publisher { info, deadline, holdings: buckets of nodes }
//!                                                      ▲
//! publisher id, writer link ───────────────────────────┘
//! ```

mod globs;
mod holdings;
mod index;
mod listing;
mod liveness;
mod paths;
mod prefixes;
mod pushes;
mod remembered;
mod resolving;
mod sets;
mod slab;
mod standstill;
mod table;
mod terms;
mod text;
mod trackers;
mod tree;
mod walks;
mod watches;

#[cfg(test)]
mod invariant;
#[cfg(test)]
mod listing_test;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod remembered_test;
#[cfg(test)]
mod scenario_test;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longshore_protocol::limits::{PUBLISHERS_PER_PATH_MAX, TERMS_MAX};
use longshore_protocol::messages::resolver::{
    Change, Departure, Digest, KeyHash, PathText, RequestRefusal, Tracker,
};
use longshore_protocol::{Incarnation, PublisherInfo, Terms};

pub(crate) use globs::{Matching, TooManyPieces};
pub(crate) use listing::Children;
pub(crate) use pushes::{Known, Push, WatchRefusal};
pub(crate) use remembered::Wait;
pub(crate) use resolving::Resolver;
pub(crate) use table::{Cells, Told};
pub(crate) use tree::WARM;

use holdings::{EntryHasher, Held};
use index::PathHasher;
use liveness::Liveness;
use paths::Paths;
use pushes::Snapshot;
use remembered::Remembered;
use standstill::Grace;
use terms::TermsId;
use trackers::Trackers;
use watches::Watches;

/// Where a publisher's record stands. Reused once the record is gone.
pub(crate) type Slot = u32;

/// A connection, as the server numbers them: never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Client(pub(crate) u64);

/// A warming ends after so many `writer_ttl` at the latest.
const WARMING_TTLS: u32 = 2;
/// Most nodes of the tree for each path that there may be: those above the paths count too.
const NODES_PER_PATH_MAX: usize = 4;
/// Nodes of the tree that there may be in any case.
const NODES_MIN: usize = 1_024;
/// Watched globs looked at in one go for publishers that are hidden, or those for one publisher if
/// they are more: of the others watchers are told next.
const HIDE_STEPS: usize = 1_024;

/// Entries of buckets that are moved, or looked at, in one step.
const MOVED_PER_STEP: usize = 16;
/// How far a confirm is.
#[derive(Default, Debug)]
pub(crate) struct Confirming {
    /// The place after the buckets that were looked through.
    next: u32,
    /// What is to be removed of the last one.
    stale: Vec<Held>,
}

/// The rules of one directory.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// A publisher that is silent this long is hidden.
    pub(crate) writer_ttl: Duration,
    /// A replica that stood still for longer has missed what its writers gave up telling it, and
    /// warms again.
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

#[cfg(test)]
impl Rules {
    /// Of a small replica that has never run before.
    pub(crate) fn small(writer_ttl: Duration) -> Rules {
        Rules {
            writer_ttl,
            stand_still_max: writer_ttl / 8,
            fresh: true,
            publishers_max: 16,
            paths_max: 1_000,
            watches_max: 16,
        }
    }
}

/// Whether a path is `/sys` or lies below it.
fn is_reserved(path: &str) -> bool {
    path.strip_prefix("/sys").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The whole directory of one replica.
#[derive(Debug)]
pub(crate) struct Directory {
    rules: Rules,
    incarnation: Incarnation,
    /// From when on a "no" can be believed.
    complete_at: Instant,
    complete: bool,
    /// However often it stands still, it warms no longer than until then.
    warm_until: Instant,
    grace: Grace,
    /// Complete before `complete_at`, from then on, once all that it remembers from before its
    /// restart have confirmed.
    by_memory: Option<Instant>,
    /// It was complete once, or took over from a run that was: no publisher is unknown to it.
    knows_all: bool,
    revision: u64,
    paths: Paths,
    living: Liveness,
    remembered: Remembered,
    trackers: Trackers,
    watches: Watches<Snapshot>,
    /// Hidden publishers whose watchers are still to be told, in their order. None of them is
    /// forgotten before.
    untold: VecDeque<(Slot, Departure)>,
    /// What changes have cost beside themselves, in steps: globs compared, and every 16 entries of
    /// buckets looked at or moved.
    spent: usize,
}

impl Directory {
    /// An empty directory that starts at `now`, for tests.
    #[cfg(test)]
    pub(crate) fn new(now: Instant, incarnation: Incarnation, rules: Rules) -> Directory {
        Directory::keyed(now, incarnation, [7; 16], rules)
    }

    /// An empty directory that starts at `now`. Clients are told its incarnation; nobody is told
    /// the `secret` that paths are hashed with.
    pub(crate) fn keyed(
        now: Instant,
        incarnation: Incarnation,
        secret: [u8; 16],
        rules: Rules,
    ) -> Directory {
        let complete_at = if rules.fresh { now } else { now + rules.writer_ttl };
        Directory {
            complete_at,
            complete: rules.fresh,
            warm_until: if rules.fresh { now } else { now + WARMING_TTLS * rules.writer_ttl },
            grace: Grace::new(now, rules.writer_ttl),
            by_memory: None,
            knows_all: rules.fresh,
            incarnation,
            revision: 0,
            paths: Paths::new(secret),
            living: Liveness::new(
                rules.writer_ttl,
                EntryHasher::new(PathHasher::new(secret).word()),
            ),
            remembered: Remembered::default(),
            trackers: Trackers::default(),
            watches: Watches::default(),
            rules,
            untold: VecDeque::new(),
            spent: 0,
        }
    }

    /// Does what is due at `now`: hides publishers that have been silent for too long, and ends the
    /// warming. However many are hidden at a time, no answer names them from here on; their
    /// watchers are told of some now, and of the others when it is called again, or
    /// [`Directory::sweep`] is.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.completes_at().is_some_and(|at| at <= now) {
            self.complete = true;
            (self.by_memory, self.knows_all) = (None, true);
            self.remembered.wait_no_longer();
            self.watches.all_start_over();
        }
        while let Some((deadline, slot)) = self.living.next_deadline()
            && deadline <= now
        {
            self.bury(slot, Departure::Silent);
        }
        self.tell_hidden(HIDE_STEPS);
    }

    /// When [`Directory::tick`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.completes_at().into_iter().chain(self.living.next_deadline().map(|(at, _)| at)).min()
    }

    /// The replica itself stood still for `gap`: nobody could be heard, so nobody was silent,
    /// unless it does so all the time. If that was long, writers have given up meanwhile: it warms
    /// until they have all been back.
    pub(crate) fn stood_still(&mut self, now: Instant, gap: Duration) {
        if self.grace.covers(now, gap) {
            self.living.put_off(gap, now);
            if !self.complete {
                self.complete_at = (self.complete_at + gap).min(self.warm_until);
                self.by_memory = self.by_memory.map(|at| at + gap);
            }
        }
        self.missed(now, gap);
    }

    /// The machine slept for so long, and its clock stood still: nobody was silent by it, and no
    /// deadline came nearer, but writers have gone on. True if the replica warms again.
    pub(crate) fn slept(&mut self, now: Instant, slept: Duration) -> bool {
        self.missed(now, slept)
    }

    /// For so long writers could not tell it anything. If they have given up meanwhile, it warms
    /// until they have all been back.
    fn missed(&mut self, now: Instant, gap: Duration) -> bool {
        let missed = gap > self.rules.stand_still_max;
        if missed {
            if self.complete {
                self.warm_until = now + WARMING_TTLS * self.rules.writer_ttl;
            }
            let at = self.complete_at.max(now + self.rules.writer_ttl / 2);
            self.complete_at = at.min(self.warm_until);
            (self.complete, self.by_memory) = (false, None);
            self.watches.all_start_over();
        }
        missed
    }

    /// When the warming ends by what is known now; `None` once it has.
    fn completes_at(&self) -> Option<Instant> {
        let by_memory = self.by_memory.filter(|_| self.remembered.all_confirmed());
        let at = by_memory.map_or(self.complete_at, |at| at.min(self.complete_at));
        (!self.complete).then_some(at)
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

    /// Changes how much it takes on. What it holds beyond that stays.
    pub(crate) fn limit(&mut self, paths_max: usize, watches_max: usize) {
        self.rules.paths_max = paths_max;
        self.rules.watches_max = watches_max;
    }

    /// How long a publisher may be silent.
    pub(crate) fn writer_ttl(&self) -> Duration {
        self.rules.writer_ttl
    }

    /// Publishers that can be seen.
    pub(crate) fn publishers_len(&self) -> usize {
        self.living.len()
    }

    /// Publishers that are hidden, and still have paths to be taken out.
    pub(crate) fn hidden_len(&self) -> usize {
        self.living.graves_len()
    }

    /// Paths that somebody publishes.
    pub(crate) fn published_len(&self) -> usize {
        self.paths.published_len()
    }

    /// Paths with a default.
    pub(crate) fn defaults_len(&self) -> usize {
        self.paths.defaults_len()
    }

    /// From now on `client` writes for this publisher, and who did before no longer does. What the
    /// publisher held stays. Answers with the digests of what it holds, by as many buckets as are
    /// `wanted` or fewer, each a power of two. Those that differ are being rewritten from here on,
    /// and no others: what is not written again in them before [`Directory::confirm`] is then
    /// removed.
    pub(crate) fn announce(
        &mut self,
        now: Instant,
        client: Client,
        info: &PublisherInfo,
        wanted: &[Digest],
    ) -> Result<Vec<Digest>, RequestRefusal> {
        // Watchers are to hear that it is gone before they hear that it is there.
        let same = |&(slot, _): &(Slot, Departure)| self.living[slot].info.id == info.id;
        if let Some(place) = self.untold.iter().position(same)
            && let Some((slot, departure)) = self.untold.remove(place)
        {
            self.tell_gone(slot, departure);
        }
        let seen = self.living.len();
        let announced = self.living.announce(now, client, info, self.rules.publishers_max)?;
        self.is_back(announced.slot);
        if announced.moved || self.living.len() != seen {
            self.remembered.changed();
        }
        if announced.moved {
            self.revision += 1;
            self.watches.publisher_moved(announced.slot);
        }
        let holdings = &mut self.living[announced.slot].holdings;
        let answer = holdings.compare(wanted);
        if !holdings.any_rewriting() {
            self.confirmed(announced.slot, true);
        }
        Ok(answer)
    }

    /// Something came from that client at `at`: its publisher lives.
    pub(crate) fn heard(&mut self, client: Client, at: Instant) {
        self.living.heard(client, at);
    }

    /// The publisher that `client` writes for.
    pub(crate) fn writer(&self, client: Client) -> Result<Slot, RequestRefusal> {
        self.living.writer(client)
    }

    /// Makes one change for a publisher. What is so already stays so. A refusal is for people, and
    /// concerns this path only.
    pub(crate) fn write(
        &mut self,
        slot: Slot,
        change: Change,
        terms: &Terms,
        path: PathText<'_>,
    ) -> Result<(), String> {
        let path = path.check()?;
        let default = matches!(change, Change::PublishDefault | Change::UnpublishDefault);
        if !change.publishes() {
            self.unpublish(slot, path, default);
            return Ok(());
        }
        let terms = self.number_of(terms)?;
        self.publish(slot, path, default, terms)
    }

    /// Makes one change on the default terms.
    #[cfg(test)]
    pub(crate) fn change(
        &mut self,
        slot: Slot,
        change: Change,
        path: &longshore_protocol::Path,
    ) -> Result<(), String> {
        self.write(slot, change, &Terms::default(), PathText::from(path))
    }

    /// Makes ready for the first [`WARM`] of these paths to be written or resolved: together they
    /// wait for memory as long as one.
    pub(crate) fn warm<'a>(&self, paths: impl Iterator<Item = PathText<'a>>) {
        self.paths.tree.warm(paths.map(PathText::as_bytes));
    }

    fn number_of(&mut self, terms: &Terms) -> Result<TermsId, String> {
        let sets = &mut self.paths.sets;
        if let Some(number) = sets.terms_kept.number(terms) {
            return Ok(number);
        }
        // Sets that no path has any more may be all that names some.
        sets.collect();
        sets.terms_kept.number(terms).ok_or_else(|| {
            format!(
                "the replica keeps {TERMS_MAX} different terms of publication, as many as it may"
            )
        })
    }

    fn publish(
        &mut self,
        slot: Slot,
        path: &str,
        default: bool,
        terms: TermsId,
    ) -> Result<(), String> {
        if path == "/" && !default {
            return Err(String::from("nothing can be published at the root; publish below it"));
        }
        let publisher = &mut self.living[slot];
        if !publisher.is_awaited && !is_reserved(path) {
            publisher.is_awaited = true;
            self.remembered.changed();
        }
        let node = self.paths.tree.make(path);
        let held = Held { node, default };
        let set = self.paths.set(held);
        let before = self.paths.sets.terms(set, slot);
        if before == Some(terms) {
            let holdings = &mut self.living[slot].holdings;
            if holdings.any_rewriting() {
                holdings.written_again(held, KeyHash::of(path, default));
            }
            return Ok(());
        }
        if before.is_none()
            && let Err(refusal) = self.room_for(held, set)
        {
            self.paths.tree.prune(node);
            return Err(refusal);
        }
        let mark = self.paths.mark_of(path, default, terms);
        let held_jobs = before.is_some_and(|before| self.paths.is_of_jobs(before));
        let holds_jobs = self.paths.is_of_jobs(terms);
        let moved = self.paths.hold(&mut self.living, slot, held, mark, terms, before);
        self.spent += moved / MOVED_PER_STEP;
        let jobs = (held_jobs != holds_jobs).then_some((slot, holds_jobs));
        self.changed(held, path, jobs);
        Ok(())
    }

    /// Whether one more publisher may hold this.
    fn room_for(&self, held: Held, set: sets::SetId) -> Result<(), String> {
        let paths_max = self.rules.paths_max;
        let nodes_max =
            paths_max.saturating_mul(NODES_PER_PATH_MAX).clamp(NODES_MIN, tree::NODES_MAX);
        if !self.paths.tree.is_held(held.node) {
            // What only hidden publishers hold does not count, but is not to pile up either.
            let full =
                self.paths.seen_len() >= paths_max || self.paths.tree.held_len() >= 2 * paths_max;
            if full {
                return Err(format!("the replica holds {paths_max} paths, as many as it may"));
            }
            if self.paths.tree.is_full() {
                return Err(String::from(
                    "the replica keeps 16 GiB of names of path segments, as many as it may; \
                     publish fewer, and start it again",
                ));
            }
            if self.paths.tree.len() > nodes_max {
                return Err(format!(
                    "the replica's tree has {nodes_max} nodes, as many as it may; publish paths of \
                     fewer segments, or under fewer parents"
                ));
            }
        }
        let members = self.paths.sets.members(set);
        if members.len() >= PUBLISHERS_PER_PATH_MAX {
            let seen = members.iter().filter(|member| !self.living[member.slot].hidden).count();
            if seen >= PUBLISHERS_PER_PATH_MAX || members.len() >= 2 * PUBLISHERS_PER_PATH_MAX {
                return Err(format!(
                    "{PUBLISHERS_PER_PATH_MAX} publishers hold the path, as many as may"
                ));
            }
        }
        Ok(())
    }

    fn unpublish(&mut self, slot: Slot, path: &str, default: bool) {
        let Some(node) = self.paths.tree.find(path) else { return };
        let held = Held { node, default };
        if let Some(terms) = self.paths.sets.terms(self.paths.set(held), slot) {
            let mark = self.paths.mark_of(path, default, terms);
            self.living[slot].holdings.remove(held, mark);
            let jobs = self.paths.is_of_jobs(terms).then_some((slot, false));
            self.changed(held, path, jobs);
            self.paths.let_go(&mut self.living, slot, held);
        }
    }

    /// What can be seen at a node changes: a publisher has jobs there now, or has no longer, if
    /// that is `jobs`.
    fn changed(&mut self, held: Held, path: &str, jobs: Option<(Slot, bool)>) {
        if let Some((slot, holds)) = jobs {
            self.declare(slot, held, holds);
        }
        self.spent += self.watches.changed(&self.paths.tree, held, path, jobs);
        self.revision += 1;
        self.trackers.change(&self.paths.tree, held.node, self.revision);
    }

    /// Removes what a publisher held before its last announce and has not written since, where that
    /// announce differed: bucket by bucket, as far as `budget` steps go. True when all is done. All
    /// calls between two announces go on with the same `confirming`.
    pub(crate) fn confirm(
        &mut self,
        slot: Slot,
        confirming: &mut Confirming,
        budget: usize,
    ) -> bool {
        let mut steps = 0;
        while steps < budget {
            if let Some(held) = confirming.stale.pop() {
                if let Some(path) = self.paths.path(held.node) {
                    self.unpublish(slot, path.as_str(), held.default);
                }
                steps += 1 + self.spent();
                continue;
            }
            let Confirming { next, stale } = confirming;
            let Some(looked) = self.living[slot].holdings.stale(next, stale) else {
                self.confirmed(slot, false);
                return true;
            };
            steps += 1 + looked / MOVED_PER_STEP;
        }
        false
    }

    /// The publisher of `client` stops: it is hidden at once.
    pub(crate) fn clear(&mut self, client: Client) -> Result<(), RequestRefusal> {
        let slot = self.writer(client)?;
        let (info, held) = (&self.living[slot].info, self.living[slot].holdings.len());
        tracing::info!(publisher = %info.name, id = %info.id, held, "a publisher stops; hiding it");
        self.bury(slot, Departure::Stopped);
        self.tell_hidden(HIDE_STEPS);
        Ok(())
    }

    /// Tells watchers of publishers that were hidden, of the next one and of others until `budget`
    /// is spent. Says what that has cost.
    fn tell_hidden(&mut self, budget: usize) -> usize {
        let mut spent = 0;
        while spent < budget
            && let Some((slot, departure)) = self.untold.pop_front()
        {
            spent += self.tell_gone(slot, departure);
        }
        spent
    }

    fn tell_gone(&mut self, slot: Slot, departure: Departure) -> usize {
        let (info, held) = (&self.living[slot].info, self.living[slot].holdings.len());
        if departure == Departure::Silent {
            tracing::warn!(publisher = %info.name, id = %info.id, held, silent_for = ?self.rules.writer_ttl, "a publisher is silent; hiding it");
        }
        1 + self.watches.hide(slot, info.id, departure)
    }

    /// Tells watchers of hidden publishers, and takes out their paths: at most `budget` paths, and
    /// as many fewer as globs are compared for them. True while there is more to do.
    pub(crate) fn sweep(&mut self, budget: usize) -> bool {
        let mut left = budget.saturating_sub(self.tell_hidden(budget));
        while left > 0
            && self.untold.is_empty()
            && let Some(slot) = self.living.grave()
        {
            left -= 1;
            match self.living[slot].holdings.pop() {
                Some(held) => {
                    if self.watches.len() > 0
                        && let Some(path) = self.paths.path(held.node)
                    {
                        let tree = &self.paths.tree;
                        let cost = self.watches.changed(tree, held, path.as_str(), None);
                        left = left.saturating_sub(cost);
                    }
                    self.paths.let_go(&mut self.living, slot, held);
                }
                None => {
                    let info = &self.living[slot].info;
                    tracing::info!(publisher = %info.name, id = %info.id, "all paths of a hidden publisher are taken out");
                    self.living.close_grave();
                }
            }
        }
        self.living.grave().is_some()
    }

    /// The client is gone. What its publisher holds stays until the publisher has been silent for
    /// too long.
    pub(crate) fn client_gone(&mut self, client: Client) {
        self.living.client_gone(client);
        self.watches.client_gone(client);
    }
}
