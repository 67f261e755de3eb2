//! Job options and keys, each combination stored once: a row stores a number.

use std::collections::HashMap;

use longshore_protocol::{Due, JobKeys, JobOptions};

use super::State;
use super::chunks::Shared;
use super::row::NONE;
use super::slab::Slab;

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
}

impl KeyNumbers {
    pub(super) const EMPTY: KeyNumbers =
        KeyNumbers { order: NONE, share: NONE, limit: NONE, cost: 1 };
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
    /// Only for lookups, never iterated.
    numbers: HashMap<(JobOptions, KeyNumbers), u32>,
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
    pub(super) fn acquire(&mut self, mut options: JobOptions, keys: KeyNumbers) -> (u32, bool) {
        (options.due, options.prepared, options.expires_at) = (Due::Now, false, None);
        let kind = (options, keys);
        let (number, is_new) = match self.numbers.get(&kind) {
            Some(&number) => (number, false),
            None => {
                let number = self.table.insert(Profile { options: kind.0.clone(), keys, jobs: 0 });
                self.numbers.insert(kind, number);
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
        let Profile { options, keys, jobs: _ } = self.table.remove(number)?;
        self.numbers.remove(&(options, keys));
        Some(keys)
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
        let kind = |profile: &Profile| (profile.options.clone(), profile.keys);
        let entries = table.iter().map(|(number, profile)| (kind(profile), number));
        let numbers = entries.collect();
        Profiles { table, numbers }
    }
}

impl State {
    /// The profile of a new job, with one more job.
    pub(super) fn profile_of(
        &mut self,
        queue: u32,
        options: JobOptions,
        keys: Option<&JobKeys>,
    ) -> u32 {
        let mut numbers = KeyNumbers::EMPTY;
        if let Some(text) = keys.and_then(|keys| keys.order.as_ref()) {
            numbers.order = self.orders.number_of(queue, text);
        }
        if let Some(fair) = keys.and_then(|keys| keys.fair.as_ref()) {
            let (priority, weight) = (options.priority, fair.weight);
            numbers.share = self.share_number(queue, priority, &fair.key, weight);
        }
        if let Some(text) = keys.and_then(|keys| keys.limit.as_ref()) {
            numbers.limit = self.limit_key_number(queue, text);
        }
        numbers.cost = keys.and_then(|keys| keys.cost).unwrap_or(1).max(1);
        self.profile_with(options, numbers)
    }

    /// The profile of a new job with the keys of another, with one more job.
    pub(super) fn profile_with(&mut self, options: JobOptions, keys: KeyNumbers) -> u32 {
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
    }
}
