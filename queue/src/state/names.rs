//! Workers' names, each kept once: a session, and a job's attempt, hold a number.

use std::collections::HashMap;
use std::sync::Arc;

use longshore_protocol::limits::NAME_BYTES_MAX;
use longshore_protocol::{Decode, Encode, FrameWriter, Reader, WireError};

use super::chunks::Shared;
use super::slab::Slab;

/// A name, and how many hold its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name {
    pub(super) text: Arc<str>,
    /// Sessions, completed jobs (their last attempt), and attempts in histories.
    pub(super) uses: u64,
}

/// All names in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    table: Slab<Name>,
    /// Only looked up, never walked.
    numbers: HashMap<Arc<str>, u32>,
}

impl Names {
    /// The number of that name, for one more use.
    pub(super) fn take(&mut self, text: &str) -> u32 {
        let number = match self.numbers.get(text) {
            Some(&number) => number,
            None => {
                let text: Arc<str> = text.into();
                let number = self.table.insert(Name { text: text.clone(), uses: 0 });
                self.numbers.insert(text, number);
                number
            }
        };
        self.hold(number);
        number
    }

    /// One use more of a name that is in use.
    pub(super) fn hold(&mut self, number: u32) {
        self.table[number].uses += 1;
    }

    /// One use fewer; a name without any is forgotten.
    pub(super) fn give_back(&mut self, number: u32) {
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
    pub(super) fn freeze(&mut self) -> (Shared<Option<Name>>, Shared<u32>) {
        self.table.freeze()
    }

    pub(super) fn table(&self) -> &Slab<Name> {
        &self.table
    }

    /// The names of a snapshot; their uses are counted as what holds them is restored.
    pub(super) fn from_table(table: Slab<Name>) -> Names {
        let numbers = table.iter().map(|(number, name)| (name.text.clone(), number)).collect();
        Names { table, numbers }
    }
}

impl Encode for Name {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.text);
    }
}

impl Decode for Name {
    fn decode(r: &mut Reader) -> Result<Name, WireError> {
        Ok(Name { text: r.text("process name", NAME_BYTES_MAX)?.into(), uses: 0 })
    }
}
