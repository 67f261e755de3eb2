//! Writes: from a subscriber to the value's program, and the answer back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::limits::VALUE_WRITES_OPEN_MAX;
use longshore_protocol::messages::values::{WriteRefusal, WriteRefused, WriteValue, Written};
use longshore_protocol::{Path, Value};

use super::backlog::BacklogEntry;
use super::links::{SubscriptionState, bytes_of};
use super::{Core, LinkNumber, LinkSink, SlotExtra, SlotKey, Timer, Violation, Wakeup};
use crate::values::limits::{
    VALUE_BACKLOG_BYTES_MAX, VALUE_WRITES_BYTES_MAX, VALUE_WRITES_WAITING_MAX,
};

/// A write with a receipt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct WriteId(u64);

/// A write that waits for its program.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    /// None if no answer is requested.
    pub(crate) id: Option<WriteId>,
    pub(crate) value: Value,
    /// The name of the subscriber's process.
    pub(crate) by: Arc<str>,
    link: LinkNumber,
    deadline: Option<Instant>,
}

/// Writes to one value that its program has not received.
#[derive(Default)]
pub(super) struct PendingWrites {
    queue: VecDeque<PendingWrite>,
    bytes: usize,
    wakeup: Wakeup,
}

struct AwaitedReceipt {
    link: LinkNumber,
    request: u32,
    deadline: Option<Instant>,
}

/// Writes whose receipt is outstanding.
#[derive(Default)]
pub(super) struct AwaitedReceipts {
    open: HashMap<WriteId, AwaitedReceipt>,
    next: u64,
}

impl<O: LinkSink> Core<O> {
    /// The value accepts writes from now on; `None` if it does already, or was removed. The
    /// returned handle is notified when there may be a write.
    pub(crate) fn accept_writes(&mut self, key: SlotKey) -> Option<Wakeup> {
        let extra = self.slot_mut(key)?.extra.get_or_insert_default();
        if extra.writes.is_some() {
            return None;
        }
        Some(extra.writes.insert(PendingWrites::default()).wakeup.clone())
    }

    /// The value accepts no more writes; waiting ones are refused.
    pub(crate) fn stop_writes(&mut self, key: SlotKey) {
        let extra = self.slot_mut(key).and_then(|slot| slot.extra.as_mut());
        if let Some(waiting) = extra.and_then(|extra| extra.writes.take()) {
            self.refuse_waiting(waiting);
            self.pump_pending_links();
        }
    }

    /// The next write whose deadline has not passed; an error once the value was removed.
    pub(crate) fn next_write(
        &mut self,
        key: SlotKey,
        now: Instant,
    ) -> Result<Option<PendingWrite>, ()> {
        let extra = self.slot_mut(key).and_then(|slot| slot.extra.as_mut());
        let waiting = extra.and_then(|extra| extra.writes.as_mut()).ok_or(())?;
        while let Some(write) = waiting.queue.pop_front() {
            waiting.bytes -= write.value.memory_bytes();
            if write.deadline.is_none_or(|deadline| now < deadline) {
                return Ok(Some(write));
            }
        }
        Ok(None)
    }

    /// Drops the writes of an ended link to these values that their programs have not received.
    pub(crate) fn drop_writes_of(&mut self, number: LinkNumber, keys: &[SlotKey]) {
        for key in keys {
            let extra = self.slot_mut(*key).and_then(|slot| slot.extra.as_mut());
            let Some(waiting) = extra.and_then(|extra| extra.writes.as_mut()) else { continue };
            let mut forgotten = Vec::new();
            waiting.queue.retain(|write| {
                let stays = write.link != number;
                if !stays {
                    waiting.bytes -= write.value.memory_bytes();
                    forgotten.extend(write.id);
                }
                stays
            });
            for id in forgotten {
                self.forget_receipt(id);
            }
        }
    }

    /// A subscriber writes.
    pub(crate) fn write(
        &mut self,
        number: LinkNumber,
        write: WriteValue,
        may_write: impl FnOnce(&Path) -> bool,
        now: Instant,
    ) -> Result<(), Violation> {
        let (request, receipt) = (write.request, write.receipt);
        if let Err(code) = self.queue_write(number, write, may_write, now)
            && receipt
            && let Some(link) = self.links.get_mut(number)
        {
            let refused = WriteRefused { code, reason: String::new() };
            let written = Written { request, outcome: Err(refused) };
            // Counts the answer until it is sent.
            link.writes_open += 1;
            link.queue_answer(BacklogEntry::Written(Box::new(written)))?;
            self.pump(number);
        }
        Ok(())
    }

    fn queue_write(
        &mut self,
        number: LinkNumber,
        write: WriteValue,
        may_write: impl FnOnce(&Path) -> bool,
        now: Instant,
    ) -> Result<(), WriteRefusal> {
        let WriteValue { request, subscription, receipt, deadline_ms, value } = write;
        let link = self.links.get_mut(number).ok_or(WriteRefusal::NotSubscribed)?;
        let active = link.subscriptions.get(subscription as usize);
        let Some(SubscriptionState::Active(key, _)) =
            active.map(|subscription| &subscription.state)
        else {
            return Err(WriteRefusal::NotSubscribed);
        };
        let key = *key;
        let slot = self.slots.get_mut(key.slot as usize);
        if let Some(path) = slot.as_ref().and_then(|slot| slot.path.as_ref())
            && !may_write(path)
        {
            return Err(WriteRefusal::Forbidden);
        }
        let slot = slot.and_then(|slot| slot.extra.as_mut());
        let waiting = slot.and_then(|extra| extra.writes.as_mut());
        let waiting = waiting.ok_or(WriteRefusal::NotWritable)?;
        // What a client writes may take 40 times its length on the wire.
        let bytes = value.memory_bytes();
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
            self.writes.open.insert(id, AwaitedReceipt { link: number, request, deadline });
            link.writes_open += 1;
            id
        });
        link.written.insert(key.slot);
        // It may wait for long, and would retain the frame that it came in.
        let value = value.copied_from_frame();
        waiting.bytes += bytes;
        let by = link.name.clone();
        waiting.queue.push_back(PendingWrite { id, value, by, link: number, deadline });
        waiting.wakeup.notify_one();
        if let (Some(id), Some(_)) = (id, deadline) {
            self.set_timer(now, after, Timer::Write(id));
        }
        Ok(())
    }

    /// The program has answered; an answer after the deadline is dropped.
    pub(crate) fn answer(&mut self, id: WriteId, outcome: Result<Value, WriteRefused>) {
        if let Some(link) = self.queue_answer(id, outcome) {
            self.pump(link);
        }
    }

    /// The program has taken too long.
    pub(super) fn write_timed_out(&mut self, id: WriteId) {
        let refused = WriteRefused { code: WriteRefusal::Late, reason: String::new() };
        let link = self.queue_answer(id, Err(refused));
        self.links_to_pump.extend(link);
    }

    /// A value that accepted writes was removed.
    pub(super) fn forget_writes(&mut self, extra: SlotExtra) {
        if let Some(wakeup) = extra.links_changed {
            wakeup.notify_waiters();
        }
        if let Some(waiting) = extra.writes {
            self.refuse_waiting(waiting);
        }
    }

    fn refuse_waiting(&mut self, waiting: PendingWrites) {
        waiting.wakeup.notify_one();
        for write in waiting.queue {
            let refused = WriteRefused { code: WriteRefusal::NotWritable, reason: String::new() };
            if let Some(id) = write.id {
                let link = self.queue_answer(id, Err(refused));
                self.links_to_pump.extend(link);
            }
        }
    }

    /// Removes a receipt and its deadline.
    fn forget_receipt(&mut self, id: WriteId) -> Option<AwaitedReceipt> {
        let open = self.writes.open.remove(&id)?;
        if let Some(deadline) = open.deadline {
            self.timers.remove(&(deadline, Timer::Write(id)));
        }
        Some(open)
    }

    fn queue_answer(
        &mut self,
        id: WriteId,
        outcome: Result<Value, WriteRefused>,
    ) -> Option<LinkNumber> {
        let open = self.forget_receipt(id)?;
        let link = self.links.get_mut(open.link)?;
        link.backlog_bytes += answer_bytes(&outcome);
        let written = Written { request: open.request, outcome };
        if let Err(violation) = link.queue_answer(BacklogEntry::Written(Box::new(written))) {
            link.end(violation.to_string());
        } else if link.backlog_bytes > 2 * VALUE_BACKLOG_BYTES_MAX && !link.sink.has_room() {
            link.end("it does not read the answers to its writes".to_owned());
        }
        Some(open.link)
    }
}

/// The bytes that an answer counts for while it waits to be sent.
pub(super) fn answer_bytes(outcome: &Result<Value, WriteRefused>) -> usize {
    outcome.as_ref().map_or(0, bytes_of)
}
