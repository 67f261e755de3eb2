//! Replaces a dead job with a new one: one command, so there is never both, and never none.

use bytes::Bytes;
use longshore_protocol::messages::work::ReplaceOutcome;
use longshore_protocol::{EntryHead, JobChange, JobId, LinkId, Reader, Refusal};

use super::State;
use super::enqueue::{NewRow, Schedule, refusal_of};
use super::row::{NONE, Substate};
use crate::command::Command;
use crate::outcome::{Outcomes, RecordRef, Reply};

impl State {
    pub(super) fn replace(
        &mut self,
        link: LinkId,
        request: u64,
        id: &JobId,
        entry: &Bytes,
        out: &mut Outcomes,
    ) {
        let outcome = self.replace_job(id, entry, out);
        out.replies.push((link, Reply::Replaced { request, outcome }));
    }

    /// Replaces the dead job, or returns why not; then nothing has changed. The queue may be closed
    /// to new jobs: this is its operator's act.
    fn replace_job(&mut self, id: &JobId, entry: &Bytes, out: &mut Outcomes) -> ReplaceOutcome {
        let mut head = match EntryHead::read(&mut Reader::new(entry.clone()), entry.len()) {
            Ok(head) => head,
            Err(error) if refusal_of(&error) == Refusal::TooLarge => {
                return ReplaceOutcome::TooLarge;
            }
            Err(_) => return ReplaceOutcome::BadOptions,
        };
        // A replacement is one operator's request, which names the job that it replaces, and whose
        // other keys it takes over.
        if head.keys.is_some() {
            return ReplaceOutcome::BadOptions;
        }
        let taken = self.rows.find(&head.id).map(|slot| &self.rows[slot]);
        let is_this = taken.is_some_and(|row| {
            let replaces = self.side(row).and_then(|side| side.replaces);
            replaces == Some(*id)
                && (row.crc, row.payload_len()) == (head.crc, head.payload_len as u32)
        });
        if is_this {
            return ReplaceOutcome::Replaced;
        }
        let is_taken = taken.is_some();
        let Some(dead) = self.rows.find(id) else { return ReplaceOutcome::Unknown };
        let row = &self.rows[dead];
        if row.substate != Substate::Dead {
            return ReplaceOutcome::NotDead;
        }
        if is_taken {
            return ReplaceOutcome::IdConflict;
        }
        let queue = row.queue;
        // Its members end a batch; and the entry of a job with parents names them to its handler.
        if self.batch_of(dead).is_some() || self.profiles.keys(row.profile).has_parents {
            return ReplaceOutcome::BadOptions;
        }
        if self.queues[queue as usize].open_jobs() >= self.rules.jobs_per_queue {
            return ReplaceOutcome::QueueFull;
        }
        if self.rival_of(dead).is_some() {
            return ReplaceOutcome::NotUnique;
        }
        let mut keys = *self.profiles.keys(row.profile);
        let schedule = Schedule::of(&head);
        let options = head.options.take().unwrap_or_default();
        let Some(share) = self.share_at(keys.share, options.priority) else {
            return ReplaceOutcome::QueueFull;
        };
        keys.share = share;
        let has_turn = keys.order != NONE && self.orders.table[keys.order].turn == dead;
        let profile = self.profile_with(Some(options), keys);
        let (unique, node) = (self.take_unique(dead), self.take_node(dead));
        let batch = self.enclosing(dead);
        self.remove_job(dead, JobChange::Dropped, out);
        self.keep_membership(batch, profile);
        let length = entry.len() as u32;
        let entry = RecordRef { index: self.index, at: Command::REPLACE_ENTRY_AT, length };
        let new = NewRow { entry, profile, schedule, replaces: Some(*id) };
        self.insert_job(queue, &head, new, out);
        self.expire_new(&head.id, out);
        if has_turn {
            self.keep_turn(keys.order, &head.id, out);
        }
        if let Some(unique) = unique {
            self.pass_unique(unique, &head.id);
        }
        self.pass_node(node, &head.id);
        ReplaceOutcome::Replaced
    }
}
