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
use super::holders::{Holder, Holders};
use super::kept::Kept;
use super::link::ValueLink;
use super::sinks::Sinks;
use super::sub::{Lost, Refusals, Sub};
use super::writes::Writes;

/// Numbers of values at one publisher are below this: the table has four bytes for each up to the
/// highest.
pub(crate) const NUMBERS_MAX: u32 = 16 * 1024 * 1024;
/// A message of subscriptions is closed once its paths have this many bytes.
const ASK_BYTES: usize = 1024 * 1024;
/// Updates of a frame that are staged before they are handed over: a frame of 20 MiB may have ten
/// million.
const STAGED_MAX: usize = 65_536;
/// No subscription.
const NONE: u32 = u32::MAX;

/// Why a link to a publisher of values is given up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the publisher's bytes do not decode: {0}")]
    Wire(#[from] WireError),
    #[error("the publisher answered what it was not asked")]
    Order,
    #[error("the publisher calls a value {0}; numbers are below {NUMBERS_MAX}")]
    Number(u32),
    #[error("the publisher calls two values {0}")]
    SameNumber(u32),
    #[error("the publisher said goodbye: {0}")]
    Goodbye(String),
}

#[derive(Debug)]
pub(crate) struct Table {
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
    holders: usize,
    /// Slots to be subscribed, the lowest first while the table fills up: publishers take no number
    /// far beyond those that they know. Some may not be wanted any more.
    asks: VecDeque<u32>,
    leaves: Vec<u32>,
    pub(crate) writes: Writes,
    /// Durable ones that lost their value here, and why.
    lost: Lost,
    /// Bytes of updates that wait behind marks.
    behind_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    path: Option<Path>,
    policy: Policy,
    /// The policy that the publisher was asked for.
    asked: Policy,
    stage: Stage,
    kept: Kept,
    holders: Holders,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Free,
    /// To be asked for.
    Wanted,
    Asked,
    /// It stands, under the publisher's number.
    Standing(u32),
    /// It is wanted no more; its number is free once the publisher says so.
    Ending(u32),
}

impl Table {
    pub(crate) fn new(publisher: PublisherId) -> Table {
        Table {
            publisher,
            subscriptions_max: VALUE_SUBSCRIPTIONS_MAX,
            closed: None,
            slots: Vec::new(),
            free: BinaryHeap::new(),
            by_path: HashMap::new(),
            numbers: Vec::new(),
            sinks: Sinks::default(),
            holders: 0,
            asks: VecDeque::new(),
            leaves: Vec::new(),
            writes: Writes::default(),
            lost: Vec::new(),
            behind_bytes: 0,
        }
    }

    /// Why nothing is held here any more, if so.
    pub(crate) fn closed(&self) -> Option<&Arc<str>> {
        self.closed.as_ref()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holders == 0
    }

    /// Holds a subscription from now on. Refused: why, and it is nowhere.
    pub(crate) fn hold(
        &mut self,
        now: Duration,
        link: &Arc<ValueLink>,
        sub: &Arc<Sub>,
        refusals: &Refusals,
    ) -> Result<(), Arc<str>> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        let at = match self.by_path.get(&sub.path) {
            Some(at) => *at,
            None => self.open(sub).ok_or("the link has as many subscriptions as it may")?,
        };
        self.holders += 1;
        sub.put(link, at);
        let slot = &mut self.slots[at as usize];
        if slot.holders.is_empty() {
            // What those before it wanted says nothing any more.
            slot.policy = sub.policy;
        }
        let mut holder = Holder {
            sub: sub.clone(),
            key: sub.key,
            sink: self.sinks.join(&sub.channel),
            policy: sub.policy,
            marked: false,
            behind: None,
            stands: false,
            refusals: Some(refusals.clone()),
        };
        let wanted = match (slot.stage, slot.kept.value()) {
            (Stage::Standing(_), Some(value)) => {
                let wanted = holder.begin(now, self.publisher);
                self.sinks.stage(holder.sink, at, holder.key, &value);
                wanted
            }
            _ => true,
        };
        slot.holders.push(holder);
        self.hand_over(0);
        if !wanted {
            self.leave(at, sub.key);
        }
        Ok(())
    }

    /// Its handle has gone, or its maker has given up waiting.
    pub(crate) fn leave(&mut self, at: u32, key: SubscriptionKey) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(mut holder) = slot.holders.remove(key) else { return };
        holder.sub.put_off(if holder.stands { slot.kept.value() } else { None });
        self.sinks.part(holder.sink);
        self.holders -= 1;
        holder.take_behind(&mut self.behind_bytes).for_each(drop);
        self.unsubscribe_if_unheld(at);
    }

    /// The publisher is to send no more of a value that nobody here follows.
    fn unsubscribe_if_unheld(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if !slot.holders.is_empty() {
            return;
        }
        match slot.stage {
            Stage::Wanted => self.free(at),
            Stage::Standing(number) => {
                slot.stage = Stage::Ending(number);
                slot.kept = Kept::Nothing;
                self.leaves.push(at);
            }
            // The publisher answers first.
            Stage::Free | Stage::Asked | Stage::Ending(_) => {}
        }
    }

    /// The next message that is to be sent.
    pub(crate) fn outgoing(&mut self) -> Option<ToValuePublisher> {
        // Before the ends of subscriptions: what was written before one was dropped goes by it.
        if let Some(write) = self.writes.take() {
            return Some(ToValuePublisher::Write(write));
        }
        if !self.leaves.is_empty() {
            let rest = self.leaves.split_off(self.leaves.len().min(VALUE_BATCH_MAX));
            return Some(ToValuePublisher::Unsubscribe(std::mem::replace(&mut self.leaves, rest)));
        }
        let (mut asked, mut bytes) = (Vec::new(), 0);
        while asked.len() < VALUE_BATCH_MAX
            && bytes < ASK_BYTES
            && let Some(at) = self.asks.pop_front()
        {
            let slot = &mut self.slots[at as usize];
            if let (Stage::Wanted, Some(path)) = (slot.stage, &slot.path) {
                slot.stage = Stage::Asked;
                slot.asked = slot.policy;
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
    ) -> Result<(), Broken> {
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
            FromValuePublisher::Goodbye { reason } => return Err(Broken::Goodbye(reason)),
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
                self.hand_over(frame_bytes);
                staged = 0;
            }
            let at = self.numbers.get(number as usize).copied().unwrap_or(NONE);
            // Of a number that nobody here knows: it was on its way when its subscription ended.
            let Some(slot) = self.slots.get_mut(at as usize) else { continue };
            for holder in slot.holders.iter_mut().filter(|holder| holder.stands) {
                if !holder.marked {
                    self.sinks.stage(holder.sink, at, holder.key, &value);
                    staged += 1;
                } else if holder.policy == Policy::DropOldest {
                    holder.fall_behind(&value, frame_bytes, &mut self.behind_bytes);
                }
            }
            slot.kept.keep(&value, frame_bytes);
        }
    }

    fn subscribed(
        &mut self,
        now: Duration,
        told: Subscribed,
        frame_bytes: usize,
    ) -> Result<(), Broken> {
        let Subscribed { subscription: at, number, value } = told;
        let slot = self.slots.get_mut(at as usize).filter(|slot| slot.stage == Stage::Asked);
        let slot = slot.ok_or(Broken::Order)?;
        if number >= NUMBERS_MAX {
            return Err(Broken::Number(number));
        }
        if self.numbers.len() <= number as usize {
            self.numbers.resize(number as usize + 1, NONE);
        }
        if self.numbers[number as usize] != NONE {
            return Err(Broken::SameNumber(number));
        }
        self.numbers[number as usize] = at;
        if slot.holders.is_empty() || slot.asked != slot.policy {
            // Nobody wants it any more, or somebody on other terms: asked again once it has ended.
            slot.stage = Stage::Ending(number);
            self.leaves.push(at);
            return Ok(());
        }
        slot.stage = Stage::Standing(number);
        let mut unwanted = Vec::new();
        for holder in slot.holders.iter_mut() {
            self.sinks.stage(holder.sink, at, holder.key, &value);
            if !holder.begin(now, self.publisher) {
                unwanted.push(holder.key);
            }
        }
        slot.kept.keep(&value, frame_bytes);
        unwanted.into_iter().for_each(|key| self.leave(at, key));
        Ok(())
    }

    fn refused(&mut self, at: u32, reason: &Arc<str>) -> Result<(), Broken> {
        let slot = self.slots.get_mut(at as usize).filter(|slot| slot.stage == Stage::Asked);
        let slot = slot.ok_or(Broken::Order)?;
        for holder in slot.holders.take_all() {
            self.holders -= 1;
            self.sinks.part(holder.sink);
            holder.end(None, reason, &mut self.lost, &mut self.behind_bytes);
        }
        self.free(at);
        Ok(())
    }

    fn ended(&mut self, told: SubscriptionEnded, frame_bytes: usize) -> Result<(), Broken> {
        // Updates that came before it are told before it.
        self.hand_over(frame_bytes);
        let SubscriptionEnded { subscription: at, end } = told;
        let slot = self.slots.get_mut(at as usize).ok_or(Broken::Order)?;
        let (Stage::Standing(number) | Stage::Ending(number)) = slot.stage else {
            return Err(Broken::Order);
        };
        self.numbers[number as usize] = NONE;
        // The number may be another value's next.
        self.writes.forget(at);
        if let Stage::Ending(_) = slot.stage {
            // Wanted again meanwhile?
            match slot.holders.is_empty() {
                true => self.free(at),
                false => {
                    slot.stage = Stage::Wanted;
                    self.asks.push_back(at);
                }
            }
            return Ok(());
        }
        let (last, reason) = (slot.kept.value(), Arc::from(end.to_string()));
        for holder in slot.holders.take_all() {
            self.holders -= 1;
            self.sinks.part(holder.sink);
            holder.end(last.clone(), &reason, &mut self.lost, &mut self.behind_bytes);
        }
        self.free(at);
        Ok(())
    }

    /// Hands what is staged to its channels. A channel without room delays nobody: subscriptions
    /// that may leave something out leave a mark there, and the others end.
    pub(crate) fn hand_over(&mut self, frame_bytes: usize) {
        let mut overflowed = Vec::new();
        while let Some(sink) = self.sinks.next_touched() {
            let channel = sink.channel.clone();
            let bytes = if std::mem::take(&mut sink.holds_frame) { frame_bytes } else { 0 };
            let max = channel.updates_max();
            let mut queue = channel.lock();
            if queue.is_unread() {
                sink.staged.clear();
            } else if sink.staged.len() <= queue.room(max) {
                queue.append(&mut sink.staged, bytes);
            } else {
                for (item, at) in sink.staged.drain(..).zip(&sink.slots) {
                    let holders = &mut self.slots[*at as usize].holders;
                    // It may have left meanwhile.
                    let Some(holder) = holders.get_mut(item.0) else { continue };
                    if !holder.marked && queue.has_room(max) {
                        queue.push(item);
                        continue;
                    }
                    if holder.policy == Policy::Disconnect {
                        overflowed.extend(holders.remove(item.0).map(|holder| (*at, holder)));
                        continue;
                    }
                    if !std::mem::replace(&mut holder.marked, true) {
                        queue.mark(&holder.sub);
                    }
                    if let (Policy::DropOldest, Event::Update(value)) = (holder.policy, &item.1) {
                        holder.fall_behind(value, frame_bytes, &mut self.behind_bytes);
                    }
                }
                queue.charge(bytes);
            }
            drop(queue);
            sink.slots.clear();
            channel.filled();
        }
        if overflowed.is_empty() {
            return;
        }
        let reason = Arc::from(SubscriptionEnd::TooSlow.to_string());
        let mut slots = Vec::with_capacity(overflowed.len());
        for (at, holder) in overflowed {
            self.holders -= 1;
            self.sinks.part(holder.sink);
            let last = self.slots[at as usize].kept.value();
            holder.end(last, &reason, &mut self.lost, &mut self.behind_bytes);
            slots.push(at);
        }
        // Last: several of one value may have ended, and the first is not to take its last update
        // from the others.
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().for_each(|at| self.unsubscribe_if_unheld(at));
    }

    /// Durable ones that lost their value here since this was asked last.
    pub(crate) fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }

    /// The link is dead: every subscription is told. Gives the durable ones among those that stood.
    pub(crate) fn end(&mut self, reason: &Arc<str>) -> Lost {
        self.hand_over(0);
        self.closed.get_or_insert_with(|| reason.clone());
        self.writes.end(reason);
        for mut slot in std::mem::take(&mut self.slots) {
            let last = slot.kept.value();
            for holder in slot.holders.take_all() {
                holder.end(last.clone(), reason, &mut self.lost, &mut self.behind_bytes);
            }
        }
        self.holders = 0;
        (self.by_path, self.numbers, self.sinks) = Default::default();
        (self.asks, self.leaves) = Default::default();
        std::mem::take(&mut self.lost)
    }

    /// The last value; none within if it does not stand yet, none at all if it is not here.
    pub(crate) fn last(&self, at: u32, key: SubscriptionKey) -> Option<Option<Value>> {
        let slot = self.slots.get(at as usize)?;
        slot.holders.get(key).map(|holder| holder.stands.then(|| slot.kept.value()).flatten())
    }

    pub(crate) fn stands(&self, at: u32, key: SubscriptionKey) -> bool {
        let holder = self.slots.get(at as usize).and_then(|slot| slot.holders.get(key));
        holder.is_some_and(|holder| holder.stands)
    }

    /// True if it is here, does not stand yet, and its refusal would go there.
    pub(crate) fn waits(&self, at: u32, key: SubscriptionKey, refusals: &Refusals) -> bool {
        let holder = self.slots.get(at as usize).and_then(|slot| slot.holders.get(key));
        let own = holder.and_then(|holder| holder.refusals.as_ref());
        own.is_some_and(|own| own.same_channel(refusals))
    }

    /// What a reader that had no room is to be told: the newest value, or the updates that wait.
    /// From now on it has room.
    pub(crate) fn take_marked(&mut self, at: u32, key: SubscriptionKey, each: impl FnMut(Value)) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(holder) = slot.holders.get_mut(key).filter(|holder| holder.marked) else { return };
        holder.marked = false;
        match holder.policy {
            Policy::DropOldest => holder.take_behind(&mut self.behind_bytes).for_each(each),
            _ => slot.kept.value().into_iter().for_each(each),
        }
    }

    /// A slot for the path of `sub`; none if there are as many as may be.
    fn open(&mut self, sub: &Sub) -> Option<u32> {
        let slot = Slot {
            path: Some(sub.path.clone()),
            policy: sub.policy,
            asked: sub.policy,
            stage: Stage::Wanted,
            kept: Kept::Nothing,
            holders: Holders::default(),
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
        self.asks.push_back(at);
        Some(at)
    }

    fn free(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if let Some(path) = slot.path.take() {
            self.by_path.remove(&path);
        }
        (slot.stage, slot.kept) = (Stage::Free, Kept::Nothing);
        self.free.push(Reverse(at));
    }
}

impl Holder {
    /// It stands, and whoever waits for that is told. False if nobody wants it any more.
    fn begin(&mut self, now: Duration, publisher: PublisherId) -> bool {
        self.stands = true;
        self.refusals = None;
        self.sub.stands(now, publisher)
    }

    /// It may come back and be lost again before anybody reads of it. One that leaves out nothing
    /// does not come back before.
    fn may_miss(&self) -> bool {
        self.policy != Policy::Disconnect && self.sub.is_durable()
    }

    /// Its reader has a mark of it, and will fetch this, too, unless too much waits.
    fn fall_behind(&mut self, value: &Value, frame_bytes: usize, total: &mut usize) {
        self.behind.get_or_insert_default().push(value, frame_bytes, total);
    }

    fn take_behind(&mut self, total: &mut usize) -> impl Iterator<Item = Value> + use<> {
        let behind = self.behind.take();
        behind.map(|mut behind| behind.take(total)).into_iter().flatten()
    }

    /// It is held no more. One that stood tells what its reader has not had, at least its last
    /// value, and its end; one that did not is given back to whoever tries.
    fn end(
        mut self,
        last: Option<Value>,
        reason: &Arc<str>,
        lost: &mut Lost,
        behind_bytes: &mut usize,
    ) {
        self.sub.put_off(if self.stands { last.clone() } else { None });
        let mut behind = self.take_behind(behind_bytes).peekable();
        let may_miss = self.may_miss();
        if let Some(refusals) = self.refusals {
            let _ = refusals.send((self.sub, reason.clone()));
            return;
        }
        {
            let mut queue = self.sub.channel.lock();
            let last = last.filter(|_| self.marked);
            let has_room = queue.has_room(self.sub.channel.updates_max());
            let update = |value| (self.key, Event::Update(value));
            if has_room && behind.peek().is_some() {
                queue.extend(behind.map(update));
                queue.extend([(self.key, Event::Dead(reason.clone()))]);
            } else if has_room || !may_miss {
                queue.extend(last.map(update));
                queue.extend([(self.key, Event::Dead(reason.clone()))]);
            } else {
                self.sub.miss(last, reason.clone());
                queue.mark(&self.sub);
            }
        }
        self.sub.channel.filled();
        if self.sub.is_durable() {
            lost.push((self.sub, reason.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
