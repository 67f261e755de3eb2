//! Writes: from a subscriber to the value's program, and the answer back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::Value;
use longshore_protocol::limits::VALUE_WRITES_OPEN_MAX;
use longshore_protocol::messages::values::{WriteRefusal, WriteRefused, WriteValue, Written};

use super::line::Entry;
use super::links::{Stage, bytes_of};
use super::{Bell, Core, Extra, LinkNumber, LinkOutput, Misuse, SlotKey, Timer};
use crate::values::limits::{
    VALUE_BACKLOG_BYTES_MAX, VALUE_WRITES_BYTES_MAX, VALUE_WRITES_WAITING_MAX,
};

/// A write that wants an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct WriteId(u64);

/// A write that waits for its program.
#[derive(Debug)]
pub(crate) struct WaitingWrite {
    /// None if no answer is wanted.
    pub(crate) id: Option<WriteId>,
    pub(crate) value: Value,
    /// The name of the subscriber's process.
    pub(crate) by: Arc<str>,
    deadline: Option<Instant>,
}

/// Writes to one value that its program has not taken.
#[derive(Default)]
pub(super) struct Waiting {
    queue: VecDeque<WaitingWrite>,
    bytes: usize,
    bell: Bell,
}

struct OpenWrite {
    link: LinkNumber,
    request: u32,
    deadline: Option<Instant>,
}

/// Writes that want an answer and have none.
#[derive(Default)]
pub(super) struct Open {
    open: HashMap<WriteId, OpenWrite>,
    next: u64,
}

impl<O: LinkOutput> Core<O> {
    /// From now on the value takes writes; `None` if it does already, or is gone. The bell rings
    /// when there may be one.
    pub(crate) fn take_writes(&mut self, key: SlotKey) -> Option<Bell> {
        let extra = self.slot_mut(key)?.extra.get_or_insert_default();
        if extra.writes.is_some() {
            return None;
        }
        Some(extra.writes.insert(Waiting::default()).bell.clone())
    }

    /// The value takes no more writes; those that wait are refused.
    pub(crate) fn stop_writes(&mut self, key: SlotKey) {
        let extra = self.slot_mut(key).and_then(|held| held.extra.as_mut());
        if let Some(waiting) = extra.and_then(|extra| extra.writes.take()) {
            self.refuse_waiting(waiting);
            self.pump_lined_up();
        }
    }

    /// The next write that is not late yet; an error once the value is gone.
    pub(crate) fn next_write(
        &mut self,
        key: SlotKey,
        now: Instant,
    ) -> Result<Option<WaitingWrite>, ()> {
        let extra = self.slot_mut(key).and_then(|held| held.extra.as_mut());
        let waiting = extra.and_then(|extra| extra.writes.as_mut()).ok_or(())?;
        while let Some(write) = waiting.queue.pop_front() {
            waiting.bytes -= bytes_of(&write.value);
            if write.deadline.is_none_or(|deadline| now < deadline) {
                return Ok(Some(write));
            }
        }
        Ok(None)
    }

    /// A subscriber writes.
    pub(crate) fn write(
        &mut self,
        number: LinkNumber,
        write: WriteValue,
        now: Instant,
    ) -> Result<(), Misuse> {
        let (request, receipt) = (write.request, write.receipt);
        if let Err(code) = self.hand_to_program(number, write, now)
            && receipt
            && let Some(link) = self.links.get_mut(number)
        {
            let refused = WriteRefused { code, reason: String::new() };
            let written = Written { request, outcome: Err(refused) };
            // Every answer has its place until it is said.
            link.writes_open += 1;
            link.say(Entry::Written(Box::new(written)))?;
            self.pump(number);
        }
        Ok(())
    }

    fn hand_to_program(
        &mut self,
        number: LinkNumber,
        write: WriteValue,
        now: Instant,
    ) -> Result<(), WriteRefusal> {
        let WriteValue { request, subscription, receipt, deadline_ms, value } = write;
        let link = self.links.get_mut(number).ok_or(WriteRefusal::NotSubscribed)?;
        let stands = link.subscriptions.get(subscription as usize);
        let Some(Stage::Stands(key, _)) = stands.map(|subscription| &subscription.stage) else {
            return Err(WriteRefusal::NotSubscribed);
        };
        let key = *key;
        let held = self.slots.get_mut(key.slot as usize).and_then(|held| held.extra.as_mut());
        let waiting = held.and_then(|extra| extra.writes.as_mut());
        let waiting = waiting.ok_or(WriteRefusal::NotWritable)?;
        let bytes = bytes_of(&value);
        let is_full = !waiting.queue.is_empty() && waiting.bytes + bytes > VALUE_WRITES_BYTES_MAX;
        if is_full
            || waiting.queue.len() >= VALUE_WRITES_WAITING_MAX
            || (receipt && link.writes_open >= VALUE_WRITES_OPEN_MAX)
        {
            return Err(WriteRefusal::TooMany);
        }
        let after = Duration::from_millis(u64::from(deadline_ms));
        let deadline = (deadline_ms > 0).then(|| now + after);
        let id = receipt.then(|| {
            let id = WriteId(self.writes.next);
            self.writes.next += 1;
            self.writes.open.insert(id, OpenWrite { link: number, request, deadline });
            link.writes_open += 1;
            id
        });
        // It may wait for long, and would keep the frame that it came in.
        let value = value.to_own_memory();
        waiting.bytes += bytes;
        waiting.queue.push_back(WaitingWrite { id, value, by: link.name.clone(), deadline });
        waiting.bell.notify_one();
        if let (Some(id), Some(_)) = (id, deadline) {
            self.set_timer(now, after, Timer::Write(id));
        }
        Ok(())
    }

    /// The program has answered; if it is too late for that, nobody hears it.
    pub(crate) fn answer(&mut self, id: WriteId, outcome: Result<Value, WriteRefused>) {
        if let Some(link) = self.answer_unpumped(id, outcome) {
            self.pump(link);
        }
    }

    /// The program has taken too long.
    pub(super) fn write_is_late(&mut self, id: WriteId) {
        let refused = WriteRefused { code: WriteRefusal::Late, reason: String::new() };
        let link = self.answer_unpumped(id, Err(refused));
        self.lined_up.extend(link);
    }

    /// A value that took writes is gone.
    pub(super) fn forget_writes(&mut self, extra: Extra) {
        if let Some(bell) = extra.links_changed {
            bell.notify_waiters();
        }
        if let Some(waiting) = extra.writes {
            self.refuse_waiting(waiting);
        }
    }

    fn refuse_waiting(&mut self, waiting: Waiting) {
        waiting.bell.notify_one();
        for write in waiting.queue {
            let refused = WriteRefused { code: WriteRefusal::NotWritable, reason: String::new() };
            if let Some(id) = write.id {
                let link = self.answer_unpumped(id, Err(refused));
                self.lined_up.extend(link);
            }
        }
    }

    fn answer_unpumped(
        &mut self,
        id: WriteId,
        outcome: Result<Value, WriteRefused>,
    ) -> Option<LinkNumber> {
        let open = self.writes.open.remove(&id)?;
        if let Some(deadline) = open.deadline {
            self.timers.remove(&(deadline, Timer::Write(id)));
        }
        let link = self.links.get_mut(open.link)?;
        link.backlog_bytes += answer_bytes(&outcome);
        let written = Written { request: open.request, outcome };
        if let Err(misuse) = link.say(Entry::Written(Box::new(written))) {
            link.end(misuse.to_string());
        } else if link.backlog_bytes > 2 * VALUE_BACKLOG_BYTES_MAX && !link.outlet.has_room() {
            link.end("it does not read the answers to its writes".to_owned());
        }
        Some(open.link)
    }
}

/// What an answer is counted for while it waits to be said.
pub(super) fn answer_bytes(outcome: &Result<Value, WriteRefused>) -> usize {
    outcome.as_ref().map_or(0, bytes_of)
}
