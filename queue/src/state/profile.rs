//! Job options, each combination stored once: a row stores a number.

use std::collections::HashMap;

use longshore_protocol::{Due, JobOptions};

use super::chunks::Shared;
use super::slab::Slab;

/// The number of the default options, which always exists.
pub(super) const DEFAULT: u32 = 0;

/// The options of jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Profile {
    /// All options but the job's own ones: schedule, preparation, expiry.
    pub(super) options: JobOptions,
    /// Jobs that use them. The default's are not counted.
    pub(super) jobs: u64,
}

/// All profiles in use.
#[derive(Clone, Debug)]
pub(super) struct Profiles {
    table: Slab<Profile>,
    /// Only for lookups, never iterated.
    numbers: HashMap<JobOptions, u32>,
}

impl Default for Profiles {
    fn default() -> Profiles {
        let mut table = Slab::default();
        table.insert(Profile { options: JobOptions::default(), jobs: 0 });
        Profiles::from_table(table)
    }
}

impl Profiles {
    /// The number of these options, with one more job.
    pub(super) fn acquire(&mut self, mut options: JobOptions) -> u32 {
        (options.due, options.prepared, options.expires_at) = (Due::Now, false, None);
        let number = match self.numbers.get(&options) {
            Some(&number) => number,
            None => {
                let number = self.table.insert(Profile { options: options.clone(), jobs: 0 });
                self.numbers.insert(options, number);
                number
            }
        };
        if number != DEFAULT {
            self.table[number].jobs += 1;
        }
        number
    }

    /// Removes a job's use.
    pub(super) fn release(&mut self, number: u32) {
        if number == DEFAULT {
            return;
        }
        let profile = &mut self.table[number];
        profile.jobs -= 1;
        if profile.jobs == 0
            && let Some(profile) = self.table.remove(number)
        {
            self.numbers.remove(&profile.options);
        }
    }

    pub(super) fn options(&self, number: u32) -> &JobOptions {
        &self.table[number].options
    }

    /// The table as it is now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<Profile>>, Shared<u32>) {
        self.table.freeze()
    }

    pub(super) fn table(&self) -> &Slab<Profile> {
        &self.table
    }

    pub(super) fn from_table(table: Slab<Profile>) -> Profiles {
        let entries = table.iter().map(|(number, profile)| (profile.options.clone(), number));
        let numbers = entries.collect();
        Profiles { table, numbers }
    }
}
