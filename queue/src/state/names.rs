//! Workers' names, each stored once: a session, and a job's attempt, store a number.

use std::collections::HashMap;
use std::sync::Arc;

use longshore_protocol::limits::NAME_BYTES_MAX;
use longshore_protocol::{Decode, Encode, FrameWriter, Reader, WireError};

use super::chunks::Shared;
use super::slab::Slab;

/// A name, and its number of uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WorkerName {
    pub(super) text: Arc<str>,
    /// Sessions, completed jobs (their last attempt), and attempts in histories.
    pub(super) uses: u64,
}

/// All names in use.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerNames {
    table: Slab<WorkerName>,
    /// Only for lookups, never iterated.
    numbers: HashMap<Arc<str>, u32>,
}

impl WorkerNames {
    /// The number of that name, with one more use.
    pub(super) fn acquire(&mut self, text: &str) -> u32 {
        let number = match self.numbers.get(text) {
            Some(&number) => number,
            None => {
                let text: Arc<str> = text.into();
                let number = self.table.insert(WorkerName { text: text.clone(), uses: 0 });
                self.numbers.insert(text, number);
                number
            }
        };
        self.add_use(number);
        number
    }

    /// Adds a use of a name that is in use.
    pub(super) fn add_use(&mut self, number: u32) {
        self.table[number].uses += 1;
    }

    /// Removes a use; a name without any is removed.
    pub(super) fn release(&mut self, number: u32) {
        let name = &mut self.table[number];
        name.uses -= 1;
        if name.uses == 0
            && let Some(name) = self.table.remove(number)
        {
            self.numbers.remove(&name.text);
        }
    }

    pub(super) fn text(&self, number: u32) -> &str {
        &self.table[number].text
    }

    pub(super) fn is_known(&self, number: u32) -> bool {
        self.table.get(number).is_some()
    }

    /// The table as it is now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<WorkerName>>, Shared<u32>) {
        self.table.freeze()
    }

    pub(super) fn table(&self) -> &Slab<WorkerName> {
        &self.table
    }

    /// The names of a snapshot; their uses are counted as their users are restored.
    pub(super) fn from_table(table: Slab<WorkerName>) -> WorkerNames {
        let numbers = table.iter().map(|(number, name)| (name.text.clone(), number)).collect();
        WorkerNames { table, numbers }
    }
}

impl Encode for WorkerName {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.text);
    }
}

impl Decode for WorkerName {
    fn decode(r: &mut Reader) -> Result<WorkerName, WireError> {
        Ok(WorkerName { text: r.text("process name", NAME_BYTES_MAX)?.into(), uses: 0 })
    }
}
