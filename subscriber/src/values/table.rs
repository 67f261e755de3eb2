//! What one link holds: subscriptions by their numbers, the last value of each, and what is to be
//! sent. Pure, but for the channels that it hands updates to: time is an argument.
//!
//! Subscriptions of this process to the same path share one on the wire, and the policy of the
//! first is the wire's.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
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

/// Numbers of values at one publisher are below this: the table has four bytes for each up to the
/// highest.
pub(crate) const NUMBERS_MAX: u32 = 16 * 1024 * 1024;
/// A message of subscriptions is closed once its paths have this many bytes.
const SUBSCRIBE_BYTES: usize = 1024 * 1024;
/// Updates of a frame that are staged before they are handed over: a frame of 20 MiB may have ten
/// million.
const STAGED_MAX: usize = 65_536;
/// No subscription.
const NONE: u32 = u32::MAX;

/// Why a link to a publisher of values is given up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ProtocolViolation {
    #[error("the publisher's bytes do not decode: {0}")]
    Wire(#[from] WireError),
    #[error("the publisher answered what it was not asked")]
    Unrequested,
    #[error("the publisher calls a value {0}; numbers are below {NUMBERS_MAX}")]
    Number(u32),
    #[error("the publisher calls two values {0}")]
    SameNumber(u32),
    #[error("the publisher said goodbye: {0}")]
    Goodbye(String),
}

#[derive(Debug)]
pub(crate) struct SubscriptionTable {
    publisher: PublisherId,
    subscriptions_max: usize,
    /// Why nothing is held here any more.
    closed: Option<Arc<str>>,
    /// By the number of the subscription.
    slots: Vec<Slot>,
    free: BinaryHeap<Reverse<u32>>,
    by_path: HashMap<Path, u32>,
    /// From the publisher's number of a value to the subscription's.
    numbers: Vec<u32>,
    sinks: Sinks,
    locals: usize,
    /// Slots to be subscribed, the lowest first while the table fills up: publishers take no number
    /// far beyond those that they know. Some may not be wanted any more.
    to_subscribe: VecDeque<u32>,
    to_unsubscribe: Vec<u32>,
    pub(crate) writes: Writes,
    /// Durable ones that lost their value here, and why.
    lost: LostSubscriptions,
    /// Bytes of updates that wait behind marks.
    backlog_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    path: Option<Path>,
    policy: Policy,
    /// The policy that the publisher was asked for.
    requested_policy: Policy,
    state: SlotState,
    last_value: RetainedValue,
    locals: LocalSubscriptions,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    /// To be asked for.
    Pending,
    Requested,
    /// It stands, under the publisher's number.
    Active(u32),
    /// It is wanted no more; its number is free once the publisher says so.
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
            to_subscribe: VecDeque::new(),
            to_unsubscribe: Vec::new(),
            writes: Writes::default(),
            lost: Vec::new(),
            backlog_bytes: 0,
        }
    }

    /// Why nothing is held here any more, if so.
    pub(crate) fn closed(&self) -> Option<&Arc<str>> {
        self.closed.as_ref()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.locals == 0
    }

    /// Holds a subscription from now on. Refused: why, and it is nowhere.
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
            None => self.open(sub).ok_or("the link has as many subscriptions as it may")?,
        };
        self.locals += 1;
        sub.attach(link, at);
        let slot = &mut self.slots[at as usize];
        if slot.locals.is_empty() {
            // What those before it wanted says nothing any more.
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
        let wanted = match (slot.state, slot.last_value.value()) {
            (SlotState::Active(_), Some(value)) => {
                let wanted = local.activate(now, self.publisher);
                self.sinks.stage(local.sink, at, local.key, &value);
                wanted
            }
            _ => true,
        };
        slot.locals.push(local);
        self.deliver_staged(0);
        if !wanted {
            self.remove(at, sub.key);
        }
        Ok(())
    }

    /// Its handle has gone, or its maker has given up waiting.
    pub(crate) fn remove(&mut self, at: u32, key: SubscriptionKey) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(mut local) = slot.locals.remove(key) else { return };
        local.sub.detach(if local.active { slot.last_value.value() } else { None });
        self.sinks.remove_user(local.sink);
        self.locals -= 1;
        local.take_backlog(&mut self.backlog_bytes).for_each(drop);
        self.unsubscribe_if_unused(at);
    }

    /// The publisher is to send no more of a value that nobody here follows.
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
            // The publisher answers first.
            SlotState::Free | SlotState::Requested | SlotState::Unsubscribing(_) => {}
        }
    }

    /// The next message that is to be sent.
    pub(crate) fn outgoing(&mut self) -> Option<ToValuePublisher> {
        // Before the ends of subscriptions: what was written before one was dropped goes by it.
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
        let (mut asked, mut bytes) = (Vec::new(), 0);
        while asked.len() < VALUE_BATCH_MAX
            && bytes < SUBSCRIBE_BYTES
            && let Some(at) = self.to_subscribe.pop_front()
        {
            let slot = &mut self.slots[at as usize];
            if let (SlotState::Pending, Some(path)) = (slot.state, &slot.path) {
                slot.state = SlotState::Requested;
                slot.requested_policy = slot.policy;
                bytes += path.as_str().len();
                let (path, policy) = (path.clone(), slot.policy);
                asked.push(SubscribeValue { subscription: at, path, policy });
            }
        }
        (!asked.is_empty()).then_some(ToValuePublisher::Subscribe(asked))
    }

    /// What the publisher says, in a frame of `frame_bytes`.
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
            // Of a number that nobody here knows: it was on its way when its subscription ended.
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
            // Nobody wants it any more, or somebody on other terms: asked again once it has ended.
            slot.state = SlotState::Unsubscribing(number);
            self.to_unsubscribe.push(at);
            return Ok(());
        }
        slot.state = SlotState::Active(number);
        let mut unwanted = Vec::new();
        for local in slot.locals.iter_mut() {
            self.sinks.stage(local.sink, at, local.key, &value);
            if !local.activate(now, self.publisher) {
                unwanted.push(local.key);
            }
        }
        slot.last_value.store(&value, frame_bytes);
        unwanted.into_iter().for_each(|key| self.remove(at, key));
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
        // Updates that came before it are told before it.
        self.deliver_staged(frame_bytes);
        let SubscriptionEnded { subscription: at, end } = message;
        let slot = self.slots.get_mut(at as usize).ok_or(ProtocolViolation::Unrequested)?;
        let (SlotState::Active(number) | SlotState::Unsubscribing(number)) = slot.state else {
            return Err(ProtocolViolation::Unrequested);
        };
        self.numbers[number as usize] = NONE;
        // The number may be another value's next.
        self.writes.subscription_ended(at);
        if let SlotState::Unsubscribing(_) = slot.state {
            // Wanted again meanwhile?
            match slot.locals.is_empty() {
                true => self.free(at),
                false => {
                    slot.state = SlotState::Pending;
                    self.to_subscribe.push_back(at);
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

    /// Hands what is staged to its channels. A channel without room delays nobody: subscriptions
    /// that may leave something out leave a mark there, and the others end.
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
                    // It may have left meanwhile.
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
        // Last: several of one value may have ended, and the first is not to take its last update
        // from the others.
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().for_each(|at| self.unsubscribe_if_unused(at));
    }

    /// Durable ones that lost their value here since this was asked last.
    pub(crate) fn take_lost(&mut self) -> LostSubscriptions {
        std::mem::take(&mut self.lost)
    }

    /// The link is dead: every subscription is told. Gives the durable ones among those that stood.
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

    /// The last value; none within if it does not stand yet, none at all if it is not here.
    pub(crate) fn last(&self, at: u32, key: SubscriptionKey) -> Option<Option<Value>> {
        let slot = self.slots.get(at as usize)?;
        slot.locals.get(key).map(|local| local.active.then(|| slot.last_value.value()).flatten())
    }

    pub(crate) fn is_active(&self, at: u32, key: SubscriptionKey) -> bool {
        let local = self.slots.get(at as usize).and_then(|slot| slot.locals.get(key));
        local.is_some_and(|local| local.active)
    }

    /// True if it is here, does not stand yet, and its refusal would go there.
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

    /// What a reader that had no room is to be told: the newest value, or the updates that wait.
    /// From now on it has room.
    pub(crate) fn take_lagging(&mut self, at: u32, key: SubscriptionKey, each: impl FnMut(Value)) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(local) = slot.locals.get_mut(key).filter(|local| local.lagging) else { return };
        local.lagging = false;
        match local.policy {
            Policy::DropOldest => local.take_backlog(&mut self.backlog_bytes).for_each(each),
            _ => slot.last_value.value().into_iter().for_each(each),
        }
    }

    /// A slot for the path of `sub`; none if there are as many as may be.
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
        self.to_subscribe.push_back(at);
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
    /// It stands, and whoever waits for that is told. False if nobody wants it any more.
    fn activate(&mut self, now: Duration, publisher: PublisherId) -> bool {
        self.active = true;
        self.refusals = None;
        self.sub.activated(now, publisher)
    }

    /// It may come back and be lost again before anybody reads of it. One that leaves out nothing
    /// does not come back before.
    fn may_skip_updates(&self) -> bool {
        self.policy != Policy::Disconnect && self.sub.is_durable()
    }

    /// Its reader has a mark of it, and will fetch this, too, unless too much waits.
    fn push_backlog(&mut self, value: &Value, frame_bytes: usize, total: &mut usize) {
        self.backlog.get_or_insert_default().push(value, frame_bytes, total);
    }

    fn take_backlog(&mut self, total: &mut usize) -> impl Iterator<Item = Value> + use<> {
        let backlog = self.backlog.take();
        backlog.map(|mut backlog| backlog.take(total)).into_iter().flatten()
    }

    /// It is held no more. One that stood tells what its reader has not had, at least its last
    /// value, and its end; one that did not is given back to whoever tries.
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
