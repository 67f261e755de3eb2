//! What one replica lacks of what is wanted, as a few places in it: never a copy of it.

use std::collections::{HashMap, HashSet};

use longshore_protocol::limits::RESOLVER_BATCH_BYTES_MAX;
use longshore_protocol::messages::resolver::{Change, Digest, Group, KeyHash, PathTexts};
use longshore_protocol::{Path, Terms};

use crate::write_client::buckets::{Buckets, Entry, Key, PLACES, place};
use crate::write_client::changes::Changed;
use crate::write_client::terms::PublicationTerms;
use crate::write_client::wanted::{Extent, Wanted};

/// Most paths in one request, which one step puts together: half a millisecond where none of them
/// is in the cache.
pub(super) const WRITE_PATHS_MAX: usize = 1_024;
/// Refused keys beyond which they are compared by no more buckets than they fill themselves:
/// hashing them again is a step's work.
const REFUSED_FEW: usize = 4_096;

/// What a replica lacks.
#[derive(Debug)]
pub(super) struct Lacking {
    /// Of which changes it has been told: of all before this number.
    told: u64,
    /// The buckets that are being written again.
    rewriting: Option<Rewriting>,
    /// What it has refused, on those terms: left out of the digests, so that one such path does not
    /// make its bucket be written over and over.
    refused: Buckets,
    /// What is refused is tried again: from this place on.
    retrying: Option<u64>,
    /// Changes were forgotten before it was told of them: only a comparison shows which.
    pub(super) missed: bool,
    /// How many keys it may not have been told of beside those, because a link was lost, or digests
    /// differ.
    pub(super) unknown: usize,
}

#[derive(Debug)]
struct Rewriting {
    /// By how many bits of the hash both sides were compared.
    level: u32,
    /// One bit for each of those buckets: it differs.
    differ: Vec<u64>,
    /// What stands before this place is written.
    at: u64,
    /// About how many keys are left.
    left: usize,
}

/// What one request says, in order, and the hashes of all its paths.
#[derive(Default, Debug)]
pub(super) struct Batch {
    pub(super) groups: Vec<Group>,
    pub(super) keys: Vec<KeyHash>,
}

impl Lacking {
    pub(super) fn new() -> Lacking {
        Lacking {
            told: 0,
            rewriting: None,
            refused: Buckets::default(),
            retrying: None,
            missed: false,
            unknown: 0,
        }
    }

    /// The digests of what is wanted, but for what is refused.
    pub(super) fn digests(&self, wanted: &Wanted, level: u32) -> Vec<Digest> {
        let mut digests = wanted.keys().digests(level);
        if self.refused.len() > 0 {
            for (digest, refused) in digests.iter_mut().zip(self.refused.digests(level)) {
                digest.part(refused);
            }
        }
        digests
    }

    /// By how many bits of the hash to compare.
    pub(super) fn level(&self, wanted: &Wanted) -> u32 {
        let level = wanted.keys().level();
        if self.refused.len() <= REFUSED_FEW { level } else { level.min(self.refused.level()) }
    }

    /// The replica was told of all changes before that number, or need not be.
    pub(super) fn told_up_to(&mut self, number: u64) {
        self.told = self.told.max(number);
    }

    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// The buckets that differ are to be written again; false when none does. Both sides' digests
    /// are of as many buckets as the side that has fewer can tell.
    pub(super) fn rewrite(&mut self, wanted: &Wanted, own: &[Digest], held: &[Digest]) -> bool {
        let buckets = if held.len().is_power_of_two() { held.len().min(own.len()) } else { 1 };
        let (own, held) = (Digest::fold(own, buckets), Digest::fold(held, buckets));
        let mut differ = vec![0u64; buckets.div_ceil(64)];
        let (mut any, mut left) = (false, 0);
        for (bucket, digest) in own.iter().enumerate() {
            if held.get(bucket) != Some(digest) {
                differ[bucket / 64] |= 1 << (bucket % 64);
                any = true;
                // What is refused may be counted out of what is no longer wanted: then it is no
                // number of keys.
                left += usize::try_from(digest.count).unwrap_or(0).min(wanted.keys().len());
            }
        }
        let left = left.min(wanted.keys().len());
        self.rewriting = any.then(|| Rewriting { level: buckets.ilog2(), differ, at: 0, left });
        any
    }

    /// What was refused may fit now.
    pub(super) fn retry(&mut self) {
        self.retrying = (self.refused.len() > 0).then_some(0);
    }

    /// The link is lost: a comparison shows what of this is needed still.
    pub(super) fn interrupted(&mut self) {
        if let Some(rewriting) = self.rewriting.take() {
            self.unknown += rewriting.left;
        }
        self.retrying = None;
    }

    /// The replica refuses a key. False when it was known to.
    pub(super) fn refuse(&mut self, hash: KeyHash, key: Key, terms: PublicationTerms) -> bool {
        self.refused.insert(hash, key, terms).is_none()
    }

    /// How many keys it has refused.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    #[cfg(test)]
    pub(super) fn has_refused(&self, hash: KeyHash) -> bool {
        self.refused.by_hash(hash).is_some()
    }

    /// About how many keys it has not been told of; at least 1 while it may lack any. `by_change`:
    /// it is told of changes, one by one, and not compared with first.
    pub(super) fn len(&self, extent: Extent, by_change: bool) -> usize {
        let untold = usize::try_from(extent.changes.saturating_sub(self.told));
        let left = self.rewriting.as_ref().map_or(0, |rewriting| rewriting.left);
        let lacking = untold.unwrap_or(usize::MAX).saturating_add(left + self.unknown);
        // However often they have changed, there are no more keys than are wanted, or stand in a
        // change that it will be told of.
        let kept = extent.changes.saturating_sub(extent.kept_from.max(self.told));
        let kept = if by_change { usize::try_from(kept).unwrap_or(usize::MAX) } else { 0 };
        lacking.min(extent.keys.saturating_add(kept)).max(usize::from(self.may_lack(extent)))
    }

    /// Whether there is anything that it may not have been told of, or not in vain. What of that is
    /// on its way does not count.
    pub(super) fn may_lack(&self, extent: Extent) -> bool {
        self.any(extent) || self.missed || self.unknown > 0
    }

    /// Whether there is anything to write.
    pub(super) fn any(&self, extent: Extent) -> bool {
        self.told < extent.changes || self.rewriting.is_some() || self.retrying.is_some()
    }

    /// Digests of all that is wanted are sent: the answer shows what was missed, and until then it
    /// is unknown.
    pub(super) fn is_compared(&mut self) {
        if std::mem::take(&mut self.missed) {
            self.unknown = self.unknown.max(1);
        }
    }

    /// Puts the next request together: what changed comes first. None when there is nothing to say
    /// for now; there may be some more to look at, as [`Lacking::any`] tells.
    pub(super) fn next(&mut self, wanted: &Wanted) -> Option<Batch> {
        let mut filling = Filling::default();
        self.changed(wanted, &mut filling);
        self.rewritten(wanted, &mut filling);
        self.retried(wanted, &mut filling);
        filling.finish()
    }

    fn changed(&mut self, wanted: &Wanted, filling: &mut Filling) {
        let changes = wanted.changes();
        if self.told < changes.start() {
            self.missed = true;
            self.told = changes.end();
        }
        let most = self.told + WRITE_PATHS_MAX as u64;
        while self.told < most
            && let Some(change) = changes.get(self.told)
        {
            let Changed { key, terms } = change;
            let hash = key.hash();
            let by_now = match changes.is_last(self.told) {
                true => terms.as_ref(),
                false => wanted.keys().get(hash, key),
            };
            // One that is wanted no longer, or again, is told of with the later change; what is to
            // come with its bucket is not said twice.
            let later = by_now.is_some() != terms.is_some();
            let reaches = |all: &Rewriting| all.reaches(hash);
            let comes = by_now.is_some() && self.rewriting.as_ref().is_some_and(reaches);
            if !later && !comes {
                let sort = sort(key.default, by_now);
                if !filling.has_room(&key.path, sort) {
                    return;
                }
                if self.refused.len() > 0 {
                    self.refused.remove(hash, key);
                }
                filling.add(hash, &key.path, sort, by_now);
            }
            self.told += 1;
        }
    }

    fn rewritten(&mut self, wanted: &Wanted, filling: &mut Filling) {
        let Some(rewriting) = &mut self.rewriting else { return };
        while let Some(at) = rewriting.skip() {
            let (keys, next) = wanted.keys().keys_at(at);
            debug_assert!(next <= rewriting.end(), "compared by more buckets than there are");
            let own = |default, entry: &Entry| sort(default, Some(&entry.terms));
            let Some(end) = filling.reach(wanted.keys(), at, next, own) else { return };
            self.refused.clear(at, end);
            for (default, entry) in keys.filter(|(_, entry)| entry.stands_in(at, end)) {
                rewriting.left = rewriting.left.saturating_sub(1);
                let terms = Some(&entry.terms);
                filling.add(entry.hash, &entry.path, sort(default, terms), terms);
            }
            rewriting.at = end;
        }
        self.rewriting = None;
    }

    fn retried(&mut self, wanted: &Wanted, filling: &mut Filling) {
        while let Some(at) = self.retrying {
            // They are written as they are wanted by now, if at all.
            let terms = |hash| wanted.keys().by_hash(hash).map(|(_, entry)| &entry.terms);
            let by_now = |default, entry: &Entry| sort(default, terms(entry.hash));
            let (keys, next) = self.refused.keys_at(at);
            let Some(end) = filling.reach(&self.refused, at, next, by_now) else { return };
            for (default, entry) in keys.filter(|(_, entry)| entry.stands_in(at, end)) {
                let terms = terms(entry.hash);
                filling.add(entry.hash, &entry.path, sort(default, terms), terms);
            }
            self.refused.clear(at, end);
            self.retrying = (end < PLACES && self.refused.len() > 0).then_some(end);
        }
    }
}

impl Rewriting {
    /// Goes to the next bucket that differs; none when there is none.
    fn skip(&mut self) -> Option<u64> {
        while self.at < PLACES {
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

    /// Where the bucket that it is in ends.
    fn end(&self) -> u64 {
        ((self.at >> (32 - self.level)) + 1) << (32 - self.level)
    }

    /// It will come by that hash.
    fn reaches(&self, hash: KeyHash) -> bool {
        place(hash) >= self.at && self.differs(hash.bucket(1 << self.level))
    }
}

/// A request that is being put together.
#[derive(Default)]
struct Filling {
    groups: Vec<(Group, Vec<KeyHash>)>,
    by_sort: HashMap<Sort, usize>,
    last: Option<(Sort, usize)>,
    count: usize,
    /// At most so many once encoded.
    bytes: usize,
}

/// What all paths of a group have in common: the change, and the digest of its terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Sort {
    change: Change,
    digest: u64,
    /// What a group takes for itself once encoded, at most.
    bytes: usize,
}

/// Most bytes of a group's head but for its terms.
const GROUP_BYTES: usize = 16;
/// Most bytes that stand before a path.
const PATH_HEAD_BYTES: usize = 3;

fn sort(default: bool, terms: Option<&PublicationTerms>) -> Sort {
    let change = match (terms.is_some(), default) {
        (true, false) => Change::Publish,
        (false, false) => Change::Unpublish,
        (true, true) => Change::PublishDefault,
        (false, true) => Change::UnpublishDefault,
    };
    let digest = terms.map_or(0, PublicationTerms::digest);
    let bytes = GROUP_BYTES + terms.map_or(0, PublicationTerms::bytes);
    Sort { change, digest, bytes }
}

impl Filling {
    /// Whether one more fits in. Whatever comes first does: a path and its terms are some 10 KiB.
    fn has_room(&self, path: &Path, sort: Sort) -> bool {
        let is_new =
            self.last.is_none_or(|(last, _)| last != sort) && !self.by_sort.contains_key(&sort);
        let own = PATH_HEAD_BYTES + path.as_str().len() + if is_new { sort.bytes } else { 0 };
        let fits = self.count < WRITE_PATHS_MAX && self.bytes + own <= RESOLVER_BATCH_BYTES_MAX;
        self.count == 0 || fits
    }

    /// Whether all these fit in.
    fn holds<'a>(&self, keys: impl Iterator<Item = (&'a Path, Sort)>) -> bool {
        let (mut count, mut bytes) = (self.count, self.bytes);
        let mut last = self.last.map(|(sort, _)| sort);
        let mut new = HashSet::new();
        for (path, sort) in keys {
            count += 1;
            bytes += PATH_HEAD_BYTES + path.as_str().len();
            if last != Some(sort) && !self.by_sort.contains_key(&sort) && new.insert(sort) {
                bytes += sort.bytes;
            }
            last = Some(sort);
        }
        count <= WRITE_PATHS_MAX && bytes <= RESOLVER_BATCH_BYTES_MAX
    }

    /// Up to which place those fit in that stand from `at` up to `end`, all in one bucket. None if
    /// they have to wait for the next request: of that they come first, and then as many as it
    /// holds.
    fn reach(
        &self,
        keys: &Buckets,
        at: u64,
        mut end: u64,
        sort: impl Fn(bool, &Entry) -> Sort,
    ) -> Option<u64> {
        loop {
            let (all, _) = keys.keys_at(at);
            let those = all.filter(|(_, entry)| entry.stands_in(at, end));
            if self.holds(those.map(|(default, entry)| (&entry.path, sort(default, entry)))) {
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

    /// Adds one of that sort, which its terms are.
    fn add(&mut self, hash: KeyHash, path: &Path, sort: Sort, terms: Option<&PublicationTerms>) {
        let group = match self.last.filter(|(last, _)| *last == sort) {
            Some((_, group)) => group,
            None => *self.by_sort.entry(sort).or_insert_with(|| {
                let terms: Terms = terms.map(|terms| (**terms).clone()).unwrap_or_default();
                let (change, paths) = (sort.change, PathTexts::default());
                self.groups.push((Group { change, terms, paths }, Vec::new()));
                self.bytes += sort.bytes;
                self.groups.len() - 1
            }),
        };
        self.last = Some((sort, group));
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
