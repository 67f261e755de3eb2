//! The changes that one replica still needs, as positions in the desired state: never a copy of it.

use std::collections::{HashMap, HashSet};

use longshore_protocol::limits::RESOLVER_BATCH_BYTES_MAX;
use longshore_protocol::messages::resolver::{Change, Digest, Group, KeyHash, PathTexts};
use longshore_protocol::{Path, Terms};

use crate::write_client::buckets::{Buckets, Entry, Key, POSITIONS, position};
use crate::write_client::change_log::KeyChange;
use crate::write_client::desired_state::{DesiredState, StateSummary};
use crate::write_client::terms::CheckedTerms;

/// Most paths in one request, which one step builds: half a millisecond if none of them is in the
/// cache.
pub(super) const WRITE_PATHS_MAX: usize = 1_024;
/// Above so many refused keys they are compared by no more buckets than they fill themselves:
/// hashing them again must fit into one step.
const REFUSED_FEW: usize = 4_096;

/// The changes that a replica still needs.
#[derive(Debug)]
pub(super) struct PendingChanges {
    /// All changes before this number were sent.
    sent_up_to: u64,
    /// The buckets that are being rewritten.
    rewriting: Option<Rewriting>,
    /// The keys that it has refused, with those terms: excluded from the digests, so that one such
    /// path does not cause its bucket to be rewritten over and over.
    refused: Buckets,
    /// Refused keys are sent again, from this position on.
    retrying: Option<u64>,
    /// Changes were dropped before they were sent: only a comparison shows which.
    pub(super) missed: bool,
    /// How many further keys it may lack, because a link was lost, or digests differ.
    pub(super) unknown: usize,
}

#[derive(Debug)]
struct Rewriting {
    /// The bits of the hash at which both sides were compared.
    level: u32,
    /// One bit for each of those buckets: set if it differs.
    differ: Vec<u64>,
    /// Everything before this position is written.
    at: u64,
    /// The approximate number of keys left.
    left: usize,
}

/// The groups of one request, in order, and the hashes of all its paths.
#[derive(Default, Debug)]
pub(super) struct Batch {
    pub(super) groups: Vec<Group>,
    pub(super) keys: Vec<KeyHash>,
}

impl PendingChanges {
    pub(super) fn new() -> PendingChanges {
        PendingChanges {
            sent_up_to: 0,
            rewriting: None,
            refused: Buckets::default(),
            retrying: None,
            missed: false,
            unknown: 0,
        }
    }

    /// The digests of the desired state, without the refused keys.
    pub(super) fn digests(&self, desired: &DesiredState, level: u32) -> Vec<Digest> {
        let mut digests = desired.keys().digests(level);
        if self.refused.len() > 0 {
            for (digest, refused) in digests.iter_mut().zip(self.refused.digests(level)) {
                digest.part(refused);
            }
        }
        digests
    }

    /// The bits of the hash at which to compare.
    pub(super) fn level(&self, desired: &DesiredState) -> u32 {
        let level = desired.keys().level();
        if self.refused.len() <= REFUSED_FEW { level } else { level.min(self.refused.level()) }
    }

    /// The replica was sent all changes before this number, or does not need them.
    pub(super) fn set_sent_up_to(&mut self, number: u64) {
        self.sent_up_to = self.sent_up_to.max(number);
    }

    pub(super) fn sent_up_to(&self) -> u64 {
        self.sent_up_to
    }

    /// Starts to rewrite the buckets that differ; false if none does. The digests are compared at
    /// the number of buckets of the side that has fewer.
    pub(super) fn rewrite(
        &mut self,
        desired: &DesiredState,
        own: &[Digest],
        theirs: &[Digest],
    ) -> bool {
        let buckets = if theirs.len().is_power_of_two() { theirs.len().min(own.len()) } else { 1 };
        let (own, theirs) = (Digest::fold(own, buckets), Digest::fold(theirs, buckets));
        let mut differ = vec![0u64; buckets.div_ceil(64)];
        let (mut any, mut left) = (false, 0);
        for (bucket, digest) in own.iter().enumerate() {
            if theirs.get(bucket) != Some(digest) {
                differ[bucket / 64] |= 1 << (bucket % 64);
                any = true;
                // A digest without refused keys that are no longer desired may have a meaningless
                // count.
                left += usize::try_from(digest.count).unwrap_or(0).min(desired.keys().len());
            }
        }
        let left = left.min(desired.keys().len());
        self.rewriting = any.then(|| Rewriting { level: buckets.ilog2(), differ, at: 0, left });
        any
    }

    /// Sends refused keys again: they may be accepted now.
    pub(super) fn retry(&mut self) {
        self.retrying = (self.refused.len() > 0).then_some(0);
    }

    /// The link is lost: a comparison shows what is still needed.
    pub(super) fn link_lost(&mut self) {
        if let Some(rewriting) = self.rewriting.take() {
            self.unknown += rewriting.left;
        }
        self.retrying = None;
    }

    /// The replica refuses a key. False if it had refused it before.
    pub(super) fn refuse(&mut self, hash: KeyHash, key: Key, terms: CheckedTerms) -> bool {
        self.refused.insert(hash, key, terms).is_none()
    }

    /// The number of refused keys.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    #[cfg(test)]
    pub(super) fn has_refused(&self, hash: KeyHash) -> bool {
        self.refused.by_hash(hash).is_some()
    }

    /// About how many keys were not sent yet; at least 1 while the replica may lack any. With
    /// `by_change` changes are sent one by one, without a comparison first.
    pub(super) fn len(&self, summary: StateSummary, by_change: bool) -> usize {
        let unsent = usize::try_from(summary.changes.saturating_sub(self.sent_up_to));
        let left = self.rewriting.as_ref().map_or(0, |rewriting| rewriting.left);
        let pending = unsent.unwrap_or(usize::MAX).saturating_add(left + self.unknown);
        // However often keys change, there are no more of them than are desired, or are in changes
        // that will be sent.
        let retained = summary.changes.saturating_sub(summary.retained_from.max(self.sent_up_to));
        let retained = if by_change { usize::try_from(retained).unwrap_or(usize::MAX) } else { 0 };
        pending
            .min(summary.keys.saturating_add(retained))
            .max(usize::from(self.may_be_incomplete(summary)))
    }

    /// Whether the replica may lack anything, apart from what is in flight.
    pub(super) fn may_be_incomplete(&self, summary: StateSummary) -> bool {
        self.any(summary) || self.missed || self.unknown > 0
    }

    /// Whether there is anything to write.
    pub(super) fn any(&self, summary: StateSummary) -> bool {
        self.sent_up_to < summary.changes || self.rewriting.is_some() || self.retrying.is_some()
    }

    /// All digests were sent: the answer shows what was missed, and until then it is unknown.
    pub(super) fn comparison_sent(&mut self) {
        if std::mem::take(&mut self.missed) {
            self.unknown = self.unknown.max(1);
        }
    }

    /// Builds the next request, beginning with changes. `None` if there is nothing to send now;
    /// more may follow, see [`PendingChanges::any`].
    pub(super) fn next(&mut self, desired: &DesiredState) -> Option<Batch> {
        let mut builder = BatchBuilder::default();
        self.add_changed(desired, &mut builder);
        self.add_rewritten(desired, &mut builder);
        self.add_retried(desired, &mut builder);
        builder.finish()
    }

    fn add_changed(&mut self, desired: &DesiredState, builder: &mut BatchBuilder) {
        let changes = desired.changes();
        if self.sent_up_to < changes.start() {
            self.missed = true;
            self.sent_up_to = changes.end();
        }
        let most = self.sent_up_to + WRITE_PATHS_MAX as u64;
        while self.sent_up_to < most
            && let Some(change) = changes.get(self.sent_up_to)
        {
            let KeyChange { key, terms } = change;
            let hash = key.hash();
            let current = match changes.is_last(self.sent_up_to) {
                true => terms.as_ref(),
                false => desired.keys().get(hash, key),
            };
            // A key that is removed or added again is sent with its later change; a key whose
            // bucket will be rewritten is not sent twice.
            let changes_again = current.is_some() != terms.is_some();
            let will_write = |all: &Rewriting| all.will_write(hash);
            let will_be_rewritten =
                current.is_some() && self.rewriting.as_ref().is_some_and(will_write);
            if !changes_again && !will_be_rewritten {
                let group_key = group_key(key.default, current);
                if !builder.has_room(&key.path, group_key) {
                    return;
                }
                if self.refused.len() > 0 {
                    self.refused.remove(hash, key);
                }
                builder.add(hash, &key.path, group_key, current);
            }
            self.sent_up_to += 1;
        }
    }

    fn add_rewritten(&mut self, desired: &DesiredState, builder: &mut BatchBuilder) {
        let Some(rewriting) = &mut self.rewriting else { return };
        while let Some(at) = rewriting.next_differing() {
            let (keys, next) = desired.keys().keys_at(at);
            debug_assert!(next <= rewriting.end(), "compared by more buckets than there are");
            let own = |default, entry: &Entry| group_key(default, Some(&entry.terms));
            let Some(end) = builder.fitting_end(desired.keys(), at, next, own) else { return };
            self.refused.clear(at, end);
            for (default, entry) in keys.filter(|(_, entry)| entry.is_within(at, end)) {
                rewriting.left = rewriting.left.saturating_sub(1);
                let terms = Some(&entry.terms);
                builder.add(entry.hash, &entry.path, group_key(default, terms), terms);
            }
            rewriting.at = end;
        }
        self.rewriting = None;
    }

    fn add_retried(&mut self, desired: &DesiredState, builder: &mut BatchBuilder) {
        while let Some(at) = self.retrying {
            // They are sent with their current terms, if still desired.
            let terms = |hash| desired.keys().by_hash(hash).map(|(_, entry)| &entry.terms);
            let current = |default, entry: &Entry| group_key(default, terms(entry.hash));
            let (keys, next) = self.refused.keys_at(at);
            let Some(end) = builder.fitting_end(&self.refused, at, next, current) else { return };
            for (default, entry) in keys.filter(|(_, entry)| entry.is_within(at, end)) {
                let terms = terms(entry.hash);
                builder.add(entry.hash, &entry.path, group_key(default, terms), terms);
            }
            self.refused.clear(at, end);
            self.retrying = (end < POSITIONS && self.refused.len() > 0).then_some(end);
        }
    }
}

impl Rewriting {
    /// Moves to the next bucket that differs; `None` if there is none.
    fn next_differing(&mut self) -> Option<u64> {
        while self.at < POSITIONS {
            let bucket = (self.at >> (32 - self.level)) as usize;
            if self.differs(bucket) {
                return Some(self.at);
            }
            self.at = self.end();
        }
        None
    }

    fn differs(&self, bucket: usize) -> bool {
        self.differ[bucket / 64] & 1 << (bucket % 64) != 0
    }

    /// The end of the current bucket.
    fn end(&self) -> u64 {
        ((self.at >> (32 - self.level)) + 1) << (32 - self.level)
    }

    /// Whether the rewriting will write this hash.
    fn will_write(&self, hash: KeyHash) -> bool {
        position(hash) >= self.at && self.differs(hash.bucket(1 << self.level))
    }
}

/// Builds a request.
#[derive(Default)]
struct BatchBuilder {
    groups: Vec<(Group, Vec<KeyHash>)>,
    by_key: HashMap<GroupKey, usize>,
    last: Option<(GroupKey, usize)>,
    count: usize,
    /// An upper bound of its encoded bytes.
    bytes: usize,
}

/// The properties of a group: the change, and the digest of its terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct GroupKey {
    change: Change,
    digest: u64,
    /// An upper bound of the encoded bytes of a group without paths.
    bytes: usize,
}

/// Most bytes of a group's head without its terms.
const GROUP_BYTES: usize = 16;
/// Most bytes before a path.
const PATH_HEAD_BYTES: usize = 3;

fn group_key(default: bool, terms: Option<&CheckedTerms>) -> GroupKey {
    let change = match (terms.is_some(), default) {
        (true, false) => Change::Publish,
        (false, false) => Change::Unpublish,
        (true, true) => Change::PublishDefault,
        (false, true) => Change::UnpublishDefault,
    };
    let digest = terms.map_or(0, CheckedTerms::digest);
    let bytes = GROUP_BYTES + terms.map_or(0, CheckedTerms::bytes);
    GroupKey { change, digest, bytes }
}

impl BatchBuilder {
    /// Whether one more path fits. The first always does: a path and its terms are some 10 KiB.
    fn has_room(&self, path: &Path, group_key: GroupKey) -> bool {
        let is_new = self.last.is_none_or(|(last, _)| last != group_key)
            && !self.by_key.contains_key(&group_key);
        let own = PATH_HEAD_BYTES + path.as_str().len() + if is_new { group_key.bytes } else { 0 };
        let fits = self.count < WRITE_PATHS_MAX && self.bytes + own <= RESOLVER_BATCH_BYTES_MAX;
        self.count == 0 || fits
    }

    /// Whether all these paths fit.
    fn has_room_for_all<'a>(&self, keys: impl Iterator<Item = (&'a Path, GroupKey)>) -> bool {
        let (mut count, mut bytes) = (self.count, self.bytes);
        let mut last = self.last.map(|(group_key, _)| group_key);
        let mut new = HashSet::new();
        for (path, group_key) in keys {
            count += 1;
            bytes += PATH_HEAD_BYTES + path.as_str().len();
            if last != Some(group_key)
                && !self.by_key.contains_key(&group_key)
                && new.insert(group_key)
            {
                bytes += group_key.bytes;
            }
            last = Some(group_key);
        }
        count <= WRITE_PATHS_MAX && bytes <= RESOLVER_BATCH_BYTES_MAX
    }

    /// The end of the positions from `at` on, at most `end` and all in one bucket, whose keys fit.
    /// `None` if they have to wait for the next request, in which they come first.
    fn fitting_end(
        &self,
        keys: &Buckets,
        at: u64,
        mut end: u64,
        group_key: impl Fn(bool, &Entry) -> GroupKey,
    ) -> Option<u64> {
        loop {
            let (all, _) = keys.keys_at(at);
            let those = all.filter(|(_, entry)| entry.is_within(at, end));
            if self.has_room_for_all(
                those.map(|(default, entry)| (&entry.path, group_key(default, entry))),
            ) {
                return Some(end);
            }
            if self.count > 0 {
                return None;
            }
            if end == at + 1 {
                return Some(end);
            }
            end = at + (end - at) / 2;
        }
    }

    /// Adds a path to the group of its key.
    fn add(
        &mut self,
        hash: KeyHash,
        path: &Path,
        group_key: GroupKey,
        terms: Option<&CheckedTerms>,
    ) {
        let group = match self.last.filter(|(last, _)| *last == group_key) {
            Some((_, group)) => group,
            None => *self.by_key.entry(group_key).or_insert_with(|| {
                let terms: Terms = terms.map(|terms| (**terms).clone()).unwrap_or_default();
                let (change, paths) = (group_key.change, PathTexts::default());
                self.groups.push((Group { change, terms, paths }, Vec::new()));
                self.bytes += group_key.bytes;
                self.groups.len() - 1
            }),
        };
        self.last = Some((group_key, group));
        self.count += 1;
        self.bytes += PATH_HEAD_BYTES + path.as_str().len();
        let (group, keys) = &mut self.groups[group];
        group.paths.push(path.into());
        keys.push(hash);
    }

    fn finish(self) -> Option<Batch> {
        let mut batch = Batch { groups: Vec::with_capacity(self.groups.len()), keys: Vec::new() };
        for (group, keys) in self.groups {
            batch.groups.push(group);
            if batch.keys.is_empty() { batch.keys = keys } else { batch.keys.extend(keys) }
        }
        (self.count > 0).then_some(batch)
    }
}
