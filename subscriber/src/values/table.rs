//! The subscriptions of one link: their numbers, their last values, and the messages to send. Pure
//! except for the channels that receive updates: time is an argument.
//!
//! Subscriptions of this process to the same path share one on the wire, which has the policy of
//! the first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::limits::{VALUE_BATCH_MAX, VALUE_SUBSCRIPTIONS_MAX};
use longshore_protocol::messages::values::{
    FromValuePublisher, Policy, SubscribeValue, Subscribed, SubscriptionEnd, SubscriptionEnded,
    ToValuePublisher, Updates,
};
use longshore_protocol::{Path, PublisherId, Value, WireError};

use super::event::{Event, SubscriptionKey};
use super::link::ValueLink;
use super::local_subscriptions::{LocalSubscription, LocalSubscriptions};
use super::retained::RetainedValue;
use super::sinks::Sinks;
use super::subscription_core::{LostSubscriptions, RefusalSender, SubscriptionCore};
use super::writes::Writes;

/// Publishers' numbers of values are below this: the table uses four bytes for each number up to
/// the highest.
pub(crate) const NUMBERS_MAX: u32 = 16 * 1024 * 1024;
/// A `Subscribe` message is sent once its paths have this many bytes.
const SUBSCRIBE_BYTES: usize = 1024 * 1024;
/// Most updates of a frame that are staged before a delivery: a frame of 20 MiB may have ten
/// million.
const STAGED_MAX: usize = 65_536;
/// Marks a number without a subscription.
const NONE: u32 = u32::MAX;

/// Why a link is closed by this side.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ProtocolViolation {
    #[error("the publisher's bytes do not decode: {0}")]
    Wire(#[from] WireError),
    #[error("the publisher answered a request that was not sent")]
    Unrequested,
    #[error("the publisher's number {0} is not below the limit of {NUMBERS_MAX}")]
    Number(u32),
    #[error("the publisher uses number {0} for two values")]
    SameNumber(u32),
    #[error("the publisher closed the link: {0}")]
    Goodbye(String),
}

#[derive(Debug)]
pub(crate) struct SubscriptionTable {
    publisher: PublisherId,
    subscriptions_max: usize,
    /// Why the link ended.
    closed: Option<Arc<str>>,
    /// By the number of the subscription.
    slots: Vec<Slot>,
    free: BinaryHeap<Reverse<u32>>,
    by_path: HashMap<Path, u32>,
    /// The slot of each value, by the publisher's number.
    numbers: Vec<u32>,
    sinks: Sinks,
    locals: usize,
    /// Slots to subscribe, the lowest first: publishers accept no number far beyond those that they
    /// know. Some may not be needed any more.
    to_subscribe: BinaryHeap<Reverse<u32>>,
    to_unsubscribe: Vec<u32>,
    pub(crate) writes: Writes,
    /// When the publisher last accepted a subscription; zero before.
    subscribed_at: Duration,
    /// Durable subscriptions that lost their value here, with the reason.
    lost: LostSubscriptions,
    /// Bytes in the backlogs of all slots.
    backlog_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    path: Option<Path>,
    policy: Policy,
    /// The policy in the last `Subscribe` message.
    requested_policy: Policy,
    state: SlotState,
    last_value: RetainedValue,
    locals: LocalSubscriptions,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    /// To be requested.
    Pending,
    Requested,
    /// Active, under the publisher's number.
    Active(u32),
    /// No longer needed. The number is free once the publisher confirms.
    Unsubscribing(u32),
}

impl SubscriptionTable {
    pub(crate) fn new(publisher: PublisherId) -> SubscriptionTable {
        SubscriptionTable {
            publisher,
            subscriptions_max: VALUE_SUBSCRIPTIONS_MAX,
            closed: None,
            slots: Vec::new(),
            free: BinaryHeap::new(),
            by_path: HashMap::new(),
            numbers: Vec::new(),
            sinks: Sinks::default(),
            locals: 0,
            to_subscribe: BinaryHeap::new(),
            to_unsubscribe: Vec::new(),
            writes: Writes::default(),
            subscribed_at: Duration::ZERO,
            lost: Vec::new(),
            backlog_bytes: 0,
        }
    }

    /// Why the link ended, if it did.
    pub(crate) fn closed(&self) -> Option<&Arc<str>> {
        self.closed.as_ref()
    }

    /// When the publisher last accepted a subscription; zero before.
    pub(crate) fn subscribed_at(&self) -> Duration {
        self.subscribed_at
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.locals == 0
    }

    /// Adds a subscription. An error returns the reason, and changes nothing.
    pub(crate) fn add(
        &mut self,
        now: Duration,
        link: &Arc<ValueLink>,
        sub: &Arc<SubscriptionCore>,
        refusals: &RefusalSender,
    ) -> Result<(), Arc<str>> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        let at = match self.by_path.get(&sub.path) {
            Some(at) => *at,
            None => self.open(sub).ok_or("the link has reached its limit of subscriptions")?,
        };
        self.locals += 1;
        sub.attach(link, at);
        let slot = &mut self.slots[at as usize];
        if slot.locals.is_empty() {
            // Earlier subscriptions of the path are gone, and so is their policy.
            slot.policy = sub.policy;
        }
        let mut local = LocalSubscription {
            sub: sub.clone(),
            key: sub.key,
            sink: self.sinks.add_user(&sub.channel),
            policy: sub.policy,
            lagging: false,
            backlog: None,
            active: false,
            refusals: Some(refusals.clone()),
        };
        let in_use = match (slot.state, slot.last_value.value()) {
            (SlotState::Active(_), Some(value)) => {
                let in_use = local.activate(now, self.publisher);
                self.sinks.stage(local.sink, at, local.key, &value);
                in_use
            }
            _ => true,
        };
        slot.locals.push(local);
        self.deliver_staged(0);
        if !in_use {
            self.remove(at, sub.key);
        }
        Ok(())
    }

    /// Removes a subscription: its handle was dropped, or its caller stopped waiting.
    pub(crate) fn remove(&mut self, at: u32, key: SubscriptionKey) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(mut local) = slot.locals.remove(key) else { return };
        local.sub.detach(if local.active { slot.last_value.value() } else { None });
        self.sinks.remove_user(local.sink);
        self.locals -= 1;
        local.take_backlog(&mut self.backlog_bytes).for_each(drop);
        self.unsubscribe_if_unused(at);
    }

    /// Unsubscribes a value without local subscriptions.
    fn unsubscribe_if_unused(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if !slot.locals.is_empty() {
            return;
        }
        match slot.state {
            SlotState::Pending => self.free(at),
            SlotState::Active(number) => {
                slot.state = SlotState::Unsubscribing(number);
                slot.last_value = RetainedValue::Nothing;
                self.to_unsubscribe.push(at);
            }
            // Decided once the publisher has answered.
            SlotState::Free | SlotState::Requested | SlotState::Unsubscribing(_) => {}
        }
    }

    /// The next message to send.
    pub(crate) fn outgoing(&mut self) -> Option<ToValuePublisher> {
        // Writes go before unsubscriptions: a write from before a drop is still sent.
        if let Some(write) = self.writes.take() {
            return Some(ToValuePublisher::Write(write));
        }
        if !self.to_unsubscribe.is_empty() {
            let rest =
                self.to_unsubscribe.split_off(self.to_unsubscribe.len().min(VALUE_BATCH_MAX));
            return Some(ToValuePublisher::Unsubscribe(std::mem::replace(
                &mut self.to_unsubscribe,
                rest,
            )));
        }
        let (mut requests, mut bytes) = (Vec::new(), 0);
        while requests.len() < VALUE_BATCH_MAX
            && bytes < SUBSCRIBE_BYTES
            && let Some(Reverse(at)) = self.to_subscribe.pop()
        {
            if self.slots[at as usize].state != SlotState::Pending {
                continue;
            }
            let at = self.move_to_lowest_number(at);
            let slot = &mut self.slots[at as usize];
            if let Some(path) = &slot.path {
                slot.state = SlotState::Requested;
                slot.requested_policy = slot.policy;
                bytes += path.as_str().len();
                let (path, policy) = (path.clone(), slot.policy);
                requests.push(SubscribeValue { subscription: at, path, policy });
            }
        }
        (!requests.is_empty()).then_some(ToValuePublisher::Subscribe(requests))
    }

    /// Moves a slot that the publisher does not know to the lowest free number: lower slots may
    /// have been freed before they were requested. Returns the slot's number.
    fn move_to_lowest_number(&mut self, at: u32) -> u32 {
        let Some(Reverse(to)) = self.free.peek().copied().filter(|free| free.0 < at) else {
            return at;
        };
        self.free.pop();
        self.free.push(Reverse(at));
        self.slots.swap(at as usize, to as usize);
        let slot = &mut self.slots[to as usize];
        slot.locals.iter_mut().for_each(|local| local.sub.move_to_slot(to));
        if let Some(path) = &slot.path
            && let Some(number) = self.by_path.get_mut(path)
        {
            *number = to;
        }
        to
    }

    /// Handles a message from the publisher that arrived in a frame of `frame_bytes`.
    pub(crate) fn handle(
        &mut self,
        now: Duration,
        message: FromValuePublisher,
        frame_bytes: usize,
    ) -> Result<(), ProtocolViolation> {
        match message {
            FromValuePublisher::Updates(updates) => self.updates(&updates, frame_bytes)?,
            FromValuePublisher::Subscribed(all) => {
                all.into_iter().try_for_each(|one| self.subscribed(now, one, frame_bytes))?;
            }
            FromValuePublisher::Refused { subscription, reason, .. } => {
                self.refused(subscription, &reason.into())?;
            }
            FromValuePublisher::Ended(all) => {
                all.into_iter().try_for_each(|one| self.ended(one, frame_bytes))?;
            }
            FromValuePublisher::Written(written) => self.writes.written(written),
            FromValuePublisher::Goodbye { reason } => {
                return Err(ProtocolViolation::Goodbye(reason));
            }
        }
        Ok(())
    }

    fn updates(&mut self, updates: &Updates, frame_bytes: usize) -> Result<(), WireError> {
        let mut staged = 0;
        let mut updates = updates.iter();
        loop {
            let (number, value) = match updates.next_number() {
                Some(update) => update,
                None => match updates.next() {
                    Some(update) => update?,
                    None => return Ok(()),
                },
            };
            if staged >= STAGED_MAX {
                self.deliver_staged(frame_bytes);
                staged = 0;
            }
            let at = self.numbers.get(number as usize).copied().unwrap_or(NONE);
            // Unknown number: the update was in flight when its subscription ended.
            let Some(slot) = self.slots.get_mut(at as usize) else { continue };
            for local in slot.locals.iter_mut().filter(|local| local.active) {
                if !local.lagging {
                    self.sinks.stage(local.sink, at, local.key, &value);
                    staged += 1;
                } else if local.policy == Policy::DropOldest {
                    local.push_backlog(&value, frame_bytes, &mut self.backlog_bytes);
                }
            }
            slot.last_value.store(&value, frame_bytes);
        }
    }

    fn subscribed(
        &mut self,
        now: Duration,
        message: Subscribed,
        frame_bytes: usize,
    ) -> Result<(), ProtocolViolation> {
        let Subscribed { subscription: at, number, value } = message;
        self.subscribed_at = now;
        let slot =
            self.slots.get_mut(at as usize).filter(|slot| slot.state == SlotState::Requested);
        let slot = slot.ok_or(ProtocolViolation::Unrequested)?;
        if number >= NUMBERS_MAX {
            return Err(ProtocolViolation::Number(number));
        }
        if self.numbers.len() <= number as usize {
            self.numbers.resize(number as usize + 1, NONE);
        }
        if self.numbers[number as usize] != NONE {
            return Err(ProtocolViolation::SameNumber(number));
        }
        self.numbers[number as usize] = at;
        if slot.locals.is_empty() || slot.requested_policy != slot.policy {
            // No local subscription is left, or one with another policy was added: request it again
            // once this one has ended.
            slot.state = SlotState::Unsubscribing(number);
            self.to_unsubscribe.push(at);
            return Ok(());
        }
        slot.state = SlotState::Active(number);
        let mut unused = Vec::new();
        for local in slot.locals.iter_mut() {
            self.sinks.stage(local.sink, at, local.key, &value);
            if !local.activate(now, self.publisher) {
                unused.push(local.key);
            }
        }
        slot.last_value.store(&value, frame_bytes);
        unused.into_iter().for_each(|key| self.remove(at, key));
        Ok(())
    }

    fn refused(&mut self, at: u32, reason: &Arc<str>) -> Result<(), ProtocolViolation> {
        let slot =
            self.slots.get_mut(at as usize).filter(|slot| slot.state == SlotState::Requested);
        let slot = slot.ok_or(ProtocolViolation::Unrequested)?;
        for local in slot.locals.take_all() {
            self.locals -= 1;
            self.sinks.remove_user(local.sink);
            local.end(None, reason, &mut self.lost, &mut self.backlog_bytes);
        }
        self.free(at);
        Ok(())
    }

    fn ended(
        &mut self,
        message: SubscriptionEnded,
        frame_bytes: usize,
    ) -> Result<(), ProtocolViolation> {
        // Delivers earlier updates first.
        self.deliver_staged(frame_bytes);
        let SubscriptionEnded { subscription: at, end } = message;
        let slot = self.slots.get_mut(at as usize).ok_or(ProtocolViolation::Unrequested)?;
        let (SlotState::Active(number) | SlotState::Unsubscribing(number)) = slot.state else {
            return Err(ProtocolViolation::Unrequested);
        };
        self.numbers[number as usize] = NONE;
        // The publisher may reuse the number for another value.
        self.writes.subscription_ended(at);
        if let SlotState::Unsubscribing(_) = slot.state {
            // A subscription may have been added meanwhile.
            match slot.locals.is_empty() {
                true => self.free(at),
                false => {
                    slot.state = SlotState::Pending;
                    self.to_subscribe.push(Reverse(at));
                }
            }
            return Ok(());
        }
        let (last, reason) = (slot.last_value.value(), Arc::from(end.to_string()));
        for local in slot.locals.take_all() {
            self.locals -= 1;
            self.sinks.remove_user(local.sink);
            local.end(last.clone(), &reason, &mut self.lost, &mut self.backlog_bytes);
        }
        self.free(at);
        Ok(())
    }

    /// Delivers staged updates to their channels. A full channel delays no other: subscriptions
    /// that may drop updates become lagging, and the others end.
    pub(crate) fn deliver_staged(&mut self, frame_bytes: usize) {
        let mut overflowed = Vec::new();
        while let Some(sink) = self.sinks.next_staged() {
            let channel = sink.channel.clone();
            let bytes = if std::mem::take(&mut sink.holds_frame) { frame_bytes } else { 0 };
            let max = channel.updates_max();
            let mut queue = channel.lock();
            if queue.is_closed() {
                sink.staged.clear();
            } else if sink.staged.len() <= queue.room(max) {
                queue.append(&mut sink.staged, bytes);
            } else {
                for (item, at) in sink.staged.drain(..).zip(&sink.slots) {
                    let locals = &mut self.slots[*at as usize].locals;
                    // It may have been removed meanwhile.
                    let Some(local) = locals.get_mut(item.0) else { continue };
                    if !local.lagging && queue.has_room(max) {
                        queue.push(item);
                        continue;
                    }
                    if local.policy == Policy::Disconnect {
                        overflowed.extend(locals.remove(item.0).map(|local| (*at, local)));
                        continue;
                    }
                    if !std::mem::replace(&mut local.lagging, true) {
                        queue.add_lagging(&local.sub);
                    }
                    if let (Policy::DropOldest, Event::Update(value)) = (local.policy, &item.1) {
                        local.push_backlog(value, frame_bytes, &mut self.backlog_bytes);
                    }
                }
                queue.charge(bytes);
            }
            drop(queue);
            sink.slots.clear();
            channel.notify_reader();
        }
        if overflowed.is_empty() {
            return;
        }
        let reason = Arc::from(SubscriptionEnd::TooSlow.to_string());
        let mut slots = Vec::with_capacity(overflowed.len());
        for (at, local) in overflowed {
            self.locals -= 1;
            self.sinks.remove_user(local.sink);
            let last = self.slots[at as usize].last_value.value();
            local.end(last, &reason, &mut self.lost, &mut self.backlog_bytes);
            slots.push(at);
        }
        // After the loop: several subscriptions of one value may have ended, and the first must not
        // clear the last value for the others.
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().for_each(|at| self.unsubscribe_if_unused(at));
    }

    /// Takes the durable subscriptions that lost their value since the last call.
    pub(crate) fn take_lost(&mut self) -> LostSubscriptions {
        std::mem::take(&mut self.lost)
    }

    /// The link is dead: reports the reason to every subscription. Returns the durable ones among
    /// those that were active.
    pub(crate) fn end(&mut self, reason: &Arc<str>) -> LostSubscriptions {
        self.deliver_staged(0);
        self.closed.get_or_insert_with(|| reason.clone());
        self.writes.end(reason);
        for mut slot in std::mem::take(&mut self.slots) {
            let last = slot.last_value.value();
            for local in slot.locals.take_all() {
                local.end(last.clone(), reason, &mut self.lost, &mut self.backlog_bytes);
            }
        }
        self.locals = 0;
        (self.by_path, self.numbers, self.sinks) = Default::default();
        (self.to_subscribe, self.to_unsubscribe) = Default::default();
        std::mem::take(&mut self.lost)
    }

    /// The last value. `None` if the subscription is not in this table; `Some(None)` if it is not
    /// active yet.
    pub(crate) fn last(&self, at: u32, key: SubscriptionKey) -> Option<Option<Value>> {
        let slot = self.slots.get(at as usize)?;
        slot.locals.get(key).map(|local| local.active.then(|| slot.last_value.value()).flatten())
    }

    pub(crate) fn is_active(&self, at: u32, key: SubscriptionKey) -> bool {
        let local = self.slots.get(at as usize).and_then(|slot| slot.locals.get(key));
        local.is_some_and(|local| local.active)
    }

    /// True if the subscription is in this table, is not active, and reports to these refusals.
    pub(crate) fn is_waiting(
        &self,
        at: u32,
        key: SubscriptionKey,
        refusals: &RefusalSender,
    ) -> bool {
        let local = self.slots.get(at as usize).and_then(|slot| slot.locals.get(key));
        let own = local.and_then(|local| local.refusals.as_ref());
        own.is_some_and(|own| own.same_channel(refusals))
    }

    /// Passes what a lagging reader missed to `each`: the latest value, or the backlog. The reader
    /// no longer lags.
    pub(crate) fn take_lagging(&mut self, at: u32, key: SubscriptionKey, each: impl FnMut(Value)) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(local) = slot.locals.get_mut(key).filter(|local| local.lagging) else { return };
        local.lagging = false;
        match local.policy {
            Policy::DropOldest => local.take_backlog(&mut self.backlog_bytes).for_each(each),
            _ => slot.last_value.value().into_iter().for_each(each),
        }
    }

    /// Opens a slot for the path of `sub`; `None` if the table is full.
    fn open(&mut self, sub: &SubscriptionCore) -> Option<u32> {
        let slot = Slot {
            path: Some(sub.path.clone()),
            policy: sub.policy,
            requested_policy: sub.policy,
            state: SlotState::Pending,
            last_value: RetainedValue::Nothing,
            locals: LocalSubscriptions::default(),
        };
        let at = match self.free.pop() {
            Some(Reverse(at)) => {
                self.slots[at as usize] = slot;
                at
            }
            None if self.slots.len() >= self.subscriptions_max => return None,
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.by_path.insert(sub.path.clone(), at);
        self.to_subscribe.push(Reverse(at));
        Some(at)
    }

    fn free(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if let Some(path) = slot.path.take() {
            self.by_path.remove(&path);
        }
        (slot.state, slot.last_value) = (SlotState::Free, RetainedValue::Nothing);
        self.free.push(Reverse(at));
    }
}

impl LocalSubscription {
    /// The subscription becomes active, and its caller is notified. Returns false if no
    /// subscription needs it any more.
    fn activate(&mut self, now: Duration, publisher: PublisherId) -> bool {
        self.active = true;
        self.refusals = None;
        self.sub.activated(now, publisher)
    }

    /// True if the subscription may be retried and lost again before its reader catches up. A
    /// `Disconnect` subscription is not retried before its reader has caught up.
    fn may_skip_updates(&self) -> bool {
        self.policy != Policy::Disconnect && self.sub.is_durable()
    }

    /// The reader lags and will fetch this update too, unless the backlog overflows.
    fn push_backlog(&mut self, value: &Value, frame_bytes: usize, total: &mut usize) {
        self.backlog.get_or_insert_default().push(value, frame_bytes, total);
    }

    fn take_backlog(&mut self, total: &mut usize) -> impl Iterator<Item = Value> + use<> {
        let backlog = self.backlog.take();
        backlog.map(|mut backlog| backlog.take(total)).into_iter().flatten()
    }

    /// Ends the subscription. An active one reports what its reader missed, at least its last
    /// value, and then its end. One that was not active yet goes to its refusals.
    fn end(
        mut self,
        last: Option<Value>,
        reason: &Arc<str>,
        lost: &mut LostSubscriptions,
        backlog_bytes: &mut usize,
    ) {
        self.sub.detach(if self.active { last.clone() } else { None });
        let mut backlog = self.take_backlog(backlog_bytes).peekable();
        let may_skip_updates = self.may_skip_updates();
        if let Some(refusals) = self.refusals {
            let _ = refusals.send((self.sub, reason.clone()));
            return;
        }
        {
            let mut queue = self.sub.channel.lock();
            let last = last.filter(|_| self.lagging);
            let has_room = queue.has_room(self.sub.channel.updates_max());
            let update = |value| (self.key, Event::Update(value));
            if has_room && backlog.peek().is_some() {
                queue.extend(backlog.map(update));
                queue.extend([(self.key, Event::Dead(reason.clone()))]);
            } else if has_room || !may_skip_updates {
                queue.extend(last.map(update));
                queue.extend([(self.key, Event::Dead(reason.clone()))]);
            } else {
                self.sub.record_missed(last, reason.clone());
                queue.add_lagging(&self.sub);
            }
        }
        self.sub.channel.notify_reader();
        if self.sub.is_durable() {
            lost.push((self.sub, reason.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
