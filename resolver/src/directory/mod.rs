//! The state of a replica: which publisher holds which path. Pure: time is an argument.
//!
//! **The `now` of successive calls never decreases, and [`Directory::tick`] is called before any
//! read at a later time.** Whatever may touch many paths takes a budget and resumes where it
//! stopped, so that no client waits for another's million paths.
//!
//! ```text
//! path ──▶ node ──▶ set of { publisher, terms } ──▶ publisher { info, deadline, registrations }
//!                                                      ▲
//! publisher id, writer link ───────────────────────────┘
//! ```

mod globs;
mod index;
mod listing;
mod missing_publishers;
mod node_numbers;
mod paths;
mod prefixes;
mod publishers;
mod pushes;
mod registrations;
mod resolving;
mod scope;
mod sets;
mod slab;
mod stall_allowance;
mod table;
mod terms;
mod text;
mod trackers;
mod tree;
mod vetting;
mod walks;
mod watches;

#[cfg(test)]
mod guarantees_test;
#[cfg(test)]
mod invariant;
#[cfg(test)]
mod listing_test;
#[cfg(test)]
mod missing_publishers_test;
#[cfg(test)]
mod model_test;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longshore_protocol::limits::{PUBLISHERS_PER_PATH_MAX, TERMS_MAX};
use longshore_protocol::messages::resolver::{
    Change, Departure, Digest, KeyHash, PathText, RequestRefusal, Tracker,
};
use longshore_protocol::{Incarnation, PublisherInfo, Terms};
use longshore_transport::LogLimit;

pub(crate) use globs::{GlobWalk, TooManySegments};
pub(crate) use index::PathHashes;
pub(crate) use listing::Children;
pub(crate) use missing_publishers::Wait;
pub(crate) use pushes::{PublisherListing, Push, WatchRefusal};
pub(crate) use resolving::AnswerBuilder;
pub(crate) use scope::{Scope, steps_of};
pub(crate) use table::{Cells, TablePart};
pub(crate) use tree::PREFETCH_PATHS;

use index::PathHasher;
use missing_publishers::MissingPublishers;
use paths::Paths;
use publishers::{PathsQuota, PublisherTable};
use pushes::Snapshot;
use registrations::{EntryHasher, Registration};
use stall_allowance::StallAllowance;
use terms::TermsId;
use trackers::Trackers;
use watches::Watches;

/// The index of a publisher's record. Reused once the record is gone.
pub(crate) type Slot = u32;

/// A connection, as numbered by the server: never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Client(pub(crate) u64);

/// The longest warming, in `writer_ttl`.
const WARMING_TTLS: u32 = 2;
/// The most nodes of the tree for each allowed path: the nodes above the paths count too.
const NODES_PER_PATH_MAX: usize = 4;
/// Nodes of the tree that are always allowed.
const NODES_MIN: usize = 1_024;
/// Watched globs compared in one step for hidden publishers, or those for one publisher if they are
/// more: watchers of the others are sent the departure in the next step.
const HIDE_STEPS: usize = 1_024;

/// Bucket entries moved or compared in one step.
const MOVED_PER_STEP: usize = 16;
/// The progress of a confirm.
#[derive(Default, Debug)]
pub(crate) struct ConfirmProgress {
    /// The position after the buckets that were compared.
    next: u32,
    /// Registrations of the last bucket that are still to be removed.
    stale: Vec<Registration>,
}

/// The rules of one directory.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// A publisher that is silent this long is hidden.
    pub(crate) writer_ttl: Duration,
    /// After a longer stall writers have given up on the replica, so that it has missed changes and
    /// warms again.
    pub(crate) stall_max: Duration,
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
    /// The rules of a small replica that has never run before.
    pub(crate) fn small(writer_ttl: Duration) -> Rules {
        Rules {
            writer_ttl,
            stall_max: writer_ttl / 8,
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

/// Most log lines about hidden publishers in each period.
const HIDDEN_LINES_MAX: u32 = 50;
const HIDDEN_LINES_PERIOD: Duration = Duration::from_secs(10);

/// The whole directory of one replica.
#[derive(Debug)]
pub(crate) struct Directory {
    rules: Rules,
    incarnation: Incarnation,
    /// When a negative answer becomes reliable.
    complete_at: Instant,
    complete: bool,
    /// The end of the warming, however often it is extended.
    warm_until: Instant,
    stall_allowance: StallAllowance,
    /// From here until `complete_at`, the directory is complete once all awaited publishers of the
    /// previous run have confirmed.
    early_complete_at: Option<Instant>,
    /// It was complete once, or continues a run that was: no publisher is unknown to it.
    knows_all: bool,
    revision: u64,
    paths: Paths,
    publishers: PublisherTable,
    missing_publishers: MissingPublishers,
    trackers: Trackers,
    watches: Watches<Snapshot>,
    /// Hidden publishers whose watchers are still to be sent the departure, in order. None of them
    /// is removed before.
    unreported: VecDeque<(Slot, Departure)>,
    hidden_log: LogLimit,
    /// The additional cost of changes, in steps: globs compared, and every 16 bucket entries
    /// compared or moved.
    spent: usize,
}

impl Directory {
    /// An empty directory that starts at `now`, for tests.
    #[cfg(test)]
    pub(crate) fn new(now: Instant, incarnation: Incarnation, rules: Rules) -> Directory {
        Directory::keyed(now, incarnation, [7; 16], rules)
    }

    /// An empty directory that starts at `now`. Clients learn its incarnation, but never the
    /// `secret` that paths are hashed with.
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
            stall_allowance: StallAllowance::new(now, rules.writer_ttl),
            early_complete_at: None,
            knows_all: rules.fresh,
            incarnation,
            revision: 0,
            paths: Paths::new(secret),
            publishers: PublisherTable::new(
                rules.writer_ttl,
                EntryHasher::new(PathHasher::new(secret).word()),
            ),
            missing_publishers: MissingPublishers::default(),
            trackers: Trackers::default(),
            watches: Watches::default(),
            rules,
            unreported: VecDeque::new(),
            hidden_log: LogLimit::new(HIDDEN_LINES_MAX, HIDDEN_LINES_PERIOD),
            spent: 0,
        }
    }

    /// Handles what is due at `now`: hides publishers that have been silent for too long (their
    /// paths are swept later), and ends the warming. However many are hidden at
    /// once, no answer contains them from here on. Watchers are sent some of the departures now,
    /// and the others with the next calls of this or of [`Directory::sweep`].
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.completes_at().is_some_and(|at| at <= now) {
            self.complete = true;
            (self.early_complete_at, self.knows_all) = (None, true);
            self.missing_publishers.stop_waiting();
            self.watches.all_start_over();
        }
        while let Some((deadline, slot)) = self.publishers.next_deadline()
            && deadline <= now
        {
            self.hide_publisher(slot, Departure::Silent);
        }
        self.report_hidden(HIDE_STEPS);
    }

    /// When [`Directory::tick`] is next due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.completes_at()
            .into_iter()
            .chain(self.publishers.next_deadline().map(|(at, _)| at))
            .min()
    }

    /// The replica itself stalled for `gap`: no publisher could be heard, so none counts as silent,
    /// unless it stalls all the time. After a long stall writers have given up: it warms until all
    /// have returned.
    pub(crate) fn stalled(&mut self, now: Instant, gap: Duration) {
        if self.stall_allowance.covers(now, gap) {
            self.publishers.extend_deadlines(gap, now);
            if !self.complete {
                self.complete_at = (self.complete_at + gap).min(self.warm_until);
                self.early_complete_at = self.early_complete_at.map(|at| at + gap);
            }
        }
        self.missed_updates(now, gap);
    }

    /// The machine slept for `slept`. The clock stopped meanwhile, so no publisher became silent
    /// and no deadline came nearer, but writers have gone on. True if the replica warms again.
    pub(crate) fn slept(&mut self, now: Instant, slept: Duration) -> bool {
        self.missed_updates(now, slept)
    }

    /// Writers could send nothing for `gap`. If they have given up meanwhile, it warms until all
    /// have returned.
    fn missed_updates(&mut self, now: Instant, gap: Duration) -> bool {
        let missed_updates = gap > self.rules.stall_max;
        if missed_updates {
            if self.complete {
                self.warm_until = now + WARMING_TTLS * self.rules.writer_ttl;
            }
            let at = self.complete_at.max(now + self.rules.writer_ttl / 2);
            self.complete_at = at.min(self.warm_until);
            (self.complete, self.early_complete_at) = (false, None);
            self.watches.all_start_over();
        }
        missed_updates
    }

    /// When the warming ends as known now; `None` once it has.
    fn completes_at(&self) -> Option<Instant> {
        let early_complete_at =
            self.early_complete_at.filter(|_| self.missing_publishers.all_confirmed());
        let at = early_complete_at.map_or(self.complete_at, |at| at.min(self.complete_at));
        (!self.complete).then_some(at)
    }

    /// False while the replica is warming.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The latest revision.
    pub(crate) fn tracker(&self) -> Tracker {
        Tracker { incarnation: self.incarnation, revision: self.revision }
    }

    /// How long it will still be warming.
    pub(crate) fn warming_left(&self, now: Instant) -> Duration {
        if self.complete { Duration::ZERO } else { self.complete_at.saturating_duration_since(now) }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Changes the limits. What exceeds a lower limit stays.
    pub(crate) fn limit(&mut self, paths_max: usize, watches_max: usize) {
        self.rules.paths_max = paths_max;
        self.rules.watches_max = watches_max;
    }

    /// How long a publisher may be silent.
    pub(crate) fn writer_ttl(&self) -> Duration {
        self.rules.writer_ttl
    }

    /// Visible publishers.
    pub(crate) fn publishers_len(&self) -> usize {
        self.publishers.len()
    }

    /// Hidden publishers whose paths are not all removed yet.
    pub(crate) fn hidden_len(&self) -> usize {
        self.publishers.hidden_len()
    }

    /// Paths with a visible publisher.
    pub(crate) fn published_len(&self) -> usize {
        self.paths.published_len()
    }

    /// Paths with a default.
    pub(crate) fn defaults_len(&self) -> usize {
        self.paths.defaults_len()
    }

    /// Makes `client` the writer of this publisher, in place of any earlier one. The publisher's
    /// registrations stay. Returns their digests, in as many buckets as `desired` or fewer, each a
    /// power of two. Only the buckets that differ are rewritten from here on: what is not written
    /// again in them before [`Directory::confirm`] is then removed.
    pub(crate) fn announce(
        &mut self,
        now: Instant,
        client: Client,
        info: &PublisherInfo,
        desired: &[Digest],
    ) -> Result<Vec<Digest>, RequestRefusal> {
        // Watchers have to receive the departure before the return.
        let same = |&(slot, _): &(Slot, Departure)| self.publishers[slot].info.id == info.id;
        if let Some(index) = self.unreported.iter().position(same)
            && let Some((slot, departure)) = self.unreported.remove(index)
        {
            self.report_departure(slot, departure);
        }
        let seen = self.publishers.len();
        let announced = self.publishers.announce(now, client, info, self.rules.publishers_max)?;
        self.returned(announced.slot);
        if announced.moved || self.publishers.len() != seen {
            self.missing_publishers.changed();
        }
        if announced.moved {
            self.revision += 1;
            self.watches.publisher_moved(announced.slot);
        }
        let registrations = &mut self.publishers[announced.slot].registrations;
        let answer = registrations.compare(desired);
        if !registrations.any_rewriting() {
            self.confirmed(announced.slot, true);
        }
        Ok(answer)
    }

    /// A message of this client arrived at `at`: its publisher is alive.
    pub(crate) fn record_activity(&mut self, client: Client, at: Instant) {
        self.publishers.record_activity(client, at);
    }

    /// The publisher that `client` writes for.
    pub(crate) fn writer(&self, client: Client) -> Result<Slot, RequestRefusal> {
        self.publishers.writer(client)
    }

    /// Applies one change for a publisher; idempotent. `hashes` are those of the path. A refusal is
    /// for people, and concerns this path only.
    pub(crate) fn write(
        &mut self,
        slot: Slot,
        change: Change,
        terms: &Terms,
        path: PathText<'_>,
        hashes: PathHashes,
    ) -> Result<(), String> {
        let path = path.check()?;
        let default = matches!(change, Change::PublishDefault | Change::UnpublishDefault);
        if !change.publishes() {
            if let Some(node) = self.paths.tree.find_by(hashes, path.as_bytes()) {
                self.unpublish(slot, Registration { node, default }, path);
            }
            return Ok(());
        }
        let terms = self.number_of(terms)?;
        self.publish(slot, (path, hashes), default, terms)
    }

    /// Applies one change on the default terms.
    #[cfg(test)]
    pub(crate) fn change(
        &mut self,
        slot: Slot,
        change: Change,
        path: &longshore_protocol::Path,
    ) -> Result<(), String> {
        self.write_text(slot, change, &Terms::default(), PathText::from(path))
    }

    /// [`Directory::write`] of a text that is not hashed yet.
    #[cfg(test)]
    pub(crate) fn write_text(
        &mut self,
        slot: Slot,
        change: Change,
        terms: &Terms,
        text: PathText<'_>,
    ) -> Result<(), String> {
        let [hashes, ..] = self.prefetch(std::iter::once(text));
        self.write(slot, change, terms, text, hashes)
    }

    /// Hashes the first [`PREFETCH_PATHS`] of these paths, and prefetches the memory for writing or
    /// resolving them: together they wait for memory as long as one.
    pub(crate) fn prefetch<'a>(
        &self,
        paths: impl Iterator<Item = PathText<'a>>,
    ) -> [PathHashes; PREFETCH_PATHS] {
        self.paths.tree.prefetch(paths.map(PathText::as_bytes))
    }

    fn number_of(&mut self, terms: &Terms) -> Result<TermsId, String> {
        let sets = &mut self.paths.sets;
        if let Some(number) = sets.terms_table.number(terms) {
            return Ok(number);
        }
        // Unused sets may be the only users of some terms.
        sets.collect();
        sets.terms_table.number(terms).ok_or_else(|| {
            format!(
                "the replica has reached its limit of {TERMS_MAX} different terms of publication"
            )
        })
    }

    fn publish(
        &mut self,
        slot: Slot,
        (path, hashes): (&str, PathHashes),
        default: bool,
        terms: TermsId,
    ) -> Result<(), String> {
        if path == "/" && !default {
            return Err(String::from("nothing can be published at the root; publish below it"));
        }
        let publisher = &mut self.publishers[slot];
        if !publisher.is_recorded && !is_reserved(path) {
            publisher.is_recorded = true;
            self.missing_publishers.changed();
        }
        let node = self.paths.tree.make(path, hashes);
        let registration = Registration { node, default };
        let set = self.paths.set(registration);
        let before = self.paths.sets.terms(set, slot);
        if before == Some(terms) {
            let registrations = &mut self.publishers[slot].registrations;
            if registrations.any_rewriting() {
                registrations.written_again(registration, KeyHash::of(path, default));
            }
            return Ok(());
        }
        if before.is_none()
            && let Err(refusal) = self.room_for(slot, registration, set)
        {
            self.paths.tree.prune(node);
            return Err(refusal);
        }
        let digest_entry = self.paths.digest_entry_of(path, default, terms);
        let had_queue = before.is_some_and(|before| self.paths.is_of_jobs(before));
        let has_queue = self.paths.is_of_jobs(terms);
        let moved = self.paths.register(
            &mut self.publishers,
            slot,
            registration,
            digest_entry,
            terms,
            before,
        );
        self.spent += moved / MOVED_PER_STEP;
        let jobs = (had_queue != has_queue).then_some((slot, has_queue));
        self.changed(registration, path, jobs);
        Ok(())
    }

    /// Whether one more publisher may register this.
    fn room_for(
        &self,
        slot: Slot,
        registration: Registration,
        set: sets::SetId,
    ) -> Result<(), String> {
        let publisher = &self.publishers[slot];
        if let Some(PathsQuota { limit, most }) = publisher.paths_quota
            && publisher.registrations.len() >= most
        {
            return Err(format!(
                "the publishers of its identity have {limit} paths here, the quota in the policy: \
                 publish fewer, or raise `registered_paths` of [[quota]]"
            ));
        }
        let paths_max = self.rules.paths_max;
        let nodes_max =
            paths_max.saturating_mul(NODES_PER_PATH_MAX).clamp(NODES_MIN, tree::NODES_MAX);
        if !self.paths.tree.is_registered(registration.node) {
            // Paths of hidden publishers do not count, but must not accumulate either.
            let full = self.paths.visible_len() >= paths_max
                || self.paths.tree.registered_len() >= 2 * paths_max;
            if full {
                return Err(format!("the replica has reached its limit of {paths_max} paths"));
            }
            if self.paths.tree.is_full() {
                return Err(String::from(
                    "the replica has reached its limit of 16 GiB of path segment names; \
                     publish fewer, and restart it",
                ));
            }
            if self.paths.tree.len() > nodes_max {
                return Err(format!(
                    "the replica's tree has reached its limit of {nodes_max} nodes; \
                     publish paths of fewer segments, or under fewer parents"
                ));
            }
        }
        let members = self.paths.sets.members(set);
        if members.len() >= PUBLISHERS_PER_PATH_MAX {
            let seen =
                members.iter().filter(|member| !self.publishers[member.slot].is_hidden()).count();
            if seen >= PUBLISHERS_PER_PATH_MAX || members.len() >= 2 * PUBLISHERS_PER_PATH_MAX {
                return Err(format!(
                    "the path has reached its limit of {PUBLISHERS_PER_PATH_MAX} publishers"
                ));
            }
        }
        Ok(())
    }

    fn unpublish(&mut self, slot: Slot, registration: Registration, path: &str) {
        if let Some(terms) = self.paths.sets.terms(self.paths.set(registration), slot) {
            let digest_entry = self.paths.digest_entry_of(path, registration.default, terms);
            self.publishers[slot].registrations.remove(registration, digest_entry);
            let jobs = self.paths.is_of_jobs(terms).then_some((slot, false));
            self.changed(registration, path, jobs);
            self.paths.unregister(&mut self.publishers, slot, registration);
        }
    }

    /// The visible state of a node changes. `jobs` is set if a publisher now has jobs there, or no
    /// longer has.
    fn changed(&mut self, registration: Registration, path: &str, jobs: Option<(Slot, bool)>) {
        if let Some((slot, holds)) = jobs {
            self.declare(slot, registration, holds);
        }
        self.spent += self.watches.changed(&self.paths.tree, registration, path, jobs);
        self.revision += 1;
        self.trackers.change(&self.paths.tree, registration.node, self.revision);
    }

    /// Removes what a publisher registered before its last announce and has not written since, in
    /// the buckets that differed: bucket by bucket, within `budget` steps. True when all is done.
    /// All calls between two announces share one `progress`.
    pub(crate) fn confirm(
        &mut self,
        slot: Slot,
        progress: &mut ConfirmProgress,
        budget: usize,
    ) -> bool {
        let mut steps = 0;
        while steps < budget {
            if let Some(registration) = progress.stale.pop() {
                if let Some(path) = self.paths.path(registration.node) {
                    self.unpublish(slot, registration, path.as_str());
                }
                steps += 1 + self.spent();
                continue;
            }
            let ConfirmProgress { next, stale } = progress;
            let Some(compared) = self.publishers[slot].registrations.stale(next, stale) else {
                self.confirmed(slot, false);
                return true;
            };
            steps += 1 + compared / MOVED_PER_STEP;
        }
        false
    }

    /// The publisher of `client` stops: it is hidden at once.
    pub(crate) fn clear(&mut self, client: Client) -> Result<(), RequestRefusal> {
        let slot = self.writer(client)?;
        let (info, registered) =
            (&self.publishers[slot].info, self.publishers[slot].registrations.len());
        if let Some(left_out) = self.hidden_log.admit(Instant::now()) {
            tracing::info!(
                publisher = ?info.name, id = %info.id, registered, left_out,
                "a publisher stops; hiding it"
            );
        }
        self.hide_publisher(slot, Departure::Stopped);
        self.report_hidden(HIDE_STEPS);
        Ok(())
    }

    /// Sends watchers the departures of hidden publishers: at least one, and more until `budget` is
    /// spent. Returns the cost.
    fn report_hidden(&mut self, budget: usize) -> usize {
        let mut spent = 0;
        while spent < budget
            && let Some((slot, departure)) = self.unreported.pop_front()
        {
            spent += self.report_departure(slot, departure);
        }
        spent
    }

    fn report_departure(&mut self, slot: Slot, departure: Departure) -> usize {
        let (info, registered) =
            (&self.publishers[slot].info, self.publishers[slot].registrations.len());
        if departure == Departure::Silent
            && let Some(left_out) = self.hidden_log.admit(Instant::now())
        {
            tracing::warn!(
                publisher = ?info.name, id = %info.id, registered, left_out,
                silent_for = ?self.rules.writer_ttl,
                "a publisher is silent; hiding it"
            );
        }
        1 + self.watches.hide(slot, info.id, departure)
    }

    /// Sends watchers departures, and removes the paths of hidden publishers: at most `budget`
    /// paths, fewer by the globs compared for them. True while there is more to do.
    pub(crate) fn sweep(&mut self, budget: usize) -> bool {
        let mut left = budget.saturating_sub(self.report_hidden(budget));
        while left > 0
            && self.unreported.is_empty()
            && let Some(slot) = self.publishers.next_hidden()
        {
            left -= 1;
            match self.publishers[slot].registrations.pop() {
                Some(registration) => {
                    if self.watches.len() > 0
                        && let Some(path) = self.paths.path(registration.node)
                    {
                        let tree = &self.paths.tree;
                        let cost = self.watches.changed(tree, registration, path.as_str(), None);
                        left = left.saturating_sub(cost);
                    }
                    self.paths.unregister(&mut self.publishers, slot, registration);
                }
                None => {
                    let info = &self.publishers[slot].info;
                    tracing::debug!(
                        publisher = ?info.name, id = %info.id,
                        "all paths of a hidden publisher are removed"
                    );
                    self.publishers.remove_hidden();
                }
            }
        }
        self.publishers.next_hidden().is_some()
    }

    /// From now on the client sees this part of the directory: its watches begin anew. The default
    /// is everything.
    pub(crate) fn set_scope(&mut self, client: Client, scope: Scope) {
        self.watches.set_scope(client, scope);
    }

    /// The client is gone. Its publisher's registrations stay until the publisher has been silent
    /// for too long.
    pub(crate) fn client_gone(&mut self, client: Client) {
        self.publishers.client_gone(client);
        self.watches.client_gone(client);
    }
}
