//! What one replica lacks of what is wanted, as a few places in it: never a copy of it.

use std::collections::HashMap;

use longshore_protocol::limits::RESOLVER_BATCH_BYTES_MAX;
use longshore_protocol::messages::resolver::{Change, Digest, Group, KeyHash, PathTexts};
use longshore_protocol::{Path, Terms};

use crate::write_client::buckets::{Buckets, Key, PLACES, place};
use crate::write_client::changes::Changed;
use crate::write_client::terms::PublicationTerms;
use crate::write_client::wanted::{Extent, Wanted};

/// Most paths in one request, which one step puts together: half a millisecond where none of them is in the cache.
pub(super) const WRITE_PATHS_MAX: usize = 1_024;
/// Refused keys beyond which they are compared by no more buckets than they fill themselves: hashing them again is a step's work.
const REFUSED_FEW: usize = 4_096;

/// What a replica lacks.
#[derive(Debug)]
pub(super) struct Lacking {
    /// Of which changes it has been told: of all before this number.
    told: u64,
    /// The buckets that are being written again.
    rewriting: Option<Rewriting>,
    /// What it has refused, on those terms: left out of the digests, so that one such path does not make its bucket be written over and over.
    refused: Buckets,
    /// What is refused is tried again: from this place on.
    retrying: Option<u64>,
    /// Changes were forgotten before it was told of them: only a comparison shows which.
    pub(super) missed: bool,
    /// How many keys it may not have been told of beside those, because a link was lost, or digests differ.
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

    /// The buckets that differ are to be written again; false when none does. Both sides' digests are of as many buckets as the side
    /// that has fewer can tell.
    pub(super) fn rewrite(&mut self, wanted: &Wanted, own: &[Digest], held: &[Digest]) -> bool {
        let buckets = if held.len().is_power_of_two() { held.len().min(own.len()) } else { 1 };
        let (own, held) = (Digest::fold(own, buckets), Digest::fold(held, buckets));
        let mut differ = vec![0u64; buckets.div_ceil(64)];
        let (mut any, mut left) = (false, 0);
        for (bucket, digest) in own.iter().enumerate() {
            if held.get(bucket) != Some(digest) {
                differ[bucket / 64] |= 1 << (bucket % 64);
                any = true;
                // What is refused may be counted out of what is no longer wanted: then it is no number of keys.
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

    /// About how many keys it has not been told of; at least 1 while it may lack any. `by_change`: it is told of changes, one by one, and
    /// not compared with first.
    pub(super) fn len(&self, extent: Extent, by_change: bool) -> usize {
        let untold = usize::try_from(extent.changes.saturating_sub(self.told));
        let left = self.rewriting.as_ref().map_or(0, |rewriting| rewriting.left);
        let lacking = untold.unwrap_or(usize::MAX).saturating_add(left + self.unknown);
        // However often they have changed, there are no more keys than are wanted, or stand in a change that it will be told of.
        let kept = extent.changes.saturating_sub(extent.kept_from.max(self.told));
        let kept = if by_change { usize::try_from(kept).unwrap_or(usize::MAX) } else { 0 };
        lacking.min(extent.keys.saturating_add(kept)).max(usize::from(self.may_lack(extent)))
    }

    /// Whether there is anything that it may not have been told of, or not in vain. What of that is on its way does not count.
    pub(super) fn may_lack(&self, extent: Extent) -> bool {
        self.any(extent) || self.missed || self.unknown > 0
    }

    /// Whether there is anything to write.
    pub(super) fn any(&self, extent: Extent) -> bool {
        self.told < extent.changes || self.rewriting.is_some() || self.retrying.is_some()
    }

    /// Digests of all that is wanted are sent: the answer shows what was missed, and until then it is unknown.
    pub(super) fn is_compared(&mut self) {
        if std::mem::take(&mut self.missed) {
            self.unknown = self.unknown.max(1);
        }
    }

    /// Puts the next request together: what changed comes first. None when there is nothing to say for now; there may be some more
    /// to look at, as [`Lacking::any`] tells.
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
            // One that is wanted no longer, or again, is told of with the later change.
            match change {
                Changed::Wanted(hash) => {
                    if let Some((default, entry)) = wanted.keys().by_hash(*hash) {
                        // What is to come with its bucket is not said twice.
                        let comes = self.rewriting.as_ref().is_some_and(|all| all.reaches(*hash));
                        if !comes {
                            if !filling.has_room(1, entry.path.as_str().len()) {
                                return;
                            }
                            self.refused.remove_hash(*hash);
                            filling.add(*hash, &entry.path, default, Some(&entry.terms));
                        }
                    }
                }
                Changed::Unwanted(key) => {
                    let hash = key.hash();
                    if wanted.keys().get(hash, key).is_none() {
                        if !filling.has_room(1, key.path.as_str().len()) {
                            return;
                        }
                        self.refused.remove(hash, key);
                        filling.add(hash, &key.path, key.default, None);
                    }
                }
            }
            self.told += 1;
        }
    }

    fn rewritten(&mut self, wanted: &Wanted, filling: &mut Filling) {
        let Some(rewriting) = &mut self.rewriting else { return };
        while let Some(at) = rewriting.skip() {
            let (keys, next) = wanted.keys().keys_at(at);
            debug_assert!(next <= rewriting.end(), "compared by more buckets than there are");
            if !filling.has_room(keys.len(), wanted.keys().bytes_at(at)) {
                return;
            }
            self.refused.clear(at, next);
            rewriting.left = rewriting.left.saturating_sub(keys.len());
            for (default, entry) in keys {
                filling.add(entry.hash, &entry.path, default, Some(&entry.terms));
            }
            rewriting.at = next;
        }
        self.rewriting = None;
    }

    fn retried(&mut self, wanted: &Wanted, filling: &mut Filling) {
        while let Some(at) = self.retrying {
            let (len, bytes) = (self.refused.keys_at(at).0.len(), self.refused.bytes_at(at));
            if !filling.has_room(len, bytes) {
                return;
            }
            let (keys, next) = self.refused.take_at(at);
            for (default, entry) in keys {
                let hash = entry.hash;
                let key = Key { path: entry.path, default };
                let terms = wanted.keys().get(hash, &key);
                filling.add(hash, &key.path, default, terms);
            }
            self.retrying = (next < PLACES && self.refused.len() > 0).then_some(next);
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
    /// The group of a change and the digest of its terms.
    by_terms: HashMap<(u8, u64), usize>,
    last: Option<((u8, u64), usize)>,
    count: usize,
    bytes: usize,
}

impl Filling {
    /// Whether so many keys, of so many bytes, fit in. Whatever comes first does: a replica takes more than one of these requests holds.
    fn has_room(&self, keys: usize, bytes: usize) -> bool {
        self.count == 0
            || self.count + keys <= WRITE_PATHS_MAX
                && self.bytes + bytes <= RESOLVER_BATCH_BYTES_MAX
    }

    fn add(&mut self, hash: KeyHash, path: &Path, default: bool, terms: Option<&PublicationTerms>) {
        let change = match (terms.is_some(), default) {
            (true, false) => Change::Publish,
            (false, false) => Change::Unpublish,
            (true, true) => Change::PublishDefault,
            (false, true) => Change::UnpublishDefault,
        };
        let sort = (change.code(), terms.map_or(0, PublicationTerms::digest));
        let group = match self.last.filter(|(last, _)| *last == sort) {
            Some((_, group)) => group,
            None => *self.by_terms.entry(sort).or_insert_with(|| {
                let terms: Terms = terms.map(|terms| (**terms).clone()).unwrap_or_default();
                self.groups
                    .push((Group { change, terms, paths: PathTexts::default() }, Vec::new()));
                self.groups.len() - 1
            }),
        };
        self.last = Some((sort, group));
        self.count += 1;
        self.bytes += path.as_str().len();
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
