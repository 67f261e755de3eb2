//! Templates: what the jobs of a schedule have in common. Its entry is in the log once, and stays
//! while the schedule, or a job of it, refers to it.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore_protocol::{Due, EntryHead, JobId, Overlap, Refusal, Schedule};

use super::super::slab::Slab;
use super::head_of;
use crate::command::Command;
use crate::outcome::RecordRef;

/// Bytes of the id at the begin of each entry.
const ID_BYTES: usize = 16;

/// A template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) struct Template {
    /// The entry. Its id is not that of any job.
    pub(in super::super) entry: RecordRef,
    /// CRC32C of what is between id and payload, with the headers.
    pub(super) head_crc: u32,
    /// Boxed, because few schedules are many jobs.
    pub(super) head: Box<EntryHead>,
    /// Its schedule's name.
    pub(in super::super) name: String,
    /// Its schedule and the jobs that refer to it. Not in snapshots.
    pub(super) uses: u64,
}

impl Template {
    /// The template of a schedule, whose entry is in the command at `index`.
    pub(super) fn read(
        schedule: &Schedule,
        entry: &Bytes,
        index: u64,
    ) -> Result<Template, Refusal> {
        let mut head = head_of(entry)?;
        let head_len = entry.len().saturating_sub(head.payload_len);
        let head_crc = entry.get(ID_BYTES..head_len).map_or(0, crc32c::crc32c);
        let options = head.options.as_ref();
        let is_timed = options.is_some_and(|options| {
            options.due != Due::Now || options.prepared || options.expires_at.is_some()
        });
        let is_related = head.keys.as_ref().is_some_and(|keys| {
            !keys.after.is_empty() || keys.batch.is_some() || keys.member_of.is_some()
        });
        if is_timed || is_related || head.idempotency().is_some() {
            return Err(Refusal::BadOptions);
        }
        if schedule.overlap == Overlap::Buffer {
            let keys = head.keys.get_or_insert_default();
            keys.order.get_or_insert_with(|| schedule.name.clone());
        }
        head.id = JobId::default();
        let length = entry.len() as u32;
        let entry = RecordRef { index, at: Command::SCHEDULE_ENTRY_AT, length };
        let name = schedule.name.clone();
        Ok(Template { entry, head_crc, head: Box::new(head), name, uses: 0 })
    }

    /// True if another entry has the same contents.
    pub(super) fn is_same(&self, other: &Template) -> bool {
        (self.head_crc, self.entry.length, &self.head)
            == (other.head_crc, other.entry.length, &other.head)
    }
}

/// All templates.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Templates {
    pub(in super::super) table: Slab<Template>,
}

impl Templates {
    pub(in super::super) fn get(&self, number: u32) -> &Template {
        &self.table[number]
    }

    pub(super) fn head(&self, number: u32) -> &EntryHead {
        &self.table[number].head
    }

    /// The head and the length of the entry of a new job.
    pub(super) fn entry_of(&self, number: u32, job: JobId) -> (EntryHead, u32) {
        let template = &self.table[number];
        (EntryHead { id: job, ..(*template.head).clone() }, template.entry.length)
    }

    /// Adds a template with one use.
    pub(super) fn insert(&mut self, template: Template) -> u32 {
        self.table.insert(Template { uses: 1, ..template })
    }

    /// Adds a use; none if there is no such template.
    pub(in super::super) fn add_use(&mut self, number: u32) -> Option<()> {
        self.table.get(number)?;
        self.table[number].uses += 1;
        Some(())
    }

    /// Removes a use; a template without any is removed.
    pub(in super::super) fn release(&mut self, number: u32) {
        let template = &mut self.table[number];
        template.uses -= 1;
        if template.uses == 0 {
            self.table.remove(number);
        }
    }

    pub(in super::super) fn from_table(table: Slab<Template>) -> Templates {
        Templates { table }
    }

    pub(super) fn check(&self, uses: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
        uses.for_each(|number| *counted.entry(number).or_default() += 1);
        let known = self.table.iter().map(|(number, template)| (number, template.uses));
        match counted.into_iter().eq(known) {
            true => Ok(()),
            false => Err("the uses of templates differ".to_owned()),
        }
    }
}
