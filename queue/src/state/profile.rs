//! Job options and keys, each combination stored once: a row stores a number.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use longshore_protocol::{Due, JobKeys, JobOptions};

use super::State;
use super::chunks::Shared;
use super::key_table::{INDEX_PARTS, part};
use super::row::NONE;
use super::slab::Slab;
use super::slot_index::SlotIndex;

/// The number of the default options, which always exists.
pub(super) const DEFAULT: u32 = 0;

/// The numbers of what relates a job to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct KeyNumbers {
    /// Its order key; `NONE` without one.
    pub(super) order: u32,
    /// Its share; `NONE` without a fair key.
    pub(super) share: u32,
    /// Its limit key; `NONE` without one.
    pub(super) limit: u32,
    /// Its units of limits.
    pub(super) cost: u16,
    /// The batch that it is a member of; `NONE` without one.
    pub(super) batch: u32,
    /// It has parents, which its entry names.
    pub(super) has_parents: bool,
}

impl KeyNumbers {
    pub(super) const EMPTY: KeyNumbers = KeyNumbers {
        order: NONE,
        share: NONE,
        limit: NONE,
        cost: 1,
        batch: NONE,
        has_parents: false,
    };
}

/// What jobs have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Profile {
    /// All options but the job's own ones: schedule, preparation, expiry.
    pub(super) options: JobOptions,
    pub(super) keys: KeyNumbers,
    /// Jobs that use them. The default's are not counted.
    pub(super) jobs: u64,
}

/// All profiles in use.
#[derive(Clone, Debug)]
pub(super) struct Profiles {
    table: Slab<Profile>,
    index: Vec<SlotIndex>,
    /// Producers choose options and keys, so the hashes are keyed. Only for lookups: no outcome
    /// depends on it.
    hasher: RandomState,
}

impl Default for Profiles {
    fn default() -> Profiles {
        let mut table = Slab::default();
        let (options, keys) = (JobOptions::default(), KeyNumbers::EMPTY);
        table.insert(Profile { options, keys, jobs: 0 });
        Profiles::from_table(table)
    }
}

impl Profiles {
    /// The number of these options and keys, with one more job; and whether it is new.
    pub(super) fn acquire(
        &mut self,
        mut options: Option<JobOptions>,
        keys: KeyNumbers,
    ) -> (u32, bool) {
        if let Some(own) = &mut options {
            (own.due, own.prepared, own.expires_at) = (Due::Now, false, None);
        }
        let known = options.as_ref().unwrap_or(&self.table[DEFAULT].options);
        let hash = self.hash(known, keys);
        let is_same = |number| {
            let profile = &self.table[number];
            profile.keys == keys && profile.options == *known
        };
        let (number, is_new) = match self.index[part(hash)].find(hash, is_same) {
            Some(number) => (number, false),
            None => {
                let options = known.clone();
                let number = self.table.insert(Profile { options, keys, jobs: 0 });
                self.index_profile(number, hash);
                (number, true)
            }
        };
        if number != DEFAULT {
            self.table[number].jobs += 1;
        }
        (number, is_new)
    }

    /// Removes a job's use. Returns the keys of a profile that was the last job's.
    pub(super) fn release(&mut self, number: u32) -> Option<KeyNumbers> {
        if number == DEFAULT {
            return None;
        }
        let profile = &mut self.table[number];
        profile.jobs -= 1;
        if profile.jobs > 0 {
            return None;
        }
        let profile = self.table.remove(number)?;
        let hash = self.hash(&profile.options, profile.keys);
        self.index[part(hash)].remove(hash, number);
        Some(profile.keys)
    }

    pub(super) fn options(&self, number: u32) -> &JobOptions {
        &self.table[number].options
    }

    pub(super) fn keys(&self, number: u32) -> &KeyNumbers {
        &self.table[number].keys
    }

    /// The table as it is now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<Profile>>, Shared<u32>) {
        self.table.freeze()
    }

    pub(super) fn table(&self) -> &Slab<Profile> {
        &self.table
    }

    pub(super) fn from_table(table: Slab<Profile>) -> Profiles {
        let index = vec![SlotIndex::default(); INDEX_PARTS];
        let mut profiles = Profiles { table, index, hasher: RandomState::new() };
        let numbers: Vec<u32> = profiles.table.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let Profile { options, keys, jobs: _ } = &profiles.table[number];
            let hash = profiles.hash(options, *keys);
            profiles.index_profile(number, hash);
        }
        profiles
    }

    fn index_profile(&mut self, number: u32, hash: u64) {
        let mut index = std::mem::take(&mut self.index[part(hash)]);
        index.insert(hash, number, |number| {
            let Profile { options, keys, jobs: _ } = &self.table[number];
            self.hash(options, *keys)
        });
        self.index[part(hash)] = index;
    }

    /// The hash by which a number is found. Most jobs with keys have no options of their own:
    /// hashing those would take as long as everything else that keys need.
    fn hash(&self, options: &JobOptions, keys: KeyNumbers) -> u64 {
        let KeyNumbers { order, share, limit, cost, batch, has_parents } = keys;
        let keys = [order, share, limit, u32::from(cost) << 1 | u32::from(has_parents), batch];
        let mut hash = self.hasher.build_hasher();
        if self.table.get(DEFAULT).is_some_and(|default| *options != default.options) {
            options.hash(&mut hash);
        }
        // One write, without a length.
        Hash::hash_slice(&keys, &mut hash);
        hash.finish()
    }
}

impl State {
    /// The profile of a new job, with one more job.
    pub(super) fn profile_of(
        &mut self,
        queue: u32,
        options: Option<JobOptions>,
        keys: Option<&JobKeys>,
    ) -> u32 {
        let mut numbers = KeyNumbers::EMPTY;
        if let Some(text) = keys.and_then(|keys| keys.order.as_ref()) {
            numbers.order = self.orders.number_of(queue, text);
        }
        if let Some(fair) = keys.and_then(|keys| keys.fair.as_ref()) {
            let priority = options.as_ref().map_or(0, |options| options.priority);
            let weight = fair.weight;
            numbers.share = self.share_number(queue, priority, &fair.key, weight);
        }
        if let Some(text) = keys.and_then(|keys| keys.limit.as_ref()) {
            numbers.limit = self.limit_key_number(queue, text);
        }
        let batch = keys.and_then(|keys| self.batch_number(&keys.member_of?));
        numbers.batch = batch.unwrap_or(NONE);
        numbers.has_parents = keys.is_some_and(|keys| !keys.after.is_empty());
        numbers.cost = keys.and_then(|keys| keys.cost).unwrap_or(1).max(1);
        self.profile_with(options, numbers)
    }

    /// The profile of a new job with the keys of another, with one more job.
    pub(super) fn profile_with(&mut self, options: Option<JobOptions>, keys: KeyNumbers) -> u32 {
        let (number, is_new) = self.profiles.acquire(options, keys);
        if is_new && keys.order != NONE {
            self.orders.table[keys.order].profiles += 1;
        }
        if is_new && keys.share != NONE {
            self.shares.table[keys.share].profiles += 1;
        }
        if is_new && keys.limit != NONE {
            self.limits.keys[keys.limit].profiles += 1;
        }
        if is_new && keys.batch != NONE {
            self.batches.add_profile(keys.batch);
        }
        number
    }

    /// A profile with these keys is gone.
    pub(super) fn release_keys(&mut self, keys: KeyNumbers) {
        if keys.order != NONE {
            self.release_order_key(keys.order);
        }
        if keys.share != NONE {
            self.release_share(keys.share);
        }
        if keys.limit != NONE {
            self.release_limit_key(keys.limit);
        }
        if keys.batch != NONE {
            self.batches.release_profile(keys.batch);
        }
    }
}
